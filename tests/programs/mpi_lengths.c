/* Messages of all lengths through the service processes: their receives may be longer or shorter. It knows only MPI, and compares every
 * byte and length.
 *
 *   mpi_lengths [served]
 *
 * With "served" each message goes through the service processes. Each rank prints "rank R has N messages" at the end: how many sends
 * and receives they can serve. The first error is printed on standard error and aborts the job.
 */
#include "mpi_side.h"
#include <pthread.h>
#include <string.h>

enum { TAGS = 4096, UNTOUCHED = 0xee, WAYS = 8 };

static MPI_Comm comm;
/* GCC takes the constant for an array without elements. */
static MPI_Status *volatile nowhere = MPI_STATUSES_IGNORE;
static int is_served, next, last;
static unsigned long expected;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Calls of the communicator's error handler. */
static int handled;

/* The next part of the program begins. */
static void at_part(const char *name)
{
	running = name;
	printf("rank %d: %s\n", rank, name);
	fflush(stdout);
}

/* Counts sends and receives that are not empty. */
static void expect(int peer, int tag, int times)
{
	pthread_mutex_lock(&lock);
	expected += peer != rank && tag < TAGS / (ranks - 1) ? (unsigned long)times : 0;
	pthread_mutex_unlock(&lock);
}

static int class_of(int rc)
{
	int class = MPI_SUCCESS;

	if (rc)
		MPI_Error_class(rc, &class);
	return class;
}

static uint8_t *outgoing(int to, int tag, size_t bytes)
{
	uint8_t *data = allocate(bytes);

	fill(data, bytes, rank, to, (unsigned)tag);
	expect(to, tag, bytes > 0);
	return data;
}

static uint8_t *incoming(int from, int tag, size_t room)
{
	uint8_t *data = allocate(room);

	memset(data, UNTOUCHED, room);
	expect(from, tag, room > 0);
	return data;
}

/* What a receive of `room` bytes has got of a message. */
static void got(const uint8_t *data, size_t room, size_t sent, const MPI_Status *status, int rc, int from, int tag)
{
	size_t at;
	int count;

	if (class_of(rc) != (sent > room ? MPI_ERR_TRUNCATE : MPI_SUCCESS))
		fail("a message of %zu bytes for %zu has error class %d", sent, room, class_of(rc));
	if (sent > room)
		return;
	if (status) {
		MPI_Get_count(status, MPI_BYTE, &count);
		if (status->MPI_SOURCE != from || status->MPI_TAG != tag || (size_t)count != sent)
			fail("%d bytes from %d with tag %d, not %zu from %d with %d", count, status->MPI_SOURCE, status->MPI_TAG, sent,
			     from, tag);
	}
	compare(data, sent, from, rank, (unsigned)tag);
	for (at = sent; at < room; at++)
		if (data[at] != UNTOUCHED)
			fail("byte %zu behind a message of %zu bytes", at, sent);
}

/* Completes all requests in one way, and gives each its status and error. */
static void end(int way, int count, MPI_Request *requests, MPI_Status *statuses, int *codes)
{
	int at, rc, flag, done, left = count, *places = allocate((size_t)count * sizeof(int));
	MPI_Status *some = allocate((size_t)count * sizeof(*some));

	/* The MPIs' own calls for several requests may return, or forget others, when one has failed. */
	way = is_served ? way : 2;
	while (left > 0) {
		flag = done = 0;
		switch (way) {
		case 0:
		case 1:
			rc = way == 0 ? MPI_Waitall(count, requests, statuses) : MPI_Testall(count, requests, &flag, statuses);
			if (way == 1 && !flag)
				break;
			left = 0;
			for (at = 0; at < count; at++)
				codes[at] = class_of(rc) == MPI_ERR_IN_STATUS ? statuses[at].MPI_ERROR : rc;
			break;
		case 2:
			left--;
			codes[left] = MPI_Wait(&requests[left], &statuses[left]);
			break;
		case 3:
			rc = MPI_Test(&requests[left - 1], &flag, &statuses[left - 1]);
			if (flag || rc)
				codes[--left] = rc;
			break;
		case 4:
		case 5:
			at = MPI_UNDEFINED;
			rc = way == 4 ? MPI_Waitany(count, requests, &at, some) : MPI_Testany(count, requests, &at, &flag, some);
			if (at != MPI_UNDEFINED && (way == 4 || flag || rc)) {
				statuses[at] = *some;
				codes[at] = rc;
				left--;
			}
			break;
		default:
			rc = way == 6 ? MPI_Waitsome(count, requests, &done, places, some) :
					MPI_Testsome(count, requests, &done, places, some);
			for (at = 0; at < done; at++, left--) {
				statuses[places[at]] = some[at];
				codes[places[at]] = class_of(rc) == MPI_ERR_IN_STATUS ? some[at].MPI_ERROR : rc;
			}
		}
	}
	for (at = 0; at < count; at++)
		if (requests[at] != MPI_REQUEST_NULL)
			fail("request %d is not complete", at);
	free(places);
	free(some);
}

