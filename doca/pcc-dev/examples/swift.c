/*
 * Swift (Kumar et al., SIGCOMM 2020): a target delay, additive increase of a window below it, and a decrease in proportion to
 * the excess.
 *
 * The device limits rates and not windows. Each response sets the rate that the window has at the measured delay, so that a
 * longer queue slows the flow at once, as waiting acknowledgements slow a sender with a window.
 */
#include "example.h"

#include <pcc_dcqcn.h>

/* Numbers of the parameters; the names of the paper are in brackets. */
enum {
	/* Target delay of a flow with a large window, in ns. */
	TARGET,
	/* Most that a small window adds to it (fs_range), in ns. */
	SCALING,
	/* Window at which the whole range is added (fs_min_cwnd), in thousandths of a packet. */
	WINDOW_MIN,
	/* Window at which nothing is added (fs_max_cwnd), in packets. */
	WINDOW_MAX,
	/* Additive increase (ai), in thousandths of a packet per round trip. */
	ADDITIVE,
	/* Part of the excess by which the rate falls (beta), and the largest decrease (max_mdf), in percent. */
	BETA,
	DECREASE_MAX,
	/* Payload of a full packet. */
	MTU,
};

/* The paper adds a packet per round trip. Rates follow a probe late, and many flows that add a packet each would add a large part
 * of the port's traffic. */
static const struct example_parameter parameters[] = {
	[TARGET] = EXAMPLE_PARAMETER(25000, 1000, 10000000, "TARGET, target delay, ns"),
	[SCALING] = EXAMPLE_PARAMETER(125000, 0, 10000000, "SCALING, range of the flow scaling, ns"),
	[WINDOW_MIN] = EXAMPLE_PARAMETER(100, 1, 1000000, "WINDOW_MIN, window with the whole range, packets / 1000"),
	[WINDOW_MAX] = EXAMPLE_PARAMETER(100, 1, 1000000, "WINDOW_MAX, window without scaling, packets"),
	[ADDITIVE] = EXAMPLE_PARAMETER(100, 1, 100000, "ADDITIVE, increase per round trip, packets / 1000"),
	[BETA] = EXAMPLE_PARAMETER(80, 1, 100, "BETA, share of the excess, %"),
	[DECREASE_MAX] = EXAMPLE_PARAMETER(50, 1, 100, "DECREASE_MAX, largest decrease, %"),
	[MTU] = EXAMPLE_PARAMETER(4096, 256, 65535, "MTU, payload of a packet, bytes"),
};

struct flow {
	/* 0: a new flow. */
	uint32_t rate;
	uint32_t decreased_at;
	uint32_t missed;
	uint32_t retransmits;
	/* The last delay; 0 before the first one. */
	uint32_t delay;
	/* The window in packets, with 16 bits of fraction. */
	uint32_t window;
	/* Time of the last increase. */
	uint32_t increased_at;
	uint32_t reserved[5];
};

_Static_assert(sizeof(struct flow) == sizeof(doca_pcc_dev_algo_ctxt_t), "the context of a flow");

#define ONE (1ull << 16)

/* The root of a number, rounded down. */
static uint64_t root(uint64_t value)
{
	uint64_t result = 0;
	uint32_t top = value == 0 ? 0 : 63 - (uint32_t)__builtin_clzll(value);

	for (uint64_t bit = 1ull << (top & ~1u); bit != 0; bit >>= 2) {
		if (value >= result + bit) {
			value -= result + bit;
			result = (result >> 1) + bit;
		} else {
			result >>= 1;
		}
	}
	return result;
}

/* 2^16 over the root of a window in packets. */
static uint64_t inverse_root(uint64_t window)
{
	return root((1ull << 48) / (window == 0 ? 1 : window));
}

static uint32_t limited(uint64_t value)
{
	return value > UINT32_MAX ? UINT32_MAX : (uint32_t)value;
}

static uint32_t scaled(uint32_t value, uint64_t factor)
{
	uint64_t result = (value * factor) >> 16;

	return result > UINT32_MAX ? UINT32_MAX : (uint32_t)result;
}

/* The window with which a flow has this rate at this delay. Mb/s times ns are thousandths of bits. */
static uint32_t window_of(const uint32_t *values, uint32_t rate, uint32_t delay, uint64_t mbps)
{
	uint64_t millibits = (((mbps * delay) >> 10) * rate) >> 10;

	return limited((millibits << 16) / ((uint64_t)values[MTU] * 8000));
}

/* The rate of a window at this delay. */
static uint32_t rate_of(const uint32_t *values, uint32_t window, uint32_t delay, uint64_t mbps)
{
	uint64_t millibits = ((uint64_t)window * values[MTU] * 8000) >> 16;

	return limited((((millibits << 10) / (delay == 0 ? 1 : delay)) << 10) / mbps);
}

/* The target grows as the window shrinks (equation of section 3.5): alpha / sqrt(window) + beta, within 0 and the range. */
static uint32_t target(const uint32_t *values, uint32_t window)
{
	uint64_t most = inverse_root(((uint64_t)values[WINDOW_MIN] << 16) / 1000);
	uint64_t least = inverse_root((uint64_t)values[WINDOW_MAX] << 16);
	uint64_t now = inverse_root(window);

	most = most > least ? most : least;
	now = now < least ? least : now > most ? most : now;
	return values[TARGET] + scaled(values[SCALING], ((now - least) << 16) / (most > least ? most - least : 1));
}

/* Most round trips that one increase stands for. */
#define ROUNDS_MAX 16

/* The additive increase after a time, in which round trips took DELAY. A flow with few packets has few probes, and would fall
 * behind if each response counted alike. */
