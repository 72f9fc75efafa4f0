/*
 * Objects of libibverbs behind those of this library.
 */
#ifndef DOCA_RDMA_BRIDGE_H
#define DOCA_RDMA_BRIDGE_H

#include <infiniband/verbs.h>

#include <doca_error.h>

#ifdef __cplusplus
extern "C" {
#endif

struct doca_dev;

/* The protection domain of an open device, which is closed with it. */
doca_error_t doca_rdma_bridge_get_dev_pd(const struct doca_dev *dev, struct ibv_pd **pd);

#ifdef __cplusplus
}
#endif

#endif
