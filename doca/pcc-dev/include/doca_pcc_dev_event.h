/*
 * Programmable congestion control: the fields of an event. Times are in nanoseconds, in 32 bits that wrap.
 */
#ifndef DOCA_PCC_DEV_EVENT_H_
#define DOCA_PCC_DEV_EVENT_H_

#include <doca_pcc_dev.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A word of the event in the order of the processor, as the structure TYPE. */
#define PCC_DEV_FIELDS(TYPE, WORD)                                                                                     \
	((union {                                                                                                      \
		uint32_t word;                                                                                         \
		TYPE fields;                                                                                           \
	}){.word = __builtin_bswap32(WORD)}                                                                            \
		 .fields)

/* Of all events. */
FORCE_INLINE doca_pcc_dev_event_general_attr_t doca_pcc_dev_get_ev_attr(doca_pcc_dev_event_t *event)
{
	return PCC_DEV_FIELDS(doca_pcc_dev_event_general_attr_t, event->ev_attr);
}

FORCE_INLINE uint32_t doca_pcc_dev_get_flowtag(doca_pcc_dev_event_t *event)
{
	return __builtin_bswap32(event->flow_tag);
}

FORCE_INLINE uint32_t doca_pcc_dev_get_sn(doca_pcc_dev_event_t *event)
{
	return __builtin_bswap32(event->sn);
}

FORCE_INLINE uint32_t doca_pcc_dev_get_timestamp(doca_pcc_dev_event_t *event)
{
	return __builtin_bswap32(event->timestamp);
}

/* Time to live or hop limit of the packet that arrived; 0 on BlueField-3. */
FORCE_INLINE uint32_t doca_pcc_dev_get_ttl_hoplimit(doca_pcc_dev_event_t *event)
{
#if __NV_DPA >= __NV_DPA_CX8
	return PCC_DEV_FIELDS(doca_pcc_dev_event_flow_t, event->ev_dword2).ttl_hoplimit;
#else
	(void)event;
	return 0;
#endif
}

/* Queue pair of the flow. BlueField-3 states it in TX events. */
FORCE_INLINE uint32_t doca_pcc_dev_get_flow_qpn(doca_pcc_dev_event_t *event)
{
#if __NV_DPA >= __NV_DPA_CX8
	return PCC_DEV_FIELDS(doca_pcc_dev_event_flow_t, event->ev_dword2).flow_qpn;
#else
	return PCC_DEV_FIELDS(doca_pcc_dev_event_flow_t, event->ev_spec_attr.roce_tx.extra).flow_qpn;
#endif
}

/* Of FW events: word N, 0 to 2. */
FORCE_INLINE uint32_t doca_pcc_dev_get_fw_settings(doca_pcc_dev_event_t *event, int n)
{
	return __builtin_bswap32(event->ev_spec_attr.fw_data.data[n]);
}

/* Of TX, ACK, NACK and CNP events: time of the first of those that the event stands for. */
FORCE_INLINE uint32_t doca_pcc_dev_get_roce_first_timestamp(doca_pcc_dev_event_t *event)
{
	return __builtin_bswap32(event->ev_spec_attr.ack_nack_cnp.first_timestamp);
}

/* Of TX events: what was sent. */
FORCE_INLINE doca_pcc_dev_roce_tx_cntrs_t doca_pcc_dev_get_roce_tx_cntrs(doca_pcc_dev_event_t *event)
{
	return PCC_DEV_FIELDS(doca_pcc_dev_roce_tx_cntrs_t, event->ev_spec_attr.roce_tx.cntrs);
}

/* Of ACK, NACK and CNP events: sequence number of the first, and their number. */
FORCE_INLINE uint32_t doca_pcc_dev_get_roce_ack_first_sn(doca_pcc_dev_event_t *event)
{
	return __builtin_bswap32(event->ev_spec_attr.ack_nack_cnp.first_sn);
}

FORCE_INLINE doca_pcc_dev_ack_nack_cnp_extra_t doca_pcc_dev_get_ack_nack_cnp_extra(doca_pcc_dev_event_t *event)
{
	return PCC_DEV_FIELDS(doca_pcc_dev_ack_nack_cnp_extra_t, event->ev_spec_attr.ack_nack_cnp.extra);
}

/* Of RTT events: the request left, it arrived, and the response left. On ConnectX-8 the lowest four bits have another
 * meaning. */
FORCE_INLINE uint32_t doca_pcc_dev_get_rtt_req_send_timestamp(doca_pcc_dev_event_t *event)
{
	return __builtin_bswap32(event->ev_spec_attr.rtt_tstamp.req_send_timestamp);
}

FORCE_INLINE uint32_t doca_pcc_dev_get_rtt_req_recv_timestamp(doca_pcc_dev_event_t *event)
{
	return __builtin_bswap32(event->ev_spec_attr.rtt_tstamp.req_recv_timestamp);
}

FORCE_INLINE uint32_t doca_pcc_dev_get_rtt_resp_send_timestamp(doca_pcc_dev_event_t *event)
{
	return __builtin_bswap32(event->ev_spec_attr.rtt_tstamp.resp_send_timestamp);
}

/* The bytes that the user's code at the receiver has put into the response, as they arrived, and their number. */
FORCE_INLINE unsigned char *doca_pcc_dev_get_rtt_raw_data(doca_pcc_dev_event_t *event)
{
	return event->ev_spec_attr.raw;
}

FORCE_INLINE size_t doca_pcc_dev_get_rtt_raw_data_size(doca_pcc_dev_event_t *event)
{
	(void)event;
	return 12;
}

/* Of RTT events on ConnectX-8: bytes that the receiver's port has received in units of 256, version of the response, and
 * type of the port. 0 on BlueField-3. */
FORCE_INLINE uint32_t doca_pcc_dev_get_rtt_np_rx_byte_counter(doca_pcc_dev_event_t *event)
{
#if __NV_DPA >= __NV_DPA_CX8
	return PCC_DEV_FIELDS(doca_pcc_dev_rtt_spec_data3_t, event->ev_spec_attr.rtt_tstamp.data3).np_rx_port_counter;
#else
	(void)event;
	return 0;
#endif
}

FORCE_INLINE uint32_t doca_pcc_dev_get_rtt_resp_version(doca_pcc_dev_event_t *event)
{
#if __NV_DPA >= __NV_DPA_CX8
	return PCC_DEV_FIELDS(doca_pcc_dev_rtt_spec_data3_t, event->ev_spec_attr.rtt_tstamp.data3).version;
#else
	(void)event;
	return 0;
#endif
}

FORCE_INLINE uint32_t doca_pcc_dev_get_rtt_resp_port_type(doca_pcc_dev_event_t *event)
{
#if __NV_DPA >= __NV_DPA_CX8
	uint32_t word = event->ev_spec_attr.rtt_tstamp.req_recv_timestamp;

	return PCC_DEV_FIELDS(doca_pcc_dev_rtt_spec_data1_t, word).port_type;
#else
	(void)event;
	return 0;
#endif
}

#ifdef __cplusplus
}
#endif

#endif
