/* Legal MPI programs that implementations of collectives tend to break, one for each name. It knows only MPI, and compares
 * every byte.
 *
 *   mpi_legal [--late SECONDS] [--rounds COUNT] NAME...
 *   mpi_legal --list
 *
 * Rank 0 prints "ok NAME" when every rank has finished that program, and "done" at the end. The first error is printed on
 * standard error and aborts the job. Each program runs on any number of ranks from 2. SECONDS (default 1) is the time by which
 * a rank is late where a program has a late rank; COUNT (default 200) is that of the communicators that come and go.
 */
#define _GNU_SOURCE
#include "mpi_side.h"
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { KIB = 1024, BLOCK = 16 * KIB, PAGE = 64 * KIB };

static int threads_allowed;
static double late_s = 1;
static unsigned rounds_of_communicators = 200;

static void be_late(void)
{
	struct timespec time = { .tv_sec = (time_t)late_s };

	time.tv_nsec = (long)((late_s - (double)time.tv_sec) * 1e9);
	while (nanosleep(&time, &time) && errno == EINTR)
		;
}

static void untouched(const uint8_t *data, size_t size, uint8_t value)
{
	size_t at;

	for (at = 0; at < size; at++)
		if (data[at] != value)
			fail("byte %zu beside the blocks was written", at);
}

static void *map(size_t size, int flags, int file)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, file, 0);

	if (memory == MAP_FAILED)
		fail("mmap of %zu bytes: %s", size, strerror(errno));
	return memory;
}

static uint8_t *fresh(size_t size)
{
	return map(size, MAP_PRIVATE | MAP_ANONYMOUS, -1);
}

static void release(void *memory, size_t size)
{
	if (munmap(memory, size))
		fail("munmap: %s", strerror(errno));
}

/* With a real array of statuses: GCC takes MPICH's MPI_STATUSES_IGNORE for an array that is too short. */
static void wait_all(int count, MPI_Request *requests)
{
	MPI_Status *statuses = allocate(sizeof(*statuses) * (size_t)count);

	MPI_Waitall(count, requests, statuses);
	free(statuses);
}

/* A communicator's rank and size. */
static int rank_in(MPI_Comm comm)
{
	int own;

	MPI_Comm_rank(comm, &own);
	return own;
}

static int size_of(MPI_Comm comm)
{
	int size;

	MPI_Comm_size(comm, &size);
	return size;
}

/* Counts and displacements of an alltoallv with equal blocks. */
struct shape {
	int *counts, *places;
};

static struct shape shape_of(int members, int count, int step)
{
	struct shape shape = { allocate(sizeof(int) * (size_t)members), allocate(sizeof(int) * (size_t)members) };
	int peer;

	for (peer = 0; peer < members; peer++) {
		shape.counts[peer] = count;
		shape.places[peer] = peer * step;
	}
	return shape;
}

static void free_shape(struct shape shape)
{
	free(shape.counts);
	free(shape.places);
}

/* One alltoallv of fresh buffers on `comm`, started. */
struct exchange {
	MPI_Comm comm;
	uint8_t *from, *to;
	struct shape shape;
	int block;
	unsigned number;
};

static struct exchange prepare(MPI_Comm comm, int block, unsigned number)
{
	int members = size_of(comm), peer;
	struct exchange one = { comm, fresh((size_t)members * (size_t)block), fresh((size_t)members * (size_t)block),
				shape_of(members, block, block), block, number };

	for (peer = 0; peer < members; peer++)
		fill(one.from + (size_t)peer * (size_t)block, (size_t)block, rank_in(comm), peer, number);
	return one;
}

static MPI_Request start(struct exchange *one)
{
	MPI_Request request;

	MPI_Ialltoallv(one->from, one->shape.counts, one->shape.places, MPI_BYTE, one->to, one->shape.counts,
		       one->shape.places, MPI_BYTE, one->comm, &request);
	return request;
}

static void check_received(const struct exchange *one, int own, int members)
{
	int peer;

	for (peer = 0; peer < members; peer++)
		compare(one->to + (size_t)peer * (size_t)one->block, (size_t)one->block, peer, own, one->number);
}

static void release_exchange(struct exchange *one, int members)
{
	release(one->from, (size_t)members * (size_t)one->block);
	release(one->to, (size_t)members * (size_t)one->block);
	free_shape(one->shape);
}

static void finish(struct exchange *one, int own, int members)
{
	check_received(one, own, members);
	release_exchange(one, members);
}

static void alltoallv_on(MPI_Comm comm, int block, unsigned number)
{
	struct exchange one = prepare(comm, block, number);
	MPI_Request request = start(&one);

	MPI_Wait(&request, MPI_STATUS_IGNORE);
	finish(&one, rank_in(comm), size_of(comm));
}

static void blocking_alltoallv_on(MPI_Comm comm, int block, unsigned number)
{
	struct exchange one = prepare(comm, block, number);

	MPI_Alltoallv(one.from, one.shape.counts, one.shape.places, MPI_BYTE, one.to, one.shape.counts, one.shape.places,
		      MPI_BYTE, comm);
	finish(&one, rank_in(comm), size_of(comm));
}

/* --- Ranks that come late --- */

