/* A program that uses UCC directly in ways that are legal and rare, and compares every byte.
 *
 *   ucc_legal orders       starts persistent collectives in one order at even ranks and in another one at odd ranks
 *   ucc_legal many         has many collectives outstanding at once
 *   ucc_legal sets         has broadcasts of some ranks of the team, and collectives with tags, in other orders at odd ranks
 *   ucc_legal flood        has many such broadcasts outstanding, each with a tag of its own
 *   ucc_legal far          has blocks that are far from each other, with memory between them that nobody can access, and blocks
 *                          before the buffer's address
 *   ucc_legal protected PREFIX COMMAND...
 *                          sends from memory that cannot be written, and receives into a shared mapping of a file; in the
 *                          last rounds it can be written, and before them rank 0 runs COMMAND, which makes registrations
 *                          fail, with its output in PREFIX.faults
 *   ucc_legal teams        creates two teams at once, as Open MPI does for threads that create communicators, and uses both
 *   ucc_legal parted       ends one of two teams while a persistent collective of the other one is under way
 *   ucc_legal jobs         ends all its teams and creates others, six times
 *   ucc_legal rests        has a rank that waits and sleeps until another one has seen it sleep often
 */
#include "ucc_side.h"
#include <dirent.h>
#include <sched.h>
#include <unistd.h>

enum { BLOCK = 8192, SMALL = 64, STARTS = 4, MANY = 1100, RANKS_MAX = 64 };

static uint32_t sizes[RANKS_MAX], places[RANKS_MAX];
static int64_t wide_places[RANKS_MAX];

static void *mapped(size_t size, int rights, int flags, int file)
{
	void *at = mmap(NULL, size, rights, flags, file, 0);

	CHECK(at == MAP_FAILED);
	return at;
}

/* An alltoallv of equal blocks, one after the other. */
static ucc_coll_args_t even(uint8_t *send, uint8_t *receive, uint32_t block)
{
	ucc_coll_args_t args = { .coll_type = UCC_COLL_TYPE_ALLTOALLV };
	int peer;

	for (peer = 0; peer < ranks; peer++) {
		sizes[peer] = block;
		places[peer] = (uint32_t)peer * block;
	}
	args.src.info_v.buffer = send;
	args.src.info_v.counts = (void *)sizes;
	args.src.info_v.displacements = (void *)places;
	args.src.info_v.datatype = UCC_DT_UINT8;
	args.src.info_v.mem_type = UCC_MEMORY_TYPE_HOST;
	args.dst.info_v = args.src.info_v;
	args.dst.info_v.buffer = receive;
	return args;
}

static void fill_block(uint8_t *block, size_t size, int to, unsigned round)
{
	size_t at;

	for (at = 0; at < size; at++)
		block[at] = byte_of(rank, to, round, at);
}

static void compare_block(const uint8_t *block, size_t size, int from, unsigned round)
{
	size_t at;

	for (at = 0; at < size; at++)
		if (block[at] != byte_of(from, rank, round, at)) {
			fprintf(stderr, "rank %d, round %u: byte %zu from rank %d is wrong\n", rank, round, at, from);
			MPI_Abort(MPI_COMM_WORLD, 1);
		}
}

static void fill(uint8_t *send, size_t block, unsigned round)
{
	int peer;

	for (peer = 0; peer < ranks; peer++)
		fill_block(send + (size_t)peer * block, block, peer, round);
}

static void compare(const uint8_t *receive, size_t block, unsigned round)
{
	int peer;

	for (peer = 0; peer < ranks; peer++)
		compare_block(receive + (size_t)peer * block, block, peer, round);
}

static void finish(ucc_coll_req_h request)
{
	ucc_status_t status;

	while ((status = ucc_collective_test(request)) == UCC_INPROGRESS || status == UCC_OPERATION_INITIALIZED)
		ucc_context_progress(context);
	CHECK(status);
}

