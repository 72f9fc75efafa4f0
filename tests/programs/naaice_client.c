/*
 * A host of an accelerator. Each check is an argument; the program prints "ok NAME" for each, or the first fault.
 * Every byte that the accelerator writes is computed here as well, and every other byte must be unchanged: guard pages
 * around the regions, inputs, and the rest of the pages.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <naaice_ap2.h>

#if NAAICE_INTERFACE == 2
#define naa_error user_immediate
#endif

#define FAIL(...) (fprintf(stderr, __VA_ARGS__), fprintf(stderr, " (%s:%d; %s)\n", __FILE__, __LINE__, naaice_last_error()), exit(1))
#define CHECK(what) do { if (!(what)) FAIL("not true: %s", #what); } while (0)

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static unsigned char pattern(size_t seed, size_t at) {
  size_t x = seed * 0x9e3779b97f4a7c15ull + at * 0xbf58476d1ce4e5b9ull;
  return (unsigned char)(x >> 56 ^ x >> 29);
}

/* A region at the end of its pages, between two pages that nobody may access. */
struct buffer {
  unsigned char *addr;
  size_t size, pages;
  unsigned char *map;
};

static struct buffer make(size_t size, size_t seed) {
  const size_t page = 4096;
  struct buffer b = {.size = size, .pages = (size + page - 1) / page * page};
  b.map = mmap(NULL, b.pages + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(b.map != MAP_FAILED && mprotect(b.map + page, b.pages, PROT_READ | PROT_WRITE) == 0);
  memset(b.map + page, 0xee, b.pages - size);
  b.addr = b.map + page + b.pages - size;
  for (size_t at = 0; at < size; at++)
    b.addr[at] = pattern(seed, at);
  return b;
}

static void check_margin(const struct buffer *b) {
  for (const unsigned char *at = b->map + 4096; at < b->addr; at++)
    CHECK(*at == 0xee);
}

static void drop(struct buffer *b) { CHECK(munmap(b->map, b->pages + 2 * 4096) == 0); }

static naa_param_t in(const struct buffer *b) { return (naa_param_t){b->addr, b->size, false}; }

static naa_status call(naa_handle *handle) {
  naa_status status;
  CHECK(naa_invoke(handle) == 0);
  CHECK(naa_wait(handle, &status) == 0);
  CHECK(status.state == NAAICE_FINISHED);
  return status;
}

/* Three regions of this size: the third is the sum of the others. Input 0 is sent once. */
static void bytes_of(size_t size) {
  struct buffer a = make(size, 1), b = make(size, 2), c = make(size, 3);
  naa_param_t inputs[] = {in(&a), in(&b)}, outputs[] = {in(&c)};
  inputs[0].single_send = true;
  naa_handle handle;
  CHECK(naa_create(2, inputs, 2, outputs, 1, &handle) == 0);
  for (int round = 0; round < 3; round++) {
    naa_status status = call(&handle);
    CHECK(status.naa_error == NAA_SUCCESS && status.bytes_received == size);
    for (size_t at = 0; at < size; at++) {
      /* The accelerator has the first contents of a, whatever a is now. */
      unsigned char sum = (unsigned char)(pattern(1, at) + pattern(2 + 10 * (size_t)round, at));
      if (c.addr[at] != sum)
        FAIL("byte %zu of %zu is %d and not %d in round %d", at, size, c.addr[at], sum, round);
      CHECK(a.addr[at] == (round == 0 ? pattern(1, at) : 0x55));
      CHECK(b.addr[at] == pattern(2 + 10 * (size_t)round, at));
    }
    check_margin(&a), check_margin(&b), check_margin(&c);
    memset(a.addr, 0x55, size);
    memset(c.addr, 0, size);
    for (size_t at = 0; at < size; at++)
      b.addr[at] = pattern(2 + 10 * (size_t)(round + 1), at);
  }
  CHECK(naa_finalize(&handle) == 0);
  drop(&a), drop(&b), drop(&c);
}

static void bytes(void) {
  const size_t sizes[] = {1, 3, 64, 511, 512, 513, 4096, 70803, 1 << 20};
  for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
    bytes_of(sizes[i]);
}

/* naa_test returns at once while the call runs: 300 ms of the kernel contain many returns. */
static void test_never_waits(void) {
  struct buffer a = make(64, 1);
  naa_param_t both[] = {in(&a)};
  naa_handle handle;
  CHECK(naa_create(22, both, 1, both, 1, &handle) == 0);
  CHECK(naa_invoke(&handle) == 0);
  bool flag = false;
  naa_status status;
  unsigned long returns = 0;
  while (!flag) {
    CHECK(naa_test(&handle, &flag, &status) == 0);
    returns++;
  }
  /* A wait of 500 ms, as in the original, would return once or twice. */
  if (returns < 100)
    FAIL("naa_test returned %lu times in a call of 300 ms", returns);
  CHECK(status.naa_error == NAA_SUCCESS && a.addr[5] == (unsigned char)(pattern(1, 5) + 1));
  CHECK(naa_finalize(&handle) == 0);
  drop(&a);
}

static int code_of(unsigned function) {
  struct buffer a = make(100, 1);
  naa_param_t both[] = {in(&a)};
  naa_handle handle;
  CHECK(naa_create(function, both, 1, both, 1, &handle) == 0);
  naa_status status = call(&handle);
  /* A function that failed writes nothing. */
  for (size_t at = 0; at < a.size && status.naa_error != NAA_SUCCESS; at++)
    CHECK(a.addr[at] == pattern(1, at));
  CHECK(naa_finalize(&handle) == 0);
  drop(&a);
  return (int)status.naa_error;
}

static void codes(void) {
  CHECK(code_of(16) == 0x10);
  CHECK(code_of(17) == 0x7f);
  CHECK(code_of(18) == NAA_KERNEL_CODE);
  CHECK(code_of(3) == NAA_SUCCESS);
}

static void unknown_function(void) {
  double began = now();
  CHECK(code_of(99) == NAA_UNKNOWN_FUNCTION);
  CHECK(now() - began < 10);
}

/* For an accelerator that runs kernels in processes. */
static void crash(void) {
  CHECK(code_of(20) == NAA_KERNEL_CRASHED);
  CHECK(code_of(23) == NAA_KERNEL_CRASHED);
  CHECK(code_of(3) == NAA_SUCCESS);
}
static void loop(void) {
  CHECK(code_of(21) == KERNEL_TIMEOUT);
  CHECK(code_of(3) == NAA_SUCCESS);
}

static void create_again(void) {
  for (int round = 0; round < 20; round++)
    bytes_of(1000 + (size_t)round);
}

/* A region that no input fills starts with zeroes on the accelerator, also where earlier sessions had their bytes. */
static void zeroed(void) {
  for (int round = 0; round < 4; round++) {
    bytes_of(70803);
    struct buffer a = make(1, 1), b = make(200000, 2);
    naa_param_t inputs[] = {in(&a)}, outputs[] = {in(&b)};
    naa_handle handle;
    CHECK(naa_create(3, inputs, 1, outputs, 1, &handle) == 0);
    CHECK(call(&handle).naa_error == NAA_SUCCESS);
    for (size_t at = 0; at < b.size; at++)
      if (b.addr[at] != 0)
        FAIL("byte %zu is %d: an earlier session's", at, b.addr[at]);
    CHECK(naa_finalize(&handle) == 0);
    drop(&a), drop(&b);
  }
}

static void regions_32(void) {
  struct buffer b[32];
  naa_param_t inputs[31], outputs[1];
  for (size_t i = 0; i < 32; i++) {
    b[i] = make(10 + i * 100, i);
    if (i < 31)
      inputs[i] = in(&b[i]);
  }
  outputs[0] = in(&b[31]);
  naa_handle handle;
  CHECK(naa_create(2, inputs, 31, outputs, 1, &handle) == 0);
  CHECK(call(&handle).naa_error == NAA_SUCCESS);
  for (size_t at = 0; at < b[31].size; at++) {
    unsigned char sum = 0;
    for (size_t i = 0; i < 31; i++)
      sum = (unsigned char)(sum + (at < b[i].size ? pattern(i, at) : 0));
    CHECK(b[31].addr[at] == sum);
  }
  CHECK(naa_finalize(&handle) == 0);
  for (size_t i = 0; i < 32; i++)
    drop(&b[i]);
}

/* What the library refuses during a session. */
static void refusals(void) {
  struct buffer a = make(64, 1);
  naa_param_t both[] = {in(&a)};
  naa_handle handle, second;
  naa_status status;
  bool flag;
  CHECK(naa_create(22, both, 1, both, 1, &handle) == 0);
  CHECK(naa_wait(&handle, &status) == -1 && strstr(naaice_last_error(), "start a call first"));
  CHECK(naa_test(&handle, &flag, &status) == -1);
  CHECK(naa_invoke(&handle) == 0);
  CHECK(naa_invoke(&handle) == -1 && strstr(naaice_last_error(), "a call runs"));
  CHECK(naa_create(22, both, 1, both, 1, &second) == -1 && strstr(naaice_last_error(), "in use"));
  CHECK(naa_wait(&handle, &status) == 0 && status.naa_error == NAA_SUCCESS);
  CHECK(naa_finalize(&handle) == 0);
  CHECK(naa_invoke(&handle) == -1 && naa_finalize(&handle) == -1);
  drop(&a);
}

/*
 * The first call cannot read an input that is sent once. The second call must not compute on what the accelerator has in
 * its place: the bytes of an earlier session.
 */
static void failed_read(void) {
  const size_t size = 70803;
  bytes_of(size);
  struct buffer a = make(size, 4), b = make(size, 5);
  naa_param_t inputs[] = {in(&a)}, outputs[] = {in(&b)};
  inputs[0].single_send = true;
  naa_handle handle;
  CHECK(naa_create(2, inputs, 1, outputs, 1, &handle) == 0);
  drop(&a);
  for (int round = 0; round < 2; round++) {
    CHECK(call(&handle).naa_error == NAA_MEMORY);
    for (size_t at = 0; at < size; at++)
      CHECK(b.addr[at] == pattern(5, at));
  }
  CHECK(naa_finalize(&handle) == 0);
  drop(&b);
}

/* An input in memory that the program may only read. */
static void read_only(void) {
  struct buffer a = make(70803, 6), b = make(70803, 7);
  CHECK(mprotect(a.map + 4096, a.pages, PROT_READ) == 0);
  naa_param_t inputs[] = {in(&a)}, outputs[] = {in(&b)};
  naa_handle handle;
  CHECK(naa_create(2, inputs, 1, outputs, 1, &handle) == 0);
  CHECK(call(&handle).naa_error == NAA_SUCCESS);
  for (size_t at = 0; at < b.size; at++)
    CHECK(b.addr[at] == pattern(6, at));
  CHECK(naa_finalize(&handle) == 0);
  drop(&a), drop(&b);
}

/* Regions that exceed what one request can carry. Most of their pages are never written by the host. */
static void beyond_1gib(void) {
  const size_t size = (1ul << 30) + 8192;
  unsigned char *map[2];
  for (int i = 0; i < 2; i++) {
    map[i] = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(map[i] != MAP_FAILED);
  }
  for (size_t at = 0; at < 64; at++)
    map[0][size - 64 + at] = pattern(8, at);
  map[1][0] = map[1][size / 2] = 0x99;
  naa_param_t inputs[] = {{map[0], size, false}}, outputs[] = {{map[1], size, false}};
  naa_handle handle;
  CHECK(naa_create(27, inputs, 1, outputs, 1, &handle) == 0);
  naa_status status = call(&handle);
  CHECK(status.naa_error == NAA_SUCCESS && status.bytes_received == size);
  CHECK(map[1][0] == 0 && map[1][size / 2] == 0);
  for (size_t at = 0; at < 64; at++)
    CHECK(map[1][size - 64 + at] == pattern(8, at));
  CHECK(naa_finalize(&handle) == 0);
  CHECK(munmap(map[0], size) == 0 && munmap(map[1], size) == 0);
}

/* A kernel that starts processes: its crash is a crash, and after its end nobody changes the next session's memory. */
static void forking_kernels(void) {
  CHECK(code_of(24) == NAA_KERNEL_CRASHED);
  CHECK(code_of(25) == KERNEL_TIMEOUT);
  create_again();
}

/* A kernel that uses memory without end gets an error from malloc, and the next call succeeds. */
static void memory_kernel(void) {
  CHECK(code_of(26) == 0x11);
  CHECK(code_of(3) == NAA_SUCCESS);
}

/* Many hosts at once: all of them are served. */
static void *one_of_many(void *seed) {
  struct buffer a = make(1000, (size_t)seed);
  naa_param_t both[] = {in(&a)};
  naa_handle handle;
  CHECK(naa_create(1, both, 1, both, 1, &handle) == 0);
  for (unsigned round = 1; round <= 3; round++) {
    CHECK(call(&handle).naa_error == NAA_SUCCESS);
    for (size_t at = 0; at < a.size; at++)
      CHECK(a.addr[at] == (unsigned char)(pattern((size_t)seed, at) + round));
  }
  CHECK(naa_finalize(&handle) == 0);
  check_margin(&a);
  drop(&a);
  return NULL;
}

static void hosts_64(void) {
  pthread_t threads[64];
  for (size_t i = 0; i < 64; i++)
    CHECK(pthread_create(&threads[i], NULL, one_of_many, (void *)i) == 0);
  for (size_t i = 0; i < 64; i++)
    CHECK(pthread_join(threads[i], NULL) == 0);
}

/* No signal handler of the library, whatever it did before. */
static void no_signal_handler(void) {
  bytes_of(64);
  for (int number = 1; number < 32; number++) {
    struct sigaction action;
    if (number == SIGKILL || number == SIGSTOP || number == SIGSEGV || number == SIGBUS)
      continue;
    CHECK(sigaction(number, NULL, &action) == 0);
    if (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN)
      FAIL("signal %d has a handler", number);
  }
}

/* A child of fork gets an error from each call, and never disturbs its parent's session. */
static void forked(void) {
  struct buffer a = make(64, 1);
  naa_param_t both[] = {in(&a)};
  naa_handle handle;
  CHECK(naa_create(1, both, 1, both, 1, &handle) == 0);
  CHECK(call(&handle).naa_error == NAA_SUCCESS);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    naa_handle second;
    naa_status status;
    CHECK(naa_invoke(&handle) == -1 && strstr(naaice_last_error(), "forked"));
    CHECK(naa_wait(&handle, &status) == -1 && strstr(naaice_last_error(), "forked"));
    CHECK(naa_create(3, both, 1, both, 1, &second) == -1 && strstr(naaice_last_error(), "forked"));
    CHECK(naa_finalize(&handle) == -1 && strstr(naaice_last_error(), "forked"));
    /* The library's and the device's exit handlers run as well. */
    exit(0);
  }
  int ended;
  CHECK(waitpid(child, &ended, 0) == child && ended == 0);
  CHECK(call(&handle).naa_error == NAA_SUCCESS);
  CHECK(a.addr[0] == (unsigned char)(pattern(1, 0) + 2));
  CHECK(naa_finalize(&handle) == 0);
  drop(&a);
}

