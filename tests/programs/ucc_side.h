/* Common parts of the programs that use UCC directly: set-up with MPI as out-of-band transport. */
#include <mpi.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucc/api/ucc.h>

extern char **environ;

static int rank, ranks;
static ucc_lib_h lib;
static ucc_context_h context;
static ucc_team_h team;

#define CHECK(call)                                                                                                   \
	do {                                                                                                           \
		int status_ = (call);                                                                                  \
		if (status_) {                                                                                         \
			fprintf(stderr, "rank %d, line %d: %s: %d\n", rank, __LINE__, #call, status_);                 \
			MPI_Abort(MPI_COMM_WORLD, 1);                                                                  \
		}                                                                                                      \
	} while (0)

static ucc_status_t gather(void *mine, void *all, size_t size, void *of, void **request)
{
	MPI_Request *pending = malloc(sizeof(*pending));

	if (!pending)
		return UCC_ERR_NO_MEMORY;
	*request = pending;
	return MPI_Iallgather(mine, (int)size, MPI_BYTE, all, (int)size, MPI_BYTE, *(MPI_Comm *)of, pending) ?
		       UCC_ERR_NO_MESSAGE :
		       UCC_OK;
}

static ucc_status_t gather_test(void *request)
{
	int done = 0;

	if (MPI_Test(request, &done, MPI_STATUS_IGNORE))
		return UCC_ERR_NO_MESSAGE;
	return done ? UCC_OK : UCC_INPROGRESS;
}

static ucc_status_t gather_free(void *request)
{
	free(request);
	return UCC_OK;
}

static ucc_oob_coll_t oob(MPI_Comm *members)
{
	ucc_oob_coll_t functions = { .allgather = gather, .req_test = gather_test, .req_free = gather_free, .coll_info = members };
	int size, me;

	MPI_Comm_size(*members, &size);
	MPI_Comm_rank(*members, &me);
	functions.n_oob_eps = (uint32_t)size;
	functions.oob_ep = (uint32_t)me;
	return functions;
}

/* A context of `members` with their team; without members a context of this process alone. */
static void ucc_start(MPI_Comm *members, ucc_mem_map_t *segment)
{
	ucc_lib_params_t lib_params = { .mask = UCC_LIB_PARAM_FIELD_THREAD_MODE, .thread_mode = UCC_THREAD_SINGLE };
	ucc_context_params_t params = { .mask = UCC_CONTEXT_PARAM_FIELD_TYPE, .type = UCC_CONTEXT_EXCLUSIVE };
	ucc_team_params_t team_params = { .mask = UCC_TEAM_PARAM_FIELD_EP | UCC_TEAM_PARAM_FIELD_EP_RANGE |
						  UCC_TEAM_PARAM_FIELD_OOB | UCC_TEAM_PARAM_FIELD_EP_MAP,
					  .ep_range = UCC_COLLECTIVE_EP_RANGE_CONTIG,
					  .ep_map = { .type = UCC_EP_MAP_FULL } };
	ucc_lib_config_h lib_config;
	ucc_context_config_h config;
	int status;

	CHECK(ucc_lib_config_read(NULL, NULL, &lib_config));
	CHECK(ucc_init(&lib_params, lib_config, &lib));
	ucc_lib_config_release(lib_config);
	CHECK(ucc_context_config_read(lib, NULL, &config));
	if (members) {
		params.type = UCC_CONTEXT_SHARED;
		params.mask |= UCC_CONTEXT_PARAM_FIELD_OOB;
		params.oob = oob(members);
	}
	if (segment) {
		params.mask |= UCC_CONTEXT_PARAM_FIELD_MEM_PARAMS;
		params.mem_params.segments = segment;
		params.mem_params.n_segments = 1;
	}
	CHECK(ucc_context_create(lib, &params, config, &context));
	ucc_context_config_release(config);
	if (!members)
		return;
	team_params.oob = oob(members);
	team_params.ep = team_params.oob.oob_ep;
	team_params.ep_map.ep_num = team_params.oob.n_oob_eps;
	CHECK(ucc_team_create_post(&context, 1, &team_params, &team));
	while ((status = ucc_team_create_test(team)) == UCC_INPROGRESS)
		ucc_context_progress(context);
	CHECK(status);
}

static void ucc_stop(void)
{
	int status = UCC_OK;

	while (team && (status = ucc_team_destroy(team)) == UCC_INPROGRESS)
		ucc_context_progress(context);
	CHECK(status);
	CHECK(ucc_context_destroy(context));
	CHECK(ucc_finalize(lib));
}

/* Posts a collective and waits for its status. */
static ucc_status_t run_posted(ucc_coll_req_h request)
{
	ucc_status_t status = ucc_collective_post(request);

	if (status < 0)
		return status;
	while ((status = ucc_collective_test(request)) == UCC_INPROGRESS)
		ucc_context_progress(context);
	return status;
}

/* Rank 0 runs `command` between two barriers, with its standard output in the file `PREFIX.TITLE`. */
static inline void counters(char **command, const char *prefix, const char *title)
{
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0 && command && *command) {
		posix_spawn_file_actions_t actions;
		char file[4096];
		int status = 1;
		pid_t child;

		snprintf(file, sizeof(file), "%s.%s", prefix, title);
		CHECK(posix_spawn_file_actions_init(&actions));
		CHECK(posix_spawn_file_actions_addopen(&actions, 1, file, O_WRONLY | O_CREAT | O_TRUNC, 0600));
		CHECK(posix_spawnp(&child, command[0], &actions, NULL, command, environ));
		CHECK(waitpid(child, &status, 0) != child || status != 0);
		posix_spawn_file_actions_destroy(&actions);
	}
	MPI_Barrier(MPI_COMM_WORLD);
}

/* A new mapping, so that no cache knows it. */
static uint8_t *fresh(size_t size)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED) {
		perror("mmap");
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	return memory;
}

/* Byte `at` of the block from one rank to another in a round. */
static uint8_t byte_of(int from, int to, unsigned round, size_t at)
{
	uint32_t x = (uint32_t)at * 2654435761u ^ (uint32_t)(from * 977 + to * 131 + (int)round * 7919 + 1);

	x ^= x >> 15;
	x *= 0x2c1b3c6du;
	return (uint8_t)(x >> 16);
}
