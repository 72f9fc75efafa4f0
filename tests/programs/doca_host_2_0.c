/* Host side of the test program with the names of DOCA 2.0. Prints "ok" if all went as computed here. */
#include <stdio.h>
#include <stdlib.h>

#include <doca_mmap.h>
#include <doca_dpa_2_0.h>

extern doca_dpa_app_t doca_test_2_0_app;
extern doca_dpa_func_t linear, copies, transfers;

#define MUST(CALL) expect((CALL) == DOCA_SUCCESS, #CALL, __LINE__)
#define CHECK(CONDITION) expect(CONDITION, #CONDITION, __LINE__)

static void expect(int is_right, const char *what, int line)
{
	if (!is_right) {
		printf("line %d: not %s\n", line, what);
		exit(1);
	}
}

static struct doca_dev *dev;
static doca_dpa_t dpa;

static void open_all(void)
{
	struct doca_devinfo **list;
	uint32_t count, at;
	unsigned int threads;
	unsigned long long seconds;

	MUST(doca_devinfo_create_list(&list, &count));
	for (at = 0; at < count && doca_devinfo_get_is_dpa_supported(list[at]) != DOCA_SUCCESS; at++)
		;
	CHECK(at < count);
	MUST(doca_dev_open(list[at], &dev));
	MUST(doca_devinfo_destroy_list(list));
	CHECK(doca_dpa_create(dev, doca_test_2_0_app, &dpa, 1) == DOCA_ERROR_INVALID_VALUE);
	CHECK(doca_dpa_create(dev, NULL, &dpa, 0) == DOCA_ERROR_INVALID_VALUE && dpa == NULL);
	MUST(doca_dpa_create(dev, doca_test_2_0_app, &dpa, 0));
	MUST(doca_dpa_get_max_threads_per_kernel(dpa, &threads));
	MUST(doca_dpa_get_kernel_max_run_time(dpa, &seconds));
	CHECK(threads == 254 && seconds == 120);
}

/* Publisher and subscriber: c for the CPU, d for the DPA, r for the other node. */
static struct doca_sync_event *event(char publisher, char subscriber)
{
	struct doca_sync_event *made;

	MUST(doca_sync_event_create(&made));
	if (publisher == 'c')
		MUST(doca_sync_event_publisher_add_location_cpu(made, dev));
	else if (publisher == 'd')
		MUST(doca_sync_event_publisher_add_location_dpa(made, dpa));
	else
		MUST(doca_sync_event_publisher_add_location_remote_net(made));
	if (subscriber == 'c')
		MUST(doca_sync_event_subscriber_add_location_cpu(made, dev));
	else
		MUST(doca_sync_event_subscriber_add_location_dpa(made, dpa));
	MUST(doca_sync_event_start(made));
	return made;
}

static doca_dpa_dev_sync_event_t exported(struct doca_sync_event *of)
{
	doca_dpa_dev_sync_event_t handle;

	MUST(doca_sync_event_export_to_dpa(of, dpa, &handle));
	return handle;
}

static void chain(void)
{
	struct doca_sync_event *a = event('c', 'd'), *b = event('d', 'd'), *c = event('d', 'd'), *end = event('d', 'c');
	doca_dpa_dev_sync_event_t to_b = exported(b), to_c = exported(c), to_end = exported(end), none = 0;
	uint64_t value;

	MUST(doca_dpa_kernel_launch_update_add(dpa, a, 0, NULL, 0, 1, &linear, none, to_b));
	MUST(doca_dpa_kernel_launch_update_add(dpa, NULL, 0, NULL, 0, 1, &linear, to_b, to_c));
	MUST(doca_dpa_kernel_launch_update_add(dpa, NULL, 0, NULL, 0, 1, &linear, to_c, to_end));
	MUST(doca_sync_event_get(end, &value));
	CHECK(value == 0);
	MUST(doca_sync_event_update_set(a, 1));
	MUST(doca_sync_event_wait_gt(end, 0, UINT64_MAX));
}

static struct doca_mmap *map(void *memory, size_t size)
{
	struct doca_mmap *made;

	MUST(doca_mmap_create(&made));
	MUST(doca_mmap_set_memrange(made, memory, size));
	MUST(doca_mmap_add_dev(made, dev));
	MUST(doca_mmap_set_permissions(made, DOCA_ACCESS_FLAG_LOCAL_READ_WRITE | DOCA_ACCESS_FLAG_RDMA_WRITE |
						     DOCA_ACCESS_FLAG_RDMA_READ | DOCA_ACCESS_FLAG_RDMA_ATOMIC));
	MUST(doca_mmap_start(made));
	return made;
}

/* The handle of an array of `count` buffers of `size` bytes. */
static struct doca_dpa_dev_buf_arr *buffers(struct doca_mmap *of, size_t count, size_t size)
{
	struct doca_dpa_dev_buf_arr *handle = NULL;
	struct doca_buf_arr *array;