/* The root of a broadcast computes first. Then a rank of an allreduce does. */
static void late_root(void)
{
	uint8_t *data = fresh(BLOCK);
	int64_t sum = rank + 1, all = 0;

	if (rank == 0) {
		be_late();
		fill(data, BLOCK, 0, 0, 1);
	}
	MPI_Bcast(data, BLOCK, MPI_BYTE, 0, MPI_COMM_WORLD);
	compare(data, BLOCK, 0, 0, 1);
	MPI_Allreduce(&sum, &all, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
	if (all != (int64_t)ranks * (ranks + 1) / 2)
		fail("the sum is %lld", (long long)all);
	release(data, BLOCK);
}

/* Every rank computes between start and wait, and the last one computes before it starts. */
static void late_wait(void)
{
	struct exchange one = prepare(MPI_COMM_WORLD, BLOCK, 2);
	MPI_Request request;

	if (rank == ranks - 1)
		be_late();
	request = start(&one);
	if (rank != ranks - 1)
		be_late();
	MPI_Wait(&request, MPI_STATUS_IGNORE);
	finish(&one, rank, ranks);
}

/* All ranks compute for long between two collectives and call no MPI function meanwhile. */
static void idle(void)
{
	alltoallv_on(MPI_COMM_WORLD, BLOCK, 3);
	be_late();
	alltoallv_on(MPI_COMM_WORLD, BLOCK, 4);
}

/* A rank computes before it creates its first communicator, and others have begun. */
static void late_first(void)
{
	MPI_Comm comm;

	if (rank == ranks - 1)
		be_late();
	MPI_Comm_dup(MPI_COMM_WORLD, &comm);
	blocking_alltoallv_on(comm, BLOCK, 5);
	MPI_Comm_free(&comm);
}

/* --- Persistent collectives --- */

/* Two persistent requests, which each rank starts in its own order. */
static void persistent_orders(void)
{
	enum { REQUESTS = 2, ROUNDS = 4 };
	struct exchange one[REQUESTS];
	MPI_Request requests[REQUESTS];
	unsigned round;
	int at, peer;

	for (at = 0; at < REQUESTS; at++) {
		one[at] = prepare(MPI_COMM_WORLD, BLOCK, 0);
		MPI_Alltoallv_init(one[at].from, one[at].shape.counts, one[at].shape.places, MPI_BYTE, one[at].to,
				   one[at].shape.counts, one[at].shape.places, MPI_BYTE, MPI_COMM_WORLD, MPI_INFO_NULL,
				   &requests[at]);
	}
	for (round = 0; round < ROUNDS; round++) {
		for (at = 0; at < REQUESTS; at++) {
			one[at].number = 100 + round * REQUESTS + (unsigned)at;
			for (peer = 0; peer < ranks; peer++)
				fill(one[at].from + (size_t)peer * BLOCK, BLOCK, rank, peer, one[at].number);
			memset(one[at].to, 0xee, (size_t)ranks * BLOCK);
		}
		for (at = 0; at < REQUESTS; at++)
			MPI_Start(&requests[(at + rank + (int)round) % REQUESTS]);
		wait_all(REQUESTS, requests);
		for (at = 0; at < REQUESTS; at++)
			check_received(&one[at], rank, ranks);
	}
	for (at = 0; at < REQUESTS; at++) {
		MPI_Request_free(&requests[at]);
		finish(&one[at], rank, ranks);
	}
}

/* Persistent reductions and broadcasts between others, started in opposite orders; a request that is never started. */
static void persistent_reductions(void)
{
	enum { COUNT = 4096, ROUNDS = 3 };
	int32_t *in = (int32_t *)fresh(sizeof(int32_t) * COUNT), *sum = (int32_t *)fresh(sizeof(int32_t) * COUNT);
	uint8_t *data = fresh(BLOCK);
	MPI_Request both[2], never;
	int32_t at, round;

	MPI_Allreduce_init(in, sum, COUNT, MPI_INT32_T, MPI_SUM, MPI_COMM_WORLD, MPI_INFO_NULL, &both[0]);
	MPI_Bcast_init(data, BLOCK, MPI_BYTE, ranks - 1, MPI_COMM_WORLD, MPI_INFO_NULL, &both[1]);
	MPI_Bcast_init(data, BLOCK, MPI_BYTE, 0, MPI_COMM_WORLD, MPI_INFO_NULL, &never);
	for (round = 0; round < ROUNDS; round++) {
		for (at = 0; at < COUNT; at++)
			in[at] = at * (rank + 1) + round;
		if (rank == ranks - 1)
			fill(data, BLOCK, rank, 0, 200 + (unsigned)round);
		MPI_Start(&both[rank % 2]);
		alltoallv_on(MPI_COMM_WORLD, 1024, 210 + (unsigned)round);
		MPI_Start(&both[(rank + 1) % 2]);
		wait_all(2, both);
		for (at = 0; at < COUNT; at++)
			if (sum[at] != at * (ranks * (ranks + 1) / 2) + round * ranks)
				fail("element %d of the sum is %d", at, sum[at]);
		compare(data, BLOCK, ranks - 1, 0, 200 + (unsigned)round);
	}
	MPI_Request_free(&both[0]);
	MPI_Request_free(&both[1]);
	MPI_Request_free(&never);
	release(in, sizeof(int32_t) * COUNT);
	release(sum, sizeof(int32_t) * COUNT);
	release(data, BLOCK);
}

/* --- Memory that cannot be registered, or not as a whole --- */

static int unlinked_file(size_t size)
{
	char path[] = "mpi_legal.XXXXXX";
	int file = mkstemp(path);

	if (file < 0)
		fail("a file in the current directory: %s", strerror(errno));
	unlink(path);
	if (ftruncate(file, (off_t)size))
		fail("ftruncate: %s", strerror(errno));
	return file;
}

/* The send buffer is a file that is mapped read-only; the receive buffer is a shared mapping of a file. */
static void memory_of_files(void)
{
	size_t size = (size_t)ranks * BLOCK;
	int input = unlinked_file(size), output = unlinked_file(size), peer;
	uint8_t *from, *writable = map(size, MAP_SHARED, input), *to = map(size, MAP_SHARED, output);
	struct shape shape = shape_of(ranks, BLOCK, BLOCK);

	for (peer = 0; peer < ranks; peer++)
		fill(writable + (size_t)peer * BLOCK, BLOCK, rank, peer, 300);
	release(writable, size);
	from = mmap(NULL, size, PROT_READ, MAP_PRIVATE, input, 0);
	if (from == MAP_FAILED)
		fail("mmap: %s", strerror(errno));
	MPI_Alltoallv(from, shape.counts, shape.places, MPI_BYTE, to, shape.counts, shape.places, MPI_BYTE, MPI_COMM_WORLD);
	for (peer = 0; peer < ranks; peer++)
		compare(to + (size_t)peer * BLOCK, BLOCK, peer, rank, 300);
	MPI_Allgather(from, BLOCK, MPI_BYTE, to, BLOCK, MPI_BYTE, MPI_COMM_WORLD);
	for (peer = 0; peer < ranks; peer++)
		compare(to + (size_t)peer * BLOCK, BLOCK, peer, 0, 300);
	release(from, size);
	release(to, size);
	close(input);
	close(output);
	free_shape(shape);
}

static const uint8_t table[BLOCK] = { [0] = 1, [1] = 2, [BLOCK - 1] = 3 };

/* The root sends a constant of the program; the others receive into their stacks. */
static void memory_of_the_program(void)
{
	uint8_t own[BLOCK];
	const uint8_t *seen = table;

	if (rank) {
		memset(own, 0xee, BLOCK);
		seen = own;
	}
	MPI_Bcast((void *)(uintptr_t)seen, BLOCK, MPI_BYTE, 0, MPI_COMM_WORLD);
	if (memcmp(seen, table, BLOCK))
		fail("the constant did not arrive");
}

/* Blocks on both sides of memory that is not mapped, in send and receive buffer; a block far away. */
static void memory_with_gaps(void)
{
	const size_t span = (size_t)1 << 30;
	struct shape shape = shape_of(ranks, BLOCK, 0);
	uint8_t *from = mmap(NULL, span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	uint8_t *to = mmap(NULL, span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	int peer;

	if (from == MAP_FAILED || to == MAP_FAILED)
		fail("mmap: %s", strerror(errno));
	for (peer = 0; peer < ranks; peer++) {
		size_t place = peer + 1 < ranks ? (size_t)peer * 4 * PAGE : span - PAGE;

		shape.places[peer] = (int)place;
		if (mprotect(from + place, PAGE, PROT_READ | PROT_WRITE) || mprotect(to + place, PAGE, PROT_READ | PROT_WRITE))
			fail("mprotect: %s", strerror(errno));
		fill(from + place, BLOCK, rank, peer, 310);
		memset(to + place, 0xee, PAGE);
	}
	MPI_Alltoallv(from, shape.counts, shape.places, MPI_BYTE, to, shape.counts, shape.places, MPI_BYTE, MPI_COMM_WORLD);
	for (peer = 0; peer < ranks; peer++) {
		compare(to + shape.places[peer], BLOCK, peer, rank, 310);
		untouched(to + shape.places[peer] + BLOCK, PAGE - BLOCK, 0xee);
	}
	/* The same in place: the gap must not be read either. */
	for (peer = 0; peer < ranks; peer++)
		fill(to + shape.places[peer], BLOCK, rank, peer, 311);
	MPI_Alltoallv(MPI_IN_PLACE, NULL, NULL, MPI_DATATYPE_NULL, to, shape.counts, shape.places, MPI_BYTE, MPI_COMM_WORLD);
	for (peer = 0; peer < ranks; peer++)
		compare(to + shape.places[peer], BLOCK, peer, rank, 311);
	release(from, span);
	release(to, span);
	free_shape(shape);
}

/* Displacements below the buffer's address, and blocks in reverse order. */
static void negative_displacements(void)
{
	size_t size = (size_t)ranks * BLOCK;
	uint8_t *from = fresh(size), *to = fresh(size);
	struct shape shape = shape_of(ranks, BLOCK, -BLOCK);
	int peer;

	for (peer = 0; peer < ranks; peer++)
		fill(from + size - BLOCK - (size_t)peer * BLOCK, BLOCK, rank, peer, 320);
	MPI_Alltoallv(from + size - BLOCK, shape.counts, shape.places, MPI_BYTE, to + size - BLOCK, shape.counts, shape.places,
		      MPI_BYTE, MPI_COMM_WORLD);
	for (peer = 0; peer < ranks; peer++)
		compare(to + size - BLOCK - (size_t)peer * BLOCK, BLOCK, peer, rank, 320);
	release(from, size);
	release(to, size);
	free_shape(shape);
}

/* One block above 2 GiB, from rank 0 to the last one. All other blocks are empty. */
static void huge_block(void)
{
	enum { WORDS = (1 << 28) + 4 };
	size_t size = (size_t)WORDS * sizeof(uint64_t), at;
	uint64_t *data = NULL;
	int *out = allocate(sizeof(int) * (size_t)ranks), *in = allocate(sizeof(int) * (size_t)ranks);
	int *places = allocate(sizeof(int) * (size_t)ranks);

	if (rank == 0) {
		data = (uint64_t *)fresh(size);
		for (at = 0; at < WORDS; at += 512)
			data[at] = at * 0x9e3779b97f4a7c15ull + 1;
		data[WORDS - 1] = 77;
		out[ranks - 1] = WORDS;
	} else if (rank == ranks - 1) {
		data = (uint64_t *)fresh(size);
		in[0] = WORDS;
	}
	MPI_Alltoallv(rank == 0 ? data : NULL, out, places, MPI_UINT64_T, rank ? data : NULL, in, places, MPI_UINT64_T,
		      MPI_COMM_WORLD);
	if (rank == ranks - 1) {
		for (at = 0; at < WORDS; at += 512)
			if (data[at] != at * 0x9e3779b97f4a7c15ull + 1)
				fail("word %zu is wrong", at);
		if (data[WORDS - 1] != 77)
			fail("the last word is wrong");
	}
	if (data)
		release(data, size);
	free(out);
	free(in);
	free(places);
}

/* --- Many at once --- */

/* Thousands of broadcasts that are started before the root of the first has begun. */
static void many_broadcasts(void)
{
	enum { CALLS = 2000, SIZE = 2048 };
	uint8_t *data = fresh((size_t)CALLS * SIZE);
	MPI_Request *requests = allocate(sizeof(*requests) * CALLS);
	unsigned call;

	if (rank == 0) {
		be_late();
		for (call = 0; call < CALLS; call++)
			fill(data + (size_t)call * SIZE, SIZE, 0, 0, call);
	}
	for (call = 0; call < CALLS; call++)
		MPI_Ibcast(data + (size_t)call * SIZE, SIZE, MPI_BYTE, 0, MPI_COMM_WORLD, &requests[call]);
	wait_all(CALLS, requests);
	for (call = 0; call < CALLS; call++)
		compare(data + (size_t)call * SIZE, SIZE, 0, 0, call);
	free(requests);
	release(data, (size_t)CALLS * SIZE);
}

/* One reduction on each of many communicators, all at once, started in another order on each rank. */
static void many_reductions(void)
{
	enum { COMMS = 40, COUNT = 16 * KIB };
	MPI_Comm comms[COMMS];
	MPI_Request requests[COMMS];
	int32_t *in[COMMS], *sum[COMMS], element;
	int at;

	for (at = 0; at < COMMS; at++) {
		MPI_Comm_dup(MPI_COMM_WORLD, &comms[at]);
		in[at] = (int32_t *)fresh(sizeof(int32_t) * COUNT);
		sum[at] = (int32_t *)fresh(sizeof(int32_t) * COUNT);
		for (element = 0; element < COUNT; element++)
			in[at][element] = element * at + rank;
	}
	for (at = 0; at < COMMS; at++) {
		int which = (at * 7 + rank * 11) % COMMS;

		MPI_Iallreduce(in[which], sum[which], COUNT, MPI_INT32_T, MPI_SUM, comms[which], &requests[which]);
	}
	wait_all(COMMS, requests);
	for (at = 0; at < COMMS; at++) {
		for (element = 0; element < COUNT; element++)
			if (sum[at][element] != element * at * ranks + ranks * (ranks - 1) / 2)
				fail("communicator %d, element %d is %d", at, element, sum[at][element]);
		release(in[at], sizeof(int32_t) * COUNT);
		release(sum[at], sizeof(int32_t) * COUNT);
		MPI_Comm_free(&comms[at]);
	}
}

/* Different collectives of one communicator at once, completed in any order, with blocking ones between. */
static void mixture(void)
{
	enum { KINDS = 5, ROUNDS = 8 };
	unsigned round;

	for (round = 0; round < ROUNDS; round++) {
		struct exchange one = prepare(MPI_COMM_WORLD, 4096, 400 + round);
		uint8_t *data = fresh(BLOCK), *all = fresh((size_t)ranks * BLOCK), *own = fresh(BLOCK);
		int64_t sum = rank, total = -1;
		MPI_Request requests[KINDS];
		int at, which, peer;

		if (rank == (int)round % ranks)
			fill(data, BLOCK, rank, 0, 410 + round);
		fill(own, BLOCK, rank, 0, 420 + round);
		MPI_Ibcast(data, BLOCK, MPI_BYTE, (int)round % ranks, MPI_COMM_WORLD, &requests[0]);
		requests[1] = start(&one);
		MPI_Iallreduce(&sum, &total, 1, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD, &requests[2]);
		MPI_Ibarrier(MPI_COMM_WORLD, &requests[3]);
		MPI_Iallgather(own, BLOCK, MPI_BYTE, all, BLOCK, MPI_BYTE, MPI_COMM_WORLD, &requests[4]);
		alltoallv_on(MPI_COMM_WORLD, 2048, 430 + round);
		for (at = 0; at < KINDS; at++)
			if (MPI_Waitany(KINDS, requests, &which, MPI_STATUS_IGNORE) || which == MPI_UNDEFINED)
				fail("MPI_Waitany");
		compare(data, BLOCK, (int)round % ranks, 0, 410 + round);
		for (peer = 0; peer < ranks; peer++)
			compare(all + (size_t)peer * BLOCK, BLOCK, peer, 0, 420 + round);
		if (total != ranks - 1)
			fail("the maximum is %lld", (long long)total);
		finish(&one, rank, ranks);
		release(data, BLOCK);
		release(own, BLOCK);
		release(all, (size_t)ranks * BLOCK);
	}
}

/* Several calls at once read the same send buffer. */
static void shared_send_buffer(void)
{
	enum { CALLS = 8 };
	size_t size = (size_t)ranks * BLOCK;
	uint8_t *from = fresh(size), *to[CALLS];
	struct shape shape = shape_of(ranks, BLOCK, BLOCK);
	MPI_Request requests[CALLS];
	int call, peer;

	for (peer = 0; peer < ranks; peer++)
		fill(from + (size_t)peer * BLOCK, BLOCK, rank, peer, 440);
	for (call = 0; call < CALLS; call++) {
		to[call] = fresh(size);
		MPI_Ialltoallv(from, shape.counts, shape.places, MPI_BYTE, to[call], shape.counts, shape.places, MPI_BYTE,
			       MPI_COMM_WORLD, &requests[call]);
	}
	wait_all(CALLS, requests);
	for (call = 0; call < CALLS; call++) {
		for (peer = 0; peer < ranks; peer++)
			compare(to[call] + (size_t)peer * BLOCK, BLOCK, peer, rank, 440);
		release(to[call], size);
	}
	release(from, size);
	free_shape(shape);
}

/* Calls that one thread has started, and another one completes by tests only. */
struct started {
	MPI_Request *requests;
	int count;
};

static void *complete(void *argument)
{
	struct started *started = argument;
	int *which = allocate(sizeof(int) * (size_t)started->count), left = started->count, is_done, some;
	MPI_Status *statuses = allocate(sizeof(*statuses) * (size_t)started->count);

	while (left) {
		MPI_Request_get_status(started->requests[left - 1], &is_done, statuses);
		MPI_Testsome(started->count, started->requests, &some, which, statuses);
		if (some == MPI_UNDEFINED)
			fail("%d calls are neither under way nor done", left);
		left -= some;
	}
	free(statuses);
	free(which);
	return NULL;
}

static void other_thread(void)
{
	enum { CALLS = 24 };
	struct exchange one[CALLS];
	MPI_Request requests[CALLS];
	struct started started = { requests, CALLS };
	unsigned call;
	pthread_t id;

	for (call = 0; call < CALLS; call++) {
		one[call] = prepare(MPI_COMM_WORLD, 1024 << call % 5, 450 + call);
		requests[call] = start(&one[call]);
	}
	if (pthread_create(&id, NULL, complete, &started))
		fail("pthread_create");
	pthread_join(id, NULL);
	for (call = 0; call < CALLS; call++)
		finish(&one[call], rank, ranks);
}

/* --- What happens to a process meanwhile --- */

/* A rank is stopped for a while, as by a debugger, when its calls are under way. */
static void stopped(void)
{
	struct exchange one = prepare(MPI_COMM_WORLD, BLOCK, 480), two = prepare(MPI_COMM_WORLD, 512, 481);
	MPI_Request requests[2] = { start(&one), start(&two) };
	pid_t parent = getpid(), child = -1;

	if (rank == 1) {
		child = fork();
		if (child == 0) {
			kill(parent, SIGSTOP);
			be_late();
			kill(parent, SIGCONT);
			_exit(0);
		}
		if (child < 0)
			fail("fork: %s", strerror(errno));
	}
	wait_all(2, requests);
	finish(&one, rank, ranks);
	finish(&two, rank, ranks);
	if (child > 0 && waitpid(child, NULL, 0) != child)
		fail("waitpid: %s", strerror(errno));
	alltoallv_on(MPI_COMM_WORLD, BLOCK, 482);
}

/* Children of fork that live while the parent's calls are under way. They write to what they have inherited of its buffers,
 * which their parent must not see, and the parent writes to its own copy. */
static void forked(void)
{
	unsigned round;

	for (round = 0; round < 6; round++) {
		struct exchange one = prepare(MPI_COMM_WORLD, BLOCK, 490 + round);
		int ready[2], gone[2], status, peer;
		MPI_Request request;
		char byte = 0;
		pid_t child;

		if (pipe(ready) || pipe(gone))
			fail("pipe: %s", strerror(errno));
		child = fork();
		if (child == 0) {
			memset(one.from, 0x55, (size_t)ranks * BLOCK);
			memset(one.to, 0x66, (size_t)ranks * BLOCK);
			close(gone[1]);
			_exit(write(ready[1], &byte, 1) != 1 || read(gone[0], &byte, 1) != 0);
		}
		if (child < 0 || read(ready[0], &byte, 1) != 1)
			fail("fork: %s", strerror(errno));
		/* Every page of the parent's is a copy from here on, made after an earlier call may have registered it. */
		for (peer = 0; peer < ranks; peer++)
			fill(one.from + (size_t)peer * BLOCK, BLOCK, rank, peer, one.number);
		memset(one.to, 0, (size_t)ranks * BLOCK);
		request = start(&one);
		MPI_Wait(&request, MPI_STATUS_IGNORE);
		close(gone[1]);
		if (waitpid(child, &status, 0) != child || status)
			fail("a child ended with %d", status);
		close(gone[0]);
		close(ready[0]);
		close(ready[1]);
		finish(&one, rank, ranks);
	}
}

/* --- Communicators --- */

/* A communicator is made without waiting while calls on its parent are under way, three times each from the last one. */
static void duplicated(void)
{
	enum { COMMS = 3 };
	MPI_Comm comms[COMMS + 1] = { MPI_COMM_WORLD };
	int at;

	for (at = 0; at < COMMS; at++) {
		struct exchange one = prepare(comms[at], BLOCK, 502 + (unsigned)at);
		MPI_Request requests[3];

		requests[0] = start(&one);
		MPI_Comm_idup(comms[at], &comms[at + 1], &requests[1]);
		MPI_Ibarrier(comms[at], &requests[2]);
		wait_all(3, requests);
		finish(&one, rank, ranks);
	}
	for (at = COMMS; at > 0; at--) {
		alltoallv_on(comms[at], BLOCK, 506 + (unsigned)at);
		MPI_Comm_free(&comms[at]);
	}
}

/* A communicator is freed while a call on it is under way. */
static void freed_before_completion(void)
{
	unsigned round;

	for (round = 0; round < 8; round++) {
		struct exchange one;
		MPI_Request request;
		MPI_Comm comm;

		MPI_Comm_dup(MPI_COMM_WORLD, &comm);
		one = prepare(comm, BLOCK, 500 + round);
		if (rank == 1)
			be_late();
		request = start(&one);
		MPI_Comm_free(&comm);
		MPI_Wait(&request, MPI_STATUS_IGNORE);
		finish(&one, rank, ranks);
	}
}

/* Communicators that come and go, each with one call. */
static void many_communicators(void)
{
	enum { ROUNDS = 300 };
	unsigned round;

	for (round = 0; round < ROUNDS; round++) {
		MPI_Comm comm;

		MPI_Comm_dup(MPI_COMM_WORLD, &comm);
		alltoallv_on(comm, 512, 520 + round);
		MPI_Comm_free(&comm);
	}
}

/* Resident memory of this process. */
static long resident_kib(void)
{
	FILE *file = fopen("/proc/self/statm", "r");
	long pages = -1;

	if (!file || fscanf(file, "%*d %ld", &pages) != 1)
		fail("/proc/self/statm");
	fclose(file);
	return pages * (sysconf(_SC_PAGESIZE) / KIB);
}

/* Communicators of every origin come and go, each with one call. Rank 0 says when a quarter of the rounds is over. */
static void come_and_go(void)
{
	unsigned round, quarter = rounds_of_communicators / 4;
	MPI_Group everybody;

	MPI_Comm_group(MPI_COMM_WORLD, &everybody);
	for (round = 0; round < 4 * quarter; round++) {
		MPI_Request request;
		MPI_Comm comm;

		switch (round % 5) {
		case 0:
			MPI_Comm_dup(MPI_COMM_WORLD, &comm);
			break;
		case 1:
			MPI_Comm_idup(MPI_COMM_WORLD, &comm, &request);
			MPI_Wait(&request, MPI_STATUS_IGNORE);
			break;
		case 2:
			MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &comm);
			break;
		case 3:
			MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &comm);
			break;
		default:
			MPI_Comm_create_group(MPI_COMM_WORLD, everybody, 6, &comm);
		}
		(round % 2 ? blocking_alltoallv_on : alltoallv_on)(comm, 512, 2000 + round);
		MPI_Comm_free(&comm);
		if ((round + 1) % quarter == 0 && rank == 0) {
			printf("quarter %u is over, this rank has %ld KiB\n", (round + 1) / quarter, resident_kib());
			fflush(stdout);
		}
	}
	MPI_Group_free(&everybody);
}

/* Overlapping groups, single ranks, reversed ranks, and groups that leave ranks out. */
static void groups(void)
{
	MPI_Comm reversed, pairs, odd, without_first;

	MPI_Comm_split(MPI_COMM_WORLD, 0, ranks - rank, &reversed);
	MPI_Comm_split(MPI_COMM_WORLD, rank / 2, rank, &pairs);
	MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &odd);
	MPI_Comm_split(MPI_COMM_WORLD, rank ? 0 : MPI_UNDEFINED, rank, &without_first);
	alltoallv_on(reversed, BLOCK, 540);
	alltoallv_on(pairs, BLOCK, 541);
	alltoallv_on(odd, BLOCK, 542);
	if (without_first != MPI_COMM_NULL)
		alltoallv_on(without_first, BLOCK, 543);
	alltoallv_on(MPI_COMM_SELF, BLOCK, 544);
	MPI_Comm_free(&reversed);
	MPI_Comm_free(&pairs);
	MPI_Comm_free(&odd);
	if (without_first != MPI_COMM_NULL)
		MPI_Comm_free(&without_first);
}

/* Two groups exchange over an intercommunicator. */
static void intercommunicator(void)
{
	MPI_Comm half, between;
	int side = rank % 2, remote, peer;
	uint8_t *from, *to;

	MPI_Comm_split(MPI_COMM_WORLD, side, rank, &half);
	MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - side, 7, &between);
	MPI_Comm_remote_size(between, &remote);
	from = fresh((size_t)remote * BLOCK);
	to = fresh((size_t)remote * BLOCK);
	for (peer = 0; peer < remote; peer++)
		fill(from + (size_t)peer * BLOCK, BLOCK, rank, peer * 2 + 1 - side, 550);
	MPI_Alltoall(from, BLOCK, MPI_BYTE, to, BLOCK, MPI_BYTE, between);
	for (peer = 0; peer < remote; peer++)
		compare(to + (size_t)peer * BLOCK, BLOCK, peer * 2 + 1 - side, rank, 550);
	release(from, (size_t)remote * BLOCK);
	release(to, (size_t)remote * BLOCK);
	MPI_Comm_free(&between);
	MPI_Comm_free(&half);
}

static int threads_block;

static void *split_and_exchange(void *argument)
{
	MPI_Comm base = *(MPI_Comm *)argument;
	unsigned round;

	for (round = 0; round < 10; round++) {
		MPI_Comm comm;

		MPI_Comm_split(base, (int)round % 2 ? rank % 2 : 0, rank, &comm);
		(threads_block ? blocking_alltoallv_on : alltoallv_on)(comm, 8 * KIB, 560 + round);
		MPI_Comm_free(&comm);
	}
	return NULL;
}

/* Threads that split communicators and call collectives at the same time. */
static void threads(void)
{
	enum { THREADS = 4 };
	MPI_Comm bases[THREADS];
	pthread_t ids[THREADS];
	int at;

	if (!threads_allowed)
		fail("this MPI does not provide MPI_THREAD_MULTIPLE");
	for (at = 0; at < THREADS; at++)
		MPI_Comm_dup(MPI_COMM_WORLD, &bases[at]);
	for (at = 0; at < THREADS; at++)
		if (pthread_create(&ids[at], NULL, split_and_exchange, &bases[at]))
			fail("pthread_create");
	for (at = 0; at < THREADS; at++)
		pthread_join(ids[at], NULL);
	for (at = 0; at < THREADS; at++)
		MPI_Comm_free(&bases[at]);
}

/* Entries of a directory of /proc. */
static int entries(const char *path)
{
	DIR *directory = opendir(path);
	int count = 0;

	if (!directory)
		fail("%s: %s", path, strerror(errno));
	while (readdir(directory))
		count++;
	closedir(directory);
	return count;
}

