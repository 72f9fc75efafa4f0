/* One side of a pair that transfers data with all UCP operations and compares every byte.
 *
 *   ucp_pair LIBUCP [-w] [-s] -p PORT [-c] SECTION...
 *
 * It listens on PORT of the loopback address, or with -c connects to it. Both sides need the same
 * options and sections. Both send and both receive in each section: tag, am, stream, put, get, amo32, amo64.
 *
 *   -w   sleeps on the worker's event descriptor instead of polling
 *   -s   a few sizes instead of many
 *
 * The program opens UCX at run time, in any version. It prints "ok SECTION" when both sides have finished
 * a section, and "lanes TRANSPORT/DEVICE ..." and "sleeps N" at the end. The first error is printed on standard error
 * and ends the program with 1. An expired wait and the end of the other side are errors as well.
 */
#include "ucp_side.h"

/* ---- tags ---- */

struct message {
	uint8_t *sent, *received;
	ucs_status_ptr_t send, receive;
	size_t size;
};

static void open_messages(struct message *messages, uint32_t base)
{
	size_t i;

	for (i = 0; i < sizes_count; i++)
		messages[i] = (struct message){ .size = sizes[i],
						.sent = filled(sizes[i], base + i),
						.received = guarded(sizes[i]) };
}

static void close_messages(struct message *messages, uint32_t base)
{
	size_t i;

	for (i = 0; i < sizes_count; i++) {
		finish(messages[i].send, "send");
		finish(messages[i].receive, "receive");
		compare_guarded(messages[i].received, messages[i].size, base + i);
		drop_guarded(messages[i].sent);
		drop_guarded(messages[i].received);
	}
}

static void tag_receive(struct message *message, uint64_t tag)
{
	ucp_request_param_t param = { .op_attr_mask = 0 };

	message->receive = ucx.ucp_tag_recv_nbx(worker, message->received, message->size, tag, UINT64_MAX, &param);
}

/* The receiver waits for each message before it is sent. */
static void tag_expected(int in_sync, uint32_t base)
{
	ucp_request_param_t param = { .op_attr_mask = 0 };
	struct message messages[SIZES_MAX];
	size_t i;

	open_messages(messages, base);
	for (i = 0; i < sizes_count; i++)
		tag_receive(&messages[i], base + i);
	barrier();
	for (i = 0; i < sizes_count; i++) {
		__typeof__(ucp_tag_send_nbx) *call = in_sync ? ucx.ucp_tag_send_sync_nbx : ucx.ucp_tag_send_nbx;

		messages[i].send = call(peer, messages[i].sent, messages[i].size, base + i, &param);
	}
	close_messages(messages, base);
	barrier();
}

/* Unexpected messages, received in reverse order. */
static void tag_unexpected(uint32_t base)
{
	ucp_request_param_t param = { .op_attr_mask = 0 };
	struct message messages[SIZES_MAX];
	size_t i;

	open_messages(messages, base);
	for (i = 0; i < sizes_count; i++)
		messages[i].send = ucx.ucp_tag_send_nbx(peer, messages[i].sent, messages[i].size, base + i, &param);
	barrier();
	for (i = sizes_count; i-- > 0;)
		tag_receive(&messages[i], base + i);
	close_messages(messages, base);
	barrier();
}

/* One message, gathered from three buffers and scattered into two. */
static void tag_vectors(uint32_t base)
{
	ucp_request_param_t param = { .op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE, .datatype = ucp_dt_make_iov() };
	size_t i;

	for (i = 0; i < sizes_count; i++) {
		size_t size = sizes[i], third = size / 3, half = size / 2;
		uint8_t *sent = filled(size, base + i), *first = guarded(half), *second = guarded(size - half);
		ucp_dt_iov_t from[3] = { { sent, third },
					 { sent + third, third },
					 { sent + 2 * third, size - 2 * third } };
		ucp_dt_iov_t into[2] = { { first, half }, { second, size - half } };
		ucs_status_ptr_t receive, send;

		receive = ucx.ucp_tag_recv_nbx(worker, into, 2, base + i, UINT64_MAX, &param);
		send = ucx.ucp_tag_send_nbx(peer, from, 3, base + i, &param);
		finish(send, "send from a vector");
		finish(receive, "receive into a vector");
		compare(first, 0, half, base + i);
		compare(second, half, size - half, base + i);
		drop_guarded(sent);
		drop_guarded(first);
		drop_guarded(second);
	}
	barrier();
}

