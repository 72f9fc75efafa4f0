/*
 * The device library: algorithms with their parameters and counters, slots of ports, and the entry points of the device.
 */
#include "pcc_dev.h"

#define ALGORITHMS DOCA_PCC_DEV_MAX_NUM_ALGOS
#define SLOTS DOCA_PCC_DEV_MAX_NUM_USER_SLOTS
#define PORTS DOCA_PCC_DEV_MAX_NUM_PORTS
#define PARAMETERS DOCA_PCC_DEV_MAX_NUM_PARAMS_PER_ALGO
#define COUNTERS DOCA_PCC_DEV_MAX_NUM_COUNTERS_PER_ALGO

/* A program may lack one of these; the start refuses it then. */
__attribute__((weak)) void doca_pcc_dev_user_init(uint32_t *disable_event_bitmask);
__attribute__((weak)) void doca_pcc_dev_user_algo(doca_pcc_dev_algo_ctxt_t *algo_ctxt, doca_pcc_dev_event_t *event,
						  const doca_pcc_dev_attr_t *attr, doca_pcc_dev_results_t *results);
__attribute__((weak)) doca_pcc_dev_error_t doca_pcc_dev_user_set_algo_params(uint32_t port_num, uint32_t algo_slot,
									     uint32_t param_id_base, uint32_t param_num,
									     const uint32_t *new_param_values,
									     uint32_t *params);

struct text {
	uint64_t address;
	uint32_t size;
};

struct parameter {
	uint32_t is_set;
	uint32_t first;
	uint32_t most;
	uint32_t least;
	uint32_t permissions;
	struct text text;
};

struct counter {
	uint32_t is_set;
	uint32_t most;
	uint32_t permissions;
	struct text text;
};

struct algorithm {
	uint32_t is_set;
	uint32_t id;
	uint32_t major;
	uint32_t minor;
	uint32_t parameter_number;
	uint32_t counter_number;
	struct text text;
	struct parameter parameters[PARAMETERS];
	struct counter counters[COUNTERS];
};

struct slot {
	uint32_t is_set;
	uint32_t is_enabled;
	uint32_t algorithm;
	uint32_t parameters[PARAMETERS];
	uint32_t counters[COUNTERS];
};

struct port {
	uint32_t gbps;
	uint32_t planes;
};

static struct algorithm algorithms[ALGORITHMS];
static struct slot slots[PORTS][SLOTS];
static struct port ports[PORTS];
static uint32_t port_mask;

/* The counters that are sampled. */
static uint32_t *counter_ids;
static uint32_t counter_number;
static uint32_t *counter_values;

doca_pcc_dev_error_t pcc_refuse(const char *format, ...)
{
	char text[PCC_TEXT_BYTES];
	va_list arguments;
	uint32_t bytes;

	va_start(arguments, format);
	bytes = pcc_format(text, sizeof(text), format, arguments);
	va_end(arguments);
	pcc_service(PCC_SERVICE_REFUSE, (uint64_t)(uintptr_t)text, bytes, 0, 0);
	return DOCA_PCC_DEV_STATUS_FAIL;
}

static struct slot *find(uint32_t port, uint32_t number)
{
	if (port >= PORTS || number >= SLOTS || !slots[port][number].is_set)
		return NULL;
	return &slots[port][number];
}

/* --- Set-up --- */

