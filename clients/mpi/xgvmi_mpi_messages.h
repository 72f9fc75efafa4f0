/* What the files about messages share. See xgvmi_mpi_messages.c. */
#ifndef XGVMI_MPI_MESSAGES_H
#define XGVMI_MPI_MESSAGES_H

#include "xgvmi_mpi.h"

#define KEY "xgvmi_messages"

/* --- xgvmi_mpi_agree.c --- */

/* The component of UCC, which has the connection. */
typedef int job_function(uint32_t, uint32_t, uint8_t *);
typedef void *begin_function(const uint8_t *, int, uint32_t, uint32_t, void *, size_t, char *, size_t);
typedef int end_function(void *, size_t *, char *, size_t);
typedef void rest_function(void *);

HIDDEN extern struct component {
    job_function *job;
    begin_function *begin;
    end_function *end;
    rest_function *rest;
} component;

/* A communicator with messages, as its attribute. */
struct served {
    atomic_int users; /* the communicator, and persistent requests */
    atomic_int is_gone; /* the communicator is freed */
    uint8_t job[16];
    MPI_Count least;
    int part, first_tag, tags; /* of the service's tags: those of this communicator */
    int me, size;
    int world[]; /* ranks in the job */
};

HIDDEN struct served *served_by(MPI_Comm comm);
HIDDEN void release_served(struct served *served);

/* --- xgvmi_mpi_messages.c --- */

struct plan;

struct message {
    struct message *next, *next_orphan;
    MPI_Request request; /* a generalized one, or MPI_REQUEST_NULL */
    struct plan *plan; /* the persistent request that has started it, or NULL */
    void *ticket;
    struct served *served; /* NULL without a ticket */
    MPI_Comm comm;
    int is_over, code;
    int is_received, source, tag;
    MPI_Count bytes, count, size; /* a receive has the bytes of its message at its end */
    /* Elements whose bytes are elsewhere. */
    char *copy, *buffer;
    MPI_Datatype type; /* of this library, or MPI_DATATYPE_NULL */
    MPI_Count buffered; /* bytes of the program's attached buffer that it counts for */
    /* Without a ticket: a receive and a send as one request. */
    MPI_Request halves[2];
    MPI_Status received;
};

/* The communicator whose error handler an error of a message calls: it may be freed. */
static inline MPI_Comm of_errors(const struct served *served, MPI_Comm comm)
{
    return atomic_load(&served->is_gone) ? MPI_COMM_SELF : comm;
}

enum way { ITS_OWN, SERVED, BROKEN };
/* What a message is besides a send that waits in the program's memory. */
enum { RECEIVED = 1, COPIED = 2 };

/* How a message of these arguments goes; the size of an element. */
HIDDEN enum way way_of(struct served *served, MPI_Count count, MPI_Datatype type, int peer, int tag, MPI_Count *size);
HIDDEN int broken(MPI_Comm comm, const char *what);
/* Starts a message of `size` bytes an element. With `request` it is a generalized one. */
HIDDEN int start(struct message **started, struct served *served, MPI_Comm comm, int flags, const void *buffer, MPI_Count count,
                 MPI_Datatype type, MPI_Count size, int peer, int tag, MPI_Request *request);
/* The message of a request, if it is one of this library; that of a persistent request while it is under way. */
HIDDEN struct message *found(MPI_Request request);
/* Makes a request of a message. */
HIDDEN int requested(struct message *message);
/* The program has no request of it any more. */
HIDDEN void orphan(struct message *message);
/* Looks at the messages without requests. Returns whether there are any. */
HIDDEN int look_at_orphans(void);
HIDDEN int move(struct message *message, MPI_Datatype type);
HIDDEN void tell(const struct message *message, MPI_Status *status);
HIDDEN void release(struct message *message);
HIDDEN void rest(void);
HIDDEN extern atomic_long under_way;

/* --- xgvmi_mpi_persistent.c --- */

/* The message of a persistent request that is under way, or NULL. */
HIDDEN struct message *active_of(MPI_Request request);
/* A message of a persistent request is over, or forgotten: so is the request of the MPI. */
HIDDEN void plan_over(struct plan *plan);
/* Gives back a part of the program's attached buffer. */
HIDDEN void unbuffer(MPI_Count bytes);
/* Frees a persistent request. Returns whether it is one of this library. */
HIDDEN int forget_plan(MPI_Request request);

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
#define NO_REQUEST ((MPI_Request *)NULL)

#endif
