/*
 * Functions of queues. As a program of the host it prints the bytes that they write; as a kernel it also rings the doorbells.
 */
#include <libflexio-dev/flexio_dev_queue_access.h>

static void fill(union flexio_dev_sqe_seg *seg)
{
	uint8_t headers[2] = {0xaa, 0xbb};
	uint32_t data[3] = {0x04030201, 0x08070605, 0x0c0b0a09};

	flexio_dev_swqe_seg_ctrl_set(&seg[0], 0x12345, 0xabcdef, MLX5_CTRL_SEG_CE_CQE_ALWAYS, FLEXIO_CTRL_SEG_RDMA_WRITE);
	flexio_dev_swqe_seg_rdma_set(&seg[1], 0x01020304, 0x1122334455667788);
	flexio_dev_swqe_seg_mem_ptr_data_set(&seg[2], 4096, 0x05060708, 0x99aabbccddeeff00);
	flexio_dev_swqe_seg_inline_data_set(&seg[3], 12, data);
	flexio_dev_swqe_seg_atomic_set(&seg[4], 1, 2);
	flexio_dev_swqe_seg_eth_set(&seg[5], 0xc000, 1500, 18, headers);
	flexio_dev_swqe_seg_av1_set(&seg[6], 0x11111111, 0x222222, 1, 3, 4, 0x5566);
	flexio_dev_swqe_seg_ctrl_set(&seg[7], 7, 8, MLX5_CTRL_SEG_CE_CQE_ON_CQE_ERROR, FLEXIO_CTRL_SEG_LDMA);
}

#ifdef __riscv
#if FLEXIO_DEV_VER_USED >= FLEXIO_DEV_VER(24, 10, 0)
#define RING(NAME, ...) NAME(__VA_ARGS__)
#else
#define RING(NAME, ...) NAME((struct flexio_dev_thread_ctx *)0, __VA_ARGS__)
#endif

flexio_dev_event_handler_t ring;
__dpa_global__ void ring(uint64_t arg)
{
	fill((union flexio_dev_sqe_seg *)arg);
	flexio_dev_dbr_sq_set_pi((uint32_t *)arg, 1);
	RING(flexio_dev_qp_sq_ring_db, 1, 2);
	RING(flexio_dev_cq_arm, 3, 4);
	RING(flexio_dev_eq_update_ci, 5, 6);
	RING(flexio_dev_zcqe_gen, 7);
	RING(flexio_dev_msix_send, 8);
	flexio_dev_thread_reschedule();
}
#else
#include <stdio.h>
#include <string.h>

int main(void)
{
	union flexio_dev_sqe_seg seg[8];
	struct flexio_dev_cqe64 cqe;
	uint32_t record[3] = {0xffffffff, 0xffff0000, 0};
	unsigned char bytes[64];

	memset(seg, 0xee, sizeof(seg));
	fill(seg);
	for (unsigned int at = 0; at < 8; at++) {
		for (unsigned int byte = 0; byte < 16; byte++)
			printf("%02x", ((unsigned char *)&seg[at])[byte]);
		printf("\n");
	}
	flexio_dev_dbr_sq_set_pi(&record[0], 0x12345);
	flexio_dev_dbr_rq_inc_pi(&record[1]);
	flexio_dev_dbr_cq_set_ci(&record[2], 0x1234567);
	printf("%08x %08x %08x\n", record[0], record[1], record[2]);
	for (unsigned int at = 0; at < 64; at++)
		bytes[at] = (unsigned char)at;
	memcpy(&cqe, bytes, sizeof(cqe));
	printf("%x %x %x %x %x %x %x %x\n", flexio_dev_cqe_get_owner(&cqe), flexio_dev_cqe_get_opcode(&cqe),
	       flexio_dev_cqe_get_qpn(&cqe), flexio_dev_cqe_get_wqe_counter(&cqe), flexio_dev_cqe_get_byte_cnt(&cqe),
	       flexio_dev_cqe_get_user_index(&cqe), flexio_dev_cqe_get_err_synd(&cqe), flexio_dev_cqe_get_csum_ok(&cqe));
	printf("%d\n", flexio_dev_swqe_seg_ctrl_set(seg, 0, 0, 0, (enum flexio_ctrl_seg)99));
	return 0;
}
#endif
