/* A program that uses UCC directly, with collectives on all ranks of MPI_COMM_WORLD, and compares every byte.
 *
 *   ucc_direct persistent POSTS PREFIX COMMAND...
 *                                posts one request of each of several collectives repeatedly, between two runs of COMMAND as
 *                                below
 *   ucc_direct endure            repeats alltoallv with fresh buffers until a round fails at a rank, then 20 times more;
 *                                rank 0 prints "round N" for the rounds before, and at the end
 *                                "first failure in round N, M of 20 rounds succeeded after it" and "done"
 *   ucc_direct endure-kept       the same, with posts of one persistent request until the failure
 *   ucc_direct shared            repeats allgather and a broadcast of rank 0, where each block goes to several ranks
 *   ucc_direct reduce PREFIX COMMAND...
 *                                repeats allreduces of fresh vectors, in place and not; rank 0 runs COMMAND, which prints the
 *                                device's counters, before and after the last rounds into PREFIX.before and PREFIX.after
 *   ucc_direct fork              repeats alltoallv, forks a child that cannot use the team and ends, and repeats it again
 *   ucc_direct left              makes calls that the component leaves to others, between two that it serves; rank 0 prints
 *                                what became of each
 *   ucc_direct load FILE         loads a component as UCC does, in a process with UCC, and prints the time in us
 */
#include "ucc_side.h"
#include <dlfcn.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK = 8192, AFTER = 20, SHARED = 10, ROUNDS_MAX = 200000 };

static uint32_t counts[64], displacements[64];
static unsigned posts;

static void describe(ucc_coll_args_t *args, uint8_t *send, uint8_t *receive)
{
	int peer;

	for (peer = 0; peer < ranks; peer++) {
		counts[peer] = BLOCK;
		displacements[peer] = (uint32_t)peer * BLOCK;
	}
	memset(args, 0, sizeof(*args));
	args->coll_type = UCC_COLL_TYPE_ALLTOALLV;
	args->src.info_v.buffer = send;
	args->src.info_v.counts = (void *)counts;
	args->src.info_v.displacements = (void *)displacements;
	args->src.info_v.datatype = UCC_DT_UINT8;
	args->src.info_v.mem_type = UCC_MEMORY_TYPE_HOST;
	args->dst.info_v = args->src.info_v;
	args->dst.info_v.buffer = receive;
}

static void fill(uint8_t *send, uint8_t *receive, unsigned round)
{
	int peer;
	size_t at;

	for (peer = 0; peer < ranks; peer++)
		for (at = 0; at < BLOCK; at++)
			send[(size_t)peer * BLOCK + at] = byte_of(rank, peer, round, at);
	memset(receive, 0xee, (size_t)ranks * BLOCK);
}

/* `to` is the rank that the senders of this collective address. */
static void compare(const uint8_t *receive, int to, unsigned round)
{
	int peer;
	size_t at;

	for (peer = 0; peer < ranks; peer++)
		for (at = 0; at < BLOCK; at++)
			if (receive[(size_t)peer * BLOCK + at] != byte_of(peer, to, round, at)) {
				fprintf(stderr, "rank %d, round %u: byte %zu from rank %d is wrong\n", rank, round, at, peer);
				MPI_Abort(MPI_COMM_WORLD, 1);
			}
}

/* One collective as a persistent request; each post finds other data in the same buffers. */
static void repeat(ucc_coll_args_t *args, const char *name, uint8_t *send, uint8_t *receive, int all_alike)
{
	ucc_coll_req_h request;
	unsigned post;
	int peer;

	args->mask |= UCC_COLL_ARGS_FIELD_FLAGS;
	args->flags |= UCC_COLL_ARGS_FLAG_PERSISTENT;
	CHECK(ucc_collective_init(args, &request, team));
	for (post = 0; post < posts; post++) {
		fill(send, receive, post);
		/* An allgather sends one block to all, so each sender uses the block for rank 0. */
		CHECK(run_posted(request));
		compare(receive, all_alike ? 0 : rank, post);
		MPI_Barrier(MPI_COMM_WORLD);
	}
	CHECK(ucc_collective_finalize(request));
	for (peer = 0; peer < ranks; peer++)
		MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0)
		printf("ok persistent %s\n", name);
}

