/*
 * Contexts: what starts and stops. doca_rdma_as_ctx gives the context of an RDMA object.
 */
#ifndef DOCA_CTX_H
#define DOCA_CTX_H

#include <doca_error.h>
#include <doca_types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct doca_ctx;
struct doca_dpa;

enum doca_ctx_states {
	DOCA_CTX_STATE_IDLE = 0,
	DOCA_CTX_STATE_STARTING = 1,
	DOCA_CTX_STATE_RUNNING = 2,
	DOCA_CTX_STATE_STOPPING = 3,
};

/* Called when the state changes, in the call that changes it. */
typedef void (*doca_ctx_state_changed_callback_t)(const union doca_data user_data,
						  struct doca_ctx *ctx,
						  enum doca_ctx_states previous,
						  enum doca_ctx_states next);

/* Idle to running. DOCA_ERROR_BAD_STATE if it runs; DOCA_ERROR_BAD_CONFIG names a missing setting. */
doca_error_t doca_ctx_start(struct doca_ctx *ctx);
/* Running to idle. All connections and handles of the context end. DOCA_ERROR_BAD_STATE if it does not run. */
doca_error_t doca_ctx_stop(struct doca_ctx *ctx);
doca_error_t doca_ctx_get_state(const struct doca_ctx *ctx, enum doca_ctx_states *state);
/* Tasks of the processor that have not ended: 0, since the DPA alone posts work. */
doca_error_t doca_ctx_get_num_inflight_tasks(const struct doca_ctx *ctx, size_t *count);

/* Before start: who executes the data path. */
doca_error_t doca_ctx_set_datapath_on_dpa(struct doca_ctx *ctx, struct doca_dpa *dpa);
doca_error_t doca_ctx_set_user_data(struct doca_ctx *ctx, union doca_data user_data);
doca_error_t doca_ctx_get_user_data(const struct doca_ctx *ctx, union doca_data *user_data);
doca_error_t doca_ctx_set_state_changed_cb(struct doca_ctx *ctx, doca_ctx_state_changed_callback_t callback);

#ifdef __cplusplus
}
#endif

#endif
