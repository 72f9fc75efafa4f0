/*
 * Access to queues that the DPA owns: doorbells, send requests, completions.
 *
 * The functions of doorbells take the context of the thread as first argument, and return a status, if FLEXIO_DEV_VER_USED is
 * below FLEXIO_DEV_VER(24, 10, 0).
 */
#ifndef FLEXIO_DEV_QUEUE_ACCESS_H
#define FLEXIO_DEV_QUEUE_ACCESS_H

#include <libflexio-dev/flexio_dev.h>
#include <libflexio-dev/flexio_dev_endianity.h>
#include <libflexio-dev/flexio_dev_queue_types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Which requests have a completion. */
enum cq_ce_mode {
	MLX5_CTRL_SEG_CE_CQE_ON_CQE_ERROR = 0x0,
	MLX5_CTRL_SEG_CE_CQE_ON_FIRST_CQE_ERROR = 0x1,
	MLX5_CTRL_SEG_CE_CQE_ALWAYS = 0x2,
	MLX5_CTRL_SEG_CE_CQE_AND_EQE = 0x3,
};

/* Opcodes of requests. */
enum {
	MLX5_CTRL_SEG_OPCODE_NOP = 0x00,
	MLX5_CTRL_SEG_OPCODE_RDMA_WRITE = 0x08,
	MLX5_CTRL_SEG_OPCODE_RDMA_WRITE_WITH_IMMEDIATE = 0x09,
	MLX5_CTRL_SEG_OPCODE_SEND = 0x0a,
	MLX5_CTRL_SEG_OPCODE_SEND_WITH_IMMEDIATE = 0x0b,
	MLX5_CTRL_SEG_OPCODE_LSO = 0x0e,
	MLX5_CTRL_SEG_OPCODE_RDMA_READ = 0x10,
	MLX5_CTRL_SEG_OPCODE_ATOMIC_COMPARE_AND_SWAP = 0x11,
	MLX5_CTRL_SEG_OPCODE_ATOMIC_FETCH_AND_ADD = 0x12,
	MLX5_CTRL_SEG_OPCODE_LOCAL_MMO = 0x32,
};

/* Kinds of requests, by which the first segment knows opcode and number of segments. */
enum flexio_ctrl_seg {
	FLEXIO_CTRL_SEG_SEND_EN = 0,
	FLEXIO_CTRL_SEG_SEND_RC = 1,
	FLEXIO_CTRL_SEG_SEND_UC = 1,
	FLEXIO_CTRL_SEG_SEND_UD = 2,
	FLEXIO_CTRL_SEG_LDMA = 3,
	FLEXIO_CTRL_SEG_RDMA_WRITE = 4,
	FLEXIO_CTRL_SEG_RDMA_READ = 5,
	FLEXIO_CTRL_SEG_LSO = 6,
	FLEXIO_CTRL_SEG_NOP = 7,
	FLEXIO_CTRL_SEG_RDMA_WRITE_IMM = 8,
	FLEXIO_CTRL_SEG_TRANSPOSE = 9,
	FLEXIO_CTRL_SEG_ATOMIC_COMPARE_AND_SWAP = 11,
	FLEXIO_CTRL_SEG_ATOMIC_FETCH_AND_ADD = 12,
};

/* Doorbells. ------------------------------------------------------------------------------------------------------ */

DPA_INLINE void dpa_outbox_write(uint64_t offset, uint64_t value)
{
	*(volatile uint64_t *)(DPA_OUTBOX + offset) = value;
}

/* A value with a number of 24 bits, or fewer, in each half. */
#define DPA_OUTBOX_VALUE(low, high) ((uint64_t)(low) | (uint64_t)((high) & 0xffffff) << 32)

#if FLEXIO_DEV_VER_USED >= FLEXIO_DEV_VER(24, 10, 0)
#define FLEXIO_DEV_DOORBELL(NAME, ...) DPA_INLINE void NAME(__VA_ARGS__)
#define FLEXIO_DEV_DONE return
#else
#define FLEXIO_DEV_DOORBELL(NAME, ...)                                                                                 \
	DPA_INLINE flexio_dev_status_t NAME(struct flexio_dev_thread_ctx *dtctx __attribute__((unused)), __VA_ARGS__)
#define FLEXIO_DEV_DONE return FLEXIO_DEV_STATUS_SUCCESS
#endif