/* Two persistent alltoallvs and two persistent allreduces; those of a kind have equal lengths. */
static void orders(void)
{
	enum { CALLS = 4, ELEMENTS = 60000 };
	size_t bytes = ELEMENTS * sizeof(uint32_t);
	size_t size = bytes > (size_t)ranks * BLOCK ? bytes : (size_t)ranks * BLOCK;
	uint8_t *send[CALLS], *receive[CALLS];
	ucc_coll_req_h requests[CALLS];
	unsigned start;
	int call;

	for (call = 0; call < CALLS; call++) {
		ucc_coll_args_t args;

		send[call] = fresh(size);
		receive[call] = fresh(size);
		if (call < 2) {
			args = even(send[call], receive[call], BLOCK);
		} else {
			memset(&args, 0, sizeof(args));
			args.coll_type = UCC_COLL_TYPE_ALLREDUCE;
			args.op = UCC_OP_SUM;
			args.src.info.buffer = send[call];
			args.src.info.count = ELEMENTS;
			args.src.info.datatype = UCC_DT_UINT32;
			args.src.info.mem_type = UCC_MEMORY_TYPE_HOST;
			args.dst.info = args.src.info;
			args.dst.info.buffer = receive[call];
		}
		args.mask |= UCC_COLL_ARGS_FIELD_FLAGS;
		args.flags |= UCC_COLL_ARGS_FLAG_PERSISTENT;
		CHECK(ucc_collective_init(&args, &requests[call], team));
	}
	for (start = 0; start < STARTS; start++) {
		size_t at;

		for (call = 0; call < CALLS; call++) {
			memset(receive[call], 0xee, size);
			if (call < 2)
				fill(send[call], BLOCK, start * CALLS + (unsigned)call);
			else
				for (at = 0; at < ELEMENTS; at++)
					((uint32_t *)(void *)send[call])[at] =
						(uint32_t)at * (unsigned)call + start * 1000 + (unsigned)rank;
		}
		for (call = 0; call < CALLS; call++)
			CHECK(ucc_collective_post(requests[rank % 2 ? CALLS - 1 - call : call]));
		for (call = 0; call < CALLS; call++)
			finish(requests[call]);
		for (call = 0; call < CALLS; call++) {
			if (call < 2) {
				compare(receive[call], BLOCK, start * CALLS + (unsigned)call);
				continue;
			}
			for (at = 0; at < ELEMENTS; at++)
				CHECK(((uint32_t *)(void *)receive[call])[at] !=
				      (uint32_t)ranks * ((uint32_t)at * (unsigned)call + start * 1000) +
					      (uint32_t)(ranks * (ranks - 1) / 2));
		}
	}
	for (call = 0; call < CALLS; call++) {
		CHECK(ucc_collective_finalize(requests[call]));
		munmap(send[call], size);
		munmap(receive[call], size);
	}
}

static void many(void)
{
	static ucc_coll_req_h requests[MANY];
	size_t size = (size_t)ranks * SMALL;
	uint8_t *send = fresh(MANY * size), *receive = fresh(MANY * size);
	unsigned call;

	for (call = 0; call < MANY; call++) {
		ucc_coll_args_t args = even(send + call * size, receive + call * size, SMALL);

		fill(send + call * size, SMALL, call);
		CHECK(ucc_collective_init(&args, &requests[call], team));
	}
	/* The last rank begins when the others have all of them outstanding. */
	if (rank == ranks - 1)
		MPI_Barrier(MPI_COMM_WORLD);
	for (call = 0; call < MANY; call++)
		CHECK(ucc_collective_post(requests[call]));
	if (rank != ranks - 1)
		MPI_Barrier(MPI_COMM_WORLD);
	for (call = 0; call < MANY; call++) {
		finish(requests[call]);
		CHECK(ucc_collective_finalize(requests[call]));
		compare(receive + call * size, SMALL, call);
	}
	munmap(send, MANY * size);
	munmap(receive, MANY * size);
}

/* A broadcast among `size` ranks. The buffer has `round` in its bytes at the root. */
static ucc_coll_req_h begin_set(uint64_t start, int64_t stride, uint64_t size, int root, int tag, uint8_t *buffer, size_t length,
				unsigned round, uint64_t flags)
{
	ucc_coll_args_t args = { .mask = UCC_COLL_ARGS_FIELD_ACTIVE_SET | UCC_COLL_ARGS_FIELD_FLAGS,
				 .coll_type = UCC_COLL_TYPE_BCAST,
				 .flags = flags,
				 .root = (uint64_t)root };
	ucc_coll_req_h request;
	size_t at;

	for (at = 0; at < length; at++)
		buffer[at] = rank == root ? byte_of(root, 0, round, at) : 0xee;
	if (tag >= 0) {
		args.mask |= UCC_COLL_ARGS_FIELD_TAG;
		args.tag = (uint16_t)tag;
	}
	args.active_set.start = start;
	args.active_set.stride = stride;
	args.active_set.size = size;
	args.src.info.buffer = buffer;
	args.src.info.count = length;
	args.src.info.datatype = UCC_DT_UINT8;
	args.src.info.mem_type = UCC_MEMORY_TYPE_HOST;
	CHECK(ucc_collective_init(&args, &request, team));
	CHECK(ucc_collective_post(request));
	return request;
}

