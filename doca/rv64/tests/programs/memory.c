/* Functions that compilers call in programs without a C library. */
#include <stddef.h>
#include <stdint.h>

void *memcpy(void *to, const void *from, size_t size)
{
    uint8_t *target = to;
    const uint8_t *source = from;
    for (size_t i = 0; i < size; i++) {
        target[i] = source[i];
    }
    return to;
}

void *memset(void *to, int value, size_t size)
{
    uint8_t *target = to;
    for (size_t i = 0; i < size; i++) {
        target[i] = (uint8_t)value;
    }
    return to;
}
