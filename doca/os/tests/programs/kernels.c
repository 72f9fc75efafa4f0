/* Functions that the tests of the operating system run. */
#include <libflexio-dev/flexio_dev.h>
#include <libflexio-dev/flexio_dev_queue_access.h>

unsigned int doca_dpa_dev_thread_rank(void);
unsigned int doca_dpa_dev_num_threads(void);

uint64_t unpack(uint64_t *a, uint64_t (*function)())
{
	return function(a[0], a[1]);
}

uint64_t multiply(uint64_t a, uint64_t b)
{
	return a * b;
}

uint64_t rank(uint64_t *table)
{
	table[doca_dpa_dev_thread_rank()] += doca_dpa_dev_num_threads();
	return 0;
}

/* Rings a doorbell, and sees at once what the device has done. */
uint64_t ring(uint64_t outbox, volatile uint64_t *word)
{
	struct flexio_dev_thread_ctx *dtctx;
	flexio_dev_get_thread_ctx(&dtctx);
	if (flexio_dev_outbox_config(dtctx, outbox) != FLEXIO_DEV_STATUS_SUCCESS)
		return 1;
	flexio_dev_qp_sq_ring_db(5, 0x123);
	return *word;
}

/* An atomic addition on memory behind a key. */
uint64_t add(uint64_t window, uint64_t key)
{
	flexio_uintptr_t word;
	if (flexio_dev_window_config(FLEXIO_DEV_WINDOW_ENTITY_1, window, key) != FLEXIO_DEV_STATUS_SUCCESS)
		return 1;
	flexio_dev_window_ptr_acquire(FLEXIO_DEV_WINDOW_ENTITY_1, 0x1000, &word);
	return __atomic_fetch_add((uint64_t *)word, 3, __ATOMIC_SEQ_CST);
}

uint64_t loop(void)
{
	for (;;)
		__asm__ volatile("");
}

uint64_t finish(void)
{
	flexio_dev_thread_finish();
}

/* Events: each activation adds one. The second one starts itself again. */
void handler(uint64_t *count)
{
	++*count;
	if (*count == 2)
		flexio_dev_thread_retrigger();
	if (*count == 5)
		flexio_dev_thread_finish();
	flexio_dev_thread_reschedule();
}

/* A task of a command queue. */
uint64_t task(uint64_t *count)
{
	return ++*count;
}
