/*
 * The DPA: programs of the device's own processors. A context has one program, its memory and its threads.
 *
 * Order: doca_dpa_create, doca_dpa_set_app, doca_dpa_start, all else, doca_dpa_destroy. After an error of the device
 * (DOCA_ERROR_DEVICE_FATAL_ERROR) a context can only be destroyed; others are not affected.
 */
#ifndef DOCA_DPA_H
#define DOCA_DPA_H

#include <doca_error.h>
#include <doca_sync_event.h>
#include <doca_types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct doca_buf;
struct doca_dev;
struct doca_devinfo;
struct doca_dpa;
/* The program: a variable with the name that dpacc got by --app-name. */
struct doca_dpa_app;
struct doca_dpa_async_ops;
struct doca_dpa_completion;
struct doca_dpa_eu_affinity;
struct doca_dpa_hash_table;
struct doca_dpa_notification_completion;
struct doca_dpa_thread;

/* A kernel or RPC of the program. Declare it as `extern doca_dpa_func_t name`, and pass its address. */
typedef void(doca_dpa_func_t)(void);

/* Levels of lines that device code logs. They are values of `enum doca_dpa_dev_log_level`. */
typedef enum doca_dpa_dev_log_level {
	DOCA_DPA_DEV_LOG_LEVEL_DISABLE = 10,
	DOCA_DPA_DEV_LOG_LEVEL_CRIT = 20,
	DOCA_DPA_DEV_LOG_LEVEL_ERROR = 30,
	DOCA_DPA_DEV_LOG_LEVEL_WARNING = 40,
	DOCA_DPA_DEV_LOG_LEVEL_INFO = 50,
	DOCA_DPA_DEV_LOG_LEVEL_DEBUG = 60,
} doca_dpa_dev_log_level_t;

/* Contexts. ------------------------------------------------------------------------------------------------------- */

/* DOCA_SUCCESS if the device has a DPA, DOCA_ERROR_NOT_SUPPORTED without one. */
doca_error_t doca_dpa_cap_is_supported(const struct doca_devinfo *devinfo);
doca_error_t doca_dpa_create(struct doca_dev *dev, struct doca_dpa **dpa);
/* Ends all threads and frees all memory of the context. DOCA_ERROR_IN_USE names an object of the context that still exists, except memory. */
doca_error_t doca_dpa_destroy(struct doca_dpa *dpa);
doca_error_t doca_dpa_set_app(struct doca_dpa *dpa, struct doca_dpa_app *app);
doca_error_t doca_dpa_get_app(struct doca_dpa *dpa, struct doca_dpa_app **app);
/* Name of a program. DOCA_ERROR_INVALID_VALUE if `size`, which includes the NUL, is too small; it then has the needed size. */
doca_error_t doca_dpa_app_get_name(struct doca_dpa_app *app, char *name, size_t *size);
/* Loads the program. DOCA_ERROR_BAD_CONFIG without one. */
doca_error_t doca_dpa_start(struct doca_dpa *dpa);
doca_error_t doca_dpa_stop(struct doca_dpa *dpa);

/* Lines of device code: those of this level and before it. Default: INFO. */
doca_error_t doca_dpa_set_log_level(struct doca_dpa *dpa, doca_dpa_dev_log_level_t level);
doca_error_t doca_dpa_get_log_level(struct doca_dpa *dpa, doca_dpa_dev_log_level_t *level);

/* Most threads of a launch. */
doca_error_t doca_dpa_get_max_threads_per_kernel(const struct doca_dpa *dpa, unsigned int *threads);
/* Most seconds that a kernel may run. */
doca_error_t doca_dpa_get_kernel_max_run_time(const struct doca_dpa *dpa, unsigned long long *seconds);
doca_error_t doca_dpa_get_core_num(struct doca_dpa *dpa, unsigned int *cores);
doca_error_t doca_dpa_get_num_eus_per_core(struct doca_dpa *dpa, unsigned int *units);
/* Execution units of the device, without those of its own system. */
doca_error_t doca_dpa_get_total_num_eus_available(struct doca_dpa *dpa, unsigned int *units);
/* DOCA_SUCCESS, or DOCA_ERROR_DEVICE_FATAL_ERROR. The log then has thread, program counter and line. */
doca_error_t doca_dpa_peek_at_last_error(const struct doca_dpa *dpa);

/* A context for objects of another device, whose handles belong to the same program. DOCA_ERROR_NOT_SUPPORTED if the devices
 * do not share a DPA. */
doca_error_t doca_dpa_device_extend(struct doca_dpa *dpa, struct doca_dev *other, struct doca_dpa **extended);
/* The argument of doca_dpa_dev_device_set. */
doca_error_t doca_dpa_get_dpa_handle(struct doca_dpa *dpa, doca_dpa_dev_t *handle);

/* Work. ------------------------------------------------------------------------------------------------------------- */

