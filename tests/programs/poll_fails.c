/* To be preloaded: the first poll of a single descriptor fails after the file exists that POLL_FAILS names, as if the
 * system had no memory for it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int poll(struct pollfd *fds, nfds_t count, int limit_ms)
{
	static atomic_flag failed = ATOMIC_FLAG_INIT;
	struct timespec limit = { .tv_sec = limit_ms / 1000, .tv_nsec = limit_ms % 1000 * 1000000L };
	const char *sign = getenv("POLL_FAILS");

	if (count == 1 && sign && access(sign, F_OK) == 0 && !atomic_flag_test_and_set(&failed)) {
		errno = ENOMEM;
		return -1;
	}
	return ppoll(fds, count, limit_ms < 0 ? NULL : &limit, NULL);
}
