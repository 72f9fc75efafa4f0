/*
 * naaice.h: the low-level interface of libnaaice. A host's session with a network-attached accelerator (NAA), step by
 * step. Most programs use naaice_ap2.h instead.
 *
 * Names and layouts are those of the NAAICE communication library. The order of the steps:
 *
 *   naaice_init_communication_context   resolve the accelerator's address
 *   naaice_setup_connection             connect; at most 10 s
 *   naaice_set_input_mr, ...            say how each region is used
 *   naaice_register_mrs                 register the regions
 *   naaice_do_mrsp                      announce the regions to each other; at most 30 s
 *   naaice_do_data_transfer             call the function; repeat
 *   naaice_disconnect_and_cleanup       end the session; it is freed
 *
 * Functions that return int return 0, or -1 and write a line to standard error (NAAICE_LOG=off: no line).
 * naaice_last_error() returns the text. After an error of a session only naaice_disconnect_and_cleanup() is possible.
 *
 * A session may be used by one thread at a time. The library installs no signal handler. After fork(), the child must
 * not use the parent's sessions.
 */
#ifndef NAAICE_H
#define NAAICE_H

#ifdef __cplusplus
#include <atomic>
#define ATOMIC_TYPE(T) std::atomic<T>
#else
#include <stdatomic.h>
#define ATOMIC_TYPE(T) _Atomic(T)
#endif

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <netdb.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/poll.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

/*
 * Interface of the original, for all files of a program and for its kernels:
 *   1  version 0.1, as of March 2026
 *   2  the version after it: naa_status has user_immediate, the session has response_user_immediate and response_received,
 *      and there is naaice_init_communication_context_with_addresses. Its memory management service is not supported.
 * The library supports both at the same time. Functions whose structures differ have another symbol in interface 2.
 */
#ifndef NAAICE_INTERFACE
#define NAAICE_INTERFACE 1
#endif
#if NAAICE_INTERFACE == 1
#define NAAICE_SYMBOL(name)
#elif NAAICE_INTERFACE == 2
#define NAAICE_SYMBOL(name) __asm__(name "_2")
#define match_function_code match_function_code_2
#else
#error "NAAICE_INTERFACE is 1 or 2"
#endif

/* The original's header includes microlog, and programs written for it use microlog's functions. */
#ifdef __has_include
#if __has_include(<ulog.h>)
#include <ulog.h>
#endif
#endif

/* Port of an accelerator without a port in NAA_SPEC. */
#define SERVER_CONNECTION_PORT 12345
/* Queue depth of the original. */
#define RX_DEPTH 1025
/* Time limit of route resolution in the original, ms. This library: 2000. */
#define TIMEOUT_RESOLVE_ROUTE 500
/* The longest wait of the functions that poll for connection events, ms. */
#define POLLING_TIMEOUT 500
/* Time limit of a call, s. Change it in the session: comm_ctx->timeout. 0 or less means none. */
#define DEFAULT_TIMEOUT 3600
/* Transport retries, 0 to 7. */
#define DEFAULT_RETRY_COUNT 7
/* Maximum number of regions, internal ones included. */
#define MAX_MRS 32
/* Position of the return code in an accelerator's immediate value. */
#define IMMEDIATE_OFFSET 8
/* Maximum length of an announcement message: 32 regions and the header. */
#define MR_SIZE_MRSP (sizeof(struct naaice_mr_advertisement_request) * MAX_MRS + 4)

#ifndef ntohll
#define ntohll be64toh
#endif
#ifndef htonll
#define htonll htobe64
#endif

/* Types of announcement messages. All numbers of a message are big endian. */
enum message_id {
  MSG_MR_ERR = 0x00, /* error */
  MSG_MR_AAR = 0x01, /* announcement and request, from a host */
  MSG_MR_A = 0x02,   /* announcement, from an accelerator */
  MSG_MR_R = 0x03    /* not used */
};

/* A region in an accelerator's message. */
struct naaice_mr_advertisement {
  uint64_t addr;
  uint32_t rkey;
  uint32_t size; /* bytes */
};

/* A region in a host's message. */
struct naaice_mr_advertisement_request {
  union {
    uint64_t mr_info;             /* flags in the highest byte, requested address in the others */
    uint8_t mr_info_bytearray[8]; /* the same before the conversion to big endian: flags are byte 7 */
  };
  uint64_t addr;
  uint32_t rkey;
  uint32_t size; /* bytes */
};

/* Flags of a region. */
enum naaice_mrflags_value {
  MRFLAG_INTERNAL = 0x01,   /* exists on the accelerator only */
  MRFLAG_SINGLESEND = 0x02, /* sent with the first call only */
  MRFLAG_INPUT = 0x04,      /* written to the accelerator */
  MRFLAG_OUTPUT = 0x08      /* written back */
};

