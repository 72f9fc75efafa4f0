/* Opens and closes contexts, for tests/system/contexts.rs. The first argument selects the test:
 *
 *   rounds N   opens a context with a channel, a queue pair and its doorbell page, closes it, N times; prints
 *              "ok files=BEFORE,AFTER", the open files after the first round and after the last
 *   null       runs one such round, then a child stores to address 0 and another one loads from it; prints
 *              "ok store=SIGNAL load=SIGNAL", the signals that ended them
 *   most       opens contexts until that fails, then closes one and opens another; prints "ok opened=N errno=E"
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what)                                                                                                    \
	do {                                                                                                           \
		if (!(what)) {                                                                                         \
			fprintf(stderr, "line %d: %s: %s\n", __LINE__, #what, strerror(errno));                        \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

static int open_files(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int count = 0;

	CHECK(dir);
	while (readdir(dir))
		count++;
	closedir(dir);
	return count;
}

static void round_of(struct ibv_device *device)
{
	struct ibv_context *context = ibv_open_device(device);
	struct ibv_comp_channel *channel;
	struct ibv_qp_init_attr attributes = { .qp_type = IBV_QPT_RC };
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;

	CHECK(context);
	CHECK(channel = ibv_create_comp_channel(context));
	CHECK(pd = ibv_alloc_pd(context));
	CHECK(cq = ibv_create_cq(context, 8, NULL, channel, 0));
	attributes.send_cq = attributes.recv_cq = cq;
	attributes.cap.max_send_wr = attributes.cap.max_recv_wr = 8;
	attributes.cap.max_send_sge = attributes.cap.max_recv_sge = 1;
	CHECK(qp = ibv_create_qp(pd, &attributes));
	CHECK(!ibv_destroy_qp(qp));
	CHECK(!ibv_destroy_cq(cq));
	CHECK(!ibv_dealloc_pd(pd));
	CHECK(!ibv_destroy_comp_channel(channel));
	CHECK(!ibv_close_device(context));
}

/* The signal that ends a child that uses the page at address 0. */
static int ended_by(int stores)
{
	volatile uint64_t *volatile page = (uint64_t *)0x800;
	pid_t child = fork();
	int status;

	CHECK(child >= 0);
	if (!child) {
		struct rlimit none = { 0, 0 };

		setrlimit(RLIMIT_CORE, &none);
		if (stores)
			*page = 1;
		else
			(void)*page;
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child);
	return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void most(void)
{
	static int files[1 << 16];
	struct rlimit limit;
	int opened = 0, failed;

	CHECK(!getrlimit(RLIMIT_NOFILE, &limit));
	limit.rlim_cur = limit.rlim_max;
	CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
	while (opened < 1 << 16) {
		files[opened] = open("/dev/infiniband/uverbs0", O_RDWR | O_CLOEXEC);
		if (files[opened] < 0)
			break;
		opened++;
	}
	failed = errno;
	CHECK(opened);
	CHECK(!close(files[0]));
	CHECK((files[0] = open("/dev/infiniband/uverbs0", O_RDWR | O_CLOEXEC)) >= 0);
	printf("ok opened=%d errno=%d\n", opened, failed);
}

int main(int argc, char **argv)
{
	struct ibv_device **devices;
	const char *what = argc > 1 ? argv[1] : "";

	if (!strcmp(what, "most")) {
		most();
		return 0;
	}
	CHECK(devices = ibv_get_device_list(NULL));
	CHECK(devices[0]);
	round_of(devices[0]);
	if (!strcmp(what, "null")) {
		int store = ended_by(1), load = ended_by(0);

		printf("ok store=%d load=%d\n", store, load);
	} else if (!strcmp(what, "rounds") && argc == 3) {
		int before = open_files();

		for (int i = atoi(argv[2]); i > 1; i--)
			round_of(devices[0]);
		printf("ok files=%d,%d\n", before, open_files());
	} else {
		fprintf(stderr, "what? see the top of the source\n");
		return 2;
	}
	ibv_free_device_list(devices);
	return 0;
}
