/* Functions of the DPA for tests of libflexio. */
#include <libflexio-dev/flexio_dev.h>
#include <libflexio-dev/flexio_dev_queue_access.h>

/* The number of the call that orders accesses and is left out, for tests of missing ones. */
#ifndef WITHOUT
#define WITHOUT 0
#endif
#define ORDER(NUMBER, CALL)                                                                                            \
	do {                                                                                                           \
		if (WITHOUT != (NUMBER))                                                                               \
			CALL;                                                                                          \
	} while (0)

#define UNPACK(N, ...)                                                                                                 \
	uint64_t unpack_##N(uint64_t *a, uint64_t (*function)())                                                       \
	{                                                                                                              \
		(void)a;                                                                                               \
		return function(__VA_ARGS__);                                                                          \
	}

UNPACK(0)
UNPACK(1, a[0])
UNPACK(2, a[0], a[1])
UNPACK(3, a[0], a[1], a[2])
UNPACK(4, a[0], a[1], a[2], a[3])

unsigned int doca_dpa_dev_thread_rank(void);
unsigned int doca_dpa_dev_num_threads(void);

static uint64_t counter = 5;

/* Remote calls. */
uint64_t sum(const uint64_t *words, uint64_t count)
{
	uint64_t sum = 0;
	for (uint64_t at = 0; at < count; at++)
		sum += words[at];
	return sum;
}

uint64_t count(void)
{
	return ++counter;
}

uint64_t divide(uint64_t a, uint64_t b)
{
	return a / b;
}

uint64_t loop(void)
{
	for (;;)
		__asm__ volatile("");
}

uint64_t store(uint64_t address)
{
	*(volatile uint64_t *)address = 1;
	return 0;
}

uint64_t jump(uint64_t address)
{
	((void (*)(void))address)();
	return 0;
}

__attribute__((noinline)) uint64_t deep(uint64_t depth)
{
	volatile uint64_t place[64];
	place[depth % 64] = depth;
	return depth == 0 ? 0 : deep(depth - 1) + place[depth % 64];
}

uint64_t talk(uint64_t number)
{
	flexio_dev_msg_info(3, "number %lu, %s", number, "text");
	return 0;
}

/* Launches: each thread adds its rank to the word of its rank. */
uint64_t ranks(uint64_t *table)
{
	unsigned int rank = doca_dpa_dev_thread_rank();
	table[rank] += 1000 * doca_dpa_dev_num_threads() + rank;
	return 0;
}

/* Adds a number to a word, by a window or not. */
uint64_t add(uint64_t *word, uint64_t number)
{
	__atomic_fetch_add(word, number, __ATOMIC_SEQ_CST);
	return *word;
}

/* Copies words of the host that a key gives access to, doubled. */
uint64_t doubled(uint64_t window, uint64_t key, uint64_t address, uint64_t count)
{
	struct flexio_dev_thread_ctx *dtctx;
	flexio_uintptr_t words;
	flexio_dev_get_thread_ctx(&dtctx);
	if (flexio_dev_window_config(FLEXIO_DEV_WINDOW_ENTITY_0, window, key) != FLEXIO_DEV_STATUS_SUCCESS)
		return 1;
	if (flexio_dev_window_ptr_acquire(FLEXIO_DEV_WINDOW_ENTITY_0, address, &words) != FLEXIO_DEV_STATUS_SUCCESS)
		return 2;
	for (uint64_t at = 0; at < count; at++)
		((volatile uint64_t *)words)[at] *= 2;
	ORDER(4, __dpa_thread_window_writeback());
	return 0;
}

/* A word of the host, which may have changed it. */
uint64_t word_of(uint64_t window, uint64_t key, uint64_t address)
{
	struct flexio_dev_thread_ctx *dtctx;
	flexio_uintptr_t word;
	flexio_dev_get_thread_ctx(&dtctx);
	flexio_dev_window_config(FLEXIO_DEV_WINDOW_ENTITY_0, window, key);
	flexio_dev_window_ptr_acquire(FLEXIO_DEV_WINDOW_ENTITY_0, address, &word);
	ORDER(5, __dpa_thread_window_read_inv());
	return *(volatile uint64_t *)word;
}

/* Reads a word of the host again and again. */
uint64_t watch(uint64_t window, uint64_t key, uint64_t address, volatile uint64_t *rounds)
{
	struct flexio_dev_thread_ctx *dtctx;
	flexio_uintptr_t word;
	flexio_dev_get_thread_ctx(&dtctx);
	flexio_dev_window_config(FLEXIO_DEV_WINDOW_ENTITY_0, window, key);
	flexio_dev_window_ptr_acquire(FLEXIO_DEV_WINDOW_ENTITY_0, address, &word);
	for (;;) {
		__dpa_thread_window_read_inv();
		if (*(volatile uint64_t *)word == 1)
			return *rounds;
		++*rounds;
	}
}

/* An atomic operation, aligned or not. */
uint64_t bump(uint64_t address)
{
	uint64_t old;
	__asm__ volatile("amoadd.d %0, %1, (%2)" : "=r"(old) : "r"(1), "r"(address) : "memory");
	return old;
}

/* What a handler of events needs. The host writes it. */
struct handler {
	uint64_t outbox;
	uint64_t cqn;
	uint64_t entries;
	struct flexio_dev_cqe64 *ring;
	uint32_t *record;
	uint64_t index;
	uint64_t activations;
	uint64_t seen;
	uint64_t qpn;
};