struct naaice_mr_request {
  uint64_t size;
};

struct naaice_mr_error {
  uint8_t code;
  uint8_t padding[2];
};

struct naaice_mr_hdr {
  uint8_t type;
};

struct naaice_mr_dynamic_hdr {
  uint8_t count;
  uint8_t padding[2];
};

/* The peer's counterpart of a region. */
struct naaice_mr_peer {
  union {
    uint64_t addr; /* before the announcement the requested address */
    uint8_t fpgaaddr[8];
  };
  uint32_t rkey;
  size_t size;      /* bytes */
  bool to_write;    /* host: the region is an output; accelerator: it is an input */
  bool single_send; /* sent with the first call only */
};

/* A region of this process. */
struct naaice_mr_local {
  struct ibv_mr *ibv;
  char *addr;
  size_t size;      /* bytes */
  bool to_write;    /* host: the region is an input; accelerator: it is an output */
  bool single_send; /* sent with the first call only */
};

/* A region that exists on the accelerator only. */
struct naaice_mr_internal {
  union {
    uint64_t addr;
    uint8_t fpgaaddr[8];
  };
  size_t size; /* bytes */
};

struct naaice_rpc_metadata {
  uintptr_t return_addr;
};

/* State of a session. */
typedef enum {
  NAAICE_INIT = 0,
  NAAICE_READY = 1,           /* address resolved */
  NAAICE_CONNECTED = 2,
  NAAICE_DISCONNECTED = 3,
  NAAICE_MRSP_SENDING = 10,   /* the announcement is being sent */
  NAAICE_MRSP_RECEIVING = 11, /* the peer's announcement is awaited */
  NAAICE_MRSP_DONE = 12,
  NAAICE_DATA_SENDING = 20,
  NAAICE_CALCULATING = 21,    /* accelerator only */
  NAAICE_DATA_RECEIVING = 22,
  NAAICE_FINISHED = 30,
  NAAICE_ERROR = 40
} naaice_communication_state;

/* A session. Kernels read the regions, the function code and the user data; they write naa_returncode. */
struct naaice_communication_context {
  struct rdma_cm_id *id;
  struct rdma_event_channel *ev_channel;
  struct ibv_context *ibv_ctx;
  struct ibv_pd *pd;
  struct ibv_comp_channel *comp_channel;
  struct ibv_cq *cq;
  struct ibv_qp *qp;
  double timeout; /* time limit of a call, s */
  uint8_t retry_count;
  uint16_t max_inline_data; /* bytes */
  ATOMIC_TYPE(naaice_communication_state) state;
  struct naaice_mr_local *mr_local_data;
  uint8_t no_local_mrs;
  uint8_t mr_return_idx; /* not used */
  struct naaice_mr_peer *mr_peer_data;
  uint8_t no_peer_mrs;
  struct naaice_mr_local *mr_local_message;
  struct naaice_mr_internal *mr_internal;
  uint8_t no_internal_mrs;
  uint8_t fncode;
#if NAAICE_INTERFACE == 1
  uint8_t naa_returncode; /* enum naa_error, or the kernel's code 0x10 to 0x7f */
  uint8_t rdma_writes_done;
#else
  uint32_t response_user_immediate; /* 24 bits of the accelerator; a kernel writes its code here, 0x10 to 0x7f */
  uint8_t rdma_writes_done;
  bool response_received;
#endif
  uint32_t bytes_received; /* bytes of the last output */
  uint8_t no_input_mrs;
  uint8_t no_output_mrs;
  unsigned int no_rpc_calls;
  union {
    uint32_t immediate;
    uint8_t immediate_bytearr[4]; /* function code, then three bytes of naaice_set_immediate */
  };
  uint8_t connection_id; /* slot on a server */
};

