/* What bindgen reads: the connection manager, and the verbs that its connections use. */
#include <rdma/rdma_cma.h>
