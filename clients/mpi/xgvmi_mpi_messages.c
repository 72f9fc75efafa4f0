/*
 * Messages through the service processes, on communicators whose info has xgvmi_messages=BYTES (MPI_Comm_set_info or
 * MPI_Comm_dup_with_info).
 *
 * An MPI receive does not know how its message comes, and the service processes know no wildcards. So both ends decide by what both
 * know: the communicator, the two ranks, the tag, and the length in bytes. With the key the program says that each receive of
 * BYTES or more on this communicator names its source and tag, has the length of its message, and that no probe looks for it.
 * Messages of ranks and tags that cannot be served go by the MPI at both ends. Calls that break the promise visibly fail.
 *
 * The ranks agree when the key is set, because that is a collective call. A message's request is a generalized one. The service
 * processes move its bytes while the program is in no call, so no rank waits for a call of another one. No message may be under way
 * when the key is set.
 */
#include "xgvmi_mpi.h"
#include <sched.h>

#define KEY "xgvmi_messages"

/* Communicators of a rank with messages. The service's client has 65,536 pairs of a rank and a tag. */
enum { COMMUNICATORS = 8, TAGS_OF_ALL = 4096 };

/* --- The component of UCC, which has the connection --- */

typedef int job_function(uint32_t, uint32_t, uint8_t *);
typedef void *begin_function(const uint8_t *, int, uint32_t, uint32_t, void *, size_t, char *, size_t);
typedef int test_function(void *, char *, size_t);

static struct component {
    job_function *job;
    begin_function *begin;
    test_function *test;
} component;

/* UCC has loaded it for itself alone, and it stays until the process ends. */
static int has_component(void)
{
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;

    pthread_mutex_lock(&once);
    if (!component.test) {
        void *file = dlopen("libucc_tl_xgvmi.so", RTLD_NOLOAD | RTLD_LAZY);
        if (file) {
            component.job = (job_function *)dlsym(file, "xgvmi_message_job");
            component.begin = (begin_function *)dlsym(file, "xgvmi_message_begin");
            component.test = (test_function *)dlsym(file, "xgvmi_message_test");
        }
    }
    pthread_mutex_unlock(&once);
    return component.job && component.begin && component.test;
}

/* --- Communicators with messages --- */

/* An attribute of the communicator. */
struct served {
    uint8_t job[16];
    MPI_Count least;
    int first_tag, tags; /* of the service's tags: those of this communicator */
    int me, size;
    int world[]; /* ranks in the job */
};

static int key = MPI_KEYVAL_INVALID;
static int communicators;
static pthread_mutex_t key_lock = PTHREAD_MUTEX_INITIALIZER;

static int forget(MPI_Comm comm, int of, void *value, void *extra)
{
    (void)comm, (void)of, (void)extra;
    free(value);
    return MPI_SUCCESS;
}

static struct served *served_by(MPI_Comm comm)
{
    void *value = NULL;
    int flag = 0;

    if (key == MPI_KEYVAL_INVALID || comm == MPI_COMM_NULL || PMPI_Comm_get_attr(comm, key, &value, &flag) || !flag) {
        return NULL;
    }
    return value;
}

static void world_ranks(MPI_Comm comm, struct served *served, int world_size)
{
    MPI_Group ours, all;
    int at, *ranks = cleared((size_t)served->size, sizeof(int));

    for (at = 0; at < served->size; at++) {
        served->world[at] = MPI_UNDEFINED;
        if (ranks) {
            ranks[at] = at;
        }
    }
    if (ranks && !PMPI_Comm_group(comm, &ours)) {
        if (!PMPI_Comm_group(MPI_COMM_WORLD, &all)) {
            PMPI_Group_translate_ranks(ours, served->size, ranks, all, served->world);
            PMPI_Group_free(&all);
        }
        PMPI_Group_free(&ours);
    }
    for (at = 0; at < served->size; at++) {
        if (served->world[at] < 0 || served->world[at] >= world_size) {
            served->world[at] = -1;
        }
    }
    free(ranks);
}

