/* A process with an mlx5 device that executes commands, one per line, through stock libibverbs and libmlx5:
 * completion events and their moderation, the ports of the device, and the events of a port.
 *
 * tests/system/ports.rs and tests/system/moderation.rs drive it. Each command is one line on standard input, and
 * gets one line on standard output: "ok key=value ..." or "error what: why". Command layouts: PRM as in rdma-core's
 * providers/mlx5/mlx5_ifc.h. It uses no code of the project.
 */
#define _GNU_SOURCE
#include "agent.h"
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <poll.h>
#include <time.h>

enum {
	SLOTS = 8,         /* queue pairs */
	DEPTH = 64,        /* requests of a queue; all its completions are read */
	WAIT_MS = 20000,   /* time limit of a wait */
	BYTES = 65536,     /* of memory */
	RECEIVE_AT = 32768,/* offset of received messages */
	QKEY = 0x1234,
	OP_QUERY_CQ = 0x402,
	OP_MODIFY_CQ = 0x403,
	CQ_BYTES = 0x110,  /* of the input of MODIFY_CQ and the output of QUERY_CQ, without a page list */
	CQC = 0x10,        /* offset of their context */
	EVENT_PORT_CHANGE = 9,
};

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static uint8_t *memory;
static struct ibv_qp *qps[SLOTS];
static uint8_t ports[SLOTS];
static struct mlx5dv_devx_event_channel *device_events;
static struct timespec posted;

/* For functions without a result. */
static void fail(const char *what)
{
	failed(what);
}

static unsigned slot(const char *word)
{
	return place(word, SLOTS);
}

/* open: the first device, a completion queue with a channel, memory. Answers the device's attributes. */
static void do_open(void)
{
	struct mlx5dv_context_attr devx = { .flags = MLX5DV_CONTEXT_FLAGS_DEVX };
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_device_attr_ex attr;

	if (!list || !list[0])
		return fail("no device");
	ctx = mlx5dv_open_device(list[0], &devx);
	if (!ctx)
		return fail("mlx5dv_open_device");
	pd = ibv_alloc_pd(ctx);
	channel = ibv_create_comp_channel(ctx);
	memory = calloc(1, BYTES);
	if (!pd || !channel || !memory)
		return fail("ibv_alloc_pd");
	cq = ibv_create_cq(ctx, 256, NULL, channel, 0);
	mr = ibv_reg_mr(pd, memory, BYTES,
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
	if (!cq || !mr || ibv_query_device_ex(ctx, NULL, &attr))
		return fail("ibv_create_cq");
	answer("ok ports=%u count=%u period=%u addr=%" PRIu64 " rkey=%u", attr.phys_port_cnt_ex,
	       attr.cq_mod_caps.max_cq_count, attr.cq_mod_caps.max_cq_period, (uint64_t)(uintptr_t)memory, mr->rkey);
}

/* port NUMBER: its attributes, its first address and partition key. */
static void do_port(char **word)
{
	uint8_t n = (uint8_t)number(word[1]);
	struct ibv_port_attr attr;
	struct ibv_gid_entry entry;
	union ibv_gid gid;
	uint16_t pkey;

	errno = ibv_query_port(ctx, n, &attr);
	if (errno)
		return fail("ibv_query_port");
	if (ibv_query_gid(ctx, n, 0, &gid) || ibv_query_pkey(ctx, n, 0, &pkey))
		return fail("ibv_query_gid");
	errno = ibv_query_gid_ex(ctx, n, 0, &entry, 0);
	if (errno)
		return fail("ibv_query_gid_ex");
	if (memcmp(&gid, &entry.gid, sizeof(gid)) || entry.port_num != n)
		return answer("error the two ways to ask for a GID differ");
	answer("ok state=%d phys=%u lid=%u pkey=%u gid=%" PRIu64, attr.state, attr.phys_state, attr.lid, be16toh(pkey),
	       be64toh(gid.global.interface_id));
}

/* gids: number of addresses of all ports, and the sum of their port numbers. */
static void do_gids(void)
{
	struct ibv_gid_entry entries[32];
	ssize_t n = ibv_query_gid_table(ctx, entries, 32, 0);
	unsigned sum = 0;

	if (n < 0)
		return fail("ibv_query_gid_table");
	for (ssize_t i = 0; i < n; i++)
		sum += entries[i].port_num;
	answer("ok gids=%zd ports=%u", n, sum);
}

/* qp SLOT rc|ud PORT: a queue pair in INIT. */
static void do_qp(char **word)
{
	unsigned s = slot(word[1]);
	int rc = !strcmp(word[2], "rc");
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = rc ? IBV_QPT_RC : IBV_QPT_UD,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = (uint8_t)number(word[3]), .qkey = QKEY,
		.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE,
	};

	qps[s] = ibv_create_qp(pd, &init);
	if (!qps[s])
		return fail("ibv_create_qp");
	ports[s] = attr.port_num;
	errno = ibv_modify_qp(qps[s], &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
						     (rc ? IBV_QP_ACCESS_FLAGS : IBV_QP_QKEY));
	if (errno)
		return fail("ibv_modify_qp");
	answer("ok qpn=%u", qps[s]->qp_num);
}

