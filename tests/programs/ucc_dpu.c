/* Stock UCC's own offload: hosts only export memory, and DPU processes run a collective on the hosts' buffers.
 *
 *   ucc_dpu sliding|alltoall|alltoallv BLOCK WARM_UP ITERATIONS [PREFIX COMMAND...]
 *
 * The first half of MPI_COMM_WORLD are hosts, the second half their DPUs in the same order. BLOCK is the number of bytes
 * from each host to each host. Each iteration uses fresh buffers, and the hosts compare every byte. Rank 0 runs COMMAND,
 * which prints the device's counters, before and after the ITERATIONS behind WARM_UP, into PREFIX.before and PREFIX.after.
 */
#include "ucc_side.h"
#include <fcntl.h>
#include <ucp/api/ucp.h>

enum { HOSTS_MAX = 16, SOURCE = 0, TARGET = 1, SIDES = 2 };

typedef struct {
	uint64_t address[SIDES];
	uint64_t length[SIDES];
} description_t;

static MPI_Comm members;
static int me, hosts;
static size_t block, total;
static const char *mode;
static ucp_context_h ucp;

static int is(const char *name)
{
	return !strcmp(mode, name);
}

static int32_t number(int host, unsigned round, size_t at)
{
	return (int32_t)((unsigned)at * 7u + (unsigned)host * 1000003u + round);
}

static void fill(uint8_t *source, uint8_t *target, unsigned round)
{
	size_t at;
	int to;

	memset(target, 0xee, total);
	if (is("sliding")) {
		for (at = 0; at < total / 4; at++)
			((int32_t *)source)[at] = number(me, round, at);
		return;
	}
	for (to = 0; to < hosts; to++)
		for (at = 0; at < block; at++)
			source[(size_t)to * block + at] = byte_of(me, to, round, at);
}

/* Returns the number of compared bytes. */
static size_t compare(const uint8_t *target, unsigned round)
{
	size_t at;
	int from;

	for (at = 0; is("sliding") && at < total / 4; at++) {
		uint32_t sum = 0;

		for (from = 0; from < hosts; from++)
			sum += (uint32_t)number(from, round, at);
		if ((uint32_t)((const int32_t *)target)[at] != sum) {
			fprintf(stderr, "host %d, round %u: number %zu is wrong\n", me, round, at);
			MPI_Abort(MPI_COMM_WORLD, 1);
		}
	}
	for (from = 0; !is("sliding") && from < hosts; from++)
		for (at = 0; at < block; at++)
			if (target[(size_t)from * block + at] != byte_of(from, me, round, at)) {
				fprintf(stderr, "host %d, round %u: byte %zu from host %d is wrong\n", me, round, at, from);
				MPI_Abort(MPI_COMM_WORLD, 1);
			}
	return total;
}

/* One side of a host's collective: exports it, and sends the packed handle after the description. */
typedef struct {
	uint8_t *memory;
	ucp_mem_h memh;
	ucc_mem_map_mem_h mapped;
	void *packed;
	size_t length;
} side_t;

static void export_side(side_t *side)
{
	if (is("sliding")) {
		ucp_mem_map_params_t map = { .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
					     .address = side->memory,
					     .length = total };
		ucp_memh_pack_params_t pack = { .field_mask = UCP_MEMH_PACK_PARAM_FIELD_FLAGS,
						.flags = UCP_MEMH_PACK_FLAG_EXPORT };

		CHECK(ucp_mem_map(ucp, &map, &side->memh));
		CHECK(ucp_memh_pack(side->memh, &pack, &side->packed, &side->length));
	} else {
		ucc_mem_map_t segment = { side->memory, total };
		ucc_mem_map_params_t params = { &segment, 1 };

		CHECK(ucc_mem_map(context, UCC_MEM_MAP_MODE_EXPORT, &params, &side->length, &side->mapped));
		side->packed = side->mapped;
	}
}

static void release_side(side_t *side)
{
	if (is("sliding")) {
		ucp_memh_buffer_release_params_t params = { 0 };

		ucp_memh_buffer_release(side->packed, &params);
		CHECK(ucp_mem_unmap(ucp, side->memh));
	} else {
		CHECK(ucc_mem_unmap(&side->mapped));
	}
	munmap(side->memory, total);
}

