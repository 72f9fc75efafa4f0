/* Host side of the test: one command a line, and one line as answer: "ok" with values, or the name of an error. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <doca_dev.h>
#include <doca_error.h>
#include <doca_pcc.h>
#include <doca_telemetry_pcc.h>

#include "pcc_shared.h"

extern struct doca_pcc_app *pcc_test_app, *pcc_test_np_app, *pcc_lacking_app;

/* What a context is for. */
enum {
	SENDER = 0,
	RECEIVER = 1,
	/* A sender whose program lacks a callback. */
	LACKING = 2,
	/* A sender whose probes a program of the receiver answers. */
	ASKING = 3,
};

static struct doca_dev *dev;
static struct doca_pcc *pcc;
static const char *core_file;

static doca_error_t open_device(bool unsupported)
{
	struct doca_devinfo **list;
	uint32_t count;
	doca_error_t result = doca_devinfo_create_list(&list, &count);

	if (result != DOCA_SUCCESS || count == 0)
		return DOCA_ERROR_NOT_FOUND;
	if (!unsupported)
		result = doca_devinfo_get_is_pcc_supported(list[0]);
	if (result == DOCA_SUCCESS)
		result = doca_dev_open(list[0], &dev);
	doca_devinfo_destroy_list(list);
	return result;
}

static doca_error_t create(uint32_t kind)
{
	static char *formats[] = {"first", "started with %#lx and %lu", NULL};
	static const uint32_t units[] = {176, 177, 178};
	doca_error_t result = kind == RECEIVER ? doca_pcc_np_create(dev, &pcc) : doca_pcc_create(dev, &pcc);

	if (result == DOCA_SUCCESS)
		result = doca_pcc_set_app(pcc, kind == RECEIVER ? pcc_test_np_app :
					       kind == LACKING	? pcc_lacking_app :
								  pcc_test_app);
	if (result == DOCA_SUCCESS && kind == ASKING)
		result = doca_pcc_rp_set_ccmad_remote_sw_handler(pcc, 0, true);
	if (result == DOCA_SUCCESS)
		result = doca_pcc_set_thread_affinity(pcc, 3, units);
	if (result == DOCA_SUCCESS)
		result = doca_pcc_set_trace_message(pcc, formats);
	if (result == DOCA_SUCCESS)
		result = doca_pcc_set_print_buffer_size(pcc, 1 << 20);
	if (result == DOCA_SUCCESS && core_file != NULL)
		result = doca_pcc_set_dev_coredump_file(pcc, core_file);
	if (result == DOCA_SUCCESS)
		result = doca_pcc_set_mailbox(pcc, sizeof(struct pcc_request), 8);
	return result;
}

static doca_error_t mail(uint32_t what, uint32_t value, uint32_t size)
{
	struct pcc_request *request;
	uint32_t *response, bytes, status;
	doca_error_t result = doca_pcc_mailbox_get_request_buffer(pcc, (void **)&request);

	if (result != DOCA_SUCCESS)
		return result;
	*request = (struct pcc_request){what, value};
	result = doca_pcc_mailbox_send(pcc, size, &bytes, &status);
	if (result != DOCA_SUCCESS)
		return result;
	if (status != 0)
		return DOCA_ERROR_UNEXPECTED;
	result = doca_pcc_mailbox_get_response_buffer(pcc, (void **)&response);
	if (result == DOCA_SUCCESS)
		printf("ok %u %u %u\n", bytes, response[0], bytes == 8 ? response[1] : 0);
	return result;
}

/* Many requests one after the other. Says how many were answered, and that the last answer counts no fewer events. */
static doca_error_t flood(uint32_t count)
{
	struct pcc_request *request;
	uint32_t *response, bytes, status, before = 0, answered = 0;
	doca_error_t result = doca_pcc_mailbox_get_request_buffer(pcc, (void **)&request);

	if (result == DOCA_SUCCESS)
		result = doca_pcc_mailbox_get_response_buffer(pcc, (void **)&response);
	while (result == DOCA_SUCCESS && answered < count) {
		*request = (struct pcc_request){PCC_FAULT, 0};
		result = doca_pcc_mailbox_send(pcc, sizeof(*request), &bytes, &status);
		if (result == DOCA_SUCCESS && (status != 0 || *response < before))
			result = DOCA_ERROR_UNEXPECTED;
		before = *response;
		answered++;
	}
	if (result == DOCA_SUCCESS)
		printf("ok %u\n", answered);
	return result;
}

