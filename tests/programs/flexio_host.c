/* A program of FlexIO in C: remote calls with arguments of several types, queues, an event handler, messages, a fault. */
#include <stdlib.h>
#include <string.h>
#include <infiniband/mlx5dv.h>
#include <libflexio/flexio.h>
#include "flexio_shared.h"

#define CHECK(condition)                                                                                               \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			printf("line %d: %s\n", __LINE__, #condition);                                                 \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)
#define DONE(call) CHECK((call) == FLEXIO_STATUS_SUCCESS)

extern struct flexio_app *flexio_test_app;
extern flexio_func_t mixed, total, wrong, post, on_completion, task;

enum { LOG_CQ = 3, LOG_SQ = 2, LOG_RQ = 2 };

static struct flexio_process *process;

static flexio_uintptr_t zeroed(size_t bytes)
{
	flexio_uintptr_t address;
	DONE(flexio_buf_dev_alloc(process, bytes, &address));
	DONE(flexio_buf_dev_memset(process, 0, bytes, address));
	return address;
}

static struct flexio_cq *queue(struct flexio_thread *thread, flexio_uintptr_t *ring)
{
	uint8_t bytes[64 << LOG_CQ] = {0};
	struct flexio_cq_attr attr = {0};
	struct flexio_cq *cq;

	for (size_t at = 63; at < sizeof(bytes); at += 64)
		bytes[at] = 0xf1;
	DONE(flexio_copy_from_host(process, bytes, sizeof(bytes), ring));
	attr.log_cq_depth = LOG_CQ;
	attr.element_type = thread ? FLEXIO_CQ_ELEMENT_TYPE_DPA_THREAD : FLEXIO_CQ_ELEMENT_TYPE_NON_DPA_CQ;
	attr.thread = thread;
	attr.uar_id = flexio_uar_get_id(flexio_process_get_uar(process));
	attr.cq_dbr_daddr = zeroed(8);
	attr.cq_ring_qmem.daddr = *ring;
	DONE(flexio_cq_create(process, NULL, &attr, &cq));
	return cq;
}

static struct flexio_qp *pair_of(struct flexio_outbox *outbox, struct flexio_cq *cq, struct work *work)
{
	struct flexio_qp_attr attr = {0};
	struct flexio_qp *qp;

	attr.transport_type = FLEXIO_QPC_ST_RC;
	attr.log_sq_depth = LOG_SQ;
	attr.log_rq_depth = LOG_RQ;
	attr.rq_type = FLEXIO_QP_QPC_RQ_TYPE_REGULAR;
	attr.qp_wq_buff_qmem.daddr = zeroed((64 << LOG_SQ) + (16 << LOG_RQ));
	attr.qp_wq_dbr_qmem.daddr = zeroed(8);
	attr.uar_id = flexio_uar_get_id(flexio_outbox_get_uar(outbox));
	attr.sq_cqn = attr.rq_cqn = flexio_cq_get_cq_num(cq);
	DONE(flexio_qp_create(process, NULL, &attr, &qp));
	work->qpn = flexio_qp_get_qp_num(qp);
	work->send_ring = attr.qp_wq_buff_qmem.daddr + (16 << LOG_RQ);
	work->qp_record = attr.qp_wq_dbr_qmem.daddr;
	return qp;
}

static void connect_to(struct flexio_qp *qp, uint32_t remote, uint16_t lid)
{
	struct flexio_qp_attr_opt_param_mask mask = {0};
	struct flexio_qp_attr attr = {0};

	attr.remote_qp_num = remote;
	attr.rlid = lid;
	attr.path_mtu = FLEXIO_QP_QPC_MTU_BYTES_4K;
	attr.min_rnr_nak_timer = 1;
	attr.vhca_port_num = 1;
	attr.qp_access_mask = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE;
	for (int state = FLEXIO_QP_STATE_INIT; state <= FLEXIO_QP_STATE_RTS; state++) {
		attr.next_state = state;
		DONE(flexio_qp_modify(qp, &attr, &mask));
	}
}

