/* Neighbourhood collectives on all kinds of topologies. It knows only MPI, and compares every byte, and those beside the blocks.
 *
 *   mpi_neighbors
 *
 * Rank 0 prints "calls A B" at the end: how many of its calls on topologies without two equal neighbours of a grid were
 * blocking ones, and how many were not. The first error is printed on standard error and aborts the job.
 */
#include "mpi_side.h"
#include <string.h>

#if MPI_VERSION < 4 || (MPI_VERSION == 4 && MPI_SUBVERSION < 1)
/* The MPI that runs may be later than the one of the compiler. */
int MPI_Request_get_status_all(int, const MPI_Request[], int *, MPI_Status[]) __attribute__((weak));
int MPI_Request_get_status_any(int, const MPI_Request[], int *, int *, MPI_Status *) __attribute__((weak));
int MPI_Request_get_status_some(int, const MPI_Request[], int *, int[], MPI_Status[]) __attribute__((weak));
#define HAS_4_1 (MPI_Request_get_status_all && MPI_Request_get_status_any && MPI_Request_get_status_some)
#else
#define HAS_4_1 1
#endif

enum { MOST = 64, UNIT = 8, LONGEST = 700, SPACE = 12 * LONGEST + 64, GUARD = 0xee };
enum form { ALLTOALL, ALLTOALLV, ALLGATHER, ALLGATHERV, FORMS };
enum kind { PLAIN, PAIR, HOLES, TURNED, KINDS };

static MPI_Datatype types[KINDS];
static const int extents[KINDS] = { 8, 8, 12, 8 };
static int calls[2];
static unsigned number;

struct neighbours {
	MPI_Comm comm;
	int count[2], peers[2][MOST]; /* destinations, then sources */
};

/* A call: its buffers, and what is expected. */
struct call {
	const struct neighbours *of;
	enum form form;
	enum kind kinds[2];
	unsigned number;
	uint8_t *memory[2];
	int counts[2][MOST], places[2][MOST];
};

static void make_types(void)
{
	int lengths[2] = { 1, 1 }, places[2] = { 1, 0 };
	MPI_Datatype pair;

	types[PLAIN] = MPI_INT64_T;
	MPI_Type_contiguous(2, MPI_INT, &types[PAIR]);
	MPI_Type_contiguous(2, MPI_INT, &pair);
	MPI_Type_create_resized(pair, 0, 12, &types[HOLES]);
	MPI_Type_free(&pair);
	MPI_Type_indexed(2, lengths, places, MPI_INT, &types[TURNED]);
	MPI_Type_commit(&types[PAIR]);
	MPI_Type_commit(&types[HOLES]);
	MPI_Type_commit(&types[TURNED]);
}

/* Moves a unit between its place in the memory of a kind and its bytes. */
static void unit(uint8_t *memory, uint8_t *bytes, enum kind kind, int is_in)
{
	int half;

	for (half = 0; half < 2; half++) {
		uint8_t *at = memory + 4 * (kind == TURNED ? 1 - half : half);

		memcpy(is_in ? at : bytes + 4 * half, is_in ? bytes + 4 * half : at, 4);
	}
}

static int is_all(enum form form)
{
	return form == ALLGATHER || form == ALLGATHERV;
}

/* Units of a block. */
static int units(const struct call *call, int from, int to)
{
	if (call->form == ALLTOALL || call->form == ALLGATHER)
		return LONGEST / 2;
	if (call->form == ALLGATHERV)
		return 1 + (from * 37 + (int)call->number) % LONGEST;
	return (from * 3 + to * 5 + (int)call->number) % 4 ? 1 + (from * 41 + to * 29) % (LONGEST - 1) : 0;
}

static void prepare(struct call *call, const struct neighbours *of, enum form form, int is_mixed)
{
	static uint8_t bytes[UNIT * LONGEST];
	int me, side, at, u;

	MPI_Comm_rank(of->comm, &me);
	memset(call, 0, sizeof(*call));
	call->of = of;
	call->form = form;
	call->number = number++;
	for (side = 0; side < 2; side++) {
		enum kind kind = is_mixed ? (enum kind)(1 + (me + side + (int)call->number) % 3) : PLAIN;
		int place = 0, blocks = side == 0 && is_all(form) ? 1 : of->count[side];

		call->kinds[side] = kind;
		call->memory[side] = allocate((size_t)(blocks ? blocks : 1) * SPACE);
		memset(call->memory[side], GUARD, (size_t)(blocks ? blocks : 1) * SPACE);
		for (at = 0; at < blocks; at++) {
			int peer = of->peers[side][at], is_there = peer != MPI_PROC_NULL || (side == 0 && is_all(form));
			int to = is_all(form) ? 0 : side ? me : peer, from = side ? peer : me;

			call->counts[side][at] = is_there ? units(call, from, to) : 3;
			call->places[side][at] = form == ALLTOALLV || (form == ALLGATHERV && side) ? place : at * LONGEST / 2;
			place += call->counts[side][at] + at % 3;
			if (side || !is_there)
				continue;
			fill(bytes, (size_t)UNIT * (size_t)call->counts[side][at], from, to, call->number);
			for (u = 0; u < call->counts[side][at]; u++)
				unit(call->memory[side] + (call->places[side][at] + u) * extents[kind], bytes + UNIT * u, kind, 1);
		}
	}
}