/* The same with blocking calls. */
static void blocking_threads(void)
{
	threads_block = 1;
	threads();
	threads_block = 0;
}

/* Sessions that end, each with a communicator of its own. They leave no descriptor and no thread. Open MPI 5 has them without
 * the version of the standard. */
static void sessions(void)
{
#if MPI_VERSION >= 4 || defined(OMPI_MAJOR_VERSION)
	int descriptors = 0, tasks = 0;
	unsigned round;

	for (round = 0; round < 6; round++) {
		MPI_Session session;
		MPI_Group group;
		MPI_Comm comm;

		MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &session);
		MPI_Group_from_session_pset(session, "mpi://WORLD", &group);
		MPI_Comm_create_from_group(group, "xgvmi.legal", MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &comm);
		alltoallv_on(comm, BLOCK, 570 + round);
		MPI_Comm_free(&comm);
		MPI_Group_free(&group);
		MPI_Session_finalize(&session);
		if (round == 0) {
			descriptors = entries("/proc/self/fd");
			tasks = entries("/proc/self/task");
		}
	}
	if (entries("/proc/self/fd") > descriptors || entries("/proc/self/task") > tasks)
		fail("%d descriptors and %d threads, %d and %d after the first session", entries("/proc/self/fd"),
		     entries("/proc/self/task"), descriptors, tasks);
#endif
}

/* --- Arguments --- */

/* Empty calls, and calls that are empty on some ranks only. */
static void empty(void)
{
	struct shape none = shape_of(ranks, 0, 0), some = shape_of(ranks, 0, 0), gathered = shape_of(ranks, BLOCK, BLOCK);
	uint8_t *all = fresh((size_t)ranks * BLOCK), *own = fresh(BLOCK);
	int peer;

	MPI_Alltoallv(own, none.counts, none.places, MPI_BYTE, all, none.counts, none.places, MPI_BYTE, MPI_COMM_WORLD);
	MPI_Bcast(NULL, 0, MPI_BYTE, 0, MPI_COMM_WORLD);
	MPI_Allreduce(own, all, 0, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	MPI_Alltoall(own, 0, MPI_BYTE, all, 0, MPI_BYTE, MPI_COMM_WORLD);
	/* Only even ranks contribute. */
	for (peer = 0; peer < ranks; peer++)
		gathered.counts[peer] = peer % 2 ? 0 : BLOCK;
	fill(own, BLOCK, rank, 0, 600);
	memset(all, 0xee, (size_t)ranks * BLOCK);
	MPI_Allgatherv(rank % 2 ? NULL : own, rank % 2 ? 0 : BLOCK, MPI_BYTE, all, gathered.counts, gathered.places, MPI_BYTE,
		       MPI_COMM_WORLD);
	for (peer = 0; peer < ranks; peer++)
		if (peer % 2)
			untouched(all + (size_t)peer * BLOCK, BLOCK, 0xee);
		else
			compare(all + (size_t)peer * BLOCK, BLOCK, peer, 0, 600);
	/* Each rank sends to its right neighbour only. */
	some.counts[(rank + 1) % ranks] = BLOCK;
	none.counts[(rank + ranks - 1) % ranks] = BLOCK;
	fill(own, BLOCK, rank, (rank + 1) % ranks, 601);
	MPI_Alltoallv(own, some.counts, some.places, MPI_BYTE, all, none.counts, none.places, MPI_BYTE, MPI_COMM_WORLD);
	compare(all, BLOCK, (rank + ranks - 1) % ranks, rank, 601);
	release(all, (size_t)ranks * BLOCK);
	release(own, BLOCK);
	free_shape(none);
	free_shape(some);
	free_shape(gathered);
}

/* The same for calls that do not block. */
static void empty_at_once(void)
{
	enum { CALLS = 5 };
	struct shape none = shape_of(ranks, 0, 0);
	MPI_Request requests[CALLS];
	uint8_t from[8] = { 0 }, to[8] = { 0 };
	unsigned round;

	for (round = 0; round < 4; round++) {
		MPI_Ialltoallv(from, none.counts, none.places, MPI_BYTE, to, none.counts, none.places, MPI_BYTE, MPI_COMM_WORLD,
			       &requests[0]);
		MPI_Ibcast(NULL, 0, MPI_BYTE, 0, MPI_COMM_WORLD, &requests[1]);
		MPI_Iallreduce(from, to, 0, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &requests[2]);
		MPI_Iallgather(from, 0, MPI_BYTE, to, 0, MPI_BYTE, MPI_COMM_WORLD, &requests[3]);
		MPI_Igatherv(from, 0, MPI_BYTE, to, none.counts, none.places, MPI_BYTE, 0, MPI_COMM_WORLD, &requests[4]);
		wait_all(CALLS, requests);
		alltoallv_on(MPI_COMM_WORLD, 1024, 605 + round);
	}
	free_shape(none);
}

/* Reductions whose result is spread over the ranks. */
static void reduce_scatter(void)
{
	enum { COUNT = 3000, CALLS = 2 };
	int32_t *in = allocate(sizeof(int32_t) * COUNT * (size_t)ranks), *out[CALLS], at;
	struct shape shape = shape_of(ranks, COUNT, COUNT);
	MPI_Request requests[CALLS];
	int call;

	for (at = 0; at < COUNT * ranks; at++)
		in[at] = at * (rank + 1);
	for (call = 0; call < CALLS; call++)
		out[call] = allocate(sizeof(int32_t) * COUNT);
	MPI_Ireduce_scatter(in, out[0], shape.counts, MPI_INT32_T, MPI_SUM, MPI_COMM_WORLD, &requests[0]);
	MPI_Ireduce_scatter_block(in, out[1], COUNT, MPI_INT32_T, MPI_SUM, MPI_COMM_WORLD, &requests[1]);
	wait_all(CALLS, requests);
	for (call = 0; call < CALLS; call++) {
		for (at = 0; at < COUNT; at++)
			if (out[call][at] != (rank * COUNT + at) * (ranks * (ranks + 1) / 2))
				fail("call %d, element %d is %d", call, at, out[call][at]);
		free(out[call]);
	}
	free(in);
	free_shape(shape);
}

/* A generated call: what it is follows from its number on every rank. */
struct call {
	unsigned number;
	int kind, root;
	MPI_Comm comm;
	MPI_Request request;
	uint8_t *from, *to;
	struct shape sent, received;
};

enum { KINDS_OF_CALLS = 6 };

static unsigned mix(unsigned x)
{
	x = (x ^ x >> 16) * 0x45d9f3bu;
	x = (x ^ x >> 16) * 0x45d9f3bu;
	return x ^ x >> 16;
}

/* Bytes from one rank to another in a call. A third of the blocks is empty. */
static int bytes_of(unsigned number, int from, int to)
{
	unsigned x = mix(number * 65536u + (unsigned)from * 256u + (unsigned)to);

	return x % 3 ? (int)(x / 3 % 20000) : 0;
}

static uint8_t *place_blocks(struct shape shape, int members)
{
	int peer, end = 0;

	for (peer = 0; peer < members; peer++) {
		shape.places[peer] = end;
		end += shape.counts[peer];
	}
	return allocate((size_t)end);
}

static void begin(struct call *call, unsigned number, MPI_Comm comm)
{
	int own = rank_in(comm), members = size_of(comm), peer;

	call->number = number;
	call->kind = (int)(mix(number) % KINDS_OF_CALLS);
	call->root = (int)(mix(number + 1) % (unsigned)members);
	call->comm = comm;
	call->sent = shape_of(members, 0, 0);
	call->received = shape_of(members, 0, 0);
	for (peer = 0; peer < members; peer++) {
		/* A gather and an allgather send one block to all; a scatter and a broadcast have a single sender. */
		int is_to_all = call->kind == 1 || call->kind == 2 || call->kind == 4;

		call->sent.counts[peer] = is_to_all ? bytes_of(number, own, 0) : bytes_of(number, own, peer);
		call->received.counts[peer] = is_to_all ? bytes_of(number, peer, 0) : bytes_of(number, peer, own);
	}
	call->from = place_blocks(call->sent, members);
	call->to = place_blocks(call->received, members);
	for (peer = 0; peer < members; peer++)
		fill(call->from + call->sent.places[peer], (size_t)call->sent.counts[peer], own,
		     call->kind == 0 || call->kind == 3 ? peer : 0, number);
	switch (call->kind) {
	case 0:
		MPI_Ialltoallv(call->from, call->sent.counts, call->sent.places, MPI_BYTE, call->to, call->received.counts,
			       call->received.places, MPI_BYTE, comm, &call->request);
		break;
	case 1:
		MPI_Iallgatherv(call->from, call->sent.counts[0], MPI_BYTE, call->to, call->received.counts, call->received.places,
				MPI_BYTE, comm, &call->request);
		break;
	case 2:
		MPI_Igatherv(call->from, call->sent.counts[0], MPI_BYTE, call->to, call->received.counts, call->received.places,
			     MPI_BYTE, call->root, comm, &call->request);
		break;
	case 3:
		MPI_Iscatterv(call->from, call->sent.counts, call->sent.places, MPI_BYTE,
			      call->to + call->received.places[call->root], call->received.counts[call->root], MPI_BYTE, call->root,
			      comm, &call->request);
		break;
	case 4:
		if (own == call->root)
			memcpy(call->to + call->received.places[call->root], call->from, (size_t)call->sent.counts[0]);
		MPI_Ibcast(call->to + call->received.places[call->root], call->received.counts[call->root], MPI_BYTE, call->root,
			   comm, &call->request);
		break;
	default:
		*(int64_t *)(void *)(call->from = realloc(call->from, 8)) = own + (int64_t)number;
		call->to = realloc(call->to, 8);
		MPI_Iallreduce(call->from, call->to, 1, MPI_INT64_T, MPI_SUM, comm, &call->request);
	}
}

static void end(struct call *call)
{
	int own = rank_in(call->comm), members = size_of(call->comm), peer;

	MPI_Wait(&call->request, MPI_STATUS_IGNORE);
	for (peer = 0; call->kind < 5 && peer < members; peer++) {
		const uint8_t *block = call->to + call->received.places[peer];
		size_t size = (size_t)call->received.counts[peer];

		if ((call->kind == 2 && own != call->root) || (call->kind > 2 && peer != call->root))
			continue;
		compare(block, size, peer, call->kind == 0 || call->kind == 3 ? own : 0, call->number);
	}
	if (call->kind == 5 && *(int64_t *)(void *)call->to
	    != (int64_t)members * (members - 1) / 2 + (int64_t)members * call->number)
		fail("the sum of call %u is wrong", call->number);
	free(call->from);
	free(call->to);
	free_shape(call->sent);
	free_shape(call->received);
}

/* Generated calls of every kind on three communicators, many at once, completed in another order on each rank. */
static void generated(void)
{
	enum { CALLS = 240, AT_ONCE = 12, COMMS = 3 };
	struct call calls[AT_ONCE];
	MPI_Comm comms[COMMS];
	unsigned number;
	int at;

	for (at = 0; at < COMMS; at++)
		MPI_Comm_dup(MPI_COMM_WORLD, &comms[at]);
	for (number = 0; number < CALLS; number += AT_ONCE) {
		for (at = 0; at < AT_ONCE; at++)
			begin(&calls[at], 10000 + number + (unsigned)at, comms[at % COMMS]);
		for (at = 0; at < AT_ONCE; at++)
			end(&calls[(at * 5 + rank * 7) % AT_ONCE]);
	}
	for (at = 0; at < COMMS; at++)
		MPI_Comm_free(&comms[at]);
}

/* Every collective with MPI_IN_PLACE. */
static void in_place(void)
{
	uint8_t *all = fresh((size_t)ranks * BLOCK);
	struct shape shape = shape_of(ranks, BLOCK, BLOCK);
	int root = ranks - 1, peer;
	int64_t sum = rank;

	fill(all + (size_t)rank * BLOCK, BLOCK, rank, 0, 610);
	MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, BLOCK, MPI_BYTE, MPI_COMM_WORLD);
	for (peer = 0; peer < ranks; peer++)
		compare(all + (size_t)peer * BLOCK, BLOCK, peer, 0, 610);
	for (peer = 0; peer < ranks; peer++)
		fill(all + (size_t)peer * BLOCK, BLOCK, rank, peer, 611);
	MPI_Alltoall(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, BLOCK, MPI_BYTE, MPI_COMM_WORLD);
	for (peer = 0; peer < ranks; peer++)
		compare(all + (size_t)peer * BLOCK, BLOCK, peer, rank, 611);
	for (peer = 0; peer < ranks; peer++)
		fill(all + (size_t)peer * BLOCK, BLOCK, rank, peer, 612);
	MPI_Alltoallv(MPI_IN_PLACE, NULL, NULL, MPI_DATATYPE_NULL, all, shape.counts, shape.places, MPI_BYTE, MPI_COMM_WORLD);
	for (peer = 0; peer < ranks; peer++)
		compare(all + (size_t)peer * BLOCK, BLOCK, peer, rank, 612);
	MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
	if (sum != (int64_t)ranks * (ranks - 1) / 2)
		fail("the sum is %lld", (long long)sum);
	fill(all + (size_t)rank * BLOCK, BLOCK, rank, 0, 613);
	if (rank == root)
		MPI_Gather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, BLOCK, MPI_BYTE, root, MPI_COMM_WORLD);
	else
		MPI_Gather(all + (size_t)rank * BLOCK, BLOCK, MPI_BYTE, NULL, 0, MPI_DATATYPE_NULL, root, MPI_COMM_WORLD);
	for (peer = 0; rank == root && peer < ranks; peer++)
		compare(all + (size_t)peer * BLOCK, BLOCK, peer, 0, 613);
	for (peer = 0; rank == root && peer < ranks; peer++)
		fill(all + (size_t)peer * BLOCK, BLOCK, root, peer, 614);
	if (rank == root)
		MPI_Scatterv(all, shape.counts, shape.places, MPI_BYTE, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, root, MPI_COMM_WORLD);
	else
		MPI_Scatterv(NULL, NULL, NULL, MPI_DATATYPE_NULL, all + (size_t)rank * BLOCK, BLOCK, MPI_BYTE, root,
			     MPI_COMM_WORLD);
	compare(all + (size_t)rank * BLOCK, BLOCK, root, rank, 614);
	release(all, (size_t)ranks * BLOCK);
	free_shape(shape);
}

/* Types with gaps, contiguous types on all ranks, and elements of several bytes. */
static void types(void)
{
	enum { COUNT = 1024 };
	MPI_Datatype pair, strided;
	int32_t *from = (int32_t *)fresh((size_t)ranks * COUNT * 8), *to = (int32_t *)fresh((size_t)ranks * COUNT * 8);
	int at;

	MPI_Type_contiguous(2, MPI_INT32_T, &pair);
	MPI_Type_create_resized(MPI_INT32_T, 0, 8, &strided);
	MPI_Type_commit(&pair);
	MPI_Type_commit(&strided);
	for (at = 0; at < ranks * COUNT * 2; at++)
		from[at] = rank * 1000000 + at;
	MPI_Alltoall(from, COUNT, pair, to, COUNT, pair, MPI_COMM_WORLD);
	for (at = 0; at < ranks * COUNT * 2; at++)
		if (to[at] != at / (COUNT * 2) * 1000000 + rank * COUNT * 2 + at % (COUNT * 2))
			fail("element %d of the pairs is %d", at, to[at]);
	memset(to, 0, (size_t)ranks * COUNT * 8);
	MPI_Alltoall(from, COUNT, strided, to, COUNT, strided, MPI_COMM_WORLD);
	for (at = 0; at < ranks * COUNT; at++)
		if (to[2 * at] != at / COUNT * 1000000 + (rank * COUNT + at % COUNT) * 2 || to[2 * at + 1])
			fail("element %d with gaps is %d", at, to[2 * at]);
	MPI_Type_free(&pair);
	MPI_Type_free(&strided);
	release(from, (size_t)ranks * COUNT * 8);
	release(to, (size_t)ranks * COUNT * 8);
}

