/* A software accelerator as a program of a user: linked with the kernels, serves until it is killed. */
#include <stdio.h>
#include <stdlib.h>

#include <naaice_swnaa.h>

int main(int argc, char **argv) {
  struct context *ctx;
  if (argc != 2 || naaice_swnaa_init_master(&ctx, (uint16_t)atoi(argv[1])) != 0)
    return 1;
  printf("listening on %d\n", atoi(argv[1]));
  fflush(stdout);
  for (;;)
    naaice_swnaa_poll_and_handle_connection_event(ctx);
}
