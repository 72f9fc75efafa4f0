/* Registers memory that the kernel cannot pin, for tests/system/registrations.rs. Prints "ok". */
#include <errno.h>
#include <infiniband/verbs.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096UL
#define PAGES 3
#define RW (PROT_READ | PROT_WRITE)
#define WRITES (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)
#define HOLE (-1)

#define CHECK(what)                                                                                                    \
	do {                                                                                                           \
		if (!(what)) {                                                                                         \
			fprintf(stderr, "line %d: %s: %s\n", __LINE__, #what, strerror(errno));                        \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

static struct ibv_pd *pd;

/* The errno of a registration, or 0. The region stays if `kept` is not NULL. */
static int registered(void *start, size_t bytes, int flags, struct ibv_mr **kept)
{
	struct ibv_mr *mr;

	errno = 0;
	mr = ibv_reg_mr(pd, start, bytes, flags);
	if (!mr)
		return errno ? errno : -1;
	if (kept)
		*kept = mr;
	else
		CHECK(!ibv_dereg_mr(mr));
	return 0;
}

/* Three pages, the one in the middle with these permissions. */
static char *mapped(int middle)
{
	char *start = mmap(NULL, PAGES * PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(start != MAP_FAILED);
	if (middle == HOLE)
		CHECK(!munmap(start + PAGE, PAGE));
	else
		CHECK(!mprotect(start + PAGE, PAGE, middle));
	return start;
}

static void pages(void)
{
	static const struct {
		int middle, reads, writes;
	} rows[] = {
		{ RW, 0, 0 },
		{ PROT_READ, 0, EFAULT },
		{ PROT_NONE, EFAULT, EFAULT },
		{ HOLE, EFAULT, EFAULT },
	};

	for (size_t row = 0; row < sizeof(rows) / sizeof(rows[0]); row++) {
		char *start = mapped(rows[row].middle);
		int reads = registered(start, PAGES * PAGE, IBV_ACCESS_REMOTE_READ, NULL);
		int writes = registered(start, PAGES * PAGE, WRITES, NULL);

		if (reads != rows[row].reads || writes != rows[row].writes) {
			fprintf(stderr, "row %zu: errno %d to read, %d to write\n", row, reads, writes);
			exit(1);
		}
		CHECK(registered(start, PAGE, WRITES, NULL) == 0);
	}
}

/* A region that the device only reads does not become writable if its pages are not. */
static void again(void)
{
	char *start = mapped(PROT_READ);
	struct ibv_mr *mr;

	CHECK(registered(start, PAGES * PAGE, IBV_ACCESS_REMOTE_READ, &mr) == 0);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, WRITES));
	CHECK(errno == EFAULT);
	CHECK(!mprotect(start + PAGE, PAGE, RW));
	CHECK(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, WRITES));
	CHECK(!ibv_dereg_mr(mr));
}

static void limit_to(rlim_t bytes)
{
	struct rlimit limit = { bytes, bytes };

	CHECK(!setrlimit(RLIMIT_MEMLOCK, &limit));
}

static void capability(int has)
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct sets[2];

	CHECK(!syscall(SYS_capget, &header, sets));
	if (has)
		sets[0].effective |= sets[0].permitted & 1U << CAP_IPC_LOCK;
	else
		sets[0].effective &= ~(1U << CAP_IPC_LOCK);
	CHECK(!syscall(SYS_capset, &header, sets));
}

/* A page counts once for each registration. */
static void limit(void)
{
	char *start = mapped(RW);
	struct ibv_mr *first, *second;

	capability(0);
	limit_to(2 * PAGES * PAGE);
	CHECK(registered(start, PAGES * PAGE, WRITES, &first) == 0);
	CHECK(registered(start, PAGES * PAGE, WRITES, &second) == 0);
	CHECK(registered(start, 1, WRITES, NULL) == ENOMEM);
	CHECK(registered(start, PAGE, WRITES | IBV_ACCESS_ON_DEMAND, NULL) == 0);
	CHECK(!ibv_dereg_mr(first));
	CHECK(registered(start, PAGES * PAGE, WRITES, &first) == 0);
	if (geteuid() == 0) {
		capability(1);
		CHECK(registered(start, PAGES * PAGE, WRITES, NULL) == 0);
		capability(0);
	}
	CHECK(!ibv_dereg_mr(first));
	CHECK(!ibv_dereg_mr(second));
	limit_to(0);
	CHECK(registered(start, 1, WRITES, NULL) == EPERM);
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context;

	CHECK(list && list[0]);
	CHECK(context = ibv_open_device(list[0]));
	CHECK(pd = ibv_alloc_pd(context));
	pages();
	again();
	limit();
	puts("ok");
	return 0;
}
