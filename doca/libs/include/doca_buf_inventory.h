/*
 * Inventories: a fixed number of buffers.
 */
#ifndef DOCA_BUF_INVENTORY_H
#define DOCA_BUF_INVENTORY_H

#include <doca_buf.h>
#include <doca_mmap.h>

#ifdef __cplusplus
extern "C" {
#endif

struct doca_buf_inventory;

/* `elements`: 1 to 2^20 buffers. */
doca_error_t doca_buf_inventory_create(size_t elements, struct doca_buf_inventory **inventory);
/* DOCA_ERROR_IN_USE while a buffer is out. */
doca_error_t doca_buf_inventory_destroy(struct doca_buf_inventory *inventory);
doca_error_t doca_buf_inventory_start(struct doca_buf_inventory *inventory);
doca_error_t doca_buf_inventory_stop(struct doca_buf_inventory *inventory);
doca_error_t doca_buf_inventory_get_num_elements(const struct doca_buf_inventory *inventory, uint32_t *count);
doca_error_t doca_buf_inventory_get_num_free_elements(const struct doca_buf_inventory *inventory, uint32_t *count);

/* A buffer without data, and one that is full of data, of a started map. DOCA_ERROR_NO_MEMORY if all buffers are out,
 * DOCA_ERROR_INVALID_VALUE if the range is not inside the map. */
doca_error_t doca_buf_inventory_buf_get_by_addr(struct doca_buf_inventory *inventory,
						struct doca_mmap *mmap,
						void *address,
						size_t length,
						struct doca_buf **buf);
doca_error_t doca_buf_inventory_buf_get_by_data(struct doca_buf_inventory *inventory,
						struct doca_mmap *mmap,
						void *data,
						size_t length,
						struct doca_buf **buf);

#ifdef __cplusplus
}
#endif

#endif
