/* A process with an mlx5 device that executes commands, one per line, through stock libibverbs and libmlx5:
 * the GIDs of its port, address handles, and queue pairs whose paths are given in full.
 *
 * tests/system/roce.rs drives it. Each command is one line on standard input, and gets one line on standard output:
 * "ok key=value ..." or "error what: why". GIDs are 32 hexadecimal digits, MACs 12. Command layouts: PRM as in
 * rdma-core's providers/mlx5/mlx5_ifc.h; raw calls: rdma/ib_user_verbs.h. It uses no code of the project.
 */
#define _GNU_SOURCE
#include "agent.h"
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_ioctl.h>
#include <sys/ioctl.h>
#include <time.h>

enum {
	SLOTS = 8,          /* queue pairs */
	DEPTH = 16,         /* requests of a queue */
	BYTES = 8192,       /* of memory: what is sent, and behind it what arrives */
	HEADER = 40,        /* bytes in front of a datagram */
	QKEY = 0x1234,
	WAIT_S = 20,        /* a completion that takes longer is lost */
	OP_INIT2RTR = 0x503,
	OP_QUERY_QP = 0x50b,
	OP_CREATE_DCT = 0x710,
	OP_QUERY_VPORT = 0x762,
	OP_QUERY_CAP = 0x100,
	QPC = 0x18,         /* where the context of a queue pair begins in these commands */
	QP_BYTES = 0x110,
	METHOD_WRITE = 0,   /* UVERBS_METHOD_INVOKE_WRITE, of UVERBS_OBJECT_DEVICE */
	UHW_OUT = 0x1001,
	UNTOUCHED = 0xa5,   /* what receive buffers hold at first */
};

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static uint8_t *memory;
static struct ibv_qp *qps[SLOTS];
static enum ibv_qp_type types[SLOTS];
static uint32_t pd_handle;

static void fail(const char *what)
{
	failed(what);
}

/* Hexadecimal digits as bytes. */
static void bytes_of(const char *word, uint8_t *bytes, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (!word || sscanf(word + 2 * i, "%2hhx", &bytes[i]) != 1) {
			answer("error not %zu bytes in hexadecimal: '%s'", count, word ? word : "");
			exit(2);
		}
}

static const char *hex(const void *from, size_t count)
{
	static char text[4][2 * BYTES + 1];
	static unsigned next;
	char *at = text[next = (next + 1) % 4];

	for (size_t i = 0; i < count; i++)
		sprintf(at + 2 * i, "%02x", ((const uint8_t *)from)[i]);
	return at;
}

