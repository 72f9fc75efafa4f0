/*
 * The page of doorbells with which device code starts requests of queue pairs of doca_verbs.h.
 */
#ifndef DOCA_UAR_H
#define DOCA_UAR_H

#include <doca_error.h>

#ifdef __cplusplus
extern "C" {
#endif

struct doca_dpa;
struct doca_uar;

/* The page of a started DPA context. */
doca_error_t doca_uar_dpa_create(struct doca_dpa *dpa, struct doca_uar **uar);
doca_error_t doca_uar_destroy(struct doca_uar *uar);

#ifdef __cplusplus
}
#endif

#endif
