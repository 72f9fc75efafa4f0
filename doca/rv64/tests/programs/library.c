/* Functions of a C library: strings, sorting, conversion and formatting. */
#include "program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b)
{
    long x = *(const long *)a, y = *(const long *)b;
    return x < y ? -1 : x > y;
}

int main(void)
{
    static char text[400], copy[400];
    static long numbers[100];
    int length = 0;
    for (int i = 0; i < 100; i++) {
        numbers[i] = (long)(i * 7919 % 1000) - 500;
    }
    qsort(numbers, 100, sizeof numbers[0], compare);
    for (int i = 0; i < 100; i += 9) {
        length += snprintf(text + length, sizeof text - (size_t)length, "%ld|%#lx|%-6d|%+05d\n", numbers[i], (unsigned long)numbers[i], i, i);
    }
    put(text, (size_t)length);
    memmove(copy + 3, text, (size_t)length);
    memmove(copy, copy + 3, (size_t)length);
    put_hex((uint64_t)(unsigned)memcmp(copy, text, (size_t)length));
    put_hex(strlen(copy));
    put_hex((uint64_t)(strstr(copy, "|63") - copy));
    put_hex(strtoul("0xfedcba98", NULL, 0));
    put_hex((uint64_t)strtol("-123456789", NULL, 10));
    return strncmp(copy, text, 50) == 0 ? 0 : 1;
}
