/* One side of a connection with continuous traffic, for tests that kill processes during it.
 *
 * tests/system/crash.rs drives it: each command is one line on standard input and gets one line on standard output,
 * "ok key=value ..." or "error what: why". The traffic runs in a separate thread: messages that the receiver counts,
 * writes, reads and atomics of all sizes, and objects that are created and destroyed meanwhile. It ends with the first
 * completion in error; "wait" answers its status. The completion queue and the shared receive queue exist as long as
 * the process: a dead peer must not leave them inconsistent.
 */
#define _GNU_SOURCE
#include "agent.h"
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>

enum {
	SENDS = 8,            /* outstanding requests */
	RECEIVES = 32,        /* entries of the shared receive queue, each with memory for a message */
	MESSAGE = 64,
	LARGE = 600 * 1024,   /* more than the device moves in one step */
	REMOTE = 1 << 20,     /* memory that the other side may use */
	SILENCE_MS = 10000,   /* without any completion: a hang */
};

struct message {
	uint64_t number;
	uint64_t check;
	uint8_t rest[MESSAGE - 16];
};

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_srq *srq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static uint8_t *memory; /* memory for the peer, then receives, sends, large sends */
static uint8_t *receives, *sends, *large;
static struct ibv_port_attr port;
static uint64_t remote_addr;
static uint32_t remote_rkey;
static uint64_t seed;
static int by_event; /* sleep until a completion event */
static int light;    /* small messages only: little data relative to the journal */

static pthread_t thread;
static int running;
static char verdict[256];

/* xorshift64* */
static uint64_t any(void)
{
	seed ^= seed >> 12;
	seed ^= seed << 25;
	seed ^= seed >> 27;
	return seed * 0x2545f4914f6cdd1dull;
}

static uint64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static int post_receive(uint64_t index)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)(receives + index * MESSAGE), .length = MESSAGE, .lkey = mr->lkey,
	};
	struct ibv_recv_wr wr = { .wr_id = index, .sg_list = &sge, .num_sge = 1 }, *bad;

	return ibv_post_srq_recv(srq, &wr, &bad);
}

static int make_qp(void)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 2 * SENDS, .max_send_sge = 1 },
	};
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC,
	};

	qp = ibv_create_qp(pd, &init);
	if (!qp)
		return -1;
	errno = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	return errno ? -1 : 0;
}

/* open SEED MODE: the permanent objects. Mode: 1 by event, 2 light. */
static int do_open(char **word)
{
	struct mlx5dv_context_attr devx = { .flags = MLX5DV_CONTEXT_FLAGS_DEVX };
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = RECEIVES, .max_sge = 1 } };
	size_t size = REMOTE + RECEIVES * MESSAGE + SENDS * MESSAGE + LARGE;

	seed = strtoull(word[1], NULL, 0) | 1;
	by_event = atoi(word[2]) & 1;
	light = atoi(word[2]) >> 1 & 1;
	if (!list || !list[0])
		return failed("no device");
	ctx = mlx5dv_open_device(list[0], &devx);
	if (!ctx)
		return failed("mlx5dv_open_device");
	pd = ibv_alloc_pd(ctx);
	channel = ibv_create_comp_channel(ctx);
	if (!pd || !channel)
		return failed("pd or channel");
	cq = ibv_create_cq(ctx, 256, NULL, channel, 0);
	if (!cq)
		return failed("ibv_create_cq");
	srq = ibv_create_srq(pd, &srq_init);
	if (!srq)
		return failed("ibv_create_srq");
	memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return failed("mmap");
	receives = memory + REMOTE;
	sends = receives + RECEIVES * MESSAGE;
	large = sends + SENDS * MESSAGE;
	mr = ibv_reg_mr(pd, memory, size,
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |
				IBV_ACCESS_REMOTE_ATOMIC);
	if (!mr)
		return failed("ibv_reg_mr");
	for (int i = 0; i < RECEIVES; i++)
		if (post_receive((uint64_t)i))
			return failed("ibv_post_srq_recv");
	if (ibv_query_port(ctx, 1, &port))
		return failed("ibv_query_port");
	answer("ok");
	return 0;
}

/* qp: a new queue pair and its connection data. */
static int do_qp(void)
{
	if (make_qp())
		return failed("queue pair");
	answer("ok qpn=%u lid=%u addr=%" PRIu64 " rkey=%u", qp->qp_num, port.lid, (uint64_t)(uintptr_t)memory,
	       mr->rkey);
	return 0;
}

/* Returns the failed step, or NULL. */
static const char *connect_to(uint32_t qpn, uint16_t lid, uint64_t addr, uint32_t rkey)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_4096,
		.dest_qp_num = qpn,
		.max_dest_rd_atomic = 16,
		.min_rnr_timer = 12,
		.ah_attr = { .dlid = lid, .port_num = 1 },
	};

	remote_addr = addr;
	remote_rkey = rkey;
	errno = ibv_modify_qp(qp, &attr,
			      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (errno)
		return "to RTR";
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 16,
	};
	errno = ibv_modify_qp(qp, &attr,
			      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				      IBV_QP_MAX_QP_RD_ATOMIC);
	return errno ? "to RTS" : NULL;
}

