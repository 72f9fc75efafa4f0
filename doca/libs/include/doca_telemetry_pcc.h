/*
 * Telemetry of congestion control: the algorithms of the active program of a card, and their counters. A slot without an
 * algorithm, and any slot without an active program, is DOCA_ERROR_BAD_STATE.
 */
#ifndef DOCA_TELEMETRY_PCC_H
#define DOCA_TELEMETRY_PCC_H

#include <doca_error.h>
#include <doca_types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct doca_dev;
struct doca_devinfo;
struct doca_dev_rep;
struct doca_devinfo_rep;
struct doca_telemetry_pcc;

doca_error_t doca_telemetry_pcc_cap_is_supported(const struct doca_devinfo *devinfo);
doca_error_t doca_telemetry_pcc_create(struct doca_dev *dev, struct doca_telemetry_pcc **pcc);
doca_error_t doca_telemetry_pcc_destroy(struct doca_telemetry_pcc *pcc);
/* Counters can be read between start and stop; all else always. */
doca_error_t doca_telemetry_pcc_start(struct doca_telemetry_pcc *pcc);
doca_error_t doca_telemetry_pcc_stop(struct doca_telemetry_pcc *pcc);

/* Representors: DOCA_ERROR_NOT_SUPPORTED. */
doca_error_t doca_telemetry_pcc_cap_rep_is_supported(const struct doca_devinfo_rep *devinfo_rep);
doca_error_t doca_telemetry_pcc_rep_create(struct doca_dev_rep *rep, struct doca_telemetry_pcc **pcc);

/* Sizes. Those of a context are the same, for older programs. */
doca_error_t doca_telemetry_pcc_cap_get_max_algo_slots(const struct doca_devinfo *devinfo, uint32_t *max_algo_slots);
doca_error_t doca_telemetry_pcc_cap_get_max_algo_info_len(const struct doca_devinfo *devinfo, uint32_t *max_len);
doca_error_t doca_telemetry_pcc_cap_get_max_counter_info_len(const struct doca_devinfo *devinfo, uint32_t *max_len);
doca_error_t doca_telemetry_pcc_cap_get_max_num_counters(const struct doca_devinfo *devinfo, uint32_t *max_counters);
doca_error_t doca_telemetry_pcc_get_max_algo_slots(const struct doca_telemetry_pcc *pcc, uint32_t *max_algo_slots);
doca_error_t doca_telemetry_pcc_get_max_algo_info_len(const struct doca_telemetry_pcc *pcc, uint32_t *max_len);
doca_error_t doca_telemetry_pcc_get_max_counter_info_len(const struct doca_telemetry_pcc *pcc, uint32_t *max_len);
doca_error_t doca_telemetry_pcc_get_max_num_counters(const struct doca_telemetry_pcc *pcc, uint32_t *max_counters);

/* Algorithms. The texts need room for the lengths above. */
doca_error_t doca_telemetry_pcc_get_algo_id(struct doca_telemetry_pcc *pcc, uint8_t algo_slot, uint32_t *algo_id);
doca_error_t doca_telemetry_pcc_get_algo_major_version(struct doca_telemetry_pcc *pcc, uint8_t algo_slot, uint32_t *major);
doca_error_t doca_telemetry_pcc_get_algo_minor_version(struct doca_telemetry_pcc *pcc, uint8_t algo_slot, uint32_t *minor);
doca_error_t doca_telemetry_pcc_get_algo_enable_status(struct doca_telemetry_pcc *pcc, uint8_t algo_slot,
						       uint8_t *algo_enabled, uint8_t *counters_enabled);
doca_error_t doca_telemetry_pcc_get_algo_info(struct doca_telemetry_pcc *pcc, uint8_t algo_slot, char *algo_info);

/* Counters. The array needs room for the most of them. The second function sets them to 0, and allows NULL for the array. */
doca_error_t doca_telemetry_pcc_get_num_counters(struct doca_telemetry_pcc *pcc, uint8_t algo_slot, uint32_t *num_counters);
doca_error_t doca_telemetry_pcc_get_counter_info(struct doca_telemetry_pcc *pcc, uint8_t algo_slot, uint8_t counter_id,
						 char *counter_info);
doca_error_t doca_telemetry_pcc_get_counters(struct doca_telemetry_pcc *pcc, uint8_t algo_slot, uint32_t *populated,
					     uint32_t *counters);
doca_error_t doca_telemetry_pcc_get_and_clear_counters(struct doca_telemetry_pcc *pcc, uint8_t algo_slot,
						       uint32_t *populated, uint32_t *counters);

#ifdef __cplusplus
}
#endif

#endif