/* A region that the program unmaps between calls: an error within the limit, and the next session works. */
static void unmapped(void) {
  struct buffer a = make(1 << 20, 1), b = make(1 << 20, 2);
  naa_param_t inputs[] = {in(&a)}, outputs[] = {in(&b)};
  naa_handle handle;
  naa_status status = {0};
  CHECK(naa_create(2, inputs, 1, outputs, 1, &handle) == 0);
  CHECK(call(&handle).naa_error == NAA_SUCCESS);
  drop(&a);
  int invoked = naa_invoke(&handle);
  int waited = invoked == 0 ? naa_wait(&handle, &status) : -1;
  CHECK(invoked != 0 || waited != 0 || status.naa_error != NAA_SUCCESS);
  naa_finalize(&handle);
  drop(&b);
  bytes_of(4096);
}

/*
 * Starts a call and says so; the test then kills or stops the other side. Prints the end of the call. With `stopped`,
 * the process stops between creation and call.
 */
static void until_the_end(unsigned function, bool stopped) {
  struct buffer a = make(64, 1);
  naa_param_t both[] = {in(&a)};
  naa_handle handle;
  naa_status status = {0};
  CHECK(naa_create(function, both, 1, both, 1, &handle) == 0);
  printf("created\n"), fflush(stdout);
  if (stopped)
    raise(SIGSTOP);
  double began = now();
  int waited = naa_invoke(&handle);
  printf("called\n"), fflush(stdout);
  if (waited == 0)
    waited = naa_wait(&handle, &status);
  else
    status = (naa_status){NAAICE_ERROR, SOCKET_UNAVAIL, 0};
  printf("ended %d state %d code %d after %.1f s: %s\n", waited, status.state, status.naa_error, now() - began,
         naaice_last_error());
  fflush(stdout);
  naa_finalize(&handle);
  drop(&a);
}