static void compare_set(const uint8_t *buffer, size_t length, int root, unsigned round)
{
	size_t at;

	for (at = 0; at < length; at++)
		CHECK(buffer[at] != byte_of(root, 0, round, at));
}

/* Twice a broadcast from each rank to each other one, all under way at once. Both ranks of a pair name themselves first. Those of
 * a pair with the same tag arrive in the order of their starts. */
static void pairs(void)
{
	enum { LENGTH = 70000, TWICE = 2 };
	size_t bytes = (size_t)ranks * 2 * TWICE * LENGTH;
	uint8_t *buffers = fresh(bytes);
	ucc_coll_req_h requests[RANKS_MAX][2][TWICE];
	int step, peer, sends, turn;

	for (step = 1; step < ranks; step++)
		for (sends = 0; sends < 2; sends++)
			for (turn = 0; turn < TWICE; turn++) {
				/* An order of its own at each rank. */
				int way = (sends + rank) % 2, root;

				peer = (rank + step) % ranks;
				root = way ? rank : peer;
				requests[peer][way][turn] =
					begin_set((uint64_t)rank, peer - rank, 2, root, root,
						  buffers + (size_t)((peer * 2 + way) * TWICE + turn) * LENGTH, LENGTH,
						  (unsigned)turn, 0);
			}
	for (peer = 0; peer < ranks; peer++)
		for (sends = 0; sends < 2 && peer != rank; sends++)
			for (turn = 0; turn < TWICE; turn++) {
				finish(requests[peer][sends][turn]);
				CHECK(ucc_collective_finalize(requests[peer][sends][turn]));
				compare_set(buffers + (size_t)((peer * 2 + sends) * TWICE + turn) * LENGTH, LENGTH,
					    sends ? rank : peer, (unsigned)turn);
			}
	munmap(buffers, bytes);
}

/* Alltoallvs of all ranks: each has a tag, which odd ranks start in the opposite order. One without a tag is between them. */
static void tags(void)
{
	enum { TAGS = 9 };
	size_t size = (size_t)ranks * BLOCK;
	uint8_t *send = fresh(TAGS * size), *receive = fresh(TAGS * size);
	ucc_coll_req_h requests[TAGS];
	unsigned at, call;

	for (at = 0; at < TAGS; at++) {
		ucc_coll_args_t args;

		call = rank % 2 ? TAGS - 1 - at : at;
		args = even(send + call * size, receive + call * size, BLOCK);
		fill(send + call * size, BLOCK, call);
		if (call != TAGS / 2) {
			args.mask |= UCC_COLL_ARGS_FIELD_TAG;
			args.tag = (uint16_t)(call * 8191);
		}
		CHECK(ucc_collective_init(&args, &requests[call], team));
		CHECK(ucc_collective_post(requests[call]));
	}
	for (call = 0; call < TAGS; call++) {
		finish(requests[call]);
		CHECK(ucc_collective_finalize(requests[call]));
		compare(receive + call * size, BLOCK, call);
	}
	munmap(send, TAGS * size);
	munmap(receive, TAGS * size);
}

/* Each rank sends to the next one. The last rank begins when the others have all of theirs outstanding. */
static void flood(void)
{
	static ucc_coll_req_h requests[2][MANY];
	uint8_t *buffers = fresh((size_t)2 * MANY * SMALL);
	int from = (rank + ranks - 1) % ranks, call, way;

	if (rank == ranks - 1)
		MPI_Barrier(MPI_COMM_WORLD);
	for (call = 0; call < MANY; call++)
		for (way = 0; way < 2; way++) {
			int root = way ? rank : from, other = way ? (rank + 1) % ranks : rank;

			requests[way][call] = begin_set((uint64_t)root, other - root, 2, root, call,
							buffers + (size_t)(call * 2 + way) * SMALL, SMALL, (unsigned)call, 0);
		}
	if (rank != ranks - 1)
		MPI_Barrier(MPI_COMM_WORLD);
	for (call = 0; call < MANY; call++)
		for (way = 0; way < 2; way++) {
			finish(requests[way][call]);
			CHECK(ucc_collective_finalize(requests[way][call]));
			compare_set(buffers + (size_t)(call * 2 + way) * SMALL, SMALL, way ? rank : from, (unsigned)call);
		}
	munmap(buffers, (size_t)2 * MANY * SMALL);
}

