/* Base of ucp_pair.c: UCX opened at run time, the connection to the other side, waits, and comparable data.
 *
 * Each error ends the program.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

enum {
	WAIT_MS = 40000,    /* time limit of a wait; the machine may be busy */
	GUARD = 64,         /* guard bytes before and after a buffer */
	GUARD_BYTE = 0xa5,
	AM_ID = 7,
	SIZES_MAX = 32,
	WORDS = 8,          /* of a window, for atomics */
	ROUNDS = 48,        /* atomics of one kind */
	IDLE_SPINS = 64,    /* empty rounds before the process yields */
	API_MAJOR = 1,      /* the oldest UCX with all required functions */
	API_MINOR = 18,
};

static const size_t all_sizes[] = { 1, 2, 7, 8, 9, 31, 63, 64, 65, 127, 200, 255, 256, 512, 1000, 1024, 2047, 4096,
	8191, 8192, 16389, 65536, 100001, 262144, 1048576, 4194304 };
static const size_t few_sizes[] = { 1, 8, 200, 2047, 8192, 100001, 1048576 };
static const size_t *sizes = all_sizes;
static size_t sizes_count = sizeof(all_sizes) / sizeof(all_sizes[0]);
#define LARGEST ((size_t)4 << 20)

/* The required functions of UCX, each as a pointer of its own type. */
#define UCX_FUNCTIONS(F)                                                                                               \
	F(ucp_am_recv_data_nbx)                                                                                        \
	F(ucp_am_send_nbx)                                                                                             \
	F(ucp_atomic_op_nbx)                                                                                           \
	F(ucp_cleanup)                                                                                                 \
	F(ucp_config_read)                                                                                             \
	F(ucp_config_release)                                                                                          \
	F(ucp_ep_close_nbx)                                                                                            \
	F(ucp_ep_create)                                                                                               \
	F(ucp_ep_flush_nbx)                                                                                            \
	F(ucp_ep_query)                                                                                                \
	F(ucp_ep_rkey_unpack)                                                                                          \
	F(ucp_get_nbx)                                                                                                 \
	F(ucp_init_version)                                                                                            \
	F(ucp_mem_map)                                                                                                 \
	F(ucp_mem_unmap)                                                                                               \
	F(ucp_put_nbx)                                                                                                 \
	F(ucp_request_check_status)                                                                                    \
	F(ucp_request_free)                                                                                            \
	F(ucp_rkey_buffer_release)                                                                                     \
	F(ucp_rkey_destroy)                                                                                            \
	F(ucp_rkey_pack)                                                                                               \
	F(ucp_stream_recv_nbx)                                                                                         \
	F(ucp_stream_send_nbx)                                                                                         \
	F(ucp_tag_recv_nbx)                                                                                            \
	F(ucp_tag_send_nbx)                                                                                            \
	F(ucp_tag_send_sync_nbx)                                                                                       \
	F(ucp_worker_arm)                                                                                              \
	F(ucp_worker_create)                                                                                           \
	F(ucp_worker_destroy)                                                                                          \
	F(ucp_worker_get_address)                                                                                      \
	F(ucp_worker_get_efd)                                                                                          \
	F(ucp_worker_progress)                                                                                         \
	F(ucp_worker_release_address)                                                                                  \
	F(ucp_worker_set_am_recv_handler)                                                                              \
	F(ucs_status_string)

static struct {
#define MEMBER(name) __typeof__(name) *name;
	UCX_FUNCTIONS(MEMBER)
} ucx;

static ucp_context_h context;
static ucp_worker_h worker;
static ucp_ep_h peer;
static int sock = -1;
static int efd = -1; /* none when polling */
static unsigned long sleeps;
static int is_server = 1;
static const char *section = "start";

static void fail(const char *format, ...)
{
	va_list args;

	fprintf(stderr, "%s, %s: ", is_server ? "server" : "client", section);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	fflush(NULL);
	/* Not exit: UCX's own handlers would wait for outstanding operations. */
	_exit(1);
}

static void ok(ucs_status_t status, const char *what)
{
	if (status != UCS_OK)
		fail("%s: %s", what, ucx.ucs_status_string(status));
}

static void *allocate(size_t size)
{
	void *memory = malloc(size);

	if (!memory)
		fail("out of memory");
	return memory;
}

static int64_t now_ms(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000LL + time.tv_nsec / 1000000;
}

/* ---- waiting ---- */

