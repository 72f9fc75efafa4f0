/*
 * Programmable congestion control: algorithms, their parameters and counters, and the slots of the ports.
 */
#ifndef DOCA_PCC_DEV_ALGO_ACCESS_H_
#define DOCA_PCC_DEV_ALGO_ACCESS_H_

#include <doca_pcc_dev.h>
#include <doca_pcc_dev_event.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What an algorithm is; the description ends with a zero byte, which its size includes. */
struct doca_pcc_dev_algo_meta_data {
	uint32_t algo_id;
	uint32_t algo_major_version;
	uint32_t algo_minor_version;
	uint32_t algo_desc_size;
	uint64_t algo_desc_addr;
};

/* Declares an algorithm, once. The functions of this header that return a status fail for numbers beyond the limits. */
doca_pcc_dev_error_t doca_pcc_dev_algo_init_metadata(uint32_t algo_idx, const struct doca_pcc_dev_algo_meta_data *user_def,
						     uint32_t param_num, uint32_t counter_num);

/* Declares a parameter. With PERMISSIONS 0 nobody may change it. */
doca_pcc_dev_error_t doca_pcc_dev_algo_init_param(uint32_t algo_idx, uint32_t param_id, uint32_t default_value,
						  uint32_t max_value, uint32_t min_value, uint32_t permissions,
						  uint32_t param_desc_size, uint64_t param_desc_addr);

/* Declares a counter. */
doca_pcc_dev_error_t doca_pcc_dev_algo_init_counter(uint32_t algo_idx, uint32_t counter_id, uint32_t max_value,
						    uint32_t permissions, uint32_t counter_desc_size,
						    uint64_t counter_desc_addr);

/* Assigns an algorithm to a slot of a port. Its parameters begin with their defaults, and its counters with 0. */
doca_pcc_dev_error_t doca_pcc_dev_init_algo_slot(uint32_t portid, uint32_t algo_slot, uint32_t algo_idx,
						 uint32_t algo_en);

/* Parameters, counters and algorithm of a slot. Without an algorithm: NULL, 0, and the index of the internal one. */
uint32_t *doca_pcc_dev_get_algo_params(uint32_t port_num, uint32_t algo_slot);
uint32_t doca_pcc_dev_get_algo_params_num(uint32_t port_num, uint32_t algo_slot);
uint32_t *doca_pcc_dev_get_counters(uint32_t port_num, uint32_t algo_slot);
uint32_t doca_pcc_dev_get_counters_num(uint32_t port_num, uint32_t algo_slot);
uint32_t doca_pcc_dev_get_algo_index(uint32_t port_num, uint32_t algo_slot);

#ifdef __cplusplus
}
#endif

#endif
