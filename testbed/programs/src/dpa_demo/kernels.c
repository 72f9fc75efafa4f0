/*
 * Device side of `cargo xtask demo dpa`: RDMA reads on aliases of the hosts' keys, launches, and a ping-pong.
 *
 * device.rs writes the structures, word by word.
 */
#include <doca_dpa_dev.h>
#include <libflexio-dev/flexio_dev.h>
#include <libflexio-dev/flexio_dev_queue_access.h>

/* Opcodes of completions (PRM, "Completion Queue Entry"). */
enum { RESPONDER_WRITE_IMM = 1, REQUESTER_ERROR = 13, RESPONDER_ERROR = 14 };

/* Most blocks of a queue in a job. */
enum { BLOCKS_MAX = 64 };

/* A block that moves from the memory of one host to that of another one. Both keys are aliases. */
struct block {
	uint64_t to;
	uint64_t from;
	uint32_t to_key;
	uint32_t from_key;
	uint64_t bytes;
};

/* The blocks of each queue. */
struct job {
	uint64_t counts[2];
	struct block blocks[2][BLOCKS_MAX];
};

/* A queue pair with its completion queue, in memory of the DPA. */
struct queue {
	uint64_t outbox;
	uint64_t window;
	uint64_t number;
	uint64_t completions_number;
	union flexio_dev_sqe_seg *sends;
	uint64_t blocks;
	/* Counter of receives, counter of sends. */
	uint32_t *records;
	struct flexio_dev_cqe64 *completions;
	uint64_t entries;
	uint32_t *completions_record;
	uint64_t sent;
	uint64_t taken;
	/* Where the Arm cores see the number of finished jobs: key and address. */
	uint64_t flag_key;
	uint64_t flag;
	/* Of the ping-pong: the own word, that of the other side, and the messages that are left. */
	uint64_t own;
	uint64_t own_key;
	uint64_t other;
	uint64_t other_key;
	uint64_t left;
};

static void begin(struct queue *queue)
{
	struct flexio_dev_thread_ctx *thread;

	flexio_dev_get_thread_ctx(&thread);
	flexio_dev_outbox_config(thread, (uint16_t)queue->outbox);
}

/* Shows a number to the Arm cores. */
static void show(struct queue *queue, uint64_t number)
{
	flexio_uintptr_t flag;

	flexio_dev_window_config(FLEXIO_DEV_WINDOW_ENTITY_0, (uint16_t)queue->window, (uint32_t)queue->flag_key);
	flexio_dev_window_ptr_acquire(FLEXIO_DEV_WINDOW_ENTITY_0, queue->flag, &flag);
	*(volatile uint64_t *)flag = number;
	__dpa_thread_window_writeback();
}

/* The next completion, or NULL. */
static struct flexio_dev_cqe64 *next(struct queue *queue)
{
	struct flexio_dev_cqe64 *completion = &queue->completions[queue->taken & (queue->entries - 1)];

	if (flexio_dev_cqe_get_owner(completion) != ((queue->taken / queue->entries) & 1) ||
	    flexio_dev_cqe_get_opcode(completion) == 0xf)
		return 0;
	queue->taken++;
	return completion;
}

/* Gives the taken entries back. The next completion activates the thread again. */
static void arm(struct queue *queue)
{
	flexio_dev_dbr_cq_set_ci(queue->completions_record, (uint32_t)queue->taken);
	__dpa_thread_memory_writeback();
	flexio_dev_cq_arm((uint32_t)queue->taken, (uint32_t)queue->completions_number);
}

static void ring(struct queue *queue)
{
	flexio_dev_dbr_sq_set_pi(queue->records + 1, (uint32_t)queue->sent);
	__dpa_thread_memory_writeback();
	flexio_dev_qp_sq_ring_db((uint16_t)queue->sent, (uint32_t)queue->number);
}

static union flexio_dev_sqe_seg *request(struct queue *queue, uint32_t reported, enum flexio_ctrl_seg kind)
{
	union flexio_dev_sqe_seg *at = &queue->sends[(queue->sent & (queue->blocks - 1)) << LOG_SQE_NUM_SEGS];

