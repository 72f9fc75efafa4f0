/* A process with an mlx5 device that executes commands, one per line, through stock libibverbs and libmlx5.
 *
 * tests/system/rules.rs drives several of these in different functions to test the rules of the device.
 * Each command is one line on standard input, and gets one line on standard output: "ok key=value ..." or
 * "error what: why". Numbers are decimal or 0x.... It uses no code of the project, so that an
 * error in our wire formats cannot cancel out. Command layouts: PRM as in rdma-core's providers/mlx5/mlx5_ifc.h.
 */
#define _GNU_SOURCE
#include "agent.h"
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <poll.h>
#include <rdma/rdma_user_ioctl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>

enum {
	SLOTS = 32,      /* of each kind of object; a test uses a handful */
	POLL_LIMIT_S = 20, /* time limit of a completion */
	KEY_BYTES = 32,  /* access key of ALLOW_OTHER_VHCA_ACCESS */
	ATTRS = 8,       /* of a hand-written call into the kernel */
	RECEIVES = 16,   /* entries of a receive queue */
	OP_QUERY_HCA_CAP = 0x100,
	OP_CREATE_MKEY = 0x200,
	OP_ALLOW_OTHER_VHCA_ACCESS = 0xb16,
	OP_CREATE_GENERAL_OBJECT = 0xa00,
	OBJ_MKEY = 0xff01,
	ACCESS_MODE_KSM = 3,
};

static struct ibv_context *ctx;
static struct ibv_pd *pds[2]; /* the second one is for tests of a wrong domain */
static struct ibv_cq *cq;
static uint32_t pdn;

static struct {
	uint8_t *addr;
	size_t size;
	struct ibv_mr *mr;
} mems[SLOTS];

static struct mlx5dv_mkey *umrs[SLOTS];
static struct mlx5dv_devx_obj *objs[SLOTS]; /* KSM mkeys and aliases */
static struct ibv_qp *qps[SLOTS];
static struct ibv_qp *umr_qp;

static int refused(const char *what, const uint8_t *out)
{
	uint32_t syndrome;

	memcpy(&syndrome, out + 4, 4);
	answer("error %s: status 0x%x syndrome 0x%x errno %d", what, out[0], be32toh(syndrome), errno);
	return -1;
}

static unsigned slot(const char *word)
{
	return place(word, SLOTS);
}

/* Waits for one completion on the only CQ; at most one request is outstanding. */
static int poll_one(struct ibv_wc *wc)
{
	struct timespec start, now;
	int n;

	clock_gettime(CLOCK_MONOTONIC, &start);
	do {
		n = ibv_poll_cq(cq, 1, wc);
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (n == 0 && now.tv_sec - start.tv_sec < POLL_LIMIT_S);
	return n;
}

static struct ibv_qp *create_qp(int with_umr)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 16, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1,
			 .max_inline_data = 64 },
		.qp_type = IBV_QPT_RC,
		.pd = pds[0],
		.comp_mask = IBV_QP_INIT_ATTR_PD,
	};
	struct mlx5dv_qp_init_attr dv = {
		.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS,
		.send_ops_flags = MLX5DV_QP_EX_WITH_MR_LIST | MLX5DV_QP_EX_WITH_MR_INTERLEAVED,
	};

	if (with_umr) {
		/* The send queue needs space for work requests as large as a UMR. */
		attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
		attr.send_ops_flags = IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV;
		return mlx5dv_create_qp(ctx, &attr, &dv);
	}
	return ibv_create_qp_ex(ctx, &attr);
}

static int connect_qp(struct ibv_qp *qp, uint32_t remote_qpn, uint16_t remote_lid)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |
				   IBV_ACCESS_REMOTE_ATOMIC,
	};
	int rc;

	rc = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	if (rc)
		return rc;
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_4096,
		.dest_qp_num = remote_qpn,
		.max_dest_rd_atomic = 16,
		.min_rnr_timer = 12,
		.ah_attr = { .dlid = remote_lid, .port_num = 1 },
	};
	rc = ibv_modify_qp(qp, &attr,
			   IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (rc)
		return rc;
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 16,
	};
	return ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				     IBV_QP_MAX_QP_RD_ATOMIC);
}

