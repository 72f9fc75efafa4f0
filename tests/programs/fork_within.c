/* A signal handler forks while its thread looks for the doorbell pages of a new queue, for tests/system/polling.rs. The
 * emulated device reads the list of mappings then; here that raises SIGABRT, which is never blocked. As the handlers that
 * start a debugger do. Prints "ok N" for N forks whose child and parent went on.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int is_armed, forks;

static void forked(int signal)
{
	pid_t child = fork();
	int status = -1;

	(void)signal;
	if (child == 0)
		_exit(0);
	if (waitpid(child, &status, 0) != child || status != 0)
		_exit(1);
	forks++;
}

int open64(const char *path, int flags, ...)
{
	static int (*real)(const char *, int, ...);
	va_list rest;
	mode_t mode;

	if (!real)
		real = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open64");
	va_start(rest, flags);
	mode = va_arg(rest, mode_t);
	va_end(rest);
	if (is_armed && !strcmp(path, "/proc/self/maps"))
		raise(SIGABRT);
	return real(path, flags, mode);
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 2, 2, 1, 1, 0 } };
	struct ibv_pd *pd;

	if (!context || !(pd = ibv_alloc_pd(context)))
		return 1;
	signal(SIGABRT, forked);
	is_armed = 1;
	init.send_cq = init.recv_cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	if (!init.send_cq || !ibv_create_qp(pd, &init))
		return 1;
	is_armed = 0;
	printf("ok %d\n", forks);
	return 0;
}
