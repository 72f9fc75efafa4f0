/* The peer of an alias lookup: the table of the installed UCX, keyed and filled as stock UCX does. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucs/datastruct/khash.h>

struct alias {
    void *object;
    uint32_t lkey;
    uint64_t owner;
};

KHASH_INIT(peer, uint64_t, struct alias, 1, kh_int64_hash_func, kh_int64_hash_equal)

struct table {
    khash_t(peer) *hash;
    uint64_t count;
    uint64_t next;
    uint64_t numbers[];
};

void *peer_make(const uint64_t *numbers, uint64_t count)
{
    struct table *table = malloc(sizeof(*table) + count * sizeof(uint64_t));
    if (table == NULL) {
        return NULL;
    }
    table->hash = kh_init(peer);
    table->count = count;
    table->next = 0;
    memcpy(table->numbers, numbers, count * sizeof(uint64_t));
    for (uint64_t i = 0; i < count; i++) {
        int result;
        khiter_t place = kh_put(peer, table->hash, numbers[i], &result);
        struct alias alias = {NULL, (uint32_t)i << 8, 1};
        kh_val(table->hash, place) = alias;
    }
    return table;
}

uint64_t peer_run(void *made, uint64_t rounds)
{
    struct table *table = made;
    uint64_t found = 0;
    for (uint64_t i = 0; i < rounds; i++) {
        uint64_t number = table->numbers[table->next];
        table->next = table->next + 1 == table->count ? 0 : table->next + 1;
        khiter_t place = kh_get(peer, table->hash, number);
        if (place == kh_end(table->hash)) {
            continue;
        }
        struct alias alias = kh_val(table->hash, place);
        if (alias.owner != 1) {
            continue;
        }
        __asm__ volatile("" : : "r"(alias.lkey) : "memory");
        found++;
    }
    return found;
}

void peer_free(void *made)
{
    struct table *table = made;
    kh_destroy(peer, table->hash);
    free(table);
}
