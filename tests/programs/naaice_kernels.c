/* Kernels for the tests of calls to accelerators: each function code is one behaviour. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <naaice_ap2.h>

#if NAAICE_INTERFACE == 2
#define naa_returncode response_user_immediate
#endif

/* 1: adds 1 to each byte of each region. */
static void add_one(struct naaice_communication_context *ctx) {
  for (int region = 0; region < ctx->no_local_mrs; region++)
    for (size_t at = 0; at < ctx->mr_local_data[region].size; at++)
      ctx->mr_local_data[region].addr[at]++;
}

static void add_bytes(unsigned char *restrict to, const unsigned char *restrict from, size_t count) {
  for (size_t at = 0; at < count; at++)
    to[at] = (unsigned char)(to[at] + from[at]);
}

/* 2: the last region is the sum of all others, byte by byte; shorter regions count as zero beyond their end. */
static void sum(struct naaice_communication_context *ctx) {
  struct naaice_mr_local *to = &ctx->mr_local_data[ctx->no_local_mrs - 1];
  for (int region = 0; region < ctx->no_local_mrs - 1; region++) {
    const struct naaice_mr_local *from = &ctx->mr_local_data[region];
    size_t count = from->size < to->size ? from->size : to->size;
    if (region == 0) {
      memcpy(to->addr, from->addr, count);
      memset(to->addr + count, 0, to->size - count);
    } else {
      add_bytes((unsigned char *)to->addr, (const unsigned char *)from->addr, count);
    }
  }
}

/* 3: does nothing. */
static void nothing(struct naaice_communication_context *ctx) { (void)ctx; }

/* 16 to 18: return codes of a kernel, and one that a kernel may not have. */
static void code_10(struct naaice_communication_context *ctx) { ctx->naa_returncode = 0x10; }
static void code_7f(struct naaice_communication_context *ctx) { ctx->naa_returncode = 0x7f; }
static void code_wrong(struct naaice_communication_context *ctx) { ctx->naa_returncode = 1; }

/* 20: crashes. 21: never ends. 22: ends after 300 ms. 23: ends its process. */
static void crash(struct naaice_communication_context *ctx) {
  (void)ctx;
  abort();
}
static void loop(struct naaice_communication_context *ctx) {
  (void)ctx;
  for (;;)
    pause();
}
static void slow(struct naaice_communication_context *ctx) {
  usleep(300000);
  add_one(ctx);
}
static void leave(struct naaice_communication_context *ctx) {
  (void)ctx;
  _exit(0);
}

/* 24: starts a process that lives longer and keeps all descriptors, and crashes. 25: starts one that changes the last
 * region for ever, and never ends. */
static void fork_and_crash(struct naaice_communication_context *ctx) {
  (void)ctx;
  if (fork() == 0)
    for (;;)
      pause();
  abort();
}
static void fork_and_loop(struct naaice_communication_context *ctx) {
  struct naaice_mr_local *last = &ctx->mr_local_data[ctx->no_local_mrs - 1];
  if (fork() == 0)
    for (;;)
      memset(last->addr, 0x77, last->size);
  loop(ctx);
}

/* 26: uses memory without end; its code tells that the system refused some. The bound is for a system that does not. */
static void use_memory(struct naaice_communication_context *ctx) {
  const size_t step = 1 << 20;
  for (int count = 0; count < 512; count++) {
    char *memory = malloc(step);
    if (memory == NULL) {
      ctx->naa_returncode = 0x11;
      return;
    }
    memset(memory, 1, step);
  }
}

/* 27: copies the end of the first region to the end of the last one. */
static void copy_end(struct naaice_communication_context *ctx) {
  struct naaice_mr_local *from = &ctx->mr_local_data[0];
  struct naaice_mr_local *to = &ctx->mr_local_data[ctx->no_local_mrs - 1];
  memcpy(to->addr + to->size - 64, from->addr + from->size - 64, 64);
}

/* 30: writes the user data of the call to the first region. */
static void user_data(struct naaice_communication_context *ctx) {
  memcpy(ctx->mr_local_data[0].addr, ctx->immediate_bytearr, 4);
}

int match_function_code(uint8_t code, void (**kernel)(struct naaice_communication_context *)) {
  switch (code) {
  case 1: *kernel = add_one; return 0;
  case 2: *kernel = sum; return 0;
  case 3: *kernel = nothing; return 0;
  case 16: *kernel = code_10; return 0;
  case 17: *kernel = code_7f; return 0;
  case 18: *kernel = code_wrong; return 0;
  case 20: *kernel = crash; return 0;
  case 21: *kernel = loop; return 0;
  case 22: *kernel = slow; return 0;
  case 23: *kernel = leave; return 0;
  case 24: *kernel = fork_and_crash; return 0;
  case 25: *kernel = fork_and_loop; return 0;
  case 26: *kernel = use_memory; return 0;
  case 27: *kernel = copy_end; return 0;
  case 30: *kernel = user_data; return 0;
  default: return -1;
  }
}
