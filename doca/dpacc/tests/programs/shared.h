/*
 * Types that the test's kernels and its host program share.
 */
#ifndef SHARED_H
#define SHARED_H

#include <stdint.h>

#ifndef __DPA__
#define __dpa_global__
#endif

enum colour { RED = 1, BLUE = 0x7fffffff } __dpa_global__;

typedef uint64_t handle_t __dpa_global__;

struct pair {
	uint32_t a;
	uint64_t b;
} __dpa_global__;

typedef struct {
	uint8_t tag;
	uint64_t value;
	uint16_t end;
} __attribute__((__packed__)) __dpa_global__ packed_t;

struct small {
	float f;
	int16_t s;
};

struct nested {
	struct pair pairs[2];
	union {
		double number;
		uint64_t bits;
	} either;
	unsigned low : 3;
	unsigned high : 13;
	int8_t grid[2][3];
	const char *name;
};

struct wide {
	uint64_t a;
	uint32_t b;
} __attribute__((aligned(16)));

struct floats {
	float x, y, z;
};

#endif