/* open: the first device. Answers what it says of its port. */
static void do_open(void)
{
	struct mlx5dv_context_attr devx = { .flags = MLX5DV_CONTEXT_FLAGS_DEVX };
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_port_attr port;

	if (!list || !list[0])
		return fail("no device");
	ctx = mlx5dv_open_device(list[0], &devx);
	if (!ctx)
		return fail("mlx5dv_open_device");
	pd = ibv_alloc_pd(ctx);
	cq = ibv_create_cq(ctx, 64, NULL, NULL, 0);
	memory = calloc(1, BYTES);
	if (!pd || !cq || !memory)
		return fail("ibv_create_cq");
	pd_handle = pd->handle;
	mr = ibv_reg_mr(pd, memory, BYTES,
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
	if (!mr)
		return fail("ibv_reg_mr");
	errno = ibv_query_port(ctx, 1, &port);
	if (errno)
		return fail("ibv_query_port");
	answer("ok layer=%d lid=%u sm_lid=%u flags=%u mtu=%d gids=%d pkeys=%u addr=%" PRIu64 " rkey=%u",
	       port.link_layer, port.lid, port.sm_lid, port.flags, 128 << port.active_mtu, port.gid_tbl_len,
	       port.pkey_tbl_len, (uint64_t)(uintptr_t)memory, mr->rkey);
}

/* gid INDEX: an entry of the table, by itself and in the list of all. */
static void do_gid(char **word)
{
	uint32_t index = (uint32_t)number(word[1]);
	struct ibv_gid_entry entry, all[64];
	ssize_t count = ibv_query_gid_table(ctx, all, 64, 0);

	errno = ibv_query_gid_ex(ctx, 1, index, &entry, 0);
	if (errno)
		return answer("error ibv_query_gid_ex: errno %d", errno);
	for (ssize_t i = 0; i < count; i++)
		if (all[i].gid_index == index && !memcmp(&all[i], &entry, sizeof(entry)))
			return answer("ok gid=%s type=%u ndev=%u count=%zd", hex(&entry.gid, 16), entry.gid_type,
				      entry.ndev_ifindex, count);
	answer("error the two ways to ask for a GID differ");
}

/* handle GLOBAL INDEX DGID: an address handle. Answers the destination's MAC and the bit for a global route. */
static void do_handle(char **word)
{
	struct ibv_ah_attr attr = { .port_num = 1, .is_global = (uint8_t)number(word[1]), .dlid = 1 };
	struct mlx5dv_ah av;
	struct mlx5dv_obj what = { 0 };
	struct ibv_ah *ah;

	attr.grh.sgid_index = (uint8_t)number(word[2]);
	attr.grh.hop_limit = 64;
	bytes_of(word[3], attr.grh.dgid.raw, 16);
	ah = ibv_create_ah(pd, &attr);
	if (!ah)
		return answer("error ibv_create_ah: errno %d", errno);
	what.ah.in = ah;
	what.ah.out = &av;
	errno = mlx5dv_init_obj(&what, MLX5DV_OBJ_AH);
	if (errno)
		return fail("mlx5dv_init_obj");
	answer("ok mac=%s grh=%u", hex(av.av->rmac, 6), be32toh(av.av->grh_gid_fl) >> 30 & 1);
	ibv_destroy_ah(ah);
}

/* kernel GLOBAL INDEX DGID ROOM: the call for an address handle itself, with so many bytes for the driver's answer. */
static void do_kernel(char **word)
{
	struct ib_uverbs_create_ah ah = { .pd_handle = pd_handle };
	struct ib_uverbs_create_ah_resp made = { 0 };
	struct {
		uint32_t length;
		uint8_t mac[6], rest[54];
	} driver;
	struct {
		struct ib_uverbs_ioctl_hdr head;
		struct ib_uverbs_attr attrs[4];
	} call = {
		.head = { .length = sizeof(call), .object_id = 0, .method_id = METHOD_WRITE, .num_attrs = 4,
			  .driver_id = 1 /* RDMA_DRIVER_MLX5 */ },
		.attrs = {
			{ .attr_id = 2, .len = 8, .flags = 1, .data = IB_USER_VERBS_CMD_CREATE_AH },
			{ .attr_id = 0, .len = sizeof(ah), .flags = 1, .data = (uintptr_t)&ah },
			{ .attr_id = 1, .len = sizeof(made), .flags = 1, .data = (uintptr_t)&made },
			{ .attr_id = UHW_OUT, .data = (uintptr_t)&driver },
		},
	};

	memset(&driver, UNTOUCHED, sizeof(driver));
	ah.attr.port_num = 1;
	ah.attr.is_global = (uint8_t)number(word[1]);
	ah.attr.grh.sgid_index = (uint8_t)number(word[2]);
	bytes_of(word[3], ah.attr.grh.dgid, 16);
	call.attrs[3].len = (uint16_t)number(word[4]);
	if (ioctl(ctx->cmd_fd, RDMA_VERBS_IOCTL, &call))
		return answer("error CREATE_AH: errno %d", errno);
	answer("ok length=%u mac=%s behind=%s", driver.length, hex(driver.mac, 6), hex(driver.rest, 2));
}

/* qp SLOT rc|uc|ud: a queue pair in INIT; one of datagrams goes on to RTS. */
static void do_qp(char **word)
{
	unsigned s = place(word[1], SLOTS);
	int ud = !strcmp(word[2], "ud");
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq,
		.qp_type = ud ? IBV_QPT_UD : !strcmp(word[2], "rc") ? IBV_QPT_RC : IBV_QPT_UC,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY,
		.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE,
	};

	types[s] = init.qp_type;
	qps[s] = ibv_create_qp(pd, &init);
	if (!qps[s])
		return fail("ibv_create_qp");
	if (init.qp_type == IBV_QPT_UC)
		attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
	errno = ibv_modify_qp(qps[s], &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
						     (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
	if (errno)
		return fail("ibv_modify_qp");
	for (attr.qp_state = IBV_QPS_RTR; ud && attr.qp_state <= IBV_QPS_RTS; attr.qp_state++) {
		errno = ibv_modify_qp(qps[s], &attr,
				      IBV_QP_STATE | (attr.qp_state == IBV_QPS_RTS ? IBV_QP_SQ_PSN : 0));
		if (errno)
			return fail("ibv_modify_qp");
	}
	answer("ok qpn=%u", qps[s]->qp_num);
}

static int to_rts(unsigned s)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS, .timeout = 10, .retry_cnt = 2, .rnr_retry = 7,
				    .max_rd_atomic = 1 };
	int rc = types[s] == IBV_QPT_RC;

	return ibv_modify_qp(qps[s], &attr, IBV_QP_STATE | IBV_QP_SQ_PSN |
			     (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0));
}