/* open: the first device, two protection domains, one CQ. Answers vhca and lid. */
static int do_open(void)
{
	uint8_t in[16] = { 0 }, out[16 + 4096] = { 0 };
	struct mlx5dv_context_attr devx = { .flags = MLX5DV_CONTEXT_FLAGS_DEVX };
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_port_attr port;
	struct mlx5dv_pd dv_pd;
	struct mlx5dv_obj obj;

	if (!list || !list[0])
		return failed("no device");
	ctx = mlx5dv_open_device(list[0], &devx);
	if (!ctx)
		return failed("mlx5dv_open_device");
	for (int i = 0; i < 2; i++) {
		pds[i] = ibv_alloc_pd(ctx);
		if (!pds[i])
			return failed("ibv_alloc_pd");
	}
	obj.pd.in = pds[0];
	obj.pd.out = &dv_pd;
	if (mlx5dv_init_obj(&obj, MLX5DV_OBJ_PD))
		return failed("mlx5dv_init_obj");
	pdn = dv_pd.pdn;
	cq = ibv_create_cq(ctx, 256, NULL, NULL, 0);
	if (!cq)
		return failed("ibv_create_cq");
	if (ibv_query_port(ctx, 1, &port))
		return failed("ibv_query_port");
	put16(in, OP_QUERY_HCA_CAP);
	put16(in + 6, 0 << 1 | 1); /* general capabilities, current values */
	if (mlx5dv_devx_general_cmd(ctx, in, sizeof(in), out, sizeof(out)))
		return refused("QUERY_HCA_CAP", out);
	answer("ok vhca=%u lid=%u device=%s", out[16 + 6] << 8 | out[16 + 7], port.lid,
	       ibv_get_device_name(list[0]));
	return 0;
}

static int access_flags(const char *word)
{
	int flags = 0;

	for (; word && *word; word++) {
		switch (*word) {
		case 'w': flags |= IBV_ACCESS_LOCAL_WRITE; break;
		case 'R': flags |= IBV_ACCESS_REMOTE_READ; break;
		case 'W': flags |= IBV_ACCESS_REMOTE_WRITE; break;
		case 'A': flags |= IBV_ACCESS_REMOTE_ATOMIC; break;
		case '-': break;
		default: answer("error no access right '%c'", *word); exit(2);
		}
	}
	return flags;
}

/* mem SLOT SIZE [RIGHTS=wRWA [PD]]: fresh memory, registered. */
static int do_mem(char **word)
{
	unsigned s = slot(word[1]);
	size_t size = number(word[2]);
	int flags = access_flags(word[3] ? word[3] : "wRWA");
	unsigned pd = word[3] && word[4] ? (unsigned)number(word[4]) & 1 : 0;

	mems[s].addr = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (mems[s].addr == MAP_FAILED)
		return failed("mmap");
	mems[s].size = size;
	mems[s].mr = ibv_reg_mr(pds[pd], mems[s].addr, size, flags);
	if (!mems[s].mr)
		return failed("ibv_reg_mr");
	answer("ok addr=%" PRIu64 " lkey=%u rkey=%u", (uint64_t)(uintptr_t)mems[s].addr, mems[s].mr->lkey,
	       mems[s].mr->rkey);
	return 0;
}

/* unmem SLOT: deregister and free the memory. */
static int do_unmem(char **word)
{
	unsigned s = slot(word[1]);

	if (ibv_dereg_mr(mems[s].mr) || munmap(mems[s].addr, mems[s].size))
		return failed("unmem");
	answer("ok");
	return 0;
}

/* A byte that depends on seed and offset, so that moved, shifted and repeated data differ. */
static uint8_t pattern(uint64_t seed, size_t at)
{
	uint64_t x = (seed + 1) * 0x9e3779b97f4a7c15ull + at * 0xbf58476d1ce4e5b9ull;

	return (uint8_t)(x >> 56 ^ x >> 24);
}

/* fill SLOT OFFSET LENGTH SEED | check SLOT OFFSET LENGTH SEED [BASE=0]: BASE is the offset of this part in the filled range. */
static int do_bytes(char **word, int check)
{
	unsigned s = slot(word[1]);
	size_t offset = number(word[2]), length = number(word[3]);
	uint64_t seed = number(word[4]);
	size_t base = word[5] ? number(word[5]) : 0;

	if (offset > mems[s].size || length > mems[s].size - offset) {
		answer("error outside the memory");
		exit(2);
	}
	for (size_t i = 0; i < length; i++) {
		uint8_t *at = mems[s].addr + offset + i;

		if (!check) {
			*at = pattern(seed, base + i);
		} else if (*at != pattern(seed, base + i)) {
			answer("ok same=0 at=%zu", offset + i);
			return 0;
		}
	}
	answer("ok same=1");
	return 0;
}