static void sets(void)
{
	enum { STARTED = 3 };
	uint8_t *buffer = fresh(BLOCK), *other = fresh(BLOCK);
	/* Each second rank, from the last one of them to the first one. */
	int members = (ranks + 1 - rank % 2) / 2, last = rank % 2 + 2 * (members - 1), start;
	ucc_coll_req_h request = begin_set((uint64_t)rank, 1, 1, rank, 3, buffer, BLOCK, 0, 0), second;

	finish(request);
	CHECK(ucc_collective_finalize(request));
	pairs();
	tags();
	request = begin_set((uint64_t)last, -2, (uint64_t)members, last, 3, buffer, BLOCK, 0, UCC_COLL_ARGS_FLAG_PERSISTENT);
	for (start = 0; start < STARTED; start++) {
		size_t at;

		finish(request);
		compare_set(buffer, BLOCK, last, (unsigned)start);
		if (start + 1 < STARTED) {
			for (at = 0; at < BLOCK; at++)
				buffer[at] = rank == last ? byte_of(last, 0, (unsigned)start + 1, at) : 0xee;
			CHECK(ucc_collective_post(request));
		}
	}
	CHECK(ucc_collective_finalize(request));
	/* Two of all ranks without a tag. */
	request = begin_set(0, 1, (uint64_t)ranks, 1, -1, buffer, BLOCK, 5, 0);
	second = begin_set((uint64_t)ranks - 1, -1, (uint64_t)ranks, 1, -1, other, BLOCK, 6, 0);
	finish(second);
	finish(request);
	compare_set(buffer, BLOCK, 1, 5);
	compare_set(other, BLOCK, 1, 6);
	CHECK(ucc_collective_finalize(second));
	CHECK(ucc_collective_finalize(request));
	munmap(buffer, BLOCK);
	munmap(other, BLOCK);
}

/* The blocks of even ranks lie at one end of a range of 8 GiB, those of odd ranks at the other one, before the buffer's address
 * and behind it. Each block has pages of its own, and nothing else in the range can be accessed. */
static void far(void)
{
	const size_t range = (size_t)8 << 30, apart = (size_t)2 * BLOCK;
	uint8_t *sides[2];
	unsigned round;
	int side, peer;

	for (side = 0; side < 2; side++)
		sides[side] = mapped(range, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
	for (peer = 0; peer < ranks; peer++) {
		size_t at = (peer % 2 ? range - (size_t)ranks * apart : 0) + (size_t)peer * apart;

		for (side = 0; side < 2; side++)
			CHECK(mprotect(sides[side] + at, BLOCK, PROT_READ | PROT_WRITE));
		wide_places[peer] = (int64_t)at - (int64_t)(range / 2);
	}
	for (round = 0; round < 4; round++) {
		uint32_t block = round % 2 ? SMALL : BLOCK;
		uint8_t *middle[2] = { sides[0] + range / 2, sides[1] + range / 2 };
		ucc_coll_args_t args = even(middle[0], middle[1], block);
		ucc_coll_req_h request;

		args.mask |= UCC_COLL_ARGS_FIELD_FLAGS;
		args.flags |= UCC_COLL_ARGS_FLAG_DISPLACEMENTS_64BIT;
		args.src.info_v.displacements = (void *)wide_places;
		args.dst.info_v.displacements = (void *)wide_places;
		if (round >= 2)
			args.flags |= UCC_COLL_ARGS_FLAG_IN_PLACE;
		for (peer = 0; peer < ranks; peer++)
			fill_block(middle[round >= 2] + wide_places[peer], block, peer, round);
		CHECK(ucc_collective_init(&args, &request, team));
		CHECK(run_posted(request));
		CHECK(ucc_collective_finalize(request));
		for (peer = 0; peer < ranks; peer++)
			compare_block(middle[1] + wide_places[peer], block, peer, round);
	}
	for (side = 0; side < 2; side++)
		munmap(sides[side], range);
}

/* Buffers of all rounds have other addresses: a range that could not be registered is copied at once when it comes again. */
static void protected(char **words)
{
	enum { ROUNDS = 6, WRITABLE = 3 };
	size_t size = (size_t)ranks * BLOCK;
	uint8_t *send[ROUNDS], *receive[ROUNDS];
	unsigned round;

	for (round = 0; round < ROUNDS; round++) {
		FILE *file = tmpfile();
		ucc_coll_args_t args;
		ucc_coll_req_h request;

		if (round == WRITABLE)
			counters(words + 1, words[0], "faults");
		CHECK(!file || ftruncate(fileno(file), (off_t)size));
		send[round] = fresh(size);
		receive[round] = mapped(size, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file));
		fclose(file);
		fill(send[round], BLOCK, round);
		if (round < WRITABLE)
			CHECK(mprotect(send[round], size, PROT_READ));
		args = even(send[round], receive[round], BLOCK);
		CHECK(ucc_collective_init(&args, &request, team));
		CHECK(run_posted(request));
		CHECK(ucc_collective_finalize(request));
		compare(receive[round], BLOCK, round);
	}
	while (round-- > 0) {
		munmap(send[round], size);
		munmap(receive[round], size);
	}
}

