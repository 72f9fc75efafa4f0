/* What both sides of the test know: requests of the mailbox. */
#ifndef PCC_SHARED_H
#define PCC_SHARED_H

#include <stdint.h>

enum {
	/* All flows have this rate from their next event on. */
	PCC_SET_MBPS = 1,
	/* The next event has this fault. */
	PCC_FAULT = 2,
};

enum {
	PCC_FAULT_CRASHES = 1,
	PCC_FAULT_LOOPS = 2,
};

struct pcc_request {
	uint32_t what;
	uint32_t value;
};

#endif