/* Element `at` of a rank's vector in a round, and the sum of all ranks' elements. */
static uint32_t element_of(int from, unsigned round, size_t at)
{
	return (uint32_t)at * 2654435761u ^ (uint32_t)from * 40503u ^ round * 7919u;
}

static void sums_of(const uint32_t *found, size_t elements, unsigned round)
{
	size_t at;

	for (at = 0; at < elements; at++) {
		uint32_t sum = 0;
		int from;

		for (from = 0; from < ranks; from++)
			sum += element_of(from, round, at);
		if (found[at] != sum) {
			fprintf(stderr, "rank %d, round %u: element %zu is %u, not %u\n", rank, round, at, found[at], sum);
			MPI_Abort(MPI_COMM_WORLD, 1);
		}
	}
}

static void describe_sum(ucc_coll_args_t *args, void *send, void *receive, size_t elements)
{
	memset(args, 0, sizeof(*args));
	args->coll_type = UCC_COLL_TYPE_ALLREDUCE;
	args->op = UCC_OP_SUM;
	args->src.info.buffer = send;
	args->src.info.count = elements;
	args->src.info.datatype = UCC_DT_UINT32;
	args->src.info.mem_type = UCC_MEMORY_TYPE_HOST;
	args->dst.info = args->src.info;
	args->dst.info.buffer = receive;
}

/* As repeat(), for an allreduce. */
static void persistent_sum(uint8_t *send, uint8_t *receive)
{
	size_t elements = (size_t)ranks * BLOCK / sizeof(uint32_t), at;
	ucc_coll_args_t args;
	ucc_coll_req_h request;
	unsigned post;

	describe_sum(&args, send, receive, elements);
	args.mask |= UCC_COLL_ARGS_FIELD_FLAGS;
	args.flags |= UCC_COLL_ARGS_FLAG_PERSISTENT;
	CHECK(ucc_collective_init(&args, &request, team));
	for (post = 0; post < posts; post++) {
		for (at = 0; at < elements; at++)
			((uint32_t *)(void *)send)[at] = element_of(rank, post, at);
		CHECK(run_posted(request));
		sums_of((uint32_t *)(void *)receive, elements, post);
		MPI_Barrier(MPI_COMM_WORLD);
	}
	CHECK(ucc_collective_finalize(request));
	if (rank == 0)
		printf("ok persistent allreduce\n");
}

/* As repeat(), for a broadcast of rank 0. */
static void persistent_broadcast(uint8_t *block)
{
	ucc_coll_args_t args = { .mask = UCC_COLL_ARGS_FIELD_FLAGS, .flags = UCC_COLL_ARGS_FLAG_PERSISTENT,
				 .coll_type = UCC_COLL_TYPE_BCAST };
	ucc_coll_req_h request;
	unsigned post;
	size_t at;

	args.src.info.buffer = block;
	args.src.info.count = BLOCK;
	args.src.info.datatype = UCC_DT_UINT8;
	args.src.info.mem_type = UCC_MEMORY_TYPE_HOST;
	CHECK(ucc_collective_init(&args, &request, team));
	for (post = 0; post < posts; post++) {
		for (at = 0; at < BLOCK; at++)
			block[at] = rank ? 0xee : byte_of(0, 0, post, at);
		CHECK(run_posted(request));
		for (at = 0; at < BLOCK; at++)
			CHECK(block[at] != byte_of(0, 0, post, at));
		MPI_Barrier(MPI_COMM_WORLD);
	}
	CHECK(ucc_collective_finalize(request));
	if (rank == 0)
		printf("ok persistent bcast\n");
}

static void persistent(char **words)
{
	size_t size = (size_t)ranks * BLOCK;
	uint8_t *send = fresh(size), *receive = fresh(size);
	ucc_coll_args_t args;

	posts = (unsigned)strtoul(words[0], NULL, 10);
	counters(words + 2, words[1], "before");
	describe(&args, send, receive);
	repeat(&args, "alltoallv", send, receive, 0);

	memset(&args, 0, sizeof(args));
	args.coll_type = UCC_COLL_TYPE_ALLTOALL;
	args.src.info.buffer = send;
	args.src.info.count = size;
	args.src.info.datatype = UCC_DT_UINT8;
	args.src.info.mem_type = UCC_MEMORY_TYPE_HOST;
	args.dst.info = args.src.info;
	args.dst.info.buffer = receive;
	repeat(&args, "alltoall", send, receive, 0);

	args.mask = 0;
	args.flags = 0;
	args.coll_type = UCC_COLL_TYPE_ALLGATHER;
	args.src.info.count = BLOCK;
	repeat(&args, "allgather", send, receive, 1);
	persistent_sum(send, receive);
	persistent_broadcast(send);
	counters(words + 2, words[1], "after");
	munmap(send, size);
	munmap(receive, size);
}