/* ksm OBJ MEM OFFSET LENGTH: an indirect mkey with one KSM entry of fixed size, addressed by virtual address. */
static int do_ksm(char **word)
{
	unsigned s = slot(word[1]), m = slot(word[2]);
	uint64_t offset = number(word[3]), length = number(word[4]);
	/* One entry of 16 bytes, padded to the 64 bytes in which translations come. */
	uint8_t in[0x110 + 64] = { 0 }, out[16] = { 0 };
	uint8_t *mkc = in + 0x10, *entry = in + 0x110;
	uint64_t va = (uint64_t)(uintptr_t)mems[m].addr + offset;
	unsigned log_size = 0;
	uint32_t index;

	while ((1ull << log_size) < length)
		log_size++;
	put16(in, OP_CREATE_MKEY);
	/* a, rw, rr, lw, lr, then the low bits of the access mode. */
	mkc[2] = 1 << 6 | 1 << 5 | 1 << 4 | 1 << 3 | 1 << 2 | (ACCESS_MODE_KSM & 3);
	put32(mkc + 4, 0xffffff00 | 0x5a); /* no QP; variant */
	put32(mkc + 12, pdn);
	put64(mkc + 16, va);
	put64(mkc + 24, length);
	put32(mkc + 52, 1);              /* translations, in octowords */
	put32(mkc + 56, log_size & 0x1f); /* log_page_size: what each entry spans */
	put32(in + 0x60, 1);
	put32(entry + 4, mems[m].mr->lkey);
	put64(entry + 8, va);
	objs[s] = mlx5dv_devx_obj_create(ctx, in, sizeof(in), out, sizeof(out));
	if (!objs[s])
		return refused("CREATE_MKEY", out);
	index = get32(out + 8) & 0xffffff;
	answer("ok index=%u key=%u", index, index << 8 | 0x5a);
	return 0;
}

/* umr SLOT: an indirect mkey without a translation; the first one also creates a QP connected to itself for binds. */
static int do_umr(char **word)
{
	unsigned s = slot(word[1]);
	struct mlx5dv_mkey_init_attr attr = {
		.pd = pds[0], .create_flags = MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT, .max_entries = 1,
	};
	struct ibv_port_attr port;

	if (!umr_qp) {
		umr_qp = create_qp(1);
		if (!umr_qp || ibv_query_port(ctx, 1, &port) || connect_qp(umr_qp, umr_qp->qp_num, port.lid))
			return failed("QP for UMR");
	}
	umrs[s] = mlx5dv_create_mkey(&attr);
	if (!umrs[s])
		return failed("mlx5dv_create_mkey");
	answer("ok index=%u key=%u", umrs[s]->lkey >> 8, (umrs[s]->lkey & ~0xffu) | 0x5a);
	return 0;
}

static int post_umr(struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;
	struct ibv_wc wc;

	errno = ibv_post_send(umr_qp, wr, &bad);
	if (errno)
		return failed("ibv_post_send");
	if (poll_one(&wc) != 1) {
		answer("error no completion");
		return -1;
	}
	answer("ok wc=%d", wc.status);
	return 0;
}

/* bind SLOT MEM OFFSET LENGTH [RIGHTS]: with one UMR work request, addressed by virtual address. */
static int do_bind(char **word)
{
	unsigned s = slot(word[1]), m = slot(word[2]);
	struct ibv_mw mw = { .rkey = (umrs[s]->lkey & ~0xffu) | 0x5a, .type = IBV_MW_TYPE_1 };
	struct ibv_send_wr wr = {
		.opcode = IBV_WR_BIND_MW,
		.send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED,
		.bind_mw = {
			.mw = &mw,
			.rkey = mw.rkey,
			.bind_info = {
				.mr = mems[m].mr,
				.addr = (uint64_t)(uintptr_t)mems[m].addr + number(word[3]),
				.length = number(word[4]),
				.mw_access_flags = (unsigned)access_flags(word[5] ? word[5] : "wRW"),
			},
		},
	};

	return post_umr(&wr);
}

/* invalidate SLOT: remove the translation of the UMR mkey. */
static int do_invalidate(char **word)
{
	struct ibv_send_wr wr = {
		.opcode = IBV_WR_LOCAL_INV,
		.send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED,
		.invalidate_rkey = (umrs[slot(word[1])]->lkey & ~0xffu) | 0x5a,
	};

	return post_umr(&wr);
}

/* unumr SLOT | unobj OBJ */
static int do_destroy(char **word, int umr)
{
	unsigned s = slot(word[1]);
	int rc = umr ? mlx5dv_destroy_mkey(umrs[s]) : mlx5dv_devx_obj_destroy(objs[s]);

	if (rc)
		return failed("destroy");
	answer("ok");
	return 0;
}

static void access_key(uint8_t *at, const char *word)
{
	/* As a string, padded with zeros, which is how UCX passes its constant. */
	strncpy((char *)at, word ? word : "", KEY_BYTES);
}

