/*
 * The device library at the receiver: probes, and the entry point for them.
 */
#include <doca_pcc_np_dev.h>

#include "pcc_dev.h"

__attribute__((weak)) doca_pcc_dev_error_t
doca_pcc_dev_np_user_packet_handler(struct doca_pcc_np_dev_request_packet *in, struct doca_pcc_np_dev_response_packet *out);

static uint8_t *at(const struct doca_pcc_np_dev_request_packet *input, uint32_t offset)
{
	return (uint8_t *)(uintptr_t)input->bytes + offset;
}

uint8_t *doca_pcc_np_dev_get_raw_packet(const struct doca_pcc_np_dev_request_packet *input)
{
	return at(input, 0);
}

size_t doca_pcc_np_dev_get_raw_packet_size(const struct doca_pcc_np_dev_request_packet *input)
{
	return input->size;
}

uint8_t *doca_pcc_np_dev_get_l4_header(const struct doca_pcc_np_dev_request_packet *input)
{
	return at(input, input->l4);
}

size_t doca_pcc_np_dev_get_l4_size(const struct doca_pcc_np_dev_request_packet *input)
{
	return input->size - input->l4;
}

uint8_t *doca_pcc_np_dev_get_payload(const struct doca_pcc_np_dev_request_packet *input)
{
	return at(input, input->payload);
}

size_t doca_pcc_np_dev_get_payload_size(const struct doca_pcc_np_dev_request_packet *input)
{
	return input->size - input->payload;
}

uint8_t doca_pcc_np_dev_get_port_num(const struct doca_pcc_np_dev_request_packet *input)
{
	return input->port;
}

uint8_t doca_pcc_np_dev_get_plane_num(const struct doca_pcc_np_dev_request_packet *input)
{
	return input->plane;
}

size_t doca_pcc_np_dev_get_max_response_size(struct doca_pcc_np_dev_response_packet *out)
{
	(void)out;
	return PCC_RESPONSE_BYTES;
}

/* Answers a probe. Returns a status. */
PCC_ENTRY uint64_t __pcc_np_packet(uint64_t address)
{
	struct doca_pcc_np_dev_request_packet *packet = (struct doca_pcc_np_dev_request_packet *)(uintptr_t)address;
	struct doca_pcc_np_dev_response_packet out = {PCC_RESPONSE_BYTES, packet->response};

	if (doca_pcc_dev_np_user_packet_handler == NULL)
		return pcc_refuse("the program has no doca_pcc_dev_np_user_packet_handler()");
	for (uint32_t i = 0; i < PCC_RESPONSE_BYTES; i++)
		packet->response[i] = 0;
	return doca_pcc_dev_np_user_packet_handler(packet, &out);
}