static void tag(void)
{
	tag_expected(0, 0x100);
	tag_unexpected(0x200);
	tag_expected(1, 0x300);
	tag_vectors(0x400);
}

/* ---- active messages ---- */

struct am_header {
	uint32_t number;
	uint32_t index;
};

static struct {
	struct message messages[SIZES_MAX];
	ucs_status_ptr_t fetch[SIZES_MAX];
	uint32_t base;
	size_t arrived, fetching;
} am;

static ucs_status_t am_arrives(void *arg, const void *header, size_t header_length, void *data, size_t length,
			       const ucp_am_recv_param_t *param)
{
	ucp_request_param_t fetch = { .op_attr_mask = 0 };
	struct am_header head;
	struct message *message;

	(void)arg;
	if (header_length != sizeof(head))
		fail("an active message with a header of %zu bytes", header_length);
	memcpy(&head, header, sizeof(head));
	if (head.index >= sizes_count || head.number != am.base + head.index)
		fail("an active message with number %u and index %u, not of %u", head.number, head.index, am.base);
	message = &am.messages[head.index];
	if (length != message->size)
		fail("an active message of %zu bytes, not %zu", length, message->size);
	if (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) {
		am.fetch[am.fetching++] = ucx.ucp_am_recv_data_nbx(worker, data, message->received, length, &fetch);
		am.arrived++;
		return UCS_INPROGRESS;
	}
	memcpy(message->received, data, length);
	am.arrived++;
	return UCS_OK;
}

static int am_all_arrived(void *arg)
{
	(void)arg;
	return am.arrived == sizes_count;
}

static void am_one_way(uint32_t flags, uint32_t base)
{
	ucp_request_param_t param = { .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = flags };
	struct am_header heads[SIZES_MAX];
	size_t i;

	am.base = base;
	am.arrived = am.fetching = 0;
	open_messages(am.messages, base);
	barrier();
	for (i = 0; i < sizes_count; i++) {
		struct message *message = &am.messages[i];

		heads[i] = (struct am_header){ .number = base + i, .index = i };
		message->send = ucx.ucp_am_send_nbx(peer, AM_ID, &heads[i], sizeof(heads[i]), message->sent,
						    message->size, &param);
	}
	wait_until(am_all_arrived, NULL, "active messages");
	for (i = 0; i < am.fetching; i++)
		finish(am.fetch[i], "ucp_am_recv_data_nbx");
	close_messages(am.messages, base);
	barrier();
}

static void active_messages(void)
{
	ucp_am_handler_param_t handler = {
		.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB,
		.id = AM_ID,
		.cb = am_arrives,
	};

	ok(ucx.ucp_worker_set_am_recv_handler(worker, &handler), "ucp_worker_set_am_recv_handler");
	am_one_way(0, 0x500);
	am_one_way(UCP_AM_SEND_FLAG_EAGER, 0x600);
	am_one_way(UCP_AM_SEND_FLAG_RNDV, 0x700);
}

/* ---- streams ---- */

