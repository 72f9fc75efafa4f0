/*
 * Programmable congestion control: programs on the DPA that set the rates of RoCE flows.
 *
 * Order: doca_pcc_create, the settings, doca_pcc_start, doca_pcc_destroy. The first context that starts on a card is
 * active, the others stand by. The next one becomes active when the active one is stopped or destroyed, its host program ends,
 * or its device code crashes or does not end. A context whose process has ended can only be destroyed.
 *
 * Flows that the connection manager (librdmacm) has connected belong to slot 0. All others have slot 15, and no program.
 */
#ifndef DOCA_PCC_H
#define DOCA_PCC_H

#include <doca_error.h>
#include <doca_types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct doca_dev;
struct doca_devinfo;
struct doca_pcc;
/* The program: a variable with the name that dpacc got by --app-name, linked with doca_pcc_dev or doca_pcc_np_dev. */
struct doca_pcc_app;
struct doca_pcc_resources;

typedef enum {
	/* It handles the events. */
	DOCA_PCC_PS_ACTIVE = 0,
	/* Another process does. */
	DOCA_PCC_PS_STANDBY = 1,
	/* It did not end a handler in time, and the device has replaced it: destroy the context. */
	DOCA_PCC_PS_DEACTIVATED = 2,
	/* A fault has ended it: destroy the context. */
	DOCA_PCC_PS_ERROR = 3,
} doca_pcc_process_state_t;

/* DOCA_ERROR_NOT_SUPPORTED without a DPA, and on an InfiniBand port. */
doca_error_t doca_devinfo_get_is_pcc_supported(const struct doca_devinfo *devinfo);
doca_error_t doca_pcc_np_cap_is_supported(const struct doca_devinfo *devinfo);
/* Speed of the port in Gb/s. */
doca_error_t doca_devinfo_get_active_rate(const struct doca_devinfo *devinfo, double *active_rate);

/* A context of a sender (reaction point), or of a receiver (notification point). A card has one receiver. */
doca_error_t doca_pcc_create(struct doca_dev *dev, struct doca_pcc **pcc);
doca_error_t doca_pcc_np_create(struct doca_dev *dev, struct doca_pcc **pcc);
doca_error_t doca_pcc_destroy(struct doca_pcc *pcc);
/* DOCA_ERROR_BAD_CONFIG without a program or threads; DOCA_ERROR_INVALID_VALUE if the device library refuses the program. */
doca_error_t doca_pcc_start(struct doca_pcc *pcc);
doca_error_t doca_pcc_stop(struct doca_pcc *pcc);
doca_error_t doca_pcc_get_process_state(const struct doca_pcc *pcc, doca_pcc_process_state_t *process_state);
/* Waits for another state, for at most this time in seconds (-1: no limit). A signal ends the wait too. */
doca_error_t doca_pcc_wait(struct doca_pcc *pcc, int wait_time);

/* Settings before the start. */
doca_error_t doca_pcc_set_app(struct doca_pcc *pcc, struct doca_pcc_app *app);
doca_error_t doca_pcc_get_min_num_threads(const struct doca_pcc *pcc, uint32_t *min_num_threads);
doca_error_t doca_pcc_get_max_num_threads(const struct doca_pcc *pcc, uint32_t *max_num_threads);
/* Execution units of the threads. The emulated device checks them; its DPA runs one handler of a process at a time. */
doca_error_t doca_pcc_set_thread_affinity(struct doca_pcc *pcc, uint32_t num_threads, const uint32_t *affinity_configs);
/* What device code prints between two looks of the host; the rest is lost. Default: 1 MiB. */
doca_error_t doca_pcc_set_print_buffer_size(struct doca_pcc *pcc, size_t buffer_size);
/* Formats of doca_pcc_dev_trace_5(), up to a NULL: up to five conversions of integers each. */
doca_error_t doca_pcc_set_trace_message(struct doca_pcc *pcc, char **trace_formats);
/* File with the reason, the place and the counters of a process that has ended. */
doca_error_t doca_pcc_set_dev_coredump_file(struct doca_pcc *pcc, const char *file);

/* Probes. The device has one slot of formats. A program of the receiver answers IFA, and CCMAD with a remote handler; the device
 * answers all others, with times. */
doca_error_t doca_pcc_cap_get_num_probe_format_slots(const struct doca_devinfo *devinfo, uint32_t *num_slots);
doca_error_t doca_pcc_set_ccmad_probe_packet_format(struct doca_pcc *pcc, uint32_t probe_format_slot);
doca_error_t doca_pcc_set_ifa1_probe_packet_format(struct doca_pcc *pcc, uint32_t probe_format_slot);
doca_error_t doca_pcc_set_ifa2_probe_packet_format(struct doca_pcc *pcc, uint32_t probe_format_slot);
doca_error_t doca_pcc_rp_set_ccmad_remote_sw_handler(struct doca_pcc *pcc, uint32_t probe_format_slot, bool remote);
doca_error_t doca_pcc_rp_set_ifa2_gns(struct doca_pcc *pcc, uint32_t probe_format_slot, uint8_t gns);
doca_error_t doca_pcc_rp_set_ifa2_hop_limit(struct doca_pcc *pcc, uint32_t probe_format_slot, uint8_t hop_limit);
doca_error_t doca_pcc_np_set_ifa2_gns_ignore(struct doca_pcc *pcc, uint32_t probe_format_slot, uint8_t mask,
					     uint8_t value);
doca_error_t doca_pcc_set_ifa1_probe_marker(struct doca_pcc *pcc, uint32_t probe_format_slot, uint64_t marker);

/* Mailbox. The buffers are valid until the context is destroyed. */
doca_error_t doca_pcc_set_mailbox(struct doca_pcc *pcc, uint32_t request_size, uint32_t response_size);
doca_error_t doca_pcc_mailbox_get_request_buffer(struct doca_pcc *pcc, void **buffer);
doca_error_t doca_pcc_mailbox_get_response_buffer(struct doca_pcc *pcc, void **buffer);
/* Returns after the program's handler: the bytes of its response, and its status. */
doca_error_t doca_pcc_mailbox_send(struct doca_pcc *pcc, uint32_t request_size, uint32_t *response_size, uint32_t *cb_ret);

/* Counters of the process's threads, to the SDK log. */
doca_error_t doca_pcc_enable_debug(struct doca_pcc *pcc, bool enable);
doca_error_t doca_pcc_dump_debug(struct doca_pcc *pcc);

/* Execution units of a program in a file: lines of a key, a colon, and units or ranges, such as "app: 3, 8-11". */
doca_error_t doca_pcc_resources_create(const char *app_key, const char *text, size_t text_size,
				       struct doca_pcc_resources **resources);
doca_error_t doca_pcc_resources_destroy(struct doca_pcc_resources *resources);
doca_error_t doca_pcc_resources_get_num_eus(const struct doca_pcc_resources *resources, uint32_t *num_eus);
doca_error_t doca_pcc_resources_get_eus(const struct doca_pcc_resources *resources, uint32_t num_eus, uint32_t *eus);

/* This library's own: new values of parameters of a slot. On hardware, a register of the firmware sets them. */
doca_error_t doca_pcc_set_algo_params_ext(struct doca_pcc *pcc, uint32_t algo_slot, uint32_t first, uint32_t num,
					  const uint32_t *values);

#ifdef __cplusplus
}
#endif

#endif
