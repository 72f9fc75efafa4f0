/*
 * Programmable congestion control: layout of events, attributes and contexts. The words of an event are big-endian; read them
 * with the functions of doca_pcc_dev_event.h. Bit fields begin with the lowest bit of the swapped word.
 */
#ifndef DOCA_PCC_DEV_DATA_STRUCTURES_H_
#define DOCA_PCC_DEV_DATA_STRUCTURES_H_

#include <doca_pcc_dev_common.h>

/* Type, subtype, port and flags of an event. */
typedef struct {
	uint32_t ev_type : 8;
	uint32_t ev_subtype : 8;
#if __NV_DPA >= __NV_DPA_CX8
	uint32_t port_num : 4;
	uint32_t plane_num : 4;
#else
	uint32_t port_num : 8;
#endif
	uint32_t flags : 8;
} doca_pcc_dev_event_general_attr_t;

/* What was sent since the last TX event. */
typedef struct {
	uint32_t sent_32bytes : 16;
	uint32_t sent_pkts : 16;
} doca_pcc_dev_roce_tx_cntrs_t;

typedef struct {
	uint32_t num_coalesced : 16;
	uint32_t : 16;
} doca_pcc_dev_ack_nack_cnp_extra_t;

/* Queue pair of the flow: in TX events of BlueField-3, in each event of ConnectX-8. */
typedef struct {
	uint32_t flow_qpn : 24;
	uint32_t ttl_hoplimit : 8;
} doca_pcc_dev_event_flow_t;

#if __NV_DPA >= __NV_DPA_CX8
/* Words of an RTT event: the times have 28 bits. */
typedef struct {
	uint32_t : 2;
	uint32_t send_plane : 2;
	uint32_t req_send_timestamp : 28;
} doca_pcc_dev_rtt_spec_data0_t;

typedef struct {
	uint32_t port_type : 4;
	uint32_t req_recv_timestamp : 28;
} doca_pcc_dev_rtt_spec_data1_t;

typedef struct {
	uint32_t version : 4;
	uint32_t np_rx_port_counter : 28;
} doca_pcc_dev_rtt_spec_data3_t;
#endif

typedef struct doca_pcc_dev_event {
#if __NV_DPA >= __NV_DPA_CX8
	uint8_t reserved[8];
	uint32_t ev_dword2;
#else
	uint8_t reserved[12];
#endif
	uint32_t ev_attr;
	uint32_t flow_tag;
	uint32_t sn;
	uint32_t timestamp;
	union {
		struct {
			uint32_t first_timestamp;
			uint32_t cntrs;
			uint32_t extra;
		} roce_tx;
		struct {
			uint32_t first_timestamp;
			uint32_t first_sn;
			uint32_t extra;
		} ack_nack_cnp;
		struct {
			uint32_t req_send_timestamp;
			uint32_t req_recv_timestamp;
			uint32_t resp_send_timestamp;
			uint32_t data3;
		} rtt_tstamp;
		struct {
			uint32_t data[3];
		} fw_data;
		uint8_t raw[16];
	} ev_spec_attr;
} doca_pcc_dev_event_t;

typedef struct {
	uint32_t algo_slot : 4;
	uint32_t overload : 1;
	uint32_t : 27;
} doca_pcc_dev_attr_t;

/* What an algorithm keeps about a flow; zero for a new one. */
typedef struct {
	uint32_t data[12];
} doca_pcc_dev_algo_ctxt_t;

_Static_assert(sizeof(doca_pcc_dev_event_t) == 44, "11 words");
_Static_assert(sizeof(doca_pcc_dev_algo_ctxt_t) == 48, "12 words");

#endif