static uint32_t increase(const uint32_t *values, uint32_t elapsed, uint32_t delay)
{
	uint64_t one = ((uint64_t)values[ADDITIVE] << 16) / 1000;
	uint32_t most;

	delay = delay == 0 ? 1 : delay;
	most = limited((uint64_t)delay * ROUNDS_MAX);
	elapsed = elapsed > most ? most : elapsed;
	elapsed = elapsed < delay ? delay : elapsed;
	return limited(one * elapsed / delay);
}

/* The factor of a decrease. */
static uint64_t factor(const uint32_t *values, uint32_t delay, uint32_t aim)
{
	uint64_t excess = ((uint64_t)(delay - aim) << 16) / (delay == 0 ? 1 : delay);
	uint64_t cut = excess * values[BETA] / 100, most = ONE * values[DECREASE_MAX] / 100;

	return ONE - (cut < most ? cut : most);
}

/* A response moves the window, and the rate follows it. */
static uint32_t respond(struct flow *flow, const uint32_t *values, uint32_t now, uint32_t delay, uint64_t mbps)
{
	uint32_t aim, most, more;

	if (flow->delay == 0) {
		flow->window = window_of(values, flow->rate, delay, mbps);
		flow->increased_at = now - delay;
	}
	flow->delay = delay;
	aim = target(values, flow->window);
	if (delay < aim) {
		more = increase(values, pcc_elapsed(now, flow->increased_at), delay);
		/* No more than the port carries in this time. */
		most = window_of(values, DOCA_PCC_DEV_MAX_RATE, delay, mbps);
		most = most < 1 ? 1 : most;
		more = limited((uint64_t)flow->window + more);
		flow->window = more < most ? more : most;
	} else if (pcc_elapsed(now, flow->decreased_at) >= delay) {
		flow->decreased_at = now;
		flow->window = scaled(flow->window, factor(values, delay, aim));
		flow->window = flow->window < 1 ? 1 : flow->window;
	}
	flow->increased_at = now;
	return rate_of(values, flow->window, delay, mbps);
}

/* The rate after a response or a NACK. */
static uint32_t new_rate(struct flow *flow, const uint32_t *values, doca_pcc_dev_event_t *event, uint32_t type,
			 uint64_t mbps)
{
	uint32_t now = doca_pcc_dev_get_timestamp(event), total, there;
	uint64_t cut;

	if (type == DOCA_PCC_DEV_EVNT_RTT) {
		/* The time in the network: without that in the receiver. */
		total = pcc_elapsed(now, doca_pcc_dev_get_rtt_req_send_timestamp(event));
		there = pcc_elapsed(doca_pcc_dev_get_rtt_resp_send_timestamp(event),
				    doca_pcc_dev_get_rtt_req_recv_timestamp(event));
		return respond(flow, values, now, total > there ? total - there : 0, mbps);
	}
	/* A gap: the largest decrease, once per round trip. */
	if (pcc_elapsed(now, flow->decreased_at) < (flow->delay == 0 ? 1 : flow->delay))
		return flow->rate;
	flow->decreased_at = now;
	flow->retransmits++;
	cut = factor(values, UINT32_MAX, 0);
	flow->window = scaled(flow->window, cut);
	return scaled(flow->rate, cut);
}

void doca_pcc_dev_user_init(uint32_t *disable_event_bitmask)
{
	static const char text[] = "Swift";

	example_declare(0x51, text, sizeof(text), parameters, sizeof(parameters) / sizeof(parameters[0]));
	*disable_event_bitmask = 1u << DOCA_PCC_DEV_EVNT_ROCE_ACK | 1u << DOCA_PCC_DEV_EVNT_ROCE_CNP |
				 1u << DOCA_PCC_DEV_EVNT_ROCE_TX_FOR_ACK_NACK;
}

void doca_pcc_dev_user_algo(doca_pcc_dev_algo_ctxt_t *algo_ctxt, doca_pcc_dev_event_t *event,
			    const doca_pcc_dev_attr_t *attr, doca_pcc_dev_results_t *results)
{
	doca_pcc_dev_event_general_attr_t about = doca_pcc_dev_get_ev_attr(event);
	const uint32_t *values = doca_pcc_dev_get_algo_params(about.port_num, attr->algo_slot);
	struct flow *flow = (struct flow *)algo_ctxt;
	uint32_t before = flow->rate, gbps = doca_pcc_dev_get_port_speed(about.port_num);

	if (values == NULL) {
		doca_pcc_dev_default_internal_algo(algo_ctxt, event, attr, results);
		return;
	}
	if (flow->rate == 0) {
		flow->rate = DOCA_PCC_DEV_MAX_RATE;
		/* A decrease is allowed at once. */
		flow->decreased_at = doca_pcc_dev_get_timestamp(event) - UINT32_MAX / 4;
		results->rate = flow->rate;
		results->rtt_req = 1;
		return;
	}
	results->rtt_req = example_probe_is_lost(&flow->missed, about.ev_type);
	if (about.ev_type == DOCA_PCC_DEV_EVNT_RTT || about.ev_type == DOCA_PCC_DEV_EVNT_ROCE_NACK) {
		flow->rate = example_rate(new_rate(flow, values, event, about.ev_type, (gbps == 0 ? 1 : gbps) * 1000ull));
		results->rtt_req = about.ev_type == DOCA_PCC_DEV_EVNT_RTT;
		doca_pcc_dev_get_counters(about.port_num, attr->algo_slot)[0] += flow->rate < before;
	}
	results->rate = flow->rate;
}