doca_pcc_dev_error_t doca_pcc_dev_algo_init_metadata(uint32_t algo_idx, const struct doca_pcc_dev_algo_meta_data *user_def,
						     uint32_t param_num, uint32_t counter_num)
{
	struct algorithm *algorithm;

	if (algo_idx >= ALGORITHMS)
		return pcc_refuse("algorithm %u: the last one is %u", algo_idx, ALGORITHMS - 1);
	if (user_def == NULL)
		return pcc_refuse("algorithm %u has no metadata", algo_idx);
	if (param_num > PARAMETERS)
		return pcc_refuse("algorithm %u has %u parameters; the limit is %u", algo_idx, param_num, PARAMETERS);
	if (counter_num > COUNTERS)
		return pcc_refuse("algorithm %u has %u counters; the limit is %u", algo_idx, counter_num, COUNTERS);
	algorithm = &algorithms[algo_idx];
	if (algorithm->is_set)
		return pcc_refuse("algorithm %u is declared twice", algo_idx);
	algorithm->is_set = 1;
	algorithm->id = user_def->algo_id;
	algorithm->major = user_def->algo_major_version;
	algorithm->minor = user_def->algo_minor_version;
	algorithm->text = (struct text){user_def->algo_desc_addr, user_def->algo_desc_size};
	algorithm->parameter_number = param_num;
	algorithm->counter_number = counter_num;
	return DOCA_PCC_DEV_STATUS_OK;
}

doca_pcc_dev_error_t doca_pcc_dev_algo_init_param(uint32_t algo_idx, uint32_t param_id, uint32_t default_value,
						  uint32_t max_value, uint32_t min_value, uint32_t permissions,
						  uint32_t param_desc_size, uint64_t param_desc_addr)
{
	if (algo_idx >= ALGORITHMS || !algorithms[algo_idx].is_set)
		return pcc_refuse("parameter %u: algorithm %u is not declared", param_id, algo_idx);
	if (param_id >= algorithms[algo_idx].parameter_number)
		return pcc_refuse("parameter %u: algorithm %u has %u, from 0", param_id, algo_idx,
				  algorithms[algo_idx].parameter_number);
	if (default_value < min_value || default_value > max_value)
		return pcc_refuse("parameter %u of algorithm %u: its default %u is not between %u and %u", param_id,
				  algo_idx, default_value, min_value, max_value);
	algorithms[algo_idx].parameters[param_id] =
		(struct parameter){1, default_value, max_value, min_value, permissions, {param_desc_addr, param_desc_size}};
	return DOCA_PCC_DEV_STATUS_OK;
}

doca_pcc_dev_error_t doca_pcc_dev_algo_init_counter(uint32_t algo_idx, uint32_t counter_id, uint32_t max_value,
						    uint32_t permissions, uint32_t counter_desc_size,
						    uint64_t counter_desc_addr)
{
	if (algo_idx >= ALGORITHMS || !algorithms[algo_idx].is_set)
		return pcc_refuse("counter %u: algorithm %u is not declared", counter_id, algo_idx);
	if (counter_id >= algorithms[algo_idx].counter_number)
		return pcc_refuse("counter %u: algorithm %u has %u, from 0", counter_id, algo_idx,
				  algorithms[algo_idx].counter_number);
	algorithms[algo_idx].counters[counter_id] =
		(struct counter){1, max_value, permissions, {counter_desc_addr, counter_desc_size}};
	return DOCA_PCC_DEV_STATUS_OK;
}

doca_pcc_dev_error_t doca_pcc_dev_init_algo_slot(uint32_t portid, uint32_t algo_slot, uint32_t algo_idx, uint32_t algo_en)
{
	const struct algorithm *algorithm;
	struct slot *slot;

	if (portid >= PORTS)
		return pcc_refuse("port %u: the last one is %u", portid, PORTS - 1);
	if (algo_slot >= SLOTS)
		return pcc_refuse("slot %u: the last one of the user is %u", algo_slot, SLOTS - 1);
	if (algo_idx >= ALGORITHMS || !algorithms[algo_idx].is_set)
		return pcc_refuse("slot %u of port %u: algorithm %u is not declared", algo_slot, portid, algo_idx);
	algorithm = &algorithms[algo_idx];
	slot = &slots[portid][algo_slot];
	slot->is_set = 1;
	slot->is_enabled = algo_en;
	slot->algorithm = algo_idx;
	for (uint32_t i = 0; i < PARAMETERS; i++)
		slot->parameters[i] = algorithm->parameters[i].first;
	for (uint32_t i = 0; i < COUNTERS; i++)
		slot->counters[i] = 0;
	return DOCA_PCC_DEV_STATUS_OK;
}

