/*
 * A kernel with the names of version 2.0.
 */
#include <doca_dpa_dev_2_0.h>

__dpa_global__ void old(doca_dpa_dev_sync_event_t wait, doca_dpa_dev_sync_event_t done, doca_dpa_dev_rdma_t rdma,
			doca_dpa_dev_buf_arr_t array, doca_dpa_dev_sync_event_remote_t remote)
{
	doca_dpa_dev_buf_t buf = doca_dpa_dev_buf_array_get_buf(array, doca_dpa_dev_thread_rank());

	if (wait)
		doca_dpa_dev_sync_event_wait_gt(wait, 0, ~0UL);
	doca_dpa_dev_memcpy_nb(buf, 0, buf, 64, 64);
	doca_dpa_dev_memcpy_transpose2D_nb(buf, 0, buf, 64, 64, 4, 4, 4);
	doca_dpa_dev_memcpy_synchronize();
	doca_dpa_dev_rdma_write(rdma, buf, 0, buf, 8, 8);
	doca_dpa_dev_rdma_read(rdma, buf, 0, buf, 8, 8);
	doca_dpa_dev_rdma_atomic_fetch_add(rdma, buf, 0, 1);
	doca_dpa_dev_rdma_signal_add(rdma, remote, 1);
	doca_dpa_dev_rdma_signal_set(rdma, remote, 2);
	doca_dpa_dev_rdma_synchronize(rdma);
	doca_dpa_dev_printf("%p\n", (void *)doca_dpa_dev_buf_get_external_ptr(buf, 8));
	doca_dpa_dev_sync_event_update_add(done, 1);
}