/* Data is sent in pieces of all sizes and received in pieces of other sizes. */
static void stream(void)
{
	ucp_request_param_t send = { .op_attr_mask = 0 };
	ucp_request_param_t receive = { .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
					.flags = UCP_STREAM_RECV_FLAG_WAITALL };
	ucs_status_ptr_t sends[SIZES_MAX];
	size_t total = 0, at = 0, piece = 3, length, i;
	uint8_t *sent, *received;

	for (i = 0; i < sizes_count; i++)
		total += sizes[i];
	sent = filled(total, 0x800);
	received = guarded(total);
	for (i = 0; i < sizes_count; i++) {
		sends[i] = ucx.ucp_stream_send_nbx(peer, sent + at, sizes[i], &send);
		at += sizes[i];
	}
	for (at = 0; at < total; at += piece, piece = piece * 2 + 1) {
		if (piece > total - at)
			piece = total - at;
		finish(ucx.ucp_stream_recv_nbx(peer, received + at, piece, &length, &receive), "ucp_stream_recv_nbx");
	}
	for (i = 0; i < sizes_count; i++)
		finish(sends[i], "ucp_stream_send_nbx");
	compare_guarded(received, total, 0x800);
	drop_guarded(sent);
	drop_guarded(received);
	barrier();
}

/* ---- remote memory ---- */

/* The window in the other side's memory. */
struct window {
	uint64_t address;
	uint32_t rkey_size;
	uint8_t rkey[1024];
};

static struct {
	uint8_t *memory; /* ours: guards, LARGEST bytes, guards */
	ucp_mem_h memh;
	uint64_t remote;
	ucp_rkey_h rkey;
} window;

static void open_window(void)
{
	ucp_mem_map_params_t params = {
		.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
		.length = LARGEST + 2 * GUARD,
	};
	struct window mine = { 0 }, theirs;
	void *packed;
	size_t size;

	window.memory = guarded(LARGEST);
	params.address = window.memory - GUARD;
	ok(ucx.ucp_mem_map(context, &params, &window.memh), "ucp_mem_map");
	ok(ucx.ucp_rkey_pack(context, window.memh, &packed, &size), "ucp_rkey_pack");
	if (size > sizeof(mine.rkey))
		fail("an rkey of %zu bytes", size);
	memcpy(mine.rkey, packed, size);
	mine.rkey_size = size;
	mine.address = (uintptr_t)window.memory;
	ucx.ucp_rkey_buffer_release(packed);
	exchange(&mine, &theirs, sizeof(mine));
	ok(ucx.ucp_ep_rkey_unpack(peer, theirs.rkey, &window.rkey), "ucp_ep_rkey_unpack");
	window.remote = theirs.address;
}

static void close_window(void)
{
	/* The other side may still access this memory. */
	barrier();
	ucx.ucp_rkey_destroy(window.rkey);
	ok(ucx.ucp_mem_unmap(context, window.memh), "ucp_mem_unmap");
	drop_guarded(window.memory);
}

static void flush(void)
{
	ucp_request_param_t param = { .op_attr_mask = 0 };

	finish(ucx.ucp_ep_flush_nbx(peer, &param), "ucp_ep_flush_nbx");
}

/* Each size at the start of the window and at an odd offset, from registered and unregistered memory. */
static void rma(int is_put)
{
	ucp_request_param_t plain = { .op_attr_mask = 0 };
	ucp_request_param_t mapped = { .op_attr_mask = UCP_OP_ATTR_FIELD_MEMH };
	uint8_t *mine = guarded(LARGEST);
	ucp_mem_map_params_t params = {
		.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
		.address = mine,
		.length = LARGEST,
	};
	size_t i, round;

	open_window();
	ok(ucx.ucp_mem_map(context, &params, &mapped.memh), "ucp_mem_map");
	for (i = 0; i < sizes_count; i++) {
		for (round = 0; round < 2; round++) {
			size_t size = sizes[i], at = round && size < LARGEST / 2 ? 4099 : 0;
			ucp_request_param_t *param = round ? &mapped : &plain;
			uint32_t number = (is_put ? 0x900 : 0xa00) + 2 * i + round;

			memset(window.memory, GUARD_BYTE, LARGEST);
			if (is_put) {
				fill(mine, size, number);
				barrier();
				finish(ucx.ucp_put_nbx(peer, mine, size, window.remote + at, window.rkey, param),
				       "ucp_put_nbx");
				flush();
				barrier();
				compare_guarded(window.memory + at, size, number);
			} else {
				fill(window.memory + at, size, number);
				memset(mine, GUARD_BYTE, LARGEST);
				barrier();
				finish(ucx.ucp_get_nbx(peer, mine, size, window.remote + at, window.rkey, param),
				       "ucp_get_nbx");
				compare_guarded(mine, size, number);
			}
			/* The next operation of one side must not overlap the check of the other. */
			barrier();
		}
	}
	ok(ucx.ucp_mem_unmap(context, mapped.memh), "ucp_mem_unmap");
	close_window();
	drop_guarded(mine);
}