static const struct {
	size_t sent, room;
} of[] = { { 1, 2 },	   { 5, 4000 },	     { 100, 50 },    { 600, 100 },   { 511, 70000 }, { 5000, 70000 },
	   { 5000, 5000 }, { 70001, 70000 }, { 1 << 20, 1 }, { 0, 0 },	     { 3000, 3001 }, { 1 << 20, 5000 } };
enum { OF = sizeof(of) / sizeof(*of) };

/* Shorter and longer messages among others, also with this rank and with nobody. A longer one ends its receive alone. */
static void lengths(void)
{
	enum { ALL = 2 * (OF + 2) };
	MPI_Request requests[ALL];
	MPI_Status statuses[ALL];
	uint8_t *data[ALL];
	int way, at, codes[ALL];

	for (way = 0; way < WAYS; way++) {
		static char name[32];

		snprintf(name, sizeof(name), "lengths, way %d", way);
		at_part(name);
		handled = 0;
		for (at = 0; at < OF; at++) {
			data[at] = incoming(last, at, of[at].room);
			MPI_Irecv(data[at], (int)of[at].room, MPI_BYTE, last, at, comm, &requests[at]);
		}
		data[OF] = incoming(rank, OF, 9000);
		MPI_Irecv(data[OF], 9000, MPI_BYTE, rank, OF, comm, &requests[OF]);
		data[OF + 1] = allocate(9000);
		MPI_Irecv(data[OF + 1], 9000, MPI_BYTE, MPI_PROC_NULL, 0, comm, &requests[OF + 1]);
		for (at = OF + 2; at < ALL; at++) {
			int tag = at - OF - 2, to = tag < OF ? next : tag == OF ? rank : MPI_PROC_NULL;
			size_t bytes = tag < OF ? of[tag].sent : 8000;

			data[at] = to < 0 ? allocate(bytes) : outgoing(to, tag, bytes);
			(at % 2 ? MPI_Isend : MPI_Issend)(data[at], (int)bytes, MPI_BYTE, to, tag, comm, &requests[at]);
		}
		end(way, ALL, requests, statuses, codes);
		for (at = 0; at < OF; at++)
			got(data[at], of[at].room, of[at].sent, &statuses[at], codes[at], last, at);
		got(data[OF], 9000, 8000, &statuses[OF], codes[OF], rank, OF);
		if (statuses[OF + 1].MPI_SOURCE != MPI_PROC_NULL)
			fail("a message of rank %d and not of nobody", statuses[OF + 1].MPI_SOURCE);
		for (at = OF + 1; at < ALL; at++)
			if (codes[at])
				fail("request %d has error %d", at, codes[at]);
		if (!handled)
			fail("the error handler was not called");
		for (at = 0; at < ALL; at++)
			free(data[at]);
	}
}

