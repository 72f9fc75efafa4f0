/*
 * The calls of MPI that the programs need, without a type of MPI's in their signatures.
 *
 * MPI has no binary interface of its own: MPI_Comm is a pointer here and an integer there. Compiled by an MPI's mpicc,
 * this file is the one part that depends on which MPI it is; the programs load it at run time:
 *
 *     mpicc -O2 -fPIC -shared -o libosu_mpi.so osu_mpi.c
 *
 * Each function answers what MPI answered, 0 for success. All of them act on MPI_COMM_WORLD, which returns errors.
 */
#include <mpi.h>
#include <stdint.h>
#include <string.h>

/* A change of any signature below is another number; the programs refuse a library that is not theirs. */
#define INTERFACE 2

_Static_assert(sizeof(MPI_Request) <= sizeof(uint64_t), "a request is kept in 64 bits");

static MPI_Request request_of(uint64_t kept)
{
    MPI_Request request;
    memcpy(&request, &kept, sizeof(request));
    return request;
}

static uint64_t kept_of(MPI_Request request)
{
    uint64_t kept = 0;
    memcpy(&kept, &request, sizeof(request));
    return kept;
}

int osu_mpi_interface(void)
{
    return INTERFACE;
}

int osu_mpi_init(int *rank, int *size)
{
    int rc = MPI_Init(NULL, NULL);
    if (rc == MPI_SUCCESS) {
        rc = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    }
    if (rc == MPI_SUCCESS) {
        rc = MPI_Comm_rank(MPI_COMM_WORLD, rank);
    }
    if (rc == MPI_SUCCESS) {
        rc = MPI_Comm_size(MPI_COMM_WORLD, size);
    }
    return rc;
}

int osu_mpi_finalize(void)
{
    return MPI_Finalize();
}

void osu_mpi_abort(int code)
{
    MPI_Abort(MPI_COMM_WORLD, code);
}

/* Both texts are cut to `length` bytes, their terminating zero among them. */
static int copy_text(const char *from, char *text, int length)
{
    if (length > 0) {
        strncpy(text, from, (size_t)length - 1);
        text[length - 1] = '\0';
    }
    return MPI_SUCCESS;
}

int osu_mpi_version(char *text, int length)
{
    char whole[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int used = 0;
    int rc = MPI_Get_library_version(whole, &used);
    return rc == MPI_SUCCESS ? copy_text(whole, text, length) : rc;
}

int osu_mpi_error(int code, char *text, int length)
{
    char whole[MPI_MAX_ERROR_STRING] = "";
    int used = 0;
    int rc = MPI_Error_string(code, whole, &used);
    return rc == MPI_SUCCESS ? copy_text(whole, text, length) : rc;
}

int osu_mpi_barrier(void)
{
    return MPI_Barrier(MPI_COMM_WORLD);
}

int osu_mpi_ibarrier(uint64_t *kept)
{
    MPI_Request request = MPI_REQUEST_NULL;
    int rc = MPI_Ibarrier(MPI_COMM_WORLD, &request);
    *kept = kept_of(request);
    return rc;
}

/* Sums over all ranks, at rank 0. */
int osu_mpi_reduce_sum(const double *in, double *out, int count)
{
    return MPI_Reduce(in, out, count, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
}

/* `bytes` of each rank, in their order, at every rank. */
int osu_mpi_allgather(const void *in, void *out, int bytes)
{
    return MPI_Allgather(in, bytes, MPI_BYTE, out, bytes, MPI_BYTE, MPI_COMM_WORLD);
}

/* The datatypes by their numbers in the programs. Counts and displacements are in elements of them. */
static MPI_Datatype datatype_of(int number)
{
    switch (number) {
    case 1:
        return MPI_INT;
    case 2:
        return MPI_FLOAT;
    default:
        return MPI_CHAR;
    }
}

/* Without `send`, what is sent lies in place, where what comes will be. */
static const void *sent(const void *send)
{
    return send != NULL ? send : MPI_IN_PLACE;
}

int osu_mpi_alltoallv(int type, const void *send, const int *send_counts, const int *send_displs, void *receive,
                      const int *receive_counts, const int *receive_displs)
{
    MPI_Datatype datatype = datatype_of(type);
    return MPI_Alltoallv(sent(send), send_counts, send_displs, datatype, receive, receive_counts, receive_displs,
                         datatype, MPI_COMM_WORLD);
}

/* The buffers and the four arrays stay as they are until the request is done. */
int osu_mpi_ialltoallv(int type, const void *send, const int *send_counts, const int *send_displs, void *receive,
                       const int *receive_counts, const int *receive_displs, uint64_t *kept)
{
    MPI_Datatype datatype = datatype_of(type);
    MPI_Request request = MPI_REQUEST_NULL;
    int rc = MPI_Ialltoallv(sent(send), send_counts, send_displs, datatype, receive, receive_counts, receive_displs,
                            datatype, MPI_COMM_WORLD, &request);
    *kept = kept_of(request);
    return rc;
}

/* A request that is done is MPI_REQUEST_NULL from then on, of which both calls say at once that it is done. */
int osu_mpi_test(uint64_t *kept, int *done)
{
    MPI_Request request = request_of(*kept);
    int rc = MPI_Test(&request, done, MPI_STATUS_IGNORE);
    *kept = kept_of(request);
    return rc;
}

int osu_mpi_wait(uint64_t *kept)
{
    MPI_Request request = request_of(*kept);
    int rc = MPI_Wait(&request, MPI_STATUS_IGNORE);
    *kept = kept_of(request);
    return rc;
}