/* New values of a parameter, one after the other, up to the last one. */
static doca_error_t parameters(uint32_t last)
{
	doca_error_t result = DOCA_SUCCESS;

	for (uint32_t value = last > 200 ? last - 200 : 1; value <= last && result == DOCA_SUCCESS; value++)
		result = doca_pcc_set_algo_params_ext(pcc, 0, 0, 1, &value);
	return result;
}

static doca_error_t telemetry(void)
{
	struct doca_telemetry_pcc *reader;
	uint32_t id, major, minor, populated, counters[64];
	uint8_t algorithm, has_counters;
	char text[512], counter[512];
	doca_error_t result = doca_telemetry_pcc_create(dev, &reader);

	if (result != DOCA_SUCCESS)
		return result;
	result = doca_telemetry_pcc_get_algo_id(reader, 0, &id);
	if (result != DOCA_SUCCESS) {
		doca_telemetry_pcc_destroy(reader);
		return result;
	}
	doca_telemetry_pcc_get_algo_major_version(reader, 0, &major);
	doca_telemetry_pcc_get_algo_minor_version(reader, 0, &minor);
	doca_telemetry_pcc_get_algo_enable_status(reader, 0, &algorithm, &has_counters);
	doca_telemetry_pcc_get_algo_info(reader, 0, text);
	doca_telemetry_pcc_get_counter_info(reader, 0, 0, counter);
	/* Not started yet. */
	if (doca_telemetry_pcc_get_counters(reader, 0, &populated, counters) != DOCA_ERROR_BAD_STATE ||
	    doca_telemetry_pcc_get_algo_id(reader, 1, &id) != DOCA_ERROR_BAD_STATE ||
	    doca_telemetry_pcc_get_algo_id(reader, 8, &minor) != DOCA_ERROR_INVALID_VALUE)
		result = DOCA_ERROR_UNEXPECTED;
	doca_telemetry_pcc_start(reader);
	if (result == DOCA_SUCCESS)
		result = doca_telemetry_pcc_get_and_clear_counters(reader, 0, &populated, counters);
	doca_telemetry_pcc_stop(reader);
	if (result == DOCA_SUCCESS)
		printf("ok %x %u.%u %u %u '%s' %u %s=%u\n", id, major, minor, algorithm, has_counters, text, populated, counter,
		       counters[0]);
	doca_telemetry_pcc_destroy(reader);
	return result;
}

static int wrong;

static void expect(doca_error_t found, doca_error_t wanted, const char *call)
{
	if (found != wanted)
		wrong += printf("%s is %s; ", call, doca_error_get_name(found)) > 0;
}

#define REFUSED(CALL, CODE) expect(CALL, DOCA_ERROR_##CODE, #CALL)

