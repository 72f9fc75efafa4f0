/* Regions with on-demand paging, and regions whose pages are given away. For tests/system/registrations.rs. Prints "ok". */
#define _GNU_SOURCE
#include <infiniband/mlx5dv.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "connection.h"

#define PAGE 4096UL
#define PAGES 4
#define BYTES (PAGES * PAGE)
#define RW (PROT_READ | PROT_WRITE)
#define REMOTE (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)
#define ON_DEMAND (REMOTE | IBV_ACCESS_ON_DEMAND)

static struct ibv_port_attr port;
static union ibv_gid gid;

static struct ibv_qp *created(void)
{
	return made_with(8, 1, REMOTE);
}

static void connect_to(struct ibv_qp *qp, struct ibv_qp *peer)
{
	struct ibv_ah_attr way = {
		.dlid = port.lid,
		.port_num = 1,
		.is_global = port.link_layer == IBV_LINK_LAYER_ETHERNET,
		.grh = { .dgid = gid, .hop_limit = 1 },
	};

	receives_from(qp, peer->qp_num, way, 1);
	sends(qp);
}

/* One request of a new connection. Returns its status. */
static int status_of(enum ibv_wr_opcode opcode, struct ibv_mr *own, void *at, uint32_t bytes, struct ibv_mr *other, void *to)
{
	struct ibv_qp *one = created(), *two = created();
	struct ibv_sge sge = { (uintptr_t)at, bytes, own->lkey };
	struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode };
	struct ibv_recv_wr *bad_receive, receive = { .sg_list = &sge, .num_sge = 1 };
	struct ibv_wc wc = { 0 };
	int found = -1;

	connect_to(one, two);
	connect_to(two, one);
	wr.wr.rdma.remote_addr = (uintptr_t)to;
	wr.wr.rdma.rkey = other->rkey;
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = (uintptr_t)to;
		wr.wr.atomic.rkey = other->rkey;
		wr.wr.atomic.compare_add = 1;
	}
	if (opcode == IBV_WR_SEND) {
		struct ibv_sge into = { (uintptr_t)to, bytes, other->lkey };

		receive.sg_list = &into;
		CHECK(!ibv_post_recv(two, &receive, &bad_receive));
	}
	CHECK(!ibv_post_send(one, &wr, &bad));
	while (found < 0) {
		int count = ibv_poll_cq(cq, 1, &wc);

		CHECK(count >= 0);
		if (count && wc.qp_num == one->qp_num)
			found = wc.status;
	}
	CHECK(!ibv_destroy_qp(one));
	CHECK(!ibv_destroy_qp(two));
	return found;
}

/* Where the kernel places no mapping of its own: a hole stays one. */
static char *alone(void)
{
	static uintptr_t last = 1UL << 44;

	return (char *)(last += 1UL << 30);
}

static char *mapped_at(char *at)
{
	char *start = mmap(at, BYTES, RW, MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0), -1, 0);

	CHECK(start != MAP_FAILED);
	return start;
}

static struct ibv_mr *registered(void *start, size_t bytes, int flags)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, start, bytes, flags);

	CHECK(mr);
	return mr;
}

static int is_resident(char *page)
{
	unsigned char there;

	CHECK(!mincore(page, PAGE, &there));
	return there & 1;
}

static void capabilities(void)
{
	struct mlx5dv_context driver = { .comp_mask = MLX5DV_CONTEXT_MASK_DC_ODP_CAPS };
	struct ibv_device_attr_ex attr;
	const uint32_t all = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE |
			     IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC | IBV_ODP_SUPPORT_SRQ_RECV;

	CHECK(!ibv_query_device_ex(context, NULL, &attr));
	CHECK(attr.odp_caps.general_caps == (IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT));
	CHECK(attr.odp_caps.per_transport_caps.rc_odp_caps == all);
	CHECK(attr.odp_caps.per_transport_caps.ud_odp_caps == IBV_ODP_SUPPORT_SEND);
	CHECK(attr.odp_caps.per_transport_caps.uc_odp_caps == 0);
	CHECK(attr.xrc_odp_caps == all);
	CHECK(!mlx5dv_query_device(context, &driver));
	CHECK(driver.comp_mask & MLX5DV_CONTEXT_MASK_DC_ODP_CAPS);
	CHECK(driver.dc_odp_caps == all);
}

