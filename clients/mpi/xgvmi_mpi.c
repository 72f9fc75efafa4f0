/*
 * Neighbourhood collectives through UCC: a library to preload in all ranks of an MPI program.
 *
 * UCC has no neighbourhood collectives. This library turns MPI_Neighbor_alltoall(v), MPI_Neighbor_allgather(v) and their
 * non-blocking forms into one MPI_Alltoallv on the same communicator, whose blocks for ranks that are no neighbours are empty.
 * MPI has no binary interface, so each MPI compiles the file:
 *
 *     mpicc -O2 -fPIC -shared -pthread -o libxgvmi_mpi.so xgvmi_mpi*.c
 *
 * Fortran bindings call the MPI_ functions of C, or the PMPI_ ones; the library has both names.
 *
 * All ranks of a call must take the same way, and only the communicator is the same for all. So nothing else decides:
 *
 * - If two neighbours of a rank are the same rank, it depends on the MPI which block goes to which place. There the MPI's own
 *   collective runs. In a Cartesian grid each rank knows: a periodic dimension has one or two ranks. The ranks of a graph agree when
 *   it is created, because a non-blocking call may not wait for others; an attribute keeps the answer, also for duplicates.
 * - Otherwise the call becomes an alltoallv of MPI_BYTE whatever the datatypes: an MPI may choose its algorithm by the datatype of
 *   one rank. Blocks of other than plain predefined types are packed.
 */
#include "xgvmi_mpi.h"

/* --- One side of an exchange --- */

struct side {
    int degree;
    int *peers; /* for each neighbour its rank, or MPI_PROC_NULL */
    MPI_Count *counts; /* and its block: elements, and place in the buffer in bytes */
    MPI_Aint *places;
    char *buffer;
    MPI_Datatype type, lasting; /* the second one is of this library, or MPI_DATATYPE_NULL */
    MPI_Count size;
    int is_plain; /* the elements are what the bytes are */
    /* For each rank of the communicator: bytes, and their place in the buffer, or in the copy. */
    MPI_Count *bytes;
    MPI_Aint *at;
    char *copy;
    int *bytes_int, *at_int;
};

struct exchange {
    MPI_Comm comm, packer; /* the second one unpacks */
    int ranks;
    struct side send, receive;
    /* A non-blocking one: see below. */
    struct exchange *next;
    uint64_t request, serial;
};

static void release_side(struct side *side)
{
    if (side->lasting != MPI_DATATYPE_NULL) {
        PMPI_Type_free(&side->lasting);
    }
    free(side->peers);
    free(side->counts);
    free(side->places);
    free(side->bytes);
    free(side->at);
    free(side->copy);
    free(side->bytes_int);
    free(side->at_int);
}

static void release(struct exchange *exchange)
{
    if (exchange) {
        release_side(&exchange->send);
        release_side(&exchange->receive);
        free(exchange);
    }
}

HIDDEN int refused(MPI_Comm comm, int code, const char *why)
{
    fprintf(stderr, "libxgvmi_mpi: a neighbourhood collective %s\n", why);
    PMPI_Comm_call_errhandler(comm, code);
    return code;
}

HIDDEN int no_memory(MPI_Comm comm)
{
    return refused(comm, MPI_ERR_NO_MEM, "has no memory for its blocks");
}

/* --- The neighbours --- */

enum way { ITS_OWN, AS_ALLTOALLV, FAILED };

static int has_room(struct side *side, int degree)
{
    side->degree = degree;
    side->peers = cleared((size_t)degree, sizeof(int));
    side->counts = cleared((size_t)degree, sizeof(MPI_Count));
    side->places = cleared((size_t)degree, sizeof(MPI_Aint));
    return side->peers && side->counts && side->places;
}

static enum way of_grid(MPI_Comm comm, struct side *send, struct side *receive)
{
    int dimensions, at, *three;
    enum way way = AS_ALLTOALLV;

