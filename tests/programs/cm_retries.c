/* A side of a connection through stock librdmacm, with its own number of retries for a receiver that is not ready.
 *
 *   listen ADDRESS PORT | accept RNR_RETRIES | connect ADDRESS PORT RNR_RETRIES
 *   attributes | send VALUE | receive | drain | poll
 *
 * A side sends and receives messages of 8 bytes. `poll` waits for a completion, `drain` does not.
 */
#define _GNU_SOURCE
#include "agent.h"

#include <rdma/rdma_verbs.h>

enum { RECEIVE = 1, SEND = 2 };

static struct rdma_cm_id *listener, *id;
static struct ibv_mr *region;
static uint64_t memory[2]; /* received and sent */

static struct rdma_cm_id *endpoint(char **words, int flags)
{
	struct rdma_addrinfo hints = {.ai_flags = flags, .ai_port_space = RDMA_PS_TCP}, *found;
	struct ibv_qp_init_attr queues = {
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1};
	struct rdma_cm_id *made;
	int bad;

	if (rdma_getaddrinfo(words[1], words[2], &hints, &found))
		return NULL;
	bad = rdma_create_ep(&made, found, NULL, &queues);
	rdma_freeaddrinfo(found);
	return bad ? NULL : made;
}

static void listen_at(char **words)
{
	listener = endpoint(words, RAI_PASSIVE | RAI_NUMERICHOST);
	if (!listener || rdma_listen(listener, 1))
		failed("rdma_listen");
	else
		answer("ok");
}

static int registered(void)
{
	region = rdma_reg_msgs(id, memory, sizeof memory);
	return region ? 0 : -1;
}

static struct rdma_conn_param with(const char *retries)
{
	return (struct rdma_conn_param){.retry_count = 7, .rnr_retry_count = number(retries)};
}

static void accept_one(char **words)
{
	struct rdma_conn_param param = with(words[1]);

	if (rdma_get_request(listener, &id) || registered() || rdma_accept(id, &param))
		failed("rdma_accept");
	else
		answer("ok");
}

static void connect_to(char **words)
{
	struct rdma_conn_param param = with(words[3]);

	id = endpoint(words, RAI_NUMERICHOST);
	if (!id || registered() || rdma_connect(id, &param))
		failed("rdma_connect");
	else
		answer("ok");
}

static void attributes(void)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	if (ibv_query_qp(id->qp, &attr, IBV_QP_MIN_RNR_TIMER | IBV_QP_RNR_RETRY, &init))
		failed("ibv_query_qp");
	else
		answer("ok timer=%u retries=%u", attr.min_rnr_timer, attr.rnr_retry);
}

static void done(const char *what, int bad)
{
	if (bad)
		failed(what);
	else
		answer("ok");
}

static void poll_queues(int wait)
{
	struct ibv_cq *queues[] = {id->send_cq, id->recv_cq};
	struct ibv_wc wc;
	int read;

	do {
		for (int i = 0; i < 2; i++) {
			read = ibv_poll_cq(queues[i], 1, &wc);
			if (read < 0)
				failed("ibv_poll_cq");
			else if (read)
				answer("ok read=1 status=%d kind=%llu value=%llu", wc.status, (unsigned long long)wc.wr_id,
				       (unsigned long long)memory[0]);
			if (read)
				return;
		}
	} while (wait);
	answer("ok read=0");
}

static void carry_out(char **words)
{
	const char *name = words[0];

	if (!strcmp(name, "listen")) {
		listen_at(words);
	} else if (!strcmp(name, "accept")) {
		accept_one(words);
	} else if (!strcmp(name, "connect")) {
		connect_to(words);
	} else if (!strcmp(name, "attributes")) {
		attributes();
	} else if (!strcmp(name, "send")) {
		memory[1] = number(words[1]);
		done("rdma_post_send", rdma_post_send(id, (void *)SEND, &memory[1], 8, region, 0));
	} else if (!strcmp(name, "receive")) {
		done("rdma_post_recv", rdma_post_recv(id, (void *)RECEIVE, &memory[0], 8, region));
	} else if (!strcmp(name, "poll") || !strcmp(name, "drain")) {
		poll_queues(*name == 'p');
	} else {
		answer("error no such command: %s", name);
	}
}

int main(void)
{
	return take_commands(carry_out);
}
