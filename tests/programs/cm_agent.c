/* Writes commands to /dev/infiniband/rdma_cm as a kernel gets them, one per line on standard input. FILE and ID count
 * what the agent has opened and created; ADDRESS is IPv4. The answer to a refused command is "error WHAT: WHY".
 *
 *   open | close FILE | create FILE PORT_SPACE | destroy FILE ID | bind FILE ID ADDRESS PORT | listen FILE ID BACKLOG
 *   resolve FILE ID ADDRESS PORT TIMEOUT_MS | route FILE ID TIMEOUT_MS | connect FILE ID BYTES [INVALID]
 *   accept FILE ID BYTES | establish FILE ID | reject FILE ID BYTES REASON | disconnect FILE ID | attributes FILE ID STATE
 *   option FILE ID LEVEL NAME VALUE BYTES | migrate FILE ID FROM | event FILE WAIT_MS | raw FILE COMMAND IN OUT BYTES
 *   child FILE | cancel FILE | join FILE ID ADDRESS FLAGS | leave FILE MEMBERSHIP
 */
#define _GNU_SOURCE
#include "agent.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_user_cm.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FILES = 16 };

static int files[FILES];
static unsigned opened;

/* A command with its header. The answer's address is the first or the second word of its structure. */
#define CALL(file, number, structure, room) call(file, number, &(structure), sizeof(structure), room)

static int call(int file, unsigned number, const void *structure, size_t bytes, size_t room)
{
	char buffer[512];
	struct rdma_ucm_cmd_hdr header = {.cmd = number, .in = bytes, .out = room};
	ssize_t written;

	memcpy(buffer, &header, sizeof header);
	memcpy(buffer + sizeof header, structure, bytes);
	written = write(file, buffer, sizeof header + bytes);
	if (written == (ssize_t)(sizeof header + bytes))
		return 0;
	if (written >= 0)
		errno = EPROTO;
	return -1;
}

static int file_of(const char *word)
{
	return files[place(word, opened)];
}

static void done(const char *what, int result)
{
	if (result)
		failed(what);
	else
		answer("ok");
}

static struct sockaddr_in ip(const char *address, const char *port)
{
	struct sockaddr_in ip = {.sin_family = AF_INET, .sin_port = htons(number(port))};

	if (inet_pton(AF_INET, address, &ip.sin_addr) != 1) {
		answer("error not an address: %s", address);
		exit(2);
	}
	return ip;
}

static void open_file(void)
{
	int file = open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC);

	if (file < 0 || opened == FILES) {
		failed("open");
		return;
	}
	files[opened++] = file;
	answer("ok file=%u", opened - 1);
}

/* Names of identifiers in events are their numbers plus 1, as 0 is no name. */
static void create(char **words)
{
	static uint64_t named;
	struct rdma_ucm_create_id_resp made;
	struct rdma_ucm_create_id ask = {
		.uid = ++named, .response = (uintptr_t)&made, .ps = number(words[2]), .qp_type = 2};

	if (CALL(file_of(words[1]), RDMA_USER_CM_CMD_CREATE_ID, ask, sizeof made))
		failed("create");
	else
		answer("ok id=%u uid=%llu", made.id, (unsigned long long)ask.uid);
}

static void destroy(char **words)
{
	struct rdma_ucm_destroy_id_resp gone;
	struct rdma_ucm_destroy_id ask = {.response = (uintptr_t)&gone, .id = number(words[2])};

	if (CALL(file_of(words[1]), RDMA_USER_CM_CMD_DESTROY_ID, ask, sizeof gone))
		failed("destroy");
	else
		answer("ok events=%u", gone.events_reported);
}

static void bind_to(char **words)
{
	struct sockaddr_in address = ip(words[3], words[4]);
	struct rdma_ucm_bind ask = {.id = number(words[2]), .addr_size = sizeof address};

	memcpy(&ask.addr, &address, sizeof address);
	done("bind", CALL(file_of(words[1]), RDMA_USER_CM_CMD_BIND, ask, 0));
}

static void resolve(char **words)
{
	struct sockaddr_in address = ip(words[3], words[4]);
	struct rdma_ucm_resolve_addr ask = {
		.id = number(words[2]), .timeout_ms = number(words[5]), .dst_size = sizeof address};

	memcpy(&ask.dst_addr, &address, sizeof address);
	done("resolve", CALL(file_of(words[1]), RDMA_USER_CM_CMD_RESOLVE_ADDR, ask, 0));
}

static void fill(struct rdma_ucm_conn_param *param, const char *bytes)
{
	param->private_data_len = number(bytes);
	memset(param->private_data, 'p', param->private_data_len);
	param->qp_num = 0x77;
	param->responder_resources = 3;
	param->initiator_depth = 5;
	param->retry_count = 7;
	param->valid = 1;
}

