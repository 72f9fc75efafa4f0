/* Asynchronous events that are no errors, for tests/system/notices.rs. Prints "ok". */
#include "queue_pairs.h"

static void drain(struct ibv_qp *qp, int notify)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_SQD, .en_sqd_async_notify = notify };
	struct ibv_qp_attr back = { .qp_state = IBV_QPS_RTS };

	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
	if (notify)
		told(qp, IBV_EVENT_SQ_DRAINED);
	/* What is posted now waits. */
	CHECK(!is_told());
	post(qp);
	CHECK(!ibv_modify_qp(qp, &back, IBV_QP_STATE));
}

int main(void)
{
	struct ibv_qp *near, *far;

	opened();
	near = made(1);
	far = made(1);
	receives(near, far, 1);
	receives(far, near, 1);
	sends(near);
	for (int i = 0; i < MESSAGES; i++)
		post_receive(far);

	/* The far queue pair is told once that data comes before it can send. */
	post(near);
	completes(2);
	told(far, IBV_EVENT_COMM_EST);
	post(near);
	completes(2);
	CHECK(!is_told());
	sends(far);

	/* A request is reported before its queue is drained. */
	drain(near, 1);
	completes(2);
	drain(near, 0);
	completes(2);
	CHECK(!is_told());

	/* A queue pair can be destroyed only after all its events were acknowledged. */
	CHECK(!ibv_destroy_qp(near));
	CHECK(!ibv_destroy_qp(far));
	puts("ok");
	return 0;
}