uint32_t *doca_pcc_dev_get_algo_params(uint32_t port_num, uint32_t algo_slot)
{
	struct slot *slot = find(port_num, algo_slot);

	return slot == NULL ? NULL : slot->parameters;
}

uint32_t doca_pcc_dev_get_algo_params_num(uint32_t port_num, uint32_t algo_slot)
{
	const struct slot *slot = find(port_num, algo_slot);

	return slot == NULL ? 0 : algorithms[slot->algorithm].parameter_number;
}

uint32_t *doca_pcc_dev_get_counters(uint32_t port_num, uint32_t algo_slot)
{
	struct slot *slot = find(port_num, algo_slot);

	return slot == NULL ? NULL : slot->counters;
}

uint32_t doca_pcc_dev_get_counters_num(uint32_t port_num, uint32_t algo_slot)
{
	const struct slot *slot = find(port_num, algo_slot);

	return slot == NULL ? 0 : algorithms[slot->algorithm].counter_number;
}

uint32_t doca_pcc_dev_get_algo_index(uint32_t port_num, uint32_t algo_slot)
{
	const struct slot *slot = find(port_num, algo_slot);

	return slot == NULL ? DOCA_PCC_DEV_ALGO_INDEX_INTERNAL : slot->algorithm;
}

/* --- Ports and services --- */

uint32_t doca_pcc_dev_get_logical_ports(void)
{
	return port_mask;
}

uint32_t doca_pcc_dev_get_port_planes(uint32_t portid)
{
	return portid < PORTS ? ports[portid].planes : 0;
}

uint32_t doca_pcc_dev_get_port_speed(uint32_t portid)
{
	return portid < PORTS ? ports[portid].gbps : 0;
}

void doca_pcc_dev_nic_counters_config(uint32_t *ids, uint32_t num_counters, uint32_t *values)
{
	counter_ids = ids;
	counter_number = num_counters;
	counter_values = values;
}

void doca_pcc_dev_nic_counters_sample(void)
{
	for (uint32_t i = 0; i < counter_number; i++)
		counter_values[i] = (uint32_t)pcc_service(PCC_SERVICE_COUNTER, counter_ids[i], 0, 0, 0);
}

unsigned int doca_pcc_dev_thread_rank(void)
{
	return (unsigned int)pcc_service(PCC_SERVICE_THREAD, 0, 0, 0, 0);
}

void doca_pcc_dev_printf(const char *format, ...)
{
	char text[PCC_TEXT_BYTES];
	va_list arguments;
	uint32_t bytes;

	va_start(arguments, format);
	bytes = pcc_format(text, sizeof(text), format, arguments);
	va_end(arguments);
	pcc_service(PCC_SERVICE_PRINT, (uint64_t)(uintptr_t)text, bytes, 0, 0);
}

void doca_pcc_dev_trace_5(int format_id, uint64_t arg1, uint64_t arg2, uint64_t arg3, uint64_t arg4, uint64_t arg5)
{
	uint64_t words[6] = {(uint64_t)(int64_t)format_id, arg1, arg2, arg3, arg4, arg5};

	pcc_service(PCC_SERVICE_TRACE, (uint64_t)(uintptr_t)words, 6, 0, 0);
}

void doca_pcc_dev_trace_flush(void)
{
	pcc_service(PCC_SERVICE_FLUSH, 0, 0, 0, 0);
}

doca_pcc_dev_error_t doca_pcc_dev_custom_header_set(doca_pcc_dev_algo_ctxt_t *algo_ctxt, doca_pcc_dev_event_t *event,
						    uint32_t *header, uint32_t header_size, uint32_t wait_completed)
{
	(void)algo_ctxt;
	(void)wait_completed;
	if (header == NULL || header_size > PCC_HEADER_WORDS)
		return DOCA_PCC_DEV_STATUS_FAIL;
	return pcc_service(PCC_SERVICE_HEADER, doca_pcc_dev_get_flowtag(event), (uint64_t)(uintptr_t)header, header_size, 0) ==
			       0
		       ? DOCA_PCC_DEV_STATUS_OK
		       : DOCA_PCC_DEV_STATUS_FAIL;
}