/* Starts `threads` threads of a kernel when the value of `wait_event` is above `wait_threshold`, or at once if it is NULL. After the
 * last of them, `comp_event`, if not NULL, is set to `comp_count`, or gets it added. The kernel's arguments follow, with
 * their exact types. Does not wait.
 *
 * Threads: 1 to doca_dpa_get_max_threads_per_kernel. `wait_threshold` and `comp_count`: 0 to 254. The DPA is a subscriber of
 * `wait_event` and a publisher of `comp_event`; else DOCA_ERROR_NOT_PERMITTED. An event that only a kernel launched later
 * could change gives DOCA_ERROR_BAD_STATE. DOCA_ERROR_NOT_FOUND if the program has no such kernel. */
doca_error_t doca_dpa_kernel_launch_update_set(struct doca_dpa *dpa,
					       struct doca_sync_event *wait_event,
					       uint64_t wait_threshold,
					       struct doca_sync_event *comp_event,
					       uint64_t comp_count,
					       unsigned int threads,
					       doca_dpa_func_t *func,
					       ... /* arguments */);
doca_error_t doca_dpa_kernel_launch_update_add(struct doca_dpa *dpa,
					       struct doca_sync_event *wait_event,
					       uint64_t wait_threshold,
					       struct doca_sync_event *comp_event,
					       uint64_t comp_count,
					       unsigned int threads,
					       doca_dpa_func_t *func,
					       ... /* arguments */);
/* Runs an RPC and waits for its result. */
doca_error_t doca_dpa_rpc(struct doca_dpa *dpa, doca_dpa_func_t *func, uint64_t *result, ... /* arguments */);

/* Memory of the DPA. ------------------------------------------------------------------------------------------------ */

/* `size`: bytes, at least 1. DOCA_ERROR_NO_MEMORY if the heap is full. */
doca_error_t doca_dpa_mem_alloc(struct doca_dpa *dpa, size_t size, doca_dpa_dev_uintptr_t *address);
/* `address` is from doca_dpa_mem_alloc of this context, and is freed once; else DOCA_ERROR_INVALID_VALUE. */
doca_error_t doca_dpa_mem_free(struct doca_dpa *dpa, doca_dpa_dev_uintptr_t address);
/* Copy or fill `size` bytes inside one allocation; else DOCA_ERROR_INVALID_VALUE, and nothing is copied. */
doca_error_t doca_dpa_h2d_memcpy(struct doca_dpa *dpa, doca_dpa_dev_uintptr_t dst, void *src, size_t size);
doca_error_t doca_dpa_d2h_memcpy(struct doca_dpa *dpa, void *dst, doca_dpa_dev_uintptr_t src, size_t size);
doca_error_t doca_dpa_memset(struct doca_dpa *dpa, doca_dpa_dev_uintptr_t address, int value, size_t size);
/* The same, with the data of a buffer of host memory. */
doca_error_t doca_dpa_h2d_buf_memcpy(struct doca_dpa *dpa, doca_dpa_dev_uintptr_t dst, struct doca_buf *src, size_t size);
doca_error_t doca_dpa_d2h_buf_memcpy(struct doca_dpa *dpa, struct doca_buf *dst, doca_dpa_dev_uintptr_t src, size_t size);

/* A table of `entries` numbers with keys of 32 bits. */
doca_error_t doca_dpa_hash_table_create(struct doca_dpa *dpa, unsigned int entries, struct doca_dpa_hash_table **table);
doca_error_t doca_dpa_hash_table_destroy(struct doca_dpa_hash_table *table);
doca_error_t doca_dpa_hash_table_get_dpa_handle(struct doca_dpa_hash_table *table, doca_dpa_dev_hash_table_t *handle);

/* Threads. ---------------------------------------------------------------------------------------------------------- */

/* A place for threads: one execution unit. */
doca_error_t doca_dpa_eu_affinity_create(struct doca_dpa *dpa, struct doca_dpa_eu_affinity **affinity);
doca_error_t doca_dpa_eu_affinity_destroy(struct doca_dpa_eu_affinity *affinity);
/* `unit`: below the number of units; else DOCA_ERROR_INVALID_VALUE. */
doca_error_t doca_dpa_eu_affinity_set(struct doca_dpa_eu_affinity *affinity, unsigned int unit);
doca_error_t doca_dpa_eu_affinity_clear(struct doca_dpa_eu_affinity *affinity);
/* DOCA_ERROR_NOT_FOUND if no unit is set. */
doca_error_t doca_dpa_eu_affinity_get(struct doca_dpa_eu_affinity *affinity, unsigned int *unit);