/* Sleeps until the worker or the socket has an event; false if there was one already. */
static int sleep_for_event(int64_t until, const char *what)
{
	struct pollfd fds[2] = { { .fd = efd, .events = POLLIN }, { .fd = sock, .events = POLLIN } };
	ucs_status_t status = ucx.ucp_worker_arm(worker);
	int64_t left = until - now_ms();
	int ready;

	if (status == UCS_ERR_BUSY)
		return 0;
	ok(status, "ucp_worker_arm");
	sleeps++;
	ready = poll(fds, 2, left > 0 ? (int)left : 0);
	if (ready < 0 && errno != EINTR)
		fail("poll: %s", strerror(errno));
	if (ready == 0)
		fail("%s: no event for %d ms; progress then finds %u", what, WAIT_MS, ucx.ucp_worker_progress(worker));
	return 1;
}

/* Progresses UCX until `done` holds. */
static void wait_until(int (*done)(void *), void *arg, const char *what)
{
	int64_t until = now_ms() + WAIT_MS;
	unsigned idle = 0;

	while (!done(arg)) {
		if (ucx.ucp_worker_progress(worker)) {
			idle = 0;
			continue;
		}
		if (++idle < IDLE_SPINS)
			continue;
		idle = 0;
		/* An event between the last progress and arming makes arming fail. */
		if (efd >= 0)
			sleep_for_event(until, what);
		else
			sched_yield();
		if (now_ms() > until)
			fail("%s: not done within %d ms", what, WAIT_MS);
	}
}

struct transfer {
	uint8_t *mine, *theirs;
	size_t size, sent, received;
};