/* Ranks describe the same elements by different types: the root's have gaps, and some receivers take pairs. */
static void mixed_types(void)
{
	enum { COUNT = 4096 };
	int32_t *data = (int32_t *)fresh((size_t)COUNT * 8), *all = (int32_t *)fresh((size_t)ranks * COUNT * 4), at;
	MPI_Datatype pair, strided;
	unsigned round;

	MPI_Type_contiguous(2, MPI_INT32_T, &pair);
	MPI_Type_create_resized(MPI_INT32_T, 0, 8, &strided);
	MPI_Type_commit(&pair);
	MPI_Type_commit(&strided);
	for (round = 0; round < 4; round++) {
		int root = (int)round % ranks;

		memset(data, 0, (size_t)COUNT * 8);
		for (at = 0; at < COUNT && rank == root; at++)
			data[2 * at] = at * 3 + (int)round;
		if (rank == root)
			MPI_Bcast(data, COUNT, strided, root, MPI_COMM_WORLD);
		else if (rank % 2)
			MPI_Bcast(data, COUNT / 2, pair, root, MPI_COMM_WORLD);
		else
			MPI_Bcast(data, COUNT, MPI_INT32_T, root, MPI_COMM_WORLD);
		for (at = 0; at < COUNT; at++)
			if (data[rank == root ? 2 * at : at] != at * 3 + (int)round)
				fail("element %d of the broadcast is %d", at, data[rank == root ? 2 * at : at]);
		/* What each contributes. */
		for (at = 0; at < COUNT; at++)
			data[rank == root ? 2 * at : at] = rank * COUNT + at;
		if (rank == root)
			MPI_Allgather(data, COUNT, strided, all, COUNT, MPI_INT32_T, MPI_COMM_WORLD);
		else
			MPI_Allgather(data, COUNT, MPI_INT32_T, all, COUNT / 2, pair, MPI_COMM_WORLD);
		for (at = 0; at < ranks * COUNT; at++)
			if (all[at] != at)
				fail("element %d of all is %d", at, all[at]);
	}
	MPI_Type_free(&pair);
	MPI_Type_free(&strided);
	release(data, (size_t)COUNT * 8);
	release(all, (size_t)ranks * COUNT * 4);
}

/* A product of 2 x 2 matrices, in which the order of the ranks matters. */
static void multiply(void *in, void *inout, int *length, MPI_Datatype *type)
{
	enum { MODULUS = 32749 };
	const uint32_t *left = in;
	uint32_t *right = inout;
	int each, at;

	(void)type;
	for (each = 0; each < *length; each++, left += 4, right += 4) {
		uint32_t product[4];

		for (at = 0; at < 4; at++)
			product[at] = (left[at / 2 * 2] * right[at % 2] + left[at / 2 * 2 + 1] * right[at % 2 + 2]) % MODULUS;
		memcpy(right, product, sizeof(product));
	}
}

static void matrices_of(uint32_t *matrices, int count, int of_rank)
{
	int at;

	for (at = 0; at < 4 * count; at++)
		matrices[at] = mix((unsigned)(at * 64 + of_rank)) % 251;
}

struct place_of_value {
	double value;
	int place;
};

/* Operators of the program's own, and those on pairs of value and place. */
static void operators(void)
{
	enum { COUNT = 2000, CALLS = 4 };
	uint32_t *own = allocate(sizeof(uint32_t) * 4 * COUNT), *expect = allocate(sizeof(uint32_t) * 4 * COUNT);
	uint32_t *got[CALLS], *next = allocate(sizeof(uint32_t) * 4 * COUNT);
	struct place_of_value in[COUNT], least[COUNT];
	MPI_Request requests[CALLS];
	MPI_Datatype matrix;
	MPI_Op product;
	int call, at, length = COUNT;

	MPI_Type_contiguous(4, MPI_UINT32_T, &matrix);
	MPI_Type_commit(&matrix);
	MPI_Op_create(multiply, 0, &product);
	matrices_of(own, COUNT, rank);
	matrices_of(expect, COUNT, ranks - 1);
	for (at = ranks - 2; at >= 0; at--) {
		matrices_of(next, COUNT, at);
		multiply(next, expect, &length, &matrix);
	}
	for (call = 0; call < CALLS; call++)
		got[call] = allocate(sizeof(uint32_t) * 4 * COUNT);
	memcpy(got[1], own, sizeof(uint32_t) * 4 * COUNT);
	MPI_Iallreduce(own, got[0], COUNT, matrix, product, MPI_COMM_WORLD, &requests[0]);
	MPI_Iallreduce(MPI_IN_PLACE, got[1], COUNT, matrix, product, MPI_COMM_WORLD, &requests[1]);
	MPI_Ireduce(own, got[2], COUNT, matrix, product, ranks - 1, MPI_COMM_WORLD, &requests[2]);
	MPI_Iscan(own, got[3], COUNT, matrix, product, MPI_COMM_WORLD, &requests[3]);
	for (at = 0; at < COUNT; at++)
		in[at] = (struct place_of_value){ mix((unsigned)(at + 7 * rank)) % 5, rank };
	MPI_Allreduce(in, least, COUNT, MPI_DOUBLE_INT, MPI_MINLOC, MPI_COMM_WORLD);
	wait_all(CALLS, requests);
	for (call = 0; call < CALLS; call++) {
		int has = call < 2 || rank == ranks - 1;

		if (has && memcmp(got[call], expect, sizeof(uint32_t) * 4 * COUNT))
			fail("the product of call %d is wrong", call);
		free(got[call]);
	}
	for (at = 0; at < COUNT; at++) {
		int other, best = 0;

		for (other = 1; other < ranks; other++)
			if (mix((unsigned)(at + 7 * other)) % 5 < mix((unsigned)(at + 7 * best)) % 5)
				best = other;
		if (least[at].place != best)
			fail("the least value %d is at %d, not at %d", at, least[at].place, best);
	}
	MPI_Op_free(&product);
	MPI_Type_free(&matrix);
	free(own);
	free(expect);
	free(next);
}

/* Memory is reused at once after a call: the same address with other data, for many calls. */
static void reused_memory(void)
{
	size_t size = (size_t)ranks * BLOCK;
	struct shape shape = shape_of(ranks, BLOCK, BLOCK);
	unsigned round;
	int peer;

	for (round = 0; round < 50; round++) {
		uint8_t *from = fresh(size), *to = fresh(size);

		for (peer = 0; peer < ranks; peer++)
			fill(from + (size_t)peer * BLOCK, BLOCK, rank, peer, 640 + round);
		MPI_Alltoallv(from, shape.counts, shape.places, MPI_BYTE, to, shape.counts, shape.places, MPI_BYTE,
			      MPI_COMM_WORLD);
		memset(from, 0x11, size);
		release(from, size);
		for (peer = 0; peer < ranks; peer++)
			compare(to + (size_t)peer * BLOCK, BLOCK, peer, rank, 640 + round);
		release(to, size);
	}
	free_shape(shape);
}

/* Most rounds of spawning. Each round makes a communicator with new processes, thus a new job of any offload service. */
enum { SPAWN_ROUNDS = 6, SPAWNED = 2 };

/* Collectives of parents and children in one intracommunicator. */
static void exchange_with_children(MPI_Comm between, int is_child)
{
	MPI_Comm all;
	int round;

	MPI_Intercomm_merge(between, is_child, &all);
	for (round = 0; round < 3; round++) {
		alltoallv_on(all, BLOCK, 700 + (unsigned)round);
		blocking_alltoallv_on(all, BLOCK, 710 + (unsigned)round);
	}
	MPI_Comm_free(&all);
	MPI_Comm_disconnect(&between);
}

extern char **environ;

/* Variables that children need of their parents: launchers pass their own, and the parents' launcher may have set these for
 * each rank apart. */
static int is_inherited(const char *variable)
{
	static const char *const prefixes[] = { "BFEMU_", "UCX_", "UCC_", "LD_", "RDMAV_", "MLX5_", "MALLOC_" };
	size_t at;

	for (at = 0; at < sizeof(prefixes) / sizeof(prefixes[0]); at++)
		if (!strncmp(variable, prefixes[at], strlen(prefixes[at])))
			return 1;
	return 0;
}

/* Processes join and leave. */
static void spawn(void)
{
	static char child[] = "--child";
	static char self[4096];
	size_t variables = 0, used = 0, each;
	char **words;
	int round;

	if (readlink("/proc/self/exe", self, sizeof(self) - 1) < 0)
		fail("/proc/self/exe: %s", strerror(errno));
	while (environ[variables])
		variables++;
	words = allocate(sizeof(*words) * (variables + 3));
	for (each = 0; each < variables; each++)
		if (is_inherited(environ[each]))
			words[used++] = environ[each];
	words[used++] = self;
	words[used++] = child;
	for (round = 0; round < SPAWN_ROUNDS; round++) {
		MPI_Comm between;
		int errors[SPAWNED];

		MPI_Comm_spawn("/usr/bin/env", words, SPAWNED, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &between, errors);
		exchange_with_children(between, 0);
	}
	free(words);
}

/* A process that `spawn` has started. */
static void be_child(void)
{
	MPI_Comm parent;

	running = "spawn, a child";
	MPI_Comm_get_parent(&parent);
	if (parent == MPI_COMM_NULL)
		fail("started by no parent");
	exchange_with_children(parent, 1);
}

/* --- What a program does to its own process --- */

static volatile sig_atomic_t alarms;

static void count_alarm(int number)
{
	(void)number;
	alarms++;
}

/* A timer interrupts every system call: its handler is installed without SA_RESTART. */
static void interrupted(void)
{
	struct sigaction ours = { .sa_handler = count_alarm }, theirs;
	struct itimerval often = { { 0, 700 }, { 0, 700 } }, never = { { 0, 0 }, { 0, 0 } };
	MPI_Comm comm;
	unsigned round;

	if (sigaction(SIGALRM, &ours, &theirs) || setitimer(ITIMER_REAL, &often, NULL))
		fail("a timer: %s", strerror(errno));
	MPI_Comm_dup(MPI_COMM_WORLD, &comm);
	for (round = 0; round < 20; round++) {
		int64_t sum = rank, all = 0;

		alltoallv_on(comm, 1024 << round % 7, 520 + round);
		blocking_alltoallv_on(comm, 1024 << round % 7, 540 + round);
		MPI_Allreduce(&sum, &all, 1, MPI_INT64_T, MPI_SUM, comm);
		if (all != (int64_t)ranks * (ranks - 1) / 2)
			fail("the sum is %lld", (long long)all);
	}
	MPI_Comm_free(&comm);
	if (setitimer(ITIMER_REAL, &never, NULL) || sigaction(SIGALRM, &theirs, NULL))
		fail("a timer: %s", strerror(errno));
	if (!alarms)
		fail("the timer has not fired");
}

static void *on_a_small_stack(void *none)
{
	MPI_Comm comm;

	MPI_Comm_dup(MPI_COMM_WORLD, &comm);
	alltoallv_on(comm, BLOCK, 560);
	blocking_alltoallv_on(comm, BLOCK, 561);
	MPI_Comm_free(&comm);
	return none;
}

/* A thread calls, whose stack is as small as the default of some C libraries. */
static void small_stack(void)
{
	pthread_attr_t small;
	pthread_t id;

	if (pthread_attr_init(&small) || pthread_attr_setstacksize(&small, 128 * KIB) ||
	    pthread_create(&id, &small, on_a_small_stack, NULL))
		fail("pthread_create");
	pthread_attr_destroy(&small);
	pthread_join(id, NULL);
}

/* The program has another directory and no environment when a communicator makes its first calls. Relative paths and variables
 * that a library reads late are gone. */
static void moved(void)
{
	int before = open(".", O_RDONLY | O_DIRECTORY);
	MPI_Comm comm;

	if (before < 0 || chdir("/proc/self"))
		fail("another directory: %s", strerror(errno));
	clearenv();
	MPI_Comm_dup(MPI_COMM_WORLD, &comm);
	alltoallv_on(comm, BLOCK, 562);
	blocking_alltoallv_on(comm, BLOCK, 563);
	MPI_Comm_free(&comm);
	if (fchdir(before))
		fail("the first directory: %s", strerror(errno));
	close(before);
}

/* --- Objects and memory in use by several calls --- */

static void add_pairs(void *in, void *out, int *length, MPI_Datatype *type)
{
	int32_t *from = in, *to = out;
	int at;

	(void)type;
	for (at = 0; at < 2 * *length; at++)
		to[at] += from[at];
}

/* Datatypes and an operator that are freed while calls with them are pending. */
static void freed_types(void)
{
	enum { COUNT = 512 };
	MPI_Datatype *types = allocate(sizeof(MPI_Datatype) * (size_t)ranks), pair;
	struct exchange one = prepare(MPI_COMM_WORLD, BLOCK, 564);
	struct shape single = shape_of(ranks, 1, BLOCK);
	int32_t *own = allocate(8 * COUNT), *sum = allocate(8 * COUNT);
	MPI_Request requests[2];
	MPI_Op add;
	int peer, at;

	for (peer = 0; peer < ranks; peer++) {
		MPI_Type_contiguous(BLOCK, MPI_BYTE, &types[peer]);
		MPI_Type_commit(&types[peer]);
	}
	MPI_Type_contiguous(2, MPI_INT32_T, &pair);
	MPI_Type_commit(&pair);
	MPI_Op_create(add_pairs, 1, &add);
	for (at = 0; at < 2 * COUNT; at++)
		own[at] = at * (rank + 1);
	MPI_Ialltoallw(one.from, single.counts, single.places, types, one.to, single.counts, single.places, types,
		       MPI_COMM_WORLD, &requests[0]);
	MPI_Iallreduce(own, sum, COUNT, pair, add, MPI_COMM_WORLD, &requests[1]);
	MPI_Type_free(&pair);
	MPI_Op_free(&add);
	alltoallv_on(MPI_COMM_WORLD, BLOCK, 565);
	wait_all(2, requests);
	for (at = 0; at < 2 * COUNT; at++)
		if (sum[at] != at * (ranks * (ranks + 1) / 2))
			fail("element %d of the sum is %d", at, sum[at]);
	for (peer = 0; peer < ranks; peer++)
		MPI_Type_free(&types[peer]);
	finish(&one, rank, ranks);
	free_shape(single);
	free(types);
	free(own);
	free(sum);
}