doca_pcc_dev_error_t doca_pcc_dev_probe_prio_set(doca_pcc_dev_algo_ctxt_t *algo_ctxt, doca_pcc_dev_event_t *event,
						 uint32_t use_custom_prio, uint32_t prio, uint32_t wait_completed)
{
	(void)algo_ctxt;
	(void)wait_completed;
	if (prio > 7)
		return DOCA_PCC_DEV_STATUS_FAIL;
	return pcc_service(PCC_SERVICE_PRIORITY, doca_pcc_dev_get_flowtag(event), use_custom_prio != 0, prio, 0) == 0
		       ? DOCA_PCC_DEV_STATUS_OK
		       : DOCA_PCC_DEV_STATUS_FAIL;
}

/* --- Entry points --- */

/* A port has this speed and number of planes; 0 Gb/s: it is down. */
PCC_ENTRY uint64_t __pcc_port(uint64_t port, uint64_t gbps, uint64_t planes)
{
	if (port >= PORTS)
		return 1;
	ports[port] = (struct port){(uint32_t)gbps, (uint32_t)planes};
	port_mask |= 1u << port;
	if (doca_pcc_dev_user_port_info_changed != NULL)
		doca_pcc_dev_user_port_info_changed((uint32_t)port);
	return 0;
}

/* Starts the user's code, after the ports. Returns the mask of events that it does not want. */
PCC_ENTRY uint64_t __pcc_start(void)
{
	uint32_t disabled = 0;

	if (doca_pcc_dev_user_init == NULL)
		pcc_refuse("the program has no doca_pcc_dev_user_init()");
	if (doca_pcc_dev_user_algo == NULL)
		pcc_refuse("the program has no doca_pcc_dev_user_algo()");
	if (doca_pcc_dev_user_set_algo_params == NULL)
		pcc_refuse("the program has no doca_pcc_dev_user_set_algo_params()");
	if (doca_pcc_dev_user_init != NULL)
		doca_pcc_dev_user_init(&disabled);
	return disabled;
}

/* Handles the event of a block. */
PCC_ENTRY uint64_t __pcc_event(uint64_t address)
{
	struct pcc_block *block = (struct pcc_block *)(uintptr_t)address;

	block->results = (doca_pcc_dev_results_t){0};
	doca_pcc_dev_user_algo(&block->context, &block->event, &block->attr, &block->results);
	return 0;
}

/* Changes parameters of a slot. Returns a status. */
PCC_ENTRY uint64_t __pcc_set_params(uint64_t port, uint64_t number, uint64_t base, uint64_t count, uint64_t address)
{
	const uint32_t *values = (const uint32_t *)(uintptr_t)address;
	struct slot *slot = find((uint32_t)port, (uint32_t)number);
	const struct algorithm *algorithm;

	if (slot == NULL)
		return pcc_refuse("slot %u of port %u has no algorithm", (uint32_t)number, (uint32_t)port);
	algorithm = &algorithms[slot->algorithm];
	if (count == 0 || base >= algorithm->parameter_number || count > algorithm->parameter_number - base)
		return pcc_refuse("parameters %u to %u: the algorithm has %u, from 0", (uint32_t)base,
				  (uint32_t)(base + count - 1), algorithm->parameter_number);
	for (uint32_t i = 0; i < count; i++) {
		const struct parameter *parameter = &algorithm->parameters[base + i];

		if (parameter->permissions == 0)
			return pcc_refuse("parameter %u is read-only", (uint32_t)base + i);
		if (values[i] < parameter->least || values[i] > parameter->most)
			return pcc_refuse("parameter %u: %u is not between %u and %u", (uint32_t)base + i, values[i],
					  parameter->least, parameter->most);
	}
	if (doca_pcc_dev_user_set_algo_params((uint32_t)port, (uint32_t)number, (uint32_t)base, (uint32_t)count, values,
					      &slot->parameters[base]) != DOCA_PCC_DEV_STATUS_OK)
		return pcc_refuse("the program refuses new values of parameters %u to %u", (uint32_t)base,
				  (uint32_t)(base + count - 1));
	/* The program may have stored them already. */
	for (uint32_t i = 0; i < count; i++)
		slot->parameters[base + i] = values[i];
	return 0;
}

