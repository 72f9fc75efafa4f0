/* Recursion, function pointers, structures by value, misaligned fields and a jump table. */
#include "program.h"

#ifndef ROUNDS
#define ROUNDS 2
#endif

struct item {
    uint64_t key;
    int16_t tag;
    uint8_t text[5];
} __attribute__((packed));

struct pair {
    uint64_t first;
    uint64_t second;
};

static struct item items[300];

static int before(const struct item *a, const struct item *b)
{
    return a->key != b->key ? a->key < b->key : a->tag < b->tag;
}

static int after(const struct item *a, const struct item *b)
{
    return before(b, a);
}

static void sort(struct item *first, long count, int (*less)(const struct item *, const struct item *))
{
    if (count < 2) {
        return;
    }
    struct item pivot = first[count / 2];
    long low = 0, high = count - 1;
    while (low <= high) {
        while (less(&first[low], &pivot)) {
            low++;
        }
        while (less(&pivot, &first[high])) {
            high--;
        }
        if (low <= high) {
            struct item other = first[low];
            first[low++] = first[high];
            first[high--] = other;
        }
    }
    sort(first, high + 1, less);
    sort(first + low, count - low, less);
}

static struct pair mix(struct pair a, struct item b)
{
    struct pair result = {a.first * 31 + b.key, a.second ^ (uint64_t)b.tag << (b.text[0] & 31)};
    return result;
}

static uint64_t choose(unsigned kind, uint64_t value)
{
    switch (kind) {
    case 0: return value + 3;
    case 1: return value * 5;
    case 2: return value ^ 0x55;
    case 3: return value - 7;
    case 4: return value << 3;
    case 5: return value >> 2;
    case 6: return ~value;
    case 7: return value | 9;
    default: return 1;
    }
}

int main(void)
{
    uint64_t state = 12345;
    for (size_t i = 0; i < sizeof items / sizeof items[0]; i++) {
        state = state * 6364136223846793005 + 1442695040888963407;
        items[i].key = state >> 50;
        items[i].tag = (int16_t)(state >> 20);
        for (size_t j = 0; j < sizeof items[i].text; j++) {
            items[i].text[j] = (uint8_t)(state >> 8 * j);
        }
    }
    struct pair sum = {1, 2};
    for (int round = 0; round < ROUNDS; round++) {
        sort(items, sizeof items / sizeof items[0], round & 1 ? after : before);
        for (size_t i = 0; i < sizeof items / sizeof items[0]; i++) {
            sum = mix(sum, items[i]);
            sum.second = choose((unsigned)(sum.first % 9), sum.second);
        }
    }
    put_hex(sum.first);
    put_hex(sum.second);
    return (int)(sum.first & 0x7f);
}
