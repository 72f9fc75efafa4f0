/* Host side of the test program: one scenario by its name. Prints "ok" if all went as computed here. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include <doca_buf_array.h>
#include <doca_ctx.h>
#include <doca_dev.h>
#include <doca_dpa.h>
#include <doca_error.h>
#include <doca_mmap.h>
#include <doca_rdma.h>
#include <doca_sync_event.h>

#include "doca_shared.h"

extern struct doca_dpa_app *doca_test_app;
extern doca_dpa_func_t read_and_add, held, node, squares, mixed, table_sum, external_sum, write_and_signal, receive_one, send_one, activated, notify,
	notified, wild;

#define MUST(CALL) expect(CALL, DOCA_SUCCESS, #CALL, __LINE__)
#define REFUSED(CALL, CODE) expect(CALL, CODE, #CALL, __LINE__)
#define CHECK(CONDITION)                                                                                               \
	do {                                                                                                           \
		if (!(CONDITION)) {                                                                                    \
			printf("line %d: not %s\n", __LINE__, #CONDITION);                                             \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

/* Refused calls. Each writes one line. */
static int refused;

static void expect(doca_error_t result, doca_error_t wanted, const char *call, int line)
{
	refused += wanted != DOCA_SUCCESS;
	if (result != wanted) {
		printf("line %d: %s is %s\n", line, call, doca_error_get_name(result));
		exit(1);
	}
}

static struct doca_dev *dev;
static struct doca_dpa *dpa;

static void open_all(void)
{
	struct doca_devinfo **list;
	uint32_t count, at;

	MUST(doca_devinfo_create_list(&list, &count));
	for (at = 0; at < count && doca_dpa_cap_is_supported(list[at]) != DOCA_SUCCESS; at++)
		;
	CHECK(at < count);
	MUST(doca_dev_open(list[at], &dev));
	MUST(doca_devinfo_destroy_list(list));
	MUST(doca_dpa_create(dev, &dpa));
	REFUSED(doca_dpa_start(dpa), DOCA_ERROR_BAD_CONFIG);
	MUST(doca_dpa_set_app(dpa, doca_test_app));
	MUST(doca_dpa_start(dpa));
}

/* An event whose places are letters: c for the CPU, d for the DPA, r for the other node; publishers first. */
static struct doca_sync_event *event(const char *places, uint64_t *handle)
{
	struct doca_sync_event *made;

	MUST(doca_sync_event_create(&made));
	for (; *places != '>'; places++)
		if (*places == 'c')
			MUST(doca_sync_event_add_publisher_location_cpu(made, dev));
		else if (*places == 'd')
			MUST(doca_sync_event_add_publisher_location_dpa(made, dpa));
		else
			MUST(doca_sync_event_add_publisher_location_remote_net(made));
	for (places++; *places; places++)
		if (*places == 'c')
			MUST(doca_sync_event_add_subscriber_location_cpu(made, dev));
		else
			MUST(doca_sync_event_add_subscriber_location_dpa(made, dpa));
	MUST(doca_sync_event_start(made));
	if (handle)
		MUST(doca_sync_event_get_dpa_handle(made, dpa, handle));
	return made;
}

static uint64_t device(size_t size)
{
	uint64_t address;

	MUST(doca_dpa_mem_alloc(dpa, size, &address));
	MUST(doca_dpa_memset(dpa, address, 0, size));
	return address;
}

/* A launch of `node`. */
#define NODE(WAIT, ABOVE, HANDLE, NUMBER, FIRST, SECOND, INDEX)                                                        \
	MUST(doca_dpa_kernel_launch_update_add(dpa, WAIT, ABOVE, NULL, 0, 1, &node, (uint64_t)(HANDLE),                \
					       (uint64_t)(NUMBER), (uint64_t)(FIRST), (uint64_t)(SECOND), order,       \
					       (uint32_t)(INDEX)))

