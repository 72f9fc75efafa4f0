/* The functions that complete requests: what the library has for a request is complete before the program sees its end. */
#include "xgvmi_mpi_messages.h"

/* Requests of a call that completes some of them, as they were before. */
struct watched {
    int count;
    uint64_t *requests, *serials;
};

static int watch(struct watched *watched, int count, const MPI_Request *requests)
{
    int at, any = 0;

    memset(watched, 0, sizeof(*watched));
    if (!atomic_load(&exchanges_under_way) || count <= 0) {
        return MPI_SUCCESS;
    }
    watched->requests = cleared(2 * (size_t)count, sizeof(uint64_t));
    if (!watched->requests) {
        return no_memory(MPI_COMM_SELF);
    }
    watched->serials = watched->requests + count;
    for (at = 0; at < count; at++) {
        watched->requests[at] = kept(requests[at]);
        watched->serials[at] = exchange_of(requests[at]);
        any |= watched->serials[at] != 0;
    }
    watched->count = any ? count : 0;
    return MPI_SUCCESS;
}

/* After the call, which has completed request `at`. */
static int deliver(const struct watched *watched, int at)
{
    return watched->serials[at] ? exchange_ended(watched->requests[at], watched->serials[at]) : MPI_SUCCESS;
}

/* The place of `at` among `count` places, or -1. */
static int place_among(int at, const int *places, int count)
{
    int place;

    for (place = 0; place < count; place++) {
        if (places[place] == at) {
            return place;
        }
    }
    return -1;
}

/* The result of a call that has found a message complete with this code: `place` is that of its status among `count`, which is 0 for a
 * call with one status. */
static int with_code(int code, MPI_Status *statuses, int place, int count, int rc)
{
    int at;

    if (!code || !count) {
        return rc ? rc : code;
    }
    for (at = 0; statuses && !rc && at < count; at++) {
        statuses[at].MPI_ERROR = MPI_SUCCESS;
    }
    if (statuses) {
        statuses[place].MPI_ERROR = code;
    }
    return MPI_ERR_IN_STATUS;
}

/* Whether a call has completed requests. */
static int has_ended(int rc)
{
    int class = rc;

    if (rc) {
        PMPI_Error_class(rc, &class);
    }
    return class == MPI_SUCCESS || class == MPI_ERR_IN_STATUS;
}

/* Messages of persistent requests that a call has found complete. */
static int deliver_plan(MPI_Request request, MPI_Status *statuses, int place, int count, int stays, int rc)
{
    int code;

    if (place < 0 || !has_ended(rc)) {
        return rc;
    }
    code = plan_ended(request, statuses ? &statuses[place] : MPI_STATUS_IGNORE, stays);
    return with_code(code, statuses, place, count, rc);
}

/* A message of a request that has failed, before the call. */
struct failed {
    int code, is_done;
    MPI_Comm comm;
};

/* Those of the requests of a call; NULL if there are none. */
static int look_for_failed(struct failed **failed, int count, const MPI_Request *requests)
{
    int at, any = 0;

    *failed = NULL;
    if (!atomic_load(&failures) || count <= 0) {
        return MPI_SUCCESS;
    }
    *failed = cleared((size_t)count, sizeof(**failed));
    if (!*failed) {
        return no_memory(MPI_COMM_SELF);
    }
    for (at = 0; at < count; at++) {
        (*failed)[at].code = failure_of(requests[at], &(*failed)[at].comm);
        any |= (*failed)[at].code;
    }
    if (!any) {
        free(*failed);
        *failed = NULL;
    }
    return MPI_SUCCESS;
}

/* Calls the error handler for a message that a call has found complete. */
static int deliver_failed(const struct failed *failed, MPI_Status *statuses, int place, int count, int rc)
{
    if (!failed->is_done || place < 0 || !has_ended(rc)) {
        return rc;
    }
    if (failed->comm != MPI_COMM_NULL) {
        PMPI_Comm_call_errhandler(failed->comm, failed->code);
    }
    return with_code(failed->code, statuses, place, count, rc);
}

/* No statuses. */
static MPI_Status *given(MPI_Status *statuses)
{
    return statuses == MPI_STATUS_IGNORE || statuses == MPI_STATUSES_IGNORE ? NULL : statuses;
}

/* The functions that complete requests. `requests` are those that the call may complete, and IS_DONE says without a look at
 * its handle that it has completed request `at`. STATUSES are OF, which is 0 if there is one only, and PLACE is that of request `at` if
 * it is complete, or -1. MESSAGES is what is to do for messages first. */
#define COMPLETION(name, parameters, arguments, COUNT, REQUESTS, IS_DONE, STATUSES, OF, PLACE, MESSAGES)              \
    int P##name parameters                                                                                            \
    {                                                                                                                 \
        typedef int function parameters;                                                                              \
        OWN(function *, name)                                                                                         \
        struct watched watched;                                                                                       \
        MESSAGES                                                                                                      \
        struct failed *failed = NULL;                                                                                 \
        int at, rc = watch(&watched, COUNT, REQUESTS);                                                                \
        rc = rc ? rc : look_for_failed(&failed, COUNT, REQUESTS);                                                     \
        if (rc) {                                                                                                     \
            free(watched.requests);                                                                                   \
            return rc;                                                                                                \
        }                                                                                                             \
        rc = name##_own arguments;                                                                                    \
        for (at = 0; failed && at < (COUNT); at++) {                                                                  \
            failed[at].is_done = failed[at].code && ((REQUESTS)[at] == MPI_REQUEST_NULL || (IS_DONE));                \
        }                                                                                                             \
        for (at = 0; at < watched.count; at++) {                                                                      \
            if ((REQUESTS)[at] == MPI_REQUEST_NULL || (IS_DONE)) {                                                    \
                int moved = deliver(&watched, at);                                                                    \
                rc = rc ? rc : moved;                                                                                 \
            }                                                                                                         \
        }                                                                                                             \
        free(watched.requests);                                                                                       \
        for (at = 0; atomic_load(&plans) && at < (COUNT); at++) {                                                     \
            rc = deliver_plan((REQUESTS)[at], given(STATUSES), PLACE, OF, STAYS(name), rc);                           \
        }                                                                                                             \
        for (at = 0; failed && at < (COUNT); at++) {                                                                  \
            rc = deliver_failed(&failed[at], given(STATUSES), PLACE, OF, rc);                                         \
        }                                                                                                             \
        free(failed);                                                                                                 \
        return rc;                                                                                                    \
    }                                                                                                                 \
    int name parameters                                                                                               \
    {                                                                                                                 \
        return P##name arguments;                                                                                     \
    }

