/* The peer of a lease: a free list under a mutex, as C code would have it. */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

struct key {
    struct key *next;
};

struct list {
    pthread_mutex_t lock;
    struct key *free;
    struct key keys[];
};

void *peer_make(const uint64_t *numbers, uint64_t count)
{
    struct list *list = calloc(1, sizeof(*list) + count * sizeof(struct key));
    (void)numbers;
    if (list == NULL) {
        return NULL;
    }
    pthread_mutex_init(&list->lock, NULL);
    for (uint64_t i = 0; i < count; i++) {
        list->keys[i].next = list->free;
        list->free = &list->keys[i];
    }
    return list;
}

uint64_t peer_run(void *made, uint64_t rounds)
{
    struct list *list = made;
    uint64_t taken = 0;
    for (uint64_t i = 0; i < rounds; i++) {
        pthread_mutex_lock(&list->lock);
        struct key *key = list->free;
        if (key != NULL) {
            list->free = key->next;
        }
        pthread_mutex_unlock(&list->lock);
        if (key == NULL) {
            continue;
        }
        taken++;
        /* The caller holds it for a moment: the compiler must not join the two. */
        __asm__ volatile("" : : "r"(key) : "memory");
        pthread_mutex_lock(&list->lock);
        key->next = list->free;
        list->free = key;
        pthread_mutex_unlock(&list->lock);
    }
    return taken;
}

void peer_free(void *made)
{
    free(made);
}
