/*
 * RDMA connections whose data path is on the DPA: the host creates and connects them, kernels post the operations.
 *
 * A data path on the processor is not supported: doca_ctx_start says so, unless doca_ctx_set_datapath_on_dpa was called.
 */
#ifndef DOCA_RDMA_H
#define DOCA_RDMA_H

#include <doca_ctx.h>
#include <doca_error.h>
#include <doca_types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct doca_dev;
struct doca_devinfo;
struct doca_dpa_completion;
struct doca_rdma;
struct doca_rdma_connection;

enum doca_rdma_addr_type {
	DOCA_RDMA_ADDR_TYPE_IPv4 = 0,
	DOCA_RDMA_ADDR_TYPE_IPv6 = 1,
	DOCA_RDMA_ADDR_TYPE_GID = 2,
};

/* DOCA_SUCCESS if the device can. */
doca_error_t doca_rdma_cap_task_send_is_supported(const struct doca_devinfo *devinfo);

doca_error_t doca_rdma_create(struct doca_dev *dev, struct doca_rdma **rdma);
/* DOCA_ERROR_BAD_STATE while the context runs. */
doca_error_t doca_rdma_destroy(struct doca_rdma *rdma);
struct doca_ctx *doca_rdma_as_ctx(struct doca_rdma *rdma);

/* Settings, before start. --------------------------------------------------------------------------------------- */

/* What the other node may do, of `enum doca_access_flag`. */
doca_error_t doca_rdma_set_permissions(struct doca_rdma *rdma, uint32_t rights);
/* Whether packets have a global header. RoCE always has one. Default: false. */
doca_error_t doca_rdma_set_grh_enabled(struct doca_rdma *rdma, uint8_t is_enabled);
/* Index of the port's table of global addresses. Default: 0. */
doca_error_t doca_rdma_set_gid_index(struct doca_rdma *rdma, uint32_t index);
/* Elements of the queues of each connection: 1 to 32768, rounded up to a power of two. Default: 128. */
doca_error_t doca_rdma_set_send_queue_size(struct doca_rdma *rdma, uint32_t elements);
doca_error_t doca_rdma_set_recv_queue_size(struct doca_rdma *rdma, uint32_t elements);
/* Buffers of a receive operation. The DPA posts receive operations of one buffer, so 1. */
doca_error_t doca_rdma_task_receive_set_dst_buf_list_len(struct doca_rdma *rdma, uint32_t buffers);
/* Connections: 1 to 512. Default: 1. */
doca_error_t doca_rdma_set_max_num_connections(struct doca_rdma *rdma, uint16_t connections);
/* The completions of all operations. The queue belongs to the same DPA context as the data path. */
doca_error_t doca_rdma_dpa_completion_attach(struct doca_rdma *rdma, struct doca_dpa_completion *completion);

/* Connections of a running context. ----------------------------------------------------------------------------- */

/* Creates a connection, and its description for the other node, which the connection owns. DOCA_ERROR_FULL at the number of
 * connections of the settings. */
doca_error_t doca_rdma_export(struct doca_rdma *rdma,
			      const void **details,
			      size_t *length,
			      struct doca_rdma_connection **connection);
/* Connects to the node with this description. Both nodes call it. DOCA_ERROR_INVALID_VALUE if the bytes are no description. */
doca_error_t doca_rdma_connect(struct doca_rdma *rdma,
			       const void *details,
			       size_t length,
			       struct doca_rdma_connection *connection);
/* Number of the connection, from 0, for device code. */
doca_error_t doca_rdma_connection_get_id(const struct doca_rdma_connection *connection, uint32_t *id);
/* The handle of a running context for device code. */
doca_error_t doca_rdma_get_dpa_handle(struct doca_rdma *rdma, doca_dpa_dev_rdma_t *handle);

#ifdef __cplusplus
}
#endif

#endif
