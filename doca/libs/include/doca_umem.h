/*
 * Memory of the DPA that a program lays out itself, for queue pairs of doca_verbs.h.
 */
#ifndef DOCA_UMEM_H
#define DOCA_UMEM_H

#include <doca_error.h>
#include <doca_types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct doca_dpa;
struct doca_umem;

/* `bytes` of an allocation of doca_dpa_mem_alloc from `address` on, with rights of `enum doca_access_flag`.
 * DOCA_ERROR_INVALID_VALUE if they are beyond the allocation. */
doca_error_t doca_umem_dpa_create(struct doca_dpa *dpa,
				  doca_dpa_dev_uintptr_t address,
				  size_t bytes,
				  uint32_t rights,
				  struct doca_umem **umem);
/* A queue pair in the memory keeps it until the queue pair is destroyed or the memory is freed. */
doca_error_t doca_umem_destroy(struct doca_umem *umem);

#ifdef __cplusplus
}
#endif

#endif