/* The DPA writes from memory of the host to another one; the completion activates a handler. */
static void write_by_kernel(struct ibv_context *context)
{
	struct flexio_event_handler_attr handler_attr = {.host_stub_func = on_completion};
	struct flexio_event_handler *handler;
	struct flexio_outbox_attr outbox_attr = {0};
	struct flexio_outbox *outbox;
	struct flexio_cq *cq, *other;
	struct flexio_qp *one, *two;
	struct ibv_port_attr port;
	struct work work = {0}, peer = {0};
	flexio_uintptr_t address, ring;
	uint64_t source = 0x1122334455667788, result;
	volatile uint64_t target = 0;
	struct ibv_pd *pd = flexio_process_get_pd(process);
	int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	struct ibv_mr *from = ibv_reg_mr(pd, &source, sizeof(source), 0);
	struct ibv_mr *to = ibv_reg_mr(pd, (void *)&target, sizeof(target), rights);

	CHECK(from && to && ibv_query_port(context, 1, &port) == 0);
	DONE(flexio_outbox_create(process, &outbox_attr, &outbox));
	DONE(flexio_event_handler_create(process, &handler_attr, &handler));
	cq = queue(flexio_event_handler_get_thread(handler), &work.cq_ring);
	other = queue(NULL, &ring);
	one = pair_of(outbox, cq, &work);
	two = pair_of(outbox, other, &peer);
	connect_to(one, peer.qpn, port.lid);
	connect_to(two, work.qpn, port.lid);
	work.outbox = flexio_outbox_get_id(outbox);
	work.source = (uintptr_t)&source;
	work.source_key = from->lkey;
	work.target = (uintptr_t)&target;
	work.target_key = to->rkey;
	DONE(flexio_copy_from_host(process, &work, sizeof(work), &address));
	DONE(flexio_event_handler_run(handler, address));
	DONE(flexio_process_call(process, post, &result, address));
	CHECK(result == 0);
	/* The number of questions only bounds a hang. */
	for (int at = 0; at < 1000000 && work.completed == 0; at++)
		DONE(flexio_dev2host_memcpy(process, &work, sizeof(work), address));
	CHECK(work.completed == 1);
	CHECK(target == source);
	DONE(flexio_qp_destroy(one));
	DONE(flexio_qp_destroy(two));
	DONE(flexio_cq_destroy(cq));
	DONE(flexio_cq_destroy(other));
	DONE(flexio_event_handler_destroy(handler));
	DONE(flexio_outbox_destroy(outbox));
	CHECK(ibv_dereg_mr(from) == 0 && ibv_dereg_mr(to) == 0);
}

/* Tasks of a command queue, and an event queue that nothing uses. */
static void tasks(void)
{
	struct flexio_cmdq_attr attr = {.workers = 3, .batch_size = 2, .state = FLEXIO_CMDQ_STATE_PENDING};
	struct flexio_eq_attr events = {.log_eq_ring_depth = 2};
	flexio_uintptr_t counter = zeroed(8);
	struct flexio_cmdq *queue;
	struct flexio_eq *eq;
	uint64_t count;

	DONE(flexio_cmdq_create(process, &attr, &queue));
	for (int at = 0; at < 20; at++)
		DONE(flexio_cmdq_task_add(queue, task, counter));
	CHECK(flexio_cmdq_task_add(queue, mixed, counter) == FLEXIO_STATUS_FAILED);
	CHECK(!flexio_cmdq_is_empty(queue));
	DONE(flexio_cmdq_state_running(queue));
	while (!flexio_cmdq_is_empty(queue))
		;
	DONE(flexio_dev2host_memcpy(process, &count, 8, counter));
	CHECK(count == 20);
	DONE(flexio_cmdq_destroy(queue));
	attr.workers = 0;
	CHECK(flexio_cmdq_create(process, &attr, &queue) == FLEXIO_STATUS_FAILED);
	DONE(flexio_eq_create(process, NULL, &events, &eq));
	CHECK(flexio_eq_get_eq_num(eq) != 0 && flexio_eq_get_ring_daddr(eq) % 64 == 0);
	DONE(flexio_eq_destroy(eq));
}

int main(void)
{
	struct mlx5dv_context_attr context_attr = {.flags = MLX5DV_CONTEXT_FLAGS_DEVX};
	flexio_msg_stream_attr_t stream_attr = {.data_bsize = 4096};
	struct flexio_msg_stream *stream;
	struct flexio_process *again;
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = mlx5dv_open_device(list[0], &context_attr);
	struct pair pair = {4, 5};
	uint64_t words[3] = {7, 8, 9}, result = 0;
	flexio_uintptr_t address;

	CHECK(context);
	DONE(flexio_process_create(context, flexio_test_app, NULL, &process));
	DONE(flexio_msg_stream_create(process, &stream_attr, stdout, NULL, &stream));
	DONE(flexio_process_call(process, mixed, &result, (uint8_t)1, (int32_t)2, (uint64_t)3, pair, (uint64_t)6, (uint64_t)7,
				 (uint64_t)8));
	CHECK(result == 87654321);
	DONE(flexio_copy_from_host(process, words, sizeof(words), &address));
	DONE(flexio_process_call(process, total, &result, address, (uint64_t)3));
	CHECK(result == 24);
	write_by_kernel(context);
	tasks();
	DONE(flexio_err_status_get(process));

	/* A fault is the end of the process, and of no other. */
	CHECK(flexio_process_call(process, wrong, &result, (uint64_t)0x10) == FLEXIO_STATUS_FATAL_ERR);
	CHECK(flexio_err_status_get(process) == FLEXIO_STATUS_FATAL_ERR);
	CHECK(flexio_buf_dev_alloc(process, 8, &address) == FLEXIO_STATUS_FATAL_ERR);
	/* Its registers and memory are still there. */
	DONE(flexio_coredump_create(process, "flexio_test"));
	CHECK(flexio_coredump_create(process, "/nowhere/flexio_test") == FLEXIO_STATUS_FAILED);
	DONE(flexio_process_create(context, flexio_test_app, NULL, &again));
	DONE(flexio_msg_stream_destroy(stream));
	DONE(flexio_process_destroy(process));
	process = again;
	DONE(flexio_copy_from_host(process, words, sizeof(words), &address));
	DONE(flexio_process_call(process, total, &result, address, (uint64_t)2));
	CHECK(result == 15);
	DONE(flexio_process_destroy(process));
	ibv_close_device(context);
	ibv_free_device_list(list);
	printf("ok\n");
	return 0;
}
