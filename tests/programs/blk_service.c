/* Uses the volume of a service as a program of a user does: blk_service ADDRESS SECRET_FILE [hold]. Every byte is compared.
 * With `hold` it connects, and writes and reads once for each line of its standard input. blk_service ADDRESS SECRET_FILE
 * rights: a service of the volumes a and b, where the initiator db1 of this secret may write a and read b. */

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <xgvmi_blk.h>

#define SECTOR 512
#define THREADS 4

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, xgvmi_blk_error());                             \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static struct xgvmi_blk *volume;
static size_t size;
static unsigned char *shadow;
static const size_t lengths[] = {512, 4096, 16384, 16896, 65536, 300032, 1048576, 5 * 1048576 + 512};

/* Memory that no earlier transfer has used, at any offset from its page. */
static unsigned char *fresh(size_t length, size_t shift)
{
    unsigned char *map = mmap(NULL, length + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    CHECK(map != MAP_FAILED);
    return map + shift;
}

static void gone(unsigned char *bytes, size_t length, size_t shift)
{
    CHECK(munmap(bytes - shift, length + 4096) == 0);
}

/* Each sector names its offset and its round; a third of the blocks does not compress. */
static void fill(unsigned char *bytes, size_t from, size_t length, unsigned round)
{
    unsigned state = round * 2654435761u + (unsigned)from + 1;

    for (size_t i = 0; i < length; i += SECTOR) {
        size_t at = from + i;

        for (size_t j = 0; j < SECTOR; ++j) {
            state = state * 1664525u + 1013904223u;
            bytes[i + j] = (at / 4096) % 3 == 0 ? (unsigned char)(state >> 24) : (unsigned char)(round + j / 64);
        }
        memcpy(bytes + i, &at, sizeof(at));
        memcpy(bytes + i + sizeof(at), &round, sizeof(round));
    }
}

/* Reads a range into fresh memory and compares each byte, and those around it. */
static size_t compare(size_t from, size_t length, size_t shift)
{
    unsigned char *bytes = fresh(length, shift);

    memset(bytes, 0xaa, length + 1);
    CHECK(xgvmi_blk_read(volume, from, bytes, length) == 0);
    CHECK(memcmp(bytes, shadow + from, length) == 0);
    CHECK(bytes[length] == 0xaa && (shift == 0 || bytes[-1] == 0));
    gone(bytes, length, shift);
    return length;
}

/* Each thread has a part of the volume. */
static void *work(void *argument)
{
    size_t part = size / THREADS, start = (size_t)(uintptr_t)argument * part, verified = 0;

    for (unsigned round = 0; round < 24; ++round) {
        size_t length = lengths[round % (sizeof(lengths) / sizeof(lengths[0]))];
        size_t from = start + (size_t)round * 7919 * SECTOR % (part - length) / SECTOR * SECTOR;
        size_t shift = round * 97 % 4096;
        unsigned char *bytes = fresh(length, shift);

        fill(bytes, from, length, round);
        memcpy(shadow + from, bytes, length);
        CHECK(xgvmi_blk_write(volume, from, bytes, length) == 0);
        CHECK(memcmp(shadow + from, bytes, length) == 0);
        /* The call has returned: a later change of the memory must not reach the volume. */
        memset(bytes, 0x55, length);
        gone(bytes, length, shift);
        verified += compare(from, length, (shift + 1) % 4096);
    }
    CHECK(xgvmi_blk_flush(volume) == 0);
    return (void *)(uintptr_t)verified;
}

static void refusals(const char *service)
{
    struct xgvmi_blk *second = (struct xgvmi_blk *)1;
    struct xgvmi_blk_connect_options options;
    unsigned char bytes[SECTOR];

    memset(&options, 0, sizeof(options));
    CHECK(xgvmi_blk_connect(service, &options, &second) == -EINVAL && second == NULL);
    CHECK(strstr(xgvmi_blk_error(), "sizeof") != NULL);
    options.size = sizeof(options);
    CHECK(xgvmi_blk_connect(service, &options, &second) == -EIO && second == NULL);
    CHECK(strstr(xgvmi_blk_error(), "secret") != NULL);
    options.secret_file = "/nowhere/secret";
    CHECK(xgvmi_blk_connect(service, &options, &second) == -EINVAL);
    CHECK(strstr(xgvmi_blk_error(), "/nowhere/secret") != NULL);
    options.secret_file = NULL;
    options.reconnect_ms = 1;
    CHECK(xgvmi_blk_connect("127.0.0.1:1", &options, &second) == -ENOTCONN);
    CHECK(strstr(xgvmi_blk_error(), "127.0.0.1:1") != NULL);
    options.reconnect_ms = 600001;
    CHECK(xgvmi_blk_connect(service, &options, &second) == -EINVAL);
    options.reconnect_ms = 0;
    options.device = "mlx5_99";
    CHECK(xgvmi_blk_connect(service, &options, &second) == -EIO);
    CHECK(strstr(xgvmi_blk_error(), "mlx5_99") != NULL);
    CHECK(xgvmi_blk_connect(NULL, NULL, &second) == -EINVAL);
    CHECK(xgvmi_blk_connect(service, NULL, NULL) == -EINVAL);
    CHECK(xgvmi_blk_read(volume, size, bytes, SECTOR) == -EINVAL);
    CHECK(strstr(xgvmi_blk_error(), "exceed the volume") != NULL);
    CHECK(xgvmi_blk_write(volume, UINT64_MAX, bytes, 1) == -EINVAL);
    CHECK(xgvmi_blk_read(volume, 1, bytes, SECTOR) == -EINVAL);
    CHECK(strstr(xgvmi_blk_error(), "multiples of 512") != NULL);
    CHECK(xgvmi_blk_write(volume, 0, bytes, 1) == -EINVAL);
    CHECK(xgvmi_blk_read(volume, 0, NULL, SECTOR) == -EINVAL);
    CHECK(xgvmi_blk_trim(volume, size, SECTOR) == -EINVAL);
    CHECK(xgvmi_blk_repair(volume) == -EOPNOTSUPP);
    CHECK(xgvmi_blk_targets(volume) == 0);
    CHECK(xgvmi_blk_read(volume, size, NULL, 0) == 0);
}

/* Writes of many lengths under way at once from one thread, then reads. Transfers are registered and copied ones. */
static size_t in_queue(void)
{
    enum { COUNT = 24, AREA = 1 << 20 };
    struct xgvmi_blk_completion done[COUNT];
    struct xgvmi_blk_queue *queue;
    size_t verified = 0;

    CHECK(xgvmi_blk_queue_open(volume, COUNT, &queue) == 0);
    for (unsigned pass = 0; pass < 2; ++pass) {
        unsigned char *bytes[COUNT];

        for (unsigned i = 0; i < COUNT; ++i) {
            size_t length = lengths[i % 7], from = (size_t)i * AREA;

            bytes[i] = fresh(length, i * 97);
            if (pass == 0) {
                fill(shadow + from, from, length, 50 + i);
                memcpy(bytes[i], shadow + from, length);
                CHECK(xgvmi_blk_queue_write(queue, from, bytes[i], length, i) == 0);
            } else {
                memset(bytes[i], 0xaa, length + 1);
                CHECK(xgvmi_blk_queue_read(queue, from, bytes[i], length, i) == 0);
            }
        }
        CHECK(xgvmi_blk_queue_flush(queue, 0) == -EAGAIN);
        for (unsigned count = 0; count < COUNT;) {
            int taken = xgvmi_blk_queue_take(queue, done + count, 1, COUNT - count, -1);

            CHECK(taken > 0);
            count += (unsigned)taken;
        }
        for (unsigned i = 0; i < COUNT; ++i) {
            size_t at = done[i].user_data, length = lengths[at % 7];

            CHECK(done[i].result == 0 && bytes[at] != NULL);
            CHECK(memcmp(bytes[at], shadow + at * AREA, length) == 0);
            CHECK(pass == 0 || bytes[at][length] == 0xaa);
            gone(bytes[at], length, at * 97);
            bytes[at] = NULL;
            verified += pass * length;
        }
    }
    /* As a blocking call fails, so does its completion. */
    CHECK(xgvmi_blk_queue_read(queue, 1, shadow, SECTOR, 7) == 0);
    CHECK(xgvmi_blk_queue_take(queue, done, 1, 1, -1) == 1 && done[0].result == -EINVAL);
    CHECK(strstr(done[0].error, "multiples of 512") != NULL);
    CHECK(xgvmi_blk_queue_close(queue) == 0);
    return verified;
}

/* One write and read for each line, on one connection. */
static void hold(const char *service)
{
    char line[256];

    printf("connected to %s\n", service);
    fflush(stdout);
    for (unsigned round = 1; fgets(line, sizeof(line), stdin) != NULL; ++round) {
        size_t length = 1 << 20;

        fill(shadow, 0, length, round);
        CHECK(xgvmi_blk_write(volume, 0, shadow, length) == 0);
        printf("{\"failed\": 0, \"wrong\": 0, \"verified\": %zu}\n", compare(0, length, round));
        fflush(stdout);
    }
    CHECK(xgvmi_blk_close(volume) == 0);
}

/* Connects with the name of an initiator and that of a volume. Returns what the library does. */
static int named(const char *service, const char *secret, const char *identity, const char *name)
{
    struct xgvmi_blk_connect_options options;

    memset(&options, 0, sizeof(options));
    options.size = sizeof(options);
    options.secret_file = secret;
    options.identity = identity;
    options.volume = name;
    return xgvmi_blk_connect(service, &options, &volume);
}

static void rights(const char *service, const char *secret)
{
    unsigned char bytes[SECTOR], read[SECTOR];

    CHECK(named(service, NULL, "db1", "a") == -EINVAL && volume == NULL);
    CHECK(strstr(xgvmi_blk_error(), "options.secret_file") != NULL);
    CHECK(named(service, secret, "no name", "a") == -EINVAL);
    CHECK(strstr(xgvmi_blk_error(), "'no name'") != NULL);
    CHECK(named(service, secret, "db2", "a") == -EIO && volume == NULL);
    CHECK(named(service, secret, NULL, "a") == -EIO);
    CHECK(strstr(xgvmi_blk_error(), "secret") != NULL);
    CHECK(named(service, secret, "db1", NULL) == -EIO);
    CHECK(strstr(xgvmi_blk_error(), "name one of a, b") != NULL);
    CHECK(named(service, secret, "db1", "c") == -EIO);
    CHECK(strstr(xgvmi_blk_error(), "'c'") != NULL && strstr(xgvmi_blk_error(), "a, b") != NULL);
    for (unsigned i = 0; i < 2; ++i) {
        const char *name = i == 0 ? "a" : "b";

        CHECK(named(service, secret, "db1", name) == 0);
        CHECK(xgvmi_blk_size(volume) == (i == 0 ? 32u << 20 : 8u << 20));
        memset(bytes, 0x11, sizeof(bytes));
        CHECK(xgvmi_blk_write(volume, 0, bytes, SECTOR) == (i == 0 ? 0 : -EPERM));
        CHECK(i == 0 || strstr(xgvmi_blk_error(), "db1 may only read") != NULL);
        CHECK(xgvmi_blk_trim(volume, 0, 4096) == (i == 0 ? 0 : -EPERM));
        CHECK(xgvmi_blk_write_zeroes(volume, 0, 4096) == (i == 0 ? 0 : -EPERM));
        memset(bytes, 0, sizeof(bytes));
        CHECK(xgvmi_blk_read(volume, 0, read, SECTOR) == 0 && memcmp(read, bytes, SECTOR) == 0);
        CHECK(xgvmi_blk_flush(volume) == 0);
        CHECK(xgvmi_blk_close(volume) == 0);
    }
    printf("all as expected\n");
}

int main(int argc, char **argv)
{
    struct xgvmi_blk_connect_options options;
    pthread_t threads[THREADS];
    size_t verified = 0;

    CHECK(argc == 3 || argc == 4);
    if (argc == 4 && strcmp(argv[3], "rights") == 0) {
        rights(argv[1], argv[2]);
        return 0;
    }
    memset(&options, 0, sizeof(options));
    options.size = sizeof(options);
    options.secret_file = argv[2];
    CHECK(xgvmi_blk_connect(argv[1], &options, &volume) == 0);
    size = xgvmi_blk_size(volume);
    CHECK(size >= 32u << 20 && xgvmi_blk_block_size(volume) == 4096);
    shadow = calloc(1, size);
    CHECK(shadow != NULL);
    if (argc == 4) {
        hold(argv[1]);
        return 0;
    }
    for (size_t i = 0; i < THREADS; ++i) {
        CHECK(pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)i) == 0);
    }
    for (size_t i = 0; i < THREADS; ++i) {
        void *bytes = NULL;

        CHECK(pthread_join(threads[i], &bytes) == 0);
        verified += (size_t)(uintptr_t)bytes;
    }
    CHECK(xgvmi_blk_write_zeroes(volume, 1024, 9 * SECTOR) == 0);
    memset(shadow + 1024, 0, 9 * SECTOR);
    CHECK(xgvmi_blk_trim(volume, 40 * SECTOR, 40 * SECTOR) == 0);
    memset(shadow + 40 * SECTOR, 0, 40 * SECTOR);
    verified += in_queue();
    verified += compare(0, size, 0);
    refusals(argv[1]);
    CHECK(xgvmi_blk_close(volume) == 0);
    CHECK(xgvmi_blk_connect(argv[1], &options, &volume) == 0);
    verified += compare(0, size, 512);
    CHECK(xgvmi_blk_close(volume) == 0);
    printf("%zu bytes verified, none wrong\n", verified);
    return 0;
}
