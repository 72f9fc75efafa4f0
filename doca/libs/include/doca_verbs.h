/*
 * Queue pairs whose memory a program lays out on the DPA, and whose requests device code posts (doca_dpa_dev_verbs.h).
 *
 * This is the part of doca_verbs for a data path on the DPA: reliable connections, paths by GID, one element in a request. A
 * data path on the processor, completion queues, shared receive queues and other services are not in it.
 */
#ifndef DOCA_VERBS_H
#define DOCA_VERBS_H

#include <doca_error.h>
#include <doca_types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct doca_dev;
struct doca_devinfo;
struct doca_dpa;
struct doca_dpa_completion;
struct doca_uar;
struct doca_umem;
struct doca_verbs_context;
struct doca_verbs_pd;
struct doca_verbs_ah_attr;
struct doca_verbs_qp;
struct doca_verbs_qp_init_attr;
struct doca_verbs_qp_attr;

/* Handle for device code. */
typedef uint64_t doca_dpa_dev_verbs_qp_t;

#define DOCA_GID_BYTE_LENGTH 16

/* A global address, in the order of packets. */
struct doca_verbs_gid {
	uint8_t raw[DOCA_GID_BYTE_LENGTH];
};

enum doca_verbs_context_create_flags {
	DOCA_VERBS_CONTEXT_CREATE_FLAGS_NONE = 0,
};

/* All types are a GID. */
enum doca_verbs_addr_type {
	DOCA_VERBS_ADDR_TYPE_IPv4 = 0,
	DOCA_VERBS_ADDR_TYPE_IPv6 = 1,
	DOCA_VERBS_ADDR_TYPE_IB_GRH = 2,
};

enum doca_verbs_qp_type {
	DOCA_VERBS_QP_TYPE_RC = 0,
};

enum doca_verbs_qp_state {
	DOCA_VERBS_QP_STATE_INIT = 1,
	DOCA_VERBS_QP_STATE_RTR = 2,
	DOCA_VERBS_QP_STATE_RTS = 3,
	DOCA_VERBS_QP_STATE_ERR = 4,
};

/* Bytes of a packet. */
enum doca_mtu_size {
	DOCA_MTU_SIZE_256_BYTES = 0,
	DOCA_MTU_SIZE_512_BYTES = 1,
	DOCA_MTU_SIZE_1K_BYTES = 2,
	DOCA_MTU_SIZE_2K_BYTES = 3,
	DOCA_MTU_SIZE_4K_BYTES = 4,
};

/* Attributes of a change of state. */
enum doca_verbs_qp_attr_mask {
	DOCA_VERBS_QP_ATTR_NEXT_STATE = 1 << 0,
	DOCA_VERBS_QP_ATTR_ALLOW_REMOTE_WRITE = 1 << 1,
	DOCA_VERBS_QP_ATTR_ALLOW_REMOTE_READ = 1 << 2,
	/* The index is 0. */
	DOCA_VERBS_QP_ATTR_PKEY_INDEX = 1 << 3,
	DOCA_VERBS_QP_ATTR_PORT_NUM = 1 << 4,
	DOCA_VERBS_QP_ATTR_RQ_PSN = 1 << 5,
	DOCA_VERBS_QP_ATTR_DEST_QP_NUM = 1 << 6,
	DOCA_VERBS_QP_ATTR_MIN_RNR_TIMER = 1 << 7,
	DOCA_VERBS_QP_ATTR_PATH_MTU = 1 << 8,
	DOCA_VERBS_QP_ATTR_AH_ATTR = 1 << 9,
	DOCA_VERBS_QP_ATTR_SQ_PSN = 1 << 10,
	DOCA_VERBS_QP_ATTR_ACK_TIMEOUT = 1 << 11,
	DOCA_VERBS_QP_ATTR_RETRY_CNT = 1 << 12,
	DOCA_VERBS_QP_ATTR_RNR_RETRY = 1 << 13,
};

/* Devices. -------------------------------------------------------------------------------------------------------- */

doca_error_t doca_verbs_context_create(const struct doca_devinfo *devinfo,
				       uint32_t flags,
				       struct doca_verbs_context **context);