/* Takes the completions of a queue and arms it again. */
static void take(struct handler *own)
{
	own->activations++;
	for (;;) {
		volatile struct flexio_dev_cqe64 *cqe = &own->ring[own->index & (own->entries - 1)];
		uint8_t op_own = ((volatile uint8_t *)cqe)[63];
		if ((op_own & 1) != ((own->index / own->entries) & 1) || op_own >> 4 == 0xf)
			break;
		ORDER(2, __dpa_thread_fence(__DPA_MEMORY, __DPA_R, __DPA_R));
		own->qpn = be32_to_cpu(cqe->qpn) & 0xffffff;
		own->index++;
		own->seen++;
		flexio_dev_dbr_cq_set_ci(own->record, own->index);
	}
	ORDER(3, __dpa_thread_memory_writeback());
	flexio_dev_cq_arm(own->index, own->cqn);
}

void on_completion(uint64_t argument)
{
	struct handler *own = (struct handler *)argument;
	struct flexio_dev_thread_ctx *dtctx;
	flexio_dev_get_thread_ctx(&dtctx);
	flexio_dev_outbox_config(dtctx, own->outbox);
	take(own);
	flexio_dev_thread_reschedule();
}

/* What a handler of an event queue needs. */
struct events {
	uint64_t outbox;
	uint64_t eqn;
	uint64_t entries;
	struct flexio_dev_eqe *ring;
	uint64_t index;
	uint64_t events;
	uint64_t wrong;
	uint64_t reserved;
	struct handler queue;
};

/* Takes the events of a queue, and the completions of the queue that each names. */
void on_queue(uint64_t argument)
{
	struct events *own = (struct events *)argument;
	struct flexio_dev_thread_ctx *dtctx;
	flexio_dev_get_thread_ctx(&dtctx);
	flexio_dev_outbox_config(dtctx, own->outbox);
	for (;;) {
		volatile struct flexio_dev_eqe *eqe = &own->ring[own->index & (own->entries - 1)];
		if ((eqe->owner & 1) != ((own->index / own->entries) & 1))
			break;
		own->index++;
		own->events++;
		if (be32_to_cpu(eqe->event_data.cqn) != own->queue.cqn || eqe->type != 0)
			own->wrong++;
		take(&own->queue);
	}
	flexio_dev_eq_rearm(own->index, own->eqn);
	flexio_dev_thread_reschedule();
}

void doca_dpa_dev_yield(void);

/* Tasks of a command queue. Two that meet need two threads. */
uint64_t task(uint64_t word)
{
	return __atomic_add_fetch((uint64_t *)word, 1, __ATOMIC_SEQ_CST);
}

uint64_t meet(uint64_t word)
{
	__atomic_add_fetch((uint64_t *)word, 1, __ATOMIC_SEQ_CST);
	while (__atomic_load_n((uint64_t *)word, __ATOMIC_SEQ_CST) < 2)
		doca_dpa_dev_yield();
	return 0;
}

/* Counts its activations. */
void on_event(uint64_t argument)
{
	++*(uint64_t *)argument;
	flexio_dev_thread_reschedule();
}

/* Arms a queue for the first time. */
uint64_t arm(struct handler *own)
{
	struct flexio_dev_thread_ctx *dtctx;
	flexio_dev_get_thread_ctx(&dtctx);
	if (flexio_dev_outbox_config(dtctx, own->outbox) != FLEXIO_DEV_STATUS_SUCCESS)
		return 1;
	flexio_dev_cq_arm(0, own->cqn);
	return 0;
}

/* Posts an RDMA write of 8 bytes on a queue pair of the DPA. */
struct post {
	uint64_t outbox;
	uint64_t qpn;
	uint8_t *ring;
	uint32_t *record;
	uint64_t index;
	uint64_t local;
	uint64_t lkey;
	uint64_t remote;
	uint64_t rkey;
	uint64_t bytes;
};

static void be32(uint8_t *to, uint32_t value)
{
	to[0] = value >> 24;
	to[1] = value >> 16;
	to[2] = value >> 8;
	to[3] = value;
}

static void be64(uint8_t *to, uint64_t value)
{
	be32(to, value >> 32);
	be32(to + 4, value);
}

uint64_t post_write(struct post *own, uint64_t blocks)
{
	struct flexio_dev_thread_ctx *dtctx;
	flexio_dev_get_thread_ctx(&dtctx);
	if (flexio_dev_outbox_config(dtctx, own->outbox) != FLEXIO_DEV_STATUS_SUCCESS)
		return 1;
	uint8_t *wqe = own->ring + 64 * (own->index % blocks);
	be32(wqe, (uint32_t)(own->index & 0xffff) << 8 | 0x08);
	be32(wqe + 4, (uint32_t)own->qpn << 8 | 3);
	be32(wqe + 8, 2 << 2);
	be32(wqe + 12, 0);
	be64(wqe + 16, own->remote);
	be32(wqe + 24, own->rkey);
	be32(wqe + 28, 0);
	be32(wqe + 32, own->bytes);
	be32(wqe + 36, own->lkey);
	be64(wqe + 40, own->local);
	own->index++;
	flexio_dev_dbr_sq_set_pi(own->record + 1, own->index);
	ORDER(1, __dpa_thread_memory_writeback());
	flexio_dev_qp_sq_ring_db(own->index, own->qpn);
	return 0;
}