/* connect SLOT QPN LID GID TIMEOUT RETRIES [RNR_RETRIES]: to RTS, by the LID, or by the GID's interface if the LID is 0. */
static void do_connect(char **word)
{
	unsigned s = slot(word[1]);
	uint16_t lid = (uint16_t)number(word[3]);
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = (uint32_t)number(word[2]),
		.max_dest_rd_atomic = 16, .min_rnr_timer = 12,
		.ah_attr = { .dlid = lid, .port_num = ports[s], .is_global = lid == 0 },
	};

	attr.ah_attr.grh.dgid.global.subnet_prefix = htobe64(0xfe80000000000000ull);
	attr.ah_attr.grh.dgid.global.interface_id = htobe64(number(word[4]));
	errno = ibv_modify_qp(qps[s], &attr,
			      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (errno)
		return fail("RTR");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .timeout = (uint8_t)number(word[5]), .retry_cnt = (uint8_t)number(word[6]),
		.rnr_retry = word[7] ? (uint8_t)number(word[7]) : 7, .max_rd_atomic = 16,
	};
	errno = ibv_modify_qp(qps[s], &attr,
			      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				      IBV_QP_MAX_QP_RD_ATOMIC);
	if (errno)
		return fail("RTS");
	answer("ok");
}

/* on SLOT PORT: later paths of a queue pair use this port. */
static void do_on(char **word)
{
	ports[slot(word[1])] = (uint8_t)number(word[2]);
	answer("ok");
}

/* ready SLOT: a queue pair of datagrams to RTS. */
static void do_ready(char **word)
{
	struct ibv_qp *qp = qps[slot(word[1])];
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR };

	errno = ibv_modify_qp(qp, &attr, IBV_QP_STATE);
	attr.qp_state = IBV_QPS_RTS;
	if (!errno)
		errno = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN);
	if (errno)
		return fail("ibv_modify_qp");
	answer("ok");
}

/* put OFFSET VALUE | get OFFSET: eight bytes of the memory. */
static void do_put(char **word)
{
	uint64_t value = number(word[2]);

	memcpy(memory + number(word[1]) % (BYTES - 8), &value, 8);
	answer("ok");
}

static void do_get(char **word)
{
	uint64_t value;

	memcpy(&value, memory + number(word[1]) % (BYTES - 8), 8);
	answer("ok value=%" PRIu64, value);
}

/* write SLOT COUNT ADDR RKEY: COUNT writes of the memory's first eight bytes, with one doorbell.
 * immediate SLOT COUNT ADDR RKEY: such writes with immediate. send SLOT COUNT: COUNT messages of the same bytes. datagram SLOT LID QPN: one datagram. */
