/* What both sides of the test know: requests of the mailbox. */
#ifndef PCC_SHARED_H
#define PCC_SHARED_H

#include <stdint.h>

enum {
	/* All flows have this rate from their next event on. */
	PCC_SET_MBPS = 1,
	/* The next events have this fault. */
	PCC_FAULT = 2,
	/* Answers of probes with the receiver's mark, and without. */
	PCC_PROBES = 3,
};

/* First byte of what the receiver's program answers. */
#define PCC_MARK 0x5a

enum {
	PCC_FAULT_CRASHES = 1,
	PCC_FAULT_LOOPS = 2,
	PCC_FAULT_RATE_ZERO = 3,
	PCC_FAULT_RATE_ABOVE = 4,
	PCC_FAULT_NO_PROBE = 5,
	PCC_FAULT_SLOW = 6,
};

struct pcc_request {
	uint32_t what;
	uint32_t value;
};

#endif