/* One alltoallv with fresh buffers; returns its status. */
static ucc_status_t once(unsigned round)
{
	size_t size = (size_t)ranks * BLOCK;
	uint8_t *send = fresh(size), *receive = fresh(size);
	ucc_coll_args_t args;
	ucc_coll_req_h request;
	ucc_status_t status;

	describe(&args, send, receive);
	fill(send, receive, round);
	status = ucc_collective_init(&args, &request, team);
	if (status == UCC_OK) {
		status = run_posted(request);
		if (status == UCC_OK)
			compare(receive, rank, round);
		ucc_collective_finalize(request);
	}
	munmap(send, size);
	munmap(receive, size);
	return status;
}

/* A broadcast among the first two ranks. The others do not take part. */
static ucc_status_t among_two(void)
{
	static uint8_t block[BLOCK];
	ucc_coll_args_t args = { .mask = UCC_COLL_ARGS_FIELD_ACTIVE_SET | UCC_COLL_ARGS_FIELD_TAG, .coll_type = UCC_COLL_TYPE_BCAST };
	ucc_coll_req_h request;
	ucc_status_t status;
	size_t at;

	if (rank >= 2)
		return UCC_OK;
	for (at = 0; rank == 0 && at < BLOCK; at++)
		block[at] = byte_of(0, 1, 0, at);
	args.tag = 7;
	args.src.info.buffer = block;
	args.src.info.count = BLOCK;
	args.src.info.datatype = UCC_DT_UINT8;
	args.src.info.mem_type = UCC_MEMORY_TYPE_HOST;
	args.active_set.start = 0;
	args.active_set.stride = 1;
	args.active_set.size = 2;
	status = ucc_collective_init(&args, &request, team);
	if (status != UCC_OK)
		return status;
	status = run_posted(request);
	CHECK(ucc_collective_finalize(request));
	for (at = 0; status == UCC_OK && at < BLOCK; at++)
		CHECK(block[at] != byte_of(0, 1, 0, at));
	return status;
}

/* With `is_kept`, the rounds up to the failure are posts of one persistent request. */
static void endure(int is_kept)
{
	size_t size = (size_t)ranks * BLOCK;
	uint8_t *send = fresh(size), *receive = fresh(size);
	ucc_coll_args_t args;
	ucc_coll_req_h request = NULL;
	unsigned round, first = 0;
	int good = 0, after = 0;

	if (is_kept) {
		describe(&args, send, receive);
		args.mask |= UCC_COLL_ARGS_FIELD_FLAGS;
		args.flags |= UCC_COLL_ARGS_FLAG_PERSISTENT;
		CHECK(ucc_collective_init(&args, &request, team));
	}
	for (round = 1; after < AFTER; round++) {
		int mine, all;

		if (request && first) {
			CHECK(ucc_collective_finalize(request));
			request = NULL;
		}
		if (request) {
			fill(send, receive, round);
			mine = run_posted(request) == UCC_OK;
			if (mine)
				compare(receive, rank, round);
		} else {
			mine = once(round) == UCC_OK;
		}
		MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
		if (first) {
			after++;
			good += all;
		} else if (!all) {
			first = round;
			/* No other rank of the team can agree to do this on the hosts. */
			CHECK(rank < 2 && among_two() == UCC_OK);
		} else if (rank == 0) {
			printf("round %u\n", round);
			fflush(stdout);
		}
		if (round >= ROUNDS_MAX) {
			fprintf(stderr, "no round has failed\n");
			MPI_Abort(MPI_COMM_WORLD, 1);
		}
	}
	if (rank == 0)
		printf("first failure in round %u, %d of %d rounds succeeded after it\n", first, good, AFTER);
	munmap(send, size);
	munmap(receive, size);
}