static void chain(void)
{
	uint64_t b, c, done, order = device(4 * 8), seen[4];
	struct doca_sync_event *a = event("c>d", NULL), *end;

	event("d>d", &b);
	event("d>d", &c);
	end = event("d>c", &done);
	NODE(a, 0, 0, 0, b, 0, 0);
	NODE(NULL, 0, b, 0, c, 0, 1);
	NODE(NULL, 0, c, 0, done, 0, 2);
	MUST(doca_sync_event_get(end, seen));
	CHECK(seen[0] == 0);
	MUST(doca_sync_event_update_set(a, 1));
	MUST(doca_sync_event_wait_gt(end, 0, UINT64_MAX));
	MUST(doca_dpa_d2h_memcpy(dpa, seen, order, sizeof(seen)));
	CHECK(seen[0] == 3 && seen[1] == 1 && seen[2] == 2 && seen[3] == 3);
}

static void diamond(void)
{
	uint64_t b, c, d, done, order = device(5 * 8), seen[5];
	struct doca_sync_event *a = event("c>d", NULL), *end;

	event("d>d", &b);
	event("d>d", &c);
	event("d>d", &d);
	end = event("d>c", &done);
	NODE(a, 0, 0, 0, b, c, 0);
	NODE(NULL, 0, b, 0, d, 0, 1);
	NODE(NULL, 0, c, 0, d, 0, 2);
	NODE(NULL, 0, d, 1, done, 0, 3);
	MUST(doca_sync_event_update_add(a, 1, NULL));
	MUST(doca_sync_event_wait_gt_yield(end, 0, UINT64_MAX));
	MUST(doca_dpa_d2h_memcpy(dpa, seen, order, sizeof(seen)));
	CHECK(seen[0] == 4 && seen[1] == 1 && seen[2] + seen[3] == 5 && seen[4] == 4);
}

static void launches(void)
{
	enum { COUNT = 1000 };
	struct doca_sync_event *a = event("c>d", NULL), *b = event("d>d", NULL), *end = event("d>c", NULL);
	uint64_t place = device(COUNT * 8), words[COUNT], value;
	unsigned int most;

	MUST(doca_dpa_get_max_threads_per_kernel(dpa, &most));
	/* The first begins above 4 and sets the second's event to 7. */
	MUST(doca_dpa_kernel_launch_update_set(dpa, a, 4, b, 7, 16, &squares, place, (uint64_t)COUNT));
	MUST(doca_dpa_kernel_launch_update_set(dpa, b, 6, end, 254, 3, &squares, place, (uint64_t)10));
	MUST(doca_sync_event_update_set(a, 4));
	MUST(doca_sync_event_get(end, &value));
	CHECK(value == 0);
	MUST(doca_sync_event_update_set(a, 5));
	MUST(doca_sync_event_wait_gt(end, 253, UINT64_MAX));
	MUST(doca_dpa_d2h_memcpy(dpa, words, place, sizeof(words)));
	for (uint64_t at = 0; at < COUNT; at++)
		CHECK(words[at] == at * at);
	REFUSED(doca_dpa_kernel_launch_update_set(dpa, NULL, 0, NULL, 0, 0, &squares, place, (uint64_t)1),
		DOCA_ERROR_INVALID_VALUE);
	REFUSED(doca_dpa_kernel_launch_update_set(dpa, NULL, 0, NULL, 0, most + 1, &squares, place, (uint64_t)1),
		DOCA_ERROR_INVALID_VALUE);
	REFUSED(doca_dpa_kernel_launch_update_set(dpa, a, 255, NULL, 0, 1, &squares, place, (uint64_t)1),
		DOCA_ERROR_INVALID_VALUE);
	REFUSED(doca_dpa_kernel_launch_update_add(dpa, NULL, 0, end, 255, 1, &squares, place, (uint64_t)1),
		DOCA_ERROR_INVALID_VALUE);
	REFUSED(doca_dpa_kernel_launch_update_set(dpa, NULL, 0, NULL, 0, 1, (doca_dpa_func_t *)&abort, place),
		DOCA_ERROR_NOT_FOUND);
	/* The DPA is no subscriber of the one, and no publisher of the other. */
	REFUSED(doca_dpa_kernel_launch_update_set(dpa, end, 0, NULL, 0, 1, &squares, place, (uint64_t)1),
		DOCA_ERROR_NOT_PERMITTED);
	REFUSED(doca_dpa_kernel_launch_update_set(dpa, NULL, 0, a, 1, 1, &squares, place, (uint64_t)1),
		DOCA_ERROR_NOT_PERMITTED);
	/* Nothing before raises the event above 7. */
	REFUSED(doca_dpa_kernel_launch_update_set(dpa, b, 7, NULL, 0, 1, &squares, place, (uint64_t)1),
		DOCA_ERROR_BAD_STATE);
}

