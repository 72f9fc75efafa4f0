/*
 * Services and intrinsics on the host: a function of the program that has loaded this library.
 */
#include "pcc_dev.h"

typedef uint64_t (*service)(void *owner, uint64_t number, const uint64_t *arguments);

static service serve;
static void *owner;

/* Sets who serves this process. */
PCC_ENTRY void __pcc_attach(void *to, service by)
{
	owner = to;
	serve = by;
}

uint64_t pcc_service(uint64_t number, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
	const uint64_t arguments[4] = {a, b, c, d};

	return serve == NULL ? 0 : serve(owner, number, arguments);
}

static uint32_t intrinsic(uint64_t operation, uint32_t x)
{
	return (uint32_t)pcc_service(PCC_SERVICE_INTRINSIC, operation, x, 0, 0);
}

uint32_t __dpa_fxp_rcp(uint32_t x)
{
	/* As in pcc_dev::fxp, and here because algorithms use it often. */
	return x < 2 ? UINT32_MAX : (uint32_t)((1ull << 32) / x);
}

uint32_t __dpa_fxp_pow2(uint32_t x)
{
	return intrinsic(PCC_INTRINSIC_POW2, x);
}

uint32_t __dpa_fxp_log2(uint32_t x)
{
	return intrinsic(PCC_INTRINSIC_LOG2, x);
}

uint64_t __dpa_thread_time(void)
{
	return pcc_service(PCC_SERVICE_TIME, 0, 0, 0, 0);
}