/* connect QPN LID ADDR RKEY */
static int do_connect(char **word)
{
	const char *what = connect_to((uint32_t)strtoul(word[1], NULL, 0), (uint16_t)strtoul(word[2], NULL, 0),
				      strtoull(word[3], NULL, 0), (uint32_t)strtoul(word[4], NULL, 0));

	if (what)
		return failed(what);
	answer("ok");
	return 0;
}

static int post_any(unsigned slot, uint64_t *number)
{
	static const uint32_t lengths[] = { 8, 64, 4096, 300 * 1024, LARGE };
	uint32_t length = lengths[any() % 5];
	uint64_t offset = any() % (REMOTE - LARGE) & ~7ull;
	struct ibv_sge sge = { .addr = (uintptr_t)large, .length = length, .lkey = mr->lkey };
	struct ibv_send_wr *bad, wr = {
		.wr_id = slot, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED,
	};

	/* Large ones are rare, because they would take all the time. */
	if (length > 4096 && any() % 8)
		sge.length = 64;
	switch (light ? 7 : any() % 8) {
	case 0:
		wr.opcode = IBV_WR_RDMA_WRITE;
		break;
	case 1:
		wr.opcode = IBV_WR_RDMA_READ;
		break;
	case 2:
		wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
		sge.length = 8;
		break;
	default: {
		struct message *message = (struct message *)(sends + slot * MESSAGE);

		message->number = (*number)++;
		message->check = ~message->number;
		sge.addr = (uintptr_t)message;
		sge.length = MESSAGE;
		wr.opcode = IBV_WR_SEND;
	}
	}
	if (wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = remote_addr + offset;
		wr.wr.atomic.rkey = remote_rkey;
		wr.wr.atomic.compare_add = 1;
	} else if (wr.opcode != IBV_WR_SEND) {
		wr.wr.rdma.remote_addr = remote_addr + offset;
		wr.wr.rdma.rkey = remote_rkey;
	}
	return ibv_post_send(qp, &wr, &bad);
}

/* Objects that are created and destroyed while others are in use. */
static const char *churn(void)
{
	switch (any() % 4) {
	case 0: {
		struct ibv_mr *other = ibv_reg_mr(pd, large, LARGE, IBV_ACCESS_LOCAL_WRITE);

		return !other || ibv_dereg_mr(other) ? "region" : NULL;
	}
	case 1: {
		struct mlx5dv_mkey_init_attr attr = {
			.pd = pd, .create_flags = MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT,
			.max_entries = (uint16_t)(1 + any() % 60),
		};
		struct mlx5dv_mkey *mkey = mlx5dv_create_mkey(&attr);

		return !mkey || mlx5dv_destroy_mkey(mkey) ? "mkey" : NULL;
	}
	case 2: {
		struct ibv_cq *other = ibv_create_cq(ctx, 16, NULL, NULL, 0);

		return !other || ibv_destroy_cq(other) ? "completion queue" : NULL;
	}
	default: {
		struct mlx5dv_devx_umem *umem = mlx5dv_devx_umem_reg(ctx, large, LARGE, IBV_ACCESS_LOCAL_WRITE);

		return !umem || mlx5dv_devx_umem_dereg(umem) ? "umem" : NULL;
	}
	}
}

/* Sleeps until a completion event. False after a long silence. */
static int sleep_on_channel(void)
{
	struct pollfd waits = { .fd = channel->fd, .events = POLLIN };
	struct ibv_cq *which;
	void *context;

	if (poll(&waits, 1, SILENCE_MS) != 1 || ibv_get_cq_event(channel, &which, &context))
		return 0;
	ibv_ack_cq_events(which, 1);
	return 1;
}