/* The device begins with the send requests below the producer index. */
FLEXIO_DEV_DOORBELL(flexio_dev_qp_sq_ring_db, uint16_t pi, uint32_t qnum)
{
	dpa_outbox_write(DPA_OUTBOX_SXD_DB, DPA_OUTBOX_VALUE(pi, qnum));
	FLEXIO_DEV_DONE;
}

/* The next completion above the consumer index activates the thread of the queue. */
FLEXIO_DEV_DOORBELL(flexio_dev_cq_arm, uint32_t ci, uint32_t qnum)
{
	dpa_outbox_write(DPA_OUTBOX_CQ_DB, DPA_OUTBOX_VALUE(qnum & 0xffffff, ci));
	FLEXIO_DEV_DONE;
}

/* The entries of an event queue below the consumer index are free. */
FLEXIO_DEV_DOORBELL(flexio_dev_eq_update_ci, uint32_t ci, uint32_t qnum)
{
	dpa_outbox_write(DPA_OUTBOX_EQ_DB_NO_REARM, DPA_OUTBOX_VALUE(qnum & 0xffffff, ci));
	FLEXIO_DEV_DONE;
}

/* The same, and the next event above the consumer index activates the thread of the event queue. */
FLEXIO_DEV_DOORBELL(flexio_dev_eq_rearm, uint32_t ci, uint32_t qnum)
{
	dpa_outbox_write(DPA_OUTBOX_EQ_DB_REARM, DPA_OUTBOX_VALUE(qnum & 0xffffff, ci));
	FLEXIO_DEV_DONE;
}

/* An empty completion on a queue, which activates what waits for it. */
FLEXIO_DEV_DOORBELL(flexio_dev_zcqe_gen, uint32_t cqn)
{
	dpa_outbox_write(DPA_OUTBOX_RXT_DB, cqn & 0xffffff);
	FLEXIO_DEV_DONE;
}

/* The same on a queue with an interrupt of the host. */
#define flexio_dev_msix_send flexio_dev_zcqe_gen

#undef FLEXIO_DEV_DOORBELL
#undef FLEXIO_DEV_DONE

/* Doorbell records. ------------------------------------------------------------------------------------------------ */

DPA_INLINE flexio_dev_status_t flexio_dev_dbr_sq_set_pi(uint32_t *sq_dbr, uint32_t pi)
{
	*sq_dbr = cpu_to_be32(pi & 0xffff);
	return FLEXIO_DEV_STATUS_SUCCESS;
}

DPA_INLINE flexio_dev_status_t flexio_dev_dbr_rq_inc_pi(uint32_t *rq_dbr)
{
	*rq_dbr = cpu_to_be32((be32_to_cpu(*rq_dbr) + 1) & 0xffff);
	return FLEXIO_DEV_STATUS_SUCCESS;
}

DPA_INLINE flexio_dev_status_t flexio_dev_dbr_cq_set_ci(uint32_t *cq_dbr, uint32_t ci)
{
	*cq_dbr = cpu_to_be32(ci & 0xffffff);
	return FLEXIO_DEV_STATUS_SUCCESS;
}

/* Send requests. --------------------------------------------------------------------------------------------------- */

/* The first segment of each request. Fails for a kind that is not known. */
DPA_INLINE flexio_dev_status_t flexio_dev_swqe_seg_ctrl_set(union flexio_dev_sqe_seg *swqe,
							    uint32_t sq_pi,
							    uint32_t sq_number,
							    uint32_t ce,
							    enum flexio_ctrl_seg kind)
{
	/* Opcode, modifier of the opcode, number of segments. */
	static const uint8_t kinds[][3] = {
		[FLEXIO_CTRL_SEG_SEND_EN] = {MLX5_CTRL_SEG_OPCODE_SEND, 0, 3},
		[FLEXIO_CTRL_SEG_SEND_RC] = {MLX5_CTRL_SEG_OPCODE_SEND, 0, 2},
		[FLEXIO_CTRL_SEG_SEND_UD] = {MLX5_CTRL_SEG_OPCODE_SEND, 0, 3},
		[FLEXIO_CTRL_SEG_LDMA] = {MLX5_CTRL_SEG_OPCODE_LOCAL_MMO, 1, 4},
		[FLEXIO_CTRL_SEG_RDMA_WRITE] = {MLX5_CTRL_SEG_OPCODE_RDMA_WRITE, 0, 3},
		[FLEXIO_CTRL_SEG_RDMA_READ] = {MLX5_CTRL_SEG_OPCODE_RDMA_READ, 0, 3},
		[FLEXIO_CTRL_SEG_LSO] = {MLX5_CTRL_SEG_OPCODE_LSO, 0, 4},
		[FLEXIO_CTRL_SEG_NOP] = {MLX5_CTRL_SEG_OPCODE_NOP, 0, 1},
		[FLEXIO_CTRL_SEG_RDMA_WRITE_IMM] = {MLX5_CTRL_SEG_OPCODE_RDMA_WRITE_WITH_IMMEDIATE, 0, 3},
		[FLEXIO_CTRL_SEG_TRANSPOSE] = {MLX5_CTRL_SEG_OPCODE_LOCAL_MMO, 0, 4},
		[FLEXIO_CTRL_SEG_ATOMIC_COMPARE_AND_SWAP] = {MLX5_CTRL_SEG_OPCODE_ATOMIC_COMPARE_AND_SWAP, 0, 4},
		[FLEXIO_CTRL_SEG_ATOMIC_FETCH_AND_ADD] = {MLX5_CTRL_SEG_OPCODE_ATOMIC_FETCH_AND_ADD, 0, 4},
	};

