/*
 * An algorithm like HPCC (Li et al., SIGCOMM 2019): probes carry the utilisation of the busiest link, and the rate follows it.
 *
 * A response has twelve bytes for an algorithm, too few for the records of all links. As in PINT (Ben Basat et al., SIGCOMM
 * 2020), the switches keep the average of their links' utilisation, and the probe carries the largest: 16 bits of fraction in
 * the first word.
 */
#include "example.h"

#include <pcc_dcqcn.h>

/* Numbers of the parameters; the names of the paper are in brackets. */
enum {
	/* Target utilisation (eta), in percent. */
	TARGET,
	/* Most additive increases in sequence (maxStage). */
	STAGES,
	/* Additive increase (W_AI), in Mb/s. */
	ADDITIVE,
};

static const struct example_parameter parameters[] = {
	[TARGET] = EXAMPLE_PARAMETER(95, 1, 100, "TARGET, target utilisation, %"),
	[STAGES] = EXAMPLE_PARAMETER(5, 0, 1000, "STAGES, additive increases in sequence"),
	[ADDITIVE] = EXAMPLE_PARAMETER(200, 1, 100000, "ADDITIVE, additive increase, Mb/s"),
};

struct flow {
	/* 0: a new flow. */
	uint32_t rate;
	uint32_t stage;
	uint32_t missed;
	uint32_t reserved[9];
};

_Static_assert(sizeof(struct flow) == sizeof(doca_pcc_dev_algo_ctxt_t), "the context of a flow");

/* Algorithm 1 of the paper: multiplicative if the link is above its target or after some increases, else additive. */
static uint32_t new_rate(struct flow *flow, const uint32_t *values, uint32_t utilisation, uint32_t gbps)
{
	uint64_t aim = ((uint64_t)values[TARGET] << 16) / 100;
	uint32_t additive = pcc_rate_of_mbps(values[ADDITIVE], gbps);

	utilisation = utilisation == 0 ? 1 : utilisation;
	if (utilisation < aim && flow->stage < values[STAGES]) {
		flow->stage++;
		return example_rate((uint64_t)flow->rate + additive);
	}
	flow->stage = 0;
	return example_rate(flow->rate * aim / utilisation + additive);
}

void doca_pcc_dev_user_init(uint32_t *disable_event_bitmask)
{
	static const char text[] = "like HPCC";

	example_declare(0x4C, text, sizeof(text), parameters, sizeof(parameters) / sizeof(parameters[0]));
	*disable_event_bitmask = 1u << DOCA_PCC_DEV_EVNT_ROCE_ACK | 1u << DOCA_PCC_DEV_EVNT_ROCE_CNP |
				 1u << DOCA_PCC_DEV_EVNT_ROCE_NACK | 1u << DOCA_PCC_DEV_EVNT_ROCE_TX_FOR_ACK_NACK;
}

void doca_pcc_dev_user_algo(doca_pcc_dev_algo_ctxt_t *algo_ctxt, doca_pcc_dev_event_t *event,
			    const doca_pcc_dev_attr_t *attr, doca_pcc_dev_results_t *results)
{
	doca_pcc_dev_event_general_attr_t about = doca_pcc_dev_get_ev_attr(event);
	const uint32_t *values = doca_pcc_dev_get_algo_params(about.port_num, attr->algo_slot);
	struct flow *flow = (struct flow *)algo_ctxt;
	uint32_t before = flow->rate, utilisation;

	if (values == NULL) {
		doca_pcc_dev_default_internal_algo(algo_ctxt, event, attr, results);
		return;
	}
	if (flow->rate == 0) {
		flow->rate = DOCA_PCC_DEV_MAX_RATE;
		results->rate = flow->rate;
		results->rtt_req = 1;
		return;
	}
	results->rtt_req = example_probe_is_lost(&flow->missed, about.ev_type);
	if (about.ev_type == DOCA_PCC_DEV_EVNT_RTT) {
		__builtin_memcpy(&utilisation, doca_pcc_dev_get_rtt_raw_data(event), sizeof(utilisation));
		flow->rate = new_rate(flow, values, utilisation, doca_pcc_dev_get_port_speed(about.port_num));
		results->rtt_req = 1;
		doca_pcc_dev_get_counters(about.port_num, attr->algo_slot)[0] += flow->rate < before;
	}
	results->rate = flow->rate;
}