/* Calls that wait, receives of which are longer or shorter; persistent ones; both ways at once. */
static void calls(void)
{
	enum { SENT = 6000, LONG = 9000, SHORT = 3000, TIMES = 4 };
	MPI_Request requests[2];
	MPI_Status status;
	int time, rc;

	for (time = 0; time < 2 * TIMES; time++) {
		static char name[32];
		/* Open MPI's own call forgets the error of one half. */
		size_t room = time % 2 || (time / 2 == 3 && !is_served) ? LONG : SHORT;
		uint8_t *from = outgoing(next, time, SENT), *to = incoming(last, time, room);

		snprintf(name, sizeof(name), "calls, time %d", time);
		at_part(name);
		switch (time / 2) {
		case 0:
			MPI_Isend(from, SENT, MPI_BYTE, next, time, comm, &requests[0]);
			rc = MPI_Recv(to, (int)room, MPI_BYTE, last, time, comm, &status);
			if (MPI_Wait(&requests[0], MPI_STATUS_IGNORE))
				fail("a send fails");
			break;
		case 1:
			rc = MPI_Sendrecv(from, SENT, MPI_BYTE, next, time, to, (int)room, MPI_BYTE, last, time, comm, &status);
			break;
		case 2:
			MPI_Recv_init(to, (int)room, MPI_BYTE, last, time, comm, &requests[0]);
			MPI_Ssend_init(from, SENT, MPI_BYTE, next, time, comm, &requests[1]);
			MPI_Startall(2, requests);
			if (MPI_Wait(&requests[1], MPI_STATUS_IGNORE))
				fail("a send fails");
			rc = MPI_Wait(&requests[0], &status);
			MPI_Request_free(&requests[0]);
			MPI_Request_free(&requests[1]);
			break;
		default:
#if MPI_VERSION >= 4 || (defined(OMPI_MAJOR_VERSION) && OMPI_MAJOR_VERSION >= 5)
			MPI_Isendrecv(from, SENT, MPI_BYTE, next, time, to, (int)room, MPI_BYTE, last, time, comm, &requests[0]);
			rc = MPI_Wait(&requests[0], &status);
			/* MPICH has another status there. */
			got(to, room, SENT, is_served ? &status : NULL, rc, last, time);
			free(from);
			free(to);
			continue;
#else
			rc = MPI_Sendrecv(from, SENT, MPI_BYTE, next, time, to, (int)room, MPI_BYTE, last, time, comm, &status);
#endif
		}
		got(to, room, SENT, &status, rc, last, time);
		free(from);
		free(to);
	}
}

/* A receive of pairs with a hole, whose message ends in the middle of one. */
static void parts(void)
{
	enum { PAIRS = 3000, SENT = 2 * PAIRS - 501 };
	int lengths[2] = { 1, 1 }, places[2] = { 1, 0 }, at, count;
	uint8_t *from = outgoing(next, 1, 4 * SENT), *plain = allocate(8 * PAIRS), *holes = incoming(last, 1, 12 * PAIRS);
	MPI_Datatype turned, type, row, rows;
	MPI_Request request;
	MPI_Status status;

	at_part("parts");
	MPI_Type_indexed(2, lengths, places, MPI_INT, &turned);
	MPI_Type_create_resized(turned, 0, 12, &type);
	MPI_Type_commit(&type);
	MPI_Type_contiguous(SENT, MPI_INT, &row);
	MPI_Type_dup(row, &rows);
	MPI_Isend(from, 1, rows, next, 1, comm, &request);
	MPI_Type_free(&row);
	MPI_Type_free(&rows);
	MPI_Recv(holes, PAIRS, type, last, 1, comm, &status);
	MPI_Wait(&request, MPI_STATUS_IGNORE);
	MPI_Get_elements(&status, MPI_INT, &count);
	if (count != SENT)
		fail("%d elements of %d", count, (int)SENT);
	for (at = 0; at < PAIRS; at++) {
		memcpy(plain + 8 * at, holes + 12 * at + 4, 4);
		memcpy(plain + 8 * at + 4, holes + 12 * at, 4);
		if (holes[12 * at + 8] != UNTOUCHED)
			fail("bytes beside element %d", at);
	}
	compare(plain, 4 * SENT, last, rank, 1);
	for (at = 4 * SENT; at < 8 * PAIRS; at++)
		if (plain[at] != UNTOUCHED)
			fail("byte %d behind the message", at);
	MPI_Type_free(&turned);
	MPI_Type_free(&type);
	free(from);
	free(plain);
	free(holes);
}