static void put(void)
{
	rma(1);
}

static void get(void)
{
	rma(0);
}

/* ---- atomics ---- */

static unsigned width; /* bytes of an operand */

static uint64_t word_mask(void)
{
	return width == 8 ? UINT64_MAX : UINT32_MAX;
}

static uint64_t word(unsigned index)
{
	uint64_t value = 0;

	memcpy(&value, window.memory + index * 8, width);
	return value;
}

static void set_word(unsigned index, uint64_t value)
{
	memset(window.memory + index * 8, GUARD_BYTE, 8);
	memcpy(window.memory + index * 8, &value, width);
}

/* One atomic on the other side's word. `reply` is null for one without a result. For a conditional swap it holds
 * the new value. The operand must live as long as the request. */
static ucs_status_ptr_t atomic(ucp_atomic_op_t op, unsigned index, uint64_t *operand, uint64_t *reply)
{
	ucp_request_param_t param = { .op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE,
				      .datatype = ucp_dt_make_contig(width) };

	if (reply) {
		param.op_attr_mask |= UCP_OP_ATTR_FIELD_REPLY_BUFFER;
		param.reply_buffer = reply;
	}
	return ucx.ucp_atomic_op_nbx(peer, op, operand, 1, window.remote + index * 8, window.rkey, &param);
}

static uint64_t fetched(ucp_atomic_op_t op, unsigned index, uint64_t operand, uint64_t reply)
{
	finish(atomic(op, index, &operand, &reply), "ucp_atomic_op_nbx");
	return reply & word_mask();
}

static void expect(uint64_t value, uint64_t wanted, const char *what)
{
	wanted &= word_mask();
	if (value != wanted)
		fail("%s is 0x%llx, not 0x%llx", what, (unsigned long long)value, (unsigned long long)wanted);
}

/* Overlapping additions: each must see a different sum. */
static void additions(uint64_t start)
{
	static uint64_t operand = 1;
	uint64_t replies[ROUNDS], seen = 0;
	ucs_status_ptr_t requests[ROUNDS];
	unsigned i;

	for (i = 0; i < ROUNDS; i++) {
		replies[i] = 0;
		requests[i] = atomic(UCP_ATOMIC_OP_ADD, 0, &operand, &replies[i]);
	}
	for (i = 0; i < ROUNDS; i++) {
		uint64_t order;

		finish(requests[i], "fetch and add");
		order = ((replies[i] & word_mask()) - start) & word_mask();
		if (order >= ROUNDS || seen & (1ull << order))
			fail("fetch and add %u returned 0x%llx", i, (unsigned long long)replies[i]);
		seen |= 1ull << order;
	}
	for (i = 0; i < ROUNDS; i++)
		requests[i] = atomic(UCP_ATOMIC_OP_ADD, 1, &operand, NULL);
	for (i = 0; i < ROUNDS; i++)
		finish(requests[i], "add");
	flush();
}