	MUST(doca_buf_arr_create(count, &array));
	MUST(doca_buf_arr_set_params(array, of, size, 0));
	MUST(doca_buf_arr_set_target_dpa(array, dpa));
	MUST(doca_buf_arr_start(array));
	MUST(doca_buf_arr_get_dpa_handle(array, &handle));
	return handle;
}

static void copied(void)
{
	enum { COLUMNS = 12, ROWS = 20, SIZE = 1024 };
	static uint32_t words[3][SIZE / 4];
	struct doca_sync_event *end = event('d', 'c');

	for (uint32_t at = 0; at < COLUMNS * ROWS; at++)
		words[0][at] = at * 2654435761u;
	MUST(doca_dpa_kernel_launch_update_set(dpa, NULL, 0, end, 1, 1, &copies, buffers(map(words, sizeof(words)), 3, SIZE),
					       (uint64_t)COLUMNS, (uint64_t)ROWS));
	MUST(doca_sync_event_wait_gt(end, 0, UINT64_MAX));
	CHECK(memcmp(words[1] + 4, words[0], COLUMNS * ROWS * 4) == 0);
	CHECK(words[1][0] == 0 && words[1][4 + COLUMNS * ROWS] == 0);
	for (uint32_t row = 0; row < ROWS; row++)
		for (uint32_t column = 0; column < COLUMNS; column++)
			CHECK(words[2][column * ROWS + row] == words[0][row * COLUMNS + column]);
}

/* A running end of a connection. */
struct end {
	struct doca_rdma *rdma;
	const void *details;
	size_t length;
	struct doca_rdma_connection *connection;
};

static struct end end_of(void)
{
	struct doca_dpa_completion *completion;
	struct end end;

	MUST(doca_dpa_completion_create(dpa, 16, &completion));
	MUST(doca_dpa_completion_start(completion));
	MUST(doca_rdma_create(dev, &end.rdma));
	MUST(doca_rdma_set_permissions(end.rdma, DOCA_ACCESS_FLAG_RDMA_WRITE | DOCA_ACCESS_FLAG_RDMA_READ |
							 DOCA_ACCESS_FLAG_RDMA_ATOMIC));
	MUST(doca_ctx_set_datapath_on_dpa(doca_rdma_as_ctx(end.rdma), dpa));
	MUST(doca_rdma_dpa_completion_attach(end.rdma, completion));
	MUST(doca_ctx_start(doca_rdma_as_ctx(end.rdma)));
	MUST(doca_rdma_export(end.rdma, &end.details, &end.length, &end.connection));
	return end;
}

static void transferred(void)
{
	enum { WORDS = 512, TIMES = 5 };
	static uint64_t local[WORDS], remote[WORDS];
	struct end one = end_of(), two = end_of();
	struct doca_sync_event *counted = event('r', 'c'), *end = event('d', 'c');
	struct doca_sync_event_remote_net *imported_event;
	struct doca_dpa_dev_rdma *rdma = NULL;
	struct doca_mmap *imported;
	const uint8_t *description;
	uint64_t handle, value;
	const void *memory;
	size_t length;

	for (uint64_t at = 0; at < WORDS; at++) {
		local[at] = 3 * at;
		remote[at] = 7 * at + 1;
	}
	MUST(doca_rdma_connect(one.rdma, two.details, two.length, one.connection));
	MUST(doca_rdma_connect(two.rdma, one.details, one.length, two.connection));
	MUST(doca_rdma_get_dpa_handle(one.rdma, &rdma));
	MUST(doca_mmap_export_rdma(map(remote, sizeof(remote)), dev, &memory, &length));
	MUST(doca_mmap_create_from_export(NULL, memory, length, dev, &imported));
	MUST(doca_sync_event_export_to_remote_net(counted, &description, &length));
	MUST(doca_sync_event_remote_net_create_from_export(dev, description, length, &imported_event));
	MUST(doca_sync_event_remote_net_get_dpa_handle(imported_event, dpa, &handle));
	MUST(doca_dpa_kernel_launch_update_set(dpa, NULL, 0, end, 1, 1, &transfers, rdma,
					       buffers(map(local, sizeof(local)), 1, sizeof(local)),
					       buffers(imported, 1, sizeof(remote)), handle, (uint64_t)sizeof(local),
					       (uint64_t)TIMES));
	MUST(doca_sync_event_wait_gt(end, 0, UINT64_MAX));
	MUST(doca_sync_event_get(counted, &value));
	CHECK(value == 42);
	for (uint64_t at = 0; at < WORDS / 2; at++)
		CHECK(remote[at] == 3 * at && local[at] == 3 * at);
	for (uint64_t at = WORDS / 2; at < WORDS; at++)
		CHECK(local[at] == 7 * at + 1);
	/* 0 + 1 + 2 + 3 + 4. */
	CHECK(remote[WORDS - 1] == 7 * (WORDS - 1) + 1 + 10);
	MUST(doca_dpa_peek_at_last_error(dpa));
}

int main(void)
{
	open_all();
	chain();
	copied();
	transferred();
	printf("ok\n");
	return 0;
}