static void do_post(char **word, enum ibv_wr_opcode opcode, int datagram)
{
	unsigned s = slot(word[1]), n = datagram ? 1 : (unsigned)number(word[2]);
	struct ibv_sge sge = { .addr = (uint64_t)(uintptr_t)memory, .length = 8, .lkey = mr->lkey };
	struct ibv_send_wr wr[DEPTH] = { 0 }, *bad;

	if (n == 0 || n > DEPTH) {
		answer("error a queue holds %d requests", DEPTH);
		exit(2);
	}
	for (unsigned i = 0; i < n; i++) {
		wr[i] = (struct ibv_send_wr){
			.next = i + 1 < n ? &wr[i + 1] : NULL, .sg_list = &sge, .num_sge = 1, .opcode = opcode,
			.send_flags = IBV_SEND_SIGNALED,
		};
		if (opcode != IBV_WR_SEND) {
			wr[i].wr.rdma.remote_addr = number(word[3]);
			wr[i].wr.rdma.rkey = (uint32_t)number(word[4]);
		}
	}
	if (datagram) {
		struct ibv_ah_attr to = { .dlid = (uint16_t)number(word[2]), .port_num = ports[s] };

		wr[0].wr.ud.ah = ibv_create_ah(pd, &to);
		if (!wr[0].wr.ud.ah)
			return fail("ibv_create_ah");
		wr[0].wr.ud.remote_qpn = (uint32_t)number(word[3]);
		wr[0].wr.ud.remote_qkey = QKEY;
	}
	clock_gettime(CLOCK_MONOTONIC, &posted);
	errno = ibv_post_send(qps[s], wr, &bad);
	if (errno)
		return fail("ibv_post_send");
	answer("ok");
}

/* receive SLOT COUNT: COUNT receives, all into the same memory. */
static void do_receive(char **word)
{
	struct ibv_sge sge = {
		.addr = (uint64_t)(uintptr_t)memory + RECEIVE_AT, .length = 64, .lkey = mr->lkey,
	};
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	for (uint64_t left = number(word[2]); left; left--) {
		errno = ibv_post_recv(qps[slot(word[1])], &wr, &bad);
		if (errno)
			return fail("ibv_post_recv");
	}
	answer("ok");
}

static int64_t since_ns(const struct timespec *start)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (now.tv_sec - start->tv_sec) * 1000000000ll + now.tv_nsec - start->tv_nsec;
}

/* poll: the next completion. drain: number of completions now. */
static void do_poll(void)
{
	struct timespec start;
	struct ibv_wc wc;
	int n;

	clock_gettime(CLOCK_MONOTONIC, &start);
	do
		n = ibv_poll_cq(cq, 1, &wc);
	while (n == 0 && since_ns(&start) < WAIT_MS * 1000000ll);
	if (n != 1)
		return answer("error no completion");
	answer("ok wc=%d opcode=%d bytes=%u slid=%u", wc.status, wc.opcode, wc.byte_len, wc.slid);
}

static void do_drain(void)
{
	struct ibv_wc wc;
	int n = 0;

	while (ibv_poll_cq(cq, 1, &wc) == 1)
		n++;
	answer("ok read=%d", n);
}

/* arm: request an event for the next completion. */
static void do_arm(void)
{
	errno = ibv_req_notify_cq(cq, 0);
	if (errno)
		return fail("ibv_req_notify_cq");
	answer("ok");
}

static int take_event(int limit_ms)
{
	struct pollfd wanted = { .fd = channel->fd, .events = POLLIN };
	struct ibv_cq *of;
	void *context;

	if (poll(&wanted, 1, limit_ms) != 1)
		return 0;
	if (ibv_get_cq_event(channel, &of, &context))
		return 0;
	ibv_ack_cq_events(of, 1);
	return 1;
}

