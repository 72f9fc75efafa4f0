/*
 * Intrinsics of the DPA: fences, cache operations, counters, fixed-point functions.
 */
#ifndef DPAINTRIN_H
#define DPAINTRIN_H

#include <stdint.h>

#include "dpa_numbers.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DPA_INLINE static inline __attribute__((always_inline, unused))

/* One instruction: operation OP, operand X, result in RESULT. The compiler moves no memory access across it. */
#define DPA_INSTRUCTION(OP, RESULT, X)                                                                                 \
	__asm__ volatile(".insn r %1, 0, %2, %0, %3, zero"                                                             \
			 : "=r"(RESULT)                                                                                \
			 : "i"(DPA_OPCODE), "i"(OP), "r"(X)                                                            \
			 : "memory")

DPA_INLINE void dpa_operation_fence(uint64_t fence)
{
	__asm__ volatile(".insn r %0, 0, %1, zero, %2, zero"
			 :
			 : "i"(DPA_OPCODE), "i"(DPA_OP_FENCE), "r"(fence)
			 : "memory");
}

/* Accesses of the kinds PREDECESSORS (__DPA_R, __DPA_W, __DPA_RW) to a memory space (__DPA_HEAP, __DPA_MEMORY,
 * __DPA_MMIO, __DPA_SYSTEM) before the fence take effect before those of the kinds SUCCESSORS after it. */
DPA_INLINE void __dpa_thread_fence(uint64_t space, uint64_t predecessors, uint64_t successors)
{
	dpa_operation_fence(space | predecessors << 8 | successors << 16);
}

/* __dpa_thread_fence() on DPA memory, on the outbox, on windows, on everything. */
DPA_INLINE void __dpa_thread_memory_fence(uint64_t predecessors, uint64_t successors)
{
	__dpa_thread_fence(__DPA_MEMORY, predecessors, successors);
}

DPA_INLINE void __dpa_thread_outbox_fence(uint64_t predecessors, uint64_t successors)
{
	__dpa_thread_fence(__DPA_MMIO, predecessors, successors);
}

DPA_INLINE void __dpa_thread_window_fence(uint64_t predecessors, uint64_t successors)
{
	__dpa_thread_fence(__DPA_MMIO, predecessors, successors);
}

DPA_INLINE void __dpa_thread_system_fence(void)
{
	__dpa_thread_fence(__DPA_SYSTEM, __DPA_RW, __DPA_RW);
}

/* Drops cached window memory: the next read meets what the host or a device has written. */
DPA_INLINE void __dpa_thread_window_read_inv(void)
{
	__asm__ volatile(".insn r %0, 0, %1, zero, zero, zero" : : "i"(DPA_OPCODE), "i"(DPA_OP_WINDOW_READ_INV) : "memory");
}

/* Writes changes of window memory back: the host and devices meet them. */
DPA_INLINE void __dpa_thread_window_writeback(void)
{
	__asm__ volatile(".insn r %0, 0, %1, zero, zero, zero" : : "i"(DPA_OPCODE), "i"(DPA_OP_WINDOW_WRITEBACK) : "memory");
}

/* Writes changes of DPA memory back. */
DPA_INLINE void __dpa_thread_memory_writeback(void)
{
	__asm__ volatile(".insn r %0, 0, %1, zero, zero, zero" : : "i"(DPA_OPCODE), "i"(DPA_OP_MEMORY_WRITEBACK) : "memory");
}

/* Drops the cache line of an address without writing it back. */
DPA_INLINE void __dpa_data_ignore(const volatile void *address)
{
	__asm__ volatile(".insn r %0, 0, %1, zero, %2, zero"
			 :
			 : "i"(DPA_OPCODE), "i"(DPA_OP_DATA_IGNORE), "r"(address)
			 : "memory");
}

/* 1 / x, 2^x and log2(x) of numbers in the format Q16.16. */
DPA_INLINE uint32_t __dpa_fxp_rcp(uint32_t x)
{
	uint64_t result;

	DPA_INSTRUCTION(DPA_OP_FXP_RCP, result, (uint64_t)x);
	return (uint32_t)result;
}

DPA_INLINE uint32_t __dpa_fxp_pow2(uint32_t x)
{
	uint64_t result;

	DPA_INSTRUCTION(DPA_OP_FXP_POW2, result, (uint64_t)x);
	return (uint32_t)result;
}

DPA_INLINE uint32_t __dpa_fxp_log2(uint32_t x)
{
	uint64_t result;

	DPA_INSTRUCTION(DPA_OP_FXP_LOG2, result, (uint64_t)x);
	return (uint32_t)result;
}

/* Cycles of the core, instructions of the thread, and time in units of about a microsecond. */
DPA_INLINE uint64_t __dpa_thread_cycles(void)
{
	uint64_t value;

	__asm__ volatile("csrr %0, cycle" : "=r"(value) : : "memory");
	return value;
}

DPA_INLINE uint64_t __dpa_thread_inst_ret(void)
{
	uint64_t value;

	__asm__ volatile("csrr %0, instret" : "=r"(value) : : "memory");
	return value;
}

DPA_INLINE uint64_t __dpa_thread_time(void)
{
	uint64_t value;

	__asm__ volatile("csrr %0, time" : "=r"(value) : : "memory");
	return value;
}

/* The compiler moves no memory access across this. The processor may. */
#define __dpa_compiler_barrier() __asm__ volatile("" : : : "memory")

#ifdef __cplusplus
}
#endif

#endif