/* Pages that are absent at registration, come, go, and change. `all` covers all memory. */
static void faults(struct ibv_mr *own, char *source, int all)
{
	static const enum ibv_wr_opcode opcodes[] = { IBV_WR_RDMA_WRITE, IBV_WR_SEND, IBV_WR_ATOMIC_FETCH_AND_ADD,
						      IBV_WR_RDMA_READ };
	char *start = alone(), *moved, *place = mapped_at(alone());
	struct ibv_mr *mr;

	mr = all ? registered(NULL, SIZE_MAX, ON_DEMAND) : registered(start, BYTES, ON_DEMAND);
	for (size_t number = 0; number < sizeof(opcodes) / sizeof(opcodes[0]); number++) {
		int sends = opcodes[number] == IBV_WR_SEND;
		int expect = sends ? IBV_WC_REM_OP_ERR : IBV_WC_REM_ACCESS_ERR;

		/* The driver itself copies a shorter message from its completion. */
		CHECK(status_of(opcodes[number], own, source, sends ? 256 : 8, mr, start) == expect);
	}
	CHECK(status_of(IBV_WR_RDMA_WRITE, mr, start, 8, own, source) == IBV_WC_LOC_PROT_ERR);
	CHECK(mapped_at(start) == start);
	memset(source, 'a', BYTES);
	CHECK(status_of(IBV_WR_RDMA_WRITE, own, source, BYTES, mr, start) == IBV_WC_SUCCESS);
	CHECK(!memcmp(start, source, BYTES));
	/* The kernel takes the pages: the device sees the zeroes that it provides instead. */
	CHECK(!madvise(start, BYTES, MADV_DONTNEED));
	CHECK(status_of(IBV_WR_RDMA_READ, own, source, BYTES, mr, start) == IBV_WC_SUCCESS);
	CHECK(source[0] == 0 && source[BYTES - 1] == 0);
	memset(start, 'b', BYTES);
	CHECK(mapped_at(start) == start);
	CHECK(status_of(IBV_WR_RDMA_READ, own, source, BYTES, mr, start) == IBV_WC_SUCCESS);
	CHECK(source[0] == 0 && source[BYTES - 1] == 0);
	/* Other pages come to the address. */
	memset(place, 'c', BYTES);
	CHECK(mremap(place, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, start) == start);
	CHECK(status_of(IBV_WR_RDMA_READ, own, source, BYTES, mr, start) == IBV_WC_SUCCESS);
	CHECK(source[0] == 'c' && source[BYTES - 1] == 'c');
	moved = mremap(start, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, place);
	CHECK(moved == place);
	CHECK(status_of(IBV_WR_RDMA_READ, own, source, 8, mr, start) == IBV_WC_REM_ACCESS_ERR);
	CHECK(mapped_at(start) == start);
	/* Without permission to write. */
	CHECK(!mprotect(start, BYTES, PROT_READ));
	CHECK(status_of(IBV_WR_RDMA_WRITE, own, source, 8, mr, start) == IBV_WC_REM_ACCESS_ERR);
	CHECK(status_of(IBV_WR_RDMA_READ, own, source, 8, mr, start) == IBV_WC_SUCCESS);
	CHECK(!ibv_dereg_mr(mr));
	CHECK(!munmap(start, BYTES) && !munmap(place, BYTES));
}

static int advised(struct ibv_pd *domain, enum ibv_advise_mr_advice advice, uint32_t flags, void *at, uint32_t bytes,
		   uint32_t lkey)
{
	struct ibv_sge sge = { (uintptr_t)at, bytes, lkey };

	return ibv_advise_mr(domain, advice, flags, &sge, 1);
}