/* allow INDEX KEY: other functions may create aliases of this mkey with the same access key. */
static int do_allow(char **word)
{
	uint8_t in[0x40] = { 0 }, out[16] = { 0 };

	put16(in, OP_ALLOW_OTHER_VHCA_ACCESS);
	put16(in + 0x12, OBJ_MKEY);
	put32(in + 0x14, (uint32_t)number(word[1]));
	access_key(in + 0x20, word[2]);
	if (mlx5dv_devx_general_cmd(ctx, in, sizeof(in), out, sizeof(out)))
		return refused("ALLOW_OTHER_VHCA_ACCESS", out);
	answer("ok");
	return 0;
}

/* alias OBJ VHCA INDEX KEY: an mkey of this function that stands for one of another function. */
static int do_alias(char **word)
{
	unsigned s = slot(word[1]);
	uint8_t in[16 + 64] = { 0 }, out[16 + 64] = { 0 };
	uint8_t *alias = in + 16;
	uint32_t id;

	put16(in, OP_CREATE_GENERAL_OBJECT);
	put16(in + 6, OBJ_MKEY);
	in[12] = 0x80; /* alias_object */
	put16(alias, (uint16_t)number(word[2]));
	put32(alias + 4, (uint32_t)number(word[3]));
	access_key(alias + 16, word[4]);
	put32(alias + 48, pdn); /* metadata_1 */
	objs[s] = mlx5dv_devx_obj_create(ctx, in, sizeof(in), out, sizeof(out));
	if (!objs[s])
		return refused("CREATE_GENERAL_OBJECT", out);
	if (out[16 + 3] & 7) {
		/* The object exists, but its status says that it is invalid. */
		mlx5dv_devx_obj_destroy(objs[s]);
		answer("error CREATE_GENERAL_OBJECT: alias status %u", out[16 + 3] & 7);
		return -1;
	}
	id = get32(out + 8);
	answer("ok index=%u key=%u", id, id << 8 | 0x5a);
	return 0;
}

/* qp SLOT | connect SLOT QPN LID */
static int do_qp(char **word)
{
	unsigned s = slot(word[1]);

	qps[s] = create_qp(0);
	if (!qps[s])
		return failed("ibv_create_qp_ex");
	answer("ok qpn=%u", qps[s]->qp_num);
	return 0;
}

static int do_connect(char **word)
{
	errno = connect_qp(qps[slot(word[1])], (uint32_t)number(word[2]), (uint16_t)number(word[3]));
	if (errno)
		return failed("ibv_modify_qp");
	answer("ok");
	return 0;
}

static int do_unqp(char **word)
{
	errno = ibv_destroy_qp(qps[slot(word[1])]);
	if (errno)
		return failed("ibv_destroy_qp");
	answer("ok");
	return 0;
}

/* read|write QP LADDR LKEY RADDR RKEY LENGTH: one RDMA operation; answers the status of its completion. */
static int do_rdma(char **word, enum ibv_wr_opcode opcode)
{
	unsigned s = slot(word[1]);
	struct ibv_sge sge = {
		.addr = number(word[2]), .lkey = (uint32_t)number(word[3]), .length = (uint32_t)number(word[6]),
	};
	struct ibv_send_wr wr = {
		.wr_id = 0x77,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = number(word[4]), .rkey = (uint32_t)number(word[5]) },
	};
	struct ibv_send_wr *bad;
	struct ibv_wc wc;

	errno = ibv_post_send(qps[s], &wr, &bad);
	if (errno)
		return failed("ibv_post_send");
	if (poll_one(&wc) != 1) {
		answer("error no completion");
		return -1;
	}
	answer("ok wc=%d id=%" PRIu64, wc.status, wc.wr_id);
	return 0;
}

/* One more object of a kind. Only the last one can be destroyed; the process's end destroys the rest. */
static void *last;

