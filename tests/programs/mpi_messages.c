/* Messages on communicators whose info asks for the service processes. It knows only MPI, and compares every byte.
 *
 *   mpi_messages [served | endless]
 *
 * With "served" calls that break the promise of the info must fail. Each rank prints "rank R has N messages" at the end: how many
 * sends and receives the service processes can serve. With "endless" the ranks exchange until calls fail, and rank 0 prints how many
 * ranks have seen it. The first error is printed on standard error and aborts the job.
 */
#include "mpi_side.h"
#include <pthread.h>
#include <string.h>

enum { LEAST = 4096, TAGS = 4096, MANY = 300 };

static MPI_Comm comm, other;
/* GCC takes the constant for an array without elements. */
static MPI_Status *volatile nowhere = MPI_STATUSES_IGNORE;
static unsigned long expected;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Counts a send or a receive. */
static void expect(int peer, int tag, size_t bytes)
{
	pthread_mutex_lock(&lock);
	expected += bytes >= LEAST && peer != rank && tag < TAGS / (ranks - 1);
	pthread_mutex_unlock(&lock);
}

static void asked(MPI_Info *info)
{
	char text[16];

	snprintf(text, sizeof(text), "%d", LEAST);
	MPI_Info_create(info);
	MPI_Info_set(*info, "xgvmi_messages", text);
}

static uint8_t *outgoing(int to, int tag, size_t bytes)
{
	uint8_t *data = allocate(bytes);

	fill(data, bytes, rank, to, (unsigned)tag);
	expect(to, tag, bytes);
	return data;
}

static uint8_t *incoming(int from, int tag, size_t bytes)
{
	expect(from, tag, bytes);
	return allocate(bytes);
}

static void told(const MPI_Status *status, int from, int tag, size_t bytes)
{
	int count, elements;

	MPI_Get_count(status, MPI_BYTE, &count);
	MPI_Get_elements(status, MPI_BYTE, &elements);
	if (status->MPI_SOURCE != from || status->MPI_TAG != tag || (size_t)count != bytes || elements != count)
		fail("%d and %d bytes from %d with tag %d, not %zu from %d with %d", count, elements, status->MPI_SOURCE,
		     status->MPI_TAG, bytes, from, tag);
	if (bytes % 4 == 0) {
		MPI_Get_count(status, MPI_INT, &count);
		if ((size_t)count != bytes / 4)
			fail("%d integers, not %zu", count, bytes / 4);
	}
}

/* Ends all requests in one way. Statuses may be lost. */
static void end(int way, int count, MPI_Request *requests, MPI_Status *statuses)
{
	int at, flag = 0, left = count, *indices = allocate((size_t)count * sizeof(int));
	MPI_Status status;

	for (at = 0; way != 0 && way != 1 && at < count; at++)
		statuses[at].MPI_TAG = -7;
	while (left > 0) {
		int done = 0;

		switch (way) {
		case 0:
			MPI_Waitall(count, requests, statuses);
			left = 0;
			break;
		case 1:
			MPI_Testall(count, requests, &flag, statuses);
			left = flag ? 0 : left;
			break;
		case 2:
			left--;
			MPI_Wait(&requests[left], &statuses[left]);
			break;
		case 3:
			MPI_Test(&requests[left - 1], &flag, &statuses[left - 1]);
			left -= flag;
			break;
		case 4:
			MPI_Waitany(count, requests, &at, &status);
			statuses[at] = status;
			left--;
			break;
		case 5:
			MPI_Testany(count, requests, &at, &flag, &status);
			if (flag && at != MPI_UNDEFINED) {
				statuses[at] = status;
				left--;
			}
			break;
		case 6:
		case 7:
			if (way == 6)
				MPI_Waitsome(count, requests, &done, indices, statuses);
			else
				MPI_Testsome(count, requests, &done, indices, statuses);
			for (at = 0; at < done; at++)
				if (requests[indices[at]] != MPI_REQUEST_NULL)
					fail("a request that is complete");
			left -= done;
			break;
		default:
			MPI_Request_get_status(requests[left - 1], &flag, &statuses[left - 1]);
			if (flag) {
				left--;
				MPI_Wait(&requests[left], &status);
			}
		}
	}
	if (way == 4) {
		MPI_Waitany(count, requests, &at, &status);
		if (at != MPI_UNDEFINED)
			fail("request %d without one", at);
	}
	free(indices);
}