/* Each refusal has a line in the log; the test looks for the texts. */
static doca_error_t refusals(void)
{
	static const uint32_t one[] = {1}, far[] = {1, 254}, same[] = {3, 3}, zero[] = {0};
	static char *bad[] = {"%s", NULL};
	uint32_t bytes, status;

	REFUSED(doca_pcc_set_thread_affinity(pcc, 1, one), INVALID_VALUE);
	REFUSED(doca_pcc_set_thread_affinity(pcc, 2, far), INVALID_VALUE);
	REFUSED(doca_pcc_set_thread_affinity(pcc, 2, same), INVALID_VALUE);
	REFUSED(doca_pcc_set_trace_message(pcc, bad), INVALID_VALUE);
	REFUSED(doca_pcc_set_ccmad_probe_packet_format(pcc, 1), INVALID_VALUE);
	REFUSED(doca_pcc_rp_set_ifa2_gns(pcc, 0, 1), INVALID_VALUE);
	REFUSED(doca_pcc_set_mailbox(pcc, 0, 4), INVALID_VALUE);
	REFUSED(doca_pcc_stop(pcc), BAD_STATE);
	REFUSED(doca_pcc_mailbox_send(pcc, 8, &bytes, &status), BAD_STATE);
	expect(doca_pcc_start(pcc), DOCA_SUCCESS, "start");
	REFUSED(doca_pcc_start(pcc), BAD_STATE);
	REFUSED(doca_pcc_set_mailbox(pcc, 8, 8), BAD_STATE);
	REFUSED(doca_pcc_mailbox_send(pcc, 9, &bytes, &status), INVALID_VALUE);
	REFUSED(doca_pcc_set_algo_params_ext(pcc, 0, 1, 1, one), INVALID_VALUE);
	REFUSED(doca_pcc_set_algo_params_ext(pcc, 8, 0, 1, one), INVALID_VALUE);
	REFUSED(doca_pcc_set_algo_params_ext(pcc, 0, 2, 1, one), INVALID_VALUE);
	REFUSED(doca_pcc_set_algo_params_ext(pcc, 0, 0, 1, zero), INVALID_VALUE);
	expect(doca_pcc_set_algo_params_ext(pcc, 0, 0, 1, one), DOCA_SUCCESS, "set");
	REFUSED(doca_pcc_wait(pcc, -2), INVALID_VALUE);
	REFUSED(doca_pcc_dump_debug(pcc), BAD_STATE);
	puts(wrong ? "" : "ok");
	return DOCA_SUCCESS;
}

static doca_error_t act(const char *word, uint32_t value)
{
	doca_pcc_process_state_t state;
	doca_error_t result;

	if (strcmp(word, "open") == 0)
		return open_device(value != 0);
	if (strcmp(word, "create") == 0)
		return create(value);
	if (strcmp(word, "start") == 0)
		return doca_pcc_start(pcc);
	if (strcmp(word, "stop") == 0)
		return doca_pcc_stop(pcc);
	if (strcmp(word, "destroy") == 0)
		return doca_pcc_destroy(pcc);
	if (strcmp(word, "wait") == 0)
		return doca_pcc_wait(pcc, (int)value);
	if (strcmp(word, "mbps") == 0)
		return mail(PCC_SET_MBPS, value, sizeof(struct pcc_request));
	if (strcmp(word, "fault") == 0)
		return mail(PCC_FAULT, value, sizeof(struct pcc_request));
	if (strcmp(word, "probes") == 0)
		return mail(PCC_PROBES, 0, sizeof(struct pcc_request));
	if (strcmp(word, "flood") == 0)
		return flood(value);
	if (strcmp(word, "parameters") == 0)
		return parameters(value);
	if (strcmp(word, "mail") == 0)
		return mail(99, 0, value);
	if (strcmp(word, "telemetry") == 0)
		return telemetry();
	if (strcmp(word, "refusals") == 0)
		return refusals();
	if (strcmp(word, "state") == 0) {
		result = doca_pcc_get_process_state(pcc, &state);
		if (result == DOCA_SUCCESS)
			printf("ok %d\n", (int)state);
		return result;
	}
	return DOCA_ERROR_NOT_FOUND;
}

int main(int argc, char **argv)
{
	char line[128], word[64];

	setvbuf(stdout, NULL, _IOLBF, 0);
	core_file = argc > 1 ? argv[1] : NULL;
	while (fgets(line, sizeof(line), stdin) != NULL) {
		uint32_t value = 0;
		doca_error_t result;

		if (sscanf(line, "%63s %u", word, &value) < 1)
			continue;
		result = act(word, value);
		if (result != DOCA_SUCCESS)
			puts(doca_error_get_name(result));
		else if (strcmp(word, "probes") != 0 && strcmp(word, "flood") != 0 && strcmp(word, "mbps") != 0 && strcmp(word, "fault") != 0 && strcmp(word, "mail") != 0 &&
			 strcmp(word, "telemetry") != 0 && strcmp(word, "refusals") != 0 && strcmp(word, "state") != 0)
			puts("ok");
	}
	return 0;
}
