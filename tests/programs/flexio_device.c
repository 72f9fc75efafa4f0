/* Device side of flexio_host.c. */
#include <libflexio-dev/flexio_dev.h>
#include <libflexio-dev/flexio_dev_queue_access.h>
#include "flexio_shared.h"

__dpa_rpc__ uint64_t mixed(uint8_t a, int32_t b, uint64_t c, struct pair d, uint64_t e, uint64_t f, uint64_t g)
{
	flexio_dev_print("mixed %u %d\n", a, b);
	return a + 10 * (uint64_t)b + 100 * c + 1000 * d.x + 10000 * d.y + 100000 * e + 1000000 * f + 10000000 * g;
}

__dpa_rpc__ uint64_t total(uint64_t words, uint64_t count)
{
	uint64_t sum = 0;
	for (uint64_t at = 0; at < count; at++)
		sum += ((const uint64_t *)words)[at];
	return sum;
}

__dpa_rpc__ uint64_t wrong(uint64_t address)
{
	return *(volatile uint64_t *)address;
}

/* A task of a command queue. */
__dpa_rpc__ uint64_t task(uint64_t counter)
{
	return __atomic_add_fetch((uint64_t *)counter, 1, __ATOMIC_SEQ_CST);
}

static void be32(uint8_t *to, uint32_t value)
{
	to[0] = value >> 24;
	to[1] = value >> 16;
	to[2] = value >> 8;
	to[3] = value;
}

/* Posts one RDMA write of 8 bytes. */
__dpa_rpc__ uint64_t post(uint64_t address)
{
	struct work *work = (struct work *)address;
	struct flexio_dev_thread_ctx *dtctx;
	uint8_t *wqe = (uint8_t *)work->send_ring;

	flexio_dev_get_thread_ctx(&dtctx);
	if (flexio_dev_outbox_config(dtctx, work->outbox) != FLEXIO_DEV_STATUS_SUCCESS)
		return 1;
	be32(wqe, 0x08);
	be32(wqe + 4, work->qpn << 8 | 3);
	be32(wqe + 8, 2 << 2);
	be32(wqe + 12, 0);
	be32(wqe + 16, work->target >> 32);
	be32(wqe + 20, work->target);
	be32(wqe + 24, work->target_key);
	be32(wqe + 28, 0);
	be32(wqe + 32, 8);
	be32(wqe + 36, work->source_key);
	be32(wqe + 40, work->source >> 32);
	be32(wqe + 44, work->source);
	flexio_dev_dbr_sq_set_pi((uint32_t *)work->qp_record + 1, 1);
	__dpa_thread_memory_writeback();
	flexio_dev_qp_sq_ring_db(1, work->qpn);
	return 0;
}

/* The completion of the write. */
__dpa_global__ void on_completion(uint64_t address)
{
	struct work *work = (struct work *)address;
	volatile uint8_t *cqe = (uint8_t *)work->cq_ring;
	/* 0: a request of this side has completed. */
	if ((cqe[63] & 1) == 0 && cqe[63] >> 4 == 0)
		work->completed++;
	__dpa_thread_memory_writeback();
	flexio_dev_thread_finish();
}
