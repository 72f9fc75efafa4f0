/* Uses the library as a program of a user does: volume.c DATA_1 DATA_2 DATA_P OTHER, with a volume of 1 MiB. */

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xgvmi_blk.h>

#define SIZE (1 << 20)
#define PART (SIZE / 4)

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, xgvmi_blk_error());                             \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* Bytes that name their place and the round; a third of the blocks does not compress. */
static void fill(unsigned char *bytes, size_t from, size_t length, unsigned round)
{
    unsigned state = round * 2654435761u + (unsigned)from;

    for (size_t i = 0; i < length; ++i) {
        if (((from + i) / 4096) % 3 == 0) {
            state = state * 1664525u + 1013904223u;
            bytes[i] = (unsigned char)(state >> 24);
        } else {
            bytes[i] = (unsigned char)((from + i) / 64 + round);
        }
    }
}

static struct xgvmi_blk *volume;
static unsigned char shadow[SIZE];

/* Each thread has a quarter of the volume, and writes it in pieces that do not fit blocks. */
static void *work(void *argument)
{
    size_t start = (size_t)argument * PART;
    size_t at = start;

    for (unsigned round = 1; at < start + PART; ++round) {
        size_t length = 700 * round;

        if (length > start + PART - at) {
            length = start + PART - at;
        }
        fill(shadow + at, at, length, round);
        CHECK(xgvmi_blk_write(volume, at, shadow + at, length) == 0);
        at += length;
    }
    CHECK(xgvmi_blk_flush(volume) == 0);
    return NULL;
}

/* Everything from fresh memory. */
static void compare(void)
{
    unsigned char *bytes = malloc(SIZE);

    CHECK(bytes != NULL);
    memset(bytes, 0xaa, SIZE);
    CHECK(xgvmi_blk_read(volume, 0, bytes, SIZE) == 0);
    CHECK(memcmp(bytes, shadow, SIZE) == 0);
    memset(bytes, 0xaa, SIZE);
    CHECK(xgvmi_blk_read(volume, 12345, bytes, 54321) == 0);
    CHECK(memcmp(bytes, shadow + 12345, 54321) == 0);
    CHECK(bytes[54321] == 0xaa);
    free(bytes);
}

/* Programs that were built with the header of another version: a smaller structure has the defaults for what it lacks, and
 * a larger one is refused if it uses what this library does not know. */
static void other_versions(const char *const *targets)
{
    struct {
        size_t      size;
        const char *secret_file;
    } earlier = {sizeof(earlier), NULL};
    struct {
        struct xgvmi_blk_options known;
        uint64_t                 later;
    } later;
    struct xgvmi_blk *other;

    CHECK(xgvmi_blk_open(targets, 3, (const struct xgvmi_blk_options *)&earlier, &other) == 0);
    CHECK(xgvmi_blk_close(other) == 0);
    earlier.secret_file = "/nowhere/secret";
    CHECK(xgvmi_blk_open(targets, 3, (const struct xgvmi_blk_options *)&earlier, &other) == -EINVAL);
    CHECK(strstr(xgvmi_blk_error(), "/nowhere/secret") != NULL);
    memset(&later, 0, sizeof(later));
    later.known.size = sizeof(later);
    CHECK(xgvmi_blk_open(targets, 3, &later.known, &other) == 0);
    CHECK(xgvmi_blk_close(other) == 0);
    later.later = 1;
    CHECK(xgvmi_blk_open(targets, 3, &later.known, &other) == -EINVAL);
    CHECK(strstr(xgvmi_blk_error(), "members that library") != NULL);
    later.known.size = sizeof(later) - 1;
    CHECK(xgvmi_blk_open(targets, 3, &later.known, &other) == -EINVAL);
    later.known.size = SIZE_MAX - 7;
    CHECK(xgvmi_blk_open(targets, 3, &later.known, &other) == -EINVAL);
}

