/* Calls that send and receive at once. Each of the two messages goes as it would alone. See xgvmi_mpi_messages.c. */
#include "xgvmi_mpi_messages.h"

/* Packs the elements of a call that replaces them. */
static int packed(MPI_Comm comm, void *buffer, MPI_Count count, MPI_Datatype type, MPI_Count size, char **copy)
{
    struct message elements = { .buffer = buffer, .count = count, .bytes = count * size, .size = size };
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
/* One request of a receive and a send that have started. The copy is the send's. */
static int paired(MPI_Comm comm, int rc, MPI_Request halves[2], char *copy, MPI_Request *request)
{
    struct message *pair = rc ? NULL : cleared(1, sizeof(*pair));
    int half;

    if (pair) {
        *pair = (struct message){ .request = MPI_REQUEST_NULL, .halves = { halves[0], halves[1] }, .copy = copy,
                                  .type = MPI_DATATYPE_NULL };
        rc = requested(pair);
        if (!rc) {
            atomic_fetch_add(&under_way, 1);
            *request = pair->request;
            return rc;
        }
        free(pair);
    }
    /* A send that goes on keeps it. */
    if (halves[1] == MPI_REQUEST_NULL) {
        free(copy);
    }
    for (half = 0; half < 2; half++) {
        if (halves[half] != MPI_REQUEST_NULL) {
            PMPI_Request_free(&halves[half]);
        }
    }
    if (!rc) {
        rc = MPI_ERR_NO_MEM;
        PMPI_Comm_call_errhandler(comm, rc);
    }
    return rc;
}

#define TOGETHER(suffix, COUNT)                                                                                       \
    FORMS(MPI_Isendrecv##suffix,                                                                                      \
          (const void *from, COUNT sent, MPI_Datatype sent_type, int to, int sent_tag, void *into, COUNT received,    \
           MPI_Datatype received_type, int source, int received_tag, MPI_Comm comm, MPI_Request *request),            \
          (from, sent, sent_type, to, sent_tag, into, received, received_type, source, received_tag, comm, request),  \
          if (way_of(served, sent, sent_type, to, sent_tag, &size) != ITS_OWN ||                                      \
              way_of(served, received, received_type, source, received_tag, &size) != ITS_OWN) {                      \
              MPI_Request halves[2] = { MPI_REQUEST_NULL COMMA MPI_REQUEST_NULL };                                    \
              int rc = PMPI_Irecv##suffix(into, received, received_type, source, received_tag, comm, &halves[0]);     \
              rc = rc ? rc : PMPI_Isend##suffix(from, sent, sent_type, to, sent_tag, comm, &halves[1]);               \
              return paired(comm, rc, halves, NULL, request);                                                         \
          })                                                                                                          \
    FORMS(MPI_Isendrecv_replace##suffix,                                                                              \
          (void *buffer, COUNT count, MPI_Datatype type, int to, int sent_tag, int source, int received_tag,          \
           MPI_Comm comm, MPI_Request *request),                                                                      \
          (buffer, count, type, to, sent_tag, source, received_tag, comm, request),                                   \
          if (way_of(served, count, type, to, sent_tag, &size) != ITS_OWN ||                                          \
              way_of(served, count, type, source, received_tag, &size) != ITS_OWN) {                                  \
              MPI_Request halves[2] = { MPI_REQUEST_NULL COMMA MPI_REQUEST_NULL };                                    \
              char *copy = NULL;                                                                                      \
              int rc = packed(comm, buffer, count, type, size, &copy);                                                \
              if (rc) {                                                                                               \
                  return rc;                                                                                          \
              }                                                                                                       \
              rc = PMPI_Irecv##suffix(buffer, count, type, source, received_tag, comm, &halves[0]);                   \
              rc = rc ? rc : PMPI_Isend##suffix(copy, (COUNT)(count * size), MPI_PACKED, to, sent_tag, comm, &halves[1]); \
              rc = paired(comm, rc, halves, copy, request);                                                           \
              return rc;                                                                                              \
          })

TOGETHER(, int)
TOGETHER(_c, MPI_Count)
#endif
