/* Communicators with messages: their ranks agree on it when the info's key is set. See xgvmi_mpi_messages.c. */
#include "xgvmi_mpi_messages.h"
#include <sched.h>

/* Communicators of a rank with messages. The service's client has 65,536 pairs of a rank and a tag. */
enum { COMMUNICATORS = 8, TAGS_OF_ALL = 4096 };

/* --- The component of UCC, which has the connection --- */

struct component component;

/* UCC has loaded it for itself alone, and it stays until the process ends. */
static int has_component(void)
{
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;

    pthread_mutex_lock(&once);
    if (!component.rest) {
        void *file = dlopen("libucc_tl_xgvmi.so", RTLD_NOLOAD | RTLD_LAZY);
        if (file) {
            component.job = (job_function *)dlsym(file, "xgvmi_message_job");
            component.begin = (begin_function *)dlsym(file, "xgvmi_message_begin");
            component.end = (end_function *)dlsym(file, "xgvmi_message_end");
            component.rest = (rest_function *)dlsym(file, "xgvmi_message_rest");
        }
    }
    pthread_mutex_unlock(&once);
    return component.job && component.begin && component.end && component.rest;
}

/* --- Communicators with messages --- */

static int key = MPI_KEYVAL_INVALID;
static pthread_mutex_t key_lock = PTHREAD_MUTEX_INITIALIZER;
/* A bit for each part of the service's tags that a communicator has. */
static atomic_uint parts;
/* A thread of this rank is in an agreement. */
static atomic_flag is_agreeing = ATOMIC_FLAG_INIT;

HIDDEN void release_served(struct served *served)
{
    if (atomic_fetch_sub(&served->users, 1) == 1) {
        if (served->part >= 0) {
            atomic_fetch_and(&parts, ~(1u << served->part));
        }
        free(served);
    }
}

static int forget(MPI_Comm comm, int of, void *value, void *extra)
{
    struct served *served = value;

    (void)comm, (void)of, (void)extra;
    atomic_store(&served->is_gone, 1);
    release_served(served);
    return MPI_SUCCESS;
}

HIDDEN struct served *served_by(MPI_Comm comm)
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
    atomic_init(&served->users, 1);
    atomic_init(&served->is_gone, 0);
    served->part = -1;
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

/* The numbers that the ranks of a communicator compare: the greatest of each. PART is 1 if a rank has another communicator there. */
enum { ASKS, REPEATS, FAULT, LEAST, JOB = LEAST + 2, PART = JOB + 8, ALL = PART + COMMUNICATORS };

/* An operation of this library's own, which UCC does not know: after a failure of a service process the agreement still works. */
static void greater(void *from, void *into, int *count, MPI_Datatype *type)
{
    const long long *ours = from;
    long long *most = into;
    int at;

    (void)type;
    for (at = 0; at < *count; at++) {
        most[at] = ours[at] > most[at] ? ours[at] : most[at];
    }
}

/* One round. Returns why the communicator has no messages, or NULL. */
static const char *compare(MPI_Comm comm, const long long *mine, long long *most, int *part, int *rc)
{
    MPI_Op op;
    int at;

    *rc = PMPI_Op_create(greater, 1, &op);
    if (!*rc) {
        *rc = PMPI_Allreduce(mine, most, ALL, MPI_LONG_LONG, op, comm);
        PMPI_Op_free(&op);
    }
    if (*rc || most[FAULT]) {
        return mine[FAULT] ? NULL : "another rank cannot serve it";
    }
    for (at = LEAST; at < PART; at += 2) {
        if (most[at] != -most[at + 1]) {
            return "the ranks have different values, or are in different jobs";
        }
    }
    for (*part = 0; *part < COMMUNICATORS && most[PART + *part]; (*part)++) {
    }
    return *part < COMMUNICATORS ? NULL : "its ranks have eight such communicators already";
}

/* The ranks of a communicator agree on whether it has messages, also if only some have the key. If the service has failed, the
 * communicator of which they agreed earlier has none from now on. */
static int agree(MPI_Comm comm, MPI_Info info, int rc)
{
    enum { ROUNDS = 1000 };
    char text[MPI_MAX_INFO_VAL + 1], *end;
    struct served *served = NULL, *before;
    long long mine[ALL] = { 0 }, most[ALL] = { 0 };
    const char *own = NULL, *why;
    uint32_t job[4];
    int at, round, flag = 0, part = 0, rank;

    if (rc || comm == MPI_COMM_NULL) {
        return rc;
    }
    before = served_by(comm);
    if (info != MPI_INFO_NULL && !PMPI_Info_get(info, KEY, MPI_MAX_INFO_VAL, text, &flag) && flag) {
        mine[ASKS] = 1;
        mine[LEAST] = strtoll(text, &end, 10);
        pthread_mutex_lock(&key_lock);
        own = obstacle(comm, &served, *end ? 0 : mine[LEAST]);
        pthread_mutex_unlock(&key_lock);
        mine[FAULT] = own != NULL;
    }
    mine[LEAST + 1] = -mine[LEAST];
    if (mine[ASKS] && !own) {
        memcpy(job, served->job, sizeof(job));
        for (at = 0; at < 4; at++) {
            mine[JOB + 2 * at] = job[at];
            mine[JOB + 2 * at + 1] = -(long long)job[at];
        }
    }
    for (round = 0;; round++) {
        /* Threads of this rank may not find the same free part for two communicators. */
        int is_alone = !atomic_flag_test_and_set(&is_agreeing);
        unsigned taken = atomic_load(&parts);
        mine[REPEATS] = !is_alone && round < ROUNDS;
        for (at = 0; at < COMMUNICATORS; at++) {
            mine[PART + at] = !is_alone || ((taken >> at & 1) && !(before && before->part == at));
        }
        why = compare(comm, mine, most, &part, &rc);
        if (!rc && most[ASKS] && !most[FAULT] && !why && !most[REPEATS]) {
            served->part = part;
            served->first_tag = part * served->tags;
            atomic_fetch_or(&parts, 1u << part);
        }
        if (is_alone) {
            atomic_flag_clear(&is_agreeing);
        }
        /* Between groups each rank has the other group's numbers: both stop at a fault, which such a communicator always is. */
        if (rc || !most[ASKS] || most[FAULT] || !most[REPEATS]) {
            break;
        }
        sched_yield();
    }
    if (rc || !most[ASKS]) {
        free(served);
        return rc;
    }
    if (!why && !most[FAULT]) {
        /* The earlier one does not give back the part that both have. */
        if (before && before->part == part) {
            before->part = -1;
        }
        return PMPI_Comm_set_attr(comm, key, served);
    }
    free(served);
    rc = before ? PMPI_Comm_delete_attr(comm, key) : MPI_SUCCESS;
    if (!PMPI_Comm_rank(comm, &rank) && rank == 0) {
        fprintf(stderr, "libxgvmi_mpi: messages of a communicator go by the MPI in spite of its info " KEY ": %s\n",
                own ? own : why);
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

