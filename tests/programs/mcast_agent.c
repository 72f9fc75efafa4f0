/* A process with an mlx5 device that sends and receives datagrams of multicast groups through stock libibverbs.
 * tests/system/multicast.rs drives it, and tests/programs/agent.h has the form of commands. Each queue pair has its own
 * completion queues. GID is an IPv6 address.
 *
 *   open | qp SLOT ud|blocked|rc QKEY | destroy SLOT | attach SLOT GID LID | detach SLOT GID LID | receive SLOT COUNT
 *   send SLOT GID LID QPN QKEY SGID_INDEX GLOBAL VALUE | got SLOT | crowd GID LID COUNT | groups SLOT LID COUNT
 */
#define _GNU_SOURCE
#include "agent.h"
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <time.h>

enum {
	SLOTS = 8,
	CROWD = 512,      /* further queue pairs of one group */
	DEPTH = 16,
	HEADER = 40,      /* bytes before each datagram */
	ENTRY = 64,       /* bytes of a receive */
	WAIT_S = 20,      /* time limit of a completion */
	UNTOUCHED = 0xa5,
};

struct queue {
	struct ibv_qp *qp;
	struct ibv_cq *sends, *receives;
	uint8_t *memory;  /* one value to send, then the receives */
	struct ibv_mr *mr;
	unsigned received;
};

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct queue queues[SLOTS];

static void fail(const char *what)
{
	failed(what);
}

static struct queue *queue(const char *word)
{
	return &queues[place(word, SLOTS)];
}

static union ibv_gid gid_of(const char *word)
{
	union ibv_gid gid;

	if (!word || inet_pton(AF_INET6, word, &gid) != 1) {
		answer("error not a GID: %s", word);
		exit(2);
	}
	return gid;
}

static void do_open(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_device_attr attr;
	struct ibv_port_attr port;

	if (!list || !list[0])
		return fail("no device");
	ctx = ibv_open_device(list[0]);
	pd = ctx ? ibv_alloc_pd(ctx) : NULL;
	if (!pd || ibv_query_device(ctx, &attr) || ibv_query_port(ctx, 1, &port))
		return fail("open");
	answer("ok lid=%u groups=%d attach=%d total=%d block=%d", port.lid, attr.max_mcast_grp, attr.max_mcast_qp_attach,
	       attr.max_total_mcast_qp_attach, attr.device_cap_flags >> 22 & 1);
}

static struct ibv_qp *create(const char *kind, struct ibv_cq *sends, struct ibv_cq *receives)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = sends, .recv_cq = receives, .qp_type = strcmp(kind, "rc") ? IBV_QPT_UD : IBV_QPT_RC, .pd = pd,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS,
		.create_flags = strcmp(kind, "blocked") ? 0 : IBV_QP_CREATE_BLOCK_SELF_MCAST_LB,
	};

	return ibv_create_qp_ex(ctx, &init);
}

/* A queue pair: of datagrams in RTS, else in INIT. */
static void do_qp(char **word)
{
	struct queue *q = queue(word[1]);
	int datagrams = strcmp(word[2], "rc");
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = (uint32_t)number(word[3]) };

	q->sends = ibv_create_cq(ctx, DEPTH, NULL, NULL, 0);
	q->receives = ibv_create_cq(ctx, DEPTH, NULL, NULL, 0);
	q->memory = malloc(8 + DEPTH * ENTRY);
	if (!q->sends || !q->receives || !q->memory)
		return fail("ibv_create_cq");
	memset(q->memory, UNTOUCHED, 8 + DEPTH * ENTRY);
	q->received = 0;
	q->mr = ibv_reg_mr(pd, q->memory, 8 + DEPTH * ENTRY, IBV_ACCESS_LOCAL_WRITE);
	q->qp = create(word[2], q->sends, q->receives);
	if (!q->mr || !q->qp)
		return fail("ibv_create_qp_ex");
	errno = ibv_modify_qp(q->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
						    (datagrams ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
	attr.qp_state = IBV_QPS_RTR;
	if (!errno && datagrams)
		errno = ibv_modify_qp(q->qp, &attr, IBV_QP_STATE);
	attr.qp_state = IBV_QPS_RTS;
	if (!errno && datagrams)
		errno = ibv_modify_qp(q->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN);
	if (errno)
		return fail("ibv_modify_qp");
	answer("ok qpn=%u", q->qp->qp_num);
}

static void done(const char *what, int result)
{
	errno = result;
	if (result)
		fail(what);
	else
		answer("ok");
}

static void do_receive(char **word)
{
	struct queue *q = queue(word[1]);
	struct ibv_recv_wr *bad;

	for (unsigned i = 0; i < place(word[2], DEPTH); i++) {
		struct ibv_sge sge = { .addr = (uint64_t)(uintptr_t)q->memory + 8 + i * ENTRY, .length = ENTRY,
				       .lkey = q->mr->lkey };
		struct ibv_recv_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 };

		errno = ibv_post_recv(q->qp, &wr, &bad);
		if (errno)
			return fail("ibv_post_recv");
	}
	answer("ok");
}

