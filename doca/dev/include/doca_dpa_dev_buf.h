/*
 * Device API of DOCA DPA: buffers, arrays of buffers, and copies.
 */
#ifndef DOCA_DPA_DEV_BUF_H
#define DOCA_DPA_DEV_BUF_H

#include <doca_dpa_dev.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A buffer, as the host writes it to the memory of the DPA. */
struct doca_dpa_dev_buf {
	uint64_t addr;
	uint64_t len;
	uint32_t mmap;
	uint8_t reserved[12];
} __attribute__((__packed__));

/* An array of buffers. */
struct doca_dpa_dev_buf_arr {
	uint64_t bufs;
	uint8_t reserved[20];
} __attribute__((__packed__, aligned(64)));

#ifndef __cplusplus
_Static_assert(sizeof(struct doca_dpa_dev_buf) == 32, "layout of a buffer");
_Static_assert(offsetof(struct doca_dpa_dev_buf, len) == 8, "layout of a buffer");
_Static_assert(offsetof(struct doca_dpa_dev_buf, mmap) == 16, "layout of a buffer");
_Static_assert(sizeof(struct doca_dpa_dev_buf_arr) == 64, "layout of an array of buffers");
#endif

/* Addresses of the structures above in the memory of the DPA. */
typedef uint64_t doca_dpa_dev_buf_t;
typedef uint64_t doca_dpa_dev_buf_arr_t;

/* Address through which the DPA accesses an address of a memory map. */
doca_dpa_dev_uintptr_t doca_dpa_dev_mmap_get_external_ptr(doca_dpa_dev_mmap_t mmap, uint64_t addr);

/* Buffer of an array. The index is below the number of buffers that the host has created. */
DPA_INLINE doca_dpa_dev_buf_t doca_dpa_dev_buf_array_get_buf(doca_dpa_dev_buf_arr_t array, uint64_t index)
{
	const struct doca_dpa_dev_buf_arr *from = (const struct doca_dpa_dev_buf_arr *)array;

	return from->bufs + index * sizeof(struct doca_dpa_dev_buf);
}

DPA_INLINE doca_dpa_dev_mmap_t doca_dpa_dev_buf_get_mmap(doca_dpa_dev_buf_t buf)
{
	return ((const struct doca_dpa_dev_buf *)buf)->mmap;
}

DPA_INLINE uintptr_t doca_dpa_dev_buf_get_addr(doca_dpa_dev_buf_t buf)
{
	return ((const struct doca_dpa_dev_buf *)buf)->addr;
}

DPA_INLINE uint64_t doca_dpa_dev_buf_get_len(doca_dpa_dev_buf_t buf)
{
	return ((const struct doca_dpa_dev_buf *)buf)->len;
}

#ifndef DOCA_DPA_DEV_2_0
DPA_INLINE doca_dpa_dev_uintptr_t doca_dpa_dev_buf_get_external_ptr(doca_dpa_dev_buf_t buf)
{
	return doca_dpa_dev_mmap_get_external_ptr(doca_dpa_dev_buf_get_mmap(buf), doca_dpa_dev_buf_get_addr(buf));
}
#endif

/* Copy without waiting. For kernels of a thread. `flags` are those of enum doca_dpa_dev_submit_flag. */
void doca_dpa_dev_post_memcpy(doca_dpa_dev_async_ops_t async_ops,
			      doca_dpa_dev_mmap_t dst_mmap,
			      uint64_t dst_addr,
			      doca_dpa_dev_mmap_t src_mmap,
			      uint64_t src_addr,
			      size_t length,
			      uint32_t flags);
void doca_dpa_dev_post_buf_memcpy(doca_dpa_dev_async_ops_t async_ops,
				  doca_dpa_dev_buf_t dst,
				  doca_dpa_dev_buf_t src,
				  uint32_t flags);

#ifdef __cplusplus
}
#endif

#endif
