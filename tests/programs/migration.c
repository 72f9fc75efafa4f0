/* Migration to alternate paths, for tests/system/notices.rs, which changes the ports: a port goes down after the program has
 * said so, and the program continues after a line. The last line is "ok". */
#include "queue_pairs.h"

static void is_in(struct ibv_qp *qp, enum ibv_mig_state state, uint8_t port)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	CHECK(!ibv_query_qp(qp, &attr, IBV_QP_PATH_MIG_STATE | IBV_QP_AV, &init));
	if (attr.path_mig_state != state || attr.ah_attr.port_num != port || attr.ah_attr.dlid != lids[port]) {
		fprintf(stderr, "state %d, port %d, LID %d, not state %d, port %d, LID %d\n", attr.path_mig_state,
			attr.ah_attr.port_num, attr.ah_attr.dlid, state, port, lids[port]);
		exit(1);
	}
}

static int loads(struct ibv_qp *qp, uint8_t port, uint8_t to, enum ibv_mig_state state)
{
	struct ibv_qp_attr attr = {
		.alt_ah_attr = { .dlid = lids[to], .port_num = port }, .alt_port_num = port, .alt_timeout = 10,
		.path_mig_state = state,
	};

	return ibv_modify_qp(qp, &attr, IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE);
}

static void message(struct ibv_qp *near, struct ibv_qp *far, char byte)
{
	post_receive(far);
	memset(memory, byte, SIZE);
	post(near);
	completes(2);
	CHECK(!memcmp(memory, memory + SIZE, SIZE));
}

/* A change of a port by the test. Its own events are read. */
static void change(const char *what, enum ibv_event_type type)
{
	struct ibv_async_event event;

	puts(what);
	fflush(stdout);
	CHECK(getchar() == '\n');
	CHECK(!ibv_get_async_event(context, &event));
	CHECK(event.event_type == type);
	ibv_ack_async_event(&event);
}

/* The kernel has no alternate paths on Ethernet. */
static int refuses(void)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
		.ah_attr = { .port_num = 1, .is_global = 1, .grh = { .hop_limit = 1 } },
		.alt_ah_attr = { .port_num = 2, .is_global = 1, .grh = { .hop_limit = 1 } }, .alt_port_num = 2,
	};
	int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	struct ibv_qp *qp = made(1);

	CHECK(!ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid));
	CHECK(!ibv_query_gid(context, 2, 0, &attr.alt_ah_attr.grh.dgid));
	attr.dest_qp_num = qp->qp_num;
	CHECK(ibv_modify_qp(qp, &attr, mask | IBV_QP_ALT_PATH) == EINVAL);
	CHECK(!ibv_modify_qp(qp, &attr, mask));
	puts("ok");
	return 0;
}

int main(int count, char **words)
{
	struct ibv_qp_attr migrated = { .path_mig_state = IBV_MIG_MIGRATED };
	struct ibv_qp *near, *far;
	struct ibv_device_attr device;
	struct ibv_wc wc;

	opened();
	if (count > 1 && !strcmp(words[1], "ethernet"))
		return refuses();
	CHECK(!ibv_query_device(context, &device));
	CHECK(device.device_cap_flags & IBV_DEVICE_AUTO_PATH_MIG);
	near = made(1);
	far = made(1);
	receives(near, far, 1);
	receives(far, near, 1);
	sends(near);
	sends(far);

	/* The next message arms both ends. */
	is_in(near, IBV_MIG_MIGRATED, 1);
	CHECK(loads(near, 3, 2, IBV_MIG_REARM) == EINVAL);
	CHECK(loads(near, 2, 2, IBV_MIG_ARMED) == EINVAL);
	CHECK(!loads(near, 2, 2, IBV_MIG_REARM));
	message(near, far, 1);
	is_in(near, IBV_MIG_REARM, 1);
	CHECK(!loads(far, 2, 2, IBV_MIG_REARM));
	message(near, far, 2);
	is_in(near, IBV_MIG_ARMED, 1);
	is_in(far, IBV_MIG_ARMED, 1);
	CHECK(!is_told());

	/* The path fails: the request succeeds on the other one, once and with its data. */
	change("down 1", IBV_EVENT_PORT_ERR);
	message(near, far, 3);
	told(near, IBV_EVENT_PATH_MIG);
	told(far, IBV_EVENT_PATH_MIG);
	is_in(near, IBV_MIG_MIGRATED, 2);
	is_in(far, IBV_MIG_MIGRATED, 2);
	message(far, near, 4);
	change("up 1", IBV_EVENT_PORT_ACTIVE);

	/* Back by command. The peer follows with the next message. */
	CHECK(!loads(near, 1, 1, IBV_MIG_REARM));
	CHECK(!loads(far, 1, 1, IBV_MIG_REARM));
	message(far, near, 5);
	CHECK(!ibv_modify_qp(near, &migrated, IBV_QP_PATH_MIG_STATE));
	told(near, IBV_EVENT_PATH_MIG);
	is_in(near, IBV_MIG_MIGRATED, 1);
	is_in(far, IBV_MIG_ARMED, 2);
	message(near, far, 6);
	told(far, IBV_EVENT_PATH_MIG);
	is_in(far, IBV_MIG_MIGRATED, 1);
	CHECK(!is_told());

	/* The peer has another alternate path: it refuses, and the request fails. */
	CHECK(!loads(near, 2, 2, IBV_MIG_REARM));
	CHECK(!loads(far, 1, 2, IBV_MIG_REARM));
	message(near, far, 7);
	CHECK(!ibv_modify_qp(near, &migrated, IBV_QP_PATH_MIG_STATE));
	told(near, IBV_EVENT_PATH_MIG);
	post_receive(far);
	post(near);
	told(far, IBV_EVENT_PATH_MIG_ERR);
	while (!ibv_poll_cq(cq, 1, &wc))
		;
	CHECK(wc.status == IBV_WC_RETRY_EXC_ERR);
	CHECK(!is_told());
	CHECK(!ibv_destroy_qp(near));
	CHECK(!ibv_destroy_qp(far));
	puts("ok");
	return 0;
}
