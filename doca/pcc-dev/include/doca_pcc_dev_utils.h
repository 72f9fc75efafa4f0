/*
 * Programmable congestion control: arithmetic without floating point, and time.
 */
#ifndef DOCA_PCC_DEV_UTILS_H_
#define DOCA_PCC_DEV_UTILS_H_

#include <doca_pcc_dev_common.h>
#include <dpaintrin.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Number of the highest bit that is set, from 1; 0 for 0. */
FORCE_INLINE uint32_t doca_pcc_dev_fls(uint32_t value)
{
	return value == 0 ? 0 : 32 - (uint32_t)__builtin_clz(value);
}

/* The whole product. */
FORCE_INLINE uint64_t doca_pcc_dev_mult(uint32_t a, uint32_t b)
{
	return (uint64_t)a * b;
}

/* Product of which one factor, or the product and both factors, have 16 bits of fraction. Rounds down. */
FORCE_INLINE uint32_t doca_pcc_dev_fxp_mult(uint32_t a, uint32_t b)
{
	return (uint32_t)(doca_pcc_dev_mult(a, b) >> 16);
}

/* Reciprocal, power and logarithm of base 2, of numbers with 16 bits of fraction. The reciprocal of an integer has 32 bits
 * of fraction. */
FORCE_INLINE uint32_t doca_pcc_dev_fxp_recip(uint32_t value)
{
	return __dpa_fxp_rcp(value);
}

FORCE_INLINE uint32_t doca_pcc_dev_fxp_pow2(uint32_t value)
{
	return __dpa_fxp_pow2(value);
}

FORCE_INLINE uint32_t doca_pcc_dev_fxp_log2(uint32_t value)
{
	return __dpa_fxp_log2(value);
}

/* Microseconds, in 32 bits that wrap. */
FORCE_INLINE uint32_t doca_pcc_dev_get_timer_lo(void)
{
	return (uint32_t)__dpa_thread_time();
}

#ifdef __cplusplus
}
#endif

#endif
