/* A forked child posts on its parent's queue pair and rings its doorbell, for tests/system/polling.rs.
 *
 * Rings and doorbell records are in shared memory, so an adapter finds the child's requests there. The
 * parent waits for the bytes of each write and for its completion. Prints "ok N" for N writes.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WRITES = 20, POOL = 1 << 20, SECONDS = 20 };

static char *pool;
static size_t used;

#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #what, strerror(errno));                                    \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static void *take(struct ibv_pd *pd, void *context, size_t size, size_t alignment, uint64_t type)
{
    (void)pd, (void)context, (void)type;
    used = (used + alignment - 1) / alignment * alignment;
    CHECK(used + size <= POOL);
    used += size;
    return pool + used - size;
}

static void leave(struct ibv_pd *pd, void *context, void *memory, uint64_t type)
{
    (void)pd, (void)context, (void)memory, (void)type;
}

static void connect_to(struct ibv_qp *qp, const struct ibv_qp *to, uint16_t lid)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };

    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = to->qp_num,
                                 .ah_attr = { .dlid = lid, .port_num = 1 } };
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7 };
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                        IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

int main(void)
{
    struct ibv_device **devices = ibv_get_device_list(NULL);
    struct ibv_context *context;
    struct ibv_parent_domain_init_attr domain = { .alloc = take, .free = leave,
                                                  .comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS };
    struct ibv_qp_init_attr init = { .cap = { .max_send_wr = 2 * WRITES, .max_recv_wr = 1, .max_send_sge = 1,
                                              .max_recv_sge = 1 },
                                     .qp_type = IBV_QPT_RC, .sq_sig_all = 1 };
    struct ibv_port_attr port;
    struct ibv_qp *qp, *other;
    struct ibv_pd *pd;
    struct ibv_mr *mr;
    volatile uint64_t *words;
    time_t end;
    pid_t child;
    int status;

    pool = mmap(NULL, POOL, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    words = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(pool != MAP_FAILED && words != MAP_FAILED && devices && devices[0]);
    CHECK(context = ibv_open_device(devices[0]));
    CHECK(!ibv_query_port(context, 1, &port));
    CHECK(domain.pd = ibv_alloc_pd(context));
    CHECK(mr = ibv_reg_mr(domain.pd, (void *)words, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
    CHECK(pd = ibv_alloc_parent_domain(context, &domain));
    CHECK(init.send_cq = init.recv_cq = ibv_create_cq(context, 4 * WRITES, NULL, NULL, 0));
    CHECK((qp = ibv_create_qp(pd, &init)) && (other = ibv_create_qp(pd, &init)));
    CHECK(used);
    connect_to(qp, other, port.lid);
    connect_to(other, qp, port.lid);
    for (int i = 0; i < WRITES; i++)
        words[i] = 1000 + i;

    CHECK((child = fork()) >= 0);
    if (!child) {
        for (int i = 0; i < WRITES; i++) {
            struct ibv_sge sge = { (uintptr_t)&words[i], sizeof(*words), mr->lkey };
            struct ibv_send_wr *bad, wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
                                            .wr.rdma = { (uintptr_t)&words[256 + i], mr->rkey } };

            CHECK(!ibv_post_send(qp, &wr, &bad));
        }
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    end = time(NULL) + SECONDS;
    while (words[256 + WRITES - 1] != 1000 + WRITES - 1) {
        CHECK(time(NULL) < end);
        sched_yield();
    }
    for (int i = 0; i < WRITES; i++)
        CHECK(words[256 + i] == (uint64_t)(1000 + i));
    for (int i = 0; i < WRITES;) {
        struct ibv_wc wc;
        int found = ibv_poll_cq(init.send_cq, 1, &wc);

        CHECK(found >= 0 && time(NULL) < end);
        if (!found)
            sched_yield();
        else
            CHECK(wc.status == IBV_WC_SUCCESS && ++i);
    }
    printf("ok %d\n", WRITES);
    return 0;
}