    if (PMPI_Cartdim_get(comm, &dimensions)) {
        return ITS_OWN;
    }
    three = cleared(3 * (size_t)dimensions, sizeof(int));
    if (!three || !has_room(send, 2 * dimensions) || !has_room(receive, 2 * dimensions)) {
        free(three);
        return FAILED;
    }
    if (dimensions && PMPI_Cart_get(comm, dimensions, three, three + dimensions, three + 2 * dimensions)) {
        way = ITS_OWN;
    }
    for (at = 0; at < dimensions && way == AS_ALLTOALLV; at++) {
        int *pair = send->peers + 2 * at;
        if ((three[dimensions + at] && three[at] <= 2) || PMPI_Cart_shift(comm, at, 1, &pair[0], &pair[1])) {
            way = ITS_OWN;
        }
    }
    memcpy(receive->peers, send->peers, 2 * (size_t)dimensions * sizeof(int));
    free(three);
    return way;
}

/* The attribute of a graph: whether no rank has the same neighbour twice. MPI ends with its last session, and the key with MPI. */
static int key = MPI_KEYVAL_INVALID;
static int sessions;
static pthread_mutex_t key_lock = PTHREAD_MUTEX_INITIALIZER;
static char agreed;

static int copied(MPI_Comm comm, int of, void *extra, void *from, void *to, int *flag)
{
    (void)comm, (void)of, (void)extra;
    *(void **)to = from;
    *flag = 1;
    return MPI_SUCCESS;
}

static int has_agreed(MPI_Comm comm)
{
    void *value = NULL;
    int flag = 0, of;

    pthread_mutex_lock(&key_lock);
    of = key;
    pthread_mutex_unlock(&key_lock);
    return of != MPI_KEYVAL_INVALID && !PMPI_Comm_get_attr(comm, of, &value, &flag) && flag && value == &agreed;
}

static int by_number(const void *one, const void *other)
{
    int a = *(const int *)one, b = *(const int *)other;
    return (a > b) - (a < b);
}

/* Whether the neighbours are different ranks. It sorts them. */
static int are_different(int *peers, int count)
{
    int at;

    qsort(peers, (size_t)count, sizeof(int), by_number);
    for (at = 1; at < count; at++) {
        if (peers[at] == peers[at - 1]) {
            return 0;
        }
    }
    return 1;
}

static enum way of_graph(MPI_Comm comm, struct side *send, struct side *receive)
{
    int me, degree;

    if (PMPI_Comm_rank(comm, &me) || PMPI_Graph_neighbors_count(comm, me, &degree)) {
        return ITS_OWN;
    }
    if (!has_room(send, degree) || !has_room(receive, degree)) {
        return FAILED;
    }
    if (PMPI_Graph_neighbors(comm, me, degree, send->peers)) {
        return ITS_OWN;
    }
    memcpy(receive->peers, send->peers, (size_t)degree * sizeof(int));
    return AS_ALLTOALLV;
}

static enum way of_distributed(MPI_Comm comm, struct side *send, struct side *receive)
{
    int in, out, is_weighted, *weights;
    enum way way = AS_ALLTOALLV;

    if (PMPI_Dist_graph_neighbors_count(comm, &in, &out, &is_weighted)) {
        return ITS_OWN;
    }
    weights = cleared((size_t)in + (size_t)out, sizeof(int));
    if (!weights || !has_room(send, out) || !has_room(receive, in)) {
        way = FAILED;
    } else if (PMPI_Dist_graph_neighbors(comm, in, receive->peers, weights, out, send->peers, weights + in)) {
        way = ITS_OWN;
    }
    free(weights);
    return way;
}

static enum way neighbours(MPI_Comm comm, struct side *send, struct side *receive)
{
    int kind;

    if (comm == MPI_COMM_NULL || PMPI_Topo_test(comm, &kind)) {
        return ITS_OWN;
    }
    switch (kind) {
    case MPI_CART:
        return of_grid(comm, send, receive);
    case MPI_GRAPH:
        return has_agreed(comm) ? of_graph(comm, send, receive) : ITS_OWN;
    case MPI_DIST_GRAPH:
        return has_agreed(comm) ? of_distributed(comm, send, receive) : ITS_OWN;
    default:
        return ITS_OWN;
    }
}