static int make_one(const char *kind)
{
	if (!strcmp(kind, "pd")) {
		last = ibv_alloc_pd(ctx);
	} else if (!strcmp(kind, "cq")) {
		last = ibv_create_cq(ctx, 1, NULL, NULL, 0);
	} else if (!strcmp(kind, "srq")) {
		struct ibv_srq_init_attr attr = { .attr = { .max_wr = 1, .max_sge = 1 } };

		last = ibv_create_srq(pds[0], &attr);
	} else if (!strcmp(kind, "qp")) {
		struct ibv_qp_init_attr attr = {
			.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UC,
			.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		};

		last = ibv_create_qp(pds[0], &attr);
	} else if (!strcmp(kind, "mr")) {
		last = ibv_reg_mr(pds[0], mems[0].addr, 4096, IBV_ACCESS_LOCAL_WRITE);
	} else if (!strcmp(kind, "mw")) {
		last = ibv_alloc_mw(pds[0], IBV_MW_TYPE_2);
	} else if (!strcmp(kind, "umem")) {
		last = mlx5dv_devx_umem_reg(ctx, mems[0].addr, 4096, IBV_ACCESS_LOCAL_WRITE);
	} else if (!strcmp(kind, "mkey")) {
		struct mlx5dv_mkey_init_attr attr = {
			.pd = pds[0], .create_flags = MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT, .max_entries = 4,
		};

		last = mlx5dv_create_mkey(&attr);
	} else {
		answer("error no kind '%s'", kind);
		exit(2);
	}
	return last != NULL;
}

static int unmake_last(const char *kind, void *object)
{
	if (!strcmp(kind, "pd")) return ibv_dealloc_pd(object);
	if (!strcmp(kind, "cq")) return ibv_destroy_cq(object);
	if (!strcmp(kind, "srq")) return ibv_destroy_srq(object);
	if (!strcmp(kind, "qp")) return ibv_destroy_qp(object);
	if (!strcmp(kind, "mr")) return ibv_dereg_mr(object);
	if (!strcmp(kind, "mw")) return ibv_dealloc_mw(object);
	if (!strcmp(kind, "umem")) return mlx5dv_devx_umem_dereg(object);
	return mlx5dv_destroy_mkey(object);
}

/* make KIND MOST: creates up to MOST objects; then checks that a destroyed one frees its entry. */
static int do_make(char **word)
{
	uint64_t most = number(word[2]), made = 0;
	void *one = NULL;
	int why = 0, again;

	while (made < most && make_one(word[1])) {
		one = last;
		made++;
	}
	if (made < most)
		why = errno;
	again = one && !unmake_last(word[1], one) && make_one(word[1]);
	answer("ok made=%" PRIu64 " errno=%d again=%d", made, why, again);
	return 0;
}

/* ioctl OBJECT METHOD [ID:LENGTH:FLAGS:DATA]...: a call into the kernel as it stands; "room" as DATA is memory that
 * may be written. */
static int do_ioctl(char **word)
{
	static uint8_t room[4096];
	struct {
		struct ib_uverbs_ioctl_hdr head;
		struct ib_uverbs_attr attrs[ATTRS];
	} call = { .head = { .object_id = (uint16_t)number(word[1]), .method_id = (uint16_t)number(word[2]) } };
	unsigned n = 0;

	for (; word[3 + n] && n < ATTRS; n++) {
		char *rest = word[3 + n];
		const char *id = strsep(&rest, ":"), *len = strsep(&rest, ":"), *flags = strsep(&rest, ":");

		call.attrs[n] = (struct ib_uverbs_attr){
			.attr_id = (uint16_t)number(id), .len = (uint16_t)number(len), .flags = (uint16_t)number(flags),
			.data = rest && !strcmp(rest, "room") ? (uint64_t)(uintptr_t)room : number(rest),
		};
	}
	call.head.driver_id = 1; /* RDMA_DRIVER_MLX5 */
	call.head.num_attrs = (uint16_t)n;
	call.head.length = (uint16_t)(sizeof(call.head) + n * sizeof(call.attrs[0]));
	if (ioctl(ctx->cmd_fd, RDMA_VERBS_IOCTL, &call))
		return failed("ioctl");
	answer("ok data=%" PRIu64, (uint64_t)call.attrs[0].data);
	return 0;
}

/* devx general|create OPCODE: a command that consists of its opcode. */
static int do_devx(char **word)
{
	uint8_t in[64] = { 0 }, out[64] = { 0 };
	int failure;

	put16(in, (uint16_t)number(word[2]));
	if (!strcmp(word[1], "general"))
		failure = mlx5dv_devx_general_cmd(ctx, in, sizeof(in), out, sizeof(out));
	else
		failure = !mlx5dv_devx_obj_create(ctx, in, sizeof(in), out, sizeof(out));
	if (failure)
		return refused(word[1], out);
	answer("ok");
	return 0;
}

/* raw QP HEX...: one entry of a send queue, byte by byte; its number and the queue's are filled in. Answers the status
 * of the completion. Nothing else may be posted on the queue. */
