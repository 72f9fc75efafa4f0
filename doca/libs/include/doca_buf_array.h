/*
 * Arrays of buffers of equal size for the DPA, which are parts of one memory map.
 */
#ifndef DOCA_BUF_ARRAY_H
#define DOCA_BUF_ARRAY_H

#include <doca_buf.h>
#include <doca_mmap.h>

#ifdef __cplusplus
extern "C" {
#endif

struct doca_buf_arr;
struct doca_dpa;

/* `elements`: 1 to 65536 buffers. */
doca_error_t doca_buf_arr_create(size_t elements, struct doca_buf_arr **array);
doca_error_t doca_buf_arr_destroy(struct doca_buf_arr *array);
/* Buffer `i` is `element_size` bytes of the started map, from `offset + i * element_size`. DOCA_ERROR_INVALID_VALUE if the
 * buffers are not inside the map. */
doca_error_t doca_buf_arr_set_params(struct doca_buf_arr *array, struct doca_mmap *mmap, size_t element_size, uint64_t offset);
doca_error_t doca_buf_arr_set_target_dpa(struct doca_buf_arr *array, struct doca_dpa *dpa);
/* Writes the array to the memory of the DPA. DOCA_ERROR_BAD_CONFIG names a missing setting. */
doca_error_t doca_buf_arr_start(struct doca_buf_arr *array);
doca_error_t doca_buf_arr_stop(struct doca_buf_arr *array);
/* The handle of a started array: a doca_dpa_dev_buf_arr_t. */
doca_error_t doca_buf_arr_get_dpa_handle(const struct doca_buf_arr *array, doca_dpa_dev_buf_arr_t *handle);

#ifdef __cplusplus
}
#endif

#endif
