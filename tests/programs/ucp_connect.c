/* UCP endpoints by socket address: "ucp_connect ADDRESS PORT server" waits for a client and sends every byte back,
 * "ucp_connect ADDRESS PORT client BYTES [ROUNDS]" sends BYTES in each round, others each time, and compares what comes back.
 * UCX's connection manager is chosen by UCX_SOCKADDR_TLS_PRIORITY. The client prints "same" and the number of rounds. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucp/api/ucp.h>

enum { MOST = 1 << 21 };

static ucp_worker_h worker;
static ucp_conn_request_h requested;
static ucs_status_t broken;
/* The client may close at any time, because it has everything. */
static int may_end;

static void stop(const char *what, ucs_status_t status)
{
	fprintf(stderr, "%s: %s\n", what, ucs_status_string(status));
	exit(1);
}

static void on_request(ucp_conn_request_h request, void *arg)
{
	(void)arg;
	requested = request;
}

static void on_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
	(void)arg;
	(void)ep;
	broken = status;
}

static void finish(const char *what, ucs_status_ptr_t request)
{
	ucs_status_t status = UCS_PTR_STATUS(request);

	if (UCS_PTR_IS_PTR(request)) {
		do {
			ucp_worker_progress(worker);
			if (broken && may_end)
				exit(0);
			if (broken)
				stop(what, broken);
			status = ucp_request_check_status(request);
		} while (status == UCS_INPROGRESS);
		ucp_request_free(request);
	}
	if (status)
		stop(what, status);
}

static void move(ucp_ep_h ep, unsigned char *bytes, size_t length, int sends)
{
	ucp_request_param_t param = {.op_attr_mask = 0};

	finish(sends ? "send" : "receive",
	       sends ? ucp_tag_send_nbx(ep, bytes, length, 7, &param)
		     : ucp_tag_recv_nbx(worker, bytes, length, 7, -1, &param));
}

static ucp_ep_h connect_to(struct sockaddr_in *address, int is_server)
{
	ucp_ep_params_t param = {.field_mask = UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
				 .err_mode = UCP_ERR_HANDLING_MODE_PEER,
				 .err_handler = {.cb = on_error}};
	ucp_ep_h ep;
	ucs_status_t status;

	if (is_server) {
		ucp_listener_params_t listen = {
			.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
			.sockaddr = {.addr = (struct sockaddr *)address, .addrlen = sizeof *address},
			.conn_handler = {.cb = on_request}};
		ucp_listener_h listener;

		status = ucp_listener_create(worker, &listen, &listener);
		if (status)
			stop("listen", status);
		puts("listening");
		fflush(stdout);
		while (!requested)
			ucp_worker_progress(worker);
		param.field_mask |= UCP_EP_PARAM_FIELD_CONN_REQUEST;
		param.conn_request = requested;
	} else {
		param.field_mask |= UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
		param.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
		param.sockaddr.addr = (struct sockaddr *)address;
		param.sockaddr.addrlen = sizeof *address;
	}
	status = ucp_ep_create(worker, &param, &ep);
	if (status)
		stop("endpoint", status);
	return ep;
}

int main(int count, char **words)
{
	ucp_params_t features = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG};
	ucp_worker_params_t single = {.field_mask = 0};
	ucp_request_param_t close_param = {.op_attr_mask = 0};
	struct sockaddr_in address = {.sin_family = AF_INET};
	unsigned char *sent = malloc(MOST), *got = malloc(MOST);
	size_t length = 0, rounds = 1;
	ucp_context_h context;
	ucs_status_t status;
	ucp_ep_h ep;
	int is_server;

	if (count < 4 || !sent || !got)
		return 2;
	is_server = !strcmp(words[3], "server");
	inet_pton(AF_INET, words[1], &address.sin_addr);
	address.sin_port = htons(atoi(words[2]));
	status = ucp_init(&features, NULL, &context);
	if (status)
		stop("init", status);
	status = ucp_worker_create(context, &single, &worker);
	if (status)
		stop("worker", status);
	ep = connect_to(&address, is_server);
	if (!is_server)
		length = atoi(words[4]);
	if (count > 5)
		rounds = atoi(words[5]);
	while (is_server) {
		move(ep, (unsigned char *)&length, sizeof length, 0);
		may_end = 1;
		if (!length) {
			while (!broken)
				ucp_worker_progress(worker);
			return 0;
		}
		move(ep, got, length, 0);
		move(ep, got, length, 1);
	}
	for (size_t round = 0; round < rounds; round++) {
		for (size_t i = 0; i < length; i++) {
			sent[i] = (i + round) * 7 + (i >> 8) * (round | 1);
			got[i] = ~sent[i];
		}
		move(ep, (unsigned char *)&length, sizeof length, 1);
		move(ep, sent, length, 1);
		move(ep, got, length, 0);
		if (memcmp(sent, got, length))
			return 3;
	}
	length = 0;
	move(ep, (unsigned char *)&length, sizeof length, 1);
	printf("same %zu\n", rounds);
	finish("close", ucp_ep_close_nbx(ep, &close_param));
	return 0;
}
