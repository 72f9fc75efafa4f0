/*
 * A hand-written verbs loop, beside which the library's calls are measured: the same regions, the same kernel, and no
 * library. Each call is two RDMA writes, the second with immediate value; the answer is one write with immediate value.
 * Both sides wait for events, as naa_wait does.
 *
 *   naaice_loop listen PORT           accelerator: one connection after the other
 *   naaice_loop call ADDRESS PORT     host: reads {"Calls":{"size":N,"count":N}} lines, and prints times and verified bytes
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <naaice_ap2.h>
#include <rdma/rdma_cma.h>

int match_function_code(uint8_t code, void (**kernel)(struct naaice_communication_context *));

/* Function code of the sum: the third region is the sum of the first two. */
#define SUM 2
#define FAIL(...) (fprintf(stderr, "naaice_loop: " __VA_ARGS__), fprintf(stderr, " (line %d)\n", __LINE__), exit(1))
#define CHECK(what) do { if (!(what)) FAIL("not true: %s", #what); } while (0)

/* What the sides tell each other before the first call. */
struct message {
  uint64_t size, addr[2];
  uint32_t rkey[2];
};

struct side {
  struct rdma_event_channel *events;
  struct rdma_cm_id *id;
  struct ibv_pd *pd;
  struct ibv_comp_channel *channel;
  struct ibv_cq *cq;
  struct message message;
  struct ibv_mr *message_mr;
  char *regions[3];
  struct ibv_mr *mrs[3];
  size_t size, pages;
};

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The next event of a connection, which must be `want`. */
static struct rdma_cm_id *event(struct rdma_event_channel *events, enum rdma_cm_event_type want) {
  struct rdma_cm_event *got;
  CHECK(rdma_get_cm_event(events, &got) == 0);
  if (got->event != want)
    FAIL("%s instead of %s", rdma_event_str(got->event), rdma_event_str(want));
  struct rdma_cm_id *id = got->id;
  CHECK(rdma_ack_cm_event(got) == 0);
  return id;
}

