/* Common parts of the agents of the system tests. An agent executes commands, one per line on standard input, and
 * answers each with one line on standard output, "ok key=value ..." or "error what: why". Numbers are decimal or 0x....
 * A malformed command is a bug of the test and ends the agent with 2.
 */
#ifndef AGENT_H
#define AGENT_H

#include <endian.h>
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	WORDS = 48,        /* of a command */
	LINE_BYTES = 4096,
};

static inline void answer(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
	fflush(stdout);
}

static inline int failed(const char *what)
{
	answer("error %s: %s", what, strerror(errno));
	return -1;
}

static inline uint64_t number(const char *word)
{
	char *end;
	uint64_t value;

	if (!word) {
		answer("error a number is missing");
		exit(2);
	}
	value = strtoull(word, &end, 0);
	if (*end) {
		answer("error not a number: '%s'", word);
		exit(2);
	}
	return value;
}

/* An index into a table of this size. */
static inline unsigned place(const char *word, unsigned count)
{
	uint64_t value = number(word);

	if (value >= count) {
		answer("error no slot '%s'", word);
		exit(2);
	}
	return (unsigned)value;
}

/* The fields of a command to the device are big-endian. */
static inline void put16(uint8_t *at, uint16_t value)
{
	value = htobe16(value);
	memcpy(at, &value, 2);
}

static inline void put32(uint8_t *at, uint32_t value)
{
	value = htobe32(value);
	memcpy(at, &value, 4);
}

static inline void put64(uint8_t *at, uint64_t value)
{
	value = htobe64(value);
	memcpy(at, &value, 8);
}

static inline uint32_t get32(const uint8_t *at)
{
	uint32_t value;

	memcpy(&value, at, 4);
	return be32toh(value);
}

/* Executes commands until the end of the input. Absent words are null. */
static inline int take_commands(void (*obey)(char **word))
{
	char line[LINE_BYTES];

	while (fgets(line, sizeof(line), stdin)) {
		char *word[WORDS + 1] = { NULL }, *rest = line;

		for (int i = 0; i < WORDS; i++) {
			do
				word[i] = strsep(&rest, " \n");
			while (word[i] && !*word[i]);
		}
		if (word[0])
			obey(word);
	}
	return 0;
}

#endif