/* Holds a session until the process is told to go on. */
static void hold(void) {
  struct buffer a = make(64, 1);
  naa_param_t both[] = {in(&a)};
  naa_handle handle;
  CHECK(naa_create(1, both, 1, both, 1, &handle) == 0);
  printf("holding\n"), fflush(stdout);
  raise(SIGSTOP);
  CHECK(naa_finalize(&handle) == 0);
  drop(&a);
}

/* A session, then silence until the process is told to go on, then another session. */
static void quiet(void) {
  bytes_of(64);
  printf("quiet\n"), fflush(stdout);
  raise(SIGSTOP);
  bytes_of(64);
}

/* A session that cannot be created: the error, and its time. */
static void refused(void) {
  struct buffer a = make(64, 1);
  naa_param_t both[] = {in(&a)};
  naa_handle handle;
  double began = now();
  CHECK(naa_create(1, both, 1, both, 1, &handle) == -1);
  printf("refused after %.1f s: %s\n", now() - began, naaice_last_error());
  drop(&a);
}

/* Many calls; each must succeed, whatever happens between. */
static void calls(void) {
  struct buffer a = make(4096, 1);
  naa_param_t both[] = {in(&a)};
  naa_handle handle;
  CHECK(naa_create(1, both, 1, both, 1, &handle) == 0);
  for (unsigned round = 1; round <= 200; round++) {
    CHECK(call(&handle).naa_error == NAA_SUCCESS);
    CHECK(a.addr[7] == (unsigned char)(pattern(1, 7) + round));
    if (round == 20)
      printf("calling\n"), fflush(stdout);
    usleep(1000);
  }
  CHECK(naa_finalize(&handle) == 0);
  drop(&a);
}