static void memory(void)
{
	uint8_t in[100], out[100];
	uint64_t place = device(sizeof(in)), other = device(64);

	for (unsigned int at = 0; at < sizeof(in); at++)
		in[at] = (uint8_t)(at * 7);
	MUST(doca_dpa_h2d_memcpy(dpa, place, in, sizeof(in)));
	MUST(doca_dpa_memset(dpa, place + 10, 0x1ab, 5));
	MUST(doca_dpa_d2h_memcpy(dpa, out, place, sizeof(out)));
	memset(in + 10, 0xab, 5);
	CHECK(memcmp(in, out, sizeof(in)) == 0);
	REFUSED(doca_dpa_h2d_memcpy(dpa, place + 1, in, sizeof(in)), DOCA_ERROR_INVALID_VALUE);
	REFUSED(doca_dpa_d2h_memcpy(dpa, out, place + sizeof(in), 1), DOCA_ERROR_INVALID_VALUE);
	REFUSED(doca_dpa_memset(dpa, place + 99, 0, 2), DOCA_ERROR_INVALID_VALUE);
	REFUSED(doca_dpa_mem_free(dpa, place + 8), DOCA_ERROR_INVALID_VALUE);
	MUST(doca_dpa_mem_free(dpa, place));
	REFUSED(doca_dpa_mem_free(dpa, place), DOCA_ERROR_INVALID_VALUE);
	REFUSED(doca_dpa_d2h_memcpy(dpa, out, place, 1), DOCA_ERROR_INVALID_VALUE);
	MUST(doca_dpa_mem_free(dpa, other));
}

static void calls(void)
{
	struct small one = {3, 40000};
	struct large two = {{1, 2, 3, 4, 1ULL << 40}, {70, 80}};
	uint64_t place = device(8), value = 0, result = 0;
	struct doca_dpa_hash_table *table;
	uint64_t handle;

	MUST(doca_dpa_rpc(dpa, &mixed, &result, one, two, (int8_t)-5, place));
	CHECK(result == 3 * (1ULL << 40) + 70 - 80 - 5);
	MUST(doca_dpa_d2h_memcpy(dpa, &value, place, 8));
	CHECK(value == 40000);
	REFUSED(doca_dpa_hash_table_create(dpa, 0, &table), DOCA_ERROR_INVALID_VALUE);
	MUST(doca_dpa_hash_table_create(dpa, 100, &table));
	MUST(doca_dpa_hash_table_get_dpa_handle(table, &handle));
	MUST(doca_dpa_rpc(dpa, &table_sum, &result, handle, place, (uint32_t)99));
	/* 1 + 3 + ... + 99 = 50 * 50. */
	CHECK(result == 2500 * 1000);
	MUST(doca_dpa_hash_table_destroy(table));
	REFUSED(doca_dpa_hash_table_destroy(table), DOCA_ERROR_INVALID_VALUE);
}

static struct doca_mmap *map(void *memory, size_t size, uint32_t *handle)
{
	struct doca_mmap *made;

	MUST(doca_mmap_create(&made));
	REFUSED(doca_mmap_start(made), DOCA_ERROR_BAD_CONFIG);
	MUST(doca_mmap_set_memrange(made, memory, size));
	MUST(doca_mmap_add_dev(made, dev));
	MUST(doca_mmap_set_permissions(made, DOCA_ACCESS_FLAG_LOCAL_READ_WRITE | DOCA_ACCESS_FLAG_RDMA_WRITE |
						     DOCA_ACCESS_FLAG_RDMA_READ | DOCA_ACCESS_FLAG_RDMA_ATOMIC));
	MUST(doca_mmap_start(made));
	MUST(doca_mmap_dev_get_dpa_handle(made, dev, handle));
	return made;
}