/* connect SLOT QPN GLOBAL INDEX DGID LID: to RTS by verbs. */
static void do_connect(char **word)
{
	unsigned s = place(word[1], SLOTS);
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = (uint32_t)number(word[2]),
		.max_dest_rd_atomic = 1, .min_rnr_timer = 1,
		.ah_attr = { .port_num = 1, .is_global = (uint8_t)number(word[3]), .dlid = (uint16_t)number(word[6]) },
	};
	int rc = types[s] == IBV_QPT_RC;

	attr.ah_attr.grh.sgid_index = (uint8_t)number(word[4]);
	attr.ah_attr.grh.hop_limit = 64;
	bytes_of(word[5], attr.ah_attr.grh.dgid.raw, 16);
	errno = ibv_modify_qp(qps[s], &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
			      IBV_QP_RQ_PSN | (rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0));
	if (errno)
		return answer("error ibv_modify_qp: errno %d", errno);
	errno = to_rts(s);
	if (errno)
		return fail("ibv_modify_qp");
	answer("ok");
}

/* command SLOT QPN GRH INDEX DGID MAC LID: to RTR by the device's own command, then to RTS by verbs. Answers the
 * address as the device has it then. */
static void do_command(char **word)
{
	unsigned s = place(word[1], SLOTS);
	uint8_t in[QP_BYTES] = { 0 }, out[QP_BYTES] = { 0 }, *path = in + QPC + 0x18;

	put16(in, OP_INIT2RTR);
	put32(in + 8, qps[s]->qp_num);
	in[QPC + 0x08] = IBV_MTU_1024 << 5 | 30;
	put32(in + QPC + 0x14, (uint32_t)number(word[2]));
	path[5] = (uint8_t)(number(word[3]) << 7);           /* grh */
	put16(path + 6, (uint16_t)number(word[7]));          /* rlid */
	path[9] = (uint8_t)number(word[4]);                  /* src_addr_index */
	path[11] = 64;                                       /* hop_limit */
	bytes_of(word[5], path + 0x10, 16);                  /* rgid */
	path[0x25] = 1;                                      /* vhca_port_num */
	bytes_of(word[6], path + 0x26, 6);                   /* rmac */
	if (mlx5dv_devx_qp_modify(qps[s], in, sizeof(in), out, sizeof(out)))
		return answer("error INIT2RTR_QP: status 0x%x errno %d", out[0], errno);
	memset(in, 0, sizeof(in));
	memset(out, 0, sizeof(out));
	put16(in, OP_QUERY_QP);
	put32(in + 8, qps[s]->qp_num);
	if (mlx5dv_devx_qp_query(qps[s], in, 16, out, sizeof(out)))
		return answer("error QUERY_QP: status 0x%x errno %d", out[0], errno);
	path = out + QPC + 0x18;
	errno = to_rts(s);
	if (errno)
		return fail("ibv_modify_qp");
	answer("ok index=%u gid=%s mac=%s", path[9], hex(path + 0x10, 16), hex(path + 0x26, 6));
}

/* udp SLOT PORT: the UDP source port of a queue pair, by libmlx5. Answers what the device has then. */
static void do_udp(char **word)
{
	unsigned s = place(word[1], SLOTS);
	uint8_t in[16] = { 0 }, out[QP_BYTES] = { 0 };
	const uint8_t *path = out + QPC + 0x18;

	errno = mlx5dv_modify_qp_udp_sport(qps[s], (uint16_t)number(word[2]));
	if (errno)
		return answer("error mlx5dv_modify_qp_udp_sport: errno %d", errno);
	put16(in, OP_QUERY_QP);
	put32(in + 8, qps[s]->qp_num);
	if (mlx5dv_devx_qp_query(qps[s], in, sizeof(in), out, sizeof(out)))
		return answer("error QUERY_QP: status 0x%x errno %d", out[0], errno);
	answer("ok port=%u", path[0x22] << 8 | path[0x23]);
}

