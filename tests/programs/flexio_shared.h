/* What flexio_host.c and flexio_device.c know. */
#include <stdint.h>

struct pair {
	uint64_t x;
	uint32_t y;
};

struct work {
	uint64_t outbox;
	uint64_t qpn;
	uint64_t send_ring;
	uint64_t qp_record;
	uint64_t cq_ring;
	uint64_t source;
	uint64_t source_key;
	uint64_t target;
	uint64_t target_key;
	volatile uint64_t completed;
};
