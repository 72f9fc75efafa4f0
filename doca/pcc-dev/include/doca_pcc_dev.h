/*
 * Programmable congestion control, device side: types of events, results, limits, and the functions that the user defines.
 */
#ifndef DOCA_PCC_DEV_H_
#define DOCA_PCC_DEV_H_

#include <doca_pcc_dev_common.h>
#include <doca_pcc_dev_data_structures.h>
#include <doca_pcc_dev_services.h>
#include <doca_pcc_dev_utils.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
	DOCA_PCC_DEV_EVNT_NULL = 0,
	DOCA_PCC_DEV_EVNT_FW = 1,
	DOCA_PCC_DEV_EVNT_ROCE_CNP = 2,
	DOCA_PCC_DEV_EVNT_ROCE_TX = 3,
	DOCA_PCC_DEV_EVNT_ROCE_ACK = 4,
	DOCA_PCC_DEV_EVNT_ROCE_NACK = 5,
	DOCA_PCC_DEV_EVNT_RTT = 6,
	DOCA_PCC_DEV_EVNT_ROCE_TX_FOR_ACK_NACK = 31,
} doca_pcc_dev_event_type_enum;

/* Whether TX events of ACK and NACK packets are a type of their own. */
#ifndef DOCA_PCC_DEV_ACK_NACK_TX_EVENT_DISABLED_SUPPORTED
#define DOCA_PCC_DEV_ACK_NACK_TX_EVENT_DISABLED_SUPPORTED (1)
#endif

typedef enum {
	DOCA_PCC_DEV_NACK_EVNT_NULL = 0,
	DOCA_PCC_DEV_NACK_EVNT_RNR = 1,
	DOCA_PCC_DEV_NACK_EVNT_OOS = 2,
	DOCA_PCC_DEV_NACK_EVNT_DUP_READ = 3,
} doca_pcc_dev_nack_event_sub_type_enum;

/* Flags of TX events. */
#define DOCA_PCC_DEV_TX_FLAG_ACK_EXPECTED (1 << 0)
#define DOCA_PCC_DEV_TX_FLAG_OVERLOADED (1 << 1)
#define DOCA_PCC_DEV_TX_FLAG_RTT_REQ_SENT (1 << 2)

/* A rate is a fraction of the port's speed with 20 bits. */
#define DOCA_PCC_DEV_LOG_MAX_RATE (20)
#define DOCA_PCC_DEV_MAX_RATE (1U << DOCA_PCC_DEV_LOG_MAX_RATE)
#define DOCA_PCC_DEV_DEFAULT_RATE (DOCA_PCC_DEV_MAX_RATE >> 8)

/* Limits of the library. Define DOCA_PCC_DEV_LIMITS_2_2 for those of the first versions. */
#define DOCA_PCC_DEV_MAX_NUM_USER_SLOTS (8)
#define DOCA_PCC_DEV_MAX_NUM_ALGOS (8)
#ifdef DOCA_PCC_DEV_LIMITS_2_2
#define DOCA_PCC_DEV_MAX_NUM_PARAMS_PER_ALGO (30)
#define DOCA_PCC_DEV_MAX_NUM_COUNTERS_PER_ALGO (15)
#else
#define DOCA_PCC_DEV_MAX_NUM_PARAMS_PER_ALGO (38)
#define DOCA_PCC_DEV_MAX_NUM_COUNTERS_PER_ALGO (63)
#endif

/* Slot and index of the library's own algorithm. */
#define DOCA_PCC_DEV_ALGO_SLOT_INTERNAL (0xf)
#define DOCA_PCC_DEV_ALGO_INDEX_INTERNAL (0xf)

/* The answer to an event. */
typedef struct doca_pcc_dev_results {
	uint32_t rate;
	union {
		uint32_t rtt_req;
		uint32_t probe_req;
	};
	uint32_t probe_type_slot;
	uint32_t credits;
	uint32_t reload_credits;
} doca_pcc_dev_results_t;

/* The library's own algorithm, for flows of a slot that the user does not serve. */
void doca_pcc_dev_default_internal_algo(doca_pcc_dev_algo_ctxt_t *algo_ctxt, doca_pcc_dev_event_t *event,
					const doca_pcc_dev_attr_t *attr, doca_pcc_dev_results_t *results);

/* Of the user: called once per process. Types of events whose bit is set in the mask are dropped. */
void doca_pcc_dev_user_init(uint32_t *disable_event_bitmask);

/* Of the user: handles one event of one flow. The library clears the results before. */
void doca_pcc_dev_user_algo(doca_pcc_dev_algo_ctxt_t *algo_ctxt, doca_pcc_dev_event_t *event,
			    const doca_pcc_dev_attr_t *attr, doca_pcc_dev_results_t *results);

/* Of the user: checks new values of parameters. The library stores them if the result is OK. */
doca_pcc_dev_error_t doca_pcc_dev_user_set_algo_params(uint32_t port_num, uint32_t algo_slot, uint32_t param_id_base,
						       uint32_t param_num, const uint32_t *new_param_values,
						       uint32_t *params);

/* Header words of the flow's next CCMAD probes. */
doca_pcc_dev_error_t doca_pcc_dev_custom_header_set(doca_pcc_dev_algo_ctxt_t *algo_ctxt, doca_pcc_dev_event_t *event,
						    uint32_t *header, uint32_t header_size, uint32_t wait_completed);

/* Priority of the flow's next probes: PRIO, or with 0 in USE_CUSTOM_PRIO that of the flow. */
doca_pcc_dev_error_t doca_pcc_dev_probe_prio_set(doca_pcc_dev_algo_ctxt_t *algo_ctxt, doca_pcc_dev_event_t *event,
						 uint32_t use_custom_prio, uint32_t prio, uint32_t wait_completed);

#ifdef __cplusplus
}
#endif

#endif
