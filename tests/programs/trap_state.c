/* Checks that a store to a doorbell page preserves a thread's registers, for tests/system/trap.rs, whatever the device
 * does in between and whatever signals arrive. Prints "ok N" for N stores.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/mlx5dv.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

enum { STORES = 20000, GENERAL = 15, RED_ZONE = 16, VECTORS = 16, FLAGS = 0xcd5 };

#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #what, strerror(errno));                                    \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* Before and after the store. The general registers except rsp, in the order of their encoding. */
struct state {
    uint64_t general[GENERAL];
    uint64_t flags;
    uint64_t red_zone[RED_ZONE];
    uint32_t mxcsr, control;
    uint64_t stack;
    uint8_t vectors[VECTORS][64];
};

static struct state before, after;
static volatile sig_atomic_t alarms;
static char *page;

#define EACH_GENERAL(how)                                                                                              \
    how(rax, 0) how(rcx, 8) how(rdx, 16) how(rbx, 24) how(rbp, 32) how(rsi, 40) how(rdi, 48) how(r8, 56) how(r9, 64)   \
        how(r10, 72) how(r11, 80) how(r12, 88) how(r13, 96) how(r14, 104) how(r15, 112)
#define EACH_VECTOR(how, kind)                                                                                         \
    how(kind, 0) how(kind, 1) how(kind, 2) how(kind, 3) how(kind, 4) how(kind, 5) how(kind, 6) how(kind, 7)            \
        how(kind, 8) how(kind, 9) how(kind, 10) how(kind, 11) how(kind, 12) how(kind, 13) how(kind, 14) how(kind, 15)
#define LOAD(name, at) "mov before+" #at "(%%rip), %%" #name "\n"
#define KEEP(name, at) "mov %%" #name ", after+" #at "(%%rip)\n"
#define LOAD_VECTOR(kind, n) "vmovdqu" kind " before+272+64*" #n "(%%rip), %%" REGISTER #n "\n"
#define KEEP_VECTOR(kind, n) "vmovdqu" kind " %%" REGISTER #n ", after+272+64*" #n "(%%rip)\n"
#define LOAD_SSE(kind, n) "movdqu before+272+64*" #n "(%%rip), %%xmm" #n "\n"
#define KEEP_SSE(kind, n) "movdqu %%xmm" #n ", after+272+64*" #n "(%%rip)\n"

/* The store is of rax to the address in r15. */
#define STORE(load_vectors, keep_vectors)                                                                              \
    asm volatile("push %%rbp\n push %%rbx\n"                                                                           \
                 "ldmxcsr before+256(%%rip)\n fldcw before+260(%%rip)\n" load_vectors                                  \
                 "mov %%rsp, before+264(%%rip)\n"                                                                      \
                 "push before+120(%%rip)\n popfq\n"                                                                    \
                 "lea before+128(%%rip), %%rsi\n lea -128(%%rsp), %%rdi\n mov $16, %%ecx\n"                            \
                 "1: mov (%%rsi), %%rax\n mov %%rax, (%%rdi)\n lea 8(%%rsi), %%rsi\n lea 8(%%rdi), %%rdi\n"            \
                 "lea -1(%%rcx), %%rcx\n jrcxz 2f\n jmp 1b\n 2:\n" EACH_GENERAL(LOAD)                                  \
                 "mov %%rax, (%%r15)\n" EACH_GENERAL(KEEP)                                                             \
                 "mov %%rsp, after+264(%%rip)\n"                                                                       \
                 "lea after+128(%%rip), %%rsi\n lea -128(%%rsp), %%rdi\n mov $16, %%ecx\n"                             \
                 "3: mov (%%rdi), %%rax\n mov %%rax, (%%rsi)\n lea 8(%%rsi), %%rsi\n lea 8(%%rdi), %%rdi\n"            \
                 "lea -1(%%rcx), %%rcx\n jrcxz 4f\n jmp 3b\n 4:\n"                                                     \
                 "pushfq\n pop after+120(%%rip)\n cld\n"                                                               \
                 "stmxcsr after+256(%%rip)\n fnstcw after+260(%%rip)\n" keep_vectors "fninit\n"                        \
                 "pop %%rbx\n pop %%rbp\n"                                                                             \
                 ::: "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",          \
                 "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",     \
                 "xmm12", "xmm13", "xmm14", "xmm15", "memory", "cc")