/* Why this rank cannot serve the communicator; NULL if it can. */
static const char *obstacle(MPI_Comm comm, struct served **made, long long least)
{
    int at, size, rank, world_size, world_rank, is_inter = 1, is_there = 0;
    struct served *served;

    if (PMPI_Initialized(&is_there) || !is_there || PMPI_Comm_test_inter(comm, &is_inter) || is_inter) {
        return "the communicator is not one of ranks of MPI_COMM_WORLD";
    }
    if (least <= 0) {
        return "the value is not a number of bytes from 1";
    }
    if (!has_component()) {
        return "UCC's component for the service processes is not loaded";
    }
    PMPI_Comm_size(MPI_COMM_WORLD, &world_size);
    PMPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    PMPI_Comm_size(comm, &size);
    PMPI_Comm_rank(comm, &rank);
    if (key == MPI_KEYVAL_INVALID && PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, forget, &key, NULL)) {
        key = MPI_KEYVAL_INVALID;
        return "the MPI has no attribute for it";
    }
    served = malloc(sizeof(*served) + (size_t)size * sizeof(int));
    if (!served) {
        return "there is no memory";
    }
    *made = served;
    served->least = (MPI_Count)least;
    served->size = size;
    served->me = rank;
    served->tags = world_size > 1 ? TAGS_OF_ALL / (world_size - 1) : 0;
    world_ranks(comm, served, world_size);
    for (at = 0; at < size; at++) {
        if (served->world[at] < 0) {
            return "not all of its ranks are in MPI_COMM_WORLD";
        }
    }
    if (!served->tags) {
        return "MPI_COMM_WORLD has one rank or too many";
    }
    if (!component.job((uint32_t)world_rank, (uint32_t)world_size, served->job)) {
        return "MPI_COMM_WORLD has no job at the service processes (has it had a collective?)";
    }
    return NULL;
}

/* The ranks of a communicator agree on whether it has messages. */
static int agree(MPI_Comm comm, MPI_Info info, int rc)
{
    enum { FAULT, NUMBER, LEAST, JOB = LEAST + 2, ALL = JOB + 8 };
    char text[MPI_MAX_INFO_VAL + 1];
    struct served *served = NULL;
    long long mine[ALL] = { 0 }, most[ALL] = { 0 };
    const char *why;
    uint32_t job[4];
    char *end;
    int at, flag = 0, number, rank;

    if (rc || info == MPI_INFO_NULL || comm == MPI_COMM_NULL || served_by(comm) ||
        PMPI_Info_get(info, KEY, MPI_MAX_INFO_VAL, text, &flag) || !flag) {
        return rc;
    }
    mine[LEAST] = strtoll(text, &end, 10);
    pthread_mutex_lock(&key_lock);
    number = communicators++;
    why = obstacle(comm, &served, *end ? 0 : mine[LEAST]);
    pthread_mutex_unlock(&key_lock);
    if (!why) {
        memcpy(job, served->job, sizeof(job));
        mine[LEAST + 1] = -mine[LEAST];
        for (at = 0; at < 4; at++) {
            mine[JOB + 2 * at] = job[at];
            mine[JOB + 2 * at + 1] = -(long long)job[at];
        }
    }
    mine[FAULT] = why != NULL;
    mine[NUMBER] = number;
    rc = PMPI_Allreduce(mine, most, ALL, MPI_LONG_LONG, MPI_MAX, comm);
    if (!rc && !most[FAULT] && most[NUMBER] >= COMMUNICATORS) {
        why = "a rank has eight such communicators already";
    }
    for (at = LEAST; at < ALL && !most[FAULT] && !why; at += 2) {
        if (most[at] != -most[at + 1]) {
            why = "the ranks have different values, or are in different jobs";
        }
    }
    pthread_mutex_lock(&key_lock);
    communicators = most[NUMBER] >= communicators ? (int)most[NUMBER] + 1 : communicators;
    pthread_mutex_unlock(&key_lock);
    if (!rc && !why && !most[FAULT]) {
        served->first_tag = (int)most[NUMBER] * served->tags;
        rc = PMPI_Comm_set_attr(comm, key, served);
    } else {
        free(served);
    }
    /* One rank prints its own reason, or that another one has one. */
    if (!PMPI_Comm_rank(comm, &rank) && (why || most[FAULT]) && rank == 0) {
        fprintf(stderr, "libxgvmi_mpi: messages of a communicator go by the MPI in spite of its info " KEY ": %s\n",
                why ? why : "another rank cannot serve it");
    }
    return rc;
}