/* All to all, with lengths around the threshold. */
static void lengths(void)
{
	static const size_t of[] = { 0, 1, LEAST - 1, LEAST, LEAST + 1, 65536, (1 << 20) + 4 };
	enum { OF = sizeof(of) / sizeof(*of), WAYS = 9 };
	int way, peer, at, tag;

	running = "lengths";
	for (way = 0; way < WAYS; way++) {
		MPI_Request *requests = allocate(2 * (size_t)ranks * OF * sizeof(*requests));
		MPI_Status *statuses = allocate(2 * (size_t)ranks * OF * sizeof(*statuses));
		uint8_t **data = allocate(2 * (size_t)ranks * OF * sizeof(*data));
		int count = 0, half;

		for (peer = 0; peer < ranks; peer++)
			for (at = OF - 1; at >= 0; at--, count++) {
				data[count] = incoming(peer, at, of[at]);
				MPI_Irecv(data[count], (int)of[at], MPI_BYTE, peer, at, comm, &requests[count]);
			}
		half = count;
		for (peer = 0; peer < ranks; peer++)
			for (at = 0; at < OF; at++, count++) {
				data[count] = outgoing(peer, at, of[at]);
				(at % 2 ? MPI_Isend : MPI_Issend)(data[count], (int)of[at], MPI_BYTE, peer, at, comm, &requests[count]);
			}
		end(way, count, requests, statuses);
		for (at = 0; at < count; at++) {
			peer = at / OF;
			tag = OF - 1 - at % OF;
			if (at < half) {
				compare(data[at], of[tag], peer, rank, (unsigned)tag);
				if (way != 6 && way != 7)
					told(&statuses[at], peer, tag, of[tag]);
			}
			free(data[at]);
		}
		free(requests);
		free(statuses);
		free(data);
	}
}

/* Blocking calls in a ring; the receive of a rank is posted, and then it calls something else. */
static void blocking(void)
{
	enum { BYTES = 100000, TIMES = 5 };
	int next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks, time;
	MPI_Status status;
	MPI_Request request;

	running = "blocking";
	for (time = 0; time < TIMES; time++) {
		uint8_t *from = outgoing(next, time, BYTES), *to = incoming(last, time, BYTES);

		switch (time) {
		case 0:
			MPI_Irecv(to, BYTES, MPI_BYTE, last, time, comm, &request);
			MPI_Barrier(comm);
			MPI_Rsend(from, BYTES, MPI_BYTE, next, time, comm);
			MPI_Barrier(comm);
			MPI_Wait(&request, &status);
			break;
		case 1:
			if (rank % 2) {
				MPI_Recv(to, BYTES / 4, MPI_INT, last, time, comm, &status);
				MPI_Ssend(from, BYTES, MPI_BYTE, next, time, comm);
			} else {
				MPI_Send(from, BYTES / 4, MPI_INT, next, time, comm);
				MPI_Recv(to, BYTES, MPI_BYTE, last, time, comm, &status);
			}
			break;
		case 2:
			MPI_Sendrecv(from, BYTES, MPI_BYTE, next, time, to, BYTES, MPI_BYTE, last, time, comm, &status);
			break;
		case 3:
			memcpy(to, from, BYTES);
			MPI_Sendrecv_replace(to, BYTES / 4, MPI_INT, next, time, last, time, comm, &status);
			break;
		default:
			/* The program forgets its request. */
			MPI_Isend(from, BYTES, MPI_BYTE, next, time, comm, &request);
			MPI_Request_free(&request);
			MPI_Recv(to, BYTES, MPI_BYTE, last, time, comm, &status);
			MPI_Barrier(comm);
		}
		told(&status, last, time, BYTES);
		compare(to, BYTES, last, rank, (unsigned)time);
		free(to);
		/* The last one may be under way, as far as this rank knows. */
		if (time + 1 < TIMES)
			free(from);
	}
}

/* Elements that are not what their bytes are; the types end before the messages. */
static void types(void)
{
	enum { PAIRS = 5000 };
	int next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks, at, lengths[2] = { 1, 1 }, places[2] = { 1, 0 };
	uint8_t *bytes = outgoing(next, 9, 8 * PAIRS), *got = incoming(last, 9, 8 * PAIRS), *holes = allocate(12 * PAIRS);
	MPI_Datatype turned, type;
	MPI_Request requests[2];

	running = "types";
	MPI_Type_indexed(2, lengths, places, MPI_INT, &turned);
	MPI_Type_create_resized(turned, 0, 12, &type);
	MPI_Type_commit(&type);
	memset(holes, 0xee, 12 * PAIRS);
	MPI_Irecv(holes, PAIRS, type, last, 9, comm, &requests[0]);
	MPI_Isend(bytes, 2 * PAIRS, MPI_INT, next, 9, comm, &requests[1]);
	MPI_Type_free(&turned);
	MPI_Type_free(&type);
	MPI_Waitall(2, requests, nowhere);
	for (at = 0; at < PAIRS; at++) {
		memcpy(got + 8 * at, holes + 12 * at + 4, 4);
		memcpy(got + 8 * at + 4, holes + 12 * at, 4);
		if (holes[12 * at + 8] != 0xee || holes[12 * at + 11] != 0xee)
			fail("bytes beside element %d", at);
	}
	compare(got, 8 * PAIRS, last, rank, 9);
	free(bytes);
	free(got);
	free(holes);
}

