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
/* The service processes serve what they can. */
static int is_served;
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

/* Persistent requests of all modes: inactive ones among active ones, started again, ended in all ways, freed while active; types
 * that end before; a short one and one of another communicator beside. A message of one may be received by a call that is not. */
static void persistent(void)
{
	enum { BYTES = 20000, MODES = 5, ROUNDS = 9, EACH = 2 * MODES };
	int next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks, at, round, flag;
	MPI_Request requests[EACH + 3], inactive;
	MPI_Status statuses[EACH + 3];
	uint8_t *data[EACH], room[MODES * (BYTES + MPI_BSEND_OVERHEAD)];
	MPI_Datatype four;
	void *detached;

	running = "persistent";
	MPI_Buffer_attach(room, sizeof(room));
	MPI_Type_contiguous(4, MPI_BYTE, &four);
	MPI_Type_commit(&four);
	for (at = 0; at < EACH; at++)
		data[at] = allocate(BYTES);
	for (at = 0; at < MODES; at++) {
		MPI_Recv_init(data[at], BYTES / 4, four, last, at, comm, &requests[at]);
		(at == 0 ? MPI_Send_init : at == 1 ? MPI_Ssend_init : at == 2 ? MPI_Bsend_init : at == 3 ? MPI_Rsend_init : MPI_Send_init)(
			data[MODES + at], BYTES, MPI_BYTE, next, at, comm, &requests[MODES + at]);
	}
	MPI_Type_free(&four);
	MPI_Recv_init(&flag, 1, MPI_INT, last, 5, comm, &requests[EACH]);
	MPI_Send_init(&rank, 1, MPI_INT, next, 5, comm, &requests[EACH + 1]);
	requests[EACH + 2] = MPI_REQUEST_NULL;
	MPI_Recv_init(data[0], BYTES, MPI_BYTE, last, 0, comm, &inactive);
	for (round = 0; round < ROUNDS; round++) {
		static char name[32];

		snprintf(name, sizeof(name), "persistent, round %d", round);
		running = name;
		for (at = 0; at < MODES; at++) {
			memset(data[at], 0xee, BYTES);
			fill(data[MODES + at], BYTES, rank, next, (unsigned)(100 * round + at));
			expect(next, at, BYTES);
			expect(last, at, BYTES);
		}
		MPI_Startall(MODES, requests);
		MPI_Start(&requests[EACH]);
		/* A ready send has its receive. */
		MPI_Barrier(comm);
		MPI_Startall(MODES, requests + MODES);
		MPI_Start(&requests[EACH + 1]);
		switch (round) {
		case 0:
			MPI_Waitall(EACH + 3, requests, statuses);
			break;
		case 1:
			for (flag = 0; !flag;)
				MPI_Testall(EACH + 3, requests, &flag, statuses);
			break;
		case 2:
		case 3: {
			int ended, which;

			for (ended = 0; ended < EACH + 2; ended += which != MPI_UNDEFINED) {
				MPI_Status status;

				if (round == 2)
					MPI_Waitany(EACH + 3, requests, &which, &status);
				else
					MPI_Testany(EACH + 3, requests, &which, &flag, &status);
				if (round == 3 && !flag)
					which = MPI_UNDEFINED;
				if (which != MPI_UNDEFINED)
					statuses[which] = status;
			}
			MPI_Waitany(EACH + 3, requests, &which, MPI_STATUS_IGNORE);
			if (which != MPI_UNDEFINED)
				fail("request %d is complete twice", which);
			break;
		}
		case 4:
		case 5: {
			int ended = 0, some, places[EACH + 3];
			MPI_Status found[EACH + 3];

			while (ended < EACH + 2) {
				if (round == 4)
					MPI_Waitsome(EACH + 3, requests, &some, places, found);
				else
					MPI_Testsome(EACH + 3, requests, &some, places, found);
				ended += some;
				for (at = 0; at < some; at++)
					statuses[places[at]] = found[at];
			}
			MPI_Testsome(EACH + 3, requests, &some, places, found);
			if (some != MPI_UNDEFINED)
				fail("%d requests are complete twice", some);
			break;
		}
		case 6:
			for (at = EACH + 1; at >= 0; at--)
				for (flag = 0; !flag;)
					MPI_Test(&requests[at], &flag, &statuses[at]);
			break;
		case 7:
			for (at = 0; at < EACH + 2; at++) {
				/* MPICH ends its own requests there. */
				for (flag = !is_served; !flag;)
					MPI_Request_get_status(requests[at], &flag, &statuses[at]);
				if (at < MODES && is_served)
					told(&statuses[at], last, at, BYTES);
				MPI_Wait(&requests[at], &statuses[at]);
			}
			break;
		default:
			for (at = 0; at < EACH + 2; at++)
				MPI_Wait(&requests[at], &statuses[at]);
		}
		for (at = 0; at < MODES; at++) {
			told(&statuses[at], last, at, BYTES);
			compare(data[at], BYTES, last, rank, (unsigned)(100 * round + at));
		}
		MPI_Test(&inactive, &flag, &statuses[0]);
		MPI_Get_count(&statuses[0], MPI_BYTE, &at);
		if (!flag || at != 0 || statuses[0].MPI_SOURCE != MPI_ANY_SOURCE)
			fail("an inactive request is not complete");
	}
	/* One is freed under way, and its partner is no persistent one. */
	fill(data[MODES], BYTES, rank, next, 77);
	expect(next, 0, BYTES);
	expect(last, 0, BYTES);
	MPI_Start(&requests[MODES]);
	MPI_Request_free(&requests[MODES]);
	MPI_Recv(data[0], BYTES, MPI_BYTE, last, 0, comm, MPI_STATUS_IGNORE);
	compare(data[0], BYTES, last, rank, 77);
	MPI_Barrier(comm);
	for (at = 0; at < EACH + 2; at++)
		if (requests[at] != MPI_REQUEST_NULL)
			MPI_Request_free(&requests[at]);
	MPI_Request_free(&inactive);
	MPI_Buffer_detach(&detached, &flag);
	if (detached != room || flag != (int)sizeof(room))
		fail("another buffer of %d bytes", flag);
	for (at = 0; at < EACH; at++)
		free(data[at]);
}