#define WITH_INFO(name, parameters, arguments, COMM)                                                                  \
    int P##name parameters                                                                                            \
    {                                                                                                                 \
        typedef int function parameters;                                                                              \
        OWN(function *, name)                                                                                         \
        int rc = name##_own arguments;                                                                                \
        return agree(rc ? MPI_COMM_NULL : (COMM), info, rc);                                                          \
    }                                                                                                                 \
    int name parameters                                                                                               \
    {                                                                                                                 \
        return P##name arguments;                                                                                     \
    }

WITH_INFO(MPI_Comm_set_info, (MPI_Comm comm, MPI_Info info), (comm, info), comm)
WITH_INFO(MPI_Comm_dup_with_info, (MPI_Comm old, MPI_Info info, MPI_Comm *comm), (old, info, comm), *comm)

/* --- Messages --- */

struct message {
    struct message *next, *next_orphan;
    MPI_Request request; /* a generalized one, or MPI_REQUEST_NULL */
    void *ticket;
    int is_over, code;
    int is_received, source, tag;
    MPI_Count bytes, count;
    /* Elements whose bytes are elsewhere. */
    char *copy, *buffer;
    MPI_Datatype type; /* of this library, or MPI_DATATYPE_NULL */
};

enum { BUCKETS = 1024 };
static struct message *table[BUCKETS], *orphans;
/* The MPI calls functions of this library with locks of its own, and they take this one: who holds it calls nothing of MPI. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_long under_way;

static struct message **bucket(MPI_Request request)
{
    return &table[(kept(request) * 0x9e3779b97f4a7c15u) >> 54];
}

static void release(struct message *message)
{
    if (message->type != MPI_DATATYPE_NULL) {
        PMPI_Type_free(&message->type);
    }
    free(message->copy);
    free(message);
}

/* Moves the elements between their buffer and the copy. */
static int move(struct message *message, MPI_Datatype type)
{
    char *at = message->copy, *to = message->buffer;
    MPI_Count left = message->count, size = message->bytes / message->count, most = INT_MAX / size;
    MPI_Aint low, extent;
    int rc = PMPI_Type_get_extent(type, &low, &extent);

    if (!most) {
        return MPI_ERR_TYPE;
    }
    while (left && !rc) {
        int some = (int)(left < most ? left : most), length = (int)(some * size), position = 0;
        if (message->is_received) {
            rc = PMPI_Unpack(at, length, &position, to, some, type, MPI_COMM_SELF);
        } else {
            rc = PMPI_Pack(to, some, type, at, length, &position, MPI_COMM_SELF);
        }
        at += length;
        to = (char *)((uintptr_t)to + (uintptr_t)(extent * some));
        left -= some;
    }
    return rc;
}

/* Looks at a message. Returns whether it is over. */
static int look(struct message *message)
{
    char why[512] = "";
    int answer = 0, is_over;

    pthread_mutex_lock(&lock);
    if (!message->is_over) {
        answer = component.test(message->ticket, why, sizeof(why));
        message->is_over = answer != 0;
    }
    is_over = message->is_over;
    pthread_mutex_unlock(&lock);
    if (answer) {
        if (answer < 0) {
            fprintf(stderr, "libxgvmi_mpi: a message has failed: %s\n", why);
            message->code = MPI_ERR_OTHER;
        } else if (message->copy && message->is_received) {
            message->code = move(message, message->type);
        }
        atomic_fetch_sub(&under_way, 1);
        if (message->request != MPI_REQUEST_NULL) {
            PMPI_Grequest_complete(message->request);
        }
    }
    return is_over;
}