/* A synchronous send is not complete before its receive has started. */
static void synchronous(void)
{
	enum { BYTES = 2000, LOOKS = 300 };
	uint8_t *from = outgoing(next, 2, BYTES), *again = outgoing(next, 2, BYTES), *to = incoming(last, 2, BYTES);
	MPI_Request requests[2];
	int at, flag;

	at_part("synchronous");
	expect(last, 2, 1);
	MPI_Issend(from, BYTES, MPI_BYTE, next, 2, comm, &requests[0]);
	MPI_Ssend_init(again, BYTES, MPI_BYTE, next, 2, comm, &requests[1]);
	MPI_Start(&requests[1]);
	for (at = 0; at < 2 * LOOKS; at++) {
		MPI_Test(&requests[at % 2], &flag, MPI_STATUS_IGNORE);
		if (flag)
			fail("a send is complete before its receive");
	}
	MPI_Barrier(comm);
	for (at = 0; at < 2; at++) {
		memset(to, UNTOUCHED, BYTES);
		MPI_Recv(to, BYTES, MPI_BYTE, last, 2, comm, MPI_STATUS_IGNORE);
		compare(to, BYTES, last, rank, 2);
	}
	MPI_Waitall(2, requests, nowhere);
	MPI_Request_free(&requests[1]);
	free(from);
	free(again);
	free(to);
}

/* Requests that the program gives up: a receive whose request is freed, a send that is cancelled, and a receive that cannot be. */
static void given_up(void)
{
	enum { BYTES = 7000 };
	uint8_t *from = outgoing(next, 3, BYTES);
	volatile uint8_t *to = incoming(last, 3, BYTES);
	MPI_Request request, requests[2];
	MPI_Status status;
	int flag, rc;

	at_part("given up");
	MPI_Irecv((void *)(uintptr_t)to, BYTES, MPI_BYTE, last, 3, comm, &request);
	MPI_Request_free(&request);
	MPI_Send(from, BYTES, MPI_BYTE, next, 3, comm);
	while (to[BYTES - 1] != byte_of(last, rank, 3, BYTES - 1))
		MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
	compare((const uint8_t *)(uintptr_t)to, BYTES, last, rank, 3);
	if (is_served) {
		expect(next, 3, 1);
		expect(last, 3, 1);
		MPI_Irecv((void *)(uintptr_t)to, BYTES, MPI_BYTE, last, 3, comm, &requests[0]);
		rc = MPI_Cancel(&requests[0]);
		if (!rc)
			fail("a receive is cancelled");
		MPI_Isend(from, BYTES, MPI_BYTE, next, 3, comm, &requests[1]);
		MPI_Cancel(&requests[1]);
		MPI_Wait(&requests[1], &status);
		MPI_Test_cancelled(&status, &flag);
		MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
		if (flag)
			fail("a send of which the message has come is cancelled");
	}
	free(from);
	free((void *)(uintptr_t)to);
}

/* More messages under way than the service processes take at once. All ranks receive first from a rank that sends to another one first. */
static void thousands(void)
{
	enum { STREAMS = 20, EACH = 130, PEERS = 2, ALL = PEERS * STREAMS * EACH, BYTES = 40 };
	MPI_Request *requests = allocate(2 * ALL * sizeof(*requests));
	uint8_t *from = allocate(ALL * BYTES), *to = allocate(ALL * BYTES);
	int half, at;

	at_part("thousands");
	for (half = 0; half < 2; half++)
		for (at = 0; at < ALL; at++) {
			int first = at < ALL / 2, peer = first ? next : last, tag = at % STREAMS;
			unsigned number = (unsigned)(at % (ALL / 2));
			uint8_t *data = (half ? from : to) + BYTES * at;

			expect(peer, tag, 1);
			if (half) {
				fill(data, BYTES, rank, peer, number);
				MPI_Isend(data, BYTES, MPI_BYTE, peer, tag, comm, &requests[ALL + at]);
			} else {
				MPI_Irecv(data, BYTES, MPI_BYTE, peer, tag, comm, &requests[at]);
			}
		}
	MPI_Waitall(2 * ALL, requests, nowhere);
	for (at = 0; at < ALL; at++)
		compare(to + BYTES * at, BYTES, at < ALL / 2 ? next : last, rank, (unsigned)(at % (ALL / 2)));
	free(requests);
	free(from);
	free(to);
}

