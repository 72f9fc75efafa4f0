/* Two processes that send to each other at the same time, over an unreliable or an extended connection, and compare every
 * byte. For tests/suites/src/join/stream.rs:
 *
 *     joined_stream uc|xrc GID_INDEX MESSAGES PORT [HOST]
 *
 * Message i is a send if i is even, else a write to a place of its own; i is its immediate value and gives its length and
 * its bytes. Memory that nothing has reached must be as it was. Each process repeats an empty last message until its peer
 * has one. Prints "sent N got N lost N twice N places N".
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdint.h>
#include <sys/socket.h>
#include <unistd.h>

#include "connection.h"

enum {
	SLOT = 16384,       /* the longest message */
	LASTS = 2000,       /* repetitions of the last message */
	WINDOW = 16,        /* requests at a time */
	UNTOUCHED = 0xa5,
	LAST = 0x7fffffff,
	LOOK_MS = 10,       /* between two last messages */
	PEER_MS = 120000,   /* a peer that says nothing for so long is lost */
};

/* What a process tells its peer. Both are of one architecture. */
struct side {
	union ibv_gid gid;
	uint32_t receiver, sender, srqn, rkey;
	uint64_t places;
};

static int is_xrc, side_channel, messages;
static uint8_t *out, *in, *places;      /* sent from, received into, written by the peer */
static struct ibv_mr *out_mr, *in_mr, *places_mr;
static struct ibv_qp *sender, *receiver;
static struct ibv_srq *srq;
static struct side mine, theirs;
static int sent, got, lost, twice, written, is_over;
static uint8_t *seen;

static uint32_t mixed(uint32_t i)
{
	i = (i ^ i >> 16) * 0x45d9f3b;
	i = (i ^ i >> 16) * 0x45d9f3b;
	return i ^ i >> 16;
}

static uint32_t length_of(uint32_t i)
{
	/* Every fourth one is long. */
	return 1 + mixed(i) % (i % 4 < 2 ? SLOT : 900);
}

static uint8_t byte_of(uint32_t i, uint32_t at)
{
	return (uint8_t)(mixed(i + 77) + at * 31 + (at >> 8));
}

static void check(const uint8_t *bytes, uint32_t i)
{
	for (uint32_t at = 0; at < length_of(i); at++)
		if (bytes[at] != byte_of(i, at)) {
			fprintf(stderr, "message %u, byte %u of %u: %#x instead of %#x\n", i, at, length_of(i), bytes[at],
				byte_of(i, at));
			exit(1);
		}
}

/* A message without all its packets may have left some of its bytes, and no others. */
static void check_place(uint32_t i)
{
	const uint8_t *bytes = places + (size_t)i * SLOT;

	for (uint32_t at = 0; at < SLOT; at++)
		if (bytes[at] != UNTOUCHED && (at >= length_of(i) || bytes[at] != byte_of(i, at))) {
			fprintf(stderr, "place %u, byte %u: %#x\n", i, at, bytes[at]);
			exit(1);
		}
}

static void *memory(size_t bytes, int rights, struct ibv_mr **mr)
{
	void *start;

	CHECK(!posix_memalign(&start, 4096, bytes));
	memset(start, UNTOUCHED, bytes);
	CHECK(*mr = ibv_reg_mr(pd, start, bytes, IBV_ACCESS_LOCAL_WRITE | rights));
	return start;
}

static void whole(int is_read, void *bytes, size_t count)
{
	for (char *at = bytes; count;) {
		struct pollfd file = { .fd = side_channel, .events = is_read ? POLLIN : POLLOUT };
		ssize_t done;

		CHECK(poll(&file, 1, PEER_MS) == 1);
		done = is_read ? read(side_channel, at, count) : write(side_channel, at, count);
		CHECK(done > 0);
		at += done;
		count -= (size_t)done;
	}
}