/* events: number of completion events now. event: waits for one; since_us: time after the last post. */
static void do_events(void)
{
	int n = 0;

	while (take_event(0))
		n++;
	answer("ok events=%d", n);
}

static void do_event(void)
{
	if (!take_event(WAIT_MS))
		return answer("error no event");
	answer("ok since_us=%" PRIi64, since_ns(&posted) / 1000);
}

/* moderate COUNT PERIOD: by verbs. */
static void do_moderate(char **word)
{
	struct ibv_modify_cq_attr attr = {
		.attr_mask = IBV_CQ_ATTR_MODERATE,
		.moderate = { .cq_count = (uint16_t)number(word[1]), .cq_period = (uint16_t)number(word[2]) },
	};

	errno = ibv_modify_cq(cq, &attr);
	if (errno)
		return fail("ibv_modify_cq");
	answer("ok");
}

static uint32_t cqn(void)
{
	struct mlx5dv_cq dv = { 0 };
	struct mlx5dv_obj obj = { .cq = { .in = cq, .out = &dv } };

	return mlx5dv_init_obj(&obj, MLX5DV_OBJ_CQ) ? 0 : dv.cqn;
}

static void modify(uint8_t *in)
{
	uint8_t out[16] = { 0 };

	put16(in, OP_MODIFY_CQ);
	put32(in + 8, cqn());
	if (mlx5dv_devx_cq_modify(cq, in, CQ_BYTES, out, sizeof(out)))
		return answer("error MODIFY_CQ: status 0x%x errno %d", out[0], errno);
	answer("ok");
}

/* modify SELECT COUNT PERIOD: by command, the fields in SELECT. */
static void do_modify(char **word)
{
	uint8_t in[CQ_BYTES] = { 0 };

	put32(in + 12, (uint32_t)number(word[1]));
	put16(in + CQC + 0x12, (uint16_t)number(word[2]));
	put16(in + CQC + 0x10, (uint16_t)number(word[3]));
	modify(in);
}

/* resize LOG: a new ring in separate memory, by command. */
static uint8_t *ring;

static void do_resize(char **word)
{
	uint8_t in[CQ_BYTES] = { 0 };
	unsigned log = (unsigned)number(word[1]);
	size_t bytes = (size_t)64 << log;
	struct mlx5dv_devx_umem *umem;

	ring = aligned_alloc(4096, (bytes + 4095) & ~4095ul);
	if (!ring)
		return fail("aligned_alloc");
	memset(ring, 0xff, bytes);
	umem = mlx5dv_devx_umem_reg(ctx, ring, bytes, IBV_ACCESS_LOCAL_WRITE);
	if (!umem)
		return fail("mlx5dv_devx_umem_reg");
	put16(in + 6, 1); /* resize */
	in[CQC + 0x0c] = (uint8_t)log; /* the low five bits of a byte */
	put32(in + 0x58, umem->umem_id);
	in[0x5c] = 0x80; /* cq_umem_valid */
	modify(in);
}

/* ring INDEX: the opcode of an entry of that ring; 15 is none. */
static void do_ring(char **word)
{
	answer("ok opcode=%d", ring[number(word[1]) * 64 + 63] >> 4);
}

/* query: the completion queue's context in the device. */
static void do_query(void)
{
	uint8_t in[16] = { 0 }, out[CQ_BYTES] = { 0 };
	const uint8_t *cqc = out + CQC;

	put16(in, OP_QUERY_CQ);
	put32(in + 8, cqn());
	if (mlx5dv_devx_cq_query(cq, in, sizeof(in), out, sizeof(out)))
		return answer("error QUERY_CQ: status 0x%x errno %d", out[0], errno);
	answer("ok log=%u count=%u period=%u st=%u produced=%u", cqc[0x0c] & 31, get32(cqc + 0x10) & 0xffff,
	       get32(cqc + 0x10) >> 16 & 0xfff, cqc[2] & 15, get32(cqc + 0x2c) & 0xffffff);
}

