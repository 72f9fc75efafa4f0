/*
 * The reaction point of DCQCN (Zhu et al., SIGCOMM 2015), to build algorithms upon: CNPs cut the rate, time and bytes raise it.
 *
 * The device has no timers for algorithms. Periods that have passed are made up for at the next event.
 */
#ifndef PCC_DCQCN_H
#define PCC_DCQCN_H

#include <doca_pcc_dev_event.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Parameters; the names in brackets are the paper's. */
struct pcc_dcqcn_parameters {
	/* Gain of alpha is 2 to the power of minus this (g). */
	uint32_t gain_shift;
	/* Periods of the decay of alpha, and of the increase by time (T), in us. */
	uint32_t alpha_timer_us;
	uint32_t increase_timer_us;
	/* Bytes between two increases (B), in KiB. */
	uint32_t increase_kib;
	/* Periods of fast recovery (F). */
	uint32_t fast_recovery;
	/* Increase of the target beyond it (R_AI), and if both counters are beyond it, in Mb/s. */
	uint32_t additive_mbps;
	uint32_t hyper_mbps;
	/* Lowest rate, in Mb/s. */
	uint32_t minimum_mbps;
	/* Shortest time between two decreases, in us. */
	uint32_t decrease_us;
};

/* The paper's parameters, but: alpha decays each 5 us, since it needs 14 ms with the paper's 55 us to forget the congestion of
 * the start; the steps are those of ports of 200 Gb/s; and there is a lowest rate, without which a long queue cuts to nothing. */
#define PCC_DCQCN_DEFAULTS ((struct pcc_dcqcn_parameters){8, 5, 55, 10240, 5, 200, 1000, 500, 50})

/* Rates have this many bits of fraction more than those of the device; alpha has 24. */
#define PCC_DCQCN_EXTRA 8
#define PCC_DCQCN_FULL (DOCA_PCC_DEV_MAX_RATE << PCC_DCQCN_EXTRA)
#define PCC_DCQCN_ALPHA_ONE (1u << 24)
/* Most periods that one event makes up for. */
#define PCC_DCQCN_PERIODS 1000

/* State of a flow: its context. */
struct pcc_dcqcn {
	/* R_C; 0: a new flow. */
	uint32_t current;
	/* R_T. */
	uint32_t target;
	uint32_t alpha;
	uint32_t alpha_at;
	uint32_t increase_at;
	uint32_t decrease_at;
	/* Units of 32 bytes since the last increase by bytes. */
	uint32_t sent;
	/* Increases by time and by bytes since the last decrease. */
	uint32_t by_time;
	uint32_t by_bytes;
	uint32_t was_cut;
	uint32_t reserved[2];
};

_Static_assert(sizeof(struct pcc_dcqcn) == sizeof(doca_pcc_dev_algo_ctxt_t), "the context of a flow");

/* Time since THEN; the clock wraps. 0 if THEN is in the future. */
FORCE_INLINE uint32_t pcc_elapsed(uint32_t now, uint32_t then)
{
	uint32_t ns = now - then;

	return ns > UINT32_MAX / 2 ? 0 : ns;
}

/* A number of Mb/s as a fraction of the port's speed, 1 or more. */
FORCE_INLINE uint32_t pcc_rate_of_mbps(uint32_t mbps, uint32_t port_gbps)
{
	uint64_t port = port_gbps == 0 ? 1 : (uint64_t)port_gbps * 1000;
	uint64_t rate = ((uint64_t)mbps << DOCA_PCC_DEV_LOG_MAX_RATE) / port;

	return rate > DOCA_PCC_DEV_MAX_RATE ? DOCA_PCC_DEV_MAX_RATE : rate < 1 ? 1 : (uint32_t)rate;
}

/* Equation 1: the target becomes the current rate, which falls by alpha / 2; alpha rises. */
FORCE_INLINE void pcc_dcqcn_decrease(struct pcc_dcqcn *flow, const struct pcc_dcqcn_parameters *parameters, uint32_t now,
				     uint32_t gbps)
{
	uint32_t least = pcc_rate_of_mbps(parameters->minimum_mbps, gbps) << PCC_DCQCN_EXTRA;

	flow->target = flow->current;
	flow->current -= (uint32_t)(((uint64_t)flow->current * flow->alpha) >> 25);
	if (flow->current < least)
		flow->current = least;
	flow->alpha = flow->alpha - (flow->alpha >> parameters->gain_shift) +
		      (PCC_DCQCN_ALPHA_ONE >> parameters->gain_shift);
	flow->alpha_at = flow->increase_at = flow->decrease_at = now;
	flow->sent = flow->by_time = flow->by_bytes = 0;
	flow->was_cut = 1;
}

