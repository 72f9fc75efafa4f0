/*
 * Names of DOCA 2.0 for device code. Include this header before all others. Two names have other arguments in later
 * versions; with this header they have those of 2.0.
 */
#ifndef DOCA_DPA_DEV_2_0_H
#define DOCA_DPA_DEV_2_0_H

#ifdef DOCA_DPA_DEV_H
#error "include doca_dpa_dev_2_0.h before the other headers of the device API"
#endif
#define DOCA_DPA_DEV_2_0 1

#include <doca_dpa_dev.h>
#include <doca_dpa_dev_buf.h>
#include <doca_dpa_dev_rdma.h>
#include <doca_dpa_dev_sync_event.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef doca_dpa_dev_sync_event_remote_net_t doca_dpa_dev_sync_event_remote_t;
typedef doca_dpa_dev_sync_event_remote_net_t doca_dpa_dev_event_remote_t;

DPA_INLINE doca_dpa_dev_uintptr_t doca_dpa_dev_buf_get_external_ptr(doca_dpa_dev_buf_t buf, uint64_t offset)
{
	return doca_dpa_dev_mmap_get_external_ptr(doca_dpa_dev_buf_get_mmap(buf),
						  doca_dpa_dev_buf_get_addr(buf) + offset);
}

void doca_dpa_dev_printf(const char *format, ...);

/* Copy, or copy a matrix of `num_rows` times `num_columns` elements transposed, without waiting; and wait for all. */
void doca_dpa_dev_memcpy_nb(doca_dpa_dev_buf_t dst,
			    uint64_t dst_offset,
			    doca_dpa_dev_buf_t src,
			    uint64_t src_offset,
			    size_t length);
void doca_dpa_dev_memcpy_transpose2D_nb(doca_dpa_dev_buf_t dst,
					uint64_t dst_offset,
					doca_dpa_dev_buf_t src,
					uint64_t src_offset,
					size_t length,
					size_t element_size,
					size_t num_columns,
					size_t num_rows);
void doca_dpa_dev_memcpy_synchronize(void);

void doca_dpa_dev_rdma_read(doca_dpa_dev_rdma_t rdma,
			    doca_dpa_dev_buf_t dst,
			    uint64_t dst_offset,
			    doca_dpa_dev_buf_t src,
			    uint64_t src_offset,
			    size_t length);
void doca_dpa_dev_rdma_write(doca_dpa_dev_rdma_t rdma,
			     doca_dpa_dev_buf_t dst,
			     uint64_t dst_offset,
			     doca_dpa_dev_buf_t src,
			     uint64_t src_offset,
			     size_t length);
void doca_dpa_dev_rdma_atomic_fetch_add(doca_dpa_dev_rdma_t rdma,
					doca_dpa_dev_buf_t dst,
					uint64_t dst_offset,
					size_t value);
/* Waits until all operations of the handle have ended. */
void doca_dpa_dev_rdma_synchronize(doca_dpa_dev_rdma_t rdma);

void __dpa_rdma_signal_add(doca_dpa_dev_rdma_t rdma, doca_dpa_dev_sync_event_remote_t event, uint64_t count);
void __dpa_rdma_signal_set(doca_dpa_dev_rdma_t rdma, doca_dpa_dev_sync_event_remote_t event, uint64_t count);
#define doca_dpa_dev_rdma_signal_add __dpa_rdma_signal_add
#define doca_dpa_dev_rdma_signal_set __dpa_rdma_signal_set

#ifdef __cplusplus
}
#endif

#endif