/* The ranks of a new graph agree. */
static int agree(MPI_Comm comm, int is_distributed, int rc)
{
    struct side send = { .lasting = MPI_DATATYPE_NULL }, receive = { .lasting = MPI_DATATYPE_NULL };
    int fits, of;

    if (rc || comm == MPI_COMM_NULL) {
        return rc;
    }
    pthread_mutex_lock(&key_lock);
    if (key == MPI_KEYVAL_INVALID && PMPI_Comm_create_keyval(copied, MPI_COMM_NULL_DELETE_FN, &key, NULL)) {
        key = MPI_KEYVAL_INVALID;
    }
    of = key;
    pthread_mutex_unlock(&key_lock);
    fits = (is_distributed ? of_distributed : of_graph)(comm, &send, &receive) == AS_ALLTOALLV && of != MPI_KEYVAL_INVALID &&
           are_different(send.peers, send.degree) && are_different(receive.peers, receive.degree) &&
           !PMPI_Comm_set_attr(comm, of, &agreed);
    release_side(&send);
    release_side(&receive);
    of = fits;
    rc = PMPI_Allreduce(&of, &fits, 1, MPI_INT, MPI_MIN, comm);
    if (of && !fits) {
        rc = rc ? rc : PMPI_Comm_delete_attr(comm, key);
    }
    return rc;
}

/* --- The blocks --- */

static int type_of(struct side *side, const void *buffer, MPI_Datatype type, MPI_Aint *extent)
{
    MPI_Aint low;
    int rc;

    side->buffer = (char *)(uintptr_t)buffer;
    side->type = type;
    rc = PMPI_Type_get_extent(type, &low, extent);
    rc = rc ? rc : PMPI_Type_size_x(type, &side->size);
    side->is_plain = !rc && low == 0 && side->size == (MPI_Count)*extent && is_named(type);
    return rc;
}

static MPI_Count block(const struct side *side, int at)
{
    return side->peers[at] == MPI_PROC_NULL ? 0 : side->counts[at] * side->size;
}

static char *place(const struct side *side, int at)
{
    return (char *)((uintptr_t)side->buffer + (uintptr_t)side->places[at]);
}

static int is_int(MPI_Aint number)
{
    return number >= INT_MIN && number <= INT_MAX;
}

/* Bytes and places by rank. `may_be_far`: the MPI takes places beyond an int. */
static int arrange(struct side *side, int ranks, int may_be_far)
{
    int at, must_copy = !side->is_plain;
    MPI_Aint used = 0;

    side->bytes = cleared((size_t)ranks, sizeof(MPI_Count));
    side->at = cleared((size_t)ranks, sizeof(MPI_Aint));
    if (!side->bytes || !side->at) {
        return MPI_ERR_NO_MEM;
    }
    for (at = 0; at < side->degree; at++) {
        MPI_Count length = block(side, at);
        if (length) {
            int peer = side->peers[at];
            must_copy |= !(may_be_far || is_int(side->places[at]));
            side->bytes[peer] = length;
            side->at[peer] = side->places[at];
            used += (MPI_Aint)length;
        }
    }
    if (!must_copy || !used) {
        return MPI_SUCCESS;
    }
    side->copy = malloc((size_t)used);
    if (!side->copy) {
        return MPI_ERR_NO_MEM;
    }
    used = 0;
    for (at = 0; at < side->degree; at++) {
        if (block(side, at)) {
            side->at[side->peers[at]] = used;
            used += (MPI_Aint)block(side, at);
        }
    }
    return MPI_SUCCESS;
}