static void prefetches(void)
{
	const enum ibv_advise_mr_advice reads = IBV_ADVISE_MR_ADVICE_PREFETCH;
	const enum ibv_advise_mr_advice writes = IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE;
	const enum ibv_advise_mr_advice looks = IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT;
	const uint32_t waits = IBV_ADVISE_MR_FLAG_FLUSH;
	char *start = mapped_at(alone());
	struct ibv_mr *mr = registered(start, BYTES, ON_DEMAND), *pinned;
	struct ibv_mr *weak = registered(start, BYTES, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_ON_DEMAND);
	struct ibv_pd *other = ibv_alloc_pd(context);

	CHECK(other);
	CHECK(advised(pd, looks, waits, start, BYTES, mr->lkey) == 0);
	CHECK(!is_resident(start));
	CHECK(advised(pd, writes, waits, start + PAGE, 1, mr->lkey) == 0);
	CHECK(!is_resident(start) && is_resident(start + PAGE) && !is_resident(start + 2 * PAGE));
	CHECK(advised(pd, writes, 0, start + 2 * PAGE, PAGE + 1, mr->lkey) == 0);
	CHECK(is_resident(start + 2 * PAGE) && is_resident(start + 3 * PAGE));
	CHECK(advised(pd, writes, waits, start, BYTES, weak->lkey) == EPERM);
	CHECK(advised(other, reads, waits, start, BYTES, mr->lkey) == EPERM);
	CHECK(advised(pd, reads, waits, start, BYTES + 1, mr->lkey) == EFAULT);
	CHECK(advised(pd, reads, 0, start, BYTES + 1, mr->lkey) == 0);
	CHECK(!mprotect(start, PAGE, PROT_READ));
	CHECK(advised(pd, writes, waits, start, BYTES, mr->lkey) == EPERM);
	CHECK(!munmap(start, PAGE));
	CHECK(advised(pd, reads, waits, start, BYTES, mr->lkey) == EFAULT);
	CHECK(advised(pd, reads, 0, start, BYTES, mr->lkey) == 0);
	CHECK(advised(pd, reads, waits, start + PAGE, PAGE, mr->lkey) == 0);
	pinned = registered(start + PAGE, PAGE, REMOTE);
	CHECK(advised(pd, reads, waits, start + PAGE, PAGE, pinned->lkey) == ENOENT);
	CHECK(advised(pd, reads, waits, start + PAGE, PAGE, mr->lkey ^ 1) == ENOENT);
	CHECK(!ibv_dereg_mr(pinned) && !ibv_dereg_mr(weak) && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(other));
}

static void refusals(void)
{
	struct ibv_mr *mr = registered(NULL, SIZE_MAX, ON_DEMAND);

	errno = 0;
	CHECK(!ibv_reg_mr(pd, NULL, SIZE_MAX, ON_DEMAND | IBV_ACCESS_HUGETLB) && errno == EINVAL);
	errno = 0;
	CHECK(!ibv_reg_mr(pd, NULL, SIZE_MAX, REMOTE) && errno);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ON_DEMAND));
	CHECK(errno == EOPNOTSUPP);
	CHECK(!ibv_dereg_mr(mr));
}

static void opened(void)
{
	opened_with(16);
	CHECK(!ibv_query_port(context, 1, &port) && !ibv_query_gid(context, 1, 0, &gid));
}

/* A region whose pages the program has given away: other memory is at its addresses. */
static struct ibv_mr *torn(char *start, int old, int new)
{
	struct ibv_mr *mr;

	mapped_at(start);
	memset(start, old, BYTES);
	mr = registered(start, BYTES, REMOTE);
	mapped_at(start);
	memset(start, new, BYTES);
	return mr;
}

static int is_all(const char *start, int byte)
{
	for (size_t at = 0; at < BYTES; at++)
		if (start[at] != byte)
			return 0;
	return 1;
}

