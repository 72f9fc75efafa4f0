/*
 * naaice_ap2.h: the middleware interface of libnaaice. A function of a network-attached accelerator (NAA) in five calls.
 *
 *   NAA_SPEC=ADDRESS:[PORT]:FUNCTION:INPUTS[,...]   accelerators, see docs/NAAICE.md
 *   NAA_LOCAL_IP=ADDRESS                            local address of outgoing connections; optional
 *   NAAICE_TIMEOUT_S=SECONDS                        time limit of each call; 3600 without it
 *   NAAICE_LOG=off                                  no lines on standard error
 *
 * Each function returns 0, or -1 for an error; naaice_last_error() returns the text. A handle may be used by one thread
 * at a time. Different handles are independent.
 */
#ifndef NAAICE_AP2_C_H
#define NAAICE_AP2_C_H

#include "naaice.h"
#include <stdbool.h>
#include <stddef.h>

/* Return codes of an accelerator. 0x10 to 0x7f belong to the kernel. */
enum naa_error {
  NAA_SUCCESS = 0x00,
  SOCKET_UNAVAIL = 0x01, /* the accelerator cannot be reached, refuses, or has died */
  KERNEL_TIMEOUT = 0x02, /* the kernel exceeded its time limit */
  /* Codes of this library in the range that the original reserves. */
  NAA_UNKNOWN_FUNCTION = 0x03, /* the accelerator has no kernel for the function code */
  NAA_KERNEL_CRASHED = 0x04,   /* the kernel crashed */
  NAA_KERNEL_CODE = 0x05,      /* the kernel returned a code outside 0x10 to 0x7f */
  NAA_MEMORY = 0x06            /* the accelerator could not access the caller's memory */
};

/* Function code, 1 to 127. */
typedef uint32_t naa_function_code_t;

/* A region of the caller. */
typedef struct naa_param_t {
  void *addr;
  size_t size;      /* bytes, 1 to 4 GiB - 1 */
  bool single_send; /* sent with the first call only */
} naa_param_t;

/* A session. */
typedef struct naa_handle {
  naa_function_code_t function_code;
  struct naaice_communication_context *comm_ctx; /* NULL without a session */
} naa_handle;

typedef struct naa_status {
  naaice_communication_state state;
#if NAAICE_INTERFACE == 1
  enum naa_error naa_error; /* return code of the accelerator */
#else
  uint32_t user_immediate; /* the accelerator's answer of 24 bits: 0, its data, or a code of enum naa_error */
#endif
  uint64_t bytes_received;  /* bytes of the last output */
} naa_status;

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Creates a session with the first free accelerator of NAA_SPEC for the function: connects (at most 10 s), registers
 * all regions and announces them (at most 30 s). An output with address and size of an input is the same region. At
 * most 32 regions. Regions must not overlap otherwise, and stay mapped until naa_finalize().
 */
int naa_create(const naa_function_code_t function_code, naa_param_t *input_params, unsigned int input_amount,
               naa_param_t *output_params, unsigned int output_amount, naa_handle *handle) NAAICE_SYMBOL("naa_create");

/*
 * Sends the inputs and starts the function. Returns before they are sent. Until the end of the call nobody may change
 * inputs or access outputs.
 */
int naa_invoke(naa_handle *handle);

/* Sets *flag if the call has ended, and then *status. Never waits. Sets *flag after an error as well. */
int naa_test(naa_handle *handle, bool *flag, naa_status *status);

/*
 * Waits until the call has ended, and sets *status. Returns 0 for a function that failed on the accelerator: status has its
 * code. Returns -1 with SOCKET_UNAVAIL if the accelerator has died.
 */
int naa_wait(naa_handle *handle, naa_status *status);

/* Ends the session. The regions may be freed, and the accelerator serves the next session. */
int naa_finalize(naa_handle *handle);

#ifdef __cplusplus
}
#endif

#endif
