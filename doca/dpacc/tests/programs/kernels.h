/*
 * What one source of the test's kernels uses of the other.
 */
#ifndef KERNELS_H
#define KERNELS_H

#include <stdint.h>

void note(uint64_t value);

#endif