_Static_assert(offsetof(struct state, flags) == 120 && offsetof(struct state, red_zone) == 128, "the code above");
_Static_assert(offsetof(struct state, mxcsr) == 256 && offsetof(struct state, control) == 260, "the code above");
_Static_assert(offsetof(struct state, stack) == 264 && offsetof(struct state, vectors) == 272, "the code above");

static __attribute__((noinline, target("avx512f"))) void store_zmm(void)
{
#define REGISTER "zmm"
    STORE(EACH_VECTOR(LOAD_VECTOR, "64"), EACH_VECTOR(KEEP_VECTOR, "64"));
#undef REGISTER
}

static __attribute__((noinline, target("avx"))) void store_ymm(void)
{
#define REGISTER "ymm"
    STORE(EACH_VECTOR(LOAD_VECTOR, ""), EACH_VECTOR(KEEP_VECTOR, ""));
#undef REGISTER
}

static __attribute__((noinline)) void store_xmm(void)
{
    STORE(EACH_VECTOR(LOAD_SSE, ""), EACH_VECTOR(KEEP_SSE, ""));
}

/* Arrives at any time, and rings a doorbell too. */
static void on_alarm(int signal)
{
    (void)signal;
    alarms++;
    *(volatile uint64_t *)(page + 0x40) = 1;
}

int main(void)
{
    struct sigaction action = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
    struct itimerval often = { { 0, 300 }, { 0, 300 } };
    struct ibv_device **devices = ibv_get_device_list(NULL);
    struct ibv_context *context;
    struct mlx5dv_devx_uar *uar;
    sigset_t blocked, found;
    size_t bytes = 16;

    CHECK(devices && devices[0] && (context = ibv_open_device(devices[0])));
    CHECK(uar = mlx5dv_devx_alloc_uar(context, 0));
    /* Pages are read-only once a doorbell can be rung. */
    CHECK(ibv_create_cq(context, 16, NULL, NULL, 0));
    page = uar->base_addr;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    sigaddset(&blocked, SIGRTMIN + 3);
    CHECK(!sigprocmask(SIG_SETMASK, &blocked, NULL) && !sigaction(SIGALRM, &action, NULL));
    CHECK(!setitimer(ITIMER_REAL, &often, NULL));
    if (__builtin_cpu_supports("avx"))
        bytes = 32;
    if (__builtin_cpu_supports("avx512f"))
        bytes = 64;
    for (uint64_t i = 0, number = 1; i < STORES || alarms < 20; i++) {
        uint64_t *words = (uint64_t *)&before;

        for (size_t at = 0; at < sizeof(before) / 8; at++)
            words[at] = number = number * 6364136223846793005 + 1442695040888963407;
        /* Carry, parity, adjust, zero, sign, direction and overflow, and the bit that is always set. */
        before.flags = (before.flags & FLAGS) | 0x202;
        before.mxcsr = 0x1f80 | (before.mxcsr & 0xe000);
        before.control = 0x37f | (before.control & 0xc00);
        before.general[GENERAL - 1] = (uintptr_t)page + (i % 2 ? 0x800 : 0x40);
        errno = (int)(i % 100);
        if (bytes == 64)
            store_zmm();
        else if (bytes == 32)
            store_ymm();
        else
            store_xmm();
        CHECK(errno == (int)(i % 100));
        after.control &= 0xffff;
        CHECK(!memcmp(before.general, after.general, sizeof(before.general)));
        CHECK(before.flags == after.flags && before.stack == after.stack);
        CHECK(before.mxcsr == after.mxcsr && before.control == after.control);
        CHECK(!memcmp(before.red_zone, after.red_zone, sizeof(before.red_zone)));
        for (int vector = 0; vector < VECTORS; vector++)
            CHECK(!memcmp(before.vectors[vector], after.vectors[vector], bytes));
    }
    CHECK(!sigprocmask(SIG_SETMASK, NULL, &found));
    CHECK(sigismember(&found, SIGUSR1) && sigismember(&found, SIGRTMIN + 3) && !sigismember(&found, SIGALRM));
    printf("ok %d\n", STORES);
    return 0;
}
