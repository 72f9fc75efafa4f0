/*
 * A constant rate for each flow: the set-points of a measurement.
 */
#include "example.h"

static const struct example_parameter parameters[] = {
	EXAMPLE_PARAMETER(DOCA_PCC_DEV_MAX_RATE, 1, DOCA_PCC_DEV_MAX_RATE, "RATE, of 1048576"),
};

void doca_pcc_dev_user_init(uint32_t *disable_event_bitmask)
{
	static const char text[] = "constant rate";

	example_declare(0xC0, text, sizeof(text), parameters, sizeof(parameters) / sizeof(parameters[0]));
	*disable_event_bitmask = 1u << DOCA_PCC_DEV_EVNT_ROCE_TX_FOR_ACK_NACK;
}

void doca_pcc_dev_user_algo(doca_pcc_dev_algo_ctxt_t *algo_ctxt, doca_pcc_dev_event_t *event,
			    const doca_pcc_dev_attr_t *attr, doca_pcc_dev_results_t *results)
{
	const uint32_t *values = doca_pcc_dev_get_algo_params(doca_pcc_dev_get_ev_attr(event).port_num, attr->algo_slot);

	if (values == NULL)
		doca_pcc_dev_default_internal_algo(algo_ctxt, event, attr, results);
	else
		results->rate = values[0];
}