/* More messages of one tag than may be under way at a service process, in other calls in between; and tags that are too large. */
static void many(void)
{
	enum { ALL = 2 * (MANY + 2) };
	int next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks, at;
	MPI_Request requests[ALL];
	uint8_t *data[ALL];

	running = "many";
	for (at = 0; at < ALL; at++) {
		int number = at % (ALL / 2), tag = number < MANY ? 3 : 30000;

		if (at < ALL / 2) {
			data[at] = incoming(last, tag, LEAST);
			MPI_Irecv(data[at], LEAST, MPI_BYTE, last, tag, comm, &requests[at]);
		} else {
			data[at] = allocate(LEAST);
			fill(data[at], LEAST, rank, next, (unsigned)number);
			expect(next, tag, LEAST);
			MPI_Isend(data[at], LEAST, MPI_BYTE, next, tag, comm, &requests[at]);
		}
	}
	MPI_Barrier(comm);
	MPI_Waitall(ALL / 2, requests + ALL / 2, nowhere);
	MPI_Barrier(comm);
	MPI_Waitall(ALL / 2, requests, nowhere);
	for (at = 0; at < ALL; at++) {
		if (at < ALL / 2)
			compare(data[at], LEAST, last, rank, (unsigned)at);
		free(data[at]);
	}
}

/* Equal tags of two communicators, of which the receiver takes the later one first; one has other ranks in another order. */
static void communicators(void)
{
	enum { BYTES = 50000 };
	int me, size, next, last, at, world[2];
	uint8_t *data[4];
	MPI_Request requests[4];
	MPI_Comm of[2] = { comm, other };

	running = "communicators";
	MPI_Comm_rank(other, &me);
	MPI_Comm_size(other, &size);
	for (at = 0; at < 2; at++) {
		if (at == 0) {
			next = (rank + 1) % ranks;
			last = (rank + ranks - 1) % ranks;
			world[0] = next;
			world[1] = last;
		} else {
			next = (me + 1) % size;
			last = (me + size - 1) % size;
			/* Ranks are in reverse order. */
			world[0] = ranks - 1 - next;
			world[1] = ranks - 1 - last;
		}
		data[at] = outgoing(world[0], at + 5, BYTES);
		MPI_Isend(data[at], BYTES, MPI_BYTE, next, 0, of[at], &requests[at]);
	}
	for (at = 1; at >= 0; at--) {
		last = at == 0 ? (rank + ranks - 1) % ranks : (me + size - 1) % size;
		world[1] = at == 0 ? last : ranks - 1 - last;
		data[2] = incoming(world[1], 0, BYTES);
		MPI_Recv(data[2], BYTES, MPI_BYTE, last, 0, of[at], MPI_STATUS_IGNORE);
		compare(data[2], BYTES, world[1], rank, (unsigned)at + 5);
		free(data[2]);
	}
	MPI_Waitall(2, requests, nowhere);
	free(data[0]);
	free(data[1]);
}

/* Short messages with wildcards and probes beside, on the same communicator. */
static void beside(void)
{
	int next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks, count, number = 77;
	uint8_t *from = outgoing(next, 1, LEAST), *to = incoming(last, 1, LEAST);
	MPI_Request requests[2];
	MPI_Status status;

	running = "beside";
	MPI_Irecv(to, LEAST, MPI_BYTE, last, 1, comm, &requests[0]);
	MPI_Isend(from, LEAST, MPI_BYTE, next, 1, comm, &requests[1]);
	MPI_Send(&number, 1, MPI_INT, next, 1, comm);
	number = 0;
	MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &status);
	MPI_Get_count(&status, MPI_INT, &count);
	MPI_Recv(&number, count, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &status);
	if (count != 1 || number != 77 || status.MPI_SOURCE != last)
		fail("%d integers, %d from %d", count, number, status.MPI_SOURCE);
	MPI_Waitall(2, requests, nowhere);
	compare(to, LEAST, last, rank, 1);
	free(from);
	free(to);
}