static void start(char **words)
{
	struct rdma_ucm_connect ask = {.id = number(words[2])};

	fill(&ask.conn_param, words[3]);
	if (words[4])
		ask.conn_param.valid = 0;
	done("connect", CALL(file_of(words[1]), RDMA_USER_CM_CMD_CONNECT, ask, 0));
}

static void take(char **words)
{
	struct rdma_ucm_accept ask = {.uid = 1000, .id = number(words[2])};

	if (words[3])
		fill(&ask.conn_param, words[3]);
	done("accept", CALL(file_of(words[1]), RDMA_USER_CM_CMD_ACCEPT, ask, 0));
}

static void refuse(char **words)
{
	struct rdma_ucm_reject ask = {
		.id = number(words[2]), .private_data_len = number(words[3]), .reason = number(words[4])};

	memset(ask.private_data, 'r', ask.private_data_len);
	done("reject", CALL(file_of(words[1]), RDMA_USER_CM_CMD_REJECT, ask, 0));
}

/* Commands with two numbers. */
static void two(const char *what, unsigned command, char **words)
{
	uint32_t ask[2] = {number(words[2]), words[3] ? number(words[3]) : 0};
	size_t bytes = command == RDMA_USER_CM_CMD_DISCONNECT ? 4 : 8;

	done(what, call(file_of(words[1]), command, ask, bytes, 0));
}

static void attributes(char **words)
{
	struct ib_uverbs_qp_attr found;
	struct rdma_ucm_init_qp_attr ask = {
		.response = (uintptr_t)&found, .id = number(words[2]), .qp_state = number(words[3])};

	if (CALL(file_of(words[1]), RDMA_USER_CM_CMD_INIT_QP_ATTR, ask, sizeof found))
		failed("attributes");
	else
		answer("ok mask=%u dest=%u", found.qp_attr_mask, found.dest_qp_num);
}

static void option(char **words)
{
	uint32_t value = number(words[5]);
	struct rdma_ucm_set_option ask = {.optval = (uintptr_t)&value,
					  .id = number(words[2]),
					  .level = number(words[3]),
					  .optname = number(words[4]),
					  .optlen = number(words[6])};

	done("option", CALL(file_of(words[1]), RDMA_USER_CM_CMD_SET_OPTION, ask, 0));
}

static void migrate(char **words)
{
	struct rdma_ucm_migrate_resp moved;
	struct rdma_ucm_migrate_id ask = {
		.response = (uintptr_t)&moved, .id = number(words[2]), .fd = file_of(words[3])};

	if (CALL(file_of(words[1]), RDMA_USER_CM_CMD_MIGRATE_ID, ask, sizeof moved))
		failed("migrate");
	else
		answer("ok events=%u", moved.events_reported);
}

static void event(char **words)
{
	struct rdma_ucm_event_resp got;
	struct rdma_ucm_get_event ask = {.response = (uintptr_t)&got};
	struct pollfd wait = {.fd = file_of(words[1]), .events = POLLIN};
	int ready = poll(&wait, 1, number(words[2]));

	if (ready <= 0) {
		answer("ok kind=none");
		return;
	}
	if (CALL(wait.fd, RDMA_USER_CM_CMD_GET_EVENT, ask, sizeof got)) {
		failed("event");
		return;
	}
	answer("ok kind=%u status=%d id=%u uid=%llu bytes=%u first=%u qp=%u qkey=%u lid=%u", got.event, (int)got.status, got.id,
	       (unsigned long long)got.uid, got.param.conn.private_data_len, got.param.conn.private_data[0],
	       got.param.conn.qp_num, got.param.ud.qkey, got.param.ud.ah_attr.dlid);
}

/* An IPv4 group. */
static void join(char **words)
{
	static uint64_t named = 2000;
	struct sockaddr_in address = ip(words[3], "0");
	struct rdma_ucm_create_id_resp made;
	struct rdma_ucm_join_mcast ask = {.response = (uintptr_t)&made,
					  .uid = ++named,
					  .id = number(words[2]),
					  .addr_size = sizeof address,
					  .join_flags = number(words[4])};

	memcpy(&ask.addr, &address, sizeof address);
	if (CALL(file_of(words[1]), RDMA_USER_CM_CMD_JOIN_MCAST, ask, sizeof made))
		failed("join");
	else
		answer("ok id=%u uid=%llu", made.id, (unsigned long long)ask.uid);
}

