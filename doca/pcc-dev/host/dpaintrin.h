/*
 * Intrinsics of the DPA for code that runs on the host.
 */
#ifndef DPAINTRIN_H
#define DPAINTRIN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define __DPA_HEAP 1
#define __DPA_MEMORY 2
#define __DPA_MMIO 3
#define __DPA_SYSTEM 4
#define __DPA_R 1
#define __DPA_W 2
#define __DPA_RW 3

/* One thread runs a process on the host, so that the compiler alone must keep the order. */
#define __dpa_thread_fence(space, predecessors, successors) __asm__ volatile("" : : : "memory")
#define __dpa_thread_memory_fence(predecessors, successors) __asm__ volatile("" : : : "memory")
#define __dpa_thread_outbox_fence(predecessors, successors) __asm__ volatile("" : : : "memory")
#define __dpa_thread_window_fence(predecessors, successors) __asm__ volatile("" : : : "memory")
#define __dpa_thread_system_fence() __asm__ volatile("" : : : "memory")
#define __dpa_thread_memory_writeback() __asm__ volatile("" : : : "memory")
#define __dpa_thread_window_writeback() __asm__ volatile("" : : : "memory")
#define __dpa_thread_window_read_inv() __asm__ volatile("" : : : "memory")
#define __dpa_data_ignore(address) ((void)(address))
#define __dpa_compiler_barrier() __asm__ volatile("" : : : "memory")

/* 1 / x, 2^x and log2(x) of numbers with 16 bits of fraction, as the DPA computes them. */
uint32_t __dpa_fxp_rcp(uint32_t x);
uint32_t __dpa_fxp_pow2(uint32_t x);
uint32_t __dpa_fxp_log2(uint32_t x);

/* Microseconds of the device. Cycles and instructions are not counted. */
uint64_t __dpa_thread_time(void);

static inline __attribute__((unused)) uint64_t __dpa_thread_cycles(void)
{
	return 0;
}

static inline __attribute__((unused)) uint64_t __dpa_thread_inst_ret(void)
{
	return 0;
}

#ifdef __cplusplus
}
#endif

#endif