/* Begins to create a team as MPI libraries do: by a number and the ranks' places in the context. */
static ucc_team_h begin_team(uint64_t id, ucc_ep_map_t map, int own)
{
	ucc_team_params_t params = { .mask = UCC_TEAM_PARAM_FIELD_EP | UCC_TEAM_PARAM_FIELD_EP_RANGE |
					     UCC_TEAM_PARAM_FIELD_EP_MAP | UCC_TEAM_PARAM_FIELD_ID,
				     .ep_range = UCC_COLLECTIVE_EP_RANGE_CONTIG,
				     .ep = (uint64_t)own,
				     .ep_map = map,
				     .id = id };
	ucc_team_h created;

	CHECK(ucc_team_create_post(&context, 1, &params, &created));
	return created;
}

static void destroy(ucc_team_h of)
{
	ucc_status_t status;

	while ((status = ucc_team_destroy(of)) == UCC_INPROGRESS)
		ucc_context_progress(context);
	CHECK(status);
}

/* An alltoallv of fresh buffers on a team in which this rank is `own` of `size`. */
static void exchange(ucc_team_h on, int own, int size, unsigned round)
{
	size_t bytes = (size_t)size * BLOCK;
	uint8_t *send = fresh(bytes), *receive = fresh(bytes);
	int world_rank = rank, world_size = ranks;
	ucc_coll_args_t args;
	ucc_coll_req_h request;

	rank = own;
	ranks = size;
	args = even(send, receive, BLOCK);
	fill(send, BLOCK, round);
	CHECK(ucc_collective_init(&args, &request, on));
	CHECK(run_posted(request));
	CHECK(ucc_collective_finalize(request));
	compare(receive, BLOCK, round);
	rank = world_rank;
	ranks = world_size;
	munmap(send, bytes);
	munmap(receive, bytes);
}

/* Two teams of all ranks, whose creations are under way together. Odd ranks begin with the other one. */
static void teams(void)
{
	ucc_ep_map_t all = { .type = UCC_EP_MAP_FULL, .ep_num = (uint64_t)ranks };
	ucc_team_h both[2];
	unsigned round;
	int which, left;

	for (which = 0; which < 2; which++)
		both[(which + rank) % 2] = begin_team(100 + (uint64_t)((which + rank) % 2), all, rank);
	do {
		left = 0;
		for (which = 0; which < 2; which++) {
			ucc_status_t status = ucc_team_create_test(both[which]);

			CHECK(status < 0);
			left += status == UCC_INPROGRESS;
		}
		ucc_context_progress(context);
	} while (left);
	for (round = 0; round < 4; round++)
		exchange(both[round % 2], rank, ranks, round);
	for (which = 0; which < 2; which++)
		destroy(both[which]);
}

static void created(ucc_team_h of)
{
	ucc_status_t status;

	while ((status = ucc_team_create_test(of)) == UCC_INPROGRESS)
		ucc_context_progress(context);
	CHECK(status);
}

/* The team that ends has a persistent collective of the same buffers. */
static void parted(void)
{
	ucc_ep_map_t all = { .type = UCC_EP_MAP_FULL, .ep_num = (uint64_t)ranks };
	size_t size = (size_t)ranks * BLOCK;
	uint8_t *send = fresh(size), *receive = fresh(size);
	ucc_team_h other = begin_team(200, all, rank);
	ucc_coll_req_h requests[2];
	unsigned post;
	int which;

	created(other);
	for (which = 0; which < 2; which++) {
		ucc_coll_args_t args = even(send, receive, BLOCK);

		args.mask |= UCC_COLL_ARGS_FIELD_FLAGS;
		args.flags |= UCC_COLL_ARGS_FLAG_PERSISTENT;
		CHECK(ucc_collective_init(&args, &requests[which], which ? other : team));
	}
	for (post = 0; post < 4; post++) {
		which = post == 0;
		memset(receive, 0xee, size);
		fill(send, BLOCK, post);
		CHECK(ucc_collective_post(requests[which]));
		if (post == 1) {
			CHECK(ucc_collective_finalize(requests[1]));
			destroy(other);
		}
		finish(requests[which]);
		compare(receive, BLOCK, post);
	}
	CHECK(ucc_collective_finalize(requests[0]));
	munmap(send, size);
	munmap(receive, size);
}

