/* Device side of the test program for the C libraries of DOCA. */
#include <doca_dpa_dev.h>
#include <doca_dpa_dev_buf.h>
#include <doca_dpa_dev_rdma.h>
#include <doca_dpa_dev_sync_event.h>

#include "doca_shared.h"

/* A node of a graph: waits, notes its place in the order, and tells its children. */
__dpa_global__ void node(doca_dpa_dev_sync_event_t wait,
			 uint64_t above,
			 doca_dpa_dev_sync_event_t first,
			 doca_dpa_dev_sync_event_t second,
			 uint64_t order,
			 uint32_t index)
{
	uint64_t *counter = (uint64_t *)order;

	if (wait)
		doca_dpa_dev_sync_event_wait_gt(wait, above, UINT64_MAX);
	counter[1 + index] = __atomic_add_fetch(counter, 1, __ATOMIC_RELAXED);
	doca_dpa_dev_sync_event_update_add(first, 1);
	if (second)
		doca_dpa_dev_sync_event_update_add(second, 1);
}

/* Each thread writes the squares of its part. */
__dpa_global__ void squares(uint64_t place, uint64_t count)
{
	uint64_t *words = (uint64_t *)place;

	for (uint64_t at = doca_dpa_dev_thread_rank(); at < count; at += doca_dpa_dev_num_threads())
		words[at] = at * at;
}

__dpa_rpc__ uint64_t mixed(struct small one, struct large two, int8_t minus, uint64_t place)
{
	*(uint64_t *)place = one.b;
	return one.a * two.words[4] + two.inner.a - two.inner.b + (uint64_t)minus;
}

/* Adds the keys 1 to n, removes the even ones, and returns the sum of the values that are left. */
__dpa_rpc__ uint64_t table_sum(doca_dpa_dev_hash_table_t table, uint64_t place, uint32_t n)
{
	uint64_t *value = (uint64_t *)place;
	uint64_t sum = 0;

	for (uint32_t key = 1; key <= n; key++)
		doca_dpa_dev_hash_table_add(table, key, 1000 * key);
	for (uint32_t key = 2; key <= n; key += 2)
		doca_dpa_dev_hash_table_remove(table, key);
	for (uint32_t key = 0; key <= n + 1; key++)
		if (doca_dpa_dev_hash_table_find(table, key, value))
			sum += *value;
	return sum;
}

/* Sums memory of the host through a map. */
__dpa_rpc__ uint64_t external_sum(doca_dpa_dev_buf_arr_t array, uint64_t index)
{
	doca_dpa_dev_buf_t buf = doca_dpa_dev_buf_array_get_buf(array, index);
	const uint64_t *words = (const uint64_t *)doca_dpa_dev_buf_get_external_ptr(buf);
	uint64_t sum = 0;

	__dpa_thread_window_read_inv();
	for (uint64_t at = 0; at < doca_dpa_dev_buf_get_len(buf) / 8; at++)
		sum += words[at];
	return sum;
}

__dpa_rpc__ uint64_t write_and_signal(doca_dpa_dev_rdma_t rdma,
				      doca_dpa_dev_mmap_t to_map,
				      uint64_t to,
				      doca_dpa_dev_mmap_t from_map,
				      uint64_t from,
				      uint64_t length,
				      doca_dpa_dev_sync_event_remote_net_t event,
				      uint32_t times)
{
	for (uint32_t at = 0; at < times; at++) {
		doca_dpa_dev_rdma_post_write(rdma, 0, to_map, to, from_map, from, length,
					     DOCA_DPA_DEV_SUBMIT_FLAG_FLUSH |
						     DOCA_DPA_DEV_SUBMIT_FLAG_OPTIMIZE_REPORTS);
		doca_dpa_dev_rdma_signal_add(rdma, 0, event, 1);
	}
	return times;
}

/* Reads, adds to 8 bytes of the other side, and takes both completions. Returns their number, or the type of a failed one. */
__dpa_rpc__ uint64_t read_and_add(doca_dpa_dev_rdma_t rdma,
				  doca_dpa_dev_completion_t completions,
				  doca_dpa_dev_mmap_t to_map,
				  uint64_t to,
				  doca_dpa_dev_mmap_t from_map,
				  uint64_t from,
				  uint64_t length,
				  uint64_t value)
{
	doca_dpa_dev_completion_element_t element;
	uint64_t seen = 0;

	doca_dpa_dev_rdma_post_read(rdma, 0, to_map, to, from_map, from, length, DOCA_DPA_DEV_SUBMIT_FLAG_NONE);
	doca_dpa_dev_rdma_post_atomic_fetch_add(rdma, 0, from_map, from, value, DOCA_DPA_DEV_SUBMIT_FLAG_FLUSH);
	while (seen < 2) {
		if (!doca_dpa_dev_get_completion(completions, &element))
			continue;
		if (doca_dpa_dev_get_completion_type(element) != DOCA_DPA_DEV_COMP_SEND)
			return 100 + doca_dpa_dev_get_completion_type(element);
		doca_dpa_dev_completion_ack(completions, 1);
		seen++;
	}
	return seen;
}

/* Tells that it runs, and waits. */
__dpa_rpc__ uint64_t held(doca_dpa_dev_sync_event_t runs, doca_dpa_dev_sync_event_t go)
{
	doca_dpa_dev_sync_event_update_set(runs, 1);
	doca_dpa_dev_sync_event_wait_gt(go, 0, UINT64_MAX);
	return 9;
}

__dpa_rpc__ uint64_t receive_one(doca_dpa_dev_rdma_t rdma, doca_dpa_dev_mmap_t map, uint64_t to, uint64_t length)
{
	doca_dpa_dev_rdma_post_receive(rdma, map, to, length);
	return 0;
}

__dpa_rpc__ uint64_t send_one(doca_dpa_dev_rdma_t rdma, doca_dpa_dev_mmap_t map, uint64_t from, uint64_t length, uint32_t imm)
{
	doca_dpa_dev_rdma_post_send_imm(rdma, 0, map, from, length, imm,
					DOCA_DPA_DEV_SUBMIT_FLAG_FLUSH | DOCA_DPA_DEV_SUBMIT_FLAG_OPTIMIZE_REPORTS);
	return 0;
}

/* Adds the immediate value of each completion to an event. */
__dpa_global__ void activated(uint64_t arg)
{
	struct activation *activation = (struct activation *)arg;
	doca_dpa_dev_completion_element_t element;

	while (doca_dpa_dev_get_completion(activation->completion, &element)) {
		activation->seen++;
		doca_dpa_dev_sync_event_update_add(activation->event, doca_dpa_dev_get_completion_immediate(element));
		doca_dpa_dev_completion_ack(activation->completion, 1);
	}
	doca_dpa_dev_completion_request_notification(activation->completion);
	doca_dpa_dev_thread_reschedule();
}

__dpa_rpc__ uint64_t notify(doca_dpa_dev_notification_completion_t completion)
{
	doca_dpa_dev_thread_notify(completion);
	return 0;
}

/* Sets an event to the local storage's number. */
__dpa_global__ void notified(uint64_t event)
{
	doca_dpa_dev_sync_event_update_set(event, *(uint64_t *)doca_dpa_dev_thread_get_local_storage());
	doca_dpa_dev_thread_finish();
}

__dpa_rpc__ uint64_t wild(uint64_t address)
{
	*(volatile uint64_t *)address = 1;
	return 0;
}
