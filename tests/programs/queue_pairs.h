/* Two queue pairs of one process, for programs about them. */
#include <poll.h>

#include "connection.h"

#define MESSAGES 4
#define SIZE 64
#define WAIT_MS 20000

static struct ibv_mr *mr;
static uint16_t lids[3];
static char memory[2 * SIZE];

static struct ibv_qp *made(uint8_t port)
{
	return made_with(MESSAGES, port, IBV_ACCESS_REMOTE_WRITE);
}

static void receives(struct ibv_qp *qp, struct ibv_qp *peer, uint8_t port)
{
	struct ibv_ah_attr way = { .dlid = lids[port], .port_num = port };

	receives_from(qp, peer->qp_num, way, 12);
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
	struct ibv_device_attr device;

	opened_with(4 * MESSAGES);
	CHECK(!ibv_query_device(context, &device));
	for (uint8_t at = 1; at <= device.phys_port_cnt && at < 3; at++) {
		struct ibv_port_attr port;

		CHECK(!ibv_query_port(context, at, &port));
		lids[at] = port.lid;
	}
	CHECK(mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
}