/* target INDEX: a target of dynamic connections at an address of the port, by the device's own command. */
static void do_target(char **word)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = DEPTH, .max_sge = 1 } };
	struct mlx5dv_srq dv_srq = { .comp_mask = MLX5DV_SRQ_MASK_SRQN };
	struct mlx5dv_cq dv_cq = { 0 };
	struct mlx5dv_pd dv_pd = { 0 };
	struct mlx5dv_obj what = { 0 };
	uint8_t in[0x80] = { 0 }, out[16] = { 0 };
	struct mlx5dv_devx_obj *made;

	what.srq.in = ibv_create_srq(pd, &init);
	if (!what.srq.in)
		return fail("ibv_create_srq");
	what.srq.out = &dv_srq;
	what.cq.in = cq;
	what.cq.out = &dv_cq;
	what.pd.in = pd;
	what.pd.out = &dv_pd;
	errno = mlx5dv_init_obj(&what, MLX5DV_OBJ_SRQ | MLX5DV_OBJ_CQ | MLX5DV_OBJ_PD);
	if (errno)
		return fail("mlx5dv_init_obj");
	put16(in, OP_CREATE_DCT);
	put32(in + 0x18, dv_cq.cqn);
	put32(in + 0x24, dv_srq.srqn);
	put32(in + 0x28, dv_pd.pdn);
	in[0x38] = IBV_MTU_1024;
	in[0x39] = 1;
	in[0x3d] = (uint8_t)number(word[1]); /* my_addr_index */
	made = mlx5dv_devx_obj_create(ctx, in, sizeof(in), out, sizeof(out));
	if (!made)
		return answer("error CREATE_DCT: status 0x%x errno %d", out[0], errno);
	mlx5dv_devx_obj_destroy(made);
	answer("ok");
}

/* general vport | cap PAGE: a command on the device. Answers bytes of what came back. */
static void do_general(char **word)
{
	uint8_t in[16] = { 0 }, out[0x1010] = { 0 };
	int vport = !strcmp(word[1], "vport");

	put16(in, vport ? OP_QUERY_VPORT : OP_QUERY_CAP);
	if (!vport)
		put16(in + 6, (uint16_t)(number(word[2]) << 1 | 1));
	if (mlx5dv_devx_general_cmd(ctx, in, sizeof(in), out, vport ? 0x210 : sizeof(out)))
		return answer("error general: status 0x%x errno %d", out[0], errno);
	if (vport)
		return answer("ok grh=%u", out[0x30] >> 4 & 1);
	answer("ok port_type=%u roce=%u l3=%u version=%u port=%u", out[16 + 0x36] & 3, out[16 + 0x43] >> 2 & 1,
	       out[16 + 0x11] & 15, out[16 + 0x13],
	       out[16 + 0x16] << 8 | out[16 + 0x17]);
}

/* The next completion. */
static int wait_for(struct ibv_wc *wc)
{
	time_t end = time(NULL) + WAIT_S;
	int n;

	do
		n = ibv_poll_cq(cq, 1, wc);
	while (n == 0 && time(NULL) <= end);
	return n;
}

/* write SLOT ADDR RKEY VALUE: eight bytes into another's memory, to its completion. */
static void do_write(char **word)
{
	struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = 8, .lkey = mr->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sge,
				  .num_sge = 1 }, *bad;
	uint64_t value = number(word[4]);
	struct ibv_wc wc;

	memcpy(memory, &value, 8);
	wr.wr.rdma.remote_addr = number(word[2]);
	wr.wr.rdma.rkey = (uint32_t)number(word[3]);
	errno = ibv_post_send(qps[place(word[1], SLOTS)], &wr, &bad);
	if (errno)
		return fail("ibv_post_send");
	if (wait_for(&wc) != 1)
		return answer("error no completion");
	answer("ok wc=%u", wc.status);
}

