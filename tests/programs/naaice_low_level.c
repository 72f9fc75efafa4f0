/*
 * A host on the low-level interface, step by step: naaice_low_level ADDRESS PORT. Two inputs and an output;
 * function 2 stores the sum of all other regions in the last one. Every byte is computed here as well.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <naaice.h>

#if NAAICE_INTERFACE == 2
#define naa_returncode response_user_immediate
#endif

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "not true: %s (line %d; %s)\n", #what, __LINE__, naaice_last_error()); exit(1); } } while (0)

int main(int argc, char **argv) {
  static char a[5000], b[5000], sum[5000];
  char *regions[] = {a, b, sum};
  size_t sizes[] = {sizeof(a), sizeof(b), sizeof(sum)};
  struct naaice_communication_context *ctx;
  CHECK(argc == 3);
#if NAAICE_INTERFACE == 2
  uint64_t addresses[] = {0x10000, 0x20000, 0x30000};
  CHECK(naaice_init_communication_context_with_addresses(&ctx, addresses, regions, 3, sizes, 0, 2, NULL, argv[1],
                                                         (uint16_t)atoi(argv[2])) == 0);
  CHECK(ctx->mr_peer_data[2].addr == 0x30000);
#else
  CHECK(naaice_init_communication_context(&ctx, 0, sizes, regions, 3, 0, NULL, 2, NULL, argv[1],
                                          (uint16_t)atoi(argv[2])) == 0);
#endif
  CHECK(naaice_setup_connection(ctx) == 0);
  struct ibv_qp_attr attr;
  struct ibv_qp_init_attr init;
  CHECK(ibv_query_qp(ctx->qp, &attr, IBV_QP_TIMEOUT, &init) == 0 && attr.timeout == 12);
  CHECK(naaice_register_mrs(ctx) == 0);
  CHECK(naaice_set_input_mr(ctx, 0) == 0 && naaice_set_input_mr(ctx, 1) == 0 && naaice_set_output_mr(ctx, 2) == 0);
  CHECK(naaice_do_mrsp(ctx) == 0);
  for (int round = 1; round <= 10; round++) {
    for (size_t at = 0; at < sizeof(a); at++) {
      a[at] = (char)(at * 7 + (size_t)round);
      b[at] = (char)(at / 3 + 11 * (size_t)round);
      sum[at] = 0;
    }
    CHECK(naaice_init_data_transfer(ctx) == 0);
    while (ctx->state != NAAICE_FINISHED)
      CHECK(naaice_poll_cq_blocking(ctx) == 0);
#if NAAICE_INTERFACE == 2
    CHECK(ctx->response_received);
#endif
    CHECK(ctx->naa_returncode == 0 && ctx->bytes_received == sizeof(sum));
    for (size_t at = 0; at < sizeof(a); at++) {
      CHECK(a[at] == (char)(at * 7 + (size_t)round) && b[at] == (char)(at / 3 + 11 * (size_t)round));
      CHECK(sum[at] == (char)(a[at] + b[at]));
    }
  }
  CHECK(naaice_disconnect_and_cleanup(ctx) == 0);
  printf("ok low_level\n");
  return 0;
}
