/*
 * Entries of queues, in the format of mlx5 devices. Numbers of more than a byte are big-endian.
 */
#ifndef FLEXIO_DEV_QUEUE_TYPES_H
#define FLEXIO_DEV_QUEUE_TYPES_H

#include <stddef.h>
#include <stdint.h>

/* A send request of 64 bytes has 4 segments. */
#define LOG_SQE_NUM_SEGS 2

typedef uint16_t __be16;
typedef uint32_t __be32;
typedef uint64_t __be64;

#define FLEXIO_DEV_ENTRY __attribute__((packed, aligned(8)))

/* An entry of an event queue. */
struct flexio_dev_eqe {
	uint8_t rsvd00;
	uint8_t type;
	uint8_t rsvd02;
	uint8_t sub_type;
	uint8_t rsvd4[28];
	struct {
		__be32 rsvd00[6];
		__be32 cqn;
	} event_data;
	__be16 rsvd3c;
	uint8_t signature;
	uint8_t owner;
} FLEXIO_DEV_ENTRY;

/* An entry of a completion queue. */
struct flexio_dev_cqe64 {
	__be32 rsvd00[5];
	__be16 csum_ok;
	uint8_t rsvd22[2];
	__be32 rsvd24[2];
	__be32 srqn_uidx;
	union {
		struct {
			__be32 imm_inval_pkey;
			__be32 rsvd40;
		};
		/* The name of the first versions. */
		__be32 rsvd36[2];
	};
	__be32 byte_cnt;
	__be32 rsvd48;
	uint8_t hw_err_syndrome;
	uint8_t rsvd50;
	uint8_t vendor_err_synd;
	uint8_t syndrome;
	union {
		struct {
			uint8_t sop_rdrop;
			uint8_t qpn24[3];
		};
		__be32 qpn;
	};
	__be16 wqe_counter;
	union {
		uint8_t signature;
		uint8_t validity_iteration_count;
	};
	volatile uint8_t op_own;
} FLEXIO_DEV_ENTRY;

/* Segments of a send request. */
struct flexio_dev_wqe_ctrl_seg {
	__be32 idx_opcode;
	__be32 qpn_ds;
	__be32 signature_fm_ce_se;
	__be32 general_id;
} FLEXIO_DEV_ENTRY;

struct flexio_dev_wqe_eth_seg {
	__be32 rsvd0;
	__be16 cs_swp_flags;
	__be16 mss;
	__be32 rsvd2;
	__be16 inline_hdr_bsz;
	uint8_t inline_hdrs[2];
} FLEXIO_DEV_ENTRY;

struct flexio_dev_wqe_inline_data_seg {
	uint8_t inline_data[16];
} FLEXIO_DEV_ENTRY;

struct flexio_dev_wqe_rdma_seg {
	__be64 raddr;
	__be32 rkey;
	__be32 rsvd0;
} FLEXIO_DEV_ENTRY;

struct flexio_dev_wqe_mem_ptr_send_data_seg {
	__be32 byte_count;
	__be32 lkey;
	__be64 addr;
} FLEXIO_DEV_ENTRY;

struct flexio_dev_wqe_inline_send_data_seg {
	__be32 byte_count;
	__be32 data_and_padding[3];
} FLEXIO_DEV_ENTRY;

struct flexio_dev_wqe_atomic_seg {
	__be64 swap_or_add_data;
	__be64 compare_data;
} FLEXIO_DEV_ENTRY;

struct flexio_dev_wqe_transpose_seg {
	uint8_t rsvd0[3];
	uint8_t element_size;
	uint8_t rsvd1;
	uint8_t num_of_cols;
	uint8_t rsvd2;
	uint8_t num_of_rows;
	uint8_t rsvd4[8];
} FLEXIO_DEV_ENTRY;

/* The address of a datagram: one segment, or three. */
struct flexio_dev_wqe_datagram_seg {
	union {
		struct {
			union {
				struct {
					__be32 qkey;
					__be32 reserved;
				} qkey;
				__be64 dc_key;
			} key;
			__be32 ext_dqp_dct;
			uint8_t stat_rate_sl;
			uint8_t fl_mlid;
			__be16 rlid;
		} s1;
		struct {
			uint8_t reserved0[4];
			uint8_t rmac[6];
			uint8_t tclass;
			uint8_t hop_limit;
			__be32 grh_gid_fl;
		} s2;
		struct {
			uint8_t rgid[16];
		} s3;
	};
} FLEXIO_DEV_ENTRY;

union flexio_dev_sqe_seg {
	struct flexio_dev_wqe_ctrl_seg ctrl;
	struct flexio_dev_wqe_eth_seg eth;
	struct flexio_dev_wqe_inline_data_seg inline_data;
	struct flexio_dev_wqe_rdma_seg rdma;
	struct flexio_dev_wqe_mem_ptr_send_data_seg mem_ptr_send_data;
	struct flexio_dev_wqe_inline_send_data_seg inline_send_data;
	struct flexio_dev_wqe_atomic_seg atomic;
	struct flexio_dev_wqe_transpose_seg transpose;
	struct flexio_dev_wqe_datagram_seg adres_vector;
};

/* An entry of a receive queue. */
struct flexio_dev_wqe_rcv_data_seg {
	__be32 byte_count;
	__be32 lkey;
	__be64 addr;
} FLEXIO_DEV_ENTRY;

/* An entry of a shared receive queue: the link to the next one. */
struct flexio_dev_wqe_shared_receive_seg {
	uint8_t rsvd0[2];
	__be16 next_wqe_index;
	uint8_t signature;
	uint8_t rsvd1[11];
} FLEXIO_DEV_ENTRY;

#ifndef __cplusplus
_Static_assert(sizeof(struct flexio_dev_eqe) == 64, "layout of an event");
_Static_assert(offsetof(struct flexio_dev_eqe, event_data.cqn) == 0x38, "layout of an event");
_Static_assert(sizeof(struct flexio_dev_cqe64) == 64, "layout of a completion");
_Static_assert(offsetof(struct flexio_dev_cqe64, byte_cnt) == 0x2c, "layout of a completion");
_Static_assert(offsetof(struct flexio_dev_cqe64, syndrome) == 0x37, "layout of a completion");
_Static_assert(offsetof(struct flexio_dev_cqe64, qpn) == 0x38, "layout of a completion");
_Static_assert(sizeof(union flexio_dev_sqe_seg) == 16, "layout of a segment");
#endif

#endif
