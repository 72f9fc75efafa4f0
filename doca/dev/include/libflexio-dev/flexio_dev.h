/*
 * Device API of FlexIO: threads, messages, windows onto memory of the host.
 *
 * A program may define FLEXIO_DEV_VER_USED. Before FLEXIO_DEV_VER(24, 10, 0) the functions of windows take the context of
 * the thread, since then a window entity.
 */
#ifndef FLEXIO_DEV_H
#define FLEXIO_DEV_H

#include <stdint.h>

#include <dpaintrin.h>
#include <libflexio-dev/flexio_dev_ver.h>

#ifndef FLEXIO_DEV_VER_USED
#define FLEXIO_DEV_VER_USED FLEXIO_DEV_VER_LATEST
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Marks of the first versions around functions that the host calls. The compiler needs none. */
#define __FLEXIO_ENTRY_POINT_START
#define __FLEXIO_ENTRY_POINT_END

/* An address in the memory of the DPA. */
typedef uint64_t flexio_uintptr_t;

typedef enum {
	FLEXIO_DEV_STATUS_SUCCESS = 0,
	FLEXIO_DEV_STATUS_FAILED = 1,
} flexio_dev_status_t;

enum flexio_window_entity {
	FLEXIO_DEV_WINDOW_ENTITY_0 = 0,
	FLEXIO_DEV_WINDOW_ENTITY_1 = 1,
	FLEXIO_DEV_WINDOW_ENTITY_NUM = 2,
};

struct flexio_dev_thread_ctx;

typedef uint64_t(flexio_dev_rpc_handler_t)(uint64_t arg);
typedef uint64_t(flexio_dev_arg_unpack_func_t)(void *argbuf, void *func);
typedef void(flexio_dev_async_rpc_handler_t)(uint64_t arg);
typedef void(flexio_dev_event_handler_t)(uint64_t thread_arg);

/* Threads. Each activation of a thread asks for its context. Returns 0, or a negative value. */
int flexio_dev_get_thread_ctx(struct flexio_dev_thread_ctx **dtctx);
/* End the activation: the next event starts the thread again, no event does, or the thread starts again at once. */
void flexio_dev_thread_reschedule(void) __attribute__((noreturn));
void flexio_dev_thread_finish(void) __attribute__((noreturn));
void flexio_dev_thread_retrigger(void) __attribute__((noreturn));
/* Ends all threads of the process. */
void flexio_dev_process_finish(void) __attribute__((noreturn));
uint32_t flexio_dev_get_thread_id(struct flexio_dev_thread_ctx *dtctx);
flexio_uintptr_t flexio_dev_get_thread_local_storage(struct flexio_dev_thread_ctx *dtctx);
/* Activates an event handler of this process by its number. */
void flexio_dev_event_handler_activate(uint32_t activation_id);

/* Messages. */
#define FLEXIO_MSG_DEV_BROADCAST_STREAM 0xff
#define FLEXIO_MSG_DEV_DEFAULT_STREAM_ID 0
#define FLEXIO_MSG_DEV_NO_PRINT 0
#define FLEXIO_MSG_DEV_ALWAYS_PRINT 1
#define FLEXIO_MSG_DEV_ERROR 2
#define FLEXIO_MSG_DEV_WARN 3
#define FLEXIO_MSG_DEV_INFO 4
#define FLEXIO_MSG_DEV_DEBUG 5

typedef uint8_t flexio_msg_dev_level;

