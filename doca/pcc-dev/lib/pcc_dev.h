/*
 * Inside of the device library: its entry points, the services that it needs, and the memory that it shares with the device.
 */
#ifndef PCC_DEV_H
#define PCC_DEV_H

#include <doca_pcc_dev_algo_access.h>
#include <stdarg.h>

#include "pcc_numbers.h"

/* An entry point: an RPC for the device, a symbol for the host. */
#ifdef __dpa_rpc__
#define PCC_ENTRY __dpa_rpc__
#else
#define PCC_ENTRY __attribute__((used, visibility("default")))
#endif

/* One event: what the device writes before it calls the library, and the answer. */
struct pcc_block {
	doca_pcc_dev_algo_ctxt_t context;
	doca_pcc_dev_event_t event;
	doca_pcc_dev_attr_t attr;
	doca_pcc_dev_results_t results;
	uint32_t reserved;
};

_Static_assert(sizeof(struct pcc_block) == PCC_BLOCK_BYTES, "the layout that the device knows");
_Static_assert(offsetof(struct pcc_block, event) == PCC_BLOCK_EVENT, "the layout that the device knows");
_Static_assert(offsetof(struct pcc_block, attr) == PCC_BLOCK_ATTR, "the layout that the device knows");
_Static_assert(offsetof(struct pcc_block, results) == PCC_BLOCK_RESULTS, "the layout that the device knows");

/* A probe that arrived: its bytes, and where its parts begin. */
struct doca_pcc_np_dev_request_packet {
	uint64_t bytes;
	uint32_t size;
	uint32_t l4;
	uint32_t payload;
	uint8_t port;
	uint8_t plane;
	uint8_t reserved[2];
	uint8_t response[PCC_RESPONSE_BYTES];
	uint32_t end;
};

_Static_assert(sizeof(struct doca_pcc_np_dev_request_packet) == PCC_PROBE_BYTES, "the layout that the device knows");

/* A service of the device or the host, by number (PCC_SERVICE_...). */
uint64_t pcc_service(uint64_t number, uint64_t a, uint64_t b, uint64_t c, uint64_t d);

/* Formats a text like vsnprintf(), and returns its bytes without the end. What does not fit is left out. */
uint32_t pcc_format(char *text, uint32_t size, const char *format, va_list arguments);

/* Reports a refusal in one line, and returns the status for it. */
doca_pcc_dev_error_t pcc_refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