/* Memory of a window: between two epochs collectives send from it and receive into it. */
static void one_sided(void)
{
	size_t size = (size_t)ranks * BLOCK;
	uint8_t *memory, *block = fresh(BLOCK);
	struct shape shape = shape_of(ranks, BLOCK, BLOCK);
	unsigned round;
	MPI_Request request;
	MPI_Win window;
	int peer;

	MPI_Win_allocate((MPI_Aint)(2 * size), 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
	for (round = 0; round < 4; round++) {
		MPI_Win_fence(0, window);
		for (peer = 0; peer < ranks; peer++) {
			/* What this rank puts there is what that peer sends to this rank afterwards. */
			fill(block, BLOCK, peer, rank, 570 + round);
			MPI_Put(block, BLOCK, MPI_BYTE, peer, (MPI_Aint)rank * BLOCK, BLOCK, MPI_BYTE, window);
			MPI_Win_fence(0, window);
		}
		MPI_Ialltoallv(memory, shape.counts, shape.places, MPI_BYTE, memory + size, shape.counts, shape.places,
			       MPI_BYTE, MPI_COMM_WORLD, &request);
		MPI_Wait(&request, MPI_STATUS_IGNORE);
		for (peer = 0; peer < ranks; peer++)
			compare(memory + size + (size_t)peer * BLOCK, BLOCK, peer, rank, 570 + round);
		MPI_Win_fence(0, window);
		peer = (rank + 1) % ranks;
		MPI_Get(block, BLOCK, MPI_BYTE, peer, (MPI_Aint)(size + (size_t)rank * BLOCK), BLOCK, MPI_BYTE, window);
		MPI_Win_fence(0, window);
		compare(block, BLOCK, rank, peer, 570 + round);
	}
	MPI_Win_free(&window);
	release(block, BLOCK);
	free_shape(shape);
}

/* Collectives and messages in one array of requests, which is polled by each of MPI's calls in turn. */
static void polled(void)
{
	enum { CALLS = 4, ALL = CALLS + 2 };
	struct exchange one[CALLS];
	MPI_Request requests[ALL];
	MPI_Status statuses[ALL];
	int places[ALL], done = 0, call, flag, at, turn = 0;
	uint8_t *to = fresh(BLOCK), *from = fresh(BLOCK);
	int next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks;

	fill(to, BLOCK, rank, next, 580);
	for (call = 0; call < CALLS; call++)
		one[call] = prepare(MPI_COMM_WORLD, 4096 << call, 581 + (unsigned)call);
	MPI_Irecv(from, BLOCK, MPI_BYTE, last, 9, MPI_COMM_WORLD, &requests[CALLS]);
	for (call = 0; call < CALLS; call++)
		requests[call] = start(&one[call]);
	MPI_Issend(to, BLOCK, MPI_BYTE, next, 9, MPI_COMM_WORLD, &requests[CALLS + 1]);
	while (done < ALL) {
		switch (turn++ % 4) {
		case 0:
			MPI_Testsome(ALL, requests, &at, places, statuses);
			done += at == MPI_UNDEFINED ? 0 : at;
			break;
		case 1:
			MPI_Testany(ALL, requests, &at, &flag, statuses);
			done += flag && at != MPI_UNDEFINED;
			break;
		case 2:
			MPI_Request_get_status(requests[turn % ALL], &flag, statuses);
			break;
		default:
			MPI_Waitany(ALL, requests, &at, statuses);
			done += at != MPI_UNDEFINED;
		}
	}
	compare(from, BLOCK, last, rank, 580);
	for (call = 0; call < CALLS; call++)
		finish(&one[call], rank, ranks);
	release(to, BLOCK);
	release(from, BLOCK);
}

/* --- Reductions of every type and operation, in every form of the call --- */

enum { ARITHMETIC = 1, ORDERED = 2, BITS = 4, LOGIC = 8, PLACES = 16, INTEGER = ARITHMETIC | ORDERED | BITS | LOGIC };

/* How the values of a type are made. */
enum values { WHOLE, REAL32, REAL64, REAL80, COMPLEX32, COMPLEX64, TRUTH, PAIR_OF_INTS, PAIR_OF_REAL };

struct kind {
	const char *name;
	MPI_Datatype type;
	int operations;
	enum values values;
};

/* MPI_COMPLEX and others are Fortran's. An MPI without such a type has MPI_DATATYPE_NULL for it. */
static int kinds_of_numbers(struct kind *to)
{
	const struct kind all[] = {
		{ "MPI_SIGNED_CHAR", MPI_SIGNED_CHAR, INTEGER, WHOLE },
		{ "MPI_UNSIGNED_CHAR", MPI_UNSIGNED_CHAR, INTEGER, WHOLE },
		{ "MPI_SHORT", MPI_SHORT, INTEGER, WHOLE },
		{ "MPI_UNSIGNED_SHORT", MPI_UNSIGNED_SHORT, INTEGER, WHOLE },
		{ "MPI_INT", MPI_INT, INTEGER, WHOLE },
		{ "MPI_UNSIGNED", MPI_UNSIGNED, INTEGER, WHOLE },
		{ "MPI_LONG", MPI_LONG, INTEGER, WHOLE },
		{ "MPI_UNSIGNED_LONG", MPI_UNSIGNED_LONG, INTEGER, WHOLE },
		{ "MPI_LONG_LONG", MPI_LONG_LONG, INTEGER, WHOLE },
		{ "MPI_UNSIGNED_LONG_LONG", MPI_UNSIGNED_LONG_LONG, INTEGER, WHOLE },
		{ "MPI_INT8_T", MPI_INT8_T, INTEGER, WHOLE },
		{ "MPI_UINT8_T", MPI_UINT8_T, INTEGER, WHOLE },
		{ "MPI_INT16_T", MPI_INT16_T, INTEGER, WHOLE },
		{ "MPI_UINT16_T", MPI_UINT16_T, INTEGER, WHOLE },
		{ "MPI_INT32_T", MPI_INT32_T, INTEGER, WHOLE },
		{ "MPI_UINT32_T", MPI_UINT32_T, INTEGER, WHOLE },
		{ "MPI_INT64_T", MPI_INT64_T, INTEGER, WHOLE },
		{ "MPI_UINT64_T", MPI_UINT64_T, INTEGER, WHOLE },
		{ "MPI_AINT", MPI_AINT, ARITHMETIC | ORDERED | BITS, WHOLE },
		{ "MPI_OFFSET", MPI_OFFSET, ARITHMETIC | ORDERED | BITS, WHOLE },
		{ "MPI_COUNT", MPI_COUNT, ARITHMETIC | ORDERED | BITS, WHOLE },
		{ "MPI_BYTE", MPI_BYTE, BITS, WHOLE },
		{ "MPI_C_BOOL", MPI_C_BOOL, LOGIC, TRUTH },
		{ "MPI_INTEGER", MPI_INTEGER, ARITHMETIC | ORDERED | BITS, WHOLE },
		{ "MPI_FLOAT", MPI_FLOAT, ARITHMETIC | ORDERED, REAL32 },
		{ "MPI_REAL", MPI_REAL, ARITHMETIC | ORDERED, REAL32 },
		{ "MPI_DOUBLE", MPI_DOUBLE, ARITHMETIC | ORDERED, REAL64 },
		{ "MPI_DOUBLE_PRECISION", MPI_DOUBLE_PRECISION, ARITHMETIC | ORDERED, REAL64 },
		{ "MPI_LONG_DOUBLE", MPI_LONG_DOUBLE, ARITHMETIC | ORDERED, REAL80 },
		{ "MPI_C_FLOAT_COMPLEX", MPI_C_FLOAT_COMPLEX, ARITHMETIC, COMPLEX32 },
		{ "MPI_C_DOUBLE_COMPLEX", MPI_C_DOUBLE_COMPLEX, ARITHMETIC, COMPLEX64 },
		{ "MPI_CXX_FLOAT_COMPLEX", MPI_CXX_FLOAT_COMPLEX, ARITHMETIC, COMPLEX32 },
		{ "MPI_CXX_DOUBLE_COMPLEX", MPI_CXX_DOUBLE_COMPLEX, ARITHMETIC, COMPLEX64 },
		{ "MPI_COMPLEX", MPI_COMPLEX, ARITHMETIC, COMPLEX32 },
		{ "MPI_DOUBLE_COMPLEX", MPI_DOUBLE_COMPLEX, ARITHMETIC, COMPLEX64 },
		{ "MPI_2INT", MPI_2INT, PLACES, PAIR_OF_INTS },
		{ "MPI_FLOAT_INT", MPI_FLOAT_INT, PLACES, PAIR_OF_REAL },
	};
	int count = 0;
	size_t at;

	for (at = 0; at < sizeof(all) / sizeof(all[0]); at++)
		if (all[at].type != MPI_DATATYPE_NULL)
			to[count++] = all[at];
	return count;
}
enum { KINDS_OF_NUMBERS = 40 };

struct operation {
	const char *name;
	MPI_Op op;
	int needs;
};

static int operations_of(struct operation *to)
{
	const struct operation all[] = {
		{ "MPI_SUM", MPI_SUM, ARITHMETIC }, { "MPI_PROD", MPI_PROD, ARITHMETIC }, { "MPI_MAX", MPI_MAX, ORDERED },
		{ "MPI_MIN", MPI_MIN, ORDERED },    { "MPI_BAND", MPI_BAND, BITS },	  { "MPI_BOR", MPI_BOR, BITS },
		{ "MPI_BXOR", MPI_BXOR, BITS },	    { "MPI_LAND", MPI_LAND, LOGIC },	  { "MPI_LOR", MPI_LOR, LOGIC },
		{ "MPI_LXOR", MPI_LXOR, LOGIC },    { "MPI_MINLOC", MPI_MINLOC, PLACES }, { "MPI_MAXLOC", MPI_MAXLOC, PLACES },
	};

	memcpy(to, all, sizeof(all));
	return sizeof(all) / sizeof(all[0]);
}
enum { OPERATIONS = 12 };

/* Element `at` of what a rank contributes. Results are exact, so their order does not matter. */
static void put_number(uint8_t *to, size_t size, const struct kind *kind, int needs, int of_rank, int at)
{
	unsigned random = mix((unsigned)(at * 64 + of_rank + 1));
	int small = (int)(random % 3), other = (int)(random / 3 % 3) - 1;
	float real32[2] = { (float)small, (float)other };
	double real64[2] = { small, other };
	long double real80 = small;
	int32_t pair[2] = { small, of_rank };
	uint64_t whole = (uint64_t)small;
	size_t byte;

	switch (kind->values) {
	case WHOLE:
		if (needs == ORDERED || needs == BITS)
			whole = (uint64_t)random << 32 | mix(random);
		else if (needs == LOGIC)
			/* Every number but 0 is true. */
			whole = random % 2 ? (uint64_t)1 << random / 2 % (8 * size) : 0;
		for (byte = 0; byte < size; byte++)
			to[byte] = (uint8_t)(whole >> 8 * byte);
		break;
	case TRUTH:
		*to = random % 2;
		break;
	case REAL80:
		memset(to, 0, size);
		memcpy(to, &real80, 10);
		break;
	case PAIR_OF_REAL:
		memcpy(to, real32, 4);
		memcpy(to + 4, pair + 1, 4);
		break;
	case REAL64:
	case COMPLEX64:
		memcpy(to, real64, size);
		break;
	case PAIR_OF_INTS:
		memcpy(to, pair, size);
		break;
	default:
		memcpy(to, real32, size);
	}
}

/* One reduction of `total` elements. The rank's part of a scattered result has counts[rank] elements from `first`. */
struct reduction {
	const struct kind *kind;
	const struct operation *operation;
	size_t size;
	int total, root, first, *counts;
	uint8_t *in, *out;
};

enum { FORMS_OF_REDUCTIONS = 15 };

static void complete_persistent(MPI_Request *request)
{
	int start;

	for (start = 0; start < 2; start++) {
		MPI_Start(request);
		MPI_Wait(request, MPI_STATUS_IGNORE);
	}
	MPI_Request_free(request);
}

/* Calls MPI in one of its forms. In place, `out` has this rank's elements. */
static void reduce_in(int form, const struct reduction *one)
{
	MPI_Comm comm = MPI_COMM_WORLD;
	MPI_Datatype type = one->kind->type;
	MPI_Op op = one->operation->op;
	MPI_Request request = MPI_REQUEST_NULL;
	int each = one->total / ranks, is_persistent = form % 5 == 4;
	void *in = form == 1 || form == 3 ? MPI_IN_PLACE : one->in;

	switch (form) {
	case 0:
	case 1:
		MPI_Allreduce(in, one->out, one->total, type, op, comm);
		break;
	case 2:
	case 3:
		MPI_Iallreduce(in, one->out, one->total, type, op, comm, &request);
		break;
	case 4:
		MPI_Allreduce_init(in, one->out, one->total, type, op, comm, MPI_INFO_NULL, &request);
		break;
	case 5:
		MPI_Reduce(in, rank == one->root ? one->out : NULL, one->total, type, op, one->root, comm);
		break;
	case 6:
		MPI_Reduce(rank == one->root ? MPI_IN_PLACE : one->in, rank == one->root ? one->out : NULL, one->total, type, op,
			   one->root, comm);
		break;
	case 7:
		MPI_Ireduce(in, rank == one->root ? one->out : NULL, one->total, type, op, one->root, comm, &request);
		break;
	case 8:
		MPI_Reduce_scatter_block(one->in, one->out, each, type, op, comm);
		break;
	case 9:
		MPI_Reduce_init(in, one->out, one->total, type, op, one->root, comm, MPI_INFO_NULL, &request);
		break;
	case 10:
		MPI_Reduce_scatter(in, one->out, one->counts, type, op, comm);
		break;
	case 11:
		MPI_Reduce_scatter(MPI_IN_PLACE, one->out, one->counts, type, op, comm);
		break;
	case 12:
		MPI_Ireduce_scatter(in, one->out, one->counts, type, op, comm, &request);
		break;
	case 13:
		MPI_Ireduce_scatter_block(in, one->out, each, type, op, comm, &request);
		break;
	default:
		MPI_Reduce_scatter_init(in, one->out, one->counts, type, op, comm, MPI_INFO_NULL, &request);
	}
	if (is_persistent)
		complete_persistent(&request);
	else if (request != MPI_REQUEST_NULL)
		MPI_Wait(&request, MPI_STATUS_IGNORE);
}

/* Whether two elements are equal. A zero may have either sign: the order of a product decides. */
static int is_equal(const uint8_t *left, const uint8_t *right, const struct kind *kind, size_t size)
{
	const double *doubles[2] = { (const void *)left, (const void *)right };
	const float *floats[2] = { (const void *)left, (const void *)right };
	size_t at;

	switch (kind->values) {
	case REAL64:
	case COMPLEX64:
		for (at = 0; at < size / 8; at++)
			if (doubles[0][at] != doubles[1][at])
				return 0;
		return 1;
	case REAL32:
	case COMPLEX32:
		for (at = 0; at < size / 4; at++)
			if (floats[0][at] != floats[1][at])
				return 0;
		return 1;
	case REAL80:
		return !memcmp(left, right, 10);
	default:
		return !memcmp(left, right, size);
	}
}

/* MPI_Reduce_local, which is no collective, is the judge. */
static void check_reduction(int form, struct reduction *one, const uint8_t *expect)
{
	int is_in_place = form == 1 || form == 3 || form == 6 || form == 11, first = 0, count = one->total, at;

	memset(one->out, 0xee, (size_t)one->total * one->size);
	if (is_in_place)
		memcpy(one->out, one->in, (size_t)one->total * one->size);
	reduce_in(form, one);
	if (form == 8 || form == 13) {
		count = one->total / ranks;
		first = rank * count;
	} else if (form >= 10) {
		count = one->counts[rank];
		first = one->first;
	} else if (form >= 5 && rank != one->root) {
		return;
	}
	for (at = 0; at < count; at++)
		if (!is_equal(one->out + (size_t)at * one->size, expect + (size_t)(first + at) * one->size, one->kind, one->size))
			fail("element %d of %s of %s in form %d is wrong", at, one->operation->name, one->kind->name, form);
	if (!is_in_place && count < one->total)
		untouched(one->out + (size_t)count * one->size, (size_t)(one->total - count) * one->size, 0xee);
}

/* Calls one reduction in the forms from `form`, `step` apart. */
static void reduce_numbers(const struct kind *kind, const struct operation *operation, int form, int step)
{
	enum { EACH = 517 };
	struct reduction one = { kind, operation, 0, EACH * ranks, (form + 1) % ranks, 0, allocate(sizeof(int) * (size_t)ranks), NULL,
				 NULL };
	MPI_Aint lower, extent;
	uint8_t *expect, *next;
	int at, from;

	MPI_Type_get_extent(kind->type, &lower, &extent);
	one.size = (size_t)extent;
	one.in = allocate((size_t)one.total * one.size);
	one.out = allocate((size_t)one.total * one.size);
	expect = allocate((size_t)one.total * one.size);
	next = allocate((size_t)one.total * one.size);
	/* Rank 0 gets nothing, the others different parts. */
	for (at = 0, from = one.total; at < ranks; at++) {
		one.counts[at] = at == 0 ? 0 : at + 1 < ranks ? EACH / at : from;
		from -= one.counts[at];
		one.first += at < rank ? one.counts[at] : 0;
	}
	for (from = ranks - 1; from >= 0; from--) {
		for (at = 0; at < one.total; at++)
			put_number(next + (size_t)at * one.size, one.size, kind, operation->needs, from, at);
		if (from == rank)
			memcpy(one.in, next, (size_t)one.total * one.size);
		if (from == ranks - 1)
			memcpy(expect, next, (size_t)one.total * one.size);
		else
			MPI_Reduce_local(next, expect, one.total, kind->type, operation->op);
	}
	for (; form < FORMS_OF_REDUCTIONS; form += step)
		check_reduction(form, &one, expect);
	free(one.in);
	free(one.out);
	free(one.counts);
	free(expect);
	free(next);
}

/* Each combination in one form, and the first type of complex numbers of each size in all. */
static void reduce_kinds(int is_of_complex)
{
	struct kind kinds[KINDS_OF_NUMBERS];
	struct operation operations[OPERATIONS];
	int count = kinds_of_numbers(kinds), others = operations_of(operations), at, other, form = 0;

	for (at = 0; at < count; at++) {
		int is_complex = kinds[at].values == COMPLEX32 || kinds[at].values == COMPLEX64;
		int has_all = kinds[at].type == MPI_C_FLOAT_COMPLEX || kinds[at].type == MPI_C_DOUBLE_COMPLEX;

		for (other = 0; other < others && is_complex == is_of_complex; other++)
			if (kinds[at].operations & operations[other].needs)
				reduce_numbers(&kinds[at], &operations[other], has_all ? 0 : form++ % FORMS_OF_REDUCTIONS,
					       has_all ? 1 : FORMS_OF_REDUCTIONS);
	}
}

static void complex_numbers(void)
{
	reduce_kinds(1);
}

static void numbers(void)
{
	reduce_kinds(0);
}

static void largest_magnitude(void *in, void *inout, int *length, MPI_Datatype *type)
{
	int32_t *from = in, *to = inout;
	int at;

	(void)type;
	for (at = 0; at < *length; at++)
		if (abs(from[at]) > abs(to[at]))
			to[at] = from[at];
}

/* An operator of the program's own on a predefined type, for which no library's operation may be taken. */
static void own_operator(void)
{
	struct kind kind = { "MPI_INT", MPI_INT, INTEGER, WHOLE };
	struct operation own = { "an own operator", MPI_OP_NULL, ORDERED };

	MPI_Op_create(largest_magnitude, 1, &own.op);
	reduce_numbers(&kind, &own, 0, 1);
	MPI_Op_free(&own.op);
}

/* --- The rest of the arguments --- */

/* MPI_IN_PLACE with blocks of different lengths, some empty, in reverse order. */
static void in_place_uneven(void)
{
	struct shape shape = shape_of(ranks, 0, 0), single = shape_of(ranks, 1, 0);
	MPI_Datatype *types = allocate(sizeof(*types) * (size_t)ranks);
	int root = ranks / 2, peer, end = 0, which, size, scan = rank + 1, before = rank + 1;
	MPI_Request request;
	uint8_t *all;

	for (peer = ranks - 1; peer >= 0; peer--) {
		shape.counts[peer] = peer % 2 ? 0 : 3000 + 500 * peer;
		shape.places[peer] = end + 7;
		end += 7 + shape.counts[peer];
	}
	all = fresh((size_t)end);
	for (which = 0; which < 6; which++) {
		int is_of_root = which >= 2;

		memset(all, 0xee, (size_t)end);
		if (which < 4)
			fill(all + shape.places[rank], (size_t)shape.counts[rank], rank, 0, 900);
		else if (rank == root)
			for (peer = 0; peer < ranks; peer++)
				fill(all + shape.places[peer], (size_t)shape.counts[peer], root, peer, 900);
		switch (which * 2 + (is_of_root && rank == root)) {
		case 0:
			MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, shape.counts, shape.places, MPI_BYTE, MPI_COMM_WORLD);
			break;
		case 2:
			MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, shape.counts, shape.places, MPI_BYTE, MPI_COMM_WORLD,
					&request);
			MPI_Wait(&request, MPI_STATUS_IGNORE);
			break;
		case 4:
			MPI_Gatherv(all + shape.places[rank], shape.counts[rank], MPI_BYTE, NULL, NULL, NULL, MPI_DATATYPE_NULL, root,
				    MPI_COMM_WORLD);
			break;
		case 5:
			MPI_Gatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, shape.counts, shape.places, MPI_BYTE, root, MPI_COMM_WORLD);
			break;
		case 6:
		case 7:
			if (rank == root)
				MPI_Igatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, shape.counts, shape.places, MPI_BYTE, root,
					     MPI_COMM_WORLD, &request);
			else
				MPI_Igatherv(all + shape.places[rank], shape.counts[rank], MPI_BYTE, NULL, NULL, NULL,
					     MPI_DATATYPE_NULL, root, MPI_COMM_WORLD, &request);
			MPI_Wait(&request, MPI_STATUS_IGNORE);
			break;
		case 8:
			MPI_Scatterv(NULL, NULL, NULL, MPI_DATATYPE_NULL, all + shape.places[rank], shape.counts[rank], MPI_BYTE, root,
				     MPI_COMM_WORLD);
			break;
		case 9:
			MPI_Scatterv(all, shape.counts, shape.places, MPI_BYTE, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, root,
				     MPI_COMM_WORLD);
			break;
		default:
			if (rank == root)
				MPI_Iscatterv(all, shape.counts, shape.places, MPI_BYTE, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, root,
					      MPI_COMM_WORLD, &request);
			else
				MPI_Iscatterv(NULL, NULL, NULL, MPI_DATATYPE_NULL, all + shape.places[rank], shape.counts[rank],
					      MPI_BYTE, root, MPI_COMM_WORLD, &request);
			MPI_Wait(&request, MPI_STATUS_IGNORE);
		}
		for (peer = 0; peer < ranks; peer++) {
			int has_block = peer == rank || which < 2 || rank == root;

			untouched(all + shape.places[peer] - 7, 7, 0xee);
			if (!has_block)
				untouched(all + shape.places[peer], (size_t)shape.counts[peer], 0xee);
			else if (which < 4)
				compare(all + shape.places[peer], (size_t)shape.counts[peer], peer, 0, 900);
			else
				compare(all + shape.places[peer], (size_t)shape.counts[peer], root, peer, 900);
		}
	}
	release(all, (size_t)end);
	/* Two ranks exchange as many bytes in each direction. */
	for (peer = 0, end = 0; peer < ranks; peer++) {
		shape.counts[peer] = (peer + rank) % 3 * 2000 + (peer == rank ? 111 : 0);
		shape.places[peer] = end;
		end += shape.counts[peer] + 5;
		MPI_Type_contiguous(shape.counts[peer], MPI_BYTE, &types[peer]);
		MPI_Type_commit(&types[peer]);
		single.places[peer] = shape.places[peer];
	}
	all = fresh((size_t)end);
	for (which = 0; which < 4; which++) {
		memset(all, 0xee, (size_t)end);
		for (peer = 0; peer < ranks; peer++)
			fill(all + shape.places[peer], (size_t)shape.counts[peer], rank, peer, 901);
		switch (which) {
		case 0:
			MPI_Alltoallv(MPI_IN_PLACE, NULL, NULL, MPI_DATATYPE_NULL, all, shape.counts, shape.places, MPI_BYTE,
				      MPI_COMM_WORLD);
			break;
		case 1:
			MPI_Ialltoallv(MPI_IN_PLACE, NULL, NULL, MPI_DATATYPE_NULL, all, shape.counts, shape.places, MPI_BYTE,
				       MPI_COMM_WORLD, &request);
			MPI_Wait(&request, MPI_STATUS_IGNORE);
			break;
		case 2:
			MPI_Alltoallw(MPI_IN_PLACE, NULL, NULL, NULL, all, single.counts, single.places, types, MPI_COMM_WORLD);
			break;
		default:
			MPI_Ialltoallw(MPI_IN_PLACE, NULL, NULL, NULL, all, single.counts, single.places, types, MPI_COMM_WORLD,
				       &request);
			MPI_Wait(&request, MPI_STATUS_IGNORE);
		}
		for (peer = 0; peer < ranks; peer++) {
			size = shape.counts[peer];
			compare(all + shape.places[peer], (size_t)size, peer, rank, 901);
			untouched(all + shape.places[peer] + size, 5, 0xee);
		}
	}
	release(all, (size_t)end);
	for (peer = 0; peer < ranks; peer++)
		MPI_Type_free(&types[peer]);
	MPI_Scan(MPI_IN_PLACE, &scan, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	MPI_Exscan(MPI_IN_PLACE, &before, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	if (scan != (rank + 1) * (rank + 2) / 2 || (rank && before != rank * (rank + 1) / 2))
		fail("the sums up to here are %d and %d", scan, before);
	free(types);
	free_shape(shape);
	free_shape(single);
}

/* The compiler does not know it, and warns of no use. */
static void *volatile garbage = (void *)(uintptr_t)64;

/* Arguments that count at the root only are garbage elsewhere. */
static void garbage_elsewhere(void)
{
	void *nowhere = garbage;
	const int *no_list = nowhere;
	uint8_t *own = fresh(BLOCK), *all = fresh((size_t)ranks * BLOCK);
	struct shape shape = shape_of(ranks, BLOCK, BLOCK);
	int root = 1, is_root = rank == root, peer;
	int64_t sum = rank, total = -1;

	fill(own, BLOCK, rank, 0, 910);
	MPI_Gather(own, BLOCK, MPI_BYTE, is_root ? all : nowhere, is_root ? BLOCK : -1, is_root ? MPI_BYTE : MPI_DATATYPE_NULL, root,
		   MPI_COMM_WORLD);
	for (peer = 0; is_root && peer < ranks; peer++)
		compare(all + (size_t)peer * BLOCK, BLOCK, peer, 0, 910);
	memset(all, 0, (size_t)ranks * BLOCK);
	MPI_Gatherv(own, BLOCK, MPI_BYTE, is_root ? all : nowhere, is_root ? shape.counts : no_list, is_root ? shape.places : no_list,
		    is_root ? MPI_BYTE : MPI_DATATYPE_NULL, root, MPI_COMM_WORLD);
	for (peer = 0; is_root && peer < ranks; peer++)
		compare(all + (size_t)peer * BLOCK, BLOCK, peer, 0, 910);
	for (peer = 0; peer < ranks; peer++)
		fill(all + (size_t)peer * BLOCK, BLOCK, root, peer, 911);
	MPI_Scatter(is_root ? all : nowhere, is_root ? BLOCK : -1, is_root ? MPI_BYTE : MPI_DATATYPE_NULL, own, BLOCK, MPI_BYTE, root,
		    MPI_COMM_WORLD);
	compare(own, BLOCK, root, rank, 911);
	memset(own, 0, BLOCK);
	MPI_Scatterv(is_root ? all : nowhere, is_root ? shape.counts : no_list, is_root ? shape.places : no_list,
		     is_root ? MPI_BYTE : MPI_DATATYPE_NULL, own, BLOCK, MPI_BYTE, root, MPI_COMM_WORLD);
	compare(own, BLOCK, root, rank, 911);
	MPI_Reduce(&sum, is_root ? (void *)&total : nowhere, 1, MPI_INT64_T, MPI_SUM, root, MPI_COMM_WORLD);
	if (is_root && total != (int64_t)ranks * (ranks - 1) / 2)
		fail("the sum is %lld", (long long)total);
	release(own, BLOCK);
	release(all, (size_t)ranks * BLOCK);
	free_shape(shape);
}

/* Blocks to send may overlap: all ranks get parts of one block, at odd addresses. */
static void overlapping_blocks(void)
{
	enum { STEP = 1001, SIZE = 9001 };
	size_t sent = (size_t)STEP * (size_t)ranks + SIZE;
	uint8_t *from = allocate(sent + 3), *to = allocate((size_t)ranks * (SIZE + 3));
	struct shape out = shape_of(ranks, SIZE, STEP), in = shape_of(ranks, SIZE, SIZE + 3);
	MPI_Request request;
	int peer, at, turn;

	fill(from, sent + 3, rank, 0, 920);
	for (turn = 0; turn < 2; turn++) {
		memset(to, 0xee, (size_t)ranks * (SIZE + 3));
		MPI_Ialltoallv(from + 1, out.counts, out.places, MPI_BYTE, to + 3, in.counts, in.places, MPI_BYTE, MPI_COMM_WORLD,
			       &request);
		MPI_Wait(&request, MPI_STATUS_IGNORE);
		for (peer = 0; peer < ranks; peer++) {
			const uint8_t *block = to + (size_t)peer * (SIZE + 3);

			untouched(block, 3, 0xee);
			for (at = 0; at < SIZE; at++)
				if (block[3 + at] != byte_of(peer, 0, 920, (size_t)(1 + (turn ? 0 : rank * STEP) + at)))
					fail("byte %d of rank %d's block is wrong", at, peer);
		}
		/* Then each rank gets the same block. */
		memset(out.places, 0, sizeof(int) * (size_t)ranks);
	}
	free(from);
	free(to);
	free_shape(out);
	free_shape(in);
}

/* Types with a negative lower bound, of no size, and a different one for each pair of ranks. */
static void odd_types(void)
{
	enum { COUNT = 300, SPAN = COUNT * 4 + 8 };
	MPI_Datatype back, none, holes, *out = allocate(sizeof(*out) * (size_t)ranks), *in = allocate(sizeof(*in) * (size_t)ranks);
	int32_t *from = allocate(sizeof(int32_t) * SPAN * (size_t)ranks), *to = allocate(sizeof(int32_t) * SPAN * (size_t)ranks);
	struct shape counts = shape_of(ranks, 0, 0), places = shape_of(ranks, 0, 0);
	int lengths[2] = { 1, 1 }, peer, at, zero = 0;
	MPI_Aint before[2] = { -8, 0 };
	MPI_Request request;

	/* Two numbers of every four, the first one below the address. */
	MPI_Type_create_hindexed(2, lengths, before, MPI_INT32_T, &holes);
	MPI_Type_create_resized(holes, -8, 16, &back);
	MPI_Type_contiguous(0, MPI_INT32_T, &none);
	MPI_Type_commit(&back);
	MPI_Type_commit(&none);
	for (at = 0; at < SPAN * ranks; at++)
		from[at] = rank * 10000000 + at;
	MPI_Alltoall(from + 2, COUNT, back, to + 2, COUNT, back, MPI_COMM_WORLD);
	for (at = 0; at < COUNT * ranks; at++) {
		int source = at / COUNT, place = 4 * (rank * COUNT + at % COUNT);

		if (to[4 * at] != source * 10000000 + place || to[4 * at + 2] != source * 10000000 + place + 2 || to[4 * at + 1])
			fail("element %d with a negative bound is %d", at, to[4 * at]);
	}
	if (rank == 1)
		memcpy(to, from, sizeof(int32_t) * SPAN);
	else
		memset(to, 0, sizeof(int32_t) * SPAN);
	MPI_Bcast(to + 2, COUNT, back, 1, MPI_COMM_WORLD);
	for (at = 0; at < COUNT; at++)
		if (to[4 * at] != 10000000 + 4 * at || to[4 * at + 2] != 10000000 + 4 * at + 2 || (rank != 1 && to[4 * at + 1]))
			fail("element %d of a broadcast with a negative bound is %d", at, to[4 * at]);
	/* Elements of no size. */
	MPI_Bcast(&zero, 7, none, 0, MPI_COMM_WORLD);
	MPI_Allgather(&zero, 7, none, to, 7, none, MPI_COMM_WORLD);
	MPI_Alltoall(&zero, 7, none, to, 7, none, MPI_COMM_WORLD);
	MPI_Gather(&zero, 7, none, to, 7, none, 0, MPI_COMM_WORLD);
	/* Pairs of an even and an odd rank send with holes and receive without, or the other way round. */
	memset(to, 0, sizeof(int32_t) * SPAN * (size_t)ranks);
	for (peer = 0; peer < ranks; peer++) {
		int is_odd = (rank + peer) % 2;

		out[peer] = is_odd == (rank < peer) ? back : MPI_INT32_T;
		in[peer] = is_odd == (peer < rank) ? MPI_INT32_T : back;
		counts.counts[peer] = out[peer] == back ? COUNT : 2 * COUNT;
		counts.places[peer] = (peer * SPAN + 2) * 4;
		places.counts[peer] = in[peer] == back ? COUNT : 2 * COUNT;
		places.places[peer] = (peer * SPAN + 2) * 4;
	}
	MPI_Ialltoallw(from, counts.counts, counts.places, out, to, places.counts, places.places, in, MPI_COMM_WORLD, &request);
	MPI_Wait(&request, MPI_STATUS_IGNORE);
	for (peer = 0; peer < ranks; peer++)
		for (at = 0; at < 2 * COUNT; at++) {
			/* The sender's type for this pair, and this rank's. */
			int has_holes = (rank + peer) % 2 == (peer < rank);
			int source = peer * 10000000 + rank * SPAN + 2 + (has_holes ? 2 * at - 2 : at);
			int got = to[peer * SPAN + 2 + (in[peer] == back ? 2 * at - 2 : at)];

			if (got != source)
				fail("number %d from rank %d is %d, not %d", at, peer, got, source);
		}
	MPI_Type_free(&back);
	MPI_Type_free(&holes);
	MPI_Type_free(&none);
	free(out);
	free(in);
	free(from);
	free(to);
	free_shape(counts);
	free_shape(places);
}

/* Communicators of one rank have every collective. */
static void alone(void)
{
	MPI_Comm comms[3] = { MPI_COMM_SELF };
	int at, zero = 0, one = 1, value, result;

	MPI_Comm_dup(MPI_COMM_SELF, &comms[1]);
	MPI_Comm_split(MPI_COMM_WORLD, rank, 0, &comms[2]);
	for (at = 0; at < 3; at++) {
		MPI_Request request;

		MPI_Barrier(comms[at]);
		value = 10 * rank + at;
		MPI_Bcast(&value, 1, MPI_INT, 0, comms[at]);
		MPI_Allreduce(&value, &result, 1, MPI_INT, MPI_PROD, comms[at]);
		MPI_Reduce(MPI_IN_PLACE, &result, 1, MPI_INT, MPI_SUM, 0, comms[at]);
		MPI_Reduce_scatter(MPI_IN_PLACE, &result, &one, MPI_INT, MPI_MAX, comms[at]);
		MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, &result, 1, MPI_INT, comms[at]);
		MPI_Alltoall(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, &result, 1, MPI_INT, comms[at]);
		MPI_Ialltoallv(&value, &one, &zero, MPI_INT, &result, &one, &zero, MPI_INT, comms[at], &request);
		MPI_Wait(&request, MPI_STATUS_IGNORE);
		if (result != 10 * rank + at)
			fail("alone with %d", result);
	}
	alltoallv_on(MPI_COMM_WORLD, BLOCK, 925);
	MPI_Comm_free(&comms[1]);
	MPI_Comm_free(&comms[2]);
}