static void *exchange(void *argument)
{
	int tag = *(int *)argument, next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks, time;

	for (time = 0; time < 20; time++) {
		size_t bytes = LEAST + 1000 * (size_t)time;
		uint8_t *from = outgoing(next, tag, bytes), *to = incoming(last, tag, bytes);
		MPI_Request requests[2];

		MPI_Irecv(to, (int)bytes, MPI_BYTE, last, tag, comm, &requests[0]);
		MPI_Isend(from, (int)bytes, MPI_BYTE, next, tag, comm, &requests[1]);
		MPI_Waitall(2, requests, nowhere);
		compare(to, bytes, last, rank, (unsigned)tag);
		free(from);
		free(to);
	}
	return NULL;
}

static void threads(void)
{
	pthread_t threads[2];
	int at, tags[2] = { 20, 21 };

	running = "threads";
	for (at = 0; at < 2; at++)
		pthread_create(&threads[at], NULL, exchange, &tags[at]);
	for (at = 0; at < 2; at++)
		pthread_join(threads[at], NULL);
}

/* What the promise excludes. */
static void broken(void)
{
	static uint8_t data[LEAST];
	int next = (rank + 1) % ranks;
	MPI_Request request;

	running = "broken promises";
	MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
	if (!MPI_Recv(data, LEAST, MPI_BYTE, MPI_ANY_SOURCE, 0, comm, MPI_STATUS_IGNORE) ||
	    !MPI_Irecv(data, LEAST, MPI_BYTE, next, MPI_ANY_TAG, comm, &request) ||
	    !MPI_Send_init(data, LEAST, MPI_BYTE, next, 0, comm, &request) ||
	    !MPI_Recv_init(data, LEAST, MPI_BYTE, next, 0, comm, &request) ||
	    !MPI_Bsend(data, LEAST, MPI_BYTE, next, 0, comm))
		fail("a call is accepted");
	MPI_Comm_set_errhandler(comm, MPI_ERRORS_ARE_FATAL);
}

/* Exchanges until a call fails at each rank. Then all further messages fail at once. */
static void endless(void)
{
	enum { BYTES = 300000, GOING = 20 };
	int next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks, time, rc = 0, told = 1;
	uint8_t *from = allocate(BYTES), *to = allocate(BYTES);
	MPI_Request requests[2];

	running = "endless";
	MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	for (time = 0; !rc; time++) {
		fill(from, BYTES, rank, next, (unsigned)time);
		if (time == GOING && rank == 0) {
			puts("going");
			fflush(stdout);
		}
		rc = MPI_Irecv(to, BYTES, MPI_BYTE, last, 1, comm, &requests[0]);
		rc = rc ? rc : MPI_Isend(from, BYTES, MPI_BYTE, next, 1, comm, &requests[1]);
		rc = rc ? rc : MPI_Waitall(2, requests, nowhere);
		if (!rc)
			compare(to, BYTES, last, rank, (unsigned)time);
	}
	if (!MPI_Send(from, BYTES, MPI_BYTE, next, 2, comm))
		fail("a message after the failure");
	if (rank > 0) {
		MPI_Send(&told, 1, MPI_INT, 0, 3, MPI_COMM_WORLD);
		MPI_Recv(&told, 1, MPI_INT, 0, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	} else {
		for (next = 1; next < ranks; next++) {
			MPI_Recv(&time, 1, MPI_INT, MPI_ANY_SOURCE, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			told += time;
		}
		printf("%d of %d ranks are told\n", told, ranks);
		fflush(stdout);
		MPI_Abort(MPI_COMM_WORLD, 3);
	}
}

int main(int count, char **words)
{
	int provided, at;
	MPI_Info info;

	MPI_Init_thread(&count, &words, MPI_THREAD_MULTIPLE, &provided);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (ranks < 3 || ranks > 16 || provided < MPI_THREAD_MULTIPLE)
		fail("%d ranks with thread level %d", ranks, provided);
	MPI_Barrier(MPI_COMM_WORLD);
	asked(&info);
	MPI_Comm_dup_with_info(MPI_COMM_WORLD, info, &comm);
	MPI_Comm_split(MPI_COMM_WORLD, 0, ranks - rank, &other);
	MPI_Comm_set_info(other, info);
	if (count > 1 && !strcmp(words[1], "endless"))
		endless();
	lengths();
	blocking();
	types();
	many();
	communicators();
	beside();
	threads();
	if (count > 1 && !strcmp(words[1], "served"))
		broken();
	running = "end";
	/* More than the messages: those of other communicators go by the MPI. */
	MPI_Barrier(comm);
	for (at = 0; at < ranks; at++) {
		if (at == rank) {
			printf("rank %d has %lu messages\n", rank, expected);
			fflush(stdout);
		}
		MPI_Barrier(MPI_COMM_WORLD);
	}
	MPI_Comm_free(&other);
	MPI_Comm_free(&comm);
	MPI_Info_free(&info);
	MPI_Finalize();
	return 0;
}
