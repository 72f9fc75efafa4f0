/*
 * Services on the DPA: device calls, with their number in t0.
 */
#include "pcc_dev.h"

uint64_t pcc_service(uint64_t number, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
	register uint64_t t0 __asm__("t0") = number;
	register uint64_t a0 __asm__("a0") = a;
	register uint64_t a1 __asm__("a1") = b;
	register uint64_t a2 __asm__("a2") = c;
	register uint64_t a3 __asm__("a3") = d;

	__asm__ volatile("ecall" : "+r"(a0) : "r"(t0), "r"(a1), "r"(a2), "r"(a3) : "memory");
	return a0;
}