static int do_raw(char **word)
{
	unsigned s = slot(word[1]);
	struct mlx5dv_qp dv = { 0 };
	struct mlx5dv_obj obj = { .qp = { .in = qps[s], .out = &dv } };
	uint8_t entry[64 * 16] = { 0 };
	size_t length = 0;
	struct ibv_wc wc;
	uint64_t doorbell;

	if (mlx5dv_init_obj(&obj, MLX5DV_OBJ_QP))
		return failed("mlx5dv_init_obj");
	for (char **hex = word + 2; *hex; hex++) {
		for (const char *at = *hex; at[0] && at[1] && length < sizeof(entry); at += 2)
			entry[length++] = (uint8_t)strtoul((char[]){ at[0], at[1], 0 }, NULL, 16);
	}
	put32(entry + 4, qps[s]->qp_num << 8 | entry[7]);
	memcpy(dv.sq.buf, entry, sizeof(entry) < dv.sq.wqe_cnt * 64 ? sizeof(entry) : dv.sq.wqe_cnt * 64);
	__atomic_thread_fence(__ATOMIC_RELEASE);
	dv.dbrec[1] = htobe32((uint32_t)(length + 63) / 64);
	__atomic_thread_fence(__ATOMIC_RELEASE);
	memcpy(&doorbell, entry, 8);
	*(volatile uint64_t *)dv.bf.reg = doorbell;
	if (poll_one(&wc) != 1) {
		answer("error no completion");
		return -1;
	}
	answer("ok wc=%d", wc.status);
	return 0;
}

/* post QP ADDR LKEY LENGTH: a receive. */
static int do_post(char **word)
{
	struct ibv_sge sge = {
		.addr = number(word[2]), .lkey = (uint32_t)number(word[3]), .length = (uint32_t)number(word[4]),
	};
	struct ibv_recv_wr wr = { .wr_id = 0x88, .sg_list = &sge, .num_sge = 1 }, *bad;

	errno = ibv_post_recv(qps[slot(word[1])], &wr, &bad);
	if (errno)
		return failed("ibv_post_recv");
	answer("ok");
	return 0;
}

/* send QP LADDR LKEY LENGTH [INVALIDATE]: a message, optionally with an invalidation of the receiver's key. */
static int do_send(char **word)
{
	struct ibv_sge sge = {
		.addr = number(word[2]), .lkey = (uint32_t)number(word[3]), .length = (uint32_t)number(word[4]),
	};
	struct ibv_send_wr wr = {
		.wr_id = 0x77, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
	}, *bad;
	struct ibv_wc wc;

	if (word[5]) {
		wr.opcode = IBV_WR_SEND_WITH_INV;
		wr.invalidate_rkey = (uint32_t)number(word[5]);
	}
	errno = ibv_post_send(qps[slot(word[1])], &wr, &bad);
	if (errno)
		return failed("ibv_post_send");
	if (poll_one(&wc) != 1) {
		answer("error no completion");
		return -1;
	}
	answer("ok wc=%d", wc.status);
	return 0;
}

/* atomic QP fadd|cswap LADDR LKEY RADDR RKEY FIRST SECOND: FIRST is the addend or the compare value. */
static int do_atomic(char **word)
{
	int add = !strcmp(word[2], "fadd");
	struct ibv_sge sge = { .addr = number(word[3]), .lkey = (uint32_t)number(word[4]), .length = 8 };
	struct ibv_send_wr wr = {
		.wr_id = 0x77, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED,
		.opcode = add ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_ATOMIC_CMP_AND_SWP,
		.wr.atomic = {
			.remote_addr = number(word[5]), .rkey = (uint32_t)number(word[6]),
			.compare_add = number(word[7]), .swap = word[8] ? number(word[8]) : 0,
		},
	}, *bad;
	struct ibv_wc wc;

	errno = ibv_post_send(qps[slot(word[1])], &wr, &bad);
	if (errno)
		return failed("ibv_post_send");
	if (poll_one(&wc) != 1) {
		answer("error no completion");
		return -1;
	}
	answer("ok wc=%d", wc.status);
	return 0;
}

/* poll: the next completion. state QP: the queue pair's state. event: the next asynchronous event. */
static int do_poll(void)
{
	struct ibv_wc wc;

	if (poll_one(&wc) != 1) {
		answer("error no completion");
		return -1;
	}
	answer("ok wc=%d id=%" PRIu64 " opcode=%d bytes=%u inv=%u", wc.status, wc.wr_id, wc.opcode, wc.byte_len,
	       wc.wc_flags & IBV_WC_WITH_INV ? wc.invalidated_rkey : 0);
	return 0;
}

static int do_state(char **word)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	errno = ibv_query_qp(qps[slot(word[1])], &attr, IBV_QP_STATE, &init);
	if (errno)
		return failed("ibv_query_qp");
	answer("ok state=%d", attr.qp_state);
	return 0;
}

