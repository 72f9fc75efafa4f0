/* Posts a request for each completion between ibv_start_poll and ibv_end_poll, for tests/system/next_poll.rs.
 *
 *   KIND QPS DEPTH ENTRIES MESSAGES   QPS queue pairs that are connected to themselves, DEPTH requests in flight on each, one
 *                                     completion queue with at least ENTRIES entries, MESSAGES in all. KIND is write, send
 *                                     or receive: sends with both completions in that queue, or with the receiver's only.
 *
 * Prints "ok entries=N longest=L": the entries of the queue, and the largest number of completions in one loop. An error
 * event of the completion queue, or a message that does not come within a minute, ends the program. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CHECK(what)                                                                                                    \
	do {                                                                                                           \
		if (!(what)) {                                                                                         \
			fprintf(stderr, "line %d: %s: %s\n", __LINE__, #what, strerror(errno));                        \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

enum { QPS_MAX = 64 };

static struct ibv_context *context;
static struct ibv_qp *qps[QPS_MAX];
static struct ibv_mr *region;
static char bytes[64];
static int sends, same_queue;

static void connect_to_itself(struct ibv_qp *qp)
{
	struct ibv_port_attr port;
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE,
	};

	CHECK(!ibv_query_port(context, 1, &port));
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = qp->qp_num;
	attr.max_dest_rd_atomic = 1;
	attr.ah_attr.dlid = port.lid;
	attr.ah_attr.port_num = 1;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = attr.rnr_retry = 7;
	attr.max_rd_atomic = 1;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
						IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

static void post(int index)
{
	struct ibv_sge sge = { (uintptr_t)bytes, 8, region->lkey };
	struct ibv_recv_wr recv = { .wr_id = index, .sg_list = &sge, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr wr = {
		.wr_id = index, .sg_list = &sge, .num_sge = 1, .opcode = sends ? IBV_WR_SEND : IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { (uintptr_t)bytes + 32, region->rkey },
	}, *bad;

	if (sends)
		CHECK(!(errno = ibv_post_recv(qps[index], &recv, &bad_recv)));
	CHECK(!(errno = ibv_post_send(qps[index], &wr, &bad)));
}

/* No event of an error has come, and the program is not late. */
static void check_on(time_t end)
{
	struct pollfd event = { .fd = context->async_fd, .events = POLLIN };

	if (poll(&event, 1, 0)) {
		struct ibv_async_event seen;

		CHECK(!ibv_get_async_event(context, &seen));
		fprintf(stderr, "asynchronous event %d (%s)\n", seen.event_type, ibv_event_type_str(seen.event_type));
		exit(1);
	}
	CHECK(time(NULL) < end);
}

int main(int argc, char **argv)
{
	struct ibv_poll_cq_attr no_attr = { 0 };
	struct ibv_cq_init_attr_ex cq_attr = { .wc_flags = IBV_WC_EX_WITH_BYTE_LEN };
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC };
	struct ibv_device **devices;
	struct ibv_wc sent;
	struct ibv_cq_ex *cq;
	struct ibv_pd *pd;
	long messages, posted = 0, done = 0, longest = 0;
	time_t end = time(NULL) + 60;
	int count, depth, each;

	if (argc != 6) {
		fprintf(stderr, "what? see the top of the source\n");
		return 2;
	}
	sends = strcmp(argv[1], "write") != 0;
	same_queue = strcmp(argv[1], "receive") != 0;
	count = atoi(argv[2]);
	depth = atoi(argv[3]);
	messages = atol(argv[5]);
	CHECK(count > 0 && count <= QPS_MAX);
	CHECK((devices = ibv_get_device_list(NULL)) && devices[0]);
	CHECK(context = ibv_open_device(devices[0]));
	CHECK(pd = ibv_alloc_pd(context));
	CHECK(region = ibv_reg_mr(pd, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
	cq_attr.cqe = atoi(argv[4]);
	CHECK(cq = ibv_create_cq_ex(context, &cq_attr));
	attr.send_cq = attr.recv_cq = ibv_cq_ex_to_cq(cq);
	attr.cap.max_send_wr = attr.cap.max_recv_wr = depth;
	if (!same_queue) {
		/* In the loop libmlx5 cannot look for room in the send queue: it holds a lock of the other one. */
		CHECK(attr.send_cq = ibv_create_cq(context, 2048, NULL, NULL, 0));
		attr.cap.max_send_wr = 1024;
	}
	attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
	each = sends && same_queue ? 2 : 1;
	for (int i = 0; i < count; i++) {
		CHECK(qps[i] = ibv_create_qp(pd, &attr));
		connect_to_itself(qps[i]);
	}
	for (int i = 0; i < count * depth && posted < messages; i++, posted++)
		post(i % count);
	while (done < messages * each) {
		long loop = 0;
		int result = ibv_start_poll(cq, &no_attr);

		if (result == ENOENT) {
			check_on(end);
			continue;
		}
		do {
			CHECK(!result);
			CHECK(cq->status == IBV_WC_SUCCESS);
			loop++;
			done++;
			/* One request for each message: its last completion is the sender's, if there is one. */
			if (posted < messages && (each == 1 || ibv_wc_read_opcode(cq) == IBV_WC_SEND)) {
				post((int)cq->wr_id);
				posted++;
			}
			result = ibv_next_poll(cq);
		} while (result != ENOENT);
		ibv_end_poll(cq);
		while (!same_queue && ibv_poll_cq(attr.send_cq, 1, &sent) == 1)
			CHECK(sent.status == IBV_WC_SUCCESS);
		end = time(NULL) + 60;
		if (loop > longest)
			longest = loop;
	}
	check_on(end);
	printf("ok entries=%d longest=%ld\n", ibv_cq_ex_to_cq(cq)->cqe + 1, longest);
	return 0;
}