int flexio_dev_msg(int stream_id, flexio_msg_dev_level level, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
int flexio_dev_puts(struct flexio_dev_thread_ctx *dtctx, char *str);

#define flexio_dev_msg_err(stream, ...) flexio_dev_msg(stream, FLEXIO_MSG_DEV_ERROR, __VA_ARGS__)
#define flexio_dev_msg_warn(stream, ...) flexio_dev_msg(stream, FLEXIO_MSG_DEV_WARN, __VA_ARGS__)
#define flexio_dev_msg_info(stream, ...) flexio_dev_msg(stream, FLEXIO_MSG_DEV_INFO, __VA_ARGS__)
#define flexio_dev_msg_dbg(stream, ...) flexio_dev_msg(stream, FLEXIO_MSG_DEV_DEBUG, __VA_ARGS__)
#define flexio_dev_msg_dflt(level, ...) flexio_dev_msg(FLEXIO_MSG_DEV_DEFAULT_STREAM_ID, level, __VA_ARGS__)
#define flexio_dev_msg_broadcast(level, ...) flexio_dev_msg(FLEXIO_MSG_DEV_BROADCAST_STREAM, level, __VA_ARGS__)
#define flexio_dev_print(...) flexio_dev_msg_dflt(FLEXIO_MSG_DEV_INFO, __VA_ARGS__)

/* The outbox and the windows of the thread. `haddr` is an address that the key of the window knows. */
flexio_dev_status_t flexio_dev_outbox_config(struct flexio_dev_thread_ctx *dtctx, uint16_t outbox_config_id);
flexio_dev_status_t flexio_dev_multi_window_config(enum flexio_window_entity entity, uint16_t window_id, uint32_t mkey);
flexio_dev_status_t flexio_dev_multi_window_mkey_config(enum flexio_window_entity entity, uint32_t mkey);
flexio_dev_status_t flexio_dev_multi_window_ptr_acquire(enum flexio_window_entity entity,
							uint64_t haddr,
							flexio_uintptr_t *daddr);
flexio_dev_status_t flexio_dev_multi_window_copy_from_host(enum flexio_window_entity entity,
							   void *daddr,
							   uint64_t haddr,
							   uint32_t size);
flexio_dev_status_t flexio_dev_multi_window_copy_to_host(enum flexio_window_entity entity,
							 uint64_t haddr,
							 const void *daddr,
							 uint32_t size);

#if FLEXIO_DEV_VER_USED >= FLEXIO_DEV_VER(24, 10, 0)
#define FLEXIO_DEV_WINDOW_FIRST enum flexio_window_entity first
#define FLEXIO_DEV_WINDOW_ENTITY first
#else
#define FLEXIO_DEV_WINDOW_FIRST struct flexio_dev_thread_ctx *first
#define FLEXIO_DEV_WINDOW_ENTITY ((void)first, FLEXIO_DEV_WINDOW_ENTITY_0)
#endif

DPA_INLINE flexio_dev_status_t flexio_dev_window_config(FLEXIO_DEV_WINDOW_FIRST, uint16_t window_id, uint32_t mkey)
{
	return flexio_dev_multi_window_config(FLEXIO_DEV_WINDOW_ENTITY, window_id, mkey);
}

DPA_INLINE flexio_dev_status_t flexio_dev_window_mkey_config(FLEXIO_DEV_WINDOW_FIRST, uint32_t mkey)
{
	return flexio_dev_multi_window_mkey_config(FLEXIO_DEV_WINDOW_ENTITY, mkey);
}

DPA_INLINE flexio_dev_status_t flexio_dev_window_ptr_acquire(FLEXIO_DEV_WINDOW_FIRST,
							     uint64_t haddr,
							     flexio_uintptr_t *daddr)
{
	return flexio_dev_multi_window_ptr_acquire(FLEXIO_DEV_WINDOW_ENTITY, haddr, daddr);
}

DPA_INLINE flexio_dev_status_t flexio_dev_window_copy_from_host(FLEXIO_DEV_WINDOW_FIRST,
								void *daddr,
								uint64_t haddr,
								uint32_t size)
{
	return flexio_dev_multi_window_copy_from_host(FLEXIO_DEV_WINDOW_ENTITY, daddr, haddr, size);
}

DPA_INLINE flexio_dev_status_t flexio_dev_window_copy_to_host(FLEXIO_DEV_WINDOW_FIRST,
							      uint64_t haddr,
							      const void *daddr,
							      uint32_t size)
{
	return flexio_dev_multi_window_copy_to_host(FLEXIO_DEV_WINDOW_ENTITY, haddr, daddr, size);
}

#undef FLEXIO_DEV_WINDOW_FIRST
#undef FLEXIO_DEV_WINDOW_ENTITY

/* A lock of threads. */
struct spinlock_s {
	uint32_t locked;
};

#define spin_init(lock) __atomic_store_n(&(lock)->locked, 0, __ATOMIC_SEQ_CST)
#define spin_trylock(lock) __atomic_exchange_n(&(lock)->locked, 1, __ATOMIC_SEQ_CST)
#define spin_unlock(lock) __atomic_store_n(&(lock)->locked, 0, __ATOMIC_SEQ_CST)
#define spin_lock(lock)                                                                                                \
	do {                                                                                                           \
		while (spin_trylock(lock))                                                                             \
			;                                                                                              \
	} while (0)

#ifdef __cplusplus
}
#endif

#endif
