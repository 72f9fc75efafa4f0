/*
 * Progress engines. Contexts whose data path is on the DPA need none.
 */
#ifndef DOCA_PE_H
#define DOCA_PE_H

#include <doca_error.h>
#include <doca_types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct doca_ctx;
struct doca_pe;

doca_error_t doca_pe_create(struct doca_pe **pe);
/* DOCA_ERROR_IN_USE while a context is connected. */
doca_error_t doca_pe_destroy(struct doca_pe *pe);
/* 1 if something has progressed. No context has work for the processor, so 0. */
uint8_t doca_pe_progress(struct doca_pe *pe);
/* Connects an idle context; for its life. DOCA_ERROR_IN_USE if it has an engine. */
doca_error_t doca_pe_connect_ctx(struct doca_pe *pe, struct doca_ctx *ctx);
doca_error_t doca_pe_get_num_inflight_tasks(const struct doca_pe *pe, size_t *count);

#ifdef __cplusplus
}
#endif

#endif
