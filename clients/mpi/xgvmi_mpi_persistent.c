/*
 * Persistent messages, and those of the program's attached buffer. See xgvmi_mpi_messages.c.
 *
 * The other end of a message does not know whether a call is persistent or buffered, so these are served as others are. A persistent
 * request of this library is one of the MPI: a receive of nothing that this rank sends to itself when the message is over. So all
 * functions that complete requests work on it, and then it is inactive and stays; xgvmi_mpi_requests.c sets its status.
 *
 * A buffered message is a copy. The copies under way are no longer than the buffers that the program has attached.
 */
#include "xgvmi_mpi_messages.h"

/* Persistent requests of a rank, each with a tag of its own; the MPI may have no greater one. */
enum { PLANS = 32767, BUCKETS = 1024 };
/* Beside the flags of start(). */
enum { BUFFERS = 4 };

struct plan {
    struct plan *next;
    MPI_Request request;
    int tag_of_end;
    struct served *served;
    MPI_Comm comm;
    int flags, peer, tag;
    const void *buffer;
    MPI_Count count, size;
    MPI_Datatype type;
    struct message *active;
};

static struct plan *table[BUCKETS];
static uint8_t has_tag[PLANS];
static MPI_Comm ends = MPI_COMM_NULL;
/* Who holds the first one calls nothing of MPI; the second one is for the communicator of the ends. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, ends_lock = PTHREAD_MUTEX_INITIALIZER;
atomic_long plans;

/* --- The attached buffer --- */

static MPI_Count attached, used;
/* Communicators and sessions may have buffers of their own, and a buffer may grow. */
static int is_endless;

static int reserve(MPI_Count bytes)
{
    int is_there;

    pthread_mutex_lock(&lock);
    is_there = is_endless || used + bytes <= attached;
    used += is_there ? bytes : 0;
    pthread_mutex_unlock(&lock);
    return is_there;
}

HIDDEN void unbuffer(MPI_Count bytes)
{
    pthread_mutex_lock(&lock);
    used -= bytes;
    pthread_mutex_unlock(&lock);
}

static void attach(MPI_Count bytes, int endless)
{
    pthread_mutex_lock(&lock);
    attached = bytes;
    is_endless = endless;
    pthread_mutex_unlock(&lock);
}

/* Until the messages of the buffer are over. */
static void detach(void)
{
    MPI_Count left;

    do {
        pthread_mutex_lock(&lock);
        left = used;
        pthread_mutex_unlock(&lock);
        if (left) {
            look_at_orphans();
            rest();
        }
    } while (left);
    attach(0, 0);
}

/* A send that is complete for the program when it has started. */
static int buffered(struct served *served, MPI_Comm comm, const void *buffer, MPI_Count count, MPI_Datatype type, MPI_Count size,
                    int peer, int tag)
{
    MPI_Count bytes = count * size + MPI_BSEND_OVERHEAD;
    struct message *message;
    int rc;

    look_at_orphans();
    if (!reserve(bytes)) {
        fprintf(stderr, "libxgvmi_mpi: a buffered message of %lld bytes, for which the attached buffer has no room\n",
                (long long)(count * size));
        PMPI_Comm_call_errhandler(comm, MPI_ERR_BUFFER);
        return MPI_ERR_BUFFER;
    }
    rc = start(&message, served, comm, COPIED, buffer, count, type, size, peer, tag, NO_REQUEST);
    if (rc) {
        unbuffer(bytes);
        return rc;
    }
    message->buffered = bytes;
    orphan(message);
    return MPI_SUCCESS;
}

/* The request of a send that is complete. */
static int complete(MPI_Comm comm, MPI_Request *request)
{
    struct message *message = cleared(1, sizeof(*message));
    int rc = MPI_ERR_NO_MEM;

    if (message) {
        *message = (struct message){ .is_over = 1, .halves = { MPI_REQUEST_NULL, MPI_REQUEST_NULL }, .type = MPI_DATATYPE_NULL };
        rc = requested(message);
    }
    if (rc) {
        free(message);
        PMPI_Comm_call_errhandler(comm, rc);
        return rc;
    }
    *request = message->request;
    return PMPI_Grequest_complete(message->request);
}