static void check(struct call *call)
{
	static uint8_t bytes[UNIT * LONGEST];
	const struct neighbours *of = call->of;
	enum kind kind = call->kinds[1];
	int me, at, u;
	size_t byte, size = (size_t)(of->count[1] ? of->count[1] : 1) * SPACE;

	MPI_Comm_rank(of->comm, &me);
	for (at = 0; at < of->count[1]; at++) {
		int peer = of->peers[1][at];

		if (peer == MPI_PROC_NULL)
			continue;
		for (u = 0; u < call->counts[1][at]; u++) {
			uint8_t *place = call->memory[1] + (call->places[1][at] + u) * extents[kind];

			unit(place, bytes + UNIT * u, kind, 0);
			memset(place, GUARD, UNIT);
		}
		compare(bytes, (size_t)UNIT * (size_t)call->counts[1][at], peer, is_all(call->form) ? 0 : me, call->number);
	}
	for (byte = 0; byte < size; byte++)
		if (call->memory[1][byte] != GUARD)
			fail("byte %zu beside the blocks of call %u was written", byte, call->number);
	free(call->memory[0]);
	free(call->memory[1]);
}

static void start(struct call *call, MPI_Request *request)
{
	void *from = call->memory[0], *to = call->memory[1];
	MPI_Datatype sent = types[call->kinds[0]], received = types[call->kinds[1]];
	int *sends = call->counts[0], *receives = call->counts[1], *at = call->places[0], *into = call->places[1];
	int equal = LONGEST / 2;
	MPI_Comm comm = call->of->comm;

	switch (call->form) {
	case ALLTOALL:
		if (request)
			MPI_Ineighbor_alltoall(from, equal, sent, to, equal, received, comm, request);
		else
			MPI_Neighbor_alltoall(from, equal, sent, to, equal, received, comm);
		break;
	case ALLTOALLV:
		if (request)
			MPI_Ineighbor_alltoallv(from, sends, at, sent, to, receives, into, received, comm, request);
		else
			MPI_Neighbor_alltoallv(from, sends, at, sent, to, receives, into, received, comm);
		break;
	case ALLGATHER:
		if (request)
			MPI_Ineighbor_allgather(from, equal, sent, to, equal, received, comm, request);
		else
			MPI_Neighbor_allgather(from, equal, sent, to, equal, received, comm);
		break;
	default:
		if (request)
			MPI_Ineighbor_allgatherv(from, sends[0], sent, to, receives, into, received, comm, request);
		else
			MPI_Neighbor_allgatherv(from, sends[0], sent, to, receives, into, received, comm);
	}
}

/* One call: bit 0 of `how` takes mixed types, bit 1 does not block. */
static void one(const struct neighbours *of, enum form form, int how)
{
	struct call call;
	MPI_Request request;

	prepare(&call, of, form, how & 1);
	start(&call, how & 2 ? &request : NULL);
	if (how & 2)
		MPI_Wait(&request, MPI_STATUS_IGNORE);
	check(&call);
}

/* Every form on these neighbours, blocking and not, with plain and with mixed types. */
static void all_forms(const struct neighbours *of)
{
	int form, how;

	for (form = 0; form < FORMS; form++)
		for (how = 0; how < 4; how++) {
			one(of, (enum form)form, how);
			calls[how >> 1]++;
		}
}

/* On neighbours some of which are the same rank: each rank sends one block to all, so it does not matter how the MPI pairs them. */
static void same_for_all(const struct neighbours *of)
{
	int how;

	for (how = 0; how < 4; how++) {
		one(of, ALLGATHER, how);
		one(of, ALLGATHERV, how);
	}
}

static void grid_of(struct neighbours *of, int dimensions, int *sizes, int *periods)
{
	int at;

	MPI_Cart_create(MPI_COMM_WORLD, dimensions, sizes, periods, 0, &of->comm);
	of->count[0] = of->count[1] = 2 * dimensions;
	for (at = 0; at < dimensions; at++)
		MPI_Cart_shift(of->comm, at, 1, &of->peers[0][2 * at], &of->peers[0][2 * at + 1]);
	memcpy(of->peers[1], of->peers[0], sizeof(of->peers[0]));
}