/* Equations 3 and 4: fast recovery, additive or hyper increase of the target, and half the way to it. */
FORCE_INLINE void pcc_dcqcn_increase(struct pcc_dcqcn *flow, const struct pcc_dcqcn_parameters *parameters, uint32_t gbps)
{
	uint32_t most = flow->by_time > flow->by_bytes ? flow->by_time : flow->by_bytes;
	uint32_t least = flow->by_time > flow->by_bytes ? flow->by_bytes : flow->by_time;

	if (least > parameters->fast_recovery)
		flow->target += pcc_rate_of_mbps(parameters->hyper_mbps, gbps) << PCC_DCQCN_EXTRA;
	else if (most > parameters->fast_recovery)
		flow->target += pcc_rate_of_mbps(parameters->additive_mbps, gbps) << PCC_DCQCN_EXTRA;
	if (flow->target > PCC_DCQCN_FULL)
		flow->target = PCC_DCQCN_FULL;
	flow->current = (flow->current + flow->target) / 2;
}

/* Periods that have passed since *AT, which moves by them. */
FORCE_INLINE uint32_t pcc_dcqcn_periods(uint32_t now, uint32_t *at, uint32_t period_us)
{
	uint64_t period = (uint64_t)period_us * 1000;
	uint32_t periods, ns = pcc_elapsed(now, *at);

	period = period == 0 ? 1 : period;
	if (ns < period)
		return 0;
	periods = ns / (uint32_t)period;
	if (periods > PCC_DCQCN_PERIODS)
		periods = PCC_DCQCN_PERIODS;
	*at += periods * (uint32_t)period;
	return periods;
}

FORCE_INLINE void pcc_dcqcn_sent(struct pcc_dcqcn *flow, const struct pcc_dcqcn_parameters *parameters, uint32_t units,
				 uint32_t gbps)
{
	uint64_t sent = (uint64_t)flow->sent + units;
	uint64_t limit = (uint64_t)parameters->increase_kib * 32;

	limit = limit == 0 ? 1 : limit;
	for (; sent >= limit; sent -= limit) {
		flow->by_bytes++;
		pcc_dcqcn_increase(flow, parameters, gbps);
	}
	flow->sent = (uint32_t)sent;
}

/* Handles an event, and returns the rate of the flow on a port of GBPS Gb/s. */
FORCE_INLINE uint32_t pcc_dcqcn_event(struct pcc_dcqcn *flow, const struct pcc_dcqcn_parameters *parameters,
				      doca_pcc_dev_event_t *event, uint32_t gbps)
{
	uint32_t now = doca_pcc_dev_get_timestamp(event), type = doca_pcc_dev_get_ev_attr(event).ev_type;

	if (flow->current == 0)
		*flow = (struct pcc_dcqcn){.current = PCC_DCQCN_FULL,
					   .target = PCC_DCQCN_FULL,
					   .alpha = PCC_DCQCN_ALPHA_ONE,
					   .alpha_at = now,
					   .increase_at = now};
	for (uint32_t i = pcc_dcqcn_periods(now, &flow->alpha_at, parameters->alpha_timer_us); i > 0; i--)
		flow->alpha -= flow->alpha >> parameters->gain_shift;
	for (uint32_t i = pcc_dcqcn_periods(now, &flow->increase_at, parameters->increase_timer_us); i > 0; i--) {
		flow->by_time++;
		pcc_dcqcn_increase(flow, parameters, gbps);
	}
	if (type == DOCA_PCC_DEV_EVNT_ROCE_TX) {
		pcc_dcqcn_sent(flow, parameters, doca_pcc_dev_get_roce_tx_cntrs(event).sent_32bytes, gbps);
	} else if (type == DOCA_PCC_DEV_EVNT_ROCE_CNP) {
		if (!flow->was_cut || pcc_elapsed(now, flow->decrease_at) >= (uint64_t)parameters->decrease_us * 1000)
			pcc_dcqcn_decrease(flow, parameters, now, gbps);
	}
	return flow->current >> PCC_DCQCN_EXTRA;
}

#ifdef __cplusplus
}
#endif

#endif
