/*
 * Messages through the service processes, on communicators whose info has xgvmi_messages=BYTES (MPI_Comm_set_info or
 * MPI_Comm_dup_with_info).
 *
 * An MPI receive does not know how its message comes. So both ends decide by what both know: the communicator, the two ranks, the
 * tag, and whether it has BYTES or more. With the key the program says that each receive of BYTES or more on this communicator names
 * its source and tag, that its message has BYTES or more too, each shorter receive a shorter one, and that no probe looks for long
 * ones. Messages of ranks and tags that cannot be served go by the MPI at both ends. Calls that break the promise visibly fail.
 *
 * Why there is a promise: else a receiver would have to learn from its sender how a message comes, by a message of the MPI. The
 * sender's message would end only after the receiver has read that one in a call of this library. But the receiver may be in any
 * other call of the MPI, such as a barrier, that waits for this sender: a legal program would not end without a thread that calls
 * the MPI, which MPI allows with MPI_THREAD_MULTIPLE only.
 *
 * For the same reason messages do not go by the MPI by themselves after a service process has failed. A rank that knows of it
 * cannot tell whether the other end has started its part before it knew, and that end may wait in a call of the MPI. So all fail at
 * both ends, until the ranks agree anew in a collective call: MPI_Comm_set_info.
 *
 * The ranks agree when the key is set, because that is a collective call. A message's request is a generalized one. The service
 * processes move its bytes while the program is in no call, so no rank waits for a call of another one. No message may be under way
 * when the key is set.
 */
#include "xgvmi_mpi_messages.h"
#include <sched.h>

/* --- Messages --- */

enum { BUCKETS = 1024 };
static struct message *table[BUCKETS], *orphans;
/* The MPI calls functions of this library with locks of its own, and they take this one: who holds it calls nothing of MPI. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
atomic_long under_way, failures;

static struct message **bucket(MPI_Request request)
{
    return &table[(kept(request) * 0x9e3779b97f4a7c15u) >> 54];
}

HIDDEN void release(struct message *message)
{
    if (message->type != MPI_DATATYPE_NULL) {
        PMPI_Type_free(&message->type);
    }
    if (message->served) {
        release_served(message->served);
    }
    free(message->copy);
    free(message);
}

/* Packs elements, or unpacks them. There may be no more bytes than an int counts, unless the MPI counts further. */
static int convert(const struct message *message, char *at, MPI_Count length, void *to, MPI_Count count, MPI_Datatype type)
{
    typedef int far(const void *, MPI_Count, MPI_Datatype, void *, MPI_Count, MPI_Count *, MPI_Comm);
    typedef int far_back(const void *, MPI_Count, MPI_Count *, void *, MPI_Count, MPI_Datatype, MPI_Comm);
    MPI_Count place = 0;
    int position = 0;

    if (length <= INT_MAX) {
        return message->is_received ? PMPI_Unpack(at, (int)length, &position, to, (int)count, type, MPI_COMM_SELF) :
                                      PMPI_Pack(to, (int)count, type, at, (int)length, &position, MPI_COMM_SELF);
    }
    if (message->is_received) {
        far_back *unpack = (far_back *)dlsym(RTLD_NEXT, "PMPI_Unpack_c");
        return unpack ? unpack(at, length, &place, to, count, type, MPI_COMM_SELF) : MPI_ERR_TYPE;
    }
    far *pack = (far *)dlsym(RTLD_NEXT, "PMPI_Pack_c");
    return pack ? pack(to, count, type, at, length, &place, MPI_COMM_SELF) : MPI_ERR_TYPE;
}

/* Puts the first bytes of an element into it. */
static int put_part(struct message *message, const char *bytes, MPI_Count some, void *to, MPI_Datatype type)
{
    char *element = malloc((size_t)message->size);
    int rc = MPI_ERR_NO_MEM;

    if (element) {
        message->is_received = 0;
        rc = convert(message, element, message->size, to, 1, type);
        message->is_received = 1;
        memcpy(element, bytes, (size_t)some);
        rc = rc ? rc : convert(message, element, message->size, to, 1, type);
        free(element);
    }
    return rc;
}