static void make_queues(struct side *s) {
  CHECK((s->pd = ibv_alloc_pd(s->id->verbs)) != NULL);
  CHECK((s->channel = ibv_create_comp_channel(s->id->verbs)) != NULL);
  CHECK(fcntl(s->channel->fd, F_SETFL, O_NONBLOCK) == 0);
  CHECK((s->cq = ibv_create_cq(s->id->verbs, 16, NULL, s->channel, 0)) != NULL);
  struct ibv_qp_init_attr attr = {
      .send_cq = s->cq,
      .recv_cq = s->cq,
      .qp_type = IBV_QPT_RC,
      .cap = {.max_send_wr = 8, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
  };
  CHECK(rdma_create_qp(s->id, s->pd, &attr) == 0);
  s->message_mr = ibv_reg_mr(s->pd, &s->message, sizeof(s->message), IBV_ACCESS_LOCAL_WRITE);
  CHECK(s->message_mr != NULL);
}

static void post_receive(struct side *s, bool message) {
  struct ibv_sge sge = {(uintptr_t)&s->message, sizeof(s->message), s->message_mr->lkey};
  struct ibv_recv_wr request = {.sg_list = &sge, .num_sge = message ? 1 : 0}, *bad;
  CHECK(ibv_post_recv(s->id->qp, &request, &bad) == 0);
}

/* Waits for a receive. False if the peer disconnected; only the accelerator, which has listened, looks for that. */
static bool received(struct side *s, bool accelerator) {
  for (;;) {
    bool armed = false;
    for (;;) {
      struct ibv_wc done;
      int count = ibv_poll_cq(s->cq, 1, &done);
      CHECK(count >= 0);
      if (count == 0 && armed)
        break;
      if (count == 0) {
        CHECK(ibv_req_notify_cq(s->cq, 1) == 0);
        armed = true;
        continue;
      }
      if (done.status == IBV_WC_WR_FLUSH_ERR && accelerator)
        return false;
      if (done.status != IBV_WC_SUCCESS)
        FAIL("%s", ibv_wc_status_str(done.status));
      if (done.opcode & IBV_WC_RECV)
        return true;
    }
    struct pollfd fds[] = {{s->channel->fd, POLLIN, 0}, {accelerator ? s->events->fd : -1, POLLIN, 0}};
    CHECK(poll(fds, 2, 60000) > 0);
    struct ibv_cq *cq;
    void *context;
    if (fds[0].revents && ibv_get_cq_event(s->channel, &cq, &context) == 0)
      ibv_ack_cq_events(cq, 1);
    if (fds[1].revents) {
      event(s->events, RDMA_CM_EVENT_DISCONNECTED);
      return false;
    }
  }
}

static void send_message(struct side *s) {
  struct ibv_sge sge = {(uintptr_t)&s->message, sizeof(s->message), s->message_mr->lkey};
  struct ibv_send_wr request = {
      .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SOLICITED | IBV_SEND_SIGNALED};
  struct ibv_send_wr *bad;
  CHECK(ibv_post_send(s->id->qp, &request, &bad) == 0);
}

/* Regions at the end of their pages. */
static void make_regions(struct side *s, size_t size) {
  s->size = size;
  s->pages = (size + 4095) / 4096 * 4096;
  for (int i = 0; i < 3; i++) {
    char *map = mmap(NULL, s->pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    CHECK(map != MAP_FAILED);
    s->regions[i] = map + s->pages - size;
    s->mrs[i] = ibv_reg_mr(s->pd, s->regions[i], size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    CHECK(s->mrs[i] != NULL);
  }
}

static void end(struct side *s) {
  rdma_disconnect(s->id);
  rdma_destroy_qp(s->id);
  for (int i = 0; i < 3; i++) {
    if (s->mrs[i] == NULL)
      continue;
    ibv_dereg_mr(s->mrs[i]);
    munmap(s->regions[i] + s->size - s->pages, s->pages);
  }
  ibv_dereg_mr(s->message_mr);
  ibv_destroy_cq(s->cq);
  ibv_destroy_comp_channel(s->channel);
  ibv_dealloc_pd(s->pd);
  rdma_destroy_id(s->id);
}

/* Writes `count` regions from `first` on to the peer's; the last one has an immediate value. */
static void write_regions(struct side *s, int first, int count, const struct message *to) {
  struct ibv_sge sges[2];
  struct ibv_send_wr requests[2], *bad;
  memset(requests, 0, sizeof(requests));
  for (int i = 0; i < count; i++) {
    sges[i] = (struct ibv_sge){(uintptr_t)s->regions[first + i], (uint32_t)s->size, s->mrs[first + i]->lkey};
    bool last = i == count - 1;
    requests[i].next = last ? NULL : &requests[i + 1];
    requests[i].sg_list = &sges[i];
    requests[i].num_sge = 1;
    requests[i].opcode = last ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
    requests[i].send_flags = last ? IBV_SEND_SOLICITED | IBV_SEND_SIGNALED : 0;
    requests[i].wr.rdma.remote_addr = to->addr[i];
    requests[i].wr.rdma.rkey = to->rkey[i];
  }
  CHECK(ibv_post_send(s->id->qp, requests, &bad) == 0);
}

static struct message keys(const struct side *s, int first, int count) {
  struct message m = {.size = s->size};
  for (int i = 0; i < count; i++) {
    m.addr[i] = (uintptr_t)s->regions[first + i];
    m.rkey[i] = s->mrs[first + i]->rkey;
  }
  return m;
}

static void serve(struct side *s) {
  make_queues(s);
  post_receive(s, true);
  struct rdma_conn_param param = {.retry_count = 7, .rnr_retry_count = 7};
  CHECK(rdma_accept(s->id, &param) == 0);
  event(s->events, RDMA_CM_EVENT_ESTABLISHED);
  if (received(s, true)) {
    struct message to = s->message;
    make_regions(s, to.size);
    s->message = keys(s, 0, 2);
    post_receive(s, false);
    send_message(s);
    void (*kernel)(struct naaice_communication_context *);
    CHECK(match_function_code(SUM, &kernel) == 0);
    struct naaice_mr_local local[3];
    memset(local, 0, sizeof(local));
    for (int i = 0; i < 3; i++) {
      local[i].addr = s->regions[i];
      local[i].size = s->size;
    }
    struct naaice_communication_context call;
    memset(&call, 0, sizeof(call));
    call.mr_local_data = local;
    call.no_local_mrs = 3;
    while (received(s, true)) {
      post_receive(s, false);
      kernel(&call);
      write_regions(s, 2, 1, &to);
    }
  }
  end(s);
}

static int listen_on(const char *port) {
  struct side s = {.events = rdma_create_event_channel()};
  struct rdma_cm_id *listener;
  struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
  CHECK(s.events != NULL && rdma_create_id(s.events, &listener, NULL, RDMA_PS_TCP) == 0);
  CHECK(rdma_bind_addr(listener, (struct sockaddr *)&any) == 0 && rdma_listen(listener, 4) == 0);
  printf("listening on %s\n", port);
  fflush(stdout);
  for (;;) {
    struct side one = {.events = s.events, .id = event(s.events, RDMA_CM_EVENT_CONNECT_REQUEST)};
    serve(&one);
  }
}

static unsigned char pattern(uint64_t round, uint64_t at) {
  return (unsigned char)(((round << 32 ^ at) * 0x9e3779b97f4a7c15ull) >> 56);
}

static void calls(const char *address, const char *port, size_t size, unsigned count) {
  struct side s = {.events = rdma_create_event_channel()};
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
  CHECK(inet_pton(AF_INET, address, &to.sin_addr) == 1);
  CHECK(s.events != NULL && rdma_create_id(s.events, &s.id, NULL, RDMA_PS_TCP) == 0);
  CHECK(rdma_resolve_addr(s.id, NULL, (struct sockaddr *)&to, 2000) == 0);
  event(s.events, RDMA_CM_EVENT_ADDR_RESOLVED);
  CHECK(rdma_resolve_route(s.id, 2000) == 0);
  event(s.events, RDMA_CM_EVENT_ROUTE_RESOLVED);
  make_queues(&s);
  make_regions(&s, size);
  struct rdma_conn_param param = {.retry_count = 7, .rnr_retry_count = 7};
  CHECK(rdma_connect(s.id, &param) == 0);
  event(s.events, RDMA_CM_EVENT_ESTABLISHED);
  s.message = keys(&s, 2, 1);
  /* The answer comes after the message was read from the buffer. */
  post_receive(&s, true);
  send_message(&s);
  CHECK(received(&s, false));
  struct message peer = s.message;
  uint64_t verified = 0, wrong = 0;
  printf("{\"create_ns\":[],\"one_shot_ns\":[],\"call_ns\":[");
  for (unsigned round = 1; round <= count; round++) {
    for (uint64_t at = 0; at < size; at++) {
      s.regions[0][at] = (char)pattern(2 * round, at);
      s.regions[1][at] = (char)pattern(2 * round + 1, at);
    }
    uint64_t began = now_ns();
    post_receive(&s, false);
    write_regions(&s, 0, 2, &peer);
    CHECK(received(&s, false));
    printf("%s%llu", round == 1 ? "" : ",", (unsigned long long)(now_ns() - began));
    for (uint64_t at = 0; at < size; at++) {
      unsigned char a = pattern(2 * round, at), b = pattern(2 * round + 1, at);
      unsigned char sum = (unsigned char)(a + b);
      wrong += (unsigned char)s.regions[0][at] != a;
      wrong += (unsigned char)s.regions[1][at] != b;
      wrong += (unsigned char)s.regions[2][at] != sum;
    }
    verified += 3 * size;
  }
  printf("],\"verified\":%llu,\"wrong\":%llu}\n", (unsigned long long)verified, (unsigned long long)wrong);
  fflush(stdout);
  struct rdma_event_channel *events = s.events;
  end(&s);
  rdma_destroy_event_channel(events);
}

int main(int argc, char **argv) {
  if (argc == 3 && strcmp(argv[1], "listen") == 0)
    return listen_on(argv[2]);
  if (argc != 4 || strcmp(argv[1], "call") != 0)
    FAIL("usage: naaice_loop listen PORT | call ADDRESS PORT");
  char line[256];
  while (fgets(line, sizeof(line), stdin) != NULL) {
    size_t size;
    unsigned count;
    if (sscanf(line, "{\"Calls\":{\"size\":%zu,\"count\":%u}}", &size, &count) != 2 || size == 0)
      FAIL("not a batch: %s", line);
    calls(argv[2], argv[3], size, count);
  }
  return 0;
}