/* Ten rounds of two collectives in which all ranks get the same blocks. */
static void shared(void)
{
	size_t size = (size_t)ranks * BLOCK;
	unsigned round;

	for (round = 0; round < SHARED; round++) {
		uint8_t *send = fresh(size), *receive = fresh(size);
		ucc_coll_args_t args = { .coll_type = UCC_COLL_TYPE_ALLGATHER };
		ucc_coll_req_h request;
		size_t at;

		args.src.info.buffer = send;
		args.src.info.count = BLOCK;
		args.src.info.datatype = UCC_DT_UINT8;
		args.src.info.mem_type = UCC_MEMORY_TYPE_HOST;
		args.dst.info = args.src.info;
		args.dst.info.buffer = receive;
		args.dst.info.count = size;
		fill(send, receive, round);
		CHECK(ucc_collective_init(&args, &request, team));
		CHECK(run_posted(request));
		CHECK(ucc_collective_finalize(request));
		compare(receive, 0, round);

		args.coll_type = UCC_COLL_TYPE_BCAST;
		args.root = 0;
		if (rank != 0)
			memset(send, 0xee, BLOCK);
		CHECK(ucc_collective_init(&args, &request, team));
		CHECK(run_posted(request));
		CHECK(ucc_collective_finalize(request));
		for (at = 0; at < BLOCK; at++)
			CHECK(send[at] != byte_of(0, 0, round, at));
		munmap(send, size);
		munmap(receive, size);
	}
}

/* An allreduce in place and one that is not, of vectors of several windows in fresh memory. */
static void reduce(char **words)
{
	enum { WARM_UP = 80, ROUNDS = 10, ELEMENTS = 100000 };
	unsigned round;

	for (round = 0; round < WARM_UP + ROUNDS; round++) {
		size_t size = ELEMENTS * sizeof(uint32_t), at;
		uint32_t *send = (void *)fresh(size), *receive = (void *)fresh(size);
		ucc_coll_args_t args;
		ucc_coll_req_h request;
		int in_place;

		if (round == WARM_UP)
			counters(words + 1, words[0], "before");
		for (in_place = 0; in_place < 2; in_place++) {
			for (at = 0; at < ELEMENTS; at++)
				send[at] = element_of(rank, round, at);
			describe_sum(&args, send, in_place ? send : receive, ELEMENTS);
			if (in_place) {
				args.mask |= UCC_COLL_ARGS_FIELD_FLAGS;
				args.flags |= UCC_COLL_ARGS_FLAG_IN_PLACE;
			}
			CHECK(ucc_collective_init(&args, &request, team));
			CHECK(run_posted(request));
			CHECK(ucc_collective_finalize(request));
			sums_of(in_place ? send : receive, ELEMENTS, round);
		}
		munmap(send, size);
		munmap(receive, size);
	}
	counters(words + 1, words[0], "after");
}

/* The child ends by exit(), so that all handlers of the process run in it. */
static void forked(void)
{
	enum { ROUNDS = 10 };
	size_t size = (size_t)ranks * BLOCK;
	int status = 1;
	unsigned round;
	pid_t child;

	for (round = 0; round < ROUNDS; round++)
		CHECK(once(round));
	fflush(NULL);
	child = fork();
	CHECK(child < 0);
	if (child == 0) {
		uint8_t *send = fresh(size), *receive = fresh(size);
		ucc_coll_args_t args;
		ucc_coll_req_h request;

		describe(&args, send, receive);
		exit(ucc_collective_init(&args, &request, team) == UCC_OK);
	}
	CHECK(waitpid(child, &status, 0) != child || status != 0);
	for (round = 0; round < ROUNDS; round++)
		CHECK(once(ROUNDS + round));
}

static size_t no_pack(void *state, size_t offset, void *to, size_t length)
{
	(void)state, (void)offset, (void)to, (void)length;
	return 0;
}

static ucc_status_t no_unpack(void *state, size_t offset, const void *from, size_t length)
{
	(void)state, (void)offset, (void)from, (void)length;
	return UCC_ERR_NOT_SUPPORTED;
}

static void *no_start(void *of, const void *buffer, size_t count)
{
	(void)of, (void)count;
	return (void *)(uintptr_t)buffer;
}

static void *no_start_unpack(void *of, void *buffer, size_t count)
{
	(void)of, (void)count;
	return buffer;
}

static size_t no_size(void *state)
{
	(void)state;
	return 0;
}

static void no_finish(void *state)
{
	(void)state;
}