/* The other collectives of an intercommunicator. */
static void between_groups(void)
{
	MPI_Comm half, between;
	int side = rank % 2, remote, own, peer, round;
	uint8_t *data = fresh(BLOCK), *all = fresh((size_t)ranks * BLOCK);
	MPI_Request request;

	MPI_Comm_split(MPI_COMM_WORLD, side, rank, &half);
	MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - side, 8, &between);
	MPI_Comm_remote_size(between, &remote);
	own = rank_in(half);
	for (round = 0; round < 4; round++) {
		int from_side = round % 2, root = from_side == side ? own ? MPI_PROC_NULL : MPI_ROOT : 0;
		int64_t sum = rank, total = -1, expect = 0;

		if (from_side == side && own == 0)
			fill(data, BLOCK, 0, 0, 930 + (unsigned)round);
		if (round < 2)
			MPI_Bcast(data, BLOCK, MPI_BYTE, root, between);
		else {
			MPI_Ibcast(data, BLOCK, MPI_BYTE, root, between, &request);
			MPI_Wait(&request, MPI_STATUS_IGNORE);
		}
		if (from_side != side)
			compare(data, BLOCK, 0, 0, 930 + (unsigned)round);
		MPI_Allreduce(&sum, &total, 1, MPI_INT64_T, MPI_SUM, between);
		for (peer = 0; peer < remote; peer++)
			expect += peer * 2 + 1 - side;
		if (total != expect)
			fail("the other group's sum is %lld", (long long)total);
		fill(data, BLOCK, rank, 0, 940);
		MPI_Allgather(data, BLOCK, MPI_BYTE, all, BLOCK, MPI_BYTE, between);
		for (peer = 0; peer < remote; peer++)
			compare(all + (size_t)peer * BLOCK, BLOCK, peer * 2 + 1 - side, 0, 940);
		MPI_Barrier(between);
		alltoallv_on(half, 4096, 941);
	}
	MPI_Comm_free(&between);
	MPI_Comm_free(&half);
	release(data, BLOCK);
	release(all, (size_t)ranks * BLOCK);
}