/* Moves the blocks between buffer and copy. */
static int move(struct side *side, MPI_Comm comm, int is_out)
{
    int at, rc = MPI_SUCCESS;

    for (at = 0; side->copy && at < side->degree && !rc; at++) {
        MPI_Count left = side->counts[at], most = side->size ? INT_MAX / side->size : 0;
        char *packed, *to = place(side, at);
        MPI_Aint low, extent;

        if (!block(side, at)) {
            continue;
        }
        packed = side->copy + side->at[side->peers[at]];
        if (side->is_plain) {
            memcpy(is_out ? to : packed, is_out ? packed : to, (size_t)block(side, at));
            continue;
        }
        rc = PMPI_Type_get_extent(side->type, &low, &extent);
        while (left && !rc) {
            int some = (int)(left < most ? left : most), length = (int)(some * side->size), position = 0;
            if (!some) {
                rc = MPI_ERR_TYPE;
            } else if (is_out) {
                rc = PMPI_Unpack(packed, length, &position, to, some, side->type, comm);
            } else {
                rc = PMPI_Pack(to, some, side->type, packed, length, &position, comm);
            }
            if (!rc && position != length) {
                rc = MPI_ERR_TYPE;
            }
            packed += length;
            to += extent * some;
            left -= some;
        }
    }
    return rc;
}

/* Narrow arrays, and whether all numbers fit. */
static int narrow(struct side *side, int ranks, int *fits)
{
    int at;

    side->bytes_int = cleared((size_t)ranks, sizeof(int));
    side->at_int = cleared((size_t)ranks, sizeof(int));
    if (!side->bytes_int || !side->at_int) {
        return MPI_ERR_NO_MEM;
    }
    for (at = 0; at < ranks; at++) {
        *fits &= side->bytes[at] <= INT_MAX && is_int(side->at[at]);
        side->bytes_int[at] = (int)side->bytes[at];
        side->at_int[at] = (int)side->at[at];
    }
    return MPI_SUCCESS;
}

static char *base(const struct side *side)
{
    return side->copy ? side->copy : side->buffer;
}

/* --- Non-blocking exchanges --- */

/* Those whose end this library has not seen, by their requests. The MPI gives a request's handle away again only after its end, so
 * the table has at most as many entries as the program has requests at once. */