/* The device keeps the old pages, as on hardware. */
static void pinned(struct ibv_mr *own, char *source)
{
	char *start = alone();
	struct ibv_mr *mr = torn(start, 'o', 'n');

	CHECK(status_of(IBV_WR_RDMA_READ, own, source, BYTES, mr, start) == IBV_WC_SUCCESS);
	CHECK(is_all(source, 'o'));
	memset(source, 'w', BYTES);
	CHECK(status_of(IBV_WR_RDMA_WRITE, own, source, BYTES, mr, start) == IBV_WC_SUCCESS);
	CHECK(is_all(start, 'n'));
	memset(source, 0, BYTES);
	CHECK(!munmap(start, BYTES));
	CHECK(status_of(IBV_WR_SEND, mr, start, BYTES, own, source) == IBV_WC_SUCCESS);
	CHECK(is_all(source, 'w'));
	*(uint64_t *)source = 7;
	CHECK(status_of(IBV_WR_RDMA_WRITE, own, source, 8, mr, start) == IBV_WC_SUCCESS);
	CHECK(status_of(IBV_WR_ATOMIC_FETCH_AND_ADD, own, source, 8, mr, start) == IBV_WC_SUCCESS);
	CHECK(status_of(IBV_WR_RDMA_READ, own, source, 8, mr, start) == IBV_WC_SUCCESS);
	CHECK(*(uint64_t *)source == 8);
	/* A new registration has the new pages. */
	mapped_at(start);
	memset(start, 'r', BYTES);
	CHECK(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, start, BYTES, 0));
	CHECK(status_of(IBV_WR_RDMA_READ, own, source, BYTES, mr, start) == IBV_WC_SUCCESS);
	CHECK(is_all(source, 'r'));
	/* After a fork the device follows the parent. */
	if (fork() == 0)
		_exit(start[0] != 'r');
	memset(start, 'p', BYTES);
	CHECK(status_of(IBV_WR_RDMA_READ, own, source, BYTES, mr, start) == IBV_WC_SUCCESS);
	CHECK(is_all(source, 'p'));
	CHECK(wait(NULL) > 0);
	CHECK(!ibv_dereg_mr(mr));
	/* Each registration is released: there are more than there is space for at once. */
	for (int number = 0; number < 20000; number++)
		CHECK(!ibv_dereg_mr(registered(start, PAGE, REMOTE)));
	mr = torn(start, 'x', 'y');
	CHECK(status_of(IBV_WR_RDMA_READ, own, source, BYTES, mr, start) == IBV_WC_SUCCESS);
	CHECK(is_all(source, 'x'));
	CHECK(!ibv_dereg_mr(mr));
}

struct peer {
	uint32_t number, rkey;
	void *start;
};

/* The same between two processes: the child gives its pages away, and the parent reads them. */
static void pinned_elsewhere(void)
{
	int up[2], down[2];
	struct peer other;
	pid_t child;

	CHECK(!pipe(up) && !pipe(down));
	child = fork();
	CHECK(child >= 0);
	opened();
	if (child == 0) {
		char *start = alone();
		struct ibv_mr *mr = torn(start, 'o', 'n');
		struct ibv_qp *qp = created(), peer = { 0 };
		struct peer self = { qp->qp_num, mr->rkey, start };

		CHECK(write(up[1], &self, sizeof(self)) == sizeof(self));
		CHECK(read(down[0], &peer.qp_num, 4) == 4);
		connect_to(qp, &peer);
		CHECK(write(up[1], "c", 1) == 1);
		CHECK(read(down[0], &self, 1) == 1);
		_exit(!is_all(start, 'n'));
	} else {
		char *into = mapped_at(NULL), done;
		struct ibv_mr *own = registered(into, BYTES, REMOTE);
		struct ibv_qp *qp = created(), peer = { 0 };
		struct ibv_sge sge = { (uintptr_t)into, BYTES, own->lkey };
		struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1 };
		struct ibv_wc wc;
		int status;

		CHECK(read(up[0], &other, sizeof(other)) == sizeof(other));
		peer.qp_num = other.number;
		CHECK(write(down[1], &qp->qp_num, 4) == 4);
		connect_to(qp, &peer);
		CHECK(read(up[0], &done, 1) == 1);
		wr.wr.rdma.remote_addr = (uintptr_t)other.start;
		wr.wr.rdma.rkey = other.rkey;
		for (int turn = 0; turn < 3; turn++) {
			wr.opcode = turn == 1 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
			CHECK(!ibv_post_send(qp, &wr, &bad));
			while (!ibv_poll_cq(cq, 1, &wc))
				;
			CHECK(wc.status == IBV_WC_SUCCESS);
			CHECK(is_all(into, turn == 0 ? 'o' : 'w'));
			memset(into, turn == 0 ? 'w' : 0, BYTES);
			if (turn == 1)
				memset(into, 0, BYTES);
		}
		CHECK(write(down[1], "d", 1) == 1);
		CHECK(waitpid(child, &status, 0) == child && status == 0);
	}
}

int main(int count, char **words)
{
	int pins = count > 1 && !strcmp(words[1], "pinned");
	char *source;
	struct ibv_mr *own;

	if (pins)
		pinned_elsewhere();
	else
		opened();
	source = mapped_at(NULL);
	own = registered(source, BYTES, REMOTE);
	if (pins)
		pinned(own, source);
	capabilities();
	faults(own, source, 0);
	faults(own, source, 1);
	prefetches();
	refusals();
	puts("ok");
	return 0;
}