	if ((unsigned int)kind >= sizeof(kinds) / sizeof(kinds[0]) || kinds[kind][2] == 0)
		return FLEXIO_DEV_STATUS_FAILED;
	swqe->ctrl.idx_opcode =
		cpu_to_be32((uint32_t)kinds[kind][1] << 24 | (sq_pi & 0xffff) << 8 | (uint32_t)kinds[kind][0]);
	swqe->ctrl.qpn_ds = cpu_to_be32(sq_number << 8 | (uint32_t)kinds[kind][2]);
	swqe->ctrl.signature_fm_ce_se = cpu_to_be32(ce << 2);
	swqe->ctrl.general_id = 0;
	return FLEXIO_DEV_STATUS_SUCCESS;
}

/* Ethernet: flags of checksums, and headers in the request. */
DPA_INLINE flexio_dev_status_t flexio_dev_swqe_seg_eth_set(union flexio_dev_sqe_seg *swqe,
							   uint16_t cs_swp_flags,
							   uint16_t mss,
							   uint16_t inline_hdr_bsz,
							   uint8_t inline_hdrs[2])
{
	swqe->eth.rsvd0 = 0;
	swqe->eth.cs_swp_flags = cpu_to_be16(cs_swp_flags);
	swqe->eth.mss = cpu_to_be16(mss);
	swqe->eth.rsvd2 = 0;
	swqe->eth.inline_hdr_bsz = cpu_to_be16(inline_hdr_bsz);
	if (inline_hdrs) {
		swqe->eth.inline_hdrs[0] = inline_hdrs[0];
		swqe->eth.inline_hdrs[1] = inline_hdrs[1];
	}
	return FLEXIO_DEV_STATUS_SUCCESS;
}

/* Memory of the other side. */
DPA_INLINE flexio_dev_status_t flexio_dev_swqe_seg_rdma_set(union flexio_dev_sqe_seg *swqe, uint32_t rkey, uint64_t raddr)
{
	swqe->rdma.raddr = cpu_to_be64(raddr);
	swqe->rdma.rkey = cpu_to_be32(rkey);
	swqe->rdma.rsvd0 = 0;
	return FLEXIO_DEV_STATUS_SUCCESS;
}

/* Memory of this side. */
DPA_INLINE flexio_dev_status_t flexio_dev_swqe_seg_mem_ptr_data_set(union flexio_dev_sqe_seg *swqe,
								    uint32_t data_sz,
								    uint32_t lkey,
								    uint64_t data_addr)
{
	swqe->mem_ptr_send_data.byte_count = cpu_to_be32(data_sz);
	swqe->mem_ptr_send_data.lkey = cpu_to_be32(lkey);
	swqe->mem_ptr_send_data.addr = cpu_to_be64(data_addr);
	return FLEXIO_DEV_STATUS_SUCCESS;
}

/* Up to 12 bytes in the request. `data` has 12. */
DPA_INLINE flexio_dev_status_t flexio_dev_swqe_seg_inline_data_set(union flexio_dev_sqe_seg *swqe,
								   uint32_t data_sz,
								   uint32_t *data)
{
	swqe->inline_send_data.byte_count = cpu_to_be32(0x80000000 | data_sz);
	for (int at = 0; at < 3; at++)
		swqe->inline_send_data.data_and_padding[at] = data[at];
	return FLEXIO_DEV_STATUS_SUCCESS;
}