static void *traffic(void *unused)
{
	uint64_t sent = 0, expected = 0, done = 0, last = now_ms();
	unsigned in_flight = 0;

	(void)unused;
	for (unsigned slot = 0; slot < SENDS; slot++, in_flight++)
		if (post_any(slot, &sent)) {
			snprintf(verdict, sizeof(verdict), "error ibv_post_send");
			return NULL;
		}
	for (;;) {
		struct ibv_wc wc;
		int n = ibv_poll_cq(cq, 1, &wc);

		if (n == 0) {
			if (now_ms() - last > SILENCE_MS) {
				snprintf(verdict, sizeof(verdict), "error a hang: %u requests in flight, %" PRIu64 " done",
					 in_flight, done);
				return NULL;
			}
			if (!by_event) {
				sched_yield();
				continue;
			}
			if (ibv_req_notify_cq(cq, 0)) {
				snprintf(verdict, sizeof(verdict), "error ibv_req_notify_cq");
				return NULL;
			}
			n = ibv_poll_cq(cq, 1, &wc);
			if (n == 0) {
				if (!sleep_on_channel()) {
					snprintf(verdict, sizeof(verdict), "error no event: %u requests in flight", in_flight);
					return NULL;
				}
				continue;
			}
		}
		if (n < 0) {
			snprintf(verdict, sizeof(verdict), "error ibv_poll_cq: %d", n);
			return NULL;
		}
		last = now_ms();
		if (wc.status != IBV_WC_SUCCESS) {
			snprintf(verdict, sizeof(verdict), "ok status=%d done=%" PRIu64, wc.status, done);
			return NULL;
		}
		done++;
		if (wc.opcode & IBV_WC_RECV) {
			struct message *message = (struct message *)(receives + wc.wr_id * MESSAGE);

			if (message->number != expected || message->check != ~expected) {
				snprintf(verdict, sizeof(verdict),
					 "error message %" PRIu64 " came where %" PRIu64 " was due", message->number, expected);
				return NULL;
			}
			expected++;
			if (post_receive(wc.wr_id)) {
				snprintf(verdict, sizeof(verdict), "error ibv_post_srq_recv");
				return NULL;
			}
		} else {
			const char *what = any() % (light ? 256 : 16) ? NULL : churn();

			if (what || post_any((unsigned)wc.wr_id, &sent)) {
				snprintf(verdict, sizeof(verdict), "error %s", what ? what : "ibv_post_send");
				return NULL;
			}
		}
	}
}

static int do_start(void)
{
	running = !pthread_create(&thread, NULL, traffic, NULL);
	if (!running)
		return failed("pthread_create");
	answer("ok");
	return 0;
}

/* wait: until the traffic has ended; removes its remains. */
static int do_wait(void)
{
	struct ibv_wc wc;

	if (running)
		pthread_join(thread, NULL);
	running = 0;
	/* Messages before the end have used entries of the shared queue. */
	while (ibv_poll_cq(cq, 1, &wc) == 1)
		if (wc.status == IBV_WC_SUCCESS && wc.opcode & IBV_WC_RECV && post_receive(wc.wr_id))
			return failed("ibv_post_srq_recv");
	errno = ibv_destroy_qp(qp);
	if (errno)
		return failed("ibv_destroy_qp");
	answer("%s", verdict);
	return 0;
}

/* drain: every entry of the shared receive queue still exists. A message to the own queue pair uses each in turn. */
static int do_drain(void)
{
	uint8_t seen[RECEIVES] = { 0 };
	int left = 2 * RECEIVES, posted = 0, in_flight = 0;
	uint64_t start = now_ms();

	if (make_qp() || connect_to(qp->qp_num, port.lid, (uintptr_t)memory, mr->rkey))
		return failed("queue pair");
	while (left > 0 && now_ms() - start < SILENCE_MS) {
		struct ibv_sge sge = { .addr = (uintptr_t)sends, .length = MESSAGE, .lkey = mr->lkey };
		struct ibv_send_wr wr = {
			.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
		}, *bad;
		struct ibv_wc wc;

		if (posted < RECEIVES && in_flight < SENDS && !ibv_post_send(qp, &wr, &bad)) {
			posted++;
			in_flight++;
		}
		if (ibv_poll_cq(cq, 1, &wc) != 1)
			continue;
		if (wc.status != IBV_WC_SUCCESS) {
			answer("error drain: status %d", wc.status);
			return -1;
		}
		left--;
		if (wc.opcode & IBV_WC_RECV)
			seen[wc.wr_id]++;
		else
			in_flight--;
	}
	for (int i = 0; i < RECEIVES; i++)
		if (seen[i] != 1) {
			answer("error drain: entry %d came %d times, %d completions are missing", i, seen[i], left);
			return -1;
		}
	errno = ibv_destroy_qp(qp);
	if (errno)
		return failed("ibv_destroy_qp");
	for (int i = 0; i < RECEIVES; i++)
		if (post_receive((uint64_t)i))
			return failed("ibv_post_srq_recv");
	answer("ok");
	return 0;
}

/* close: in order, which waits for unacknowledged events. */
static int do_close(void)
{
	errno = ibv_destroy_srq(srq);
	if (!errno)
		errno = ibv_destroy_cq(cq);
	if (!errno)
		errno = ibv_destroy_comp_channel(channel);
	if (!errno)
		errno = ibv_dereg_mr(mr);
	if (!errno)
		errno = ibv_dealloc_pd(pd);
	if (!errno)
		errno = ibv_close_device(ctx);
	if (errno)
		return failed("close");
	answer("ok");
	return 0;
}

static void obey(char **word)
{
	if (!strcmp(word[0], "open") && word[2]) do_open(word);
	else if (!strcmp(word[0], "qp")) do_qp();
	else if (!strcmp(word[0], "connect") && word[4]) do_connect(word);
	else if (!strcmp(word[0], "start")) do_start();
	else if (!strcmp(word[0], "wait")) do_wait();
	else if (!strcmp(word[0], "drain")) do_drain();
	else if (!strcmp(word[0], "close")) do_close();
	else answer("error no command '%s'", word[0]);
}

int main(void)
{
	return take_commands(obey);
}