static void buffers(void)
{
	static uint64_t words[64];
	struct doca_buf_arr *array;
	struct doca_mmap *mmap;
	uint64_t handle, result, sum = 0;
	uint32_t key;

	for (unsigned int at = 0; at < 64; at++)
		words[at] = at * at;
	mmap = map(words, sizeof(words), &key);
	MUST(doca_buf_arr_create(4, &array));
	REFUSED(doca_buf_arr_set_params(array, mmap, 128, 8), DOCA_ERROR_INVALID_VALUE);
	MUST(doca_buf_arr_set_params(array, mmap, 64, 128));
	MUST(doca_buf_arr_set_target_dpa(array, dpa));
	MUST(doca_buf_arr_start(array));
	MUST(doca_buf_arr_get_dpa_handle(array, &handle));
	MUST(doca_dpa_rpc(dpa, &external_sum, &result, handle, (uint64_t)2));
	for (unsigned int at = 16 + 16; at < 16 + 24; at++)
		sum += words[at];
	CHECK(result == sum);
	REFUSED(doca_mmap_destroy(mmap), DOCA_ERROR_IN_USE);
	MUST(doca_buf_arr_destroy(array));
	MUST(doca_mmap_destroy(mmap));
	REFUSED(doca_dev_close(dev), DOCA_ERROR_IN_USE);
}

struct end {
	struct doca_dpa_completion *completion;
	struct doca_rdma *rdma;
	uint64_t handle;
	const void *details;
	size_t length;
	struct doca_rdma_connection *connection;
};

static struct end end_of(struct doca_dpa_thread *thread, uint64_t *completion)
{
	struct end end;

	MUST(doca_dpa_completion_create(dpa, 16, &end.completion));
	if (thread)
		MUST(doca_dpa_completion_set_thread(end.completion, thread));
	MUST(doca_dpa_completion_start(end.completion));
	if (completion)
		MUST(doca_dpa_completion_get_dpa_handle(end.completion, completion));
	MUST(doca_rdma_create(dev, &end.rdma));
	REFUSED(doca_ctx_start(doca_rdma_as_ctx(end.rdma)), DOCA_ERROR_NOT_SUPPORTED);
	MUST(doca_rdma_set_permissions(end.rdma, DOCA_ACCESS_FLAG_RDMA_WRITE | DOCA_ACCESS_FLAG_RDMA_READ |
							 DOCA_ACCESS_FLAG_RDMA_ATOMIC));
	MUST(doca_ctx_set_datapath_on_dpa(doca_rdma_as_ctx(end.rdma), dpa));
	MUST(doca_rdma_dpa_completion_attach(end.rdma, end.completion));
	MUST(doca_ctx_start(doca_rdma_as_ctx(end.rdma)));
	MUST(doca_rdma_get_dpa_handle(end.rdma, &end.handle));
	MUST(doca_rdma_export(end.rdma, &end.details, &end.length, &end.connection));
	return end;
}

static void rdma(void)
{
	enum { TIMES = 300, SEND_ERR = 0xd };
	static uint64_t from[512], to[512];
	uint64_t completions;
	struct end one = end_of(NULL, &completions), two = end_of(NULL, NULL);
	struct doca_sync_event *counted = event("r>c", NULL);
	struct doca_sync_event_remote_net *remote;
	const uint8_t *description;
	uint64_t handle, result;
	const void *exported;
	struct doca_mmap *source, *target, *imported;
	uint32_t from_key, to_key;
	size_t length;

	source = map(from, sizeof(from), &from_key);
	target = map(to, sizeof(to), &to_key);
	MUST(doca_mmap_export_rdma(target, dev, &exported, &length));
	REFUSED(doca_mmap_create_from_export(NULL, exported, length - 1, dev, &imported), DOCA_ERROR_INVALID_VALUE);
	MUST(doca_mmap_create_from_export(NULL, exported, length, dev, &imported));
	MUST(doca_mmap_dev_get_dpa_handle(imported, dev, &to_key));
	MUST(doca_rdma_connect(one.rdma, two.details, two.length, one.connection));
	MUST(doca_rdma_connect(two.rdma, one.details, one.length, two.connection));
	MUST(doca_sync_event_export_to_remote_net(counted, &description, &length));
	MUST(doca_sync_event_remote_net_create_from_export(dev, description, length, &remote));
	MUST(doca_sync_event_remote_net_get_dpa_handle(remote, dpa, &handle));
	for (unsigned int at = 0; at < 512; at++)
		from[at] = at * 3 + 1;
	/* More requests than the queue has blocks, and nobody takes completions. */
	MUST(doca_dpa_rpc(dpa, &write_and_signal, &result, one.handle, to_key, (uint64_t)to, from_key, (uint64_t)from,
			  sizeof(from), handle, (uint32_t)TIMES));
	CHECK(result == TIMES);
	MUST(doca_sync_event_wait_gt(counted, TIMES - 1, UINT64_MAX));
	CHECK(memcmp(from, to, sizeof(from)) == 0);
	MUST(doca_sync_event_get(counted, &result));
	CHECK(result == TIMES);
	/* Back, and the first word is 5 more there. */
	memset(from, 0, sizeof(from));
	MUST(doca_dpa_rpc(dpa, &read_and_add, &result, one.handle, completions, from_key, (uint64_t)from, to_key,
			  (uint64_t)to, sizeof(from), (uint64_t)5));
	CHECK(result == 2);
	for (unsigned int at = 0; at < 512; at++)
		CHECK(from[at] == at * 3 + 1 && to[at] == from[at] + (at == 0 ? 5 : 0));
	/* The other side is gone: the read has a completion that says so, and the context goes on. */
	MUST(doca_ctx_stop(doca_rdma_as_ctx(two.rdma)));
	MUST(doca_dpa_rpc(dpa, &read_and_add, &result, one.handle, completions, from_key, (uint64_t)from, to_key,
			  (uint64_t)to, sizeof(from), (uint64_t)5));
	CHECK(result == 100 + SEND_ERR);
	MUST(doca_dpa_peek_at_last_error(dpa));
	MUST(doca_mmap_destroy(imported));
	MUST(doca_mmap_destroy(source));
}

