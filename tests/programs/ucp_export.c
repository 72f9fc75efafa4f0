/* Exports a buffer by UCP and gives it back, some times over: what stock UCX posts for it, or a library beneath it.
 *
 * usage: ucp_export ROUNDS BYTES
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucp/api/ucp.h>

static void check(const char *what, ucs_status_t status)
{
	if (status != UCS_OK) {
		fprintf(stderr, "%s: %s\n", what, ucs_status_string(status));
		exit(1);
	}
}

static void round_trip(ucp_context_h context, void *memory, size_t bytes)
{
	ucp_mem_map_params_t map = {
		.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
		.address = memory,
		.length = bytes,
	};
	ucp_memh_pack_params_t pack = {
		.field_mask = UCP_MEMH_PACK_PARAM_FIELD_FLAGS,
		.flags = UCP_MEMH_PACK_FLAG_EXPORT,
	};
	ucp_memh_buffer_release_params_t release = { .field_mask = 0 };
	ucp_mem_h memh;
	void *packed;
	size_t packed_bytes;

	check("ucp_mem_map", ucp_mem_map(context, &map, &memh));
	check("ucp_memh_pack", ucp_memh_pack(memh, &pack, &packed, &packed_bytes));
	ucp_memh_buffer_release(packed, &release);
	check("ucp_mem_unmap", ucp_mem_unmap(context, memh));
}

int main(int argc, char **argv)
{
	ucp_params_t params = {
		.field_mask = UCP_PARAM_FIELD_FEATURES,
		.features = UCP_FEATURE_RMA | UCP_FEATURE_EXPORTED_MEMH,
	};
	ucp_config_t *config;
	ucp_context_h context;
	void *memory;
	int rounds;
	size_t bytes;

	if (argc != 3) {
		fprintf(stderr, "usage: %s ROUNDS BYTES\n", argv[0]);
		return 2;
	}
	rounds = atoi(argv[1]);
	bytes = strtoul(argv[2], NULL, 0);
	check("ucp_config_read", ucp_config_read(NULL, NULL, &config));
	/* Each round registers anew. */
	check("ucp_config_modify", ucp_config_modify(config, "RCACHE_ENABLE", "n"));
	check("ucp_init", ucp_init(&params, config, &context));
	ucp_config_release(config);
	if (posix_memalign(&memory, 4096, bytes) != 0) {
		return 1;
	}
	memset(memory, 1, bytes);
	while (rounds-- > 0) {
		round_trip(context, memory, bytes);
	}
	free(memory);
	ucp_cleanup(context);
	return 0;
}
