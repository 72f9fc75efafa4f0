/* Two queue pairs of one process, for programs about them. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MESSAGES 4
#define SIZE 64
#define WAIT_MS 20000

#define CHECK(what)                                                                                                    \
	do {                                                                                                           \
		if (!(what)) {                                                                                         \
			fprintf(stderr, "line %d: %s: %s\n", __LINE__, #what, strerror(errno));                        \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static uint16_t lids[3];
static char memory[2 * SIZE];

static struct ibv_qp *made(uint8_t port)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = MESSAGES, .max_recv_wr = MESSAGES, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = port, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	CHECK(qp);
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS));
	return qp;
}

static void receives(struct ibv_qp *qp, struct ibv_qp *peer, uint8_t port)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 12, .ah_attr = { .dlid = lids[port], .port_num = port },
	};

	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
}

static void sends(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1,
	};

	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
						IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

static void post(struct ibv_qp *qp)
{
	struct ibv_sge sge = { (uintptr_t)memory, SIZE, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;

	CHECK(!ibv_post_send(qp, &wr, &bad));
}

static void post_receive(struct ibv_qp *qp)
{
	struct ibv_sge sge = { (uintptr_t)memory + SIZE, SIZE, mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	CHECK(!ibv_post_recv(qp, &wr, &bad));
}

static void completes(int count)
{
	struct ibv_wc wc;

	while (count > 0) {
		int got = ibv_poll_cq(cq, 1, &wc);

		CHECK(got >= 0);
		CHECK(got == 0 || wc.status == IBV_WC_SUCCESS);
		count -= got;
	}
}

static int is_told(void)
{
	struct pollfd file = { .fd = context->async_fd, .events = POLLIN };

	return poll(&file, 1, 0);
}

static void told(struct ibv_qp *qp, enum ibv_event_type type)
{
	struct pollfd file = { .fd = context->async_fd, .events = POLLIN };
	struct ibv_async_event event;

	CHECK(poll(&file, 1, WAIT_MS) == 1);
	CHECK(!ibv_get_async_event(context, &event));
	if (event.event_type != type || event.element.qp != qp) {
		fprintf(stderr, "%s, not %s\n", ibv_event_type_str(event.event_type), ibv_event_type_str(type));
		exit(1);
	}
	ibv_ack_async_event(&event);
}

static void opened(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_device_attr device;

	CHECK(list && list[0]);
	CHECK(context = ibv_open_device(list[0]));
	CHECK(!ibv_query_device(context, &device));
	for (uint8_t at = 1; at <= device.phys_port_cnt && at < 3; at++) {
		struct ibv_port_attr port;

		CHECK(!ibv_query_port(context, at, &port));
		lids[at] = port.lid;
	}
	CHECK(pd = ibv_alloc_pd(context));
	CHECK(mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
	CHECK(cq = ibv_create_cq(context, 4 * MESSAGES, NULL, NULL, 0));
}