static size_t host_round(unsigned round)
{
	side_t sides[SIDES] = { { .memory = fresh(total) }, { .memory = fresh(total) } };
	description_t description;
	size_t compared;
	int side;

	fill(sides[SOURCE].memory, sides[TARGET].memory, round);
	for (side = 0; side < SIDES; side++) {
		export_side(&sides[side]);
		description.address[side] = (uint64_t)(uintptr_t)sides[side].memory;
		description.length[side] = sides[side].length;
	}
	MPI_Send(&description, sizeof(description), MPI_BYTE, me + hosts, 0, MPI_COMM_WORLD);
	for (side = 0; side < SIDES; side++)
		MPI_Send(sides[side].packed, (int)sides[side].length, MPI_BYTE, me + hosts, 1, MPI_COMM_WORLD);
	MPI_Barrier(MPI_COMM_WORLD);
	compared = compare(sides[TARGET].memory, round);
	for (side = 0; side < SIDES; side++)
		release_side(&sides[side]);
	return compared;
}

static void run(ucc_coll_args_t *args)
{
	ucc_coll_req_h request;

	CHECK(ucc_collective_init(args, &request, team));
	CHECK(run_posted(request));
	CHECK(ucc_collective_finalize(request));
}

static void sliding(const description_t *host, void *packed[SIDES])
{
	void *work[SIDES] = { packed[SOURCE], packed[TARGET] };
	ucc_coll_args_t args = { .mask = UCC_COLL_ARGS_FIELD_FLAGS | UCC_COLL_ARGS_FIELD_GLOBAL_WORK_BUFFER,
				 .flags = UCC_COLL_ARGS_FLAG_MEM_MAPPED_BUFFERS,
				 .coll_type = UCC_COLL_TYPE_ALLREDUCE,
				 .op = UCC_OP_SUM,
				 .global_work_buffer = work };

	args.src.info.buffer = (void *)(uintptr_t)host->address[SOURCE];
	args.src.info.count = total / 4;
	args.src.info.datatype = UCC_DT_INT32;
	args.src.info.mem_type = UCC_MEMORY_TYPE_HOST;
	args.dst.info = args.src.info;
	args.dst.info.buffer = (void *)(uintptr_t)host->address[TARGET];
	run(&args);
}

/* Imports this host's side, exports it for the other DPUs, and imports theirs; `handles` are in the hosts' order. */
static void share(const description_t *host, int side, void *packed, ucc_mem_map_mem_h *handles)
{
	ucc_mem_map_t segment = { (void *)(uintptr_t)host->address[side], total }, none = { NULL, 0 };
	ucc_mem_map_params_t params = { &segment, 1 }, other = { &none, 1 };
	ucc_mem_map_mem_h handle = packed;
	uint64_t length, lengths[HOSTS_MAX];
	size_t size = 0;
	int peer;

	CHECK(ucc_mem_map(context, UCC_MEM_MAP_MODE_IMPORT_OFFLOAD, &params, &size, &handle));
	size = 0;
	CHECK(ucc_mem_map(context, UCC_MEM_MAP_MODE_EXPORT_OFFLOAD, &params, &size, &handle));
	length = size;
	MPI_Allgather(&length, 1, MPI_UINT64_T, lengths, 1, MPI_UINT64_T, members);
	for (peer = 0; peer < hosts; peer++) {
		handles[peer] = peer == me ? handle : malloc(lengths[peer]);
		MPI_Bcast(handles[peer], (int)lengths[peer], MPI_BYTE, peer, members);
		size = 0;
		if (peer != me)
			CHECK(ucc_mem_map(context, UCC_MEM_MAP_MODE_IMPORT, &other, &size, &handles[peer]));
	}
}