/* One message of eight bytes, until its completion. */
static void do_send(char **word)
{
	struct queue *q = queue(word[1]);
	uint64_t value = number(word[8]);
	time_t end = time(NULL) + WAIT_S;
	struct ibv_sge sge = { .addr = (uint64_t)(uintptr_t)q->memory, .length = 8, .lkey = q->mr->lkey };
	struct ibv_ah_attr to = { .dlid = (uint16_t)number(word[3]), .port_num = 1, .is_global = (uint8_t)number(word[7]) };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	struct ibv_send_wr *bad;
	struct ibv_wc wc;
	int n;

	memcpy(q->memory, &value, 8);
	to.grh.dgid = gid_of(word[2]);
	to.grh.sgid_index = (uint8_t)number(word[6]);
	to.grh.hop_limit = 64;
	wr.wr.ud.ah = ibv_create_ah(pd, &to);
	if (!wr.wr.ud.ah)
		return fail("ibv_create_ah");
	wr.wr.ud.remote_qpn = (uint32_t)number(word[4]);
	wr.wr.ud.remote_qkey = (uint32_t)number(word[5]);
	errno = ibv_post_send(q->qp, &wr, &bad);
	if (errno)
		return fail("ibv_post_send");
	do
		n = ibv_poll_cq(q->sends, 1, &wc);
	while (n == 0 && time(NULL) < end);
	ibv_destroy_ah(wr.wr.ud.ah);
	if (n != 1)
		return answer("error no completion");
	answer("ok wc=%d", wc.status);
}

/* The next message, if there is one: a message has arrived when its sender has its completion. */
static void do_got(char **word)
{
	struct queue *q = queue(word[1]);
	char head[2 * HEADER + 1];
	const uint8_t *bytes;
	struct ibv_wc wc;
	uint64_t value;

	if (ibv_poll_cq(q->receives, 1, &wc) != 1)
		return answer("ok none");
	bytes = q->memory + 8 + wc.wr_id * ENTRY;
	for (int i = 0; i < HEADER; i++)
		sprintf(head + 2 * i, "%02x", bytes[i]);
	memcpy(&value, bytes + HEADER, 8);
	answer("ok wc=%d bytes=%u from=%u grh=%d value=%" PRIu64 " head=%s", wc.status, wc.byte_len, wc.src_qp,
	       (wc.wc_flags & IBV_WC_GRH) != 0, value, head);
}

static void do_destroy(char **word)
{
	struct queue *q = queue(word[1]);

	done("ibv_destroy_qp", ibv_destroy_qp(q->qp));
}

/* Queue pairs of one group, until one is refused. */
static void do_crowd(char **word)
{
	static struct ibv_qp *crowd[CROWD];
	union ibv_gid gid = gid_of(word[1]);
	struct ibv_cq *cq = ibv_create_cq(ctx, DEPTH, NULL, NULL, 0);
	unsigned wanted = place(word[3], CROWD), n = 0;

	errno = 0;
	for (; cq && n < wanted; n++) {
		crowd[n] = create("ud", cq, cq);
		if (!crowd[n])
			return fail("ibv_create_qp_ex");
		errno = ibv_attach_mcast(crowd[n], &gid, (uint16_t)number(word[2]));
		if (errno)
			break;
	}
	answer("ok attached=%u errno=%d", n, errno);
}

/* Groups of one queue pair, until one is refused. */
static void do_groups(char **word)
{
	struct queue *q = queue(word[1]);
	union ibv_gid gid = gid_of("ff12::");
	uint64_t wanted = number(word[3]), n = 0;

	errno = 0;
	for (; n < wanted; n++) {
		gid.global.interface_id = htobe64(n + 1);
		errno = ibv_attach_mcast(q->qp, &gid, (uint16_t)number(word[2]));
		if (errno)
			break;
	}
	answer("ok attached=%" PRIu64 " errno=%d", n, errno);
}

static void obey(char **word)
{
	const char *verb = word[0];
	union ibv_gid gid;

	if (!strcmp(verb, "open"))
		do_open();
	else if (!strcmp(verb, "qp"))
		do_qp(word);
	else if (!strcmp(verb, "destroy"))
		do_destroy(word);
	else if (!strcmp(verb, "attach") || !strcmp(verb, "detach")) {
		gid = gid_of(word[2]);
		done(verb, (verb[0] == 'a' ? ibv_attach_mcast : ibv_detach_mcast)(queue(word[1])->qp, &gid,
										 (uint16_t)number(word[3])));
	} else if (!strcmp(verb, "receive"))
		do_receive(word);
	else if (!strcmp(verb, "send"))
		do_send(word);
	else if (!strcmp(verb, "got"))
		do_got(word);
	else if (!strcmp(verb, "crowd"))
		do_crowd(word);
	else if (!strcmp(verb, "groups"))
		do_groups(word);
	else
		answer("error no command '%s'", verb);
}

int main(void)
{
	return take_commands(obey);
}
