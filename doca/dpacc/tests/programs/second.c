/*
 * A second source: global data, constants, thread-local data, and a call into the first source.
 */
#include <dpaintrin.h>
#include <string.h>

#include "kernels.h"

static uint64_t total = 7;
static uint64_t zero[512];
static const char text[] = "a constant";
static __thread uint64_t calls = 100;
static __thread uint64_t untouched;

__dpa_rpc__ uint64_t counted(uint64_t add)
{
	total += add;
	calls++;
	zero[511] += 2;
	note(total);
	note(calls);
	note(zero[511]);
	note(untouched);
	note(strlen(text));
	return total;
}

__dpa_global__ void order(uint64_t address)
{
	__dpa_thread_fence(__DPA_MEMORY, __DPA_W, __DPA_R);
	__dpa_thread_window_read_inv();
	note(*(volatile uint64_t *)address);
	__dpa_thread_window_writeback();
	__dpa_thread_memory_writeback();
	__dpa_data_ignore((void *)address);
	note(__dpa_fxp_rcp(1) + __dpa_fxp_pow2(2) + __dpa_fxp_log2(3));
	note(__dpa_thread_cycles() + __dpa_thread_inst_ret() + __dpa_thread_time());
}