/* Looks at the messages whose requests the program has freed. Returns whether there are any. */
static int look_at_orphans(void)
{
    struct message **link, *message, *over = NULL;
    int any;

    pthread_mutex_lock(&lock);
    for (link = &orphans; (message = *link) != NULL;) {
        char why[512] = "";
        int answer = component.test(message->ticket, why, sizeof(why));
        if (!answer) {
            link = &message->next_orphan;
            continue;
        }
        message->is_over = 1;
        message->code = answer < 0 ? MPI_ERR_OTHER : MPI_SUCCESS;
        *link = message->next_orphan;
        message->next_orphan = over;
        over = message;
        if (answer < 0) {
            fprintf(stderr, "libxgvmi_mpi: a message has failed: %s\n", why);
        }
    }
    any = orphans != NULL;
    pthread_mutex_unlock(&lock);
    while ((message = over) != NULL) {
        over = message->next_orphan;
        if (!message->code && message->copy && message->is_received) {
            move(message, message->type);
        }
        atomic_fetch_sub(&under_way, 1);
        PMPI_Grequest_complete(message->request);
    }
    return any;
}

/* A rank that waits makes the MPI's progress too. */
static void rest(void)
{
    int flag;

    PMPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_SELF, &flag, MPI_STATUS_IGNORE);
    sched_yield();
}

static void tell(const struct message *message, MPI_Status *status)
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

    tell(message, status);
    return message->code;
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
    release(message);
    return MPI_SUCCESS;
}

static int cancel(void *extra, int is_complete)
{
    const struct message *message = extra;

    if (!is_complete && message->is_received) {
        fprintf(stderr, "libxgvmi_mpi: MPI_Cancel of a receive on a communicator with " KEY "\n");
        return MPI_ERR_OTHER;
    }
    return MPI_SUCCESS;
}

static struct message *found(MPI_Request request)
{
    struct message *message;

    if (request == MPI_REQUEST_NULL) {
        return NULL;
    }
    pthread_mutex_lock(&lock);
    for (message = *bucket(request); message && message->request != request; message = message->next) {
    }
    pthread_mutex_unlock(&lock);
    return message;
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
            rest();
        }
    }
    return any;
}

HIDDEN void rest_for_messages(void)
{
    rest();
}

/* --- One call --- */

enum way { ITS_OWN, SERVED, BROKEN };

/* How a message of these arguments goes. */
static enum way way_of(struct served *served, MPI_Count count, MPI_Datatype type, int peer, int tag, MPI_Count *size)
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

static int broken(MPI_Comm comm, const char *what)
{
    fprintf(stderr, "libxgvmi_mpi: %s of as many bytes as the communicator's info " KEY " says, or more\n", what);
    PMPI_Comm_call_errhandler(comm, MPI_ERR_OTHER);
    return MPI_ERR_OTHER;
}