/* Passes a request of the mailbox to the program. Returns a status, and above it the bytes of the response. */
PCC_ENTRY uint64_t __pcc_mailbox(uint64_t request, uint64_t size, uint64_t most, uint64_t response)
{
	uint32_t bytes = 0;

	if (doca_pcc_dev_user_mailbox_handle == NULL)
		return pcc_refuse("the program has no doca_pcc_dev_user_mailbox_handle()");
	if (doca_pcc_dev_user_mailbox_handle((void *)(uintptr_t)request, (uint32_t)size, (uint32_t)most,
					     (void *)(uintptr_t)response, &bytes) != DOCA_PCC_DEV_STATUS_OK)
		return pcc_refuse("the program refuses a request of %u bytes", (uint32_t)size);
	if (bytes > most)
		return pcc_refuse("the program's response has %u bytes; the limit is %u", bytes, (uint32_t)most);
	return (uint64_t)bytes << 32;
}

static uint64_t of_parameter(const struct parameter *parameter, uint32_t what)
{
	switch (what) {
	case PCC_QUERY_PARAMETER_FIRST:
		return parameter->first;
	case PCC_QUERY_PARAMETER_MOST:
		return parameter->most;
	case PCC_QUERY_PARAMETER_LEAST:
		return parameter->least;
	case PCC_QUERY_PARAMETER_PERMISSIONS:
		return parameter->permissions;
	case PCC_QUERY_PARAMETER_TEXT:
		return parameter->text.address;
	default:
		return parameter->text.size;
	}
}

/* What a slot has: a property (PCC_QUERY_...), of parameter or counter ID where it is one of these. 0 if there is none. */
PCC_ENTRY uint64_t __pcc_query(uint64_t what, uint64_t port, uint64_t number, uint64_t id)
{
	const struct slot *slot = find((uint32_t)port, (uint32_t)number);
	const struct algorithm *algorithm = slot == NULL ? NULL : &algorithms[slot->algorithm];

	if (what == PCC_QUERY_ALGORITHM)
		return doca_pcc_dev_get_algo_index((uint32_t)port, (uint32_t)number);
	if (algorithm == NULL)
		return 0;
	switch (what) {
	case PCC_QUERY_ENABLED:
		return slot->is_enabled;
	case PCC_QUERY_ID:
		return algorithm->id;
	case PCC_QUERY_VERSION:
		return (uint64_t)algorithm->major << 32 | algorithm->minor;
	case PCC_QUERY_TEXT:
		return algorithm->text.address;
	case PCC_QUERY_TEXT_BYTES:
		return algorithm->text.size;
	case PCC_QUERY_PARAMETERS:
		return algorithm->parameter_number;
	case PCC_QUERY_COUNTERS:
		return algorithm->counter_number;
	case PCC_QUERY_COUNTERS_ADDRESS:
		return (uint64_t)(uintptr_t)slot->counters;
	default:
		break;
	}
	if (what >= PCC_QUERY_COUNTER) {
		if (id >= algorithm->counter_number)
			return 0;
		if (what == PCC_QUERY_COUNTER_TEXT)
			return algorithm->counters[id].text.address;
		if (what == PCC_QUERY_COUNTER_TEXT_BYTES)
			return algorithm->counters[id].text.size;
		/* The program counts by itself, whatever the most is. */
		return slot->counters[id] < algorithm->counters[id].most ? slot->counters[id] : algorithm->counters[id].most;
	}
	if (id >= algorithm->parameter_number)
		return 0;
	return what == PCC_QUERY_PARAMETER ? slot->parameters[id]
					   : of_parameter(&algorithm->parameters[id], (uint32_t)what);
}