/* The operands of an atomic operation. */
DPA_INLINE flexio_dev_status_t flexio_dev_swqe_seg_atomic_set(union flexio_dev_sqe_seg *swqe,
							      uint64_t swap_or_add_data,
							      uint64_t compare_data)
{
	swqe->atomic.swap_or_add_data = cpu_to_be64(swap_or_add_data);
	swqe->atomic.compare_data = cpu_to_be64(compare_data);
	return FLEXIO_DEV_STATUS_SUCCESS;
}

/* The matrix of a transposition. */
DPA_INLINE flexio_dev_status_t flexio_dev_swqe_seg_transpose_set(union flexio_dev_sqe_seg *swqe,
								 uint8_t element_size,
								 uint8_t num_of_cols,
								 uint8_t num_of_rows)
{
	swqe->transpose.element_size = element_size;
	swqe->transpose.num_of_cols = num_of_cols;
	swqe->transpose.num_of_rows = num_of_rows;
	return FLEXIO_DEV_STATUS_SUCCESS;
}

/* The address of a datagram. */
DPA_INLINE void flexio_dev_swqe_seg_av1_set(union flexio_dev_sqe_seg *swqe,
					    uint32_t qkey,
					    uint32_t dqp,
					    uint8_t ext,
					    uint8_t stat_rate_sl,
					    uint8_t fl_mlid,
					    uint16_t rlid)
{
	swqe->adres_vector.s1.key.qkey.qkey = cpu_to_be32(qkey);
	swqe->adres_vector.s1.key.qkey.reserved = 0;
	swqe->adres_vector.s1.ext_dqp_dct = cpu_to_be32((uint32_t)ext << 31 | dqp);
	swqe->adres_vector.s1.stat_rate_sl = stat_rate_sl;
	swqe->adres_vector.s1.fl_mlid = fl_mlid;
	swqe->adres_vector.s1.rlid = cpu_to_be16(rlid);
}

/* Completions, events and receive requests. ------------------------------------------------------------------------ */

DPA_INLINE uint8_t flexio_dev_cqe_get_owner(struct flexio_dev_cqe64 *cqe)
{
	return cqe->op_own & 1;
}

DPA_INLINE uint8_t flexio_dev_cqe_get_opcode(struct flexio_dev_cqe64 *cqe)
{
	return cqe->op_own >> 4;
}

DPA_INLINE uint32_t flexio_dev_cqe_get_qpn(struct flexio_dev_cqe64 *cqe)
{
	return be32_to_cpu(cqe->qpn) & 0xffffff;
}

DPA_INLINE uint16_t flexio_dev_cqe_get_wqe_counter(struct flexio_dev_cqe64 *cqe)
{
	return be16_to_cpu(cqe->wqe_counter);
}

DPA_INLINE uint32_t flexio_dev_cqe_get_byte_cnt(struct flexio_dev_cqe64 *cqe)
{
	return be32_to_cpu(cqe->byte_cnt);
}

DPA_INLINE uint16_t flexio_dev_cqe_get_csum_ok(struct flexio_dev_cqe64 *cqe)
{
	return be16_to_cpu(cqe->csum_ok);
}

DPA_INLINE uint32_t flexio_dev_cqe_get_user_index(struct flexio_dev_cqe64 *cqe)
{
	return be32_to_cpu(cqe->srqn_uidx) & 0xffffff;
}

DPA_INLINE uint32_t flexio_dev_cqe_get_err_synd(struct flexio_dev_cqe64 *cqe)
{
	return cqe->syndrome;
}

DPA_INLINE uint8_t flexio_dev_eqe_get_owner(struct flexio_dev_eqe *eqe)
{
	return eqe->owner & 1;
}

DPA_INLINE uint32_t flexio_dev_eqe_get_cqn(struct flexio_dev_eqe *eqe)
{
	return be32_to_cpu(eqe->event_data.cqn) & 0xffffff;
}

DPA_INLINE void *flexio_dev_rwqe_get_addr(struct flexio_dev_wqe_rcv_data_seg *rwqe)
{
	return (void *)be64_to_cpu(rwqe->addr);
}

#ifdef __cplusplus
}
#endif

#endif