static void refusals(const char *const *targets, const char *other)
{
    struct xgvmi_blk *second = (struct xgvmi_blk *)1;
    struct xgvmi_blk_options options;
    const char *mixed[2] = {targets[0], other};
    const char *none[1] = {"/nowhere"};
    unsigned char byte = 0;

    CHECK(xgvmi_blk_open(targets, 3, NULL, &second) == -EBUSY);
    CHECK(second == NULL);
    CHECK(strstr(xgvmi_blk_error(), "another process uses this target") != NULL);
    CHECK(xgvmi_blk_open(targets, 0, NULL, &second) == -EINVAL);
    CHECK(xgvmi_blk_open(targets, 12, NULL, &second) == -EINVAL);
    CHECK(xgvmi_blk_open(targets, 3, NULL, NULL) == -EINVAL);
    CHECK(xgvmi_blk_open(none, 1, NULL, &second) == -EIO);
    CHECK(strstr(xgvmi_blk_error(), "/nowhere") != NULL);
    memset(&options, 0, sizeof(options));
    CHECK(xgvmi_blk_open(targets, 3, &options, &second) == -EINVAL);
    CHECK(strstr(xgvmi_blk_error(), "sizeof") != NULL);
    options.size = sizeof(options);
    options.secret_file = "/nowhere/secret";
    CHECK(xgvmi_blk_open(targets, 3, &options, &second) == -EINVAL);
    CHECK(strstr(xgvmi_blk_error(), "/nowhere/secret") != NULL);
    options.secret_file = NULL;
    options.key_file = "/nowhere/key";
    CHECK(xgvmi_blk_open(targets, 3, &options, &second) == -EINVAL);
    CHECK(strstr(xgvmi_blk_error(), "/nowhere/key") != NULL);
    CHECK(xgvmi_blk_read(volume, SIZE, &byte, 1) == -EINVAL);
    CHECK(strstr(xgvmi_blk_error(), "exceed the volume") != NULL);
    CHECK(xgvmi_blk_write(volume, UINT64_MAX, &byte, 1) == -EINVAL);
    CHECK(xgvmi_blk_write(volume, 0, NULL, 1) == -EINVAL);
    CHECK(xgvmi_blk_read(volume, 0, &byte, SIZE_MAX) == -EINVAL);
    CHECK(xgvmi_blk_trim(volume, SIZE, 1) == -EINVAL);
    CHECK(xgvmi_blk_read(NULL, 0, &byte, 1) == -EINVAL);
    CHECK(xgvmi_blk_flush(NULL) == -EINVAL);
    CHECK(xgvmi_blk_size(NULL) == 0 && xgvmi_blk_targets(NULL) == 0);
    CHECK(xgvmi_blk_read(volume, SIZE, NULL, 0) == 0);
    CHECK(xgvmi_blk_close(NULL) == 0);
    CHECK(xgvmi_blk_close(volume) == 0);
    CHECK(xgvmi_blk_open(mixed, 2, NULL, &volume) == -EINVAL);
    CHECK(strstr(xgvmi_blk_error(), "do not belong to one volume") != NULL);
}

static struct xgvmi_blk_queue *queue;

/* Whether the queue's descriptor is readable. */
static int is_readable(void)
{
    struct pollfd poller = {.fd = xgvmi_blk_queue_fd(queue), .events = POLLIN};

    return poll(&poller, 1, 0);
}

/* Takes exactly this completion. */
static void take(uint64_t user_data, int result)
{
    struct xgvmi_blk_completion done;

    CHECK(xgvmi_blk_queue_take(queue, &done, 1, 1, -1) == 1);
    CHECK(done.user_data == user_data && done.result == result && done.reserved == 0);
    CHECK((result == 0) == (done.error[0] == '\0'));
}

/* Each thread submits writes to its quarter, and takes whatever has ended: completions of any thread. */
static void *submit(void *argument)
{
    size_t start = (size_t)argument * PART;
    struct xgvmi_blk_completion done[8];

    for (size_t at = start; at < start + PART; at += 4096) {
        int result;

        fill(shadow + at, at, 4096, 77);
        while ((result = xgvmi_blk_queue_write(queue, at, shadow + at, 4096, at)) == -EAGAIN) {
            result = xgvmi_blk_queue_take(queue, done, 1, 8, -1);
            CHECK(result >= 0);
            for (int i = 0; i < result; ++i) {
                CHECK(done[i].result == 0 && done[i].user_data % 4096 == 0 && done[i].user_data < SIZE);
            }
        }
        CHECK(result == 0);
    }
    return NULL;
}