static void grids(void)
{
	int sizes[3] = { 2, 0, 1 }, periods[3] = { 0, 0, 0 }, at;
	struct neighbours of;

	running = "ring";
	at = 1;
	grid_of(&of, 1, &ranks, &at);
	all_forms(&of);
	MPI_Comm_free(&of.comm);
	running = "grid with edges";
	sizes[1] = ranks / 2;
	grid_of(&of, 3, sizes, periods);
	all_forms(&of);
	MPI_Comm_free(&of.comm);
	/* Both neighbours of a dimension are one rank. */
	running = "grid of two";
	periods[0] = 1;
	grid_of(&of, 3, sizes, periods);
	same_for_all(&of);
	MPI_Comm_free(&of.comm);
}

static void graphs(void)
{
	struct neighbours of;
	int *index = allocate(sizeof(int) * (size_t)ranks), *edges = allocate(2 * sizeof(int) * (size_t)ranks), at;
	int weights[4] = { 1, 1, 1, 1 }, next = (rank + 1) % ranks, second = (rank + 2) % ranks, last = (rank + ranks - 1) % ranks;

	running = "star";
	for (at = 0; at < ranks; at++) {
		index[at] = ranks - 1 + at;
		edges[at] = at + 1;
	}
	for (at = ranks - 1; at < 2 * ranks - 2; at++)
		edges[at] = 0;
	MPI_Graph_create(MPI_COMM_WORLD, ranks, index, edges, 0, &of.comm);
	of.count[0] = of.count[1] = rank ? 1 : ranks - 1;
	for (at = 0; at < of.count[0]; at++)
		of.peers[0][at] = of.peers[1][at] = rank ? 0 : at + 1;
	all_forms(&of);
	MPI_Comm_free(&of.comm);

	running = "two edges of one pair";
	of.count[0] = rank == 0 ? 3 : 2;
	of.count[1] = rank == 1 ? 3 : 2;
	for (at = 0; at < 3; at++) {
		of.peers[0][at] = at == 1 ? rank : next;
		of.peers[1][at] = at == 1 ? rank : last;
	}
	MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, of.count[1], of.peers[1], weights, of.count[0], of.peers[0], weights,
				       MPI_INFO_NULL, 0, &of.comm);
	same_for_all(&of);
	MPI_Comm_free(&of.comm);

	/* A ring in one direction that each rank describes for another one, and an edge to the rank itself; then a duplicate. */
	running = "directed ring";
	{
		int from = next, degree = 2, to[2] = { second, next };
		MPI_Comm first;

		MPI_Dist_graph_create(MPI_COMM_WORLD, 1, &from, &degree, to, weights, MPI_INFO_NULL, 0, &first);
		MPI_Dist_graph_neighbors(first, 2, of.peers[1], weights, 2, of.peers[0], weights + 2);
		of.count[0] = of.count[1] = 2;
		of.comm = first;
		all_forms(&of);
		MPI_Comm_dup(first, &of.comm);
		MPI_Comm_free(&first);
		all_forms(&of);
		MPI_Comm_free(&of.comm);
	}
	running = "one edge";
	at = ranks - 1;
	index[0] = 0;
	MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, rank == at, index, weights, rank == 0, &at, weights, MPI_INFO_NULL, 0, &of.comm);
	of.count[0] = rank == 0;
	of.count[1] = rank == at;
	of.peers[0][0] = at;
	of.peers[1][0] = 0;
	all_forms(&of);
	MPI_Comm_free(&of.comm);
	free(index);
	free(edges);
}

/* Checks a call, or another request, once. Returns whether it is the first time. */
static int see(struct call *made, int *is_seen, int at, int count)
{
	if (is_seen[at])
		return 0;
	is_seen[at] = 1;
	if (at < count)
		check(&made[at]);
	return 1;
}

/* Calls at once, which each completion function ends. The types are freed before. (Open MPI does not end a call of its own whose
 * communicator is freed.) */