#define BUFFERED(suffix, COUNT)                                                                                       \
    FORMS(MPI_Bsend##suffix, (const void *buffer, COUNT count, MPI_Datatype type, int peer, int tag, MPI_Comm comm),  \
          (buffer, count, type, peer, tag, comm),                                                                     \
          if (way_of(served, count, type, peer, tag, &size) == SERVED) {                                              \
              return buffered(served, comm, buffer, count, type, size, peer, tag);                                    \
          })                                                                                                          \
    FORMS(MPI_Ibsend##suffix,                                                                                         \
          (const void *buffer, COUNT count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request *request), \
          (buffer, count, type, peer, tag, comm, request),                                                            \
          if (way_of(served, count, type, peer, tag, &size) == SERVED) {                                              \
              int rc = buffered(served, comm, buffer, count, type, size, peer, tag);                                  \
              return rc ? rc : complete(comm, request);                                                               \
          })

BUFFERED(, int)
BUFFERED(_c, MPI_Count)

/* A function that attaches a buffer, or detaches one. */
#define BUFFER(name, parameters, arguments, BEFORE, AFTER)                                                            \
    int P##name parameters                                                                                            \
    {                                                                                                                 \
        typedef int function parameters;                                                                              \
        OWN(function *, name)                                                                                         \
        BEFORE;                                                                                                       \
        int rc = name##_own arguments;                                                                                \
        if (!rc) {                                                                                                    \
            AFTER;                                                                                                    \
        }                                                                                                             \
        return rc;                                                                                                    \
    }                                                                                                                 \
    int name parameters                                                                                               \
    {                                                                                                                 \
        return P##name arguments;                                                                                     \
    }

#ifdef MPI_BUFFER_AUTOMATIC
#define GROWS(buffer) ((buffer) == MPI_BUFFER_AUTOMATIC)
#else
#define GROWS(buffer) 0
#endif

BUFFER(MPI_Buffer_attach, (void *buffer, int size), (buffer, size), , attach(size, GROWS(buffer)))
BUFFER(MPI_Buffer_attach_c, (void *buffer, MPI_Count size), (buffer, size), , attach(size, GROWS(buffer)))
BUFFER(MPI_Buffer_detach, (void *buffer, int *size), (buffer, size), detach(), (void)0)
BUFFER(MPI_Buffer_detach_c, (void *buffer, MPI_Count *size), (buffer, size), detach(), (void)0)
#if MPI_VERSION > 4 || (MPI_VERSION == 4 && MPI_SUBVERSION >= 1) || defined(XGVMI_MPI_4_1)
BUFFER(MPI_Comm_attach_buffer, (MPI_Comm comm, void *buffer, int size), (comm, buffer, size), , attach(0, 1))
BUFFER(MPI_Comm_attach_buffer_c, (MPI_Comm comm, void *buffer, MPI_Count size), (comm, buffer, size), , attach(0, 1))
#endif

/* --- Persistent requests --- */

static struct plan **bucket(MPI_Request request)
{
    return &table[(kept(request) * 0x9e3779b97f4a7c15u) >> 54];
}

static struct plan *plan_of(MPI_Request request)
{
    struct plan *plan;

    if (!atomic_load(&plans) || request == MPI_REQUEST_NULL) {
        return NULL;
    }
    pthread_mutex_lock(&lock);
    for (plan = *bucket(request); plan && plan->request != request; plan = plan->next) {
    }
    pthread_mutex_unlock(&lock);
    return plan;
}

HIDDEN struct message *active_of(MPI_Request request)
{
    struct plan *plan = plan_of(request);

    return plan ? plan->active : NULL;
}