/* DOCA_ERROR_IN_USE while a protection domain or a path of it lives. */
doca_error_t doca_verbs_context_destroy(struct doca_verbs_context *context);
/* Opens the device. DOCA_ERROR_DRIVER if it has no DEVX. */
doca_error_t doca_verbs_pd_create(struct doca_verbs_context *context, struct doca_verbs_pd **pd);
/* DOCA_ERROR_IN_USE while a queue pair of it lives. */
doca_error_t doca_verbs_pd_destroy(struct doca_verbs_pd *pd);
/* The open device, for doca_dpa_create. doca_dev_close ends it. */
doca_error_t doca_verbs_pd_as_doca_dev(struct doca_verbs_pd *pd, struct doca_dev **dev);

/* Paths. ---------------------------------------------------------------------------------------------------------- */

doca_error_t doca_verbs_ah_attr_create(struct doca_verbs_context *context, struct doca_verbs_ah_attr **ah_attr);
doca_error_t doca_verbs_ah_attr_destroy(struct doca_verbs_ah_attr *ah_attr);
doca_error_t doca_verbs_ah_attr_set_addr_type(struct doca_verbs_ah_attr *ah_attr, enum doca_verbs_addr_type type);
/* The other node. On Ethernet its GID is link-local, which contains its MAC. */
doca_error_t doca_verbs_ah_attr_set_gid(struct doca_verbs_ah_attr *ah_attr, struct doca_verbs_gid gid);
/* Index of the own GID. Default: 0. */
doca_error_t doca_verbs_ah_attr_set_sgid_index(struct doca_verbs_ah_attr *ah_attr, uint8_t index);
/* Default: 64. */
doca_error_t doca_verbs_ah_attr_set_hop_limit(struct doca_verbs_ah_attr *ah_attr, uint8_t hops);

/* Attributes of a new queue pair. --------------------------------------------------------------------------------- */

doca_error_t doca_verbs_qp_init_attr_create(struct doca_verbs_qp_init_attr **attr);
doca_error_t doca_verbs_qp_init_attr_destroy(struct doca_verbs_qp_init_attr *attr);
/* Must be set to 1: device code posts. */
doca_error_t doca_verbs_qp_init_attr_set_external_datapath_en(struct doca_verbs_qp_init_attr *attr, uint8_t is_external);
/* The rings from `offset` bytes on, a multiple of 64: receive entries of 16 bytes, and then send blocks of 64. Both numbers are
 * rounded up to a power of two, that of send blocks to at least 4. */
doca_error_t doca_verbs_qp_init_attr_set_external_umem(struct doca_verbs_qp_init_attr *attr,
						       struct doca_umem *umem,
						       uint64_t offset);
/* The doorbell records, 8 bytes. */
doca_error_t doca_verbs_qp_init_attr_set_external_dbr_umem(struct doca_verbs_qp_init_attr *attr,
							   struct doca_umem *umem,
							   uint64_t offset);
doca_error_t doca_verbs_qp_init_attr_set_external_uar(struct doca_verbs_qp_init_attr *attr, struct doca_uar *uar);
/* The domain whose device the DPA context has. */
doca_error_t doca_verbs_qp_init_attr_set_pd(struct doca_verbs_qp_init_attr *attr, struct doca_verbs_pd *pd);
/* Requests of each queue, 1 to 32768. */
doca_error_t doca_verbs_qp_init_attr_set_sq_wr(struct doca_verbs_qp_init_attr *attr, uint32_t requests);
doca_error_t doca_verbs_qp_init_attr_set_rq_wr(struct doca_verbs_qp_init_attr *attr, uint32_t requests);
doca_error_t doca_verbs_qp_init_attr_set_qp_type(struct doca_verbs_qp_init_attr *attr, enum doca_verbs_qp_type type);
/* Both are the same queue, which is started. */
doca_error_t doca_verbs_qp_init_attr_set_send_dpa_completion(struct doca_verbs_qp_init_attr *attr,
							     struct doca_dpa_completion *completion);
doca_error_t doca_verbs_qp_init_attr_set_receive_dpa_completion(struct doca_verbs_qp_init_attr *attr,
								struct doca_dpa_completion *completion);
