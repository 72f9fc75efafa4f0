/* What the MPI test programs share: their first error, and bytes that each receiver can compute. It knows only MPI. */
#ifndef MPI_SIDE_H
#define MPI_SIDE_H

#include <mpi.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* Place in MPI_COMM_WORLD, and its size. */
static int rank, ranks;
/* Part of the program that runs now. */
static const char *running = "start";

/* Prints the first error and aborts the job. */
static inline void fail(const char *format, ...)
{
	va_list args;

	fprintf(stderr, "rank %d, %s: ", rank, running);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	fflush(stderr);
	MPI_Abort(MPI_COMM_WORLD, 1);
	exit(1);
}

/* Byte `at` of what `from` sends to `to` in message `number`. A broadcast has `to` 0. */
static inline uint8_t byte_of(int from, int to, unsigned number, size_t at)
{
	uint32_t x = (uint32_t)at * 2654435761u ^ (uint32_t)(from * 977 + to * 131) ^ (number + 1) * 7919u;

	x ^= x >> 15;
	x *= 0x2c1b3c6du;
	return (uint8_t)(x >> 16);
}

static inline void fill(uint8_t *data, size_t size, int from, int to, unsigned number)
{
	size_t at;

	for (at = 0; at < size; at++)
		data[at] = byte_of(from, to, number, at);
}

static inline void compare(const uint8_t *data, size_t size, int from, int to, unsigned number)
{
	size_t at;

	for (at = 0; at < size; at++) {
		uint8_t expect = byte_of(from, to, number, at);

		if (data[at] != expect)
			fail("byte %zu from rank %d in message %u is 0x%02x, not 0x%02x", at, from, number, data[at], expect);
	}
}

static inline void *allocate(size_t size)
{
	void *memory = calloc(1, size ? size : 1);

	if (!memory)
		fail("no memory of %zu bytes", size);
	return memory;
}

#endif