static void leave(char **words)
{
	struct rdma_ucm_destroy_id_resp gone;
	struct rdma_ucm_destroy_id ask = {.response = (uintptr_t)&gone, .id = number(words[2])};

	if (CALL(file_of(words[1]), RDMA_USER_CM_CMD_LEAVE_MCAST, ask, sizeof gone))
		failed("leave");
	else
		answer("ok events=%u", gone.events_reported);
}

/* A command of any form. */
static void raw(char **words)
{
	char buffer[512] = {0};
	struct rdma_ucm_cmd_hdr header = {
		.cmd = number(words[2]), .in = number(words[3]), .out = number(words[4])};
	size_t bytes = number(words[5]);

	memcpy(buffer, &header, sizeof header);
	done("raw", write(file_of(words[1]), buffer, bytes) == (ssize_t)bytes ? 0 : -1);
}

/* A child uses the file, closes it and ends. The parent's file is unaffected. */
static void child(char **words)
{
	int status, file = file_of(words[1]);
	pid_t pid = fork();

	if (pid == 0) {
		struct rdma_ucm_create_id_resp made;
		struct rdma_ucm_create_id ask = {
			.uid = 500, .response = (uintptr_t)&made, .ps = RDMA_PS_TCP, .qp_type = 2};
		int bad = CALL(file, RDMA_USER_CM_CMD_CREATE_ID, ask, sizeof made);

		close(file);
		_exit(bad ? 1 : 0);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid || status)
		answer("error child: status %d", status);
	else
		answer("ok");
}

static void *wait_without_end(void *file)
{
	struct rdma_ucm_event_resp got;
	struct rdma_ucm_get_event ask = {.response = (uintptr_t)&got};

	CALL(*(int *)file, RDMA_USER_CM_CMD_GET_EVENT, ask, sizeof got);
	return NULL;
}

/* Cancels a thread that waits for an event, and one that waits in a write to a full pipe. */
static void *write_without_end(void *file)
{
	char bytes[4096] = {0};

	while (write(*(int *)file, bytes, sizeof bytes) > 0)
		;
	return NULL;
}

static void cancel(char **words)
{
	int file = file_of(words[1]), pipe_ends[2];
	struct timespec moment = {.tv_nsec = 100000000};
	pthread_t threads[2];
	void *results[2];

	if (pipe(pipe_ends) || pthread_create(&threads[0], NULL, wait_without_end, &file) ||
	    pthread_create(&threads[1], NULL, write_without_end, &pipe_ends[1])) {
		failed("thread");
		return;
	}
	nanosleep(&moment, NULL);
	for (int i = 0; i < 2; i++) {
		pthread_cancel(threads[i]);
		pthread_join(threads[i], &results[i]);
	}
	close(pipe_ends[0]);
	close(pipe_ends[1]);
	if (results[0] == PTHREAD_CANCELED && results[1] == PTHREAD_CANCELED)
		answer("ok");
	else
		answer("error cancel: a thread ended by itself");
}

static void carry_out(char **words)
{
	const char *name = words[0];

	if (!strcmp(name, "open"))
		open_file();
	else if (!strcmp(name, "close"))
		done("close", close(file_of(words[1])));
	else if (!strcmp(name, "create"))
		create(words);
	else if (!strcmp(name, "destroy"))
		destroy(words);
	else if (!strcmp(name, "bind"))
		bind_to(words);
	else if (!strcmp(name, "listen"))
		two("listen", RDMA_USER_CM_CMD_LISTEN, words);
	else if (!strcmp(name, "resolve"))
		resolve(words);
	else if (!strcmp(name, "route"))
		two("route", RDMA_USER_CM_CMD_RESOLVE_ROUTE, words);
	else if (!strcmp(name, "connect"))
		start(words);
	else if (!strcmp(name, "accept") || !strcmp(name, "establish"))
		take(words);
	else if (!strcmp(name, "reject"))
		refuse(words);
	else if (!strcmp(name, "disconnect"))
		two("disconnect", RDMA_USER_CM_CMD_DISCONNECT, words);
	else if (!strcmp(name, "attributes"))
		attributes(words);
	else if (!strcmp(name, "option"))
		option(words);
	else if (!strcmp(name, "migrate"))
		migrate(words);
	else if (!strcmp(name, "event"))
		event(words);
	else if (!strcmp(name, "join"))
		join(words);
	else if (!strcmp(name, "leave"))
		leave(words);
	else if (!strcmp(name, "raw"))
		raw(words);
	else if (!strcmp(name, "child"))
		child(words);
	else if (!strcmp(name, "cancel"))
		cancel(words);
	else
		answer("error no such command: %s", name);
}

int main(void)
{
	return take_commands(carry_out);
}