static int do_event(void)
{
	struct pollfd wanted = { .fd = ctx->async_fd, .events = POLLIN };
	struct ibv_async_event event;

	if (poll(&wanted, 1, POLL_LIMIT_S * 1000) != 1) {
		answer("error no event");
		return -1;
	}
	if (ibv_get_async_event(ctx, &event))
		return failed("ibv_get_async_event");
	ibv_ack_async_event(&event);
	answer("ok event=%d", event.event_type);
	return 0;
}

/* dct KEY: a DC target created by verbs and queried by command. */
static int do_dct(char **word)
{
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = 16, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pds[0], &srq_attr);
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_DRIVER, .pd = pds[0],
		.comp_mask = IBV_QP_INIT_ATTR_PD,
	};
	struct mlx5dv_qp_init_attr dv = {
		.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC,
		.dc_init_attr = { .dc_type = MLX5DV_DCTYPE_DCT, .dct_access_key = number(word[1]) },
	};
	struct ibv_qp_attr init = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
	};
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .min_rnr_timer = 12,
		.ah_attr = { .port_num = 1 },
	};
	uint8_t in[16] = { 0 }, out[0x60] = { 0 };
	struct ibv_qp *qp = srq ? mlx5dv_create_qp(ctx, &attr, &dv) : NULL;

	if (!qp)
		return failed("mlx5dv_create_qp");
	errno = ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	if (!errno)
		errno = ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_MIN_RNR_TIMER);
	if (errno)
		return failed("ibv_modify_qp");
	put16(in, 0x713); /* QUERY_DCT */
	put32(in + 8, qp->qp_num);
	if (mlx5dv_devx_qp_query(qp, in, sizeof(in), out, sizeof(out)))
		return refused("QUERY_DCT", out);
	/* The context begins at 16: state, rights, timer, protection domain, key, MTU. */
	answer("ok state=%u write=%u read=%u rnr=%u pd=%u key=%" PRIu64 " mtu=%u", out[16] & 15, out[16 + 13] >> 2 & 1,
	       out[16 + 13] >> 3 & 1, out[16 + 18] & 31, (get32(out + 16 + 24) & 0xffffff) == pdn,
	       (uint64_t)get32(out + 16 + 32) << 32 | get32(out + 16 + 36), out[16 + 40] & 7);
	return 0;
}

/* async ALIAS: queries an alias object without waiting; the answer arrives through a channel. */
static int do_async(char **word)
{
	struct mlx5dv_devx_cmd_comp *channel = mlx5dv_devx_create_cmd_comp(ctx);
	struct {
		struct mlx5dv_devx_async_cmd_hdr head;
		uint8_t out[16 + 64];
	} got = { 0 };
	uint8_t in[16] = { 0 };

	if (!channel)
		return failed("mlx5dv_devx_create_cmd_comp");
	put16(in, 0xa02); /* QUERY_GENERAL_OBJECT */
	put16(in + 6, OBJ_MKEY);
	put32(in + 8, (uint32_t)number(word[2]));
	if (mlx5dv_devx_obj_query_async(objs[slot(word[1])], in, sizeof(in), sizeof(got.out), 0x5151, channel))
		return failed("mlx5dv_devx_obj_query_async");
	if (mlx5dv_devx_get_async_cmd_comp(channel, &got.head, sizeof(got)))
		return failed("mlx5dv_devx_get_async_cmd_comp");
	mlx5dv_devx_destroy_cmd_comp(channel);
	answer("ok id=%" PRIu64 " status=%u vhca=%u", got.head.wr_id, got.head.out_data[0],
	       (unsigned)got.head.out_data[16] << 8 | got.head.out_data[17]);
	return 0;
}

/* overrun: more unread completions than the queue holds, until its error event is there. Answers the number of readable
 * completions and the state of the queue pair. */
static int do_overrun(void)
{
	struct ibv_cq *small = ibv_create_cq(ctx, 1, NULL, NULL, 0);
	struct ibv_qp_init_attr attr = {
		.send_cq = small, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 16, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_send_wr wr = {
		.opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = (uint64_t)(uintptr_t)mems[0].addr, .rkey = mems[0].mr->rkey },
	}, *bad;
	struct pollfd event = { .fd = ctx->async_fd, .events = POLLIN };
	struct ibv_port_attr port;
	struct ibv_qp_attr now;
	struct ibv_qp *qp;
	struct ibv_wc wc;
	int read = 0;

	if (!small)
		return failed("ibv_create_cq");
	qp = ibv_create_qp(pds[0], &attr);
	if (!qp || ibv_query_port(ctx, 1, &port) || connect_qp(qp, qp->qp_num, port.lid))
		return failed("QP");
	for (int i = 0; i < small->cqe + 2; i++) {
		errno = ibv_post_send(qp, &wr, &bad);
		if (errno)
			return failed("ibv_post_send");
	}
	if (poll(&event, 1, 60000) != 1)
		return failed("no event");
	while (ibv_poll_cq(small, 1, &wc) == 1)
		read++;
	if (ibv_query_qp(qp, &now, IBV_QP_STATE, &attr))
		return failed("ibv_query_qp");
	answer("ok room=%d read=%d state=%d", small->cqe + 1, read, now.qp_state);
	return 0;
}

