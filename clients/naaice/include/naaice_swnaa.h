/*
 * naaice_swnaa.h: a software accelerator. The program defines the kernels and links naaice::swnaa:
 *
 *   int match_function_code(uint8_t fncode, void (**worker_func)(struct naaice_communication_context *));
 *
 * It stores the kernel of a function code and returns 0, or returns another value. A kernel changes the regions of its
 * session (mr_local_data[i].addr, .size) and may set naa_returncode to 0x10 to 0x7f. Kernels run in the session's
 * thread without time limit; xgvmi-naa runs them in processes with a limit.
 *
 *   naaice_swnaa_init_master                         listen
 *   naaice_swnaa_poll_and_handle_connection_event    repeat: each session gets a thread
 *
 * At the end destroy master->id and master->ev_channel, and free master, con_mng and the context.
 *
 * NAAICE_SESSION_BYTES_MAX limits the regions of a session, 16 GiB without it. NAAICE_BYTES_MAX limits those of all sessions,
 * half of the machine's memory without it.
 */
#ifndef NAAICE_SWNAA_H
#define NAAICE_SWNAA_H

#include "naaice.h"
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>
#include <sys/types.h>

/* Maximum number of sessions. The library is built with the same number. */
#ifdef MAX_CONNECTIONS
#undef MAX_CONNECTIONS
#endif
#define MAX_CONNECTIONS 32

/* A stack of free slots. */
struct connection_management {
  uint8_t connections[MAX_CONNECTIONS];
  volatile int top;
};

/* A server. */
struct context {
  pthread_mutex_t lock;
  uint8_t total_connections_lifetime; /* modulo 256 */
  struct naaice_communication_context *master;
  struct connection_management *con_mng;
  struct naaice_communication_context *worker[MAX_CONNECTIONS];
  pthread_t worker_threads[MAX_CONNECTIONS];
};

struct worker_args {
  struct context *ctx;
  uint8_t worker_id;
};

#ifdef __cplusplus
extern "C" {
#endif

/* Defined by the program. */
int match_function_code(uint8_t fncode, void (**worker_func)(struct naaice_communication_context *));

/* Listens on a port of all addresses. Port 0 selects a free port: rdma_get_src_port((*ctx)->master->id). */
int naaice_swnaa_init_master(struct context **ctx, uint16_t local_cm_port) NAAICE_SYMBOL("naaice_swnaa_init_master");

/* Handles a connection event, if one comes within 500 ms; -1 also for a host that was refused. */
int naaice_swnaa_poll_and_handle_connection_event(struct context *ctx);

/* Handles events until the first session is established. */
int naaice_swnaa_setup_connection(struct context *ctx);

/* The thread of a session. args is a struct worker_args from malloc. */
void *worker_procedure(void *args);

/* Parts of the functions above, for programs with their own loops. */
int naaice_swnaa_init_worker(struct context **ctx, uint8_t worker_id) NAAICE_SYMBOL("naaice_swnaa_init_worker");
int naaice_swnaa_init_communication_context(struct naaice_communication_context **comm_ctx)
    NAAICE_SYMBOL("naaice_swnaa_init_communication_context");
int naaice_swnaa_handle_connection_requests(struct context *ctx, struct rdma_cm_event *ev);
int naaice_swnaa_handle_connection_established(struct naaice_communication_context *comm_ctx,
                                               struct rdma_cm_event *ev);
int naaice_swnaa_handle_error(struct naaice_communication_context *comm_ctx, struct rdma_cm_event *ev);
int naaice_swnaa_init_mrsp(struct naaice_communication_context *comm_ctx);
int naaice_swnaa_post_recv_mrsp(struct naaice_communication_context *comm_ctx);
int naaice_swnaa_handle_work_completion(struct ibv_wc *wc, struct naaice_communication_context *comm_ctx);
int naaice_swnaa_handle_mr_announce(struct naaice_communication_context *comm_ctx);
int naaice_swnaa_handle_mr_announce_and_request(struct naaice_communication_context *comm_ctx);
int naaice_swnaa_send_message(struct naaice_communication_context *comm_ctx, enum message_id message_type,
                              uint8_t errorcode);
int naaice_swnaa_post_recv_data(struct naaice_communication_context *comm_ctx);
int naaice_swnaa_write_data(struct naaice_communication_context *comm_ctx, uint8_t errorcode);
int naaice_swnaa_disconnect_and_cleanup(struct naaice_communication_context *comm_ctx);
int naaice_swnaa_do_mrsp(struct naaice_communication_context *comm_ctx);
int naaice_swnaa_receive_data_transfer(struct naaice_communication_context *comm_ctx);
int naaice_swnaa_do_data_transfer(struct naaice_communication_context *comm_ctx, uint8_t errorcode);
int naaice_swnaa_poll_cq_nonblocking(struct naaice_communication_context *comm_ctx);

#ifdef __cplusplus
}
#endif

#endif