/* The functions that look only. */
#define STAYS(name) (sizeof(#name) > sizeof("MPI_Request_get_status") - 1)

#define LOOK(count, requests) look_at_messages(count, requests, 0);
#define END(count, requests) look_at_messages(count, requests, 1);
/* Some MPIs end a persistent request there, so it is not asked about one of this library. */
#define GLANCE(request)                                                                       \
    look_at_messages(1, &request, 0);                                                         \
    if (atomic_load(&plans) && active_of(request)) {                                          \
        *flag = active_of(request)->is_over;                                                  \
        return *flag ? deliver_plan(request, given(status), 0, 0, 1, MPI_SUCCESS) : MPI_SUCCESS; \
    }
/* A wait for any request is many tests. */
#define REPEAT(count, requests, TEST, IS_OVER)        \
    if (look_at_messages(count, requests, 0)) {       \
        int flag = 0, code;                           \
        for (;;) {                                    \
            code = TEST;                              \
            if (code || (IS_OVER)) {                  \
                return code;                          \
            }                                         \
            rest_for_messages(count, requests);                      \
        }                                             \
    }

COMPLETION(MPI_Wait, (MPI_Request * request, MPI_Status *status), (request, status), 1, request, 0, status, 0, 0, END(1, request))
COMPLETION(MPI_Test, (MPI_Request * request, int *flag, MPI_Status *status), (request, flag, status), 1, request, 0,
           status, 0, *flag ? 0 : -1, LOOK(1, request))
COMPLETION(MPI_Waitall, (int count, MPI_Request requests[], MPI_Status statuses[]), (count, requests, statuses), count, requests, 0,
           statuses, count, at, END(count, requests))
COMPLETION(MPI_Testall, (int count, MPI_Request requests[], int *flag, MPI_Status statuses[]), (count, requests, flag, statuses),
           count, requests, 0, statuses, count, *flag ? at : -1, LOOK(count, requests))
COMPLETION(MPI_Waitany, (int count, MPI_Request requests[], int *index, MPI_Status *status), (count, requests, index, status),
           count, requests, 0, status, 0, at == *index ? 0 : -1,
           REPEAT(count, requests, PMPI_Testany(count, requests, index, &flag, status), flag))
COMPLETION(MPI_Testany, (int count, MPI_Request requests[], int *index, int *flag, MPI_Status *status),
           (count, requests, index, flag, status), count, requests, 0, status, 0, *flag && at == *index ? 0 : -1,
           LOOK(count, requests))
COMPLETION(MPI_Waitsome, (int count, MPI_Request requests[], int *done, int indices[], MPI_Status statuses[]),
           (count, requests, done, indices, statuses), count, requests, 0, statuses, *done, place_among(at, indices, *done),
           REPEAT(count, requests, PMPI_Testsome(count, requests, done, indices, statuses), (flag = *done) != 0))
COMPLETION(MPI_Testsome, (int count, MPI_Request requests[], int *done, int indices[], MPI_Status statuses[]),
           (count, requests, done, indices, statuses), count, requests, 0, statuses, *done, place_among(at, indices, *done),
           LOOK(count, requests))
COMPLETION(MPI_Request_get_status, (MPI_Request request, int *flag, MPI_Status *status), (request, flag, status), 1, &request,
           !rc && *flag, status, 0, *flag ? 0 : -1, GLANCE(request))

/* Those of MPI 4.1. XGVMI_MPI_4_1 says that the MPI has them though its mpi.h names an earlier version. */
#if MPI_VERSION > 4 || (MPI_VERSION == 4 && MPI_SUBVERSION >= 1) || defined(XGVMI_MPI_4_1)
COMPLETION(MPI_Request_get_status_all, (int count, const MPI_Request requests[], int *flag, MPI_Status statuses[]),
           (count, requests, flag, statuses), count, requests, !rc && *flag, statuses, count, *flag ? at : -1, LOOK(count, requests))
COMPLETION(MPI_Request_get_status_any, (int count, const MPI_Request requests[], int *index, int *flag, MPI_Status *status),
           (count, requests, index, flag, status), count, requests, !rc && *flag && at == *index, status, 0,
           *flag && at == *index ? 0 : -1, LOOK(count, requests))
COMPLETION(MPI_Request_get_status_some, (int count, const MPI_Request requests[], int *done, int indices[], MPI_Status statuses[]),
           (count, requests, done, indices, statuses), count, requests, !rc && place_among(at, indices, *done) >= 0, statuses, *done,
           place_among(at, indices, *done), LOOK(count, requests))
#endif
