/*
 * Device API of DOCA DPA: work requests on queue pairs of doca_verbs.
 */
#ifndef DOCA_DPA_DEV_VERBS_H
#define DOCA_DPA_DEV_VERBS_H

#include <doca_dpa_dev.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef uint64_t doca_dpa_dev_verbs_qp_t;

struct doca_dpa_dev_verbs_sge {
	uint64_t addr;
	uint32_t length;
	uint32_t lkey;
};

enum doca_dpa_dev_verbs_send_wr_flags {
	DOCA_DPA_DEV_VERBS_SEND_WR_FLAGS_NONE = 0,
	/* The request has a completion. */
	DOCA_DPA_DEV_VERBS_SEND_WR_FLAGS_SIGNALED = 1 << 0,
	/* The completion at the receiver activates its thread. */
	DOCA_DPA_DEV_VERBS_SEND_WR_FLAGS_SOLICITED = 1 << 1,
};

enum doca_dpa_dev_verbs_send_wr_opcode {
	DOCA_DPA_DEV_VERBS_SEND_WR_OPCODE_WRITE = 0x08,
	DOCA_DPA_DEV_VERBS_SEND_WR_OPCODE_WRITE_IMM = 0x09,
	DOCA_DPA_DEV_VERBS_SEND_WR_OPCODE_SEND = 0x0a,
	DOCA_DPA_DEV_VERBS_SEND_WR_OPCODE_SEND_IMM = 0x0b,
	DOCA_DPA_DEV_VERBS_SEND_WR_OPCODE_READ = 0x10,
};

/* What a request waits for. */
enum doca_dpa_dev_verbs_send_wr_fm {
	DOCA_DPA_DEV_VERBS_SEND_WR_FM_NO_FENCE = 0,
	DOCA_DPA_DEV_VERBS_SEND_WR_FM_FENCE = 1,
};

/* A send request. Set all fields by the functions below; the device reads them when the request is posted. */
struct doca_dpa_dev_verbs_send_wr {
	uint64_t sg_list;
	uint32_t num_sge;
	uint32_t send_flags;
	uint64_t remote_addr;
	uint32_t rkey;
	uint16_t opcode;
	uint16_t fence_mode;
};

struct doca_dpa_dev_verbs_recv_wr {
	uint64_t sg_list;
	uint32_t num_sge;
	uint32_t reserved;
};

#ifndef __cplusplus
_Static_assert(sizeof(struct doca_dpa_dev_verbs_sge) == 16, "layout of an element");
_Static_assert(sizeof(struct doca_dpa_dev_verbs_send_wr) == 32, "layout of a send request");
_Static_assert(offsetof(struct doca_dpa_dev_verbs_send_wr, remote_addr) == 16, "layout of a send request");
_Static_assert(offsetof(struct doca_dpa_dev_verbs_send_wr, opcode) == 28, "layout of a send request");
_Static_assert(sizeof(struct doca_dpa_dev_verbs_recv_wr) == 16, "layout of a receive request");
#endif

DPA_INLINE void doca_dpa_dev_verbs_send_wr_set_sg_list(struct doca_dpa_dev_verbs_send_wr *wr,
						       struct doca_dpa_dev_verbs_sge *list)
{
	wr->sg_list = (uint64_t)list;
}

DPA_INLINE void doca_dpa_dev_verbs_send_wr_set_sg_num_sge(struct doca_dpa_dev_verbs_send_wr *wr, uint32_t count)
{
	wr->num_sge = count;
}

DPA_INLINE void doca_dpa_dev_verbs_send_wr_set_send_flags(struct doca_dpa_dev_verbs_send_wr *wr,
							  enum doca_dpa_dev_verbs_send_wr_flags flags)
{
	wr->send_flags = (uint32_t)flags;
}

DPA_INLINE void doca_dpa_dev_verbs_send_wr_set_rdma_rkey(struct doca_dpa_dev_verbs_send_wr *wr, uint32_t rkey)
{
	wr->rkey = rkey;
}

DPA_INLINE void doca_dpa_dev_verbs_send_wr_set_rdma_remote_addr(struct doca_dpa_dev_verbs_send_wr *wr, uint64_t addr)
{
	wr->remote_addr = addr;
}

DPA_INLINE void doca_dpa_dev_verbs_send_wr_set_opcode(struct doca_dpa_dev_verbs_send_wr *wr,
						      enum doca_dpa_dev_verbs_send_wr_opcode opcode)
{
	wr->opcode = (uint16_t)opcode;
}

DPA_INLINE void doca_dpa_dev_verbs_send_wr_set_fence_mode(struct doca_dpa_dev_verbs_send_wr *wr,
							  enum doca_dpa_dev_verbs_send_wr_fm mode)
{
	wr->fence_mode = (uint16_t)mode;
}

DPA_INLINE void doca_dpa_dev_verbs_recv_wr_set_sg_list(struct doca_dpa_dev_verbs_recv_wr *wr,
						       struct doca_dpa_dev_verbs_sge *list)
{
	wr->sg_list = (uint64_t)list;
}

DPA_INLINE void doca_dpa_dev_verbs_recv_wr_set_sg_num_sge(struct doca_dpa_dev_verbs_recv_wr *wr, uint32_t count)
{
	wr->num_sge = count;
}

/* Append a request to the queue, and let the device begin with all appended requests. */
void doca_dpa_dev_verbs_qp_post_send_wr(doca_dpa_dev_verbs_qp_t qp, struct doca_dpa_dev_verbs_send_wr *wr);
void doca_dpa_dev_verbs_qp_commit_send(doca_dpa_dev_verbs_qp_t qp);
void doca_dpa_dev_verbs_qp_post_recv_wr(doca_dpa_dev_verbs_qp_t qp, struct doca_dpa_dev_verbs_recv_wr *wr);
void doca_dpa_dev_verbs_qp_commit_recv(doca_dpa_dev_verbs_qp_t qp);

#ifdef __cplusplus
}
#endif

#endif
