/* Atomic operations of words and doublewords, and compare-and-swap, which compiles to a loop with a reservation. */
#include "program.h"

static uint64_t wide[8];
static uint32_t narrow[8];

#define ALL(place, operand)                                                                                             \
    do {                                                                                                                \
        put_hex(__atomic_fetch_add(&place[0], operand, __ATOMIC_SEQ_CST));                                              \
        put_hex(__atomic_fetch_sub(&place[1], operand, __ATOMIC_RELAXED));                                              \
        put_hex(__atomic_fetch_and(&place[2], operand, __ATOMIC_ACQUIRE));                                              \
        put_hex(__atomic_fetch_or(&place[3], operand, __ATOMIC_RELEASE));                                               \
        put_hex(__atomic_fetch_xor(&place[4], operand, __ATOMIC_ACQ_REL));                                              \
        put_hex(__atomic_exchange_n(&place[5], operand, __ATOMIC_SEQ_CST));                                             \
        __typeof__(place[0]) expected = operand;                                                                        \
        put_hex(__atomic_compare_exchange_n(&place[6], &expected, 5, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));           \
        put_hex(expected);                                                                                              \
        put_hex(__atomic_compare_exchange_n(&place[6], &expected, 5, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));           \
    } while (0)

#define AMO(name, place, operand) ({ uint64_t r; __asm__ volatile(name " %0, %2, (%1)" : "=r"(r) : "r"(place), "r"(operand) : "memory"); r; })

int main(void)
{
    for (int round = 0; round < 3; round++) {
        ALL(wide, 0x8000000000000001 + (uint64_t)round);
        ALL(narrow, 0x80000001u + (uint32_t)round);
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        put_hex(AMO("amomin.d", &wide[7], -5l * round));
        put_hex(AMO("amomax.w", &narrow[7], 1u << 31));
        put_hex(AMO("amominu.w", &narrow[7], 3u));
        put_hex(AMO("amomaxu.d", &wide[7], 1ul << 63));
    }
    put(wide, sizeof wide);
    put(narrow, sizeof narrow);
    return 0;
}