/* A send that is complete though nobody receives it yet, its memory used again; and one for which the buffer has no room. */
static void buffered(void)
{
	enum { BYTES = 30000, TIMES = 3 };
	int next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks, time, size;
	size_t room = TIMES * (BYTES + MPI_BSEND_OVERHEAD);
	uint8_t *buffer = allocate(room), *from = allocate(BYTES), *to = allocate(BYTES);
	MPI_Request request;
	void *detached;

	running = "buffered";
	MPI_Buffer_attach(buffer, (int)room);
	for (time = 0; time < TIMES; time++) {
		fill(from, BYTES, rank, next, (unsigned)time);
		expect(next, 2, BYTES);
		expect(last, 2, BYTES);
		if (time % 2 == 0) {
			MPI_Bsend(from, BYTES, MPI_BYTE, next, 2, comm);
		} else {
			MPI_Ibsend(from, BYTES, MPI_BYTE, next, 2, comm, &request);
			MPI_Wait(&request, MPI_STATUS_IGNORE);
		}
		memset(from, 0xee, BYTES);
	}
	MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
	MPI_Barrier(comm);
	/* An MPI may have passed on earlier ones. */
	if (is_served && !MPI_Bsend(from, BYTES, MPI_BYTE, next, 2, comm))
		fail("a message beyond the buffer");
	MPI_Comm_set_errhandler(comm, MPI_ERRORS_ARE_FATAL);
	MPI_Barrier(comm);
	for (time = 0; time < TIMES; time++) {
		MPI_Recv(to, BYTES, MPI_BYTE, last, 2, comm, MPI_STATUS_IGNORE);
		compare(to, BYTES, last, rank, (unsigned)time);
	}
	MPI_Buffer_detach(&detached, &size);
	if (detached != buffer || (size_t)size != room)
		fail("another buffer of %d bytes", size);
	free(buffer);
	free(from);
	free(to);
}