/* The elements are what the bytes are. */
static int is_plain(MPI_Datatype type, MPI_Count size)
{
    int integers, addresses, types, combiner;
    MPI_Aint low, extent;

    return !PMPI_Type_get_extent(type, &low, &extent) &&
           !PMPI_Type_get_envelope(type, &integers, &addresses, &types, &combiner) && combiner == MPI_COMBINER_NAMED && low == 0 &&
           size == (MPI_Count)extent;
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

/* Starts a message of `size` bytes an element. With `request` it is a generalized one. */
static int start(struct message **started, struct served *served, MPI_Comm comm, int is_received, const void *buffer, MPI_Count count,
                 MPI_Datatype type, MPI_Count size, int peer, int tag, MPI_Request *request)
{
    struct message *message = cleared(1, sizeof(*message));
    char why[512] = "", *bytes;
    int rc = MPI_SUCCESS;

    if (!message) {
        return no_message(comm, NULL, MPI_ERR_NO_MEM, "no memory");
    }
    *message = (struct message){ .request = MPI_REQUEST_NULL, .is_received = is_received, .source = is_received ? peer : served->me,
                                 .tag = tag, .bytes = count * size, .count = count, .buffer = (char *)(uintptr_t)buffer,
                                 .type = MPI_DATATYPE_NULL };
    bytes = message->buffer;
    if (!is_plain(type, size)) {
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
        rc = PMPI_Grequest_start(query, gone, cancel, message, &message->request);
        if (rc) {
            return no_message(comm, message, rc, "the MPI has no request for it");
        }
        pthread_mutex_lock(&lock);
        message->next = *bucket(message->request);
        *bucket(message->request) = message;
        pthread_mutex_unlock(&lock);
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
        rest();
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

#define FORMS(name, parameters, arguments, BODY)                                                                      \
    int P##name parameters                                                                                            \
    {                                                                                                                 \
        typedef int function parameters;                                                                              \
        struct message *message;                                                                                      \
        struct served *served = served_by(comm);                                                                      \
        MPI_Count size = 0;                                                                                           \
        (void)message, (void)size;                                                                                    \
        if (served) {                                                                                                 \
            BODY                                                                                                      \
        }                                                                                                             \
        OWN(function *, name)                                                                                         \
        return name##_own arguments;                                                                                  \
    }                                                                                                                 \
    int name parameters                                                                                               \
    {                                                                                                                 \
        return P##name arguments;                                                                                     \
    }

#define COMMA ,

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

#define NO_REQUEST ((MPI_Request *)NULL)
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

/* A call that cannot be served. */
#define REFUSED(name, what, C, COUNT)                                                                                 \
    FORMS(name,                                                                                                       \
          (C void *buffer, COUNT count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request *request),   \
          (buffer, count, type, peer, tag, comm, request),                                                            \
          if (way_of(served, count, type, peer, tag, &size) != ITS_OWN) {                                             \
              return broken(comm, what);                                                                              \
          })

#define PERSISTENT "a persistent message"
#define BUFFERED "a buffered message"
#define NEVER(suffix, COUNT)                                                                                          \
    REFUSED(MPI_Send_init##suffix, PERSISTENT, const, COUNT)                                                          \
    REFUSED(MPI_Ssend_init##suffix, PERSISTENT, const, COUNT)                                                         \
    REFUSED(MPI_Rsend_init##suffix, PERSISTENT, const, COUNT)                                                         \
    REFUSED(MPI_Bsend_init##suffix, PERSISTENT, const, COUNT)                                                         \
    REFUSED(MPI_Recv_init##suffix, PERSISTENT, , COUNT)                                                               \
    REFUSED(MPI_Ibsend##suffix, BUFFERED, const, COUNT)                                                               \
    FORMS(MPI_Bsend##suffix, (const void *buffer, COUNT count, MPI_Datatype type, int peer, int tag, MPI_Comm comm),  \
          (buffer, count, type, peer, tag, comm),                                                                     \
          if (way_of(served, count, type, peer, tag, &size) != ITS_OWN) {                                             \
              return broken(comm, BUFFERED);                                                                          \
          })

NEVER(, int)
NEVER(_c, MPI_Count)

/* Packs the elements of a call that replaces them. */
static int packed(MPI_Comm comm, void *buffer, MPI_Count count, MPI_Datatype type, MPI_Count size, char **copy)
{
    struct message elements = { .buffer = buffer, .count = count, .bytes = count * size };
    int rc = MPI_ERR_COUNT;

    if (elements.bytes <= INT_MAX) {
        *copy = elements.copy = malloc((size_t)elements.bytes);
        rc = *copy ? move(&elements, type) : MPI_ERR_NO_MEM;
    }
    if (rc) {
        fprintf(stderr, "libxgvmi_mpi: MPI_Sendrecv_replace has 2 GiB or more, or no memory for a copy\n");
        PMPI_Comm_call_errhandler(comm, rc);
    }
    return rc;
}

/* Both ways at once. Each of the two goes as it would alone. */
#define BOTH_WAYS(suffix, COUNT)                                                                                      \
    FORMS(MPI_Sendrecv##suffix,                                                                                       \
          (const void *from, COUNT sent, MPI_Datatype sent_type, int to, int sent_tag, void *into, COUNT received,    \
           MPI_Datatype received_type, int source, int received_tag, MPI_Comm comm, MPI_Status *status),              \
          (from, sent, sent_type, to, sent_tag, into, received, received_type, source, received_tag, comm, status),   \
          MPI_Request receive; MPI_Request send;                                                                      \
          int rc = PMPI_Irecv##suffix(into, received, received_type, source, received_tag, comm, &receive);           \
          if (rc) {                                                                                                   \
              return rc;                                                                                              \
          }                                                                                                           \
          rc = PMPI_Isend##suffix(from, sent, sent_type, to, sent_tag, comm, &send);                                  \
          if (rc) {                                                                                                   \
              PMPI_Request_free(&receive);                                                                            \
              return rc;                                                                                              \
          }                                                                                                           \
          rc = PMPI_Wait(&receive, status);                                                                           \
          int sent_rc = PMPI_Wait(&send, MPI_STATUS_IGNORE);                                                          \
          return rc ? rc : sent_rc;)                                                                                                 \
    FORMS(MPI_Sendrecv_replace##suffix,                                                                               \
          (void *buffer, COUNT count, MPI_Datatype type, int to, int sent_tag, int source, int received_tag,          \
           MPI_Comm comm, MPI_Status *status),                                                                        \
          (buffer, count, type, to, sent_tag, source, received_tag, comm, status),                                    \
          if (way_of(served, count, type, to, sent_tag, &size) != ITS_OWN ||                                          \
              way_of(served, count, type, source, received_tag, &size) != ITS_OWN) {                                  \
              char *copy = NULL;                                                                                      \
              int rc = packed(comm, buffer, count, type, size, &copy);                                                \
              if (!rc) {                                                                                              \
                  rc = PMPI_Sendrecv##suffix(copy, (COUNT)(count * size), MPI_PACKED, to, sent_tag, buffer, count,    \
                                             type, source, received_tag, comm, status);                               \
              }                                                                                                       \
              free(copy);                                                                                             \
              return rc;                                                                                              \
          })

#if MPI_VERSION < 4
int PMPI_Irecv_c(void *, MPI_Count, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int PMPI_Isend_c(const void *, MPI_Count, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
int PMPI_Sendrecv_c(const void *, MPI_Count, MPI_Datatype, int, int, void *, MPI_Count, MPI_Datatype, int, int, MPI_Comm,
                    MPI_Status *);
#endif

BOTH_WAYS(, int)
BOTH_WAYS(_c, MPI_Count)

#if MPI_VERSION >= 4 || defined(OMPI_MAJOR_VERSION)
FORMS(MPI_Isendrecv,
      (const void *from, int sent, MPI_Datatype sent_type, int to, int sent_tag, void *into, int received,
       MPI_Datatype received_type, int source, int received_tag, MPI_Comm comm, MPI_Request *request),
      (from, sent, sent_type, to, sent_tag, into, received, received_type, source, received_tag, comm, request),
      if (way_of(served, sent, sent_type, to, sent_tag, &size) != ITS_OWN ||
          way_of(served, received, received_type, source, received_tag, &size) != ITS_OWN) {
          return broken(comm, "MPI_Isendrecv");
      })
FORMS(MPI_Isendrecv_replace,
      (void *buffer, int count, MPI_Datatype type, int to, int sent_tag, int source, int received_tag, MPI_Comm comm,
       MPI_Request *request),
      (buffer, count, type, to, sent_tag, source, received_tag, comm, request),
      if (way_of(served, count, type, to, sent_tag, &size) != ITS_OWN ||
          way_of(served, count, type, source, received_tag, &size) != ITS_OWN) {
          return broken(comm, "MPI_Isendrecv_replace");
      })
#endif

int PMPI_Request_free(MPI_Request *request)
{
    typedef int function(MPI_Request *);
    struct message *message;
    OWN(function *, MPI_Request_free)

    message = atomic_load(&under_way) ? found(*request) : NULL;
    if (message) {
        pthread_mutex_lock(&lock);
        if (!message->is_over) {
            message->next_orphan = orphans;
            orphans = message;
        }
        pthread_mutex_unlock(&lock);
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
