/* Device side of the test: a constant rate for each flow, which the mailbox sets, and faults on request. */
#include <doca_pcc_dev_algo_access.h>

#include "pcc_shared.h"

static uint32_t next_fault;
static uint32_t events;
static uint32_t probes[2];

void doca_pcc_dev_user_init(uint32_t *disable_event_bitmask)
{
	static const char text[] = "test: constant rate", parameter[] = "RATE", fixed[] = "FIXED", counter[] = "EVENTS";
	struct doca_pcc_dev_algo_meta_data about = {0xC1, 2, 3, sizeof(text), (uint64_t)(uintptr_t)text};

	doca_pcc_dev_algo_init_metadata(0, &about, 2, 1);
	doca_pcc_dev_algo_init_param(0, 0, DOCA_PCC_DEV_MAX_RATE, DOCA_PCC_DEV_MAX_RATE, 1, 1, sizeof(parameter),
				     (uint64_t)(uintptr_t)parameter);
	doca_pcc_dev_algo_init_param(0, 1, 5, 9, 1, 0, sizeof(fixed), (uint64_t)(uintptr_t)fixed);
	doca_pcc_dev_algo_init_counter(0, 0, UINT32_MAX, 2, sizeof(counter), (uint64_t)(uintptr_t)counter);
	doca_pcc_dev_init_algo_slot(0, 0, 0, 1);
	doca_pcc_dev_printf("port of %u Gb/s\n", doca_pcc_dev_get_port_speed(0));
	doca_pcc_dev_trace_5(1, 0xab, 12, 0, 0, 0);
	*disable_event_bitmask = 1u << DOCA_PCC_DEV_EVNT_ROCE_ACK;
}

doca_pcc_dev_error_t doca_pcc_dev_user_set_algo_params(uint32_t port_num, uint32_t algo_slot, uint32_t param_id_base,
						       uint32_t param_num, const uint32_t *new_param_values,
						       uint32_t *params)
{
	(void)port_num;
	(void)algo_slot;
	(void)param_id_base;
	for (uint32_t i = 0; i < param_num; i++)
		params[i] = new_param_values[i];
	return DOCA_PCC_DEV_STATUS_OK;
}

doca_pcc_dev_error_t doca_pcc_dev_user_mailbox_handle(void *request, uint32_t request_size, uint32_t max_response_size,
						      void *response, uint32_t *response_size)
{
	const struct pcc_request *asked = request;

	if (request_size != sizeof(*asked) || max_response_size < sizeof(probes))
		return DOCA_PCC_DEV_STATUS_FAIL;
	switch (asked->what) {
	case PCC_SET_MBPS:
		/* A part of 2^20 of the port, whose speed is known in Gb/s. */
		doca_pcc_dev_get_algo_params(0, 0)[0] =
			(uint32_t)(((uint64_t)asked->value << DOCA_PCC_DEV_LOG_MAX_RATE) /
				   (doca_pcc_dev_get_port_speed(0) * 1000ull));
		break;
	case PCC_FAULT:
		next_fault = asked->value;
		break;
	case PCC_PROBES:
		__builtin_memcpy(response, probes, sizeof(probes));
		*response_size = sizeof(probes);
		return DOCA_PCC_DEV_STATUS_OK;
	default:
		return DOCA_PCC_DEV_STATUS_FAIL;
	}
	*(uint32_t *)response = events;
	*response_size = sizeof(events);
	return DOCA_PCC_DEV_STATUS_OK;
}

#ifndef PCC_LACKS
void doca_pcc_dev_user_algo(doca_pcc_dev_algo_ctxt_t *algo_ctxt, doca_pcc_dev_event_t *event,
			    const doca_pcc_dev_attr_t *attr, doca_pcc_dev_results_t *results)
{
	uint32_t type = doca_pcc_dev_get_ev_attr(event).ev_type;
	volatile uint32_t *nowhere = NULL;

	(void)algo_ctxt;
	events++;
	if (type == DOCA_PCC_DEV_EVNT_RTT)
		probes[doca_pcc_dev_get_rtt_raw_data(event)[0] != PCC_MARK]++;
	for (volatile uint32_t i = 0; next_fault == PCC_FAULT_SLOW && i < 100000; i++)
		;
	while (next_fault == PCC_FAULT_LOOPS)
		nowhere = NULL;
	if (next_fault == PCC_FAULT_CRASHES)
		*nowhere = 1;
	doca_pcc_dev_get_counters(0, attr->algo_slot)[0] = events;
	results->rate = doca_pcc_dev_get_algo_params(doca_pcc_dev_get_ev_attr(event).port_num, attr->algo_slot)[0];
	results->rtt_req = type == DOCA_PCC_DEV_EVNT_ROCE_TX && next_fault != PCC_FAULT_NO_PROBE;
	if (next_fault == PCC_FAULT_RATE_ZERO)
		results->rate = 0;
	if (next_fault == PCC_FAULT_RATE_ABOVE)
		results->rate = DOCA_PCC_DEV_MAX_RATE + 1;
}
#endif