/* Entries of a directory of /proc. */
static int entries(const char *path)
{
	DIR *directory = opendir(path);
	int count = 0;

	CHECK(!directory);
	while (readdir(directory))
		count++;
	closedir(directory);
	return count;
}

/* Six times all teams end and new ones begin: a team of all ranks, and one of half of them that outlives it. Each time the
 * process has as many descriptors and threads as after the first time. */
static void jobs(void)
{
	enum { ROUNDS = 6 };
	ucc_ep_map_t all = { .type = UCC_EP_MAP_FULL, .ep_num = (uint64_t)ranks };
	int side = rank % 2, own = rank / 2, members = (ranks + 1 - side) / 2, descriptors = 0, tasks = 0;
	unsigned round;

	destroy(team);
	team = NULL;
	for (round = 0; round < ROUNDS; round++) {
		ucc_ep_map_t half_map = { .type = UCC_EP_MAP_STRIDED, .ep_num = (uint64_t)members,
					  .strided = { .start = (uint64_t)side, .stride = 2 } };
		ucc_team_h whole = begin_team(100, all, rank), half;

		created(whole);
		exchange(whole, rank, ranks, round);
		half = begin_team(101, half_map, own);
		created(half);
		destroy(whole);
		exchange(half, own, members, 50 + round);
		destroy(half);
		MPI_Barrier(MPI_COMM_WORLD);
		if (round == 0) {
			descriptors = entries("/proc/self/fd");
			tasks = entries("/proc/self/task");
		}
		if (entries("/proc/self/fd") != descriptors || entries("/proc/self/task") != tasks) {
			fprintf(stderr, "rank %d, round %u: %d descriptors and %d threads, %d and %d after the first one\n", rank,
				round, entries("/proc/self/fd"), entries("/proc/self/task"), descriptors, tasks);
			MPI_Abort(MPI_COMM_WORLD, 1);
		}
	}
}

/* How often the main thread of a process has given its core away. */
static long switches(int process)
{
	char path[64], line[256];
	long count = -1;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/status", process);
	file = fopen(path, "r");
	CHECK(!file);
	while (fgets(line, sizeof(line), file))
		if (sscanf(line, "voluntary_ctxt_switches: %ld", &count) == 1)
			break;
	fclose(file);
	CHECK(count < 0);
	return count;
}

/* The last rank begins when rank 0, which waits for it, has slept many times. */
static void rests(void)
{
	enum { SLEEPS = 200 };
	int first = (int)getpid();
	long before;

	exchange(team, rank, ranks, 0);
	MPI_Bcast(&first, 1, MPI_INT, 0, MPI_COMM_WORLD);
	if (rank == ranks - 1) {
		before = switches(first);
		while (switches(first) < before + SLEEPS)
			sched_yield();
	}
	exchange(team, rank, ranks, 1);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} modes[] = { { "orders", orders }, { "many", many }, { "sets", sets }, { "flood", flood }, { "far", far }, { "teams", teams }, { "parted", parted }, { "jobs", jobs }, { "rests", rests } };
	MPI_Comm world = MPI_COMM_WORLD;
	size_t mode;
	int known = argc > 3 && !strcmp(argv[1], "protected");

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	CHECK(ranks > RANKS_MAX);
	if (argc > 1 && !strcmp(argv[1], "rests"))
		setenv("UCC_TL_XGVMI_WAIT", "sleep", 1);
	ucc_start(&world, NULL);
	for (mode = 0; mode < sizeof(modes) / sizeof(modes[0]); mode++)
		if (argc > 1 && !strcmp(argv[1], modes[mode].name)) {
			modes[mode].run();
			known = 1;
		}
	CHECK(!known);
	if (!strcmp(argv[1], "protected"))
		protected(argv + 2);
	ucc_stop();
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0)
		printf("done\n");
	MPI_Finalize();
	return 0;
}