/* No component of UCC serves a generic datatype: the call fails at its initialization. */
static void generic(void)
{
	ucc_generic_dt_ops_t ops = { .mask = UCC_GENERIC_DT_OPS_FIELD_FLAGS,
				     .start_pack = no_start,
				     .start_unpack = no_start_unpack,
				     .packed_size = no_size,
				     .pack = no_pack,
				     .unpack = no_unpack,
				     .finish = no_finish };
	size_t size = (size_t)ranks * BLOCK;
	uint8_t *send = fresh(size), *receive = fresh(size);
	ucc_coll_args_t args;
	ucc_coll_req_h request;
	ucc_datatype_t datatype;

	CHECK(ucc_dt_create_generic(&ops, NULL, &datatype));
	describe(&args, send, receive);
	args.src.info_v.datatype = datatype;
	args.dst.info_v.datatype = datatype;
	CHECK(ucc_collective_init(&args, &request, team) >= 0);
	ucc_dt_destroy(datatype);
	munmap(send, size);
	munmap(receive, size);
	if (rank == 0)
		printf("generic datatype refused\n");
}

/* A whole number below 2048 in a format: its 32 bits, or half of them. */
static uint32_t encoded(ucc_datatype_t datatype, unsigned number)
{
	unsigned exponent = 0;
	union {
		float number;
		uint32_t bits;
	} single = {(float)number};

	if (datatype == UCC_DT_FLOAT32)
		return single.bits;
	if (datatype == UCC_DT_BFLOAT16)
		return single.bits >> 16;
	while (number >> (exponent + 1))
		exponent++;
	return (exponent + 15) << 10 | (number << (10 - exponent) & 0x3ff);
}

static void average(void)
{
	enum { ELEMENTS = 1000 };
	static const ucc_datatype_t datatypes[] = {
		UCC_DT_FLOAT32, UCC_DT_FLOAT16, UCC_DT_BFLOAT16};
	static unsigned char send[ELEMENTS * 4], receive[ELEMENTS * 4];
	ucc_coll_args_t args;
	ucc_coll_req_h request;
	size_t of, at, size;
	uint32_t element;

	for (of = 0; of < 3; of++) {
		size = of ? 2 : 4;
		element = encoded(datatypes[of], (rank + 1) * 8);
		for (at = 0; at < ELEMENTS; at++)
			memcpy(send + at * size, &element, size);
		describe_sum(&args, send, receive, ELEMENTS);
		args.op = UCC_OP_AVG;
		args.src.info.datatype = datatypes[of];
		args.dst.info.datatype = datatypes[of];
		CHECK(ucc_collective_init(&args, &request, team));
		CHECK(run_posted(request));
		CHECK(ucc_collective_finalize(request));
		element = encoded(datatypes[of], (ranks + 1) * 4);
		for (at = 0; at < ELEMENTS; at++)
			CHECK(memcmp(receive + at * size, &element, size));
	}
	if (rank == 0)
		printf("averages on the services\n");
}

static double now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static int load(const char *file)
{
	double start = now_us();
	void *component = dlopen(file, RTLD_LAZY);

	if (!component || !dlsym(component, "ucc_tl_xgvmi")) {
		fprintf(stderr, "%s: %s\n", file, dlerror());
		return 1;
	}
	printf("%.1f\n", now_us() - start);
	return 0;
}

int main(int argc, char **argv)
{
	MPI_Comm world = MPI_COMM_WORLD;

	if (argc > 2 && !strcmp(argv[1], "load"))
		return load(argv[2]);

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	ucc_start(&world, NULL);
	if (argc > 4 && !strcmp(argv[1], "persistent"))
		persistent(argv + 2);
	else if (argc > 1 && !strcmp(argv[1], "shared"))
		shared();
	else if (argc > 1 && !strcmp(argv[1], "fork"))
		forked();
	else if (argc > 1 && !strcmp(argv[1], "left")) {
		CHECK(once(0));
		generic();
		average();
		CHECK(among_two());
		if (rank == 0)
			printf("active set on the services\n");
		CHECK(once(1));
	} else if (argc > 3 && !strcmp(argv[1], "reduce"))
		reduce(argv + 2);
	else
		endure(argc > 1 && !strcmp(argv[1], "endure-kept"));
	ucc_stop();
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0)
		printf("done\n");
	MPI_Finalize();
	return 0;
}