/* get OFFSET: eight bytes of its memory. */
static void do_get(char **word)
{
	uint64_t value;

	memcpy(&value, memory + place(word[1], BYTES - 8), 8);
	answer("ok value=%" PRIu64, value);
}

/* receive SLOT: room for a datagram, behind what is sent. */
static void do_receive(char **word)
{
	struct ibv_sge sge = { .addr = (uintptr_t)memory + BYTES / 2, .length = BYTES / 2, .lkey = mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	memset(memory + BYTES / 2, UNTOUCHED, BYTES / 2);
	errno = ibv_post_recv(qps[place(word[1], SLOTS)], &wr, &bad);
	if (errno)
		return fail("ibv_post_recv");
	answer("ok");
}

/* datagram SLOT QPN INDEX DGID LID LENGTH: to its completion. */
static void do_datagram(char **word)
{
	struct ibv_ah_attr attr = { .port_num = 1, .is_global = 1, .dlid = (uint16_t)number(word[5]) };
	struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = (uint32_t)number(word[6]), .lkey = mr->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sge,
				  .num_sge = 1 }, *bad;
	struct ibv_wc wc;

	attr.grh.sgid_index = (uint8_t)number(word[3]);
	attr.grh.hop_limit = 64;
	attr.grh.traffic_class = 104;
	attr.grh.flow_label = 0x1234;
	bytes_of(word[4], attr.grh.dgid.raw, 16);
	memset(memory, 0x5a, sge.length);
	wr.wr.ud.ah = ibv_create_ah(pd, &attr);
	if (!wr.wr.ud.ah)
		return answer("error ibv_create_ah: errno %d", errno);
	wr.wr.ud.remote_qpn = (uint32_t)number(word[2]);
	wr.wr.ud.remote_qkey = QKEY;
	errno = ibv_post_send(qps[place(word[1], SLOTS)], &wr, &bad);
	if (errno)
		return fail("ibv_post_send");
	if (wait_for(&wc) != 1)
		return answer("error no completion");
	answer("ok wc=%u", wc.status);
}

/* arrived: the datagram that was received: its header, the first byte behind it, what the completion says of it, and
 * the address that stock libibverbs finds in it. */
static void do_arrived(void)
{
	const uint8_t *at = memory + BYTES / 2;
	struct ibv_ah_attr back;
	struct ibv_wc wc;

	if (wait_for(&wc) != 1)
		return answer("error no completion");
	if (wc.status != IBV_WC_SUCCESS)
		return answer("error wc %u", wc.status);
	if (!(wc.wc_flags & IBV_WC_GRH))
		return answer("ok bytes=%u grh=0 data=%u", wc.byte_len, at[HEADER]);
	if (ibv_init_ah_from_wc(ctx, 1, &wc, (struct ibv_grh *)at, &back))
		return fail("ibv_init_ah_from_wc");
	answer("ok bytes=%u grh=1 data=%u sl=%u header=%s index=%u back=%s hops=%u tclass=%u", wc.byte_len, at[HEADER],
	       wc.sl, hex(at, HEADER), back.grh.sgid_index, hex(&back.grh.dgid, 16), back.grh.hop_limit,
	       back.grh.traffic_class);
}

static void obey(char **word)
{
	const char *verb = word[0];

	if (!strcmp(verb, "open")) do_open();
	else if (!strcmp(verb, "gid")) do_gid(word);
	else if (!strcmp(verb, "handle")) do_handle(word);
	else if (!strcmp(verb, "kernel")) do_kernel(word);
	else if (!strcmp(verb, "qp")) do_qp(word);
	else if (!strcmp(verb, "connect")) do_connect(word);
	else if (!strcmp(verb, "command")) do_command(word);
	else if (!strcmp(verb, "udp")) do_udp(word);
	else if (!strcmp(verb, "target")) do_target(word);
	else if (!strcmp(verb, "general")) do_general(word);
	else if (!strcmp(verb, "write")) do_write(word);
	else if (!strcmp(verb, "get")) do_get(word);
	else if (!strcmp(verb, "receive")) do_receive(word);
	else if (!strcmp(verb, "datagram")) do_datagram(word);
	else if (!strcmp(verb, "arrived")) do_arrived();
	else answer("error no command '%s'", verb);
}

int main(void)
{
	return take_commands(obey);
}
