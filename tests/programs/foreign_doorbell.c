/* Doorbell registers, for tests/system/trap.rs: each half of a queue pair's own one rings it. A register of another
 * page, or of another queue pair in the same page, does not. Prints "ok" and the size of a half.
 */
#include <endian.h>
#include <errno.h>
#include <infiniband/mlx5dv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { QPS = 3, ENTRIES = 16, SIGNALED = 8 };

#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #what, strerror(errno));                                    \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static struct ibv_context *context;
static struct ibv_cq *cq;
static struct ibv_qp *qps[QPS];
static struct mlx5dv_qp raw[QPS];
static uint16_t posted[QPS];

static void connect_to_itself(struct ibv_qp *qp)
{
    struct ibv_port_attr port;
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

    CHECK(!ibv_query_port(context, 1, &port));
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_512;
    attr.dest_qp_num = qp->qp_num;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.dlid = port.lid;
    attr.ah_attr.is_global = 1;
    CHECK(!ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid));
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    attr.qp_state = IBV_QPS_RTS;
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                        IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

/* Writes a NOP that reports its completion, and what a doorbell for it says. */
static uint64_t write_nop(int number)
{
    struct mlx5dv_qp *qp = &raw[number];
    uint32_t words[4] = { htobe32((uint32_t)posted[number] << 8 | MLX5_OPCODE_NOP),
                          htobe32(qps[number]->qp_num << 8 | 1), htobe32(SIGNALED), 0 };
    uint64_t doorbell;

    memcpy((char *)qp->sq.buf + posted[number] % qp->sq.wqe_cnt * qp->sq.stride, words, sizeof(words));
    posted[number]++;
    __sync_synchronize();
    qp->dbrec[1] = htobe32(posted[number]);
    __sync_synchronize();
    memcpy(&doorbell, words, sizeof(doorbell));
    return doorbell;
}

static void ring(int number, uint32_t offset, uint64_t doorbell)
{
    *(volatile uint64_t *)((char *)raw[number].bf.reg + offset) = doorbell;
    __sync_synchronize();
}

/* Completions that there are. A doorbell is answered before the store is over. */
static int completions(void)
{
    struct ibv_wc wc;
    int count = 0;

    while (ibv_poll_cq(cq, 1, &wc) == 1) {
        CHECK(wc.status == IBV_WC_SUCCESS);
        count++;
    }
    return count;
}

int main(void)
{
    struct ibv_device **devices = ibv_get_device_list(NULL);
    struct ibv_pd *pd;
    uint64_t doorbell;
    uint32_t half;

    CHECK(devices && devices[0] && (context = ibv_open_device(devices[0])));
    CHECK((pd = ibv_alloc_pd(context)) && (cq = ibv_create_cq(context, ENTRIES, NULL, NULL, 0)));
    for (int i = 0; i < QPS; i++) {
        struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
                                         .cap = { .max_send_wr = ENTRIES, .max_send_sge = 1 } };
        struct mlx5dv_obj object = { .qp = { .out = &raw[i] } };

        CHECK(object.qp.in = qps[i] = ibv_create_qp(pd, &init));
        CHECK(!mlx5dv_init_obj(&object, MLX5DV_OBJ_QP));
        connect_to_itself(qps[i]);
    }
    half = raw[0].bf.size;
    /* The first two share a page, each with a register of its own; the third has another page. */
    CHECK(raw[0].bf.reg != raw[1].bf.reg && raw[0].bf.reg != raw[2].bf.reg && half);
    for (int i = 0; i < QPS; i++)
        for (uint32_t offset = 0; offset <= half; offset += half) {
            ring(i, offset, write_nop(i));
            CHECK(completions() == 1);
        }
    for (int other = 1; other < QPS; other++) {
        doorbell = write_nop(0);
        ring(other, 0, doorbell);
        CHECK(completions() == 0);
        ring(0, 0, doorbell);
        CHECK(completions() == 1);
    }
    printf("ok %u\n", half);
    return 0;
}
