/* Types that the host's and the device's side of the test program share. */
#ifndef DOCA_SHARED_H
#define DOCA_SHARED_H

#include <stdint.h>

/* Arguments of an RPC, by value. */
struct small {
	uint32_t a;
	uint16_t b;
};

struct large {
	uint64_t words[5];
	struct small inner;
};

/* What an activated thread gets. */
struct activation {
	uint64_t completion;
	uint64_t event;
	uint64_t seen;
};

#endif