/* --- Threads, each with a communicator of its own --- */

enum { ROUNDS = 12, MOST = 30000 };
static MPI_Comm of_thread[2], between;

static void *persistently(void *argument)
{
	uint8_t *from = outgoing(next, 4, MOST), *to = incoming(last, 4, MOST);
	MPI_Request requests[2];
	MPI_Status statuses[2];
	int round, flag;

	expect(next, 4, ROUNDS - 1);
	expect(last, 4, ROUNDS - 1);
	MPI_Recv_init(to, MOST, MPI_BYTE, last, 4, of_thread[0], &requests[0]);
	MPI_Send_init(from, MOST, MPI_BYTE, next, 4, of_thread[0], &requests[1]);
	for (round = 0; round < ROUNDS; round++) {
		memset(to, UNTOUCHED, MOST);
		MPI_Startall(2, requests);
		if (round % 2)
			MPI_Waitall(2, requests, statuses);
		else
			for (flag = 0; !flag;)
				MPI_Testall(2, requests, &flag, statuses);
		got(to, MOST, MOST, &statuses[0], MPI_SUCCESS, last, 4);
	}
	MPI_Request_free(&requests[0]);
	MPI_Request_free(&requests[1]);
	free(from);
	free(to);
	return argument;
}

/* Buffered sends, and both ways at once. */
static void *mixed(void *argument)
{
	int round;

	for (round = 0; round < ROUNDS; round++) {
		size_t bytes = 100 + (size_t)round * 2000;
		uint8_t *from = outgoing(next, 5, bytes), *to = incoming(last, 5, MOST);
		MPI_Request request;
		MPI_Status status;

		if (round % 2) {
			MPI_Bsend(from, (int)bytes, MPI_BYTE, next, 5, of_thread[1]);
			MPI_Recv(to, MOST, MPI_BYTE, last, 5, of_thread[1], &status);
		} else {
#if MPI_VERSION >= 4 || (defined(OMPI_MAJOR_VERSION) && OMPI_MAJOR_VERSION >= 5)
			MPI_Isendrecv(from, (int)bytes, MPI_BYTE, next, 5, to, MOST, MPI_BYTE, last, 5, of_thread[1], &request);
#else
			MPI_Irecv(to, MOST, MPI_BYTE, last, 5, of_thread[1], &request);
			MPI_Send(from, (int)bytes, MPI_BYTE, next, 5, of_thread[1]);
#endif
			MPI_Wait(&request, &status);
		}
		got(to, MOST, bytes, is_served ? &status : NULL, MPI_SUCCESS, last, 5);
		free(from);
		free(to);
	}
	return argument;
}

/* Messages and collectives between two groups: they go by the MPI. MPICH tells UCC that the process has one thread, whatever thread
 * level the program has, so a collective corrupts UCC's queue while another thread is in the MPI. */
static void *by_groups(void *argument)
{
	int size, me, round;

	MPI_Comm_remote_size(between, &size);
	MPI_Comm_rank(between, &me);
	for (round = 0; round < ROUNDS; round++) {
		long mine = rank, sum = 0;

		if (me == 0) {
			uint8_t *from = allocate(MOST), *to = allocate(MOST);
			MPI_Request request;

			fill(from, MOST, rank < 2, 0, (unsigned)round);
			MPI_Isend(from, MOST, MPI_BYTE, 0, 6, between, &request);
			MPI_Recv(to, MOST, MPI_BYTE, MPI_ANY_SOURCE, 6, between, MPI_STATUS_IGNORE);
			MPI_Wait(&request, MPI_STATUS_IGNORE);
			compare(to, MOST, rank >= 2, 0, (unsigned)round);
			free(from);
			free(to);
		}
#ifndef MPICH_VERSION
		MPI_Allreduce(&mine, &sum, 1, MPI_LONG, MPI_SUM, between);
		mine = rank < 2 ? (long)ranks * (ranks - 1) / 2 - 1 : 1;
		if (sum != mine)
			fail("the other group has sum %ld, not %ld", sum, mine);
#else
		(void)mine, (void)sum;
#endif
	}
	return argument;
}

