/* Exports buffers by UCP on one device and imports each several times on another device of the same adapter.
 *
 * usage: ucp_import HOST_DEVICE DPU_DEVICE EXPORTS IMPORTS
 *
 * Each export but the last is released before the next. The contexts end while the last export and its last import are
 * in use. Afterwards the program prints the counters of the library: "exports N releases N imports N released N".
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucp/api/ucp.h>
#include <xgvmi.h>

#define BYTES 65536

static void check(const char *what, ucs_status_t status)
{
	if (status != UCS_OK) {
		fprintf(stderr, "%s: %s\n", what, ucs_status_string(status));
		exit(1);
	}
}

static ucp_context_h open_context(const char *device)
{
	ucp_params_t params = {
		.field_mask = UCP_PARAM_FIELD_FEATURES,
		.features = UCP_FEATURE_RMA | UCP_FEATURE_EXPORTED_MEMH,
	};
	ucp_config_t *config;
	ucp_context_h context;
	char name[64];

	snprintf(name, sizeof(name), "%s:1", device);
	check("ucp_config_read", ucp_config_read(NULL, NULL, &config));
	check("NET_DEVICES", ucp_config_modify(config, "NET_DEVICES", name));
	check("TLS", ucp_config_modify(config, "TLS", "rc_x"));
	/* Each round registers anew. */
	check("RCACHE_ENABLE", ucp_config_modify(config, "RCACHE_ENABLE", "n"));
	check("ucp_init", ucp_init(&params, config, &context));
	ucp_config_release(config);
	return context;
}

static ucp_mem_h map(ucp_context_h context, void *memory)
{
	ucp_mem_map_params_t params = {
		.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
		.address = memory,
		.length = BYTES,
	};
	ucp_mem_h memh;

	check("ucp_mem_map", ucp_mem_map(context, &params, &memh));
	return memh;
}

static ucp_mem_h import(ucp_context_h context, const void *packed)
{
	ucp_mem_map_params_t params = {
		.field_mask = UCP_MEM_MAP_PARAM_FIELD_EXPORTED_MEMH_BUFFER,
		.exported_memh_buffer = packed,
	};
	ucp_mem_h memh;

	check("ucp_mem_map of an exported handle", ucp_mem_map(context, &params, &memh));
	return memh;
}

/* One export with its imports. `last` stays in use. */
static void round_trip(ucp_context_h host, ucp_context_h dpu, void *memory, int imports, int last)
{
	ucp_memh_pack_params_t pack = {
		.field_mask = UCP_MEMH_PACK_PARAM_FIELD_FLAGS,
		.flags = UCP_MEMH_PACK_FLAG_EXPORT,
	};
	ucp_memh_buffer_release_params_t release = { .field_mask = 0 };
	ucp_mem_h exported = map(host, memory);
	void *packed;
	size_t length;
	int i;

	check("ucp_memh_pack", ucp_memh_pack(exported, &pack, &packed, &length));
	for (i = 0; i < imports; i++) {
		ucp_mem_h imported = import(dpu, packed);

		if (!last || i + 1 < imports)
			check("ucp_mem_unmap of an import", ucp_mem_unmap(dpu, imported));
	}
	ucp_memh_buffer_release(packed, &release);
	if (!last)
		check("ucp_mem_unmap", ucp_mem_unmap(host, exported));
}

int main(int argc, char **argv)
{
	int (*read_stats)(struct xgvmi_stats *, size_t) = (int (*)(struct xgvmi_stats *, size_t))dlsym(RTLD_DEFAULT, "xgvmi_stats");
	struct xgvmi_stats stats;
	ucp_context_h host, dpu;
	void *memory;
	int exports, i;

	if (argc != 5) {
		fprintf(stderr, "usage: %s HOST_DEVICE DPU_DEVICE EXPORTS IMPORTS\n", argv[0]);
		return 2;
	}
	if (!read_stats) {
		fprintf(stderr, "the library is not loaded\n");
		return 1;
	}
	host = open_context(argv[1]);
	dpu = open_context(argv[2]);
	if (posix_memalign(&memory, 4096, BYTES) != 0)
		return 1;
	memset(memory, 1, BYTES);
	exports = atoi(argv[3]);
	for (i = 1; i <= exports; i++)
		round_trip(host, dpu, memory, atoi(argv[4]), i == exports);
	ucp_cleanup(dpu);
	ucp_cleanup(host);
	if (read_stats(&stats, sizeof(stats)) != 0)
		return 1;
	printf("exports %llu releases %llu imports %llu released %llu\n", (unsigned long long)stats.exports,
	       (unsigned long long)stats.releases, (unsigned long long)stats.imports,
	       (unsigned long long)stats.imports_released);
	return 0;
}
