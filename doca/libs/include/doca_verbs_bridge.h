/*
 * Programs include this header beside doca_verbs.h. The protection domain of libibverbs is in doca_rdma_bridge.h.
 */
#ifndef DOCA_VERBS_BRIDGE_H
#define DOCA_VERBS_BRIDGE_H

#include <doca_rdma_bridge.h>
#include <doca_verbs.h>

#endif
