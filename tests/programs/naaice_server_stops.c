/*
 * A software accelerator that stops itself in one state of the protocol: naaice_server_stops PORT STATE.
 *
 *   request      a host requests a connection, which is not accepted
 *   established  the connection exists; no one reads the host's announcement
 *   calculating  the kernel runs
 */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <naaice_swnaa.h>

static const char *state;

static void stop_in(const char *here) {
  if (strcmp(here, state) != 0)
    return;
  printf("stopped\n");
  fflush(stdout);
  raise(SIGSTOP);
}

static void kernel(struct naaice_communication_context *ctx) {
  (void)ctx;
  stop_in("calculating");
}

int match_function_code(uint8_t code, void (**chosen)(struct naaice_communication_context *)) {
  (void)code;
  *chosen = kernel;
  return 0;
}

int main(int argc, char **argv) {
  struct context *ctx;
  if (argc != 3 || naaice_swnaa_init_master(&ctx, (uint16_t)atoi(argv[1])) != 0)
    return 1;
  state = argv[2];
  printf("listening on %s\n", argv[1]);
  fflush(stdout);
  if (strcmp(state, "calculating") == 0)
    for (;;)
      naaice_swnaa_poll_and_handle_connection_event(ctx);
  for (;;) {
    struct pollfd fd = {ctx->master->ev_channel->fd, POLLIN, 0};
    struct rdma_cm_event *event;
    poll(&fd, 1, -1);
    if (rdma_get_cm_event(ctx->master->ev_channel, &event) != 0)
      continue;
    if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST)
      stop_in("request");
    if (event->event == RDMA_CM_EVENT_ESTABLISHED)
      stop_in("established");
    naaice_swnaa_handle_connection_requests(ctx, event);
    rdma_ack_cm_event(event);
  }
}