/* Moves the elements between their buffer and the copy. */
HIDDEN int move(struct message *message, MPI_Datatype type)
{
    char *at = message->copy, *to = message->buffer;
    MPI_Count size = message->size, left = message->bytes / size, most = INT_MAX / size;
    MPI_Aint low, extent;
    int rc = PMPI_Type_get_extent(type, &low, &extent);

    most = most ? most : 1;
    while (left && !rc) {
        MPI_Count some = left < most ? left : most;
        rc = convert(message, at, some * size, to, some, type);
        at += some * size;
        to = (char *)((uintptr_t)to + (uintptr_t)(extent * some));
        left -= some;
    }
    left = message->bytes % size;
    return rc || !left ? rc : put_part(message, at, left, to, type);
}

/* Looks at a receive and a send with one request. Returns whether both are over. */
static int look_at_pair(struct message *pair)
{
    int half, flag, is_over = 1;

    for (half = 0; half < 2; half++) {
        if (pair->halves[half] != MPI_REQUEST_NULL) {
            int rc = PMPI_Test(&pair->halves[half], &flag, half ? MPI_STATUS_IGNORE : &pair->received);
            pair->code = pair->code ? pair->code : rc;
            is_over &= flag || rc;
        }
    }
    if (is_over) {
        /* The halves have called the error handler. */
        pair->comm = MPI_COMM_NULL;
        pair->source = pair->received.MPI_SOURCE;
        pair->tag = pair->received.MPI_TAG;
        PMPI_Get_elements_x(&pair->received, MPI_BYTE, &pair->bytes);
    }
    return is_over;
}

/* Looks at a message. Returns whether it is over. */
static int look(struct message *message)
{
    char why[512] = "";
    int answer = 0, is_over;
    size_t length = 0;

    if (message->is_over) {
        return 1;
    }
    if (message->halves[0] != MPI_REQUEST_NULL || message->halves[1] != MPI_REQUEST_NULL) {
        is_over = message->is_over = answer = look_at_pair(message);
    } else {
        pthread_mutex_lock(&lock);
        if (!message->is_over) {
            answer = component.end(message->ticket, &length, why, sizeof(why));
            message->is_over = answer != 0;
        }
        is_over = message->is_over;
        pthread_mutex_unlock(&lock);
    }
    if (answer) {
        if (answer < 0) {
            fprintf(stderr, "libxgvmi_mpi: a message has failed: %s\n", why);
            message->code = MPI_ERR_OTHER;
        } else if (message->ticket && message->is_received) {
            int is_longer = length > (size_t)message->bytes;
            message->bytes = is_longer ? message->bytes : (MPI_Count)length;
            message->code = is_longer ? MPI_ERR_TRUNCATE : message->copy ? move(message, message->type) : MPI_SUCCESS;
        }
        atomic_fetch_sub(&under_way, 1);
        if (message->code && message->request != MPI_REQUEST_NULL) {
            atomic_fetch_add(&failures, 1);
        }
        if (message->plan) {
            plan_over(message->plan);
        } else if (message->request != MPI_REQUEST_NULL) {
            PMPI_Grequest_complete(message->request);
        }
    }
    return is_over;
}

HIDDEN void orphan(struct message *message)
{
    pthread_mutex_lock(&lock);
    message->next_orphan = orphans;
    orphans = message;
    pthread_mutex_unlock(&lock);
}

HIDDEN int look_at_orphans(void)
{
    static atomic_int looks;
    struct message *message, *rest_of;
    int any;

    /* One thread at a time takes all, so none of them is nowhere while another thread waits for their end. */
    if (atomic_exchange(&looks, 1)) {
        return 1;
    }
    pthread_mutex_lock(&lock);
    rest_of = orphans;
    orphans = NULL;
    pthread_mutex_unlock(&lock);
    while ((message = rest_of) != NULL) {
        MPI_Request request = message->request;
        rest_of = message->next_orphan;
        /* One with a request ends with it. */
        if (!look(message)) {
            orphan(message);
        } else if (request == MPI_REQUEST_NULL) {
            unbuffer(message->buffered);
            release(message);
        }
    }
    pthread_mutex_lock(&lock);
    any = orphans != NULL;
    pthread_mutex_unlock(&lock);
    atomic_store(&looks, 0);
    return any;
}

/* A rank that waits makes the MPI's progress too. */
HIDDEN void rest(void)
{
    int flag;

    PMPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_SELF, &flag, MPI_STATUS_IGNORE);
    sched_yield();
}

/* A rank that waits for a message. */
static void rest_for(struct message *message)
{
    rest();
    if (message->ticket && !message->is_over) {
        component.rest(message->ticket);
    }
}

