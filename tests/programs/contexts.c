/* Opens and closes contexts, for tests/system/contexts.rs. The first argument selects the test:
 *
 *   rounds N   opens a context with a channel, a queue pair and its doorbell page, closes it, N times; prints
 *              "ok files=BEFORE,AFTER", the open files after the first round and after the last
 *   channels N opens and destroys N channels of one context, one by one, then together, then one with a duplicate of
 *              its file; prints "ok files=FIRST,MOST,LAST,DUPLICATE,END", the largest number of open files after each
 *   null       runs one such round, then a child stores to address 0 and another one loads from it; prints
 *              "ok store=SIGNAL load=SIGNAL", the signals that ended them
 *   most       opens contexts until that fails, then closes one and opens another; prints "ok opened=N errno=E"
 *   threads N  N times in each of twelve threads: four run such a round and arm the completion queue, four open and
 *              close a context, four map a page, store to it and unmap it; prints "ok"
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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
	CHECK(!ibv_req_notify_cq(cq, 0));
	CHECK(!ibv_destroy_qp(qp));
	CHECK(!ibv_destroy_cq(cq));
	CHECK(!ibv_dealloc_pd(pd));
	CHECK(!ibv_destroy_comp_channel(channel));
	CHECK(!ibv_close_device(context));
}

static void channels_of(struct ibv_device *device, int count)
{
	static struct ibv_comp_channel *all[4096];
	struct ibv_context *context = ibv_open_device(device);
	struct rlimit limit;
	int first, most, last, duplicate, held, end;

	CHECK(context && count <= 4096);
	CHECK(!getrlimit(RLIMIT_NOFILE, &limit));
	limit.rlim_cur = limit.rlim_max;
	CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
	most = first = open_files();
	for (int i = 0; i < count; i++) {
		CHECK(all[0] = ibv_create_comp_channel(context));
		CHECK(!ibv_destroy_comp_channel(all[0]));
		if (open_files() > most)
			most = open_files();
	}
	for (int i = 0; i < count; i++)
		CHECK(all[i] = ibv_create_comp_channel(context));
	for (int i = 0; i < count; i++)
		CHECK(!ibv_destroy_comp_channel(all[i]));
	last = open_files();
	CHECK(all[0] = ibv_create_comp_channel(context));
	CHECK((duplicate = dup(all[0]->fd)) >= 0);
	CHECK(!ibv_destroy_comp_channel(all[0]));
	held = open_files();
	CHECK(!close(duplicate));
	end = open_files();
	CHECK(!ibv_close_device(context));
	printf("ok files=%d,%d,%d,%d,%d\n", first, most, last, held, end);
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

static struct ibv_device *shared;
static int rounds;

static void *rounds_with_queues(void *unused)
{
	for (int i = 0; i < rounds; i++)
		round_of(shared);
	return unused;
}

static void *rounds_without(void *unused)
{
	for (int i = 0; i < rounds; i++) {
		struct ibv_context *context = ibv_open_device(shared);

		CHECK(context);
		CHECK(!ibv_close_device(context));
	}
	return unused;
}

/* Takes the addresses that closed contexts have left. */
static void *pages(void *unused)
{
	for (int i = 0; i < rounds; i++) {
		volatile uint64_t *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		CHECK(page != MAP_FAILED);
		for (int j = 0; j < 100; j++) {
			page[256] = j;
			CHECK(page[256] == (uint64_t)j);
			sched_yield();
		}
		CHECK(!munmap((void *)page, 4096));
	}
	return unused;
}

static void threads(void)
{
	void *(*const of[3])(void *) = { rounds_with_queues, rounds_without, pages };
	pthread_t all[12];

	for (int i = 0; i < 12; i++)
		CHECK(!pthread_create(&all[i], NULL, of[i % 3], NULL));
	for (int i = 0; i < 12; i++)
		CHECK(!pthread_join(all[i], NULL));
	printf("ok\n");
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
	} else if (!strcmp(what, "threads") && argc == 3) {
		shared = devices[0];
		rounds = atoi(argv[2]);
		threads();
	} else if (!strcmp(what, "channels") && argc == 3) {
		channels_of(devices[0], atoi(argv[2]));
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
