/* An MPI program that compares all received data: point-to-point, collectives and one-sided.
 *
 *   mpi_check
 *
 * Rank 0 prints "ok SECTION" when every rank has finished a section, and "done" at the end. The first error is
 * printed on standard error and aborts the job. Works with any number of ranks from 2.
 */
#include "mpi_side.h"
#include <string.h>

enum { LARGEST = 4 << 20, WINDOW_WORDS = 64, ROUNDS = 32, BLOCK = 4096 };

static const int sizes[] = { 0, 1, 7, 8, 255, 1024, 4097, 8192, 65536, 262145, LARGEST };
enum { SIZES = sizeof(sizes) / sizeof(sizes[0]) };

static void expect(long long value, long long wanted, const char *what)
{
	if (value != wanted)
		fail("%s is %lld, not %lld", what, value, wanted);
}

/* ---- point-to-point ---- */

/* Every rank with every other, all sizes outstanding at once, received in reverse order. */
static void everybody(void)
{
	MPI_Request *requests = allocate(sizeof(*requests) * 2 * SIZES * ranks);
	uint8_t **sent = allocate(sizeof(*sent) * SIZES * ranks), **received = allocate(sizeof(*received) * SIZES * ranks);
	int i, other, count = 0;

	for (other = 0; other < ranks; other++)
		for (i = SIZES; i-- > 0;) {
			received[other * SIZES + i] = allocate(sizes[i]);
			MPI_Irecv(received[other * SIZES + i], sizes[i], MPI_BYTE, other, 100 + i, MPI_COMM_WORLD,
				  &requests[count++]);
		}
	for (other = 0; other < ranks; other++)
		for (i = 0; i < SIZES; i++) {
			sent[other * SIZES + i] = allocate(sizes[i]);
			fill(sent[other * SIZES + i], sizes[i], rank, other, i);
			MPI_Isend(sent[other * SIZES + i], sizes[i], MPI_BYTE, other, 100 + i, MPI_COMM_WORLD,
				  &requests[count++]);
		}
	MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
	for (other = 0; other < ranks; other++)
		for (i = 0; i < SIZES; i++) {
			compare(received[other * SIZES + i], sizes[i], other, rank, i);
			free(received[other * SIZES + i]);
			free(sent[other * SIZES + i]);
		}
	free(requests);
	free(sent);
	free(received);
}