static void threads(void)
{
	static uint64_t from[8] = {11, 12, 13};
	struct activation activation = {0};
	struct doca_dpa_notification_completion *notification;
	struct doca_dpa_thread *thread, *other;
	struct doca_sync_event *sum, *set;
	uint64_t argument = device(sizeof(activation)), to = device(64), storage = device(8), handle, result;
	uint64_t number = 4711;
	struct doca_mmap *target;
	uint32_t from_key, to_key;
	struct end one, two;

	MUST(doca_dpa_thread_create(dpa, &thread));
	REFUSED(doca_dpa_thread_start(thread), DOCA_ERROR_BAD_CONFIG);
	REFUSED(doca_dpa_thread_set_func_arg(thread, &squares, 0), DOCA_ERROR_INVALID_VALUE);
	MUST(doca_dpa_thread_set_func_arg(thread, &activated, argument));
	MUST(doca_dpa_thread_start(thread));
	one = end_of(NULL, NULL);
	two = end_of(thread, &activation.completion);
	sum = event("d>c", &activation.event);
	MUST(doca_dpa_h2d_memcpy(dpa, argument, &activation, sizeof(activation)));
	MUST(doca_rdma_connect(one.rdma, two.details, two.length, one.connection));
	MUST(doca_rdma_connect(two.rdma, one.details, one.length, two.connection));
	MUST(doca_dpa_thread_run(thread));
	map(from, sizeof(from), &from_key);
	MUST(doca_mmap_create(&target));
	MUST(doca_mmap_set_dpa_memrange(target, dpa, to, 64));
	MUST(doca_mmap_set_permissions(target, DOCA_ACCESS_FLAG_LOCAL_READ_WRITE));
	MUST(doca_mmap_start(target));
	MUST(doca_mmap_dev_get_dpa_handle(target, dev, &to_key));
	for (uint32_t at = 1; at <= 3; at++) {
		MUST(doca_dpa_rpc(dpa, &receive_one, &result, two.handle, to_key, to, (uint64_t)64));
		MUST(doca_dpa_rpc(dpa, &send_one, &result, one.handle, from_key, (uint64_t)from, sizeof(from), 10 * at));
		/* 10, 30, 60. */
		MUST(doca_sync_event_wait_gt(sum, 10 * at * (at + 1) / 2 - 1, UINT64_MAX));
	}
	MUST(doca_dpa_d2h_memcpy(dpa, &result, to + 16, 8));
	CHECK(result == 13);
	MUST(doca_dpa_d2h_memcpy(dpa, &activation, argument, sizeof(activation)));
	CHECK(activation.seen == 3);
	REFUSED(doca_dpa_thread_destroy(thread), DOCA_ERROR_IN_USE);
	/* A notification. */
	set = event("d>c", &handle);
	MUST(doca_dpa_h2d_memcpy(dpa, storage, &number, 8));
	MUST(doca_dpa_thread_create(dpa, &other));
	MUST(doca_dpa_thread_set_func_arg(other, &notified, handle));
	MUST(doca_dpa_thread_set_local_storage(other, storage));
	MUST(doca_dpa_thread_start(other));
	MUST(doca_dpa_notification_completion_create(dpa, other, &notification));
	MUST(doca_dpa_notification_completion_start(notification));
	MUST(doca_dpa_notification_completion_get_dpa_handle(notification, &handle));
	MUST(doca_dpa_thread_run(other));
	MUST(doca_dpa_rpc(dpa, &notify, &result, handle));
	MUST(doca_sync_event_wait_gt(set, 4710, UINT64_MAX));
	MUST(doca_dpa_notification_completion_destroy(notification));
	MUST(doca_dpa_thread_destroy(other));
}

