/*
 * All headers of the newest API, and the address of each function that DEVICE_CALLS names.
 */
#include <doca_dpa_dev.h>
#include <doca_dpa_dev_buf.h>
#include <doca_dpa_dev_buf_array.h>
#include <doca_dpa_dev_rdma.h>
#include <doca_dpa_dev_sync_event.h>
#include <doca_dpa_dev_verbs.h>
#include <doca_sync_event.h>
#include <libflexio-dev/flexio_dev.h>

#define CALL(NAME) (const void *)NAME,
const void *const calls[] = {DEVICE_CALLS};

__dpa_rpc__ uint64_t address(uint64_t at)
{
	return (uint64_t)calls[at];
}

/* The functions that the headers define themselves. */
__dpa_rpc__ uint64_t inner(doca_dpa_dev_buf_arr_t array, doca_dpa_dev_verbs_qp_t qp, struct spinlock_s *lock)
{
	struct doca_dpa_dev_verbs_send_wr wr = {0};
	struct doca_dpa_dev_verbs_sge sge = {0};
	struct flexio_dev_thread_ctx *ctx;
	flexio_uintptr_t daddr = 0;

	doca_dpa_dev_verbs_send_wr_set_sg_list(&wr, &sge);
	doca_dpa_dev_verbs_send_wr_set_sg_num_sge(&wr, 1);
	doca_dpa_dev_verbs_qp_post_send_wr(qp, &wr);
	spin_lock(lock);
	spin_unlock(lock);
	if (flexio_dev_get_thread_ctx(&ctx) == 0)
		flexio_dev_print("%lu\n", flexio_dev_get_thread_local_storage(ctx));
#if FLEXIO_DEV_VER_USED >= FLEXIO_DEV_VER(24, 10, 0)
	flexio_dev_window_ptr_acquire(FLEXIO_DEV_WINDOW_ENTITY_1, 4096, &daddr);
#else
	flexio_dev_window_ptr_acquire(ctx, 4096, &daddr);
#endif
	return daddr + doca_dpa_dev_buf_get_external_ptr(doca_dpa_dev_buf_array_get_buf(array, 3));
}