static void queues(void)
{
    static unsigned char bytes[SIZE];
    struct xgvmi_blk_completion done[64];
    struct xgvmi_blk_queue *other;
    pthread_t threads[4];
    unsigned char seen[64] = {0};
    int count;

    CHECK(xgvmi_blk_queue_open(volume, 8, &queue) == 0);
    CHECK(is_readable() == 0);
    CHECK(xgvmi_blk_queue_take(queue, done, 1, 64, -1) == 0);
    for (size_t i = 0; i < 4; ++i) {
        CHECK(pthread_create(&threads[i], NULL, submit, (void *)i) == 0);
    }
    for (size_t i = 0; i < 4; ++i) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    while (xgvmi_blk_queue_take(queue, done, 1, 64, -1) > 0) {
    }
    CHECK(is_readable() == 0);
    compare();
    /* As many reads as the queue takes, and no more. They are all there in the end, once each. */
    memset(bytes, 0xaa, SIZE);
    for (unsigned i = 0; i < 8; ++i) {
        CHECK(xgvmi_blk_queue_read(queue, i * 10000, bytes + i * 10000, 10000, i) == 0);
    }
    CHECK(xgvmi_blk_queue_flush(queue, 8) == -EAGAIN);
    CHECK(strstr(xgvmi_blk_error(), "take completions first") != NULL);
    CHECK(poll(&(struct pollfd){.fd = xgvmi_blk_queue_fd(queue), .events = POLLIN}, 1, -1) == 1);
    count = xgvmi_blk_queue_take(queue, done, 8, 64, -1);
    CHECK(count == 8 && is_readable() == 0);
    for (int i = 0; i < count; ++i) {
        CHECK(done[i].result == 0 && seen[done[i].user_data]++ == 0);
    }
    CHECK(memcmp(bytes, shadow, 80000) == 0 && bytes[80000] == 0xaa);
    /* The other calls, one at a time. */
    CHECK(xgvmi_blk_queue_write_zeroes(queue, 1000, 9000, 1) == 0);
    take(1, 0);
    memset(shadow + 1000, 0, 9000);
    CHECK(xgvmi_blk_queue_trim(queue, 20000, 20000, 2) == 0);
    take(2, 0);
    memset(shadow + 20480, 0, 4 * 4096);
    CHECK(xgvmi_blk_queue_flush(queue, UINT64_MAX) == 0);
    take(UINT64_MAX, 0);
    CHECK(xgvmi_blk_queue_read(queue, SIZE, NULL, 0, 3) == 0);
    take(3, 0);
    compare();
    /* Refusals, at once or as the completion. */
    CHECK(xgvmi_blk_queue_read(queue, SIZE, bytes, 1, 4) == -EINVAL);
    CHECK(xgvmi_blk_queue_write(queue, 0, NULL, 1, 4) == -EINVAL);
    CHECK(xgvmi_blk_queue_read(queue, 0, bytes, SIZE_MAX, 4) == -EINVAL);
    CHECK(xgvmi_blk_queue_trim(queue, SIZE, 1, 4) == 0);
    take(4, -EINVAL);
    CHECK(xgvmi_blk_queue_take(queue, done, 0, 64, -1) == 0);
    CHECK(xgvmi_blk_queue_take(queue, done, 2, 1, 0) == -EINVAL);
    CHECK(xgvmi_blk_queue_take(queue, NULL, 0, 1, 0) == -EINVAL);
    CHECK(xgvmi_blk_queue_flush(NULL, 0) == -EINVAL && xgvmi_blk_queue_fd(NULL) == -EINVAL);
    CHECK(xgvmi_blk_queue_open(volume, 4097, &other) == -EINVAL && other == NULL);
    CHECK(xgvmi_blk_queue_open(NULL, 0, &other) == -EINVAL);
    CHECK(xgvmi_blk_queue_open(volume, 0, NULL) == -EINVAL);
    /* A volume with queues stays open. Closing a queue waits for its requests. */
    CHECK(xgvmi_blk_queue_open(volume, 0, &other) == 0);
    CHECK(xgvmi_blk_close(volume) == -EBUSY);
    CHECK(strstr(xgvmi_blk_error(), "2 queues") != NULL);
    fill(shadow, 0, SIZE, 88);
    for (unsigned i = 0; i < 32; ++i) {
        CHECK(xgvmi_blk_queue_write(other, i * (SIZE / 32), shadow + i * (SIZE / 32), SIZE / 32, i) == 0);
    }
    CHECK(xgvmi_blk_queue_close(other) == 0);
    compare();
    CHECK(xgvmi_blk_queue_close(queue) == 0);
    CHECK(xgvmi_blk_queue_close(NULL) == 0);
}

int main(int argc, char **argv)
{
    const char *const *targets = (const char *const *)argv + 1;
    const char *const last_two[2] = {argv[2], argv[3]};
    pthread_t threads[4];

    assert(argc == 5);
    CHECK(strchr(xgvmi_blk_version(), '.') != NULL);
    other_versions(targets);
    CHECK(xgvmi_blk_open(targets, 3, NULL, &volume) == 0);
    CHECK(xgvmi_blk_size(volume) == SIZE && xgvmi_blk_block_size(volume) == 4096);
    CHECK(xgvmi_blk_targets(volume) == 3);
    compare();
    for (size_t i = 0; i < 4; ++i) {
        CHECK(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
    }
    for (size_t i = 0; i < 4; ++i) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    compare();
    CHECK(xgvmi_blk_write_zeroes(volume, 1000, 9000) == 0);
    memset(shadow + 1000, 0, 9000);
    CHECK(xgvmi_blk_trim(volume, 20000, 20000) == 0);
    memset(shadow + 20480, 0, 4 * 4096);
    compare();
    queues();
    CHECK(xgvmi_blk_close(volume) == 0);
    /* Without one target, which returns afterwards. */
    CHECK(xgvmi_blk_open(last_two, 2, NULL, &volume) == 0);
    compare();
    fill(shadow + 5000, 5000, 5000, 99);
    CHECK(xgvmi_blk_write(volume, 5000, shadow + 5000, 5000) == 0);
    CHECK(xgvmi_blk_close(volume) == 0);
    CHECK(xgvmi_blk_open(targets, 3, NULL, &volume) == 0);
    CHECK(xgvmi_blk_repair(volume) == 0);
    compare();
    CHECK(xgvmi_blk_close(volume) == 0);
    CHECK(xgvmi_blk_open(targets, 2, NULL, &volume) == 0);
    compare();
    CHECK(xgvmi_blk_close(volume) == 0);
    CHECK(xgvmi_blk_open(targets, 3, NULL, &volume) == 0);
    refusals(targets, argv[4]);
    puts("all as expected");
    return 0;
}
