/*
 * Device API of DOCA DPA: threads, completions, messages, hash tables.
 *
 * Handles come from the host, as arguments of a kernel or in memory that the host has filled. Nothing here may be used by
 * two threads at the same time, except where a function says so.
 */
#ifndef DOCA_DPA_DEV_H
#define DOCA_DPA_DEV_H

#include <stddef.h>
#include <stdint.h>

#include <dpaintrin.h>

#ifndef __DPA__
#error "doca_dpa_dev.h is for device code: compile it with dpacc"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* A device context. 0 is the context of the thread itself. */
typedef uint64_t doca_dpa_dev_t;
/* An address in the memory of the DPA. */
typedef uint64_t doca_dpa_dev_uintptr_t;
/* A queue of completions, one element of it, and a completion that only activates a thread. */
typedef uint64_t doca_dpa_dev_completion_t;
typedef uint64_t doca_dpa_dev_completion_element_t;
typedef uint64_t doca_dpa_dev_notification_completion_t;
/* Asynchronous operations of a thread. */
typedef uint64_t doca_dpa_dev_async_ops_t;
typedef uint64_t doca_dpa_dev_hash_table_t;
/* A memory map: a key of the device. */
typedef uint32_t doca_dpa_dev_mmap_t;

/* Kinds of completions. */
typedef enum {
	DOCA_DPA_DEV_COMP_SEND = 0x0,
	DOCA_DPA_DEV_COMP_RECV_RDMA_WRITE_IMM = 0x1,
	DOCA_DPA_DEV_COMP_RECV_SEND = 0x2,
	DOCA_DPA_DEV_COMP_RECV_SEND_IMM = 0x3,
	DOCA_DPA_DEV_COMP_SEND_ERR = 0xd,
	DOCA_DPA_DEV_COMP_RECV_ERR = 0xe,
} doca_dpa_dev_completion_type_t;

/* How an operation is submitted; may be combined. */
enum doca_dpa_dev_submit_flag {
	/* The operation waits for the next one with FLUSH, and has no completion of its own. */
	DOCA_DPA_DEV_SUBMIT_FLAG_NONE = 0,
	/* The device begins with this operation and all before it. */
	DOCA_DPA_DEV_SUBMIT_FLAG_FLUSH = 1 << 0,
	/* One completion reports this operation and all before it. */
	DOCA_DPA_DEV_SUBMIT_FLAG_OPTIMIZE_REPORTS = 1 << 1,
};

typedef enum {
	DOCA_DPA_DEV_LOG_LEVEL_DISABLE = 10,
	DOCA_DPA_DEV_LOG_LEVEL_ERROR = 30,
	DOCA_DPA_DEV_LOG_LEVEL_WARNING = 40,
	DOCA_DPA_DEV_LOG_LEVEL_INFO = 50,
	DOCA_DPA_DEV_LOG_LEVEL_DEBUG = 60,
} doca_dpa_dev_log_level_t;

/* Threads. ------------------------------------------------------------------------------------------------------- */

/* All later calls of this thread are for the objects of this context. */
void doca_dpa_dev_device_set(doca_dpa_dev_t dev);
/* Index of this thread among the threads of its launch or its group, from 0; and how many they are. */
unsigned int doca_dpa_dev_thread_rank(void);
unsigned int doca_dpa_dev_num_threads(void);
/* The address that the host has given to this thread, 0 without one. */
doca_dpa_dev_uintptr_t doca_dpa_dev_thread_get_local_storage(void);
/* Lets other threads of the execution unit run. For kernels of a launch. */
void doca_dpa_dev_yield(void);
/* End the activation; the next completion activates the thread again, or no more. For kernels of a thread. The stack is
 * lost, memory is kept. */
void doca_dpa_dev_thread_reschedule(void) __attribute__((noreturn));
void doca_dpa_dev_thread_finish(void) __attribute__((noreturn));
/* Activates the thread of a notification completion. */
void doca_dpa_dev_thread_notify(doca_dpa_dev_notification_completion_t completion);

/* Completions. --------------------------------------------------------------------------------------------------- */

/* Takes the next completion. Returns 1, or 0 if there is none. */
int doca_dpa_dev_get_completion(doca_dpa_dev_completion_t completion, doca_dpa_dev_completion_element_t *element);
doca_dpa_dev_completion_type_t doca_dpa_dev_get_completion_type(doca_dpa_dev_completion_element_t element);
/* The number that the host has given to the object of the completed operation. */
uint32_t doca_dpa_dev_get_completion_user_data(doca_dpa_dev_completion_element_t element);
/* The immediate value of a received message, in the byte order of the DPA. */
uint32_t doca_dpa_dev_get_completion_immediate(doca_dpa_dev_completion_element_t element);
uint64_t doca_dpa_dev_completion_element_get_timestamp(doca_dpa_dev_completion_element_t element);
uint16_t doca_dpa_dev_completion_element_get_wqe_counter(doca_dpa_dev_completion_element_t element);
/* Gives so many elements back to the queue. */
void doca_dpa_dev_completion_ack(doca_dpa_dev_completion_t completion, uint64_t count);
/* The next completion activates the attached thread. */
void doca_dpa_dev_completion_request_notification(doca_dpa_dev_completion_t completion);

/* Messages to the host. Any thread may call these at any time. ------------------------------------------------------ */

void doca_dpa_dev_log(doca_dpa_dev_log_level_t level, const char *format, ...);
void doca_dpa_dev_trace(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e);
void doca_dpa_dev_trace_flush(void);

#define DOCA_DPA_DEV_LOG_ERR(...) doca_dpa_dev_log(DOCA_DPA_DEV_LOG_LEVEL_ERROR, __VA_ARGS__)
#define DOCA_DPA_DEV_LOG_WARN(...) doca_dpa_dev_log(DOCA_DPA_DEV_LOG_LEVEL_WARNING, __VA_ARGS__)
#define DOCA_DPA_DEV_LOG_INFO(...) doca_dpa_dev_log(DOCA_DPA_DEV_LOG_LEVEL_INFO, __VA_ARGS__)
#define DOCA_DPA_DEV_LOG_DBG(...) doca_dpa_dev_log(DOCA_DPA_DEV_LOG_LEVEL_DEBUG, __VA_ARGS__)

/* Hash tables. --------------------------------------------------------------------------------------------------- */

void doca_dpa_dev_hash_table_add(doca_dpa_dev_hash_table_t table, uint32_t key, uint64_t value);
void doca_dpa_dev_hash_table_remove(doca_dpa_dev_hash_table_t table, uint32_t key);
/* Returns 1 and the value, or 0 if the table does not have the key. */
int doca_dpa_dev_hash_table_find(doca_dpa_dev_hash_table_t table, uint32_t key, uint64_t *value);

#ifdef __cplusplus
}
#endif

#endif
