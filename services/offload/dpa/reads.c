/*
 * Device side of `xgvmi-sp --dpa`: posts the RDMA reads that a service process writes into memory of the DPA.
 *
 *     dpacc reads.c -o reads.a -app-name=xgvmi_sp -keep-dir=built
 *     xgvmi-sp --dpa built/xgvmi_sp.elf ...
 *
 * service/dpa/device.rs writes `struct queue` word by word, and service/dpa/ring.rs each `struct block`.
 */
#include <doca_dpa_dev.h>
#include <libflexio-dev/flexio_dev.h>
#include <libflexio-dev/flexio_dev_queue_access.h>

/* Opcodes of completions (PRM, "Completion Queue Entry"). */
enum { REQUESTER = 0, RESPONDER_WRITE_IMM = 1, REQUESTER_ERROR = 13, RESPONDER_ERROR = 14, INVALID = 15 };

/* A notice with this bit reports a failed request; the syndrome of its completion is in the lowest byte. */
enum { FAILED = 1 << 30 };

/* A read. Both keys are aliases; the target of dynamic connections is that of the service that owns `from_key`. */
struct block {
	uint64_t to;
	uint64_t from;
	uint64_t target_key;
	uint32_t to_key;
	uint32_t from_key;
	uint32_t bytes;
	uint32_t target;
	uint32_t target_lid;
	uint32_t rsvd;
};

/* A send queue. */
struct sends {
	uint64_t number;
	union flexio_dev_sqe_seg *ring;
	/* Counter of receives, counter of sends. */
	uint32_t *records;
	uint64_t posted;
	uint64_t done;
};

/* Queues with one size, a power of two, in memory of the DPA. Counters never wrap. */
struct queue {
	uint64_t outbox;
	uint64_t completions_number;
	struct flexio_dev_cqe64 *completions;
	uint32_t *completions_record;
	uint64_t completions_mask;
	uint64_t taken;
	const struct block *blocks;
	uint64_t mask;
	/* Reads that the service has written. */
	uint64_t given;
	/* Reads that the service knows to be done. */
	uint64_t told;
	uint64_t failed;
	/* Initiator of the reads. */
	struct sends reads;
	/* Connection to the service. */
	struct sends notices;
};

/* The next completion, or NULL. */
static struct flexio_dev_cqe64 *next(struct queue *queue)
{
	struct flexio_dev_cqe64 *completion = &queue->completions[queue->taken & queue->completions_mask];
	uint64_t pass = queue->taken / (queue->completions_mask + 1);

	if (flexio_dev_cqe_get_owner(completion) != (pass & 1) || flexio_dev_cqe_get_opcode(completion) == INVALID)
		return 0;
	queue->taken++;
	return completion;
}

/* Begins a request of a block of 64 bytes that has a completion. */
static union flexio_dev_sqe_seg *begin(struct queue *queue, struct sends *sends, enum flexio_ctrl_seg kind, uint32_t segments)
{
	union flexio_dev_sqe_seg *at = &sends->ring[(sends->posted & queue->mask) << LOG_SQE_NUM_SEGS];

	flexio_dev_swqe_seg_ctrl_set(at, (uint32_t)sends->posted, (uint32_t)sends->number, MLX5_CTRL_SEG_CE_CQE_ALWAYS, kind);
	at->ctrl.qpn_ds = cpu_to_be32((uint32_t)sends->number << 8 | segments);
	sends->posted++;
	return at;
}

static void ring(struct sends *sends)
{
	flexio_dev_dbr_sq_set_pi(sends->records + 1, (uint32_t)sends->posted);
	__dpa_thread_memory_writeback();
	flexio_dev_qp_sq_ring_db((uint16_t)sends->posted, (uint32_t)sends->number);
}

/* Requests of a queue complete in their order. */
static void completed(struct sends *sends, const struct flexio_dev_cqe64 *completion)
{
	uint16_t counter = flexio_dev_cqe_get_wqe_counter((struct flexio_dev_cqe64 *)completion);

	sends->done += (uint16_t)(counter + 1 - sends->done);
}

static void post(struct queue *queue, const struct block *block)
{
	union flexio_dev_sqe_seg *at = begin(queue, &queue->reads, FLEXIO_CTRL_SEG_RDMA_READ, 4);

	flexio_dev_swqe_seg_av1_set(at + 1, 0, block->target, 0, 0, 0, (uint16_t)block->target_lid);
	at[1].adres_vector.s1.key.dc_key = cpu_to_be64(block->target_key);
	flexio_dev_swqe_seg_rdma_set(at + 2, block->from_key, block->from);
	flexio_dev_swqe_seg_mem_ptr_data_set(at + 3, block->bytes, block->to_key, block->to);
}

/* Tells the service how many reads are done, or what has failed. A full queue tells later. */
static void tell(struct queue *queue)
{
	union flexio_dev_sqe_seg *at;

	if (queue->told == queue->reads.done && !queue->failed)
		return;
	if (queue->notices.posted - queue->notices.done > queue->mask)
		return;
	at = begin(queue, &queue->notices, FLEXIO_CTRL_SEG_RDMA_WRITE_IMM, 2);
	at->ctrl.general_id = cpu_to_be32((uint32_t)(queue->failed ? queue->failed : queue->reads.done & (FAILED - 1)));
	flexio_dev_swqe_seg_rdma_set(at + 1, 0, 0);
	queue->told = queue->reads.done;
	ring(&queue->notices);
}

/* Runs after each completion: of a message of the service, whose immediate value counts new blocks, and of a read. */
__dpa_global__ void on_completion(uint64_t place)
{
	struct queue *queue = (struct queue *)place;
	struct flexio_dev_thread_ctx *thread;
	struct flexio_dev_cqe64 *completion;
	uint64_t posted = queue->reads.posted;

	flexio_dev_get_thread_ctx(&thread);
	flexio_dev_outbox_config(thread, (uint16_t)queue->outbox);
	while ((completion = next(queue))) {
		switch (flexio_dev_cqe_get_opcode(completion)) {
		case RESPONDER_WRITE_IMM:
			queue->given += be32_to_cpu(completion->imm_inval_pkey);
			flexio_dev_dbr_rq_inc_pi(queue->notices.records);
			break;
		case REQUESTER:
			completed(flexio_dev_cqe_get_qpn(completion) == queue->reads.number ? &queue->reads : &queue->notices,
				  completion);
			break;
		default:
			if (!queue->failed)
				queue->failed = FAILED | flexio_dev_cqe_get_err_synd(completion);
		}
	}
	while (queue->reads.posted != queue->given && queue->reads.posted - queue->reads.done <= queue->mask && !queue->failed)
		post(queue, &queue->blocks[queue->reads.posted & queue->mask]);
	if (queue->reads.posted != posted)
		ring(&queue->reads);
	tell(queue);
	flexio_dev_dbr_cq_set_ci(queue->completions_record, (uint32_t)queue->taken);
	__dpa_thread_memory_writeback();
	flexio_dev_cq_arm((uint32_t)queue->taken, (uint32_t)queue->completions_number);
	flexio_dev_thread_reschedule();
}
