/* Times MPI_Allreduce or MPI_Iallreduce of 32-bit sums, MPI_Ialltoall, MPI_Alltoallv or MPI_Ialltoallv, on MPI_COMM_WORLD, with
 * fresh buffers in each call, and compares every element. It knows only MPI.
 *
 *   mpi_timed blocking|overlap|exchange|blocks LEAST MOST ITERATIONS WARM_UP PREFIX COMMAND...
 *   mpi_timed ping-pong|halo LEAST MOST ITERATIONS WARM_UP PREFIX COMMAND...
 *   mpi_timed spread-iallreduce:MS...|spread-ialltoallv:MS... LEAST MOST ITERATIONS WARM_UP PREFIX
 *
 * Sizes double from LEAST to MOST bytes: of a vector, or with "exchange" and "blocks" (a blocking alltoallv) to each rank. With
 * "overlap" each timed call is started, the rank sleeps as long as the collective alone takes, and then waits: a computation on
 * a core of its own. Rank 0 prints a line of JSON for each size. It runs COMMAND, which prints the device's counters, before and after the timed calls of a size into PREFIX.SIZE.before and
 * PREFIX.SIZE.after. Without COMMAND it does not.
 *
 * With "ping-pong", each rank and the one half of the ranks further send each other a message of the size by blocking calls; the
 * time is half of it. With "halo" each rank exchanges messages with two neighbours, and computes as with "overlap". Their
 * communicator has the info xgvmi_messages.
 *
 * With "spread", the ranks start each timed call at different times, evenly spread over MS milliseconds, and each call has another
 * first rank. Then a rank sleeps until the last one has started and as long as the collective alone takes, and waits. The time
 * is that in the two MPI calls. There is a line for each size and MS.
 */
#include <mpi.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

extern char **environ;

enum { ITERATIONS_MAX = 10000, NAP_US = 100 };

static int rank, ranks, overlap, exchange, blocks_wait;
static int ping_pong, halo;
static MPI_Comm wire;
/* Whether the ranks start at different times, whether they exchange blocks then, and the time from the first to the last one. */
static int spreads, spread_exchange;
static double spread_us;
static unsigned sequence;
static uint64_t wrong, verified;

/* One call: its time, and the processor time of this process in it. */
struct call {
	double us, cpu_us;
};

