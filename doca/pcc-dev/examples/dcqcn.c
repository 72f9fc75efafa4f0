/*
 * DCQCN as a program: CNPs cut the rate, time and bytes raise it. It sends no probes.
 */
#include "example.h"

#include <pcc_dcqcn.h>

static const struct example_parameter parameters[] = {
	EXAMPLE_PARAMETER(8, 1, 16, "GAIN_SHIFT, alpha changes by 2 to the power of minus this"),
	EXAMPLE_PARAMETER(5, 1, 1000000, "ALPHA_TIMER, period of the decay of alpha, us"),
	EXAMPLE_PARAMETER(55, 1, 1000000, "INCREASE_TIMER, period of the increase, us"),
	EXAMPLE_PARAMETER(10240, 1, 1 << 20, "INCREASE_BYTES, bytes between two increases, KiB"),
	EXAMPLE_PARAMETER(5, 0, 1000, "FAST_RECOVERY, periods of fast recovery"),
	EXAMPLE_PARAMETER(200, 1, 100000, "ADDITIVE, additive increase, Mb/s"),
	EXAMPLE_PARAMETER(1000, 1, 100000, "HYPER, hyper increase, Mb/s"),
	EXAMPLE_PARAMETER(500, 1, 100000, "MINIMUM, lowest rate, Mb/s"),
	EXAMPLE_PARAMETER(50, 0, 1000000, "DECREASE_TIMER, shortest time between decreases, us"),
};

_Static_assert(sizeof(struct pcc_dcqcn_parameters) == sizeof(parameters) / sizeof(parameters[0]) * sizeof(uint32_t),
	       "the parameters in their order");

void doca_pcc_dev_user_init(uint32_t *disable_event_bitmask)
{
	static const char text[] = "DCQCN";

	example_declare(0xD1, text, sizeof(text), parameters, sizeof(parameters) / sizeof(parameters[0]));
	*disable_event_bitmask = 1u << DOCA_PCC_DEV_EVNT_ROCE_ACK | 1u << DOCA_PCC_DEV_EVNT_RTT |
				 1u << DOCA_PCC_DEV_EVNT_ROCE_TX_FOR_ACK_NACK;
}

void doca_pcc_dev_user_algo(doca_pcc_dev_algo_ctxt_t *algo_ctxt, doca_pcc_dev_event_t *event,
			    const doca_pcc_dev_attr_t *attr, doca_pcc_dev_results_t *results)
{
	uint32_t port = doca_pcc_dev_get_ev_attr(event).port_num;
	const uint32_t *values = doca_pcc_dev_get_algo_params(port, attr->algo_slot);
	uint32_t *counters = doca_pcc_dev_get_counters(port, attr->algo_slot);
	struct pcc_dcqcn *flow = (struct pcc_dcqcn *)algo_ctxt;
	struct pcc_dcqcn_parameters chosen;
	uint32_t before = flow->current;

	if (values == NULL) {
		doca_pcc_dev_default_internal_algo(algo_ctxt, event, attr, results);
		return;
	}
	chosen = (struct pcc_dcqcn_parameters){values[0], values[1], values[2], values[3], values[4],
					       values[5], values[6], values[7], values[8]};
	results->rate = pcc_dcqcn_event(flow, &chosen, event, doca_pcc_dev_get_port_speed(port));
	results->rtt_req = 0;
	counters[0] += flow->current < before;
}