#if MPI_VERSION >= 4 || (defined(OMPI_MAJOR_VERSION) && OMPI_MAJOR_VERSION >= 5)
/* A receive and a send as one request: both served, one of them short, one to nobody, and one that replaces. */
static void together(void)
{
	enum { BYTES = 40000, TIMES = 4 };
	int next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks, time;
	MPI_Request requests[TIMES];
	MPI_Status statuses[TIMES];
	uint8_t *from[TIMES], *to[TIMES];

	running = "together";
	for (time = 0; time < TIMES; time++) {
		/* The first rank's receive is short, so the last rank's send is. */
		size_t sent = time == 1 && next == 0 ? 8 : BYTES, received = time == 1 && rank == 0 ? 8 : BYTES;
		int target = time == 2 && rank == 0 ? MPI_PROC_NULL : next, source = time == 2 && last == 0 ? MPI_PROC_NULL : last;

		from[time] = allocate(BYTES);
		fill(from[time], sent, rank, next, (unsigned)time);
		to[time] = allocate(BYTES);
		if (target >= 0)
			expect(target, time, sent);
		if (source >= 0)
			expect(source, time, received);
		if (time < 3) {
			MPI_Isendrecv(from[time], (int)sent, MPI_BYTE, target, time, to[time], (int)received, MPI_BYTE, source, time, comm,
				      &requests[time]);
		} else {
			memcpy(to[time], from[time], BYTES);
			MPI_Isendrecv_replace(to[time], BYTES / 4, MPI_INT, target, time, source, time, comm, &requests[time]);
		}
	}
	MPI_Barrier(comm);
	MPI_Waitall(TIMES, requests, statuses);
	for (time = 0; time < TIMES; time++) {
		size_t received = time == 1 && rank == 0 ? 8 : BYTES;
		int source = time == 2 && last == 0 ? MPI_PROC_NULL : last;

		/* MPICH has another status there. */
		if (is_served)
			told(&statuses[time], source, source < 0 ? MPI_ANY_TAG : time, source < 0 ? 0 : received);
		if (source >= 0)
			compare(to[time], received, last, rank, (unsigned)time);
		free(from[time]);
		free(to[time]);
	}
}
#else
static void together(void) {}
#endif

/* Any messages on a communicator: wildcards, probes, a receive that is longer, one that is cancelled. None is served. */
static void free_for_all(MPI_Comm of, const char *what)
{
	enum { BYTES = 3 * LEAST, ROOM = 5 * LEAST };
	int me, size, next, last, count, flag;
	uint8_t *from = allocate(BYTES), *to = allocate(ROOM);
	MPI_Request request;
	MPI_Message message;
	MPI_Status status;

	running = what;
	MPI_Comm_rank(of, &me);
	MPI_Comm_size(of, &size);
	next = (me + 1) % size;
	last = (me + size - 1) % size;
	fill(from, BYTES, me, next, 9);
	MPI_Irecv(to, ROOM, MPI_BYTE, MPI_ANY_SOURCE, 99, of, &request);
	MPI_Cancel(&request);
	MPI_Wait(&request, &status);
	MPI_Test_cancelled(&status, &flag);
	if (!flag)
		fail("a receive is not cancelled");
	MPI_Isend(from, BYTES, MPI_BYTE, next, 4, of, &request);
	MPI_Mprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, of, &message, &status);
	MPI_Get_count(&status, MPI_BYTE, &count);
	if (count != BYTES || status.MPI_SOURCE != last)
		fail("%d bytes from %d", count, status.MPI_SOURCE);
	MPI_Mrecv(to, ROOM, MPI_BYTE, &message, &status);
	told(&status, last, 4, BYTES);
	compare(to, BYTES, last, me, 9);
	MPI_Wait(&request, MPI_STATUS_IGNORE);
	free(from);
	free(to);
}

