/* Arithmetic of all widths at the edges of its operands, and bit manipulation. */
#include "program.h"

static const uint64_t edges[] = {
    0, 1, 2, 7, 31, 32, 63, 64, 0x7f, 0x80, 0xff, 0x7fff, 0x8000, 0xffff, 0x7fffffff, 0x80000000, 0xffffffff,
    0x123456789abcdef0, 0x7fffffffffffffff, 0x8000000000000000, 0x8000000000000001, 0xfffffffffffffffe, 0xffffffffffffffff,
};
#define EDGES (sizeof edges / sizeof edges[0])

static uint64_t hash = 0xcbf29ce484222325;

static void add(uint64_t value)
{
    hash = (hash ^ value) * 0x100000001b3;
}

/* Instructions without an operator of C; division by zero is defined in the processor only. */
#define OP(name, a, b) ({ uint64_t r; __asm__(name " %0, %1, %2" : "=r"(r) : "r"(a), "r"(b)); r; })

static void words(uint32_t a, uint32_t b)
{
    add(a + b);
    add(a - b);
    add(a * b);
    add(a << (b & 31));
    add(a >> (b & 31));
    add((uint32_t)((int32_t)a >> (b & 31)));
    add((int32_t)a < (int32_t)b);
    add(a < b);
    add(a << (b & 31) | a >> (-b & 31));
    if (b != 0) {
        add(a / b);
        add(a % b);
    }
    add(a ? (uint64_t)__builtin_clz(a) : 32);
    /* No ctz: qemu before 8.0 counts zeros in the upper half as well. */
    add((uint64_t)__builtin_popcount(a));
    add(__builtin_bswap32(a));
}

static void doublewords(uint64_t a, uint64_t b)
{
    add(a + b);
    add(a - b);
    add(a * b);
    add((uint64_t)((unsigned __int128)a * b >> 64));
    add((uint64_t)((__int128)(int64_t)a * (int64_t)b >> 64));
    add(a << (b & 63));
    add(a >> (b & 63));
    add((uint64_t)((int64_t)a >> (b & 63)));
    add(a << (b & 63) | a >> (-b & 63));
    add(a & ~b);
    add(a | ~b);
    add(~(a ^ b));
    add((int64_t)a < (int64_t)b ? a : b);
    add(a < b ? b : a);
    add(a & ~(1ul << (b & 63)));
    add(a >> (b & 63) & 1);
    add(a * 2 + b);
    add(a * 8 + b);
    add((uint64_t)(uint32_t)a * 4 + b);
    add(a ? (uint64_t)__builtin_clzl(a) : 64);
    add(a ? (uint64_t)__builtin_ctzl(a) : 64);
    add((uint64_t)__builtin_popcountl(a));
    add(__builtin_bswap64(a));
    add((uint64_t)(int64_t)(int8_t)a);
    add((uint64_t)(int64_t)(int16_t)a);
    add((uint16_t)a);
    add(OP("div", a, b));
    add(OP("divu", a, b));
    add(OP("rem", a, b));
    add(OP("remu", a, b));
    add(OP("divw", a, b));
    add(OP("divuw", a, b));
    add(OP("remw", a, b));
    add(OP("remuw", a, b));
    add(OP("mulhsu", a, b));
}

int main(void)
{
    for (size_t i = 0; i < EDGES; i++) {
        for (size_t j = 0; j < EDGES; j++) {
            words((uint32_t)edges[i], (uint32_t)edges[j]);
            doublewords(edges[i], edges[j]);
        }
    }
    put_hex(hash);
    return 0;
}
