/*
 * Kernels of the test: each records what it got.
 */
#include <doca_dpa_dev.h>

#include "kernels.h"
#include "shared.h"

uint64_t record[64];
unsigned int records;

void note(uint64_t value)
{
	if (records < sizeof(record) / sizeof(record[0]))
		record[records++] = value;
}

__dpa_global__ void nothing(void)
{
	note(0x1111);
}

__dpa_global__ void scalars(int8_t a, uint16_t b, int32_t c, uint64_t d, _Bool e, float f, double g, void *h,
			    enum colour i, handle_t j)
{
	note((uint64_t)a);
	note(b);
	note((uint64_t)c);
	note(d);
	note(e);
	note((uint64_t)(f * 4));
	note((uint64_t)(g * 4));
	note((uint64_t)h);
	note(i);
	note(j);
}

__dpa_global__ void thirteen(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f, uint64_t g,
			     uint32_t h, uint64_t i, uint64_t j, uint64_t k, uint64_t l, uint64_t m)
{
	uint64_t all[] = {a, b, c, d, e, f, g, h, i, j, k, l, m};

	for (unsigned int at = 0; at < 13; at++)
		note(all[at]);
}

__dpa_rpc__ uint64_t by_value(handle_t a, struct pair b, packed_t c, struct nested d, struct small e, struct wide f,
			      struct floats g)
{
	note(a);
	note(b.a);
	note(b.b);
	note(c.tag);
	note(c.value);
	note(c.end);
	note(d.pairs[0].a);
	note(d.pairs[1].b);
	note(d.either.bits);
	note(d.low);
	note(d.high);
	note((uint64_t)d.grid[1][2]);
	note((uint64_t)d.name);
	note((uint64_t)e.f);
	note((uint64_t)e.s);
	note(f.a);
	note(f.b);
	note((uint64_t)(g.x + g.y * 10 + g.z * 100));
	return b.b ^ c.value;
}