enum { BUCKETS = 256 };
static struct exchange *under_way[BUCKETS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
HIDDEN atomic_long exchanges_under_way;
static uint64_t last_serial;

static struct exchange **bucket(uint64_t request)
{
    return &under_way[(request * 0x9e3779b97f4a7c15u) >> 56];
}

/* Delivers the blocks and removes the exchange at `link`. */
static int conclude(struct exchange **link)
{
    struct exchange *exchange = *link;
    int rc = move(&exchange->receive, exchange->packer, 1);
    *link = exchange->next;
    atomic_fetch_sub(&exchanges_under_way, 1);
    release(exchange);
    return rc;
}

static void remember(struct exchange *exchange, MPI_Request request)
{
    struct exchange **link;

    exchange->request = kept(request);
    pthread_mutex_lock(&lock);
    for (link = bucket(exchange->request); *link; link = &(*link)->next) {
        if ((*link)->request == exchange->request) {
            conclude(link);
            break;
        }
    }
    exchange->serial = ++last_serial;
    exchange->next = *bucket(exchange->request);
    *bucket(exchange->request) = exchange;
    atomic_fetch_add(&exchanges_under_way, 1);
    pthread_mutex_unlock(&lock);
}

/* The program may free the datatype and the communicator before the exchange is complete. */
static int keep_for_the_end(struct exchange *e)
{
    struct side *side = &e->receive;
    int is_there = 0, rc = MPI_SUCCESS;

    if (!side->copy || side->is_plain) {
        return rc;
    }
    rc = PMPI_Type_contiguous(1, side->type, &side->lasting);
    rc = rc ? rc : PMPI_Type_commit(&side->lasting);
    if (!rc) {
        side->type = side->lasting;
    }
    /* Only the world model has a communicator that lives until the end. */
    if (!rc && !PMPI_Initialized(&is_there) && is_there) {
        e->packer = MPI_COMM_SELF;
    }
    return rc;
}

/* The serial number of a request's exchange, or 0. */
HIDDEN uint64_t exchange_of(MPI_Request request)
{
    struct exchange *exchange;
    uint64_t serial = 0;

    pthread_mutex_lock(&lock);
    for (exchange = *bucket(kept(request)); exchange && !serial; exchange = exchange->next) {
        serial = exchange->request == kept(request) ? exchange->serial : 0;
    }
    pthread_mutex_unlock(&lock);
    return serial;
}

/* The exchange with this request and serial number is complete. */
HIDDEN int exchange_ended(uint64_t request, uint64_t serial)
{
    struct exchange **link;
    int rc = MPI_SUCCESS;

    pthread_mutex_lock(&lock);
    for (link = bucket(request); *link; link = &(*link)->next) {
        if ((*link)->serial == serial) {
            rc = conclude(link);
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

/* --- One call --- */

typedef int alltoallv_c(const void *, const MPI_Count *, const MPI_Aint *, MPI_Datatype, void *, const MPI_Count *,
                        const MPI_Aint *, MPI_Datatype, MPI_Comm);
typedef int ialltoallv_c(const void *, const MPI_Count *, const MPI_Aint *, MPI_Datatype, void *, const MPI_Count *,
                         const MPI_Aint *, MPI_Datatype, MPI_Comm, MPI_Request *);

static int carry_out(struct exchange *e, MPI_Request *request)
{
    alltoallv_c *wide = (alltoallv_c *)dlsym(RTLD_NEXT, "PMPI_Alltoallv_c");
    ialltoallv_c *iwide = (ialltoallv_c *)dlsym(RTLD_NEXT, "PMPI_Ialltoallv_c");
    int rc, fits = 1, is_wide = wide && iwide;
    struct side *s = &e->send, *r = &e->receive;

    rc = arrange(s, e->ranks, is_wide);
    rc = rc ? rc : arrange(r, e->ranks, is_wide);
    rc = rc ? rc : narrow(s, e->ranks, &fits);
    rc = rc ? rc : narrow(r, e->ranks, &fits);
    if (rc) {
        return no_memory(e->comm);
    }
    if (!fits && !is_wide) {
        return refused(e->comm, MPI_ERR_COUNT, "has more than 2 GiB on this rank, for which the MPI has no alltoallv");
    }
    rc = move(s, e->comm, 0);
    rc = rc || !request ? rc : keep_for_the_end(e);
    if (rc) {
        return refused(e->comm, rc, "could not pack its blocks");
    }
    if (request) {
        return fits ? PMPI_Ialltoallv(base(s), s->bytes_int, s->at_int, MPI_BYTE, base(r), r->bytes_int, r->at_int, MPI_BYTE,
                                      e->comm, request)
                    : iwide(base(s), s->bytes, s->at, MPI_BYTE, base(r), r->bytes, r->at, MPI_BYTE, e->comm, request);
    }
    rc = fits ? PMPI_Alltoallv(base(s), s->bytes_int, s->at_int, MPI_BYTE, base(r), r->bytes_int, r->at_int, MPI_BYTE, e->comm)
              : wide(base(s), s->bytes, s->at, MPI_BYTE, base(r), r->bytes, r->at, MPI_BYTE, e->comm);
    return rc ? rc : move(r, e->comm, 1);
}

/* Starts an exchange: its neighbours and datatypes. */
static enum way begin(struct exchange **begun, MPI_Comm comm, const void *from, MPI_Datatype sent, void *to, MPI_Datatype received,
                      MPI_Aint *send_extent, MPI_Aint *receive_extent, int *rc)
{
    struct exchange *e = cleared(1, sizeof(*e));
    enum way way = FAILED;

    *begun = e;
    if (e) {
        e->send.lasting = e->receive.lasting = MPI_DATATYPE_NULL;
        way = neighbours(comm, &e->send, &e->receive);
    }
    if (way == FAILED) {
        *rc = no_memory(comm);
    } else if (from == MPI_IN_PLACE || to == MPI_IN_PLACE || sent == MPI_DATATYPE_NULL || received == MPI_DATATYPE_NULL) {
        way = ITS_OWN;
    }
    if (way == AS_ALLTOALLV) {
        e->comm = e->packer = comm;
        *rc = PMPI_Comm_size(comm, &e->ranks);
        *rc = *rc ? *rc : type_of(&e->send, from, sent, send_extent);
        *rc = *rc ? *rc : type_of(&e->receive, to, received, receive_extent);
        way = *rc ? FAILED : AS_ALLTOALLV;
    }
    if (way != AS_ALLTOALLV) {
        release(e);
    }
    return way;
}

static int complete(struct exchange *e, MPI_Request *request)
{
    int rc = carry_out(e, request);

    if (request && !rc && *request == MPI_REQUEST_NULL) {
        rc = move(&e->receive, e->packer, 1);
        release(e);
    } else if (request && !rc) {
        remember(e, *request);
    } else {
        release(e);
    }
    return rc;
}

/* --- The functions of MPI --- */

/* Each has the forms NAME and PNAME, with counts of type int and with those of type MPI_Count. NUMBERS sets counts and places of
 * the neighbours from the arguments of the call. */
#define FUNCTION(name, parameters, arguments, REQUEST, NUMBERS)                                                       \
    int P##name parameters                                                                                            \
    {                                                                                                                 \
        typedef int function parameters;                                                                              \
        struct exchange *e;                                                                                           \
        MPI_Aint send_extent = 0, receive_extent = 0;                                                                 \
        int at, rc = MPI_SUCCESS;                                                                                     \
        switch (begin(&e, comm, from, sent, to, received, &send_extent, &receive_extent, &rc)) {                      \
        case ITS_OWN: {                                                                                               \
            OWN(function *, name)                                                                                     \
            return name##_own arguments;                                                                              \
        }                                                                                                             \
        case FAILED:                                                                                                  \
            return rc;                                                                                                \
        case AS_ALLTOALLV:                                                                                            \
            break;                                                                                                    \
        }                                                                                                             \
        for (at = 0; at < e->send.degree; at++) {                                                                     \
            NUMBERS(e->send, send)                                                                                    \
        }                                                                                                             \
        for (at = 0; at < e->receive.degree; at++) {                                                                  \
            NUMBERS(e->receive, receive)                                                                              \
        }                                                                                                             \
        return complete(e, REQUEST);                                                                                  \
    }                                                                                                                 \
    int name parameters                                                                                               \
    {                                                                                                                 \
        return P##name arguments;                                                                                     \
    }

/* The block of neighbour `at`: one of equal blocks, one that the arrays describe, or the same for all. */
#define EQUAL(side, which)                  \
    side.counts[at] = which##_count;        \
    side.places[at] = which##_extent * (MPI_Aint)which##_count * at;
#define LISTED(side, which)                 \
    side.counts[at] = which##_counts[at];   \
    side.places[at] = which##_extent * (MPI_Aint)which##_places[at];
#define SAME(side, which)                   \
    side.counts[at] = which##_count;        \
    side.places[at] = 0;

#define ALLTOALL(side, which) EQUAL(side, which)
#define ALLTOALLV(side, which) LISTED(side, which)
#define ALLGATHER(side, which) GATHER_##which(side, EQUAL)
#define ALLGATHERV(side, which) GATHER_##which(side, LISTED)
#define GATHER_send(side, _) SAME(side, send)
#define GATHER_receive(side, RECEIVED) RECEIVED(side, receive)

#define BOTH(name, tail, tail_names, REQUEST, suffix, COUNT, PLACE)                                                   \
    FUNCTION(MPI_##name##alltoall##suffix,                                                                            \
             (const void *from, COUNT send_count, MPI_Datatype sent, void *to, COUNT receive_count,                   \
              MPI_Datatype received, MPI_Comm comm tail),                                                             \
             (from, send_count, sent, to, receive_count, received, comm tail_names), REQUEST, ALLTOALL)               \
    FUNCTION(MPI_##name##alltoallv##suffix,                                                                           \
             (const void *from, const COUNT *send_counts, const PLACE *send_places, MPI_Datatype sent, void *to,      \
              const COUNT *receive_counts, const PLACE *receive_places, MPI_Datatype received, MPI_Comm comm tail),   \
             (from, send_counts, send_places, sent, to, receive_counts, receive_places, received, comm tail_names),   \
             REQUEST, ALLTOALLV)                                                                                      \
    FUNCTION(MPI_##name##allgather##suffix,                                                                           \
             (const void *from, COUNT send_count, MPI_Datatype sent, void *to, COUNT receive_count,                   \
              MPI_Datatype received, MPI_Comm comm tail),                                                             \
             (from, send_count, sent, to, receive_count, received, comm tail_names), REQUEST, ALLGATHER)              \
    FUNCTION(MPI_##name##allgatherv##suffix,                                                                          \
             (const void *from, COUNT send_count, MPI_Datatype sent, void *to, const COUNT *receive_counts,           \
              const PLACE *receive_places, MPI_Datatype received, MPI_Comm comm tail),                                \
             (from, send_count, sent, to, receive_counts, receive_places, received, comm tail_names), REQUEST,        \
             ALLGATHERV)

#define COMMA ,

BOTH(Neighbor_, , , NULL, , int, int)
BOTH(Neighbor_, , , NULL, _c, MPI_Count, MPI_Aint)
BOTH(Ineighbor_, COMMA MPI_Request *request, COMMA request, request, , int, int)
BOTH(Ineighbor_, COMMA MPI_Request *request, COMMA request, request, _c, MPI_Count, MPI_Aint)

/* The functions that create graphs. */
#define CREATION(name, parameters, arguments, IS_DISTRIBUTED)                                                         \
    int P##name parameters                                                                                            \
    {                                                                                                                 \
        typedef int function parameters;                                                                              \
        OWN(function *, name)                                                                                         \
        int rc = name##_own arguments;                                                                                \
        return agree(rc ? MPI_COMM_NULL : *created, IS_DISTRIBUTED, rc);                                              \
    }                                                                                                                 \
    int name parameters                                                                                               \
    {                                                                                                                 \
        return P##name arguments;                                                                                     \
    }

CREATION(MPI_Graph_create, (MPI_Comm old, int nodes, const int index[], const int edges[], int reorder, MPI_Comm *created),
         (old, nodes, index, edges, reorder, created), 0)
CREATION(MPI_Dist_graph_create,
         (MPI_Comm old, int nodes, const int from[], const int degrees[], const int to[], const int weights[], MPI_Info info,
          int reorder, MPI_Comm *created),
         (old, nodes, from, degrees, to, weights, info, reorder, created), 1)
CREATION(MPI_Dist_graph_create_adjacent,
         (MPI_Comm old, int in, const int from[], const int in_weights[], int out, const int to[], const int out_weights[],
          MPI_Info info, int reorder, MPI_Comm *created),
         (old, in, from, in_weights, out, to, out_weights, info, reorder, created), 1)

#if MPI_VERSION >= 4 || defined(OMPI_MAJOR_VERSION)
int PMPI_Session_init(MPI_Info info, MPI_Errhandler handler, MPI_Session *session)
{
    typedef int function(MPI_Info, MPI_Errhandler, MPI_Session *);
    int is_there = 0, is_over = 0;
    OWN(function *, MPI_Session_init)

    PMPI_Initialized(&is_there);
    PMPI_Finalized(&is_over);
    pthread_mutex_lock(&key_lock);
    if (sessions++ == 0 && (!is_there || is_over)) {
        key = MPI_KEYVAL_INVALID;
    }
    pthread_mutex_unlock(&key_lock);
    return MPI_Session_init_own(info, handler, session);
}

int MPI_Session_init(MPI_Info info, MPI_Errhandler handler, MPI_Session *session)
{
    return PMPI_Session_init(info, handler, session);
}

int PMPI_Session_finalize(MPI_Session *session)
{
    typedef int function(MPI_Session *);
    int rc;
    OWN(function *, MPI_Session_finalize)

    rc = MPI_Session_finalize_own(session);
    pthread_mutex_lock(&key_lock);
    sessions -= !rc;
    pthread_mutex_unlock(&key_lock);
    return rc;
}

int MPI_Session_finalize(MPI_Session *session)
{
    return PMPI_Session_finalize(session);
}
#endif