static void atomics(void)
{
	/* Near the end of the range, so that sums overflow. */
	uint64_t start = word_mask() - ROUNDS / 2, a = 0x1122334455667788u, b = 0x99aabbccddeeff00u;
	uint64_t mixed = (a & b) | 0x5500000055u;
	unsigned i;

	open_window();
	for (i = 0; i < WORDS; i++)
		set_word(i, start);
	barrier();
	additions(start);
	expect(fetched(UCP_ATOMIC_OP_SWAP, 2, a, 0), start, "swap");
	expect(fetched(UCP_ATOMIC_OP_SWAP, 2, b, 0), a, "the second swap");
	expect(fetched(UCP_ATOMIC_OP_CSWAP, 2, a, a), b, "a conditional swap that may not");
	expect(fetched(UCP_ATOMIC_OP_CSWAP, 2, b, a), b, "a conditional swap that may");
	expect(fetched(UCP_ATOMIC_OP_SWAP, 3, a, 0), start, "swap");
	expect(fetched(UCP_ATOMIC_OP_AND, 3, b, 0), a, "and");
	expect(fetched(UCP_ATOMIC_OP_OR, 3, 0x5500000055u, 0), a & b, "or");
	expect(fetched(UCP_ATOMIC_OP_XOR, 3, a, 0), mixed, "xor");
	barrier();
	expect(word(0), start + ROUNDS, "the sum of what was fetched and added");
	expect(word(1), start + ROUNDS, "the sum of what was added");
	expect(word(2), a, "what was swapped in");
	expect(word(3), mixed ^ a, "what and, or, xor leave");
	for (i = 4; i < WORDS; i++)
		expect(word(i), start, "a word that nobody used");
	for (i = 0; i < WORDS * 8; i++)
		if (i % 8 >= width && window.memory[i] != GUARD_BYTE)
			fail("byte %u beside a word was written", i);
	close_window();
}

static void amo32(void)
{
	width = 4;
	atomics();
}

static void amo64(void)
{
	width = 8;
	atomics();
}

/* ---- both sides ---- */

static const struct section {
	const char *name;
	uint64_t features;
	void (*run)(void);
} sections[] = {
	{ "tag", UCP_FEATURE_TAG, tag },
	{ "am", UCP_FEATURE_AM, active_messages },
	{ "stream", UCP_FEATURE_STREAM, stream },
	{ "put", UCP_FEATURE_RMA, put },
	{ "get", UCP_FEATURE_RMA, get },
	{ "amo32", UCP_FEATURE_RMA | UCP_FEATURE_AMO32, amo32 },
	{ "amo64", UCP_FEATURE_RMA | UCP_FEATURE_AMO64, amo64 },
};

static const struct section *section_named(const char *name)
{
	size_t i;

	for (i = 0; i < sizeof(sections) / sizeof(sections[0]); i++)
		if (!strcmp(sections[i].name, name))
			return &sections[i];
	fail("no section '%s'", name);
	return NULL;
}

int main(int argc, char **argv)
{
	const char *library = argc > 1 ? argv[1] : NULL;
	unsigned port = 0;
	uint64_t features = 0;
	int option, i, wake_up = 0;

	if (!library || library[0] == '-')
		fail("the first argument is UCX's library libucp");
	optind = 2;
	while ((option = getopt(argc, argv, "+wsp:c")) != -1) {
		switch (option) {
		case 'w':
			wake_up = 1;
			break;
		case 's':
			sizes = few_sizes;
			sizes_count = sizeof(few_sizes) / sizeof(few_sizes[0]);
			break;
		case 'p':
			port = strtoul(optarg, NULL, 10);
			break;
		case 'c':
			is_server = 0;
			break;
		default:
			fail("no such option");
		}
	}
	for (i = optind; i < argc; i++)
		features |= section_named(argv[i])->features;
	load(library);
	meet(port);
	open_ucx(wake_up, features);
	connect_peer();
	for (i = optind; i < argc; i++) {
		section = argv[i];
		section_named(section)->run();
		printf("ok %s\n", section);
		fflush(stdout);
	}
	section = "end";
	tell_lanes();
	close_ucx();
	printf("sleeps %lu\n", sleeps);
	fflush(stdout);
	/* Without the destructors of libraries: a libnl in the wheel of UCX 1.23.0 writes to address 0 in one of them,
	 * on any machine (dlopen of its libuct_ib_mlx5.so and a return from main are enough). */
	_exit(0);
}