	flexio_dev_swqe_seg_ctrl_set(at, (uint32_t)queue->sent, (uint32_t)queue->number, reported, kind);
	queue->sent++;
	return at;
}

/* Posts the reads of a job: thread N those of queue N. The last one has a completion. */
__dpa_global__ void post_reads(uint64_t queues, uint64_t place)
{
	unsigned int rank = doca_dpa_dev_thread_rank();
	struct queue *queue = (struct queue *)queues + rank;
	struct job *job = (struct job *)place;
	uint64_t count = job->counts[rank];

	begin(queue);
	for (uint64_t at = 0; at < count; at++) {
		const struct block *block = &job->blocks[rank][at];
		union flexio_dev_sqe_seg *segments =
			request(queue,
				at + 1 == count ? MLX5_CTRL_SEG_CE_CQE_ALWAYS : MLX5_CTRL_SEG_CE_CQE_ON_CQE_ERROR,
				FLEXIO_CTRL_SEG_RDMA_READ);

		flexio_dev_swqe_seg_rdma_set(segments + 1, block->from_key, block->from);
		flexio_dev_swqe_seg_mem_ptr_data_set(segments + 2, (uint32_t)block->bytes, block->to_key, block->to);
	}
	ring(queue);
}

/* Counts finished jobs for the Arm cores. After an error the number has its highest bit. */
__dpa_global__ void on_done(uint64_t place)
{
	struct queue *queue = (struct queue *)place;
	struct flexio_dev_cqe64 *completion;
	uint64_t failed = 0;

	begin(queue);
	while ((completion = next(queue)))
		if (flexio_dev_cqe_get_opcode(completion) == REQUESTER_ERROR)
			failed = 1ULL << 63 | (uint64_t)flexio_dev_cqe_get_err_synd(completion) << 32;
	arm(queue);
	show(queue, failed | queue->taken);
	flexio_dev_thread_reschedule();
}

/* Counts its threads. */
__dpa_global__ void empty(uint64_t place)
{
	__atomic_fetch_add((uint64_t *)place, 1, __ATOMIC_RELAXED);
}

/* Sends the own word to the other side. */
static void serve(struct queue *queue)
{
	union flexio_dev_sqe_seg *segments = request(queue, MLX5_CTRL_SEG_CE_CQE_ON_CQE_ERROR, FLEXIO_CTRL_SEG_RDMA_WRITE_IMM);

	flexio_dev_swqe_seg_rdma_set(segments + 1, (uint32_t)queue->other_key, queue->other);
	flexio_dev_swqe_seg_mem_ptr_data_set(segments + 2, 8, (uint32_t)queue->own_key, queue->own);
	ring(queue);
}

/* Begins `rounds` rounds. */
__dpa_rpc__ uint64_t begin_rounds(uint64_t place, uint64_t rounds)
{
	struct queue *queue = (struct queue *)place;

	queue->left = rounds;
	begin(queue);
	serve(queue);
	return 0;
}

/* Answers each message with the received word, increased by 1. The side that has begun counts the rounds. */
__dpa_global__ void on_message(uint64_t place)
{
	struct queue *queue = (struct queue *)place;
	struct flexio_dev_cqe64 *completion;
	uint64_t failed = 0;

	begin(queue);
	while ((completion = next(queue))) {
		if (flexio_dev_cqe_get_opcode(completion) != RESPONDER_WRITE_IMM) {
			failed = 1ULL << 63 | (uint64_t)flexio_dev_cqe_get_err_synd(completion) << 32;
			break;
		}
		flexio_dev_dbr_rq_inc_pi(queue->records);
		++*(uint64_t *)queue->own;
		if (queue->left == 0 || --queue->left > 0)
			serve(queue);
		else
			show(queue, *(uint64_t *)queue->own);
	}
	arm(queue);
	if (failed)
		show(queue, failed);
	flexio_dev_thread_reschedule();
}