/* --- Ways to a communicator --- */

static void topologies(void)
{
	int dims[2] = { 0, 0 }, periods[2] = { 1, 1 }, keep[2] = { 1, 0 }, next, last, counts[2], places[2], at, peers[2];
	uint8_t *from = fresh(2 * 4096), *to = fresh(2 * 4096);
	MPI_Comm ring, grid, row, graph, kind, group_comm;
	MPI_Group world, some;
	MPI_Request request;

	MPI_Dims_create(ranks, 2, dims);
	MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 1, &grid);
	MPI_Cart_sub(grid, keep, &row);
	blocking_alltoallv_on(grid, BLOCK, 950);
	alltoallv_on(row, BLOCK, 951);
	MPI_Cart_create(MPI_COMM_WORLD, 1, &ranks, periods, 1, &ring);
	for (at = 0; at < 2; at++) {
		counts[at] = 4096;
		places[at] = at * 4096;
		MPI_Cart_shift(ring, 0, at ? 1 : -1, &last, &peers[at]);
		fill(from + at * 4096, 4096, rank_in(ring), peers[at], 952 + (unsigned)at);
	}
	MPI_Ineighbor_alltoallv(from, counts, places, MPI_BYTE, to, counts, places, MPI_BYTE, ring, &request);
	blocking_alltoallv_on(ring, 1024, 954);
	MPI_Wait(&request, MPI_STATUS_IGNORE);
	/* What a neighbour has sent in the other direction. The neighbours of one of two ranks are the same rank. */
	for (at = 0; at < 2 && ranks > 2; at++)
		compare(to + at * 4096, 4096, peers[at], rank_in(ring), 952 + (unsigned)(at ^ 1));
	next = (rank + 1) % ranks;
	last = (rank + ranks - 1) % ranks;
	MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, 1, &last, &last, 1, &next, &next, MPI_INFO_NULL, 0, &graph);
	fill(from, 4096, rank, next, 960);
	MPI_Neighbor_alltoall(from, 4096, MPI_BYTE, to, 4096, MPI_BYTE, graph);
	compare(to, 4096, last, rank, 960);
	alltoallv_on(graph, BLOCK, 961);
	/* By the machine; and a group that only its members create. */
	MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, -rank, MPI_INFO_NULL, &kind);
	alltoallv_on(kind, BLOCK, 962);
	MPI_Comm_group(MPI_COMM_WORLD, &world);
	at = ranks - 1;
	MPI_Group_excl(world, 1, &at, &some);
	if (rank != at) {
		MPI_Comm_create_group(MPI_COMM_WORLD, some, 5, &group_comm);
		blocking_alltoallv_on(group_comm, BLOCK, 963);
		MPI_Comm_free(&group_comm);
	}
	MPI_Comm_create(MPI_COMM_WORLD, some, &group_comm);
	if (group_comm != MPI_COMM_NULL) {
		alltoallv_on(group_comm, BLOCK, 964);
		MPI_Comm_free(&group_comm);
	}
	MPI_Group_free(&some);
	MPI_Group_free(&world);
	MPI_Comm_free(&kind);
	MPI_Comm_free(&graph);
	MPI_Comm_free(&row);
	MPI_Comm_free(&grid);
	MPI_Comm_free(&ring);
	release(from, 2 * 4096);
	release(to, 2 * 4096);
}

/* The first and the second half of the ranks connect by a port, as two programs do, and merge. */
static void connected(void)
{
	char port[MPI_MAX_PORT_NAME] = "";
	int side = rank >= ranks / 2, round;
	MPI_Comm half, between, all;

	MPI_Comm_split(MPI_COMM_WORLD, side, rank, &half);
	if (rank == 0) {
		MPI_Open_port(MPI_INFO_NULL, port);
		MPI_Send(port, MPI_MAX_PORT_NAME, MPI_CHAR, ranks / 2, 11, MPI_COMM_WORLD);
	} else if (rank == ranks / 2) {
		MPI_Recv(port, MPI_MAX_PORT_NAME, MPI_CHAR, 0, 11, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	}
	if (side)
		MPI_Comm_connect(port, MPI_INFO_NULL, 0, half, &between);
	else
		MPI_Comm_accept(port, MPI_INFO_NULL, 0, half, &between);
	MPI_Intercomm_merge(between, side, &all);
	for (round = 0; round < 3; round++) {
		alltoallv_on(all, BLOCK, 970 + (unsigned)round);
		blocking_alltoallv_on(half, BLOCK, 973 + (unsigned)round);
	}
	MPI_Comm_free(&all);
	MPI_Comm_disconnect(&between);
	MPI_Comm_free(&half);
	if (rank == 0)
		MPI_Close_port(port);
}

/* Two sessions at once, and groups of a session that leave ranks out. */
static void two_sessions(void)
{
#if MPI_VERSION >= 4 || defined(OMPI_MAJOR_VERSION)
	enum { SESSIONS = 2 };
	MPI_Session open[SESSIONS];
	MPI_Comm comms[SESSIONS], part;
	MPI_Group groups[SESSIONS], some;
	int at, first[3] = { rank % 2, ranks - 1, 2 };

	for (at = 0; at < SESSIONS; at++) {
		MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &open[at]);
		MPI_Group_from_session_pset(open[at], "mpi://WORLD", &groups[at]);
		MPI_Comm_create_from_group(groups[at], at ? "xgvmi.two" : "xgvmi.one", MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL,
					   &comms[at]);
	}
	/* Every second rank, at the same time as the others, with the same name. */
	first[1] -= (ranks - 1 - first[0]) % 2;
	MPI_Group_range_incl(groups[0], 1, &first, &some);
	MPI_Comm_create_from_group(some, "xgvmi.half", MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &part);
	for (at = 0; at < SESSIONS; at++)
		alltoallv_on(comms[at], BLOCK, 976 + (unsigned)at);
	alltoallv_on(part, BLOCK, 978);
	MPI_Comm_free(&part);
	MPI_Group_free(&some);
	for (at = 0; at < SESSIONS; at++) {
		MPI_Comm_free(&comms[at]);
		MPI_Group_free(&groups[at]);
		MPI_Session_finalize(&open[at]);
		alltoallv_on(MPI_COMM_WORLD, BLOCK, 979);
	}
#endif
}

/* A program without MPI_Init: MPI_COMM_WORLD does not exist. No other program runs in its job. */
static void sessions_only(void)
{
#if MPI_VERSION >= 4 || defined(OMPI_MAJOR_VERSION)
	MPI_Session session;
	MPI_Group group;
	MPI_Comm comm, half;
	unsigned round;

	running = "sessions-only";
	MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &session);
	MPI_Group_from_session_pset(session, "mpi://WORLD", &group);
	MPI_Comm_create_from_group(group, "xgvmi.only", MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &comm);
	rank = rank_in(comm);
	ranks = size_of(comm);
	for (round = 0; round < 4; round++) {
		MPI_Comm_split(comm, rank % 2, rank, &half);
		alltoallv_on(comm, BLOCK, 982 + round);
		blocking_alltoallv_on(half, BLOCK, 986 + round);
		MPI_Comm_free(&half);
	}
	MPI_Barrier(comm);
	MPI_Comm_free(&comm);
	MPI_Group_free(&group);
	MPI_Session_finalize(&session);
#endif
	if (rank == 0)
		puts("ok sessions-only");
}

/* Communicators that the program never frees, with requests that it never frees. Its last call is MPI_Finalize. */
static void unfreed(void)
{
	static uint8_t data[BLOCK];
	MPI_Comm comm, half;
	MPI_Request never;

	MPI_Comm_dup(MPI_COMM_WORLD, &comm);
	MPI_Comm_split(comm, rank % 2, rank, &half);
	MPI_Bcast_init(data, BLOCK, MPI_BYTE, 0, comm, MPI_INFO_NULL, &never);
	alltoallv_on(comm, BLOCK, 980);
	blocking_alltoallv_on(half, BLOCK, 981);
}

/* --- Memory of every kind --- */

