/* What the files of the library share. See xgvmi_mpi.c. */
#ifndef XGVMI_MPI_H
#define XGVMI_MPI_H

#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HIDDEN __attribute__((visibility("hidden")))

/* The MPI's own function behind a name of this library. */
static inline void *own(const char *name)
{
    void *function = dlsym(RTLD_NEXT, name);
    if (!function) {
        fprintf(stderr, "libxgvmi_mpi: the MPI has no %s: compile the library with the mpicc of this MPI\n", name);
        abort();
    }
    return function;
}

#define OWN(type, name)                                \
    static type name##_own;                            \
    if (!name##_own) {                                 \
        name##_own = (type)own("P" #name);             \
    }

static inline void *cleared(size_t count, size_t size)
{
    return calloc(count ? count : 1, size);
}

_Static_assert(sizeof(MPI_Request) <= sizeof(uint64_t), "a request is kept in 64 bits");

static inline uint64_t kept(MPI_Request request)
{
    uint64_t bits = 0;
    memcpy(&bits, &request, sizeof(request));
    return bits;
}

/* Prints why a call fails, and calls the communicator's error handler. */
HIDDEN int refused(MPI_Comm comm, int code, const char *why);
HIDDEN int no_memory(MPI_Comm comm);

/* Non-blocking exchanges of neighbours: how many are under way, the serial number of a request's exchange or 0, and its end. */
HIDDEN extern atomic_long exchanges_under_way;
HIDDEN uint64_t exchange_of(MPI_Request request);
HIDDEN int exchange_ended(uint64_t request, uint64_t serial);

/* Looks at those of the requests that are messages, or waits for their end. Returns whether there are any. */
HIDDEN int look_at_messages(int count, const MPI_Request *requests, int must_end);
HIDDEN void rest_for_messages(int count, const MPI_Request *requests);

/* Whether a type is predefined. */
HIDDEN int is_named(MPI_Datatype type);

/* Requests whose messages have failed, which the program has not been told; and the error of one, or MPI_SUCCESS. `comm` gets the
 * communicator for its error handler, or MPI_COMM_NULL if that has been called. */
HIDDEN extern atomic_long failures;
HIDDEN int failure_of(MPI_Request request, MPI_Comm *comm);

/* Persistent messages of this rank; and the end of one if the request is one whose message is over: sets the status, and returns the
 * message's error. With `stays` the program will complete the request later. */
HIDDEN extern atomic_long plans;
HIDDEN int plan_ended(MPI_Request request, MPI_Status *status, int stays);

#endif
