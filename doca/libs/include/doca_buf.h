/*
 * Buffers: a part of a memory map, with the data in it.
 */
#ifndef DOCA_BUF_H
#define DOCA_BUF_H

#include <doca_error.h>
#include <doca_types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct doca_buf;

/* Buffers begin with one reference. Without references a buffer returns to its inventory. `count`, if not NULL, gets the
 * number before the call. */
doca_error_t doca_buf_inc_refcount(struct doca_buf *buf, uint16_t *count);
doca_error_t doca_buf_dec_refcount(struct doca_buf *buf, uint16_t *count);
doca_error_t doca_buf_get_refcount(struct doca_buf *buf, uint16_t *count);

/* First byte and bytes of the buffer, and of the data in it. */
doca_error_t doca_buf_get_head(const struct doca_buf *buf, void **head);
doca_error_t doca_buf_get_len(const struct doca_buf *buf, size_t *length);
doca_error_t doca_buf_get_data(const struct doca_buf *buf, void **data);
doca_error_t doca_buf_get_data_len(const struct doca_buf *buf, size_t *length);
/* DOCA_ERROR_INVALID_VALUE if the data is not inside the buffer. */
doca_error_t doca_buf_set_data(struct doca_buf *buf, void *data, size_t length);
/* The data is then empty, at the same place. */
doca_error_t doca_buf_reset_data_len(struct doca_buf *buf);

#ifdef __cplusplus
}
#endif

#endif
