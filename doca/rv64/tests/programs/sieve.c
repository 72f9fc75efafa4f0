/* Prime sieve: counts the primes below 1,000,000, as often as the build says. */
#include "program.h"

#ifndef ROUNDS
#define ROUNDS 1
#endif
#define LIMIT 1000000

static uint8_t composite[LIMIT];

static long primes(void)
{
    long count = 0;
    for (size_t i = 0; i < LIMIT; i++) {
        composite[i] = 0;
    }
    for (size_t i = 2; i < LIMIT; i++) {
        if (composite[i]) {
            continue;
        }
        count++;
        for (size_t j = 2 * i; j < LIMIT; j += i) {
            composite[j] = 1;
        }
    }
    return count;
}

int main(void)
{
    long count = 0;
    for (int round = 0; round < ROUNDS; round++) {
        count = primes();
        __asm__ volatile("" ::: "memory");
    }
    put_hex((uint64_t)count);
    return count == 78498 ? 0 : 1;
}