static int transferred(void *arg)
{
	struct transfer *t = arg;
	ssize_t count;

	if (t->sent < t->size) {
		count = send(sock, t->mine + t->sent, t->size - t->sent, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (count > 0)
			t->sent += count;
		else if (errno != EAGAIN && errno != EINTR)
			fail("the other side has gone: %s", strerror(errno));
	}
	if (t->received < t->size) {
		count = recv(sock, t->theirs + t->received, t->size - t->received, MSG_DONTWAIT);
		if (count == 0)
			fail("the other side has gone");
		if (count > 0)
			t->received += count;
		else if (errno != EAGAIN && errno != EINTR)
			fail("the other side has gone: %s", strerror(errno));
	}
	return t->sent == t->size && t->received == t->size;
}

/* Exchanges the same number of bytes with the other side over the socket, while UCX progresses. */
static void exchange(void *mine, void *theirs, size_t size)
{
	struct transfer t = { .mine = mine, .theirs = theirs, .size = size };

	wait_until(transferred, &t, "the other side");
}

/* Barrier of both sides. */
static void barrier(void)
{
	uint8_t mine = 'b', theirs = 0;

	exchange(&mine, &theirs, 1);
	if (theirs != mine)
		fail("out of step");
}

static int request_done(void *request)
{
	return ucx.ucp_request_check_status(request) != UCS_INPROGRESS;
}

/* Waits for a request, in any form that UCX returns. */
static void finish(ucs_status_ptr_t request, const char *what)
{
	ucs_status_t status = UCS_OK;

	if (UCS_PTR_IS_ERR(request))
		status = UCS_PTR_STATUS(request);
	else if (request) {
		wait_until(request_done, request, what);
		status = ucx.ucp_request_check_status(request);
		ucx.ucp_request_free(request);
	}
	ok(status, what);
}

/* ---- data ---- */

/* Byte `at` of the data that a side (0 client, 1 server) sends, for a message number. */
static uint8_t byte_of(int side, uint32_t number, size_t at)
{
	uint64_t x = (at >> 3) + ((uint64_t)number << 32) + ((uint64_t)(side + 1) << 60);

	x *= 0x9e3779b97f4a7c15u;
	x ^= x >> 29;
	x *= 0xbf58476d1ce4e5b9u;
	return (uint8_t)(x >> (8 * (at & 7)));
}

static void fill(uint8_t *data, size_t size, uint32_t number)
{
	size_t at;

	for (at = 0; at < size; at++)
		data[at] = byte_of(is_server, number, at);
}

/* A buffer between guards. */
static uint8_t *guarded(size_t size)
{
	uint8_t *memory = allocate(size + 2 * GUARD);

	memset(memory, GUARD_BYTE, size + 2 * GUARD);
	return memory + GUARD;
}

static void drop_guarded(uint8_t *data)
{
	free(data - GUARD);
}

static uint8_t *filled(size_t size, uint32_t number)
{
	uint8_t *data = guarded(size);

	fill(data, size, number);
	return data;
}

/* Compares bytes [from, from + size) of the other side's data for a message number. */
static void compare(const uint8_t *data, size_t from, size_t size, uint32_t number)
{
	size_t at;

	for (at = 0; at < size; at++)
		if (data[at] != byte_of(!is_server, number, from + at))
			fail("byte %zu of %zu of message %u is 0x%02x, not 0x%02x", from + at, from + size, number, data[at],
			     byte_of(!is_server, number, from + at));
}

/* Like compare, and checks the guard bytes. */
static void compare_guarded(const uint8_t *data, size_t size, uint32_t number)
{
	size_t at;

	compare(data, 0, size, number);
	for (at = 1; at <= GUARD; at++)
		if (data[-(ptrdiff_t)at] != GUARD_BYTE || data[size + at - 1] != GUARD_BYTE)
			fail("message %u of %zu bytes was written beside its buffer", number, size);
}

/* ---- set-up and end ---- */

static void load(const char *library)
{
	void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);

	if (!handle)
		fail("cannot open UCX: %s", dlerror());
#define RESOLVE(name)                                                                                                  \
	if (!(ucx.name = (__typeof__(name) *)dlsym(handle, #name)))                                                    \
		fail("no UCX: %s", dlerror());
	UCX_FUNCTIONS(RESOLVE)
}

static void meet(unsigned port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
	int64_t until = now_ms() + WAIT_MS;
	int listener, one = 1;

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (is_server) {
		struct pollfd fd = { .events = POLLIN };

		listener = socket(AF_INET, SOCK_STREAM, 0);
		setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
		if (bind(listener, (struct sockaddr *)&address, sizeof(address)) || listen(listener, 1))
			fail("cannot listen on port %u: %s", port, strerror(errno));
		fd.fd = listener;
		if (poll(&fd, 1, WAIT_MS) != 1 || (sock = accept(listener, NULL, NULL)) < 0)
			fail("nobody came to port %u", port);
		close(listener);
	} else {
		sock = socket(AF_INET, SOCK_STREAM, 0);
		while (connect(sock, (struct sockaddr *)&address, sizeof(address))) {
			if (now_ms() > until)
				fail("nobody listens on port %u: %s", port, strerror(errno));
			usleep(10000);
		}
	}
	setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

static void open_ucx(int wake_up, uint64_t features)
{
	ucp_params_t params = {
		.field_mask = UCP_PARAM_FIELD_FEATURES,
		.features = features | (wake_up ? UCP_FEATURE_WAKEUP : 0),
	};
	ucp_worker_params_t worker_params = { .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
					      .thread_mode = UCS_THREAD_MODE_SINGLE };
	ucp_config_t *config;

	ok(ucx.ucp_config_read(NULL, NULL, &config), "ucp_config_read");
	ok(ucx.ucp_init_version(API_MAJOR, API_MINOR, &params, config, &context), "ucp_init");
	ucx.ucp_config_release(config);
	ok(ucx.ucp_worker_create(context, &worker_params, &worker), "ucp_worker_create");
	if (wake_up)
		ok(ucx.ucp_worker_get_efd(worker, &efd), "ucp_worker_get_efd");
}

static void connect_peer(void)
{
	ucp_ep_params_t params = { .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS };
	struct {
		uint32_t size;
		uint8_t bytes[4096];
	} mine = { 0 }, theirs;
	ucp_address_t *address;
	size_t size;

	ok(ucx.ucp_worker_get_address(worker, &address, &size), "ucp_worker_get_address");
	if (size > sizeof(mine.bytes))
		fail("an address of %zu bytes", size);
	memcpy(mine.bytes, address, size);
	mine.size = size;
	ucx.ucp_worker_release_address(worker, address);
	exchange(&mine, &theirs, sizeof(mine));
	params.address = (ucp_address_t *)theirs.bytes;
	ok(ucx.ucp_ep_create(worker, &params, &peer), "ucp_ep_create");
}

/* The lanes that UCX selected. */
static void tell_lanes(void)
{
	ucp_transport_entry_t entries[16];
	ucp_ep_attr_t attributes = {
		.field_mask = UCP_EP_ATTR_FIELD_TRANSPORTS,
		.transports = { .entries = entries, .num_entries = 16, .entry_size = sizeof(entries[0]) },
	};
	unsigned i;

	ok(ucx.ucp_ep_query(peer, &attributes), "ucp_ep_query");
	printf("lanes");
	for (i = 0; i < attributes.transports.num_entries; i++)
		printf(" %s/%s", entries[i].transport_name, entries[i].device_name);
	printf("\n");
}

static void close_ucx(void)
{
	ucp_request_param_t param = { .op_attr_mask = 0 };

	barrier();
	finish(ucx.ucp_ep_close_nbx(peer, &param), "ucp_ep_close_nbx");
	barrier();
	ucx.ucp_worker_destroy(worker);
	ucx.ucp_cleanup(context);
}
