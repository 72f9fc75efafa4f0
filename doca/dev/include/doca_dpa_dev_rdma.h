/*
 * Device API of DOCA DPA: RDMA.
 *
 * Operations do not wait. A completion of the attached queue reports the end. `connection` is the number that the host got
 * for the connection; `flags` are those of enum doca_dpa_dev_submit_flag. Addresses belong to their memory map.
 */
#ifndef DOCA_DPA_DEV_RDMA_H
#define DOCA_DPA_DEV_RDMA_H

#include <doca_dpa_dev_buf.h>
#include <doca_dpa_dev_sync_event.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef uint64_t doca_dpa_dev_rdma_t;

void doca_dpa_dev_rdma_post_read(doca_dpa_dev_rdma_t rdma,
				 uint32_t connection,
				 doca_dpa_dev_mmap_t dst_mmap,
				 uint64_t dst_addr,
				 doca_dpa_dev_mmap_t src_mmap,
				 uint64_t src_addr,
				 size_t length,
				 uint32_t flags);
void doca_dpa_dev_rdma_post_write(doca_dpa_dev_rdma_t rdma,
				  uint32_t connection,
				  doca_dpa_dev_mmap_t dst_mmap,
				  uint64_t dst_addr,
				  doca_dpa_dev_mmap_t src_mmap,
				  uint64_t src_addr,
				  size_t length,
				  uint32_t flags);
void doca_dpa_dev_rdma_post_write_imm(doca_dpa_dev_rdma_t rdma,
				      uint32_t connection,
				      doca_dpa_dev_mmap_t dst_mmap,
				      uint64_t dst_addr,
				      doca_dpa_dev_mmap_t src_mmap,
				      uint64_t src_addr,
				      size_t length,
				      uint32_t immediate,
				      uint32_t flags);
void doca_dpa_dev_rdma_post_send(doca_dpa_dev_rdma_t rdma,
				 uint32_t connection,
				 doca_dpa_dev_mmap_t mmap,
				 uint64_t addr,
				 size_t length,
				 uint32_t flags);
void doca_dpa_dev_rdma_post_send_imm(doca_dpa_dev_rdma_t rdma,
				     uint32_t connection,
				     doca_dpa_dev_mmap_t mmap,
				     uint64_t addr,
				     size_t length,
				     uint32_t immediate,
				     uint32_t flags);
void doca_dpa_dev_rdma_post_receive(doca_dpa_dev_rdma_t rdma, doca_dpa_dev_mmap_t mmap, uint64_t addr, size_t length);
/* Adds to 8 bytes of the other node. The address is a multiple of 8. */
void doca_dpa_dev_rdma_post_atomic_fetch_add(doca_dpa_dev_rdma_t rdma,
					     uint32_t connection,
					     doca_dpa_dev_mmap_t dst_mmap,
					     uint64_t dst_addr,
					     uint64_t value,
					     uint32_t flags);

/* The same, with buffers. */
void doca_dpa_dev_rdma_post_buf_read(doca_dpa_dev_rdma_t rdma,
				     uint32_t connection,
				     doca_dpa_dev_buf_t dst,
				     doca_dpa_dev_buf_t src,
				     uint32_t flags);
void doca_dpa_dev_rdma_post_buf_write(doca_dpa_dev_rdma_t rdma,
				      uint32_t connection,
				      doca_dpa_dev_buf_t dst,
				      doca_dpa_dev_buf_t src,
				      uint32_t flags);
void doca_dpa_dev_rdma_post_buf_write_imm(doca_dpa_dev_rdma_t rdma,
					  uint32_t connection,
					  doca_dpa_dev_buf_t dst,
					  doca_dpa_dev_buf_t src,
					  uint32_t immediate,
					  uint32_t flags);
void doca_dpa_dev_rdma_post_buf_send(doca_dpa_dev_rdma_t rdma,
				     uint32_t connection,
				     doca_dpa_dev_buf_t buf,
				     uint32_t flags);
void doca_dpa_dev_rdma_post_buf_send_imm(doca_dpa_dev_rdma_t rdma,
					 uint32_t connection,
					 doca_dpa_dev_buf_t buf,
					 uint32_t immediate,
					 uint32_t flags);
void doca_dpa_dev_rdma_post_buf_receive(doca_dpa_dev_rdma_t rdma, doca_dpa_dev_buf_t buf);
void doca_dpa_dev_rdma_post_buf_atomic_fetch_add(doca_dpa_dev_rdma_t rdma,
						 uint32_t connection,
						 doca_dpa_dev_buf_t dst,
						 uint64_t value,
						 uint32_t flags);

/* Gives so many receive operations back to the queue. */
void doca_dpa_dev_rdma_receive_ack(doca_dpa_dev_rdma_t rdma, uint32_t count);

#ifndef DOCA_DPA_DEV_2_0
/* Adds to an event of the other node, or sets it, after all operations before. */
void doca_dpa_dev_rdma_signal_add(doca_dpa_dev_rdma_t rdma,
				  uint32_t connection,
				  doca_dpa_dev_sync_event_remote_net_t event,
				  uint64_t value);
void doca_dpa_dev_rdma_signal_set(doca_dpa_dev_rdma_t rdma,
				  uint32_t connection,
				  doca_dpa_dev_sync_event_remote_net_t event,
				  uint64_t value);
#endif

#ifdef __cplusplus
}
#endif

#endif