static void threads(MPI_Info info)
{
	static void *(*const bodies[])(void *) = { persistently, mixed, by_groups };
	enum { THREADS = sizeof(bodies) / sizeof(*bodies) };
	size_t room = ROUNDS * (MOST + MPI_BSEND_OVERHEAD);
	void *buffer = allocate(room), *detached;
	pthread_t thread[THREADS];
	MPI_Comm half;
	int at, size;

	at_part("threads");
	MPI_Buffer_attach(buffer, (int)room);
	for (at = 0; at < 2; at++)
		MPI_Comm_dup_with_info(MPI_COMM_WORLD, info, &of_thread[at]);
	MPI_Comm_split(MPI_COMM_WORLD, rank < 2, rank, &half);
	MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, rank < 2 ? 2 : 0, 8, &between);
	for (at = 0; at < THREADS; at++)
		pthread_create(&thread[at], NULL, bodies[at], NULL);
	for (at = 0; at < THREADS; at++)
		pthread_join(thread[at], NULL);
	MPI_Buffer_detach(&detached, &size);
	for (at = 0; at < 2; at++)
		MPI_Comm_free(&of_thread[at]);
	MPI_Comm_free(&between);
	MPI_Comm_free(&half);
	free(buffer);
}

/* A communicator of this rank alone, whose ranks have asked. */
static void alone(MPI_Info info)
{
	uint8_t *from = outgoing(rank, 0, 5000), *to = incoming(rank, 0, 6000);
	MPI_Status status;
	MPI_Comm self;

	at_part("alone");
	MPI_Comm_dup_with_info(MPI_COMM_SELF, info, &self);
	MPI_Sendrecv(from, 5000, MPI_BYTE, 0, 0, to, 6000, MPI_BYTE, 0, 0, self, &status);
	got(to, 6000, 5000, NULL, MPI_SUCCESS, rank, 0);
	MPI_Comm_free(&self);
	free(from);
	free(to);
}

static void handle(MPI_Comm *of, int *code, ...)
{
	handled += *of == comm && *code != MPI_SUCCESS;
}

int main(int count, char **words)
{
	int provided, at;
	MPI_Errhandler handler;
	MPI_Info info;

	MPI_Init_thread(&count, &words, MPI_THREAD_MULTIPLE, &provided);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (ranks < 3 || ranks > 16 || provided < MPI_THREAD_MULTIPLE)
		fail("%d ranks with thread level %d", ranks, provided);
	next = (rank + 1) % ranks;
	last = (rank + ranks - 1) % ranks;
	is_served = count > 1 && !strcmp(words[1], "served");
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Info_create(&info);
	MPI_Info_set(info, "xgvmi_messages", "1");
	MPI_Comm_dup_with_info(MPI_COMM_WORLD, info, &comm);
	/* Errors of its messages end no job: those of MPI_COMM_WORLD would. */
	MPI_Comm_create_errhandler(handle, &handler);
	MPI_Comm_set_errhandler(comm, handler);
	lengths();
	calls();
	parts();
	synchronous();
	given_up();
	thousands();
	threads(info);
	alone(info);
	at_part("end");
	for (at = 0; at < ranks; at++) {
		if (at == rank) {
			printf("rank %d has %lu messages\n", rank, expected);
			fflush(stdout);
		}
		MPI_Barrier(MPI_COMM_WORLD);
	}
	MPI_Errhandler_free(&handler);
	MPI_Comm_free(&comm);
	MPI_Info_free(&info);
	MPI_Finalize();
	return 0;
}
