/*
 * Programmable congestion control at the receiver: the user's code answers probes.
 */
#ifndef DOCA_PCC_NP_DEV_H_
#define DOCA_PCC_NP_DEV_H_

#include <doca_pcc_dev_common.h>
#include <doca_pcc_dev_services.h>
#include <doca_pcc_dev_utils.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The bytes of the answer that the user may set, zero before: 12 at most. */
struct doca_pcc_np_dev_response_packet {
	size_t size;
	uint8_t *data;
};

/* A probe that arrived. */
struct doca_pcc_np_dev_request_packet;

/* Of the user: handles a probe. With OK, the answer is sent. */
doca_pcc_dev_error_t doca_pcc_dev_np_user_packet_handler(struct doca_pcc_np_dev_request_packet *in,
							 struct doca_pcc_np_dev_response_packet *out);

/* The probe from its Ethernet header, from its UDP header, and from the end of the management header, and the bytes from
 * there. Nothing is swapped. */
uint8_t *doca_pcc_np_dev_get_raw_packet(const struct doca_pcc_np_dev_request_packet *input);
size_t doca_pcc_np_dev_get_raw_packet_size(const struct doca_pcc_np_dev_request_packet *input);
uint8_t *doca_pcc_np_dev_get_l4_header(const struct doca_pcc_np_dev_request_packet *input);
size_t doca_pcc_np_dev_get_l4_size(const struct doca_pcc_np_dev_request_packet *input);
uint8_t *doca_pcc_np_dev_get_payload(const struct doca_pcc_np_dev_request_packet *input);
size_t doca_pcc_np_dev_get_payload_size(const struct doca_pcc_np_dev_request_packet *input);

/* Port and plane on which it arrived. */
uint8_t doca_pcc_np_dev_get_port_num(const struct doca_pcc_np_dev_request_packet *input);
uint8_t doca_pcc_np_dev_get_plane_num(const struct doca_pcc_np_dev_request_packet *input);

/* Bytes that the answer may have. */
size_t doca_pcc_np_dev_get_max_response_size(struct doca_pcc_np_dev_response_packet *out);

#ifdef __cplusplus
}
#endif

#endif