/* A thread that completions activate. All settings come before doca_dpa_thread_start. */
doca_error_t doca_dpa_thread_create(struct doca_dpa *dpa, struct doca_dpa_thread **thread);
/* DOCA_ERROR_IN_USE while a completion is attached. */
doca_error_t doca_dpa_thread_destroy(struct doca_dpa_thread *thread);
/* A kernel with one argument of 64 bits, or without one. */
doca_error_t doca_dpa_thread_set_func_arg(struct doca_dpa_thread *thread, doca_dpa_func_t *func, uint64_t arg);
doca_error_t doca_dpa_thread_get_func_arg(struct doca_dpa_thread *thread, doca_dpa_func_t **func, uint64_t *arg);
doca_error_t doca_dpa_thread_set_local_storage(struct doca_dpa_thread *thread, doca_dpa_dev_uintptr_t address);
doca_error_t doca_dpa_thread_get_local_storage(struct doca_dpa_thread *thread, doca_dpa_dev_uintptr_t *address);
doca_error_t doca_dpa_thread_set_affinity(struct doca_dpa_thread *thread, struct doca_dpa_eu_affinity *affinity);
doca_error_t doca_dpa_thread_get_affinity(struct doca_dpa_thread *thread, const struct doca_dpa_eu_affinity **affinity);
/* Creates the thread on the device. DOCA_ERROR_FULL if all are taken. */
doca_error_t doca_dpa_thread_start(struct doca_dpa_thread *thread);
doca_error_t doca_dpa_thread_stop(struct doca_dpa_thread *thread);
/* Lets completions activate the started thread. From then on it runs when it is notified, or when an attached completion queue
 * has an entry. */
doca_error_t doca_dpa_thread_run(struct doca_dpa_thread *thread);

/* Completions of RDMA and of asynchronous operations. `elements`: 1 to 65536, rounded up to a power of two. */
doca_error_t doca_dpa_completion_create(struct doca_dpa *dpa, unsigned int elements, struct doca_dpa_completion **completion);
/* DOCA_ERROR_IN_USE while an object is attached. */
doca_error_t doca_dpa_completion_destroy(struct doca_dpa_completion *completion);
doca_error_t doca_dpa_completion_get_queue_size(struct doca_dpa_completion *completion, unsigned int *elements);
/* Before start: the thread that completions activate. */
doca_error_t doca_dpa_completion_set_thread(struct doca_dpa_completion *completion, struct doca_dpa_thread *thread);
doca_error_t doca_dpa_completion_get_thread(struct doca_dpa_completion *completion, struct doca_dpa_thread **thread);
doca_error_t doca_dpa_completion_start(struct doca_dpa_completion *completion);
doca_error_t doca_dpa_completion_stop(struct doca_dpa_completion *completion);
doca_error_t doca_dpa_completion_get_dpa_handle(struct doca_dpa_completion *completion, doca_dpa_dev_completion_t *handle);

/* Copies and waits of a thread, `elements` at a time. `user_data` is in their completions. */
doca_error_t doca_dpa_async_ops_create(struct doca_dpa *dpa,
				       unsigned int elements,
				       uint64_t user_data,
				       struct doca_dpa_async_ops **async_ops);
doca_error_t doca_dpa_async_ops_destroy(struct doca_dpa_async_ops *async_ops);
doca_error_t doca_dpa_async_ops_get_queue_size(struct doca_dpa_async_ops *async_ops, unsigned int *elements);
doca_error_t doca_dpa_async_ops_get_user_data(struct doca_dpa_async_ops *async_ops, uint64_t *user_data);
doca_error_t doca_dpa_async_ops_attach(struct doca_dpa_async_ops *async_ops, struct doca_dpa_completion *completion);
doca_error_t doca_dpa_async_ops_start(struct doca_dpa_async_ops *async_ops);
doca_error_t doca_dpa_async_ops_stop(struct doca_dpa_async_ops *async_ops);
doca_error_t doca_dpa_async_ops_get_dpa_handle(struct doca_dpa_async_ops *async_ops, doca_dpa_dev_async_ops_t *handle);

/* What activates a thread, without a completion: doca_dpa_dev_thread_notify of device code. */
doca_error_t doca_dpa_notification_completion_create(struct doca_dpa *dpa,
						     struct doca_dpa_thread *thread,
						     struct doca_dpa_notification_completion **completion);
doca_error_t doca_dpa_notification_completion_destroy(struct doca_dpa_notification_completion *completion);
doca_error_t doca_dpa_notification_completion_get_thread(struct doca_dpa_notification_completion *completion,
							 struct doca_dpa_thread **thread);
doca_error_t doca_dpa_notification_completion_start(struct doca_dpa_notification_completion *completion);
doca_error_t doca_dpa_notification_completion_stop(struct doca_dpa_notification_completion *completion);
doca_error_t doca_dpa_notification_completion_get_dpa_handle(struct doca_dpa_notification_completion *completion,
							     doca_dpa_dev_notification_completion_t *handle);

#ifdef __cplusplus
}
#endif

#endif