HIDDEN void tell(const struct message *message, MPI_Status *status)
{
    if (status == MPI_STATUS_IGNORE) {
        return;
    }
    PMPI_Status_set_elements_x(status, MPI_BYTE, message->bytes);
    PMPI_Status_set_cancelled(status, 0);
    status->MPI_SOURCE = message->source;
    status->MPI_TAG = message->tag;
}

/* The functions of generalized requests. */
static int query(void *extra, MPI_Status *status)
{
    const struct message *message = extra;

    /* The MPI would call the error handler of another communicator: see xgvmi_mpi_requests.c. */
    tell(message, status);
    return MPI_SUCCESS;
}

static int gone(void *extra)
{
    struct message *message = extra, **link;

    pthread_mutex_lock(&lock);
    for (link = bucket(message->request); *link; link = &(*link)->next) {
        if (*link == message) {
            *link = message->next;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    if (message->code) {
        atomic_fetch_sub(&failures, 1);
    }
    release(message);
    return MPI_SUCCESS;
}

/* MPI_Cancel of this library does not come here. */
static int cancel(void *extra, int is_complete)
{
    (void)extra, (void)is_complete;
    return MPI_SUCCESS;
}

static struct message *with_request(MPI_Request request)
{
    struct message *message;

    pthread_mutex_lock(&lock);
    for (message = *bucket(request); message && message->request != request; message = message->next) {
    }
    pthread_mutex_unlock(&lock);
    return message;
}

HIDDEN struct message *found(MPI_Request request)
{
    struct message *message = request == MPI_REQUEST_NULL ? NULL : with_request(request);

    return message || request == MPI_REQUEST_NULL ? message : active_of(request);
}

HIDDEN int failure_of(MPI_Request request, MPI_Comm *comm)
{
    const struct message *message = request == MPI_REQUEST_NULL ? NULL : with_request(request);

    if (!message || !message->is_over || !message->code) {
        return MPI_SUCCESS;
    }
    *comm = message->served ? of_errors(message->served, message->comm) : message->comm;
    return message->code;
}

HIDDEN int look_at_messages(int count, const MPI_Request *requests, int must_end)
{
    int at, any = 0;

    if (!atomic_load(&under_way)) {
        return 0;
    }
    look_at_orphans();
    for (at = 0; at < count; at++) {
        struct message *message = found(requests[at]);
        if (!message) {
            continue;
        }
        any = 1;
        while (!look(message) && must_end) {
            rest_for(message);
        }
    }
    return any;
}

HIDDEN void rest_for_messages(int count, const MPI_Request *requests)
{
    int at;

    for (at = 0; at < count; at++) {
        struct message *message = found(requests[at]);
        if (message && !message->is_over) {
            rest_for(message);
            return;
        }
    }
    rest();
}

/* --- One call --- */

/* How a message of these arguments goes. */
HIDDEN enum way way_of(struct served *served, MPI_Count count, MPI_Datatype type, int peer, int tag, MPI_Count *size)
{
    if (!served || peer == MPI_PROC_NULL || count <= 0 || type == MPI_DATATYPE_NULL || PMPI_Type_size_x(type, size) || *size <= 0 ||
        count < (served->least + *size - 1) / *size) {
        return ITS_OWN;
    }
    if (peer == MPI_ANY_SOURCE || (peer >= 0 && tag == MPI_ANY_TAG)) {
        return BROKEN;
    }
    if (peer < 0 || peer >= served->size || peer == served->me || tag < 0 || tag >= served->tags) {
        return ITS_OWN;
    }
    return SERVED;
}

HIDDEN int broken(MPI_Comm comm, const char *what)
{
    fprintf(stderr, "libxgvmi_mpi: %s of as many bytes as the communicator's info " KEY " says, or more\n", what);
    PMPI_Comm_call_errhandler(comm, MPI_ERR_OTHER);
    return MPI_ERR_OTHER;
}

/* How a type was made; of one with counts beyond an int nothing but that. */
static int envelope(MPI_Datatype type, int *integers, int *addresses, int *types, int *combiner)
{
    typedef int far(MPI_Datatype, MPI_Count *, MPI_Count *, MPI_Count *, MPI_Count *, int *);
    far *get = (far *)dlsym(RTLD_NEXT, "PMPI_Type_get_envelope_c");
    MPI_Count of_integers, of_addresses, large = 0, of_types;
    int rc = get ? get(type, &of_integers, &of_addresses, &large, &of_types, combiner) : MPI_SUCCESS;

    return rc || large ? MPI_ERR_TYPE : PMPI_Type_get_envelope(type, integers, addresses, types, combiner);
}

HIDDEN int is_named(MPI_Datatype type)
{
    int integers, addresses, types, combiner;

    return !envelope(type, &integers, &addresses, &types, &combiner) && combiner == MPI_COMBINER_NAMED;
}

/* A row of elements of another type, which the caller frees unless it is a named one. */
static int is_row(MPI_Datatype type, MPI_Datatype *of)
{
    int integers, addresses, types, combiner, counts[1];
    MPI_Aint none[1];

    return !envelope(type, &integers, &addresses, &types, &combiner) &&
           (combiner == MPI_COMBINER_CONTIGUOUS || combiner == MPI_COMBINER_DUP) && integers <= 1 && !addresses && types == 1 &&
           !PMPI_Type_get_contents(type, integers, 0, 1, counts, none, of);
}

/* The elements are what the bytes are. */
static int is_plain(MPI_Datatype type, MPI_Count size)
{
    MPI_Datatype of;
    MPI_Count low, extent, of_size;
    int is_it;

    if (PMPI_Type_get_extent_x(type, &low, &extent) || low != 0 || size != extent) {
        return 0;
    }
    if (is_named(type) || !is_row(type, &of)) {
        return is_named(type);
    }
    is_it = !PMPI_Type_size_x(of, &of_size) && is_plain(of, of_size);
    if (!is_named(of)) {
        PMPI_Type_free(&of);
    }
    return is_it;
}

static int no_message(MPI_Comm comm, struct message *message, int code, const char *why)
{
    fprintf(stderr, "libxgvmi_mpi: a message of %lld bytes cannot start: %s\n", message ? (long long)message->bytes : 0, why);
    if (message) {
        release(message);
    }
    PMPI_Comm_call_errhandler(comm, code);
    return code;
}

HIDDEN int requested(struct message *message)
{
    int rc = PMPI_Grequest_start(query, gone, cancel, message, &message->request);

    if (!rc) {
        pthread_mutex_lock(&lock);
        message->next = *bucket(message->request);
        *bucket(message->request) = message;
        pthread_mutex_unlock(&lock);
    }
    return rc;
}

HIDDEN int start(struct message **started, struct served *served, MPI_Comm comm, int flags, const void *buffer, MPI_Count count,
                 MPI_Datatype type, MPI_Count size, int peer, int tag, MPI_Request *request)
{
    struct message *message = cleared(1, sizeof(*message));
    int rc = MPI_SUCCESS, is_received = (flags & RECEIVED) != 0;
    char why[512] = "", *bytes;

    if (!message) {
        return no_message(comm, NULL, MPI_ERR_NO_MEM, "no memory");
    }
    *message = (struct message){ .request = MPI_REQUEST_NULL, .halves = { MPI_REQUEST_NULL, MPI_REQUEST_NULL },
                                 .is_received = is_received, .source = is_received ? peer : served->me, .tag = tag,
                                 .bytes = count * size, .count = count, .size = size, .buffer = (char *)(uintptr_t)buffer,
                                 .served = served, .comm = comm, .type = MPI_DATATYPE_NULL };
    atomic_fetch_add(&served->users, 1);
    bytes = message->buffer;
    if ((flags & COPIED) || !is_plain(type, size)) {
        bytes = message->copy = malloc((size_t)message->bytes);
        if (!bytes) {
            return no_message(comm, message, MPI_ERR_NO_MEM, "no memory for a copy of its elements");
        }
        if (!is_received) {
            rc = move(message, type);
        } else {
            /* The program may free the type before. */
            rc = PMPI_Type_contiguous(1, type, &message->type);
            rc = rc ? rc : PMPI_Type_commit(&message->type);
        }
        if (rc) {
            return no_message(comm, message, rc, "its elements cannot be packed");
        }
    }
    if (request) {
        rc = requested(message);
        if (rc) {
            return no_message(comm, message, rc, "the MPI has no request for it");
        }
    }
    look_at_orphans();
    message->ticket = component.begin(served->job, is_received, (uint32_t)served->world[peer], (uint32_t)(served->first_tag + tag),
                                      bytes, (size_t)message->bytes, why, sizeof(why));
    if (!message->ticket) {
        if (!request) {
            return no_message(comm, message, MPI_ERR_OTHER, why);
        }
        fprintf(stderr, "libxgvmi_mpi: a message of %lld bytes cannot start: %s\n", (long long)message->bytes, why);
        MPI_Request unused = message->request;
        PMPI_Grequest_complete(unused);
        message->is_over = 1;
        typedef int function(MPI_Request *);
        OWN(function *, MPI_Request_free)
        MPI_Request_free_own(&unused);
        PMPI_Comm_call_errhandler(comm, MPI_ERR_OTHER);
        return MPI_ERR_OTHER;
    }
    atomic_fetch_add(&under_way, 1);
    if (request) {
        *request = message->request;
    }
    *started = message;
    return MPI_SUCCESS;
}

/* Waits for one without a request. */
static int finish(MPI_Comm comm, struct message *message, MPI_Status *status)
{
    int code;

    while (!look(message)) {
        look_at_orphans();
        rest_for(message);
    }
    code = message->code;
    tell(message, status);
    release(message);
    if (code) {
        PMPI_Comm_call_errhandler(comm, code);
    }
    return code;
}

/* --- The functions of MPI --- */

/* A message that starts here, and is complete at the return without a REQUEST. */
#define MOVE(name, C, tail, tail_names, COUNT, IS_RECEIVED, REQUEST, STATUS)                                          \
    FORMS(name, (C void *buffer, COUNT count, MPI_Datatype type, int peer, int tag, MPI_Comm comm tail),              \
          (buffer, count, type, peer, tag, comm tail_names),                                                          \
          switch (way_of(served, count, type, peer, tag, &size)) {                                                    \
          case SERVED: {                                                                                              \
              int rc = start(&message, served, comm, IS_RECEIVED, buffer, count, type, size, peer, tag, REQUEST);  \
              return rc || REQUEST ? rc : finish(comm, message, STATUS);                                              \
          }                                                                                                           \
          case BROKEN:                                                                                                \
              return broken(comm, "a receive with a wildcard");                                                       \
          case ITS_OWN:                                                                                               \
              break;                                                                                                  \
          })

#define MODES(suffix, COUNT)                                                                                          \
    MOVE(MPI_Send##suffix, const, , , COUNT, 0, NO_REQUEST, MPI_STATUS_IGNORE)                                        \
    MOVE(MPI_Ssend##suffix, const, , , COUNT, 0, NO_REQUEST, MPI_STATUS_IGNORE)                                       \
    MOVE(MPI_Rsend##suffix, const, , , COUNT, 0, NO_REQUEST, MPI_STATUS_IGNORE)                                       \
    MOVE(MPI_Isend##suffix, const, COMMA MPI_Request *request, COMMA request, COUNT, 0, request, MPI_STATUS_IGNORE)   \
    MOVE(MPI_Issend##suffix, const, COMMA MPI_Request *request, COMMA request, COUNT, 0, request, MPI_STATUS_IGNORE)  \
    MOVE(MPI_Irsend##suffix, const, COMMA MPI_Request *request, COMMA request, COUNT, 0, request, MPI_STATUS_IGNORE)  \
    MOVE(MPI_Recv##suffix, , COMMA MPI_Status *status, COMMA status, COUNT, 1, NO_REQUEST, status)                    \
    MOVE(MPI_Irecv##suffix, , COMMA MPI_Request *request, COMMA request, COUNT, 1, request, MPI_STATUS_IGNORE)

MODES(, int)
MODES(_c, MPI_Count)

int PMPI_Request_free(MPI_Request *request)
{
    typedef int function(MPI_Request *);
    struct message *message;
    OWN(function *, MPI_Request_free)

    if (!forget_plan(*request)) {
        message = atomic_load(&under_way) ? found(*request) : NULL;
        if (message && !message->is_over) {
            orphan(message);
        }
    }
    return MPI_Request_free_own(request);
}

int MPI_Request_free(MPI_Request *request)
{
    return PMPI_Request_free(request);
}

int PMPI_Finalize(void)
{
    typedef int function(void);
    OWN(function *, MPI_Finalize)

    while (atomic_load(&under_way) && look_at_orphans()) {
        rest();
    }
    return MPI_Finalize_own();
}

int MPI_Finalize(void)
{
    return PMPI_Finalize();
}
