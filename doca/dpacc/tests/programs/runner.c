/*
 * Runs unpack functions and kernels as a Linux program for RISC-V: reads requests from standard input (number of the
 * function, bytes of its buffer, buffer), calls each as the device does, and writes the results and the record.
 */
#include <stdint.h>

extern uint64_t record[64];
extern unsigned int records;
extern const char run_tdata[];
extern const char run_tdata_size[];

#define FUNCTION(NAME)                                                                                                 \
	void NAME(void);                                                                                               \
	uint64_t __dpacc_unpack_##NAME(void *, void *);
FUNCTION(nothing)
FUNCTION(scalars)
FUNCTION(thirteen)
FUNCTION(by_value)
FUNCTION(counted)

static struct {
	void (*function)(void);
	uint64_t (*unpack)(void *, void *);
} const table[] = {
	{nothing, __dpacc_unpack_nothing},   {scalars, __dpacc_unpack_scalars}, {thirteen, __dpacc_unpack_thirteen},
	{by_value, __dpacc_unpack_by_value}, {counted, __dpacc_unpack_counted},
};

static uint64_t thread[64] __attribute__((aligned(64)));

static long call(long number, long a, long b, long c)
{
	register long a0 __asm__("a0") = a;
	register long a1 __asm__("a1") = b;
	register long a2 __asm__("a2") = c;
	register long a7 __asm__("a7") = number;

	__asm__ volatile("ecall" : "+r"(a0) : "r"(a1), "r"(a2), "r"(a7) : "memory");
	return a0;
}

enum { READ = 63, WRITE = 64, EXIT = 93 };

static int fill(void *to, uint64_t size)
{
	for (uint64_t at = 0; at < size;) {
		long got = call(READ, 0, (long)to + (long)at, (long)(size - at));

		if (got <= 0)
			return 0;
		at += (uint64_t)got;
	}
	return 1;
}

__attribute__((used)) static void run(void)
{
	static uint64_t request[2], buffer[512];

	for (uint64_t at = 0; at < (uint64_t)run_tdata_size; at++)
		((volatile char *)thread)[at] = run_tdata[at];
	__asm__ volatile("mv tp, %0" : : "r"(thread));
	while (fill(request, sizeof(request)) && request[0] < 5 && request[1] <= sizeof(buffer) &&
	       fill(buffer, request[1])) {
		uint64_t result = table[request[0]].unpack(buffer, (void *)table[request[0]].function);

		call(WRITE, 1, (long)&result, sizeof(result));
	}
	call(WRITE, 1, (long)record, (long)(records * sizeof(record[0])));
	call(EXIT, 0, 0, 0);
}

__asm__(".globl _start\n_start:\n.option push\n.option norelax\nla gp, __global_pointer$\n.option pop\ncall run\n");