/* async: the next asynchronous event and its port. */
static void do_async(void)
{
	struct pollfd wanted = { .fd = ctx->async_fd, .events = POLLIN };
	struct ibv_async_event event;

	if (poll(&wanted, 1, WAIT_MS) != 1)
		return answer("error no event");
	if (ibv_get_async_event(ctx, &event))
		return fail("ibv_get_async_event");
	ibv_ack_async_event(&event);
	answer("ok event=%d port=%d", event.event_type, event.element.port_num);
}

/* subscribe COOKIE: to changes of ports, as events of the device. changed: the next of them. */
static void do_subscribe(char **word)
{
	uint16_t wanted[] = { EVENT_PORT_CHANGE };

	device_events = mlx5dv_devx_create_event_channel(ctx, 0);
	if (!device_events)
		return fail("mlx5dv_devx_create_event_channel");
	errno = mlx5dv_devx_subscribe_devx_event(device_events, NULL, sizeof(wanted), wanted, number(word[1]));
	if (errno)
		return fail("mlx5dv_devx_subscribe_devx_event");
	answer("ok");
}

static void do_changed(void)
{
	struct {
		struct mlx5dv_devx_async_event_hdr head;
		uint8_t entry[64];
	} event = { 0 };
	struct pollfd wanted = { .fd = device_events->fd, .events = POLLIN };

	if (poll(&wanted, 1, WAIT_MS) != 1)
		return answer("error no event");
	if (mlx5dv_devx_get_event(device_events, &event.head, sizeof(event)) < 0)
		return fail("mlx5dv_devx_get_event");
	answer("ok cookie=%" PRIu64 " type=%u subtype=%u port=%u", (uint64_t)event.head.cookie, event.entry[1],
	       event.entry[3], event.entry[0x28] >> 4);
}

static void obey(char **word)
{
	const char *verb = word[0];

	if (!strcmp(verb, "open")) do_open();
	else if (!strcmp(verb, "port")) do_port(word);
	else if (!strcmp(verb, "gids")) do_gids();
	else if (!strcmp(verb, "qp")) do_qp(word);
	else if (!strcmp(verb, "connect")) do_connect(word);
	else if (!strcmp(verb, "on")) do_on(word);
	else if (!strcmp(verb, "ready")) do_ready(word);
	else if (!strcmp(verb, "put")) do_put(word);
	else if (!strcmp(verb, "get")) do_get(word);
	else if (!strcmp(verb, "write")) do_post(word, IBV_WR_RDMA_WRITE, 0);
	else if (!strcmp(verb, "immediate")) do_post(word, IBV_WR_RDMA_WRITE_WITH_IMM, 0);
	else if (!strcmp(verb, "send")) do_post(word, IBV_WR_SEND, 0);
	else if (!strcmp(verb, "datagram")) do_post(word, IBV_WR_SEND, 1);
	else if (!strcmp(verb, "receive")) do_receive(word);
	else if (!strcmp(verb, "poll")) do_poll();
	else if (!strcmp(verb, "drain")) do_drain();
	else if (!strcmp(verb, "arm")) do_arm();
	else if (!strcmp(verb, "events")) do_events();
	else if (!strcmp(verb, "event")) do_event();
	else if (!strcmp(verb, "moderate")) do_moderate(word);
	else if (!strcmp(verb, "modify")) do_modify(word);
	else if (!strcmp(verb, "resize")) do_resize(word);
	else if (!strcmp(verb, "ring")) do_ring(word);
	else if (!strcmp(verb, "query")) do_query();
	else if (!strcmp(verb, "async")) do_async();
	else if (!strcmp(verb, "subscribe")) do_subscribe(word);
	else if (!strcmp(verb, "changed")) do_changed();
	else answer("error no command '%s'", verb);
}

int main(void)
{
	return take_commands(obey);
}
