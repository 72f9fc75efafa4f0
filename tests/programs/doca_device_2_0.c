/* Device side of the test program with the names of DOCA 2.0. */
#include <doca_dpa_dev_2_0.h>

/* A node of a chain: waits, and tells the next one. */
__dpa_global__ void linear(doca_dpa_dev_sync_event_t wait, doca_dpa_dev_sync_event_t done)
{
	if (wait)
		doca_dpa_dev_sync_event_wait_gt(wait, 0, UINT64_MAX);
	doca_dpa_dev_sync_event_update_add(done, 1);
}

/* Buffer 0 to buffer 1, 16 bytes later; then its matrix of `columns` times `rows` words to buffer 2, transposed. */
__dpa_global__ void copies(doca_dpa_dev_buf_arr_t array, uint64_t columns, uint64_t rows)
{
	doca_dpa_dev_buf_t from = doca_dpa_dev_buf_array_get_buf(array, 0);
	size_t length = columns * rows * sizeof(uint32_t);

	doca_dpa_dev_memcpy_nb(doca_dpa_dev_buf_array_get_buf(array, 1), 16, from, 0, length);
	doca_dpa_dev_memcpy_transpose2D_nb(doca_dpa_dev_buf_array_get_buf(array, 2), 0, from, 0, length, sizeof(uint32_t),
					   columns, rows);
	doca_dpa_dev_memcpy_synchronize();
}

/* Reads the second half of `remote` to the second half of `local`, writes the first half back, adds to the last word, and
 * signals. */
__dpa_global__ void transfers(doca_dpa_dev_rdma_t rdma,
			      doca_dpa_dev_buf_arr_t local,
			      doca_dpa_dev_buf_arr_t remote,
			      doca_dpa_dev_sync_event_remote_t event,
			      uint64_t bytes,
			      uint64_t times)
{
	doca_dpa_dev_buf_t own = doca_dpa_dev_buf_array_get_buf(local, 0);
	doca_dpa_dev_buf_t other = doca_dpa_dev_buf_array_get_buf(remote, 0);

	doca_dpa_dev_rdma_read(rdma, own, bytes / 2, other, bytes / 2, bytes / 2);
	doca_dpa_dev_rdma_write(rdma, other, 0, own, 0, bytes / 2);
	for (uint64_t at = 0; at < times; at++)
		doca_dpa_dev_rdma_atomic_fetch_add(rdma, other, bytes - 8, at);
	doca_dpa_dev_rdma_synchronize(rdma);
	doca_dpa_dev_rdma_signal_set(rdma, event, 40);
	doca_dpa_dev_rdma_signal_add(rdma, event, 2);
	doca_dpa_dev_rdma_synchronize(rdma);
	doca_dpa_dev_printf("transferred %lu bytes", bytes);
}