static void meet(const char *port, const char *host)
{
	struct addrinfo hints = { .ai_family = AF_INET, .ai_socktype = SOCK_STREAM, .ai_flags = host ? 0 : AI_PASSIVE };
	struct addrinfo *to;
	int one = 1, listener;

	CHECK(!getaddrinfo(host, port, &hints, &to));
	CHECK((listener = socket(to->ai_family, to->ai_socktype, 0)) >= 0);
	CHECK(!setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)));
	if (host) {
		CHECK(!connect(listener, to->ai_addr, to->ai_addrlen));
		side_channel = listener;
		return;
	}
	CHECK(!bind(listener, to->ai_addr, to->ai_addrlen) && !listen(listener, 1));
	printf("listening\n");
	fflush(stdout);
	CHECK((side_channel = accept(listener, NULL, NULL)) >= 0);
}

static void exchange(void)
{
	whole(0, &mine, sizeof(mine));
	whole(1, &theirs, sizeof(theirs));
}

static void connected(struct ibv_qp *qp, uint32_t peer, int gid, int is_sender, int is_receiver)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;

	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS));
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer, .rq_psn = 0xfffff0,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = theirs.gid, .sgid_index = gid, .hop_limit = 64 } },
	};
	if (is_xrc && is_receiver)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	CHECK(!ibv_modify_qp(qp, &attr, mask));
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = 0xfffff0, .timeout = 14, .retry_cnt = 7,
				     .rnr_retry = 7, .max_rd_atomic = 1 };
	if (is_xrc && is_sender)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	else if (is_xrc)
		mask |= IBV_QP_TIMEOUT;
	CHECK(!ibv_modify_qp(qp, &attr, mask));
}