int main(int argc, char **argv) {
  static const struct {
    const char *name;
    void (*run)(void);
  } checks[] = {
      {"bytes", bytes},
      {"test_never_waits", test_never_waits},
      {"codes", codes},
      {"unknown_function", unknown_function},
      {"crash", crash},
      {"loop", loop},
      {"create_again", create_again},
      {"zeroed", zeroed},
      {"regions_32", regions_32},
      {"refusals", refusals},
      {"no_signal_handler", no_signal_handler},
      {"forked", forked},
      {"unmapped", unmapped},
      {"failed_read", failed_read},
      {"read_only", read_only},
      {"beyond_1gib", beyond_1gib},
      {"forking_kernels", forking_kernels},
      {"memory_kernel", memory_kernel},
      {"hosts_64", hosts_64},
      {"hold", hold},
      {"quiet", quiet},
      {"refused", refused},
      {"calls", calls},
  };
  for (int i = 1; i < argc; i++) {
    size_t found = 0, count = sizeof(checks) / sizeof(*checks);
    if (strncmp(argv[i], "until=", 6) == 0) {
      until_the_end((unsigned)atoi(argv[i] + 6), false);
      continue;
    }
    if (strncmp(argv[i], "stopped=", 8) == 0) {
      until_the_end((unsigned)atoi(argv[i] + 8), true);
      continue;
    }
    while (found < count && strcmp(checks[found].name, argv[i]) != 0)
      found++;
    if (found == count)
      FAIL("no check %s", argv[i]);
    checks[found].run();
    printf("ok %s\n", argv[i]);
    fflush(stdout);
  }
  return 0;
}