/* Three senders of one RDMA object, whose receive entries all connections share. */
static void connections(void)
{
	enum { SENDERS = 3, ENTRIES = 4, SENDS = 24 };
	static uint64_t from[SENDERS] = {101, 202, 303};
	struct activation activation = {0};
	struct doca_dpa_thread *thread;
	struct doca_dpa_completion *completion;
	struct doca_rdma *hub;
	struct doca_rdma_connection *connection;
	struct end senders[SENDERS];
	struct doca_mmap *target;
	struct doca_sync_event *sum;
	uint64_t argument = device(sizeof(activation)), to = device(8 * SENDS), handle, result, total = 0;
	uint32_t from_key, to_key, posted = 0;
	const void *details;
	size_t length;

	MUST(doca_dpa_thread_create(dpa, &thread));
	MUST(doca_dpa_thread_set_func_arg(thread, &activated, argument));
	MUST(doca_dpa_thread_start(thread));
	MUST(doca_dpa_completion_create(dpa, 16, &completion));
	MUST(doca_dpa_completion_set_thread(completion, thread));
	MUST(doca_dpa_completion_start(completion));
	MUST(doca_dpa_completion_get_dpa_handle(completion, &activation.completion));
	MUST(doca_rdma_create(dev, &hub));
	MUST(doca_rdma_set_permissions(hub, DOCA_ACCESS_FLAG_LOCAL_READ_WRITE));
	MUST(doca_rdma_set_max_num_connections(hub, SENDERS));
	MUST(doca_rdma_set_recv_queue_size(hub, ENTRIES));
	MUST(doca_ctx_set_datapath_on_dpa(doca_rdma_as_ctx(hub), dpa));
	MUST(doca_rdma_dpa_completion_attach(hub, completion));
	MUST(doca_ctx_start(doca_rdma_as_ctx(hub)));
	MUST(doca_rdma_get_dpa_handle(hub, &handle));
	for (int at = 0; at < SENDERS; at++) {
		senders[at] = end_of(NULL, NULL);
		MUST(doca_rdma_export(hub, &details, &length, &connection));
		MUST(doca_rdma_connect(hub, senders[at].details, senders[at].length, connection));
		MUST(doca_rdma_connect(senders[at].rdma, details, length, senders[at].connection));
	}
	REFUSED(doca_rdma_export(hub, &details, &length, &connection), DOCA_ERROR_FULL);
	sum = event("d>c", &activation.event);
	MUST(doca_dpa_h2d_memcpy(dpa, argument, &activation, sizeof(activation)));
	MUST(doca_dpa_thread_run(thread));
	map(from, sizeof(from), &from_key);
	MUST(doca_mmap_create(&target));
	MUST(doca_mmap_set_dpa_memrange(target, dpa, to, 8 * SENDS));
	MUST(doca_mmap_set_permissions(target, DOCA_ACCESS_FLAG_LOCAL_READ_WRITE));
	MUST(doca_mmap_start(target));
	MUST(doca_mmap_dev_get_dpa_handle(target, dev, &to_key));
	for (uint32_t sent = 0; sent < SENDS; sent++) {
		for (; posted < SENDS && posted < sent + ENTRIES; posted++)
			MUST(doca_dpa_rpc(dpa, &receive_one, &result, handle, to_key, to + 8 * posted, (uint64_t)8));
		/* In no fixed order of the senders: the entries are taken in the order of their posts. */
		MUST(doca_dpa_rpc(dpa, &send_one, &result, senders[sent * 7 / 4 % SENDERS].handle, from_key,
				  (uint64_t)&from[sent * 7 / 4 % SENDERS], (uint64_t)8, sent + 1));
		total += sent + 1;
		MUST(doca_sync_event_wait_gt(sum, total - 1, UINT64_MAX));
	}
	for (uint32_t at = 0; at < SENDS; at++) {
		MUST(doca_dpa_d2h_memcpy(dpa, &result, to + 8 * at, 8));
		CHECK(result == from[at * 7 / 4 % SENDERS]);
	}
	MUST(doca_dpa_d2h_memcpy(dpa, &activation, argument, sizeof(activation)));
	CHECK(activation.seen == SENDS);
	/* One entry more than the queue has. */
	for (uint32_t at = 0; at < ENTRIES; at++)
		MUST(doca_dpa_rpc(dpa, &receive_one, &result, handle, to_key, to, (uint64_t)8));
	REFUSED(doca_dpa_rpc(dpa, &receive_one, &result, handle, to_key, to, (uint64_t)8), DOCA_ERROR_DEVICE_FATAL_ERROR);
}