/* Communicators that have no messages: copies and parts of one that has, between groups, one that not all ranks ask for, and one
 * whose ranks ask for different values. */
static void inherited(void)
{
	enum { OF = 5 };
	static const char *const names[OF] = { "a duplicate", "a part", "a topology", "one that some ranks ask for", "other values" };
	MPI_Comm of[OF], half, between;
	MPI_Info info, none;
	int at, periodic = 1, got = 0;
	char text[16];

	running = "inherited";
	asked(&info);
	MPI_Info_create(&none);
	/* A setting without the key does not change it. */
	MPI_Comm_set_info(comm, none);
	MPI_Comm_dup(comm, &of[0]);
	MPI_Comm_split(comm, 0, rank, &of[1]);
	MPI_Cart_create(comm, 1, &ranks, &periodic, 0, &of[2]);
	MPI_Comm_dup_with_info(MPI_COMM_WORLD, rank % 2 ? info : rank ? none : MPI_INFO_NULL, &of[3]);
	snprintf(text, sizeof(text), "%d", LEAST + rank);
	MPI_Info_set(none, "xgvmi_messages", text);
	MPI_Comm_dup(MPI_COMM_WORLD, &of[4]);
	MPI_Comm_set_info(of[4], none);
	for (at = 0; at < OF; at++) {
		free_for_all(of[at], names[at]);
		MPI_Comm_free(&of[at]);
	}
	running = "between groups";
	MPI_Comm_split(MPI_COMM_WORLD, rank == 0, rank, &half);
	MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, rank == 0, 8, &between);
	MPI_Comm_set_info(between, info);
	if (rank < 2) {
		uint8_t *from = allocate(2 * LEAST), *to = allocate(2 * LEAST);

		fill(from, 2 * LEAST, rank, 1 - rank, 1);
		MPI_Sendrecv(from, 2 * LEAST, MPI_BYTE, 0, 1, to, 2 * LEAST, MPI_BYTE, MPI_ANY_SOURCE, 1, between, MPI_STATUS_IGNORE);
		compare(to, 2 * LEAST, 1 - rank, rank, 1);
		free(from);
		free(to);
	}
	MPI_Comm_free(&between);
	MPI_Comm_free(&half);
	MPI_Info_free(&none);
	/* More communicators than there may be at once: each has messages. */
	for (at = 0; at < 20; at++) {
		uint8_t *from = outgoing((rank + 1) % ranks, 0, LEAST), *to = incoming((rank + ranks - 1) % ranks, 0, LEAST);
		MPI_Comm one;

		running = "one after the other";
		MPI_Comm_dup_with_info(MPI_COMM_WORLD, info, &one);
		MPI_Sendrecv(from, LEAST, MPI_BYTE, (rank + 1) % ranks, 0, to, LEAST, MPI_BYTE, (rank + ranks - 1) % ranks, 0, one,
			     MPI_STATUS_IGNORE);
		compare(to, LEAST, (rank + ranks - 1) % ranks, rank, 0);
		MPI_Comm_free(&one);
		free(from);
		free(to);
		got++;
	}
	MPI_Info_free(&info);
	if (got != 20)
		fail("%d communicators", got);
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
	    !MPI_Recv_init(data, LEAST, MPI_BYTE, next, MPI_ANY_TAG, comm, &request))
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
	MPI_Info info;

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
	/* The ranks agree anew, and from then on the communicator is as any other one. */
	asked(&info);
	MPI_Comm_set_info(comm, info);
	MPI_Info_free(&info);
	free_for_all(comm, "after the failure");
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
	is_served = count > 1 && !strcmp(words[1], "served");
	if (count > 1 && !strcmp(words[1], "endless"))
		endless();
	lengths();
	blocking();
	types();
	many();
	communicators();
	beside();
	threads();
	persistent();
	buffered();
	together();
	inherited();
	if (is_served)
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
