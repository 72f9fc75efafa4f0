/*
 * The library's own algorithm: DCQCN with default parameters. That of the vendor is not published.
 */
#include <pcc_dcqcn.h>

void doca_pcc_dev_default_internal_algo(doca_pcc_dev_algo_ctxt_t *algo_ctxt, doca_pcc_dev_event_t *event,
					const doca_pcc_dev_attr_t *attr, doca_pcc_dev_results_t *results)
{
	const struct pcc_dcqcn_parameters parameters = PCC_DCQCN_DEFAULTS;
	uint32_t gbps = doca_pcc_dev_get_port_speed(doca_pcc_dev_get_ev_attr(event).port_num);

	(void)attr;
	results->rate = pcc_dcqcn_event((struct pcc_dcqcn *)algo_ctxt, &parameters, event, gbps);
	results->rtt_req = 0;
}