static void onesided(const description_t *host, void *packed[SIDES], long *work)
{
	ucc_mem_map_mem_h handles[SIDES][HOSTS_MAX];
	uint64_t counts[HOSTS_MAX], sent[HOSTS_MAX], received[HOSTS_MAX];
	ucc_coll_args_t args = { .mask = UCC_COLL_ARGS_FIELD_FLAGS | UCC_COLL_ARGS_FIELD_MEM_MAP_SRC_MEMH |
					 UCC_COLL_ARGS_FIELD_MEM_MAP_DST_MEMH | UCC_COLL_ARGS_FIELD_GLOBAL_WORK_BUFFER,
				 .flags = UCC_COLL_ARGS_FLAG_MEM_MAPPED_BUFFERS | UCC_COLL_ARGS_FLAG_DST_MEMH_GLOBAL,
				 .coll_type = UCC_COLL_TYPE_ALLTOALL,
				 .global_work_buffer = work };
	int side, peer;

	for (side = 0; side < SIDES; side++)
		share(host, side, packed[side], handles[side]);
	args.dst_memh.global_memh = handles[TARGET];
	if (is("alltoall")) {
		args.flags |= UCC_COLL_ARGS_FLAG_SRC_MEMH_GLOBAL;
		args.src_memh.global_memh = handles[SOURCE];
		args.src.info.buffer = (void *)(uintptr_t)host->address[SOURCE];
		args.src.info.count = total;
		args.src.info.datatype = UCC_DT_UINT8;
		args.src.info.mem_type = UCC_MEMORY_TYPE_HOST;
		args.dst.info = args.src.info;
		args.dst.info.buffer = (void *)(uintptr_t)host->address[TARGET];
	} else {
		args.coll_type = UCC_COLL_TYPE_ALLTOALLV;
		args.flags |= UCC_COLL_ARGS_FLAG_COUNT_64BIT | UCC_COLL_ARGS_FLAG_DISPLACEMENTS_64BIT |
			      UCC_COLL_ARGS_FLAG_CONTIG_SRC_BUFFER | UCC_COLL_ARGS_FLAG_CONTIG_DST_BUFFER;
		args.src_memh.local_memh = handles[SOURCE][me];
		for (peer = 0; peer < hosts; peer++) {
			counts[peer] = block;
			sent[peer] = (uint64_t)peer * block;
			/* As in OpenSHMEM: the displacement of this rank's block at the peer. */
			received[peer] = (uint64_t)me * block;
		}
		args.src.info_v.buffer = (void *)(uintptr_t)host->address[SOURCE];
		args.src.info_v.counts = (void *)counts;
		args.src.info_v.displacements = (void *)sent;
		args.src.info_v.datatype = UCC_DT_UINT8;
		args.src.info_v.mem_type = UCC_MEMORY_TYPE_HOST;
		args.dst.info_v = args.src.info_v;
		args.dst.info_v.buffer = (void *)(uintptr_t)host->address[TARGET];
		args.dst.info_v.displacements = (void *)received;
	}
	run(&args);
	for (side = 0; side < SIDES; side++)
		for (peer = 0; peer < hosts; peer++)
			CHECK(ucc_mem_unmap(&handles[side][peer]));
}

static void dpu_round(long *work)
{
	description_t host;
	void *packed[SIDES];
	int side;

	MPI_Recv(&host, sizeof(host), MPI_BYTE, me, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	for (side = 0; side < SIDES; side++) {
		packed[side] = malloc(host.length[side]);
		MPI_Recv(packed[side], (int)host.length[side], MPI_BYTE, me, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	}
	if (is("sliding")) {
		sliding(&host, packed);
		free(packed[SOURCE]);
		free(packed[TARGET]);
	} else {
		/* UCC keeps and releases the handles. */
		onesided(&host, packed, work);
	}
	MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
	unsigned warm_up, iterations, round;
	unsigned long long compared = 0, sum = 0;
	long *work = (long *)fresh(4096);
	ucc_mem_map_t segment = { work, 4096 };
	char **command = argc > 6 ? argv + 6 : NULL;
	int is_host;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (argc < 5 || ranks % 2 || ranks / 2 > HOSTS_MAX)
		MPI_Abort(MPI_COMM_WORLD, 2);
	mode = argv[1];
	block = strtoul(argv[2], NULL, 10);
	warm_up = (unsigned)atoi(argv[3]);
	iterations = (unsigned)atoi(argv[4]);
	hosts = ranks / 2;
	is_host = rank < hosts;
	me = rank % hosts;
	total = block * (size_t)hosts;
	MPI_Comm_split(MPI_COMM_WORLD, is_host, rank, &members);
	if (!is_host) {
		ucc_start(&members, is("alltoallv") ? &segment : NULL);
	} else if (is("sliding")) {
		ucp_params_t params = { .field_mask = UCP_PARAM_FIELD_FEATURES,
					.features = UCP_FEATURE_RMA | UCP_FEATURE_EXPORTED_MEMH };

		CHECK(ucp_init(&params, NULL, &ucp));
	} else {
		ucc_start(NULL, NULL);
	}
	for (round = 0; round < warm_up + iterations; round++) {
		if (round == warm_up)
			counters(command, argv[5], "before");
		if (is_host)
			compared += host_round(round);
		else
			dpu_round(work);
	}
	counters(command, argv[5], "after");
	MPI_Reduce(&compared, &sum, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
	if (ucp)
		ucp_cleanup(ucp);
	else
		ucc_stop();
	if (rank == 0)
		printf("%llu bytes compared\ndone\n", sum);
	MPI_Finalize();
	return 0;
}