static uint64_t runs, go;

static void *caller(void *unused)
{
	uint64_t result;

	(void)unused;
	MUST(doca_dpa_rpc(dpa, &held, &result, runs, go));
	CHECK(result == 9);
	return NULL;
}

/* A context that a thread uses is refused to another one. Events may be used at the same time. */
static void callers(void)
{
	struct doca_sync_event *started = event("d>c", &runs), *may_go = event("c>d", &go);
	uint64_t address, word = device(8);
	pthread_t thread;

	CHECK(pthread_create(&thread, NULL, &caller, NULL) == 0);
	MUST(doca_sync_event_wait_gt(started, 0, UINT64_MAX));
	REFUSED(doca_dpa_mem_alloc(dpa, 8, &address), DOCA_ERROR_IN_USE);
	REFUSED(doca_dpa_memset(dpa, word, 0, 8), DOCA_ERROR_IN_USE);
	REFUSED(doca_dpa_kernel_launch_update_set(dpa, NULL, 0, NULL, 0, 1, &squares, word, (uint64_t)1),
		DOCA_ERROR_IN_USE);
	MUST(doca_sync_event_update_set(may_go, 1));
	CHECK(pthread_join(thread, NULL) == 0);
	MUST(doca_dpa_mem_alloc(dpa, 8, &address));
}

static void faults(void)
{
	struct doca_sync_event *foreign = event("c>d", NULL);
	struct doca_dpa *first = dpa;
	uint64_t result;

	MUST(doca_dpa_peek_at_last_error(dpa));
	REFUSED(doca_dpa_rpc(dpa, &wild, &result, (uint64_t)64), DOCA_ERROR_DEVICE_FATAL_ERROR);
	REFUSED(doca_dpa_peek_at_last_error(dpa), DOCA_ERROR_DEVICE_FATAL_ERROR);
	REFUSED(doca_dpa_mem_alloc(dpa, 8, &result), DOCA_ERROR_DEVICE_FATAL_ERROR);
	/* Another context goes on. */
	MUST(doca_dpa_create(dev, &dpa));
	MUST(doca_dpa_set_app(dpa, doca_test_app));
	MUST(doca_dpa_start(dpa));
	REFUSED(doca_dpa_kernel_launch_update_set(dpa, foreign, 0, NULL, 0, 1, &squares, (uint64_t)0, (uint64_t)0),
		DOCA_ERROR_NOT_PERMITTED);
	REFUSED(doca_dpa_destroy(first), DOCA_ERROR_IN_USE);
	MUST(doca_sync_event_destroy(foreign));
	MUST(doca_dpa_destroy(first));
	calls();
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} scenarios[] = {
		{"chain", chain}, {"diamond", diamond}, {"launches", launches}, {"memory", memory}, {"calls", calls},
		{"buffers", buffers}, {"rdma", rdma}, {"connections", connections}, {"threads", threads}, {"faults", faults}, {"callers", callers},
	};

	open_all();
	for (size_t at = 0; at < sizeof(scenarios) / sizeof(scenarios[0]); at++)
		if (argc > 1 && strcmp(argv[1], scenarios[at].name) == 0) {
			scenarios[at].run();
			printf("refused %d\nok\n", refused);
			return 0;
		}
	return 2;
}