static void make(int depth)
{
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_UC, .send_cq = cq, .recv_cq = cq, .pd = pd, .sq_sig_all = 1,
		.comp_mask = IBV_QP_INIT_ATTR_PD,
		.cap = { .max_send_wr = WINDOW, .max_recv_wr = (uint32_t)depth, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_xrcd_init_attr domain = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1,
					     .oflags = O_CREAT };
	struct ibv_srq_init_attr_ex shared = {
		.attr = { .max_wr = (uint32_t)depth, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC, .cq = cq, .pd = pd,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_PD,
	};

	if (!is_xrc) {
		CHECK(sender = receiver = ibv_create_qp_ex(context, &init));
	} else {
		CHECK(shared.xrcd = ibv_open_xrcd(context, &domain));
		CHECK(srq = ibv_create_srq_ex(context, &shared));
		CHECK(!ibv_get_srq_num(srq, &mine.srqn));
		init.qp_type = IBV_QPT_XRC_SEND;
		init.recv_cq = NULL;
		init.cap.max_recv_wr = init.cap.max_recv_sge = 0;
		CHECK(sender = ibv_create_qp_ex(context, &init));
		init = (struct ibv_qp_init_attr_ex){ .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD,
						     .xrcd = shared.xrcd };
		CHECK(receiver = ibv_create_qp_ex(context, &init));
	}
	mine.sender = sender->qp_num;
	mine.receiver = receiver->qp_num;
}

/* Each entry has memory of its own: what a lost message has left is not overwritten. */
static void post_receives(int depth)
{
	for (int i = 0; i < depth; i++) {
		struct ibv_sge sge = { (uintptr_t)in + (size_t)i * SLOT, SLOT, in_mr->lkey };
		struct ibv_recv_wr wr = { .wr_id = (uint64_t)i, .sg_list = &sge, .num_sge = 1 }, *bad;

		CHECK(!(srq ? ibv_post_srq_recv(srq, &wr, &bad) : ibv_post_recv(receiver, &wr, &bad)));
	}
}

static void post_send(uint32_t i)
{
	uint8_t *bytes = out + (size_t)(i % WINDOW) * SLOT;
	struct ibv_sge sge = { (uintptr_t)bytes, i == LAST ? 0 : length_of(i), out_mr->lkey };
	struct ibv_send_wr wr = { .wr_id = UINT64_MAX, .sg_list = &sge, .num_sge = i != LAST, .imm_data = htonl(i),
				  .opcode = IBV_WR_SEND_WITH_IMM }, *bad;

	if (i != LAST) {
		for (uint32_t at = 0; at < sge.length; at++)
			bytes[at] = byte_of(i, at);
		if (i % 2) {
			wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
			wr.wr.rdma.remote_addr = theirs.places + (uint64_t)i * SLOT;
			wr.wr.rdma.rkey = theirs.rkey;
		}
	}
	wr.qp_type.xrc.remote_srqn = theirs.srqn;
	CHECK(!ibv_post_send(sender, &wr, &bad));
}

/* Returns the number of sends that have completed. */
static int look(void)
{
	struct ibv_wc wc[WINDOW];
	int count = ibv_poll_cq(cq, WINDOW, wc), ended = 0;

	CHECK(count >= 0);
	for (int at = 0; at < count; at++) {
		uint32_t i = ntohl(wc[at].imm_data);

		if (wc[at].status != IBV_WC_SUCCESS) {
			fprintf(stderr, "a request failed: %s\n", ibv_wc_status_str(wc[at].status));
			exit(1);
		}
		if (wc[at].wr_id == UINT64_MAX) {
			ended++;
			continue;
		}
		CHECK(wc[at].wc_flags & IBV_WC_WITH_IMM);
		if (i == LAST) {
			is_over = 1;
			continue;
		}
		CHECK(i < (uint32_t)messages && wc[at].byte_len == length_of(i));
		check(i % 2 ? places + (size_t)i * SLOT : in + wc[at].wr_id * SLOT, i);
		got += !seen[i];
		twice += seen[i];
		seen[i] = 1;
	}
	return ended;
}

int main(int count, char **words)
{
	int gid, depth, under_way = 0, told = 0, knows = 0, next = 0;

	CHECK(count >= 5);
	is_xrc = !strcmp(words[1], "xrc");
	gid = atoi(words[2]);
	messages = atoi(words[3]);
	/* Some arrive twice. */
	depth = 2 * messages + LASTS;
	opened_with(depth + WINDOW);
	CHECK(seen = calloc((size_t)messages, 1));
	out = memory((size_t)WINDOW * SLOT, 0, &out_mr);
	in = memory((size_t)depth * SLOT, 0, &in_mr);
	places = memory((size_t)messages * SLOT, IBV_ACCESS_REMOTE_WRITE, &places_mr);
	make(depth);
	CHECK(!ibv_query_gid(context, 1, gid, &mine.gid));
	mine.rkey = places_mr->rkey;
	mine.places = (uintptr_t)places;
	meet(words[4], count > 5 ? words[5] : NULL);
	exchange();
	connected(receiver, is_xrc ? theirs.sender : theirs.receiver, gid, !is_xrc, 1);
	if (is_xrc)
		connected(sender, theirs.receiver, gid, 1, 0);
	post_receives(depth);
	/* Each is ready before the other one sends. */
	exchange();
	while (next < messages || under_way) {
		int ended = look();

		under_way -= ended;
		sent += ended;
		/* A request's memory is free when the one that is WINDOW before it has ended. */
		if (next < messages && under_way < WINDOW) {
			post_send((uint32_t)next++);
			under_way++;
		}
	}
	CHECK(sent == messages);
	for (int lasts = 0; !knows || !told; lasts++) {
		struct pollfd file = { .fd = side_channel, .events = POLLIN };
		char word = 1;

		CHECK(lasts < LASTS);
		if (!knows) {
			post_send(LAST);
			while (!look())
				;
		}
		look();
		if (is_over && !told) {
			whole(0, &word, 1);
			told = 1;
		}
		if (!knows && poll(&file, 1, LOOK_MS) == 1) {
			whole(1, &word, 1);
			knows = 1;
		} else if (knows) {
			/* The peer repeats its last message as often. */
			poll(NULL, 0, LOOK_MS);
		}
	}
	/* Late packets may come until both know. */
	exchange();
	look();
	for (int i = 0; i < messages; i++) {
		int is_touched = 0;

		if (i % 2)
			check_place((uint32_t)i);
		for (uint32_t at = 0; i % 2 && at < SLOT && !is_touched; at++)
			is_touched = places[(size_t)i * SLOT + at] != UNTOUCHED;
		written += is_touched;
		lost += !seen[i];
	}
	printf("sent %d got %d lost %d twice %d places %d\n", sent, got, lost, twice, written);
	return 0;
}