HIDDEN void plan_over(struct plan *plan)
{
    PMPI_Send(NULL, 0, MPI_BYTE, 0, plan->tag_of_end, ends);
}

static int new_tag(void)
{
    static int last;
    int times, tag = -1;

    pthread_mutex_lock(&lock);
    for (times = 0; times < PLANS && tag < 0; times++) {
        last = (last + 1) % PLANS;
        tag = has_tag[last] ? -1 : last;
    }
    if (tag >= 0) {
        has_tag[tag] = 1;
    }
    pthread_mutex_unlock(&lock);
    return tag;
}

static void release_plan(struct plan *plan)
{
    if (plan->tag_of_end >= 0) {
        pthread_mutex_lock(&lock);
        has_tag[plan->tag_of_end] = 0;
        pthread_mutex_unlock(&lock);
    }
    if (plan->type != MPI_DATATYPE_NULL) {
        PMPI_Type_free(&plan->type);
    }
    release_served(plan->served);
    free(plan);
}

static int new_plan(struct plan *plan)
{
    MPI_Datatype type = plan->type;
    int rc;

    plan->type = MPI_DATATYPE_NULL;
    plan->tag_of_end = new_tag();
    if (plan->tag_of_end < 0) {
        fprintf(stderr, "libxgvmi_mpi: a rank has %d persistent messages already\n", PLANS);
        return MPI_ERR_NO_MEM;
    }
    pthread_mutex_lock(&ends_lock);
    rc = ends == MPI_COMM_NULL ? PMPI_Comm_split(MPI_COMM_SELF, 0, 0, &ends) : MPI_SUCCESS;
    pthread_mutex_unlock(&ends_lock);
    /* The program may free the type before. */
    rc = rc ? rc : PMPI_Type_dup(type, &plan->type);
    rc = rc ? rc : PMPI_Recv_init(NULL, 0, MPI_BYTE, 0, plan->tag_of_end, ends, &plan->request);
    if (rc) {
        return rc;
    }
    pthread_mutex_lock(&lock);
    plan->next = *bucket(plan->request);
    *bucket(plan->request) = plan;
    pthread_mutex_unlock(&lock);
    atomic_fetch_add(&plans, 1);
    return MPI_SUCCESS;
}

static int prepare(struct served *served, MPI_Comm comm, int flags, const void *buffer, MPI_Count count, MPI_Count size,
                   MPI_Datatype type, int peer, int tag, MPI_Request *request)
{
    struct plan *plan = malloc(sizeof(*plan));
    int rc = MPI_ERR_NO_MEM;

    if (plan) {
        *plan = (struct plan){ .served = served, .comm = comm, .flags = flags, .buffer = buffer, .count = count, .size = size,
                               .type = type, .peer = peer, .tag = tag, .request = MPI_REQUEST_NULL };
        atomic_fetch_add(&served->users, 1);
        rc = new_plan(plan);
        if (!rc) {
            *request = plan->request;
            return rc;
        }
        release_plan(plan);
    }
    PMPI_Comm_call_errhandler(comm, rc);
    return rc;
}

#define PREPARED(name, C, COUNT, FLAGS)                                                                               \
    FORMS(name,                                                                                                       \
          (C void *buffer, COUNT count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request *request),   \
          (buffer, count, type, peer, tag, comm, request),                                                            \
          switch (way_of(served, count, type, peer, tag, &size)) {                                                    \
          case SERVED:                                                                                                \
              return prepare(served, comm, FLAGS, buffer, count, size, type, peer, tag, request); \
          case BROKEN:                                                                                                \
              return broken(comm, "a receive with a wildcard");                                                       \
          case ITS_OWN:                                                                                               \
              break;                                                                                                  \
          })