/* access QP RIGHTS: rights of the other side through the queue pair. modify QP MASK STATE: a bare transition. */
static int do_access(char **word)
{
	struct ibv_qp_attr attr = { .qp_access_flags = (unsigned)access_flags(word[2]) };

	errno = ibv_modify_qp(qps[slot(word[1])], &attr, IBV_QP_ACCESS_FLAGS);
	if (errno)
		return failed("ibv_modify_qp");
	answer("ok");
	return 0;
}

/* ece QP [OPTIONS]: the options of a connection (ECE), or those that the next transition asks for. */
static int do_ece(char **word)
{
	struct ibv_ece ece = { 0 };
	struct ibv_qp *qp = qps[slot(word[1])];

	errno = ibv_query_ece(qp, &ece);
	if (errno)
		return failed("ibv_query_ece");
	if (word[2]) {
		ece.options = (uint32_t)number(word[2]);
		errno = ibv_set_ece(qp, &ece);
		if (errno)
			return failed("ibv_set_ece");
	}
	answer("ok vendor=%u options=%u", ece.vendor_id, ece.options);
	return 0;
}

static int do_modify(char **word)
{
	struct ibv_qp_attr attr = { .qp_state = (enum ibv_qp_state)number(word[3]), .port_num = 1, .cur_qp_state = IBV_QPS_RTS };

	errno = ibv_modify_qp(qps[slot(word[1])], &attr, (int)number(word[2]));
	if (errno)
		return failed("ibv_modify_qp");
	answer("ok");
	return 0;
}

static void obey(char **word)
{
	const char *verb = word[0];

	if (!strcmp(verb, "open")) do_open();
	else if (!strcmp(verb, "mem")) do_mem(word);
	else if (!strcmp(verb, "unmem")) do_unmem(word);
	else if (!strcmp(verb, "fill")) do_bytes(word, 0);
	else if (!strcmp(verb, "check")) do_bytes(word, 1);
	else if (!strcmp(verb, "ksm")) do_ksm(word);
	else if (!strcmp(verb, "umr")) do_umr(word);
	else if (!strcmp(verb, "bind")) do_bind(word);
	else if (!strcmp(verb, "invalidate")) do_invalidate(word);
	else if (!strcmp(verb, "unumr")) do_destroy(word, 1);
	else if (!strcmp(verb, "unobj")) do_destroy(word, 0);
	else if (!strcmp(verb, "allow")) do_allow(word);
	else if (!strcmp(verb, "alias")) do_alias(word);
	else if (!strcmp(verb, "qp")) do_qp(word);
	else if (!strcmp(verb, "connect")) do_connect(word);
	else if (!strcmp(verb, "unqp")) do_unqp(word);
	else if (!strcmp(verb, "read")) do_rdma(word, IBV_WR_RDMA_READ);
	else if (!strcmp(verb, "write")) do_rdma(word, IBV_WR_RDMA_WRITE);
	else if (!strcmp(verb, "make")) do_make(word);
	else if (!strcmp(verb, "ioctl")) do_ioctl(word);
	else if (!strcmp(verb, "devx")) do_devx(word);
	else if (!strcmp(verb, "raw")) do_raw(word);
	else if (!strcmp(verb, "post")) do_post(word);
	else if (!strcmp(verb, "send")) do_send(word);
	else if (!strcmp(verb, "atomic")) do_atomic(word);
	else if (!strcmp(verb, "poll")) do_poll();
	else if (!strcmp(verb, "state")) do_state(word);
	else if (!strcmp(verb, "event")) do_event();
	else if (!strcmp(verb, "overrun")) do_overrun();
	else if (!strcmp(verb, "dct")) do_dct(word);
	else if (!strcmp(verb, "async")) do_async(word);
	else if (!strcmp(verb, "access")) do_access(word);
	else if (!strcmp(verb, "modify")) do_modify(word);
	else if (!strcmp(verb, "ece")) do_ece(word);
	else answer("error no command '%s'", verb);
}

int main(void)
{
	return take_commands(obey);
}