/* Elements of a request: 1. */
doca_error_t doca_verbs_qp_init_attr_set_send_max_sges(struct doca_verbs_qp_init_attr *attr, uint32_t elements);
doca_error_t doca_verbs_qp_init_attr_set_receive_max_sges(struct doca_verbs_qp_init_attr *attr, uint32_t elements);

/* Queue pairs. ---------------------------------------------------------------------------------------------------- */

/* DOCA_ERROR_BAD_CONFIG if an attribute is missing, DOCA_ERROR_INVALID_VALUE if the rings do not fit. */
doca_error_t doca_verbs_qp_create(struct doca_verbs_context *context,
				  struct doca_verbs_qp_init_attr *attr,
				  struct doca_verbs_qp **qp);
doca_error_t doca_verbs_qp_destroy(struct doca_verbs_qp *qp);
/* Its number, for the other node. */
uint32_t doca_verbs_qp_get_qpn(const struct doca_verbs_qp *qp);
doca_error_t doca_verbs_qp_get_dpa_handle(struct doca_verbs_qp *qp, struct doca_dpa *dpa, doca_dpa_dev_verbs_qp_t *handle);
/* Changes the state to INIT, RTR, RTS, in this order, or to ERR. `mask` names the attributes of the change:
 * INIT: port, remote rights; RTR: all of path, MTU, peer, receive PSN, RNR timer; RTS: all of send PSN, timeout, retries.
 * DOCA_ERROR_INVALID_VALUE for another mask, DOCA_ERROR_DRIVER for another order. */
doca_error_t doca_verbs_qp_modify(struct doca_verbs_qp *qp, struct doca_verbs_qp_attr *attr, uint32_t mask);

/* Attributes of a change. ----------------------------------------------------------------------------------------- */

doca_error_t doca_verbs_qp_attr_create(struct doca_verbs_qp_attr **attr);
doca_error_t doca_verbs_qp_attr_destroy(struct doca_verbs_qp_attr *attr);
doca_error_t doca_verbs_qp_attr_set_next_state(struct doca_verbs_qp_attr *attr, enum doca_verbs_qp_state state);
/* Rights of the other node: 0 or 1. */
doca_error_t doca_verbs_qp_attr_set_allow_remote_write(struct doca_verbs_qp_attr *attr, int is_allowed);
doca_error_t doca_verbs_qp_attr_set_allow_remote_read(struct doca_verbs_qp_attr *attr, int is_allowed);
/* From 1 on. */
doca_error_t doca_verbs_qp_attr_set_port_num(struct doca_verbs_qp_attr *attr, uint16_t port);
/* First numbers of packets, 24 bits. */
doca_error_t doca_verbs_qp_attr_set_rq_psn(struct doca_verbs_qp_attr *attr, uint32_t psn);
doca_error_t doca_verbs_qp_attr_set_sq_psn(struct doca_verbs_qp_attr *attr, uint32_t psn);
doca_error_t doca_verbs_qp_attr_set_dest_qp_num(struct doca_verbs_qp_attr *attr, uint32_t number);
/* Codes of InfiniBand, 0 to 31: the wait that a receiver that is not ready asks for, and the wait for an answer. */
doca_error_t doca_verbs_qp_attr_set_min_rnr_timer(struct doca_verbs_qp_attr *attr, uint16_t code);
doca_error_t doca_verbs_qp_attr_set_ack_timeout(struct doca_verbs_qp_attr *attr, uint16_t code);
/* Tries, 0 to 7: without an answer, and after the other node was not ready (7 for always). */
doca_error_t doca_verbs_qp_attr_set_retry_cnt(struct doca_verbs_qp_attr *attr, uint16_t tries);
doca_error_t doca_verbs_qp_attr_set_rnr_retry(struct doca_verbs_qp_attr *attr, uint16_t tries);
doca_error_t doca_verbs_qp_attr_set_path_mtu(struct doca_verbs_qp_attr *attr, enum doca_mtu_size mtu);
/* Copies the path. */
doca_error_t doca_verbs_qp_attr_set_ah_attr(struct doca_verbs_qp_attr *attr, struct doca_verbs_ah_attr *ah_attr);

#ifdef __cplusplus
}
#endif

#endif