#define INITS(suffix, COUNT)                                                                                          \
    PREPARED(MPI_Send_init##suffix, const, COUNT, 0)                                                               \
    PREPARED(MPI_Ssend_init##suffix, const, COUNT, 0)                                                              \
    PREPARED(MPI_Rsend_init##suffix, const, COUNT, 0)                                                              \
    PREPARED(MPI_Bsend_init##suffix, const, COUNT, BUFFERS)                                                              \
    PREPARED(MPI_Recv_init##suffix, , COUNT, RECEIVED)

INITS(, int)
INITS(_c, MPI_Count)

static int begin(struct plan *plan, MPI_Request *request)
{
    MPI_Comm comm = of_errors(plan->served, plan->comm);
    struct message *message = NULL;
    int rc;
    typedef int function(MPI_Request *);
    OWN(function *, MPI_Start)

    if (plan->flags & BUFFERS) {
        rc = buffered(plan->served, comm, plan->buffer, plan->count, plan->type, plan->size, plan->peer, plan->tag);
    } else {
        rc = start(&message, plan->served, comm, plan->flags, plan->buffer, plan->count, plan->type, plan->size, plan->peer, plan->tag,
                   NO_REQUEST);
    }
    if (rc) {
        return rc;
    }
    rc = MPI_Start_own(request);
    if (message) {
        message->plan = plan;
        plan->active = message;
    } else {
        plan_over(plan);
    }
    return rc;
}

int PMPI_Start(MPI_Request *request)
{
    struct plan *plan = plan_of(*request);
    typedef int function(MPI_Request *);
    OWN(function *, MPI_Start)

    return plan ? begin(plan, request) : MPI_Start_own(request);
}

int MPI_Start(MPI_Request *request)
{
    return PMPI_Start(request);
}

int PMPI_Startall(int count, MPI_Request requests[])
{
    int at, rc = MPI_SUCCESS;
    typedef int function(int, MPI_Request *);
    OWN(function *, MPI_Startall)

    if (!atomic_load(&plans)) {
        return MPI_Startall_own(count, requests);
    }
    for (at = 0; at < count && !rc; at++) {
        rc = PMPI_Start(&requests[at]);
    }
    return rc;
}

int MPI_Startall(int count, MPI_Request requests[])
{
    return PMPI_Startall(count, requests);
}

HIDDEN int plan_ended(MPI_Request request, MPI_Status *status, int stays)
{
    struct plan *plan = plan_of(request);
    struct message *message = plan ? plan->active : NULL;
    int code;

    if (!message || !message->is_over) {
        return MPI_SUCCESS;
    }
    tell(message, status);
    code = message->code;
    if (!stays) {
        plan->active = NULL;
        release(message);
    }
    if (code) {
        PMPI_Comm_call_errhandler(of_errors(plan->served, plan->comm), code);
    }
    return code;
}

HIDDEN int forget_plan(MPI_Request request)
{
    struct plan *plan = plan_of(request), **link;

    if (!plan) {
        return 0;
    }
    pthread_mutex_lock(&lock);
    for (link = bucket(request); *link != plan; link = &(*link)->next) {
    }
    *link = plan->next;
    pthread_mutex_unlock(&lock);
    atomic_fetch_sub(&plans, 1);
    if (plan->active) {
        plan->active->plan = NULL;
        if (plan->active->is_over) {
            release(plan->active);
        } else {
            plan_over(plan);
            orphan(plan->active);
        }
    }
    release_plan(plan);
    return 1;
}

int PMPI_Cancel(MPI_Request *request)
{
    struct message *message = found(*request);
    typedef int function(MPI_Request *);
    OWN(function *, MPI_Cancel)

    if (!message && !plan_of(*request)) {
        return MPI_Cancel_own(request);
    }
    /* A send may complete in spite of it. */
    if (message && !message->is_over && message->is_received) {
        return broken(of_errors(message->served, message->comm), "MPI_Cancel of a receive");
    }
    return MPI_SUCCESS;
}

int MPI_Cancel(MPI_Request *request)
{
    return PMPI_Cancel(request);
}