#ifdef __cplusplus
extern "C" {
#endif

/* Text of this thread's last error; empty without one. Valid until the thread's next call. */
const char *naaice_last_error(void);

/* Name of a state. */
const char *get_state_str(naaice_communication_state state);

/*
 * Creates a session: params_amount regions of param_sizes bytes at params, and internal regions on the accelerator.
 * addr_offset is the first requested address on the accelerator. fncode is 1 to 127. local_address may be NULL.
 */
int naaice_init_communication_context(struct naaice_communication_context **comm_ctx, uint64_t addr_offset,
                                      size_t *param_sizes, char **params, unsigned int params_amount,
                                      unsigned int internal_mr_amount, size_t *internal_mr_sizes, uint8_t fncode,
                                      const char *local_address, const char *remote_address,
                                      uint16_t remote_cm_port) NAAICE_SYMBOL("naaice_init_communication_context");

#if NAAICE_INTERFACE == 2
/* As above, with the requested address of each region. Addresses and sizes begin with those of the internal regions. */
int naaice_init_communication_context_with_addresses(struct naaice_communication_context **comm_ctx,
                                                     uint64_t *naa_addresses, char **params,
                                                     unsigned int params_amount, size_t *mr_sizes,
                                                     unsigned int internal_mr_amount, uint8_t fncode,
                                                     const char *local_address, const char *remote_address,
                                                     uint16_t remote_cm_port)
    NAAICE_SYMBOL("naaice_init_communication_context_with_addresses");
#endif

/* Takes a connection event within POLLING_TIMEOUT, copies it to ev_cp and acknowledges it; -1 if there is none. */
int naaice_poll_connection_event(struct naaice_communication_context *comm_ctx, struct rdma_cm_event *ev,
                                 struct rdma_cm_event *ev_cp);

/* Each handles events of its kind and ignores others. */
int naaice_handle_addr_resolved(struct naaice_communication_context *comm_ctx, struct rdma_cm_event *ev);
int naaice_handle_route_resolved(struct naaice_communication_context *comm_ctx, struct rdma_cm_event *ev);
int naaice_handle_connection_established(struct naaice_communication_context *comm_ctx, struct rdma_cm_event *ev);
int naaice_handle_error(struct naaice_communication_context *comm_ctx, struct rdma_cm_event *ev);
int naaice_handle_other(struct naaice_communication_context *comm_ctx, struct rdma_cm_event *ev);
int naaice_poll_and_handle_connection_event(struct naaice_communication_context *comm_ctx);

/* Waits until the connection is established; at most 10 s. */
int naaice_setup_connection(struct naaice_communication_context *comm_ctx);

/* Registers the regions. Inputs that are no outputs are not writable for the accelerator. */
int naaice_register_mrs(struct naaice_communication_context *comm_ctx);

int naaice_set_parameter_mrs(struct naaice_communication_context *comm_ctx, unsigned int n_parameter_mrs,
                             uint64_t *local_addrs, uint64_t *remote_addrs, size_t *sizes);
int naaice_set_input_mr(struct naaice_communication_context *comm_ctx, unsigned int input_mr_idx);
int naaice_set_output_mr(struct naaice_communication_context *comm_ctx, unsigned int output_mr_idx);
int naaice_set_singlesend_mr(struct naaice_communication_context *comm_ctx, unsigned int singlesend_mr_idx);
int naaice_set_internal_mrs(struct naaice_communication_context *comm_ctx, unsigned int n_internal_mrs,
                            uint64_t *addrs, size_t *sizes);

/* Three bytes for the kernel: bits 8 to 31 of the immediate value. */
int naaice_set_immediate(struct naaice_communication_context *comm_ctx, uint8_t *imm_bytes);

/* Sends only the first bytes of a region. 0 or a negative number means all. */
int naaice_set_bytes_to_send(struct naaice_communication_context *comm_ctx, int mr_idx, int number_bytes);

/* Starts the announcement, or carries it out; at most 30 s. */
int naaice_init_mrsp(struct naaice_communication_context *comm_ctx);
int naaice_do_mrsp(struct naaice_communication_context *comm_ctx);

/* Starts a call, or carries it out. */
int naaice_init_data_transfer(struct naaice_communication_context *comm_ctx);
int naaice_do_data_transfer(struct naaice_communication_context *comm_ctx);

/* Handles completions: one that the caller took; those that are there, without waiting; those until the end of the
 * announcement or the call, with and without sleeping. */
int naaice_handle_work_completion(struct ibv_wc *wc, struct naaice_communication_context *comm_ctx);
int naaice_poll_cq_nonblocking(struct naaice_communication_context *comm_ctx);
int naaice_poll_cq_blocking(struct naaice_communication_context *comm_ctx);
int naaice_poll_cq_busy(struct naaice_communication_context *comm_ctx);

/* Ends the session and frees it. The regions may be freed afterwards. */
int naaice_disconnect_and_cleanup(struct naaice_communication_context *comm_ctx);

/* Parts of the steps above. */
int naaice_send_message(struct naaice_communication_context *comm_ctx, enum message_id message_type,
                        uint8_t errorcode);
int naaice_write_data(struct naaice_communication_context *comm_ctx, uint8_t fncode);
int naaice_post_recv_mrsp(struct naaice_communication_context *comm_ctx);
int naaice_post_recv_data(struct naaice_communication_context *comm_ctx);
int naaice_init_rdma_resources(struct naaice_communication_context *comm_ctx);

#ifdef __cplusplus
}
#endif

#endif