static void stop(const char *why)
{
	fprintf(stderr, "rank %d: %s\n", rank, why);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

static double clock_us(clockid_t id)
{
	struct timespec now;

	clock_gettime(id, &now);
	return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static void nap(double us)
{
	struct timespec time = { .tv_sec = (time_t)(us / 1e6) };

	time.tv_nsec = (long)((us - (double)time.tv_sec * 1e6) * 1e3);
	nanosleep(&time, NULL);
}

/* Ranks that wait leave the cores to those that work. */
static void meet(void)
{
	MPI_Request request;
	int done = 0;

	MPI_Ibarrier(MPI_COMM_WORLD, &request);
	while (MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done)
		nap(NAP_US);
}

static uint32_t *fresh(size_t size)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		stop("no memory");
	return memory;
}

static uint32_t element_of(int from, unsigned call, size_t at)
{
	return (uint32_t)at * 2654435761u ^ (uint32_t)from * 40503u ^ call * 7919u;
}

/* An element of the block from a rank to a rank. */
static uint32_t element_to(int from, int to, size_t at)
{
	return element_of(from, sequence, at) + (uint32_t)to * 2246822519u;
}

static void compare_blocks(const uint32_t *found, size_t elements)
{
	size_t at;
	int from;

	for (from = 0; from < ranks; from++)
		for (at = 0; at < elements; at++)
			if (found[(size_t)from * elements + at] != element_to(from, rank, at))
				wrong += sizeof(*found);
	verified += (size_t)ranks * elements * sizeof(*found);
}

static void compare(const uint32_t *found, size_t elements)
{
	size_t at;
	int from;

	for (at = 0; at < elements; at++) {
		uint32_t sum = 0;

		for (from = 0; from < ranks; from++)
			sum += element_of(from, sequence, at);
		if (found[at] != sum)
			wrong += sizeof(sum);
	}
	verified += elements * sizeof(*found);
}

static void wait_for(MPI_Request *request)
{
	if (MPI_Wait(request, MPI_STATUS_IGNORE))
		stop("MPI_Wait fails");
}

/* Arrays of the call that is under way. */
static int *wait_arrays[2];

/* Blocks for all ranks, one after the other. Without a request it waits. */
static int alltoallv(const uint32_t *send, uint32_t *receive, size_t elements, MPI_Request *request)
{
	int *counts = calloc((size_t)ranks, sizeof(*counts)), *places = calloc((size_t)ranks, sizeof(*places)), at, status;

	if (!counts || !places)
		stop("no memory");
	for (at = 0; at < ranks; at++) {
		counts[at] = (int)elements;
		places[at] = at * (int)elements;
	}
	if (request)
		status = MPI_Ialltoallv(send, counts, places, MPI_UINT32_T, receive, counts, places, MPI_UINT32_T,
					MPI_COMM_WORLD, request);
	else
		status = MPI_Alltoallv(send, counts, places, MPI_UINT32_T, receive, counts, places, MPI_UINT32_T,
				       MPI_COMM_WORLD);
	/* The arrays are the call's until it is complete. */
	wait_arrays[0] = counts;
	wait_arrays[1] = places;
	return status;
}

static void release_arrays(void)
{
	int at;

	for (at = 0; at < 2; at++) {
		free(wait_arrays[at]);
		wait_arrays[at] = NULL;
	}
}

/* One exchange with fresh buffers of a block for each rank. */
static struct call once_exchanged(size_t size)
{
	size_t elements = size / sizeof(uint32_t), length = size * (size_t)ranks, at;
	uint32_t *send = fresh(length), *receive = fresh(length);
	MPI_Request request;
	struct call call;
	double began, cpu;
	int to;

	sequence++;
	for (to = 0; to < ranks; to++)
		for (at = 0; at < elements; at++)
			send[(size_t)to * elements + at] = element_to(rank, to, at);
	memset(receive, 0xee, length);
	meet();
	began = clock_us(CLOCK_MONOTONIC);
	cpu = clock_us(CLOCK_PROCESS_CPUTIME_ID);
	if (blocks_wait) {
		if (alltoallv(send, receive, elements, NULL))
			stop("MPI_Alltoallv fails");
	} else if (MPI_Ialltoall(send, (int)elements, MPI_UINT32_T, receive, (int)elements, MPI_UINT32_T, MPI_COMM_WORLD, &request)) {
		stop("MPI_Ialltoall fails");
	} else {
		wait_for(&request);
	}
	call.cpu_us = clock_us(CLOCK_PROCESS_CPUTIME_ID) - cpu;
	call.us = clock_us(CLOCK_MONOTONIC) - began;
	release_arrays();
	compare_blocks(receive, elements);
	munmap(send, length);
	munmap(receive, length);
	return call;
}

/* One collective that the ranks start at different times, with a computation of `compute_us` until the wait. */
static struct call once_spread(size_t size, double compute_us)
{
	size_t elements = size / sizeof(uint32_t), blocks = spread_exchange ? (size_t)ranks : 1, at;
	uint32_t *send = fresh(size * blocks), *receive = fresh(size * blocks);
	struct call call;
	MPI_Request request;
	double began, cpu;
	size_t to;

	sequence++;
	for (to = 0; to < blocks; to++)
		for (at = 0; at < elements; at++)
			send[to * elements + at] =
				spread_exchange ? element_to(rank, (int)to, at) : element_of(rank, sequence, at);
	memset(receive, 0xee, size * blocks);
	meet();
	if (spread_us > 0 && ranks > 1)
		nap(spread_us * (double)(((unsigned)rank + sequence) % (unsigned)ranks) / (ranks - 1));
	began = clock_us(CLOCK_MONOTONIC);
	cpu = clock_us(CLOCK_PROCESS_CPUTIME_ID);
	if (spread_exchange ? alltoallv(send, receive, elements, &request) :
			      MPI_Iallreduce(send, receive, (int)elements, MPI_UINT32_T, MPI_SUM, MPI_COMM_WORLD, &request))
		stop("the start of a collective fails");
	call.us = clock_us(CLOCK_MONOTONIC) - began;
	if (compute_us > 0)
		nap(compute_us);
	began = clock_us(CLOCK_MONOTONIC);
	wait_for(&request);
	call.us += clock_us(CLOCK_MONOTONIC) - began;
	call.cpu_us = clock_us(CLOCK_PROCESS_CPUTIME_ID) - cpu;
	release_arrays();
	if (spread_exchange)
		compare_blocks(receive, elements);
	else
		compare(receive, elements);
	munmap(send, size * blocks);
	munmap(receive, size * blocks);
	return call;
}

static void fill_block(uint32_t *block, size_t elements, int to)
{
	size_t at;

	for (at = 0; at < elements; at++)
		block[at] = element_to(rank, to, at);
}

static void compare_block(const uint32_t *block, size_t elements, int from)
{
	size_t at;

	for (at = 0; at < elements; at++)
		if (block[at] != element_to(from, rank, at))
			wrong += sizeof(*block);
	verified += elements * sizeof(*block);
}

/* Messages with fresh buffers. */
static struct call once_sent(size_t size, double compute_us)
{
	size_t elements = size / sizeof(uint32_t);
	int peers[2] = { (rank + 1) % ranks, (rank + ranks - 1) % ranks }, of = halo ? 2 : 1, at;
	uint32_t *send = fresh(2 * size), *receive = fresh(2 * size);
	MPI_Request requests[4];
	struct call call;
	double began, cpu;

	if (ping_pong)
		peers[0] = (rank + ranks / 2) % ranks;
	sequence++;
	for (at = 0; at < of; at++)
		fill_block(send + (size_t)at * elements, elements, peers[at]);
	memset(receive, 0xee, 2 * size);
	meet();
	began = clock_us(CLOCK_MONOTONIC);
	cpu = clock_us(CLOCK_PROCESS_CPUTIME_ID);
	if (halo) {
		for (at = 0; at < 2; at++)
			if (MPI_Irecv(receive + (size_t)at * elements, (int)elements, MPI_UINT32_T, peers[at], 0, wire, &requests[at]))
				stop("MPI_Irecv fails");
		for (at = 0; at < 2; at++)
			if (MPI_Isend(send + (size_t)at * elements, (int)elements, MPI_UINT32_T, peers[at], 0, wire, &requests[2 + at]))
				stop("MPI_Isend fails");
		if (compute_us > 0)
			nap(compute_us);
		for (at = 0; at < 4; at++)
			wait_for(&requests[at]);
	} else {
		for (at = 0; at < 2; at++)
			if ((at == 0) == (rank < ranks / 2)) {
				if (MPI_Send(send, (int)elements, MPI_UINT32_T, peers[0], 0, wire))
					stop("MPI_Send fails");
			} else if (MPI_Recv(receive, (int)elements, MPI_UINT32_T, peers[0], 0, wire, MPI_STATUS_IGNORE)) {
				stop("MPI_Recv fails");
			}
	}
	call.cpu_us = clock_us(CLOCK_PROCESS_CPUTIME_ID) - cpu;
	call.us = clock_us(CLOCK_MONOTONIC) - began;
	if (ping_pong) {
		call.cpu_us /= 2;
		call.us /= 2;
	}
	for (at = 0; at < of; at++)
		compare_block(receive + (size_t)at * elements, elements, peers[at]);
	munmap(send, 2 * size);
	munmap(receive, 2 * size);
	return call;
}

/* A communicator for messages. */
static void connect_all(void)
{
	MPI_Info info;

	/* The service processes need a first collective. */
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Info_create(&info);
	MPI_Info_set(info, "xgvmi_messages", "4096");
	MPI_Comm_dup_with_info(MPI_COMM_WORLD, info, &wire);
	MPI_Info_free(&info);
}

/* One collective with fresh buffers. `compute_us` below 0: the blocking call. */
static struct call once(size_t size, double compute_us)
{
	size_t elements = size / sizeof(uint32_t), at;
	uint32_t *send, *receive;
	struct call call;
	double began, cpu;

	if (spreads)
		return once_spread(size, compute_us);
	if (ping_pong || halo)
		return once_sent(size, compute_us);
	if (exchange)
		return once_exchanged(size);
	send = fresh(size);
	receive = fresh(size);
	sequence++;
	for (at = 0; at < elements; at++)
		send[at] = element_of(rank, sequence, at);
	memset(receive, 0xee, size);
	meet();
	began = clock_us(CLOCK_MONOTONIC);
	cpu = clock_us(CLOCK_PROCESS_CPUTIME_ID);
	if (compute_us < 0) {
		if (MPI_Allreduce(send, receive, (int)elements, MPI_UINT32_T, MPI_SUM, MPI_COMM_WORLD))
			stop("MPI_Allreduce fails");
	} else {
		MPI_Request request;

		if (MPI_Iallreduce(send, receive, (int)elements, MPI_UINT32_T, MPI_SUM, MPI_COMM_WORLD, &request))
			stop("MPI_Iallreduce fails");
		if (compute_us > 0)
			nap(compute_us);
		wait_for(&request);
	}
	call.cpu_us = clock_us(CLOCK_PROCESS_CPUTIME_ID) - cpu;
	call.us = clock_us(CLOCK_MONOTONIC) - began;
	compare(receive, elements);
	munmap(send, size);
	munmap(receive, size);
	return call;
}

static void counters(char **command, const char *prefix, size_t size, const char *title)
{
	meet();
	if (rank == 0 && command && *command) {
		posix_spawn_file_actions_t actions;
		char file[4096];
		int status = 1;
		pid_t child;

		snprintf(file, sizeof(file), "%s.%zu.%s", prefix, size, title);
		if (posix_spawn_file_actions_init(&actions) ||
		    posix_spawn_file_actions_addopen(&actions, 1, file, O_WRONLY | O_CREAT | O_TRUNC, 0600) ||
		    posix_spawnp(&child, command[0], &actions, NULL, command, environ) ||
		    waitpid(child, &status, 0) != child || status != 0)
			stop("the command that prints the counters fails");
		posix_spawn_file_actions_destroy(&actions);
	}
	meet();
}

/* The mean over all ranks, at rank 0. */
static double mean(double mine)
{
	double sum = 0;

	MPI_Reduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
	return sum / ranks;
}

static int by_size(const void *one, const void *other)
{
	double a = *(const double *)one, b = *(const double *)other;

	return (a > b) - (a < b);
}

/* Timed calls after `warm_up` others. Returns the means of this rank, and each call's mean over the ranks at rank 0. */
static struct call pass(size_t size, double compute_us, int warm_up, int iterations, double *times)
{
	static double mine[ITERATIONS_MAX];
	struct call sum = { 0, 0 };
	int at;

	for (at = 0; at < warm_up; at++)
		once(size, compute_us);
	for (at = 0; at < iterations; at++) {
		struct call call = once(size, compute_us);

		mine[at] = call.us;
		sum.us += call.us;
		sum.cpu_us += call.cpu_us;
	}
	for (at = 0; at < iterations; at++)
		times[at] = mean(mine[at]);
	sum.us /= iterations;
	sum.cpu_us /= iterations;
	return sum;
}

static void measure_spread(size_t size, int warm_up, int iterations, const char *times_ms)
{
	static double times[ITERATIONS_MAX];
	const char *word = times_ms;
	struct call alone, timed;
	uint64_t counts[2], sums[2] = { 0, 0 };
	double cpu;
	long ms;

	wrong = verified = 0;
	spread_us = 0;
	alone = pass(size, 0, warm_up, iterations, times);
	while ((word = strchr(word, ':')) != NULL) {
		ms = strtol(++word, NULL, 10);
		spread_us = 1e3 * (double)ms;
		timed = pass(size, spread_us + alone.us, 0, iterations, times);
		qsort(times, (size_t)iterations, sizeof(*times), by_size);
		cpu = mean(timed.cpu_us);
		counts[0] = verified;
		counts[1] = wrong;
		wrong = verified = 0;
		MPI_Reduce(counts, sums, 2, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
		if (rank == 0)
			printf("{\"size\":%zu,\"spread_ms\":%ld,\"iterations\":%d,\"steady_us\":{\"p50\":%.3f},"
			       "\"host_cpu_us\":%.3f,\"verified_bytes\":%llu,\"wrong_bytes\":%llu}\n",
			       size, ms, iterations, times[iterations / 2], cpu, (unsigned long long)sums[0],
			       (unsigned long long)sums[1]);
	}
	fflush(stdout);
}

static void measure(size_t size, int warm_up, int iterations, char **words)
{
	static double times[ITERATIONS_MAX];
	struct call alone, timed;
	double pure, spent, cpu, hidden = 0;
	uint64_t counts[2], sums[2] = { 0, 0 };

	wrong = verified = 0;
	alone = pass(size, overlap ? 0 : -1, warm_up, overlap ? iterations : 1, times);
	counters(words + 1, words[0], size, "before");
	timed = pass(size, overlap ? alone.us : -1, 0, iterations, times);
	counters(words + 1, words[0], size, "after");
	qsort(times, (size_t)iterations, sizeof(*times), by_size);
	pure = mean(alone.us);
	spent = mean(timed.us);
	cpu = mean(timed.cpu_us);
	counts[0] = verified;
	counts[1] = wrong;
	MPI_Reduce(counts, sums, 2, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
	if (rank != 0)
		return;
	printf("{\"size\":%zu,\"iterations\":%d,\"steady_us\":{\"p50\":%.3f},\"host_cpu_us\":%.3f", size, iterations,
	       times[iterations / 2], cpu);
	if (overlap) {
		/* The computation took as long as the collective alone. */
		hidden = 100 * (1 - (spent - pure) / pure);
		hidden = hidden < 0 ? 0 : hidden;
		printf(",\"overlap\":{\"pure_us\":%.3f,\"percent\":%.3f}", pure, hidden);
	}
	printf(",\"verified_bytes\":%llu,\"wrong_bytes\":%llu}\n", (unsigned long long)sums[0], (unsigned long long)sums[1]);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	size_t size, most;
	int iterations, warm_up;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (argc < 7)
		stop("usage: mpi_timed blocking|overlap|exchange|blocks LEAST MOST ITERATIONS WARM_UP PREFIX COMMAND...");
	ping_pong = !strcmp(argv[1], "ping-pong");
	halo = !strcmp(argv[1], "halo");
	overlap = halo || !strcmp(argv[1], "overlap");
	blocks_wait = !strcmp(argv[1], "blocks");
	exchange = blocks_wait || !strcmp(argv[1], "exchange");
	spreads = !strncmp(argv[1], "spread-", 7);
	spread_exchange = !strncmp(argv[1], "spread-ialltoallv", 17);
	if ((ping_pong && ranks % 2) || (halo && ranks < 3))
		stop("another number of ranks");
	if (ping_pong || halo)
		connect_all();
	most = strtoul(argv[3], NULL, 10);
	iterations = atoi(argv[4]);
	warm_up = atoi(argv[5]);
	if (iterations < 1 || iterations > ITERATIONS_MAX)
		stop("another number of iterations");
	for (size = strtoul(argv[2], NULL, 10); size >= sizeof(uint32_t) && size <= most; size *= 2)
		if (spreads)
			measure_spread(size, warm_up, iterations, argv[1]);
		else
			measure(size, warm_up, iterations, argv + 6);
	if (ping_pong || halo)
		MPI_Comm_free(&wire);
	MPI_Finalize();
	return 0;
}