/* Every collective sends from memory that nobody can write. */
static void read_only(void)
{
	enum { COUNT = 24 * KIB };
	size_t size = (size_t)ranks * COUNT * 8, block = size / (size_t)ranks;
	int64_t *from = (int64_t *)fresh(size), *to = (int64_t *)fresh(size);
	uint8_t *sent = (uint8_t *)from, *received = (uint8_t *)to;
	struct shape shape = shape_of(ranks, (int)block, (int)block), parts = shape_of(ranks, COUNT, COUNT);
	int which, at, peer, root = ranks - 1;
	int64_t factor = (int64_t)ranks * (ranks + 1) / 2;

	for (which = 0; which < 10; which++) {
		int is_sum = which < 4;

		if (mprotect(from, size, PROT_READ | PROT_WRITE))
			fail("mprotect: %s", strerror(errno));
		for (at = 0; is_sum && at < ranks * COUNT; at++)
			from[at] = (int64_t)at * (rank + 1);
		for (peer = 0; !is_sum && peer < ranks; peer++)
			fill(sent + (size_t)peer * block, block, rank, which < 6 ? peer : 0, 990 + (unsigned)which);
		if (mprotect(from, size, PROT_READ))
			fail("mprotect: %s", strerror(errno));
		memset(to, 0xee, size);
		switch (which) {
		case 0:
			MPI_Allreduce(from, to, ranks * COUNT, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
			break;
		case 1:
			MPI_Reduce(from, to, ranks * COUNT, MPI_INT64_T, MPI_SUM, root, MPI_COMM_WORLD);
			break;
		case 2:
			MPI_Reduce_scatter(from, to, parts.counts, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
			break;
		case 3:
			MPI_Reduce_scatter_block(from, to, COUNT, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
			break;
		case 4:
			MPI_Alltoall(sent, (int)block, MPI_BYTE, received, (int)block, MPI_BYTE, MPI_COMM_WORLD);
			break;
		case 5:
			MPI_Scatterv(sent, shape.counts, shape.places, MPI_BYTE, received, (int)block, MPI_BYTE, root, MPI_COMM_WORLD);
			break;
		case 6:
			MPI_Bcast(rank == root ? sent : received, (int)block, MPI_BYTE, root, MPI_COMM_WORLD);
			break;
		case 7:
			MPI_Gather(sent, (int)block, MPI_BYTE, received, (int)block, MPI_BYTE, root, MPI_COMM_WORLD);
			break;
		case 8:
			MPI_Allgatherv(sent, (int)block, MPI_BYTE, received, shape.counts, shape.places, MPI_BYTE, MPI_COMM_WORLD);
			break;
		default:
			MPI_Gatherv(sent, (int)block, MPI_BYTE, received, shape.counts, shape.places, MPI_BYTE, root, MPI_COMM_WORLD);
		}
		if (is_sum) {
			int first = which < 2 ? 0 : rank * COUNT, count = which < 2 ? ranks * COUNT : COUNT;

			for (at = 0; (which != 1 || rank == root) && at < count; at++)
				if (to[at] != (first + at) * factor)
					fail("element %d of sum %d is %lld", at, which, (long long)to[at]);
		} else if (which == 5) {
			compare(received, block, root, rank, 995);
		} else if (which == 6) {
			compare(rank == root ? sent : received, block, root, 0, 996);
		} else {
			for (peer = 0; (which == 4 || which == 8 || rank == root) && peer < ranks; peer++)
				compare(received + (size_t)peer * block, block, peer, which == 4 ? rank : 0, 990 + (unsigned)which);
		}
	}
	release(from, size);
	release(to, size);
	free_shape(shape);
	free_shape(parts);
}

/* Memory of a window that all ranks of a machine share: each sends from its neighbour's part. */
static void shared_window(void)
{
	MPI_Comm machine;
	MPI_Aint size;
	MPI_Win window;
	uint8_t *own, *next;
	struct shape shape;
	int members, me, unit, peer, round;

	MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &machine);
	members = size_of(machine);
	me = rank_in(machine);
	shape = shape_of(members, BLOCK, BLOCK);
	MPI_Win_allocate_shared((MPI_Aint)(2 * (size_t)members * BLOCK), 1, MPI_INFO_NULL, machine, &own, &window);
	MPI_Win_shared_query(window, (me + 1) % members, &size, &unit, &next);
	MPI_Win_lock_all(MPI_MODE_NOCHECK, window);
	for (round = 0; round < 3; round++) {
		/* The neighbour's part has what this rank sends. */
		for (peer = 0; peer < members; peer++)
			fill(own + (size_t)peer * BLOCK, BLOCK, (me + members - 1) % members, peer, 1000 + (unsigned)round);
		MPI_Win_sync(window);
		MPI_Barrier(machine);
		MPI_Win_sync(window);
		MPI_Alltoallv(next, shape.counts, shape.places, MPI_BYTE, own + (size_t)members * BLOCK, shape.counts, shape.places,
			      MPI_BYTE, machine);
		for (peer = 0; peer < members; peer++)
			compare(own + (size_t)(members + peer) * BLOCK, BLOCK, peer, me, 1000 + (unsigned)round);
		MPI_Barrier(machine);
	}
	MPI_Win_unlock_all(window);
	MPI_Win_free(&window);
	MPI_Comm_free(&machine);
	free_shape(shape);
}

struct stack {
	uint8_t *from, *to;
	pthread_barrier_t *meet;
};

static void *lend_stack(void *argument)
{
	uint8_t from[4 * BLOCK], to[4 * BLOCK];
	struct stack *stack = argument;

	stack->from = from;
	stack->to = to;
	pthread_barrier_wait(stack->meet);
	pthread_barrier_wait(stack->meet);
	stack->from = stack->to = NULL;
	return NULL;
}

/* The main thread's calls use the stack of another thread. Each round has a new thread, and the C library's stacks are
 * discarded, used again or unmapped. */
static void stack_of_another(void)
{
	int size = (int)(4 * BLOCK / (size_t)ranks), peer, round;
	struct shape shape = shape_of(ranks, size, size);

	for (round = 0; round < 12; round++) {
		pthread_barrier_t meet;
		struct stack stack = { NULL, NULL, &meet };
		pthread_attr_t attributes;
		pthread_t id;

		pthread_barrier_init(&meet, NULL, 2);
		pthread_attr_init(&attributes);
		pthread_attr_setstacksize(&attributes, (size_t)(256 + round % 3 * 64) * KIB);
		if (pthread_create(&id, &attributes, lend_stack, &stack))
			fail("pthread_create");
		pthread_barrier_wait(&meet);
		for (peer = 0; peer < ranks; peer++)
			fill(stack.from + peer * size, (size_t)size, rank, peer, 1010 + (unsigned)round);
		MPI_Alltoallv(stack.from, shape.counts, shape.places, MPI_BYTE, stack.to, shape.counts, shape.places, MPI_BYTE,
			      MPI_COMM_WORLD);
		for (peer = 0; peer < ranks; peer++)
			compare(stack.to + peer * size, (size_t)size, peer, rank, 1010 + (unsigned)round);
		pthread_barrier_wait(&meet);
		pthread_join(id, NULL);
		pthread_attr_destroy(&attributes);
		pthread_barrier_destroy(&meet);
	}
	free_shape(shape);
}

/* Other memory comes to the same address between two calls, by each of the system's calls that replace memory. */
static void replaced_memory(void)
{
	size_t size = ((size_t)ranks * BLOCK + PAGE - 1) / PAGE * PAGE;
	uint8_t *from = fresh(size), *to = fresh(size), *other;
	struct shape shape = shape_of(ranks, BLOCK, BLOCK);
	int peer, round, file = unlinked_file(2 * size);

	for (round = 0; round < 24; round++) {
		uint8_t *both[2] = { from, to };
		int at;

		for (at = 0; at < 2; at++)
			switch (round % 6) {
			case 0:
				if (mmap(both[at], size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0)
				    != both[at])
					fail("mmap: %s", strerror(errno));
				break;
			case 1:
				if (madvise(both[at], size, MADV_DONTNEED))
					fail("madvise: %s", strerror(errno));
				break;
			case 2:
				other = fresh(size);
				if (mremap(other, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, both[at]) != both[at])
					fail("mremap: %s", strerror(errno));
				break;
			case 3:
				if (mmap(both[at], size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, (off_t)(at * (off_t)size))
				    != both[at])
					fail("mmap: %s", strerror(errno));
				break;
			case 4:
				/* One page in the middle of a file's mapping. */
				if (mmap(both[at] + 4096, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0)
				    != both[at] + 4096)
					fail("mmap: %s", strerror(errno));
				break;
			default:
				/* It grows, and may move. */
				if (mmap(both[at], size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0)
				    != both[at])
					fail("mmap: %s", strerror(errno));
				other = mremap(both[at], size, 2 * size, MREMAP_MAYMOVE);
				if (other == MAP_FAILED || mremap(other, 2 * size, size, 0) != other)
					fail("mremap: %s", strerror(errno));
				*(at ? &to : &from) = other;
			}
		for (peer = 0; peer < ranks; peer++)
			fill(from + (size_t)peer * BLOCK, BLOCK, rank, peer, 1030 + (unsigned)round);
		memset(to, 0xee, size);
		MPI_Alltoallv(from, shape.counts, shape.places, MPI_BYTE, to, shape.counts, shape.places, MPI_BYTE, MPI_COMM_WORLD);
		for (peer = 0; peer < ranks; peer++)
			compare(to + (size_t)peer * BLOCK, BLOCK, peer, rank, 1030 + (unsigned)round);
	}
	release(from, size);
	release(to, size);
	close(file);
	free_shape(shape);
}

/* --- Order and progress --- */

/* A thousand calls of every kind under way, completed in another order on each rank and by MPI_Waitsome. */
static void outstanding(void)
{
	enum { CALLS = 1000, COMMS = 3 };
	struct call *calls = allocate(sizeof(*calls) * CALLS);
	MPI_Request *requests = allocate(sizeof(*requests) * CALLS);
	int *places = allocate(sizeof(int) * CALLS), at, some, left = CALLS;
	MPI_Status *statuses = allocate(sizeof(*statuses) * CALLS);
	MPI_Comm comms[COMMS];

	for (at = 0; at < COMMS; at++)
		MPI_Comm_dup(MPI_COMM_WORLD, &comms[at]);
	for (at = 0; at < CALLS; at++)
		begin(&calls[at], 30000 + (unsigned)at, comms[at % COMMS]);
	/* The first half by waits in the rank's own order, the rest as they come. */
	for (at = 0; at < CALLS / 2; at++)
		end(&calls[(at * 7 + rank * 131) % (CALLS / 2)]);
	for (at = 0; at < CALLS; at++)
		requests[at] = calls[at].request;
	for (left = CALLS / 2; left; left -= some) {
		MPI_Waitsome(CALLS, requests, &some, places, statuses);
		if (some == MPI_UNDEFINED)
			fail("%d calls are neither under way nor done", left);
		for (at = 0; at < some; at++) {
			calls[places[at]].request = MPI_REQUEST_NULL;
			end(&calls[places[at]]);
		}
	}
	for (at = 0; at < COMMS; at++)
		MPI_Comm_free(&comms[at]);
	free(calls);
	free(requests);
	free(places);
	free(statuses);
}

/* Rank 0 waits for a message that another rank sends only after a collective of both, which rank 0 has only started. */
static void progress_elsewhere(void)
{
	unsigned round;

	for (round = 0; round < 6; round++) {
		struct exchange one = prepare(MPI_COMM_WORLD, round % 2 ? 512 : 4 * BLOCK, 1060 + round);
		enum { COUNT = 64 * KIB };
		int32_t *in = allocate(sizeof(int32_t) * COUNT), *sum = allocate(sizeof(int32_t) * COUNT), at;
		int token = (int)round, got = -1;
		MPI_Request requests[2];

		for (at = 0; at < COUNT; at++)
			in[at] = at + rank;
		requests[0] = start(&one);
		MPI_Iallreduce(in, sum, COUNT, MPI_INT32_T, MPI_SUM, MPI_COMM_WORLD, &requests[1]);
		if (rank)
			wait_all(2, requests);
		if (rank == ranks - 1)
			MPI_Send(&token, 1, MPI_INT, 0, 12, MPI_COMM_WORLD);
		if (rank == 0) {
			MPI_Recv(&got, 1, MPI_INT, ranks - 1, 12, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			wait_all(2, requests);
		}
		for (at = 0; at < COUNT; at++)
			if (sum[at] != at * ranks + ranks * (ranks - 1) / 2)
				fail("element %d of the sum is %d", at, sum[at]);
		finish(&one, rank, ranks);
		free(in);
		free(sum);
	}
}

/* Persistent requests that are started, freed while they are inactive, and made again; several start at once. */
static void persistent_lives(void)
{
	enum { REQUESTS = 3, COUNT = 3000 };
	int32_t in[COUNT], sum[COUNT];
	uint8_t *data = fresh(BLOCK);
	unsigned life, round;
	int at;

	for (life = 0; life < 5; life++) {
		struct exchange one = prepare(MPI_COMM_WORLD, 2048, 1070 + life);
		MPI_Request requests[REQUESTS];

		MPI_Alltoallv_init(one.from, one.shape.counts, one.shape.places, MPI_BYTE, one.to, one.shape.counts, one.shape.places,
				   MPI_BYTE, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[0]);
		MPI_Allreduce_init(in, sum, COUNT, MPI_INT32_T, MPI_SUM, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[1]);
		MPI_Bcast_init(data, BLOCK, MPI_BYTE, (int)life % ranks, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[2]);
		for (round = 0; round < life; round++) {
			for (at = 0; at < COUNT; at++)
				in[at] = at * (rank + 1) + (int)round;
			if (rank == (int)life % ranks)
				fill(data, BLOCK, rank, 0, 1080 + round);
			MPI_Startall(REQUESTS, requests);
			alltoallv_on(MPI_COMM_WORLD, 512, 1090);
			wait_all(REQUESTS, requests);
			for (at = 0; at < COUNT; at++)
				if (sum[at] != at * (ranks * (ranks + 1) / 2) + (int)round * ranks)
					fail("element %d of the sum is %d", at, sum[at]);
			compare(data, BLOCK, (int)life % ranks, 0, 1080 + round);
			check_received(&one, rank, ranks);
			memset(one.to, 0, (size_t)ranks * 2048);
		}
		for (at = 0; at < REQUESTS; at++)
			MPI_Request_free(&requests[at]);
		release_exchange(&one, ranks);
	}
	release(data, BLOCK);
}

/* --- Counts above those of an int --- */

typedef int alltoallv_c(const void *, const MPI_Count *, const MPI_Aint *, MPI_Datatype, void *, const MPI_Count *, const MPI_Aint *,
			MPI_Datatype, MPI_Comm);
typedef int allgatherv_c(const void *, MPI_Count, MPI_Datatype, void *, const MPI_Count *, const MPI_Aint *, MPI_Datatype, MPI_Comm);
typedef int allreduce_c(const void *, void *, MPI_Count, MPI_Datatype, MPI_Op, MPI_Comm);
typedef int reduce_scatter_c(const void *, void *, const MPI_Count *, MPI_Datatype, MPI_Op, MPI_Comm);

/* A function that the header may lack: the library is newer. */
static void *function(const char *name)
{
	void *found = dlsym(RTLD_DEFAULT, name);

	if (!found)
		fail("this MPI has no %s", name);
	return found;
}

/* Memory of `span` bytes that is accessible at two places only. */
static uint8_t *sparse(size_t span, size_t second, size_t size)
{
	uint8_t *memory = mmap(NULL, span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (memory == MAP_FAILED || mprotect(memory, size, PROT_READ | PROT_WRITE) ||
	    mprotect(memory + second, size, PROT_READ | PROT_WRITE))
		fail("mmap: %s", strerror(errno));
	return memory;
}

/* The functions whose counts and displacements have 64 bits, with blocks more than 4 GiB apart. */
static void large_counts(void)
{
	const size_t far = (size_t)5 << 30, size = ((size_t)ranks * BLOCK + PAGE - 1) / PAGE * PAGE, span = far + size;
	alltoallv_c *alltoallv = (alltoallv_c *)function("MPI_Alltoallv_c");
	allgatherv_c *allgatherv = (allgatherv_c *)function("MPI_Allgatherv_c");
	allreduce_c *allreduce = (allreduce_c *)function("MPI_Allreduce_c");
	reduce_scatter_c *reduce_scatter = (reduce_scatter_c *)function("MPI_Reduce_scatter_c");
	uint8_t *from = sparse(span, far, size), *to = sparse(span, far, size);
	MPI_Count *counts = allocate(sizeof(*counts) * (size_t)ranks);
	MPI_Aint *places = allocate(sizeof(*places) * (size_t)ranks);
	int64_t *in = allocate(8 * BLOCK * (size_t)ranks), *out = allocate(8 * BLOCK * (size_t)ranks);
	int peer, at;

	/* The blocks of odd ranks are far away. */
	for (peer = 0; peer < ranks; peer++) {
		counts[peer] = BLOCK;
		places[peer] = (MPI_Aint)(peer % 2 ? far + (size_t)peer * BLOCK : (size_t)peer * BLOCK);
		fill(from + places[peer], BLOCK, rank, peer, 1100);
	}
	alltoallv(from, counts, places, MPI_BYTE, to, counts, places, MPI_BYTE, MPI_COMM_WORLD);
	for (peer = 0; peer < ranks; peer++)
		compare(to + places[peer], BLOCK, peer, rank, 1100);
	allgatherv(from, BLOCK, MPI_BYTE, to, counts, places, MPI_BYTE, MPI_COMM_WORLD);
	for (peer = 0; peer < ranks; peer++)
		compare(to + places[peer], BLOCK, peer, 0, 1100);
	for (at = 0; at < BLOCK * ranks; at++)
		in[at] = (int64_t)at * (rank + 1);
	allreduce(in, out, BLOCK * ranks, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
	for (at = 0; at < BLOCK * ranks; at++)
		if (out[at] != (int64_t)at * ranks * (ranks + 1) / 2)
			fail("element %d of the sum is %lld", at, (long long)out[at]);
	reduce_scatter(in, out, counts, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
	for (at = 0; at < BLOCK; at++)
		if (out[at] != (int64_t)(rank * BLOCK + at) * ranks * (ranks + 1) / 2)
			fail("element %d of this rank's sum is %lld", at, (long long)out[at]);
	release(from, span);
	release(to, span);
	free(counts);
	free(places);
	free(in);
	free(out);
}

/* --- Ranks that end while calls are under way. Those programs end the job. --- */

static void in_mid_call(void (*end)(void))
{
	struct exchange one = prepare(MPI_COMM_WORLD, 4 * BLOCK, 2100);
	MPI_Request request;

	alltoallv_on(MPI_COMM_WORLD, BLOCK, 2101);
	request = start(&one);
	if (rank == 1)
		end();
	MPI_Wait(&request, MPI_STATUS_IGNORE);
	check_received(&one, rank, ranks);
	/* The launcher ends this rank. */
	for (;;)
		MPI_Barrier(MPI_COMM_WORLD);
}

static void abort_job(void)
{
	MPI_Abort(MPI_COMM_WORLD, 3);
}

static void exit_with_handlers(void)
{
	exit(4);
}

static void exit_at_once(void)
{
	_exit(5);
}

static void be_killed(void)
{
	raise(SIGKILL);
}

static void ends_by_abort(void)
{
	in_mid_call(abort_job);
}

static void ends_by_exit(void)
{
	in_mid_call(exit_with_handlers);
}

static void ends_at_once(void)
{
	in_mid_call(exit_at_once);
}

static void ends_by_signal(void)
{
	in_mid_call(be_killed);
}

struct program {
	const char *name;
	void (*run)(void);
};

static const struct program programs[] = {
	{ "late-root", late_root },
	{ "late-wait", late_wait },
	{ "idle", idle },
	{ "late-first", late_first },
	{ "persistent-orders", persistent_orders },
	{ "persistent-reductions", persistent_reductions },
	{ "memory-of-files", memory_of_files },
	{ "memory-of-the-program", memory_of_the_program },
	{ "memory-with-gaps", memory_with_gaps },
	{ "negative-displacements", negative_displacements },
	{ "huge-block", huge_block },
	{ "many-broadcasts", many_broadcasts },
	{ "many-reductions", many_reductions },
	{ "mixture", mixture },
	{ "shared-send-buffer", shared_send_buffer },
	{ "other-thread", other_thread },
	{ "stopped", stopped },
	{ "forked", forked },
	{ "duplicated", duplicated },
	{ "freed-before-completion", freed_before_completion },
	{ "many-communicators", many_communicators },
	{ "come-and-go", come_and_go },
	{ "groups", groups },
	{ "intercommunicator", intercommunicator },
	{ "threads", threads },
	{ "blocking-threads", blocking_threads },
	{ "sessions", sessions },
	{ "spawn", spawn },
	{ "empty", empty },
	{ "empty-at-once", empty_at_once },
	{ "reduce-scatter", reduce_scatter },
	{ "generated", generated },
	{ "in-place", in_place },
	{ "types", types },
	{ "mixed-types", mixed_types },
	{ "operators", operators },
	{ "reused-memory", reused_memory },
	{ "interrupted", interrupted },
	{ "small-stack", small_stack },
	{ "freed-types", freed_types },
	{ "one-sided", one_sided },
	{ "polled", polled },
	{ "moved", moved },
	{ "complex-numbers", complex_numbers },
	{ "numbers", numbers },
	{ "own-operator", own_operator },
	{ "in-place-uneven", in_place_uneven },
	{ "garbage-elsewhere", garbage_elsewhere },
	{ "overlapping-blocks", overlapping_blocks },
	{ "odd-types", odd_types },
	{ "alone", alone },
	{ "between-groups", between_groups },
	{ "topologies", topologies },
	{ "connected", connected },
	{ "two-sessions", two_sessions },
	{ "unfreed", unfreed },
	{ "read-only", read_only },
	{ "shared-window", shared_window },
	{ "stack-of-another", stack_of_another },
	{ "replaced-memory", replaced_memory },
	{ "outstanding", outstanding },
	{ "progress-elsewhere", progress_elsewhere },
	{ "persistent-lives", persistent_lives },
	{ "large-counts", large_counts },
	/* Of main(). */
	{ "sessions-only", NULL },
	/* Not listed. */
	{ "ends-by-abort", ends_by_abort },
	{ "ends-by-exit", ends_by_exit },
	{ "ends-at-once", ends_at_once },
	{ "ends-by-signal", ends_by_signal },
};
enum { PROGRAMS = sizeof(programs) / sizeof(programs[0]), UNLISTED = 4 };

static void run_one(const char *name)
{
	size_t at;

	for (at = 0; at < PROGRAMS; at++) {
		if (strcmp(programs[at].name, name))
			continue;
		if (!programs[at].run)
			fail("'%s' is alone in its job", name);
		running = name;
		programs[at].run();
		MPI_Barrier(MPI_COMM_WORLD);
		if (rank == 0) {
			printf("ok %s\n", name);
			fflush(stdout);
		}
		return;
	}
	fail("no program '%s'; try: mpi_legal --list", name);
}

int main(int count, char **words)
{
	int provided, at = 1;
	size_t each;

	if (count == 2 && !strcmp(words[1], "--list")) {
		for (each = 0; each < PROGRAMS - UNLISTED; each++)
			puts(programs[each].name);
		return 0;
	}
	if (!strcmp(words[count - 1], "sessions-only")) {
		sessions_only();
		return 0;
	}
	MPI_Init_thread(&count, &words, MPI_THREAD_MULTIPLE, &provided);
	threads_allowed = provided == MPI_THREAD_MULTIPLE;
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (count == 2 && !strcmp(words[1], "--child")) {
		be_child();
		MPI_Finalize();
		return 0;
	}
	for (; at + 1 < count && !strncmp(words[at], "--", 2); at += 2)
		if (!strcmp(words[at], "--late"))
			late_s = atof(words[at + 1]);
		else
			rounds_of_communicators = (unsigned)atoi(words[at + 1]);
	for (; at < count; at++)
		run_one(words[at]);
	MPI_Finalize();
	if (rank == 0)
		puts("done");
	return 0;
}
