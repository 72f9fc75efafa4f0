/*
 * What the examples share: the functions that each program defines, for one algorithm in slot 0 of each port.
 */
#ifndef EXAMPLE_H
#define EXAMPLE_H

#include <doca_pcc_dev_algo_access.h>

/* A parameter: default, limits and description. */
struct example_parameter {
	uint32_t first;
	uint32_t least;
	uint32_t most;
	const char *text;
	uint32_t text_bytes;
};

#define EXAMPLE_PARAMETER(FIRST, LEAST, MOST, TEXT)                                                                    \
	{                                                                                                              \
		FIRST, LEAST, MOST, TEXT, sizeof(TEXT)                                                                 \
	}

/* Declares algorithm 0 with its parameters and one counter, that of its decreases, and gives it slot 0 of each port. */
static inline void example_declare(uint32_t id, const char *text, uint32_t text_bytes,
				   const struct example_parameter *parameters, uint32_t number)
{
	static const char counter[] = "DECREASES, decreases of a rate";
	struct doca_pcc_dev_algo_meta_data about = {id, 1, 0, text_bytes, (uint64_t)(uintptr_t)text};

	doca_pcc_dev_algo_init_metadata(0, &about, number, 1);
	for (uint32_t i = 0; i < number; i++)
		doca_pcc_dev_algo_init_param(0, i, parameters[i].first, parameters[i].most, parameters[i].least, 1,
					     parameters[i].text_bytes, (uint64_t)(uintptr_t)parameters[i].text);
	doca_pcc_dev_algo_init_counter(0, 0, UINT32_MAX, 2, sizeof(counter), (uint64_t)(uintptr_t)counter);
	for (uint32_t port = 0; port < DOCA_PCC_DEV_MAX_NUM_PORTS; port++)
		doca_pcc_dev_init_algo_slot(port, 0, 0, 1);
}

/* Each value within its limits is good. The library checks them. */
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

/* TX events after which a probe counts as lost if no response arrived, and is sent again. */
#define EXAMPLE_PATIENCE 16

/* Counts TX events without a response. Whether the probe must be sent again. */
static inline uint32_t example_probe_is_lost(uint32_t *missed, uint32_t type)
{
	if (type == DOCA_PCC_DEV_EVNT_RTT)
		*missed = 0;
	else if (type == DOCA_PCC_DEV_EVNT_ROCE_TX)
		*missed += 1;
	if (*missed < EXAMPLE_PATIENCE)
		return 0;
	*missed = 0;
	return 1;
}

/* A rate within the limits of the examples. */
static inline uint32_t example_rate(uint64_t rate)
{
	return rate > DOCA_PCC_DEV_MAX_RATE ? DOCA_PCC_DEV_MAX_RATE : rate < 64 ? 64 : (uint32_t)rate;
}

#endif