static void completions(void)
{
	enum { AT_ONCE = 9, LOOKS = 8, WAYS = 12 };
	struct call made[AT_ONCE];
	MPI_Request requests[AT_ONCE + 1];
	MPI_Status statuses[AT_ONCE + 1];
	int way, at, left, flag, indices[AT_ONCE + 1], size = ranks, period = 1, token = 0;
	struct neighbours of;

	running = "completions";
	for (way = 0; way < (HAS_4_1 ? WAYS : LOOKS + 1); way++) {
		int is_seen[AT_ONCE + 1] = { 0 };

		grid_of(&of, 1, &size, &period);
		for (at = 0; at < AT_ONCE; at++) {
			prepare(&made[at], &of, (enum form)(at % FORMS), at > 2);
			start(&made[at], &requests[at]);
			calls[1]++;
		}
		/* One that is no collective. */
		MPI_Irecv(&token, 1, MPI_INT, (rank + 1) % ranks, way, MPI_COMM_WORLD, &requests[AT_ONCE]);
		MPI_Send(&way, 1, MPI_INT, (rank + ranks - 1) % ranks, way, MPI_COMM_WORLD);
		for (at = PAIR; at < KINDS; at++)
			MPI_Type_free(&types[at]);
		make_types();
		left = AT_ONCE + 1;
		while (left > 0) {
			int done = 0;

			flag = 0;
			switch (way) {
			case 0:
				MPI_Wait(&requests[--left], &statuses[0]);
				break;
			case 1:
				while (!flag)
					MPI_Test(&requests[left - 1], &flag, &statuses[0]);
				left--;
				break;
			case 2:
				MPI_Waitall(left, requests, statuses);
				left = 0;
				break;
			case 3:
				MPI_Testall(left, requests, &flag, statuses);
				left = flag ? 0 : left;
				break;
			case 4:
				MPI_Waitany(AT_ONCE + 1, requests, &at, &statuses[0]);
				left--;
				break;
			case 5:
				MPI_Testany(AT_ONCE + 1, requests, &at, &flag, &statuses[0]);
				left -= flag && at != MPI_UNDEFINED;
				break;
			case 6:
				MPI_Waitsome(AT_ONCE + 1, requests, &done, indices, statuses);
				left -= done;
				break;
			case 7:
				MPI_Testsome(AT_ONCE + 1, requests, &done, indices, statuses);
				left -= done;
				break;
			case LOOKS:
				while (!flag)
					MPI_Request_get_status(requests[left - 1], &flag, &statuses[0]);
				left--;
				break;
			case 9:
				MPI_Request_get_status_all(left, requests, &flag, statuses);
				left = flag ? 0 : left;
				break;
			case 10:
				MPI_Request_get_status_any(AT_ONCE + 1, requests, &at, &flag, &statuses[0]);
				if (flag) {
					see(made, is_seen, at, AT_ONCE);
					MPI_Wait(&requests[at], &statuses[0]);
					left--;
				}
				break;
			default:
				MPI_Request_get_status_some(AT_ONCE + 1, requests, &done, indices, statuses);
				/* MPICH makes no progress while one that it has named is not freed. */
				for (at = 0; at < done; at++) {
					left -= see(made, is_seen, indices[at], AT_ONCE);
					MPI_Wait(&requests[indices[at]], &statuses[0]);
				}
			}
		}
		/* With the looks the blocks are there, and the requests as well. */
		if (token != way)
			fail("token %d, not %d", token, way);
		for (at = 0; at < AT_ONCE; at++)
			see(made, is_seen, at, AT_ONCE);
		if (way >= LOOKS)
			MPI_Waitall(AT_ONCE + 1, requests, statuses);
		MPI_Comm_free(&of.comm);
	}
}

#if MPI_VERSION >= 4
static void wide(void)
{
	enum { BYTES = 5000 };
	int size = ranks, period = 1, at;
	MPI_Count counts[2] = { BYTES, BYTES };
	MPI_Aint places[2] = { 0, BYTES };
	uint8_t *from = allocate(2 * BYTES), *to = allocate(2 * BYTES);
	struct neighbours of;

	running = "wide";
	grid_of(&of, 1, &size, &period);
	for (at = 0; at < 2; at++)
		fill(from + at * BYTES, BYTES, rank, of.peers[0][at], 7);
	/* One rank with each form of the call. */
	if (rank % 2)
		MPI_Neighbor_alltoall_c(from, BYTES, MPI_BYTE, to, BYTES, MPI_BYTE, of.comm);
	else
		MPI_Neighbor_alltoall(from, BYTES, MPI_BYTE, to, BYTES, MPI_BYTE, of.comm);
	for (at = 0; at < 2; at++)
		compare(to + at * BYTES, BYTES, of.peers[1][at], rank, 7);
	memset(to, 0, 2 * BYTES);
	MPI_Neighbor_alltoallv_c(from, counts, places, MPI_BYTE, to, counts, places, MPI_BYTE, of.comm);
	for (at = 0; at < 2; at++)
		compare(to + at * BYTES, BYTES, of.peers[1][at], rank, 7);
	calls[0] += 2;
	MPI_Comm_free(&of.comm);
	free(from);
	free(to);
}
#endif

int main(int count, char **words)
{
	MPI_Init(&count, &words);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (ranks < 4 || ranks % 2)
		fail("%d ranks: it needs an even number from 4", ranks);
	make_types();
	grids();
	graphs();
	completions();
#if MPI_VERSION >= 4
	wide();
#endif
	running = "end";
	for (size_t at = PAIR; at < KINDS; at++)
		MPI_Type_free(&types[at]);
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0)
		printf("calls %d %d\n", calls[0], calls[1]);
	MPI_Finalize();
	return 0;
}
