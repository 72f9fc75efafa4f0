/*
 * Programmable congestion control: messages to the host and from it.
 */
#ifndef DOCA_PCC_DEV_SERVICES_H_
#define DOCA_PCC_DEV_SERVICES_H_

#include <doca_pcc_dev_common.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Of the user, optional: handles a request of the host's mailbox. */
doca_pcc_dev_error_t doca_pcc_dev_user_mailbox_handle(void *request, uint32_t request_size, uint32_t max_response_size,
						      void *response, uint32_t *response_size) __attribute__((weak));

/* Prints to the host. A message has at most 511 bytes; floating point is not supported. */
void doca_pcc_dev_printf(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Adds an entry to the trace: the number of a format, and its arguments. The second one sends what waits. */
void doca_pcc_dev_trace_5(int format_id, uint64_t arg1, uint64_t arg2, uint64_t arg3, uint64_t arg4, uint64_t arg5);
void doca_pcc_dev_trace_flush(void);

/* Number of the thread, from 0. */
unsigned int doca_pcc_dev_thread_rank(void);

#ifdef __cplusplus
}
#endif

#endif