/* Unexpected messages, found by a probe, which also returns their length. */
static void probed(void)
{
	int next = (rank + 1) % ranks, length, i;
	uint8_t *sent = allocate(LARGEST), *received = allocate(LARGEST);
	MPI_Request request;
	MPI_Status status;

	for (i = 0; i < SIZES; i++) {
		fill(sent, sizes[i], rank, next, 50 + i);
		MPI_Issend(sent, sizes[i], MPI_BYTE, next, 200 + i, MPI_COMM_WORLD, &request);
		MPI_Probe(MPI_ANY_SOURCE, 200 + i, MPI_COMM_WORLD, &status);
		MPI_Get_count(&status, MPI_BYTE, &length);
		expect(length, sizes[i], "the length that a probe tells");
		MPI_Recv(received, length, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		compare(received, length, status.MPI_SOURCE, rank, 50 + i);
		MPI_Wait(&request, MPI_STATUS_IGNORE);
	}
	free(sent);
	free(received);
}

/* Every second word of a vector, from and into memory with holes. */
static void strided(void)
{
	enum { COUNT = 20000 };
	int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks, i;
	uint32_t *sent = allocate(COUNT * 8), *received = allocate(COUNT * 8);
	MPI_Datatype type;

	MPI_Type_vector(COUNT, 1, 2, MPI_UINT32_T, &type);
	MPI_Type_commit(&type);
	for (i = 0; i < 2 * COUNT; i++)
		sent[i] = rank * 1000000 + i;
	MPI_Sendrecv(sent, 1, type, next, 300, received, 1, type, before, 300, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	for (i = 0; i < 2 * COUNT; i++)
		expect(received[i], i % 2 ? 0 : before * 1000000 + i, "a word of a vector");
	MPI_Type_free(&type);
	free(sent);
	free(received);
}

static void p2p(void)
{
	everybody();
	probed();
	strided();
}

/* ---- collectives ---- */

static void numbers(MPI_Comm comm)
{
	int me, count, i;
	long long mine, result, wanted = 0;

	MPI_Comm_rank(comm, &me);
	MPI_Comm_size(comm, &count);
	for (i = 0; i < count; i++)
		wanted += i + 1;
	mine = me + 1;
	MPI_Allreduce(&mine, &result, 1, MPI_LONG_LONG, MPI_SUM, comm);
	expect(result, wanted, "the sum of all");
	MPI_Allreduce(&mine, &result, 1, MPI_LONG_LONG, MPI_MAX, comm);
	expect(result, count, "the largest of all");
	MPI_Reduce(&mine, &result, 1, MPI_LONG_LONG, MPI_SUM, count - 1, comm);
	if (me == count - 1)
		expect(result, wanted, "the sum at the last");
	MPI_Scan(&mine, &result, 1, MPI_LONG_LONG, MPI_SUM, comm);
	expect(result, (long long)(me + 1) * (me + 2) / 2, "the sum up to here");
	MPI_Barrier(comm);
}

static void arrays(int size)
{
	uint8_t *mine = allocate((size_t)size * ranks), *theirs = allocate((size_t)size * ranks);
	int root, other;

	for (root = 0; root < ranks; root++) {
		if (rank == root)
			fill(mine, size, rank, 0, 60);
		else
			memset(mine, 0, size);
		MPI_Bcast(mine, size, MPI_BYTE, root, MPI_COMM_WORLD);
		compare(mine, size, root, 0, 60);
		for (other = 0; other < ranks; other++)
			fill(mine + (size_t)other * size, size, rank, other, 61);
		MPI_Scatter(mine, size, MPI_BYTE, theirs, size, MPI_BYTE, root, MPI_COMM_WORLD);
		compare(theirs, size, root, rank, 61);
		fill(mine, size, rank, root, 62);
		MPI_Gather(mine, size, MPI_BYTE, theirs, size, MPI_BYTE, root, MPI_COMM_WORLD);
		for (other = 0; rank == root && other < ranks; other++)
			compare(theirs + (size_t)other * size, size, other, root, 62);
	}
	fill(mine, size, rank, 0, 63);
	MPI_Allgather(mine, size, MPI_BYTE, theirs, size, MPI_BYTE, MPI_COMM_WORLD);
	for (other = 0; other < ranks; other++)
		compare(theirs + (size_t)other * size, size, other, 0, 63);
	for (other = 0; other < ranks; other++)
		fill(mine + (size_t)other * size, size, rank, other, 64);
	MPI_Alltoall(mine, size, MPI_BYTE, theirs, size, MPI_BYTE, MPI_COMM_WORLD);
	for (other = 0; other < ranks; other++)
		compare(theirs + (size_t)other * size, size, other, rank, 64);
	free(mine);
	free(theirs);
}

/* Each rank sends a different length to each: (from + 2 * to) blocks. */
static void uneven(void)
{
	int *send_counts = allocate(sizeof(int) * ranks), *send_at = allocate(sizeof(int) * ranks);
	int *receive_counts = allocate(sizeof(int) * ranks), *receive_at = allocate(sizeof(int) * ranks);
	int other, send_total = 0, receive_total = 0;
	uint8_t *mine, *theirs;

	for (other = 0; other < ranks; other++) {
		send_counts[other] = (rank + 2 * other) * BLOCK;
		receive_counts[other] = (other + 2 * rank) * BLOCK;
		send_at[other] = send_total;
		receive_at[other] = receive_total;
		send_total += send_counts[other];
		receive_total += receive_counts[other];
	}
	mine = allocate(send_total);
	theirs = allocate(receive_total);
	for (other = 0; other < ranks; other++)
		fill(mine + send_at[other], send_counts[other], rank, other, 65);
	MPI_Alltoallv(mine, send_counts, send_at, MPI_BYTE, theirs, receive_counts, receive_at, MPI_BYTE, MPI_COMM_WORLD);
	for (other = 0; other < ranks; other++)
		compare(theirs + receive_at[other], receive_counts[other], other, rank, 65);
	free(mine);
	free(theirs);
	free(send_counts);
	free(send_at);
	free(receive_counts);
	free(receive_at);
}

/* Sum of a large array, for which MPI uses other algorithms than for one number. */
static void sums(void)
{
	enum { COUNT = 200001 };
	int64_t *mine = allocate(sizeof(*mine) * COUNT), *result = allocate(sizeof(*result) * COUNT);
	int64_t every = (int64_t)ranks * (ranks + 1) / 2;
	int i;

	for (i = 0; i < COUNT; i++)
		mine[i] = (int64_t)(rank + 1) * i;
	MPI_Allreduce(mine, result, COUNT, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
	for (i = 0; i < COUNT; i++)
		expect(result[i], every * i, "a sum of an array");
	MPI_Reduce_scatter_block(mine, result, COUNT / ranks, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
	for (i = 0; i < COUNT / ranks; i++)
		expect(result[i], every * (i + rank * (COUNT / ranks)), "a scattered sum");
	free(mine);
	free(result);
}

static void collectives(void)
{
	MPI_Comm part;
	int i;

	numbers(MPI_COMM_WORLD);
	/* Groups with ranks of different nodes, in reverse order. */
	MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &part);
	numbers(part);
	MPI_Comm_free(&part);
	for (i = 0; i < SIZES; i++)
		if (sizes[i] <= 262145)
			arrays(sizes[i]);
	uneven();
	sums();
}

/* ---- one-sided ---- */

/* Put to and get from every rank's window, between fences. */
static void fenced(void)
{
	size_t part = LARGEST / ranks;
	uint8_t *memory, *mine = allocate(part), *got = allocate(part);
	MPI_Win window;
	int other;

	MPI_Win_allocate(LARGEST, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
	MPI_Win_fence(0, window);
	fill(mine, part, rank, 0, 70);
	for (other = 0; other < ranks; other++)
		MPI_Put(mine, part, MPI_BYTE, other, (MPI_Aint)rank * part, part, MPI_BYTE, window);
	MPI_Win_fence(0, window);
	for (other = 0; other < ranks; other++)
		compare(memory + other * part, part, other, 0, 70);
	MPI_Win_fence(0, window);
	for (other = 0; other < ranks; other++) {
		int from = (other + 1) % ranks;

		MPI_Get(got, part, MPI_BYTE, other, (MPI_Aint)from * part, part, MPI_BYTE, window);
		MPI_Win_fence(0, window);
		compare(got, part, from, 0, 70);
	}
	MPI_Win_free(&window);
	free(mine);
	free(got);
}

/* Atomics of all ranks on the words of rank 0, under shared locks. */
static void counted(void)
{
	int64_t *words, one = 1, none = 0, before, last = -1, swapped;
	long long hits = 0, every;
	MPI_Win window;
	int i;

	MPI_Win_allocate(WINDOW_WORDS * sizeof(*words), sizeof(*words), MPI_INFO_NULL, MPI_COMM_WORLD, &words, &window);
	memset(words, 0, WINDOW_WORDS * sizeof(*words));
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_lock_all(0, window);
	for (i = 0; i < ROUNDS; i++) {
		MPI_Fetch_and_op(&one, &before, MPI_INT64_T, 0, 0, MPI_SUM, window);
		MPI_Win_flush(0, window);
		if (before <= last || before >= (int64_t)ROUNDS * ranks)
			fail("a counter went from %lld to %lld", (long long)last, (long long)before);
		last = before;
		MPI_Accumulate(&one, 1, MPI_INT64_T, 0, 1 + rank % 2, 1, MPI_INT64_T, MPI_SUM, window);
		/* One rank succeeds in each round's word. */
		swapped = rank + 1;
		MPI_Compare_and_swap(&swapped, &none, &before, MPI_INT64_T, 0, 8 + i, window);
		MPI_Win_flush(0, window);
		hits += before == 0;
	}
	MPI_Win_unlock_all(window);
	MPI_Reduce(&hits, &every, 1, MPI_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
	if (rank == 0) {
		MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, window);
		expect(words[0], (long long)ROUNDS * ranks, "the counter");
		expect(words[1] + words[2], (long long)ROUNDS * ranks, "the accumulated counters");
		expect(every, ROUNDS, "the successful swaps");
		for (i = 0; i < ROUNDS; i++)
			if (words[8 + i] < 1 || words[8 + i] > ranks)
				fail("%lld was swapped in", (long long)words[8 + i]);
		MPI_Win_unlock(0, window);
	}
	MPI_Win_free(&window);
}

/* Read and write of a number under an exclusive lock: no increment is lost. */
static void locked(void)
{
	int64_t value, *memory = NULL;
	MPI_Win window;
	int i;

	MPI_Alloc_mem(sizeof(*memory), MPI_INFO_NULL, &memory);
	*memory = 0;
	MPI_Win_create(memory, sizeof(*memory), 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
	for (i = 0; i < ROUNDS / 4; i++) {
		MPI_Win_lock(MPI_LOCK_EXCLUSIVE, ranks - 1, 0, window);
		MPI_Get(&value, 1, MPI_INT64_T, ranks - 1, 0, 1, MPI_INT64_T, window);
		MPI_Win_flush(ranks - 1, window);
		value++;
		MPI_Put(&value, 1, MPI_INT64_T, ranks - 1, 0, 1, MPI_INT64_T, window);
		MPI_Win_unlock(ranks - 1, window);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, window);
	expect(*memory, rank == ranks - 1 ? (long long)(ROUNDS / 4) * ranks : 0, "what was counted under a lock");
	MPI_Win_unlock(rank, window);
	MPI_Win_free(&window);
	MPI_Free_mem(memory);
}

/* Between post and wait, from one neighbour only. */
static void posted(void)
{
	int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
	uint8_t *memory = allocate(BLOCK), *mine = allocate(BLOCK);
	MPI_Group world, from, to;
	MPI_Win window;

	MPI_Comm_group(MPI_COMM_WORLD, &world);
	MPI_Group_incl(world, 1, &before, &from);
	MPI_Group_incl(world, 1, &next, &to);
	MPI_Win_create(memory, BLOCK, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
	fill(mine, BLOCK, rank, next, 80);
	MPI_Win_post(from, 0, window);
	MPI_Win_start(to, 0, window);
	MPI_Put(mine, BLOCK, MPI_BYTE, next, 0, BLOCK, MPI_BYTE, window);
	MPI_Win_complete(window);
	MPI_Win_wait(window);
	compare(memory, BLOCK, before, rank, 80);
	MPI_Win_free(&window);
	MPI_Group_free(&from);
	MPI_Group_free(&to);
	MPI_Group_free(&world);
	free(memory);
	free(mine);
}

static void one_sided(void)
{
	fenced();
	counted();
	locked();
	posted();
}

static void run(const char *name, void (*body)(void))
{
	running = name;
	body();
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0) {
		printf("ok %s\n", name);
		fflush(stdout);
	}
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (ranks < 2)
		fail("needs two ranks");
	run("p2p", p2p);
	run("collectives", collectives);
	run("one_sided", one_sided);
	MPI_Finalize();
	if (rank == 0)
		printf("done\n");
	return 0;
}
