/*
 * Memory maps: a range of memory that devices may access. Create, set a range, rights and devices, start. The settings of a
 * started map do not change.
 */
#ifndef DOCA_MMAP_H
#define DOCA_MMAP_H

#include <doca_error.h>
#include <doca_types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct doca_dev;
struct doca_dpa;
struct doca_mmap;

doca_error_t doca_mmap_create(struct doca_mmap **mmap);
/* Stops the map and frees it. DOCA_ERROR_IN_USE while a buffer refers to it. */
doca_error_t doca_mmap_destroy(struct doca_mmap *mmap);
/* A device that may access the range. At most 8 (DOCA_ERROR_FULL). */
doca_error_t doca_mmap_add_dev(struct doca_mmap *mmap, struct doca_dev *dev);
/* A range of this process: `length` bytes, at least 1. It stays mapped while the map is started. */
doca_error_t doca_mmap_set_memrange(struct doca_mmap *mmap, void *address, size_t length);
/* A range in the heap of the DPA, inside one allocation. The device is that of `dpa`. */
doca_error_t doca_mmap_set_dpa_memrange(struct doca_mmap *mmap, struct doca_dpa *dpa, uint64_t address, size_t length);
/* Rights of `enum doca_access_flag`. Without this call, DOCA_ACCESS_FLAG_LOCAL_READ_ONLY. */
doca_error_t doca_mmap_set_permissions(struct doca_mmap *mmap, uint32_t rights);
/* Registers the range with all devices. DOCA_ERROR_BAD_CONFIG without range or device; DOCA_ERROR_DRIVER if a device refuses. */
doca_error_t doca_mmap_start(struct doca_mmap *mmap);
/* DOCA_ERROR_IN_USE while a buffer refers to the map. Exports of the map become invalid. */
doca_error_t doca_mmap_stop(struct doca_mmap *mmap);
doca_error_t doca_mmap_get_memrange(const struct doca_mmap *mmap, void **address, size_t *length);

/* Description of a started map for the other node of an RDMA connection. The map owns it until it stops. */
doca_error_t doca_mmap_export_rdma(struct doca_mmap *mmap, const struct doca_dev *dev, const void **export_data, size_t *length);
/* Description for the device's DPU: not supported. Use the pooled keys of xgvmi. */
doca_error_t doca_mmap_export_pci(struct doca_mmap *mmap, const struct doca_dev *dev, const void **export_data, size_t *length);
/* A started map of the other node's memory. DOCA_ERROR_INVALID_VALUE if the bytes are no description. */
doca_error_t doca_mmap_create_from_export(const union doca_data *user_data,
					  const void *export_data,
					  size_t length,
					  struct doca_dev *dev,
					  struct doca_mmap **mmap);

/* The handle of a started map for device code. */
doca_error_t doca_mmap_dev_get_dpa_handle(struct doca_mmap *mmap, struct doca_dev *dev, doca_dpa_dev_mmap_t *handle);

#ifdef __cplusplus
}
#endif

#endif
