/*
 * Writes what each getter returns for an event into the context and the results, by the number in the flow tag.
 */
#include <doca_pcc_dev_algo_access.h>

void doca_pcc_dev_user_init(uint32_t *disable_event_bitmask)
{
	*disable_event_bitmask = 0x80000010;
}

doca_pcc_dev_error_t doca_pcc_dev_user_set_algo_params(uint32_t port_num, uint32_t algo_slot, uint32_t param_id_base,
						       uint32_t param_num, const uint32_t *new_param_values, uint32_t *params)
{
	(void)port_num, (void)algo_slot, (void)param_id_base, (void)param_num, (void)new_param_values, (void)params;
	return DOCA_PCC_DEV_STATUS_FAIL;
}

void doca_pcc_dev_user_algo(doca_pcc_dev_algo_ctxt_t *ctxt, doca_pcc_dev_event_t *event, const doca_pcc_dev_attr_t *attr,
			    doca_pcc_dev_results_t *results)
{
	doca_pcc_dev_event_general_attr_t about = doca_pcc_dev_get_ev_attr(event);
	uint32_t *to = ctxt->data;

	results->rate = about.ev_type | about.ev_subtype << 8 | about.port_num << 16;
	results->rtt_req = about.flags;
	results->probe_type_slot = attr->algo_slot | attr->overload << 4;
	results->credits = doca_pcc_dev_get_flow_qpn(event);
	results->reload_credits = doca_pcc_dev_get_ttl_hoplimit(event);
	to[0] = doca_pcc_dev_get_flowtag(event);
	to[1] = doca_pcc_dev_get_sn(event);
	to[2] = doca_pcc_dev_get_timestamp(event);
	switch (about.ev_type) {
	case DOCA_PCC_DEV_EVNT_FW:
		for (int i = 0; i < 3; i++)
			to[3 + i] = doca_pcc_dev_get_fw_settings(event, i);
		break;
	case DOCA_PCC_DEV_EVNT_ROCE_TX:
		to[3] = doca_pcc_dev_get_roce_first_timestamp(event);
		to[4] = doca_pcc_dev_get_roce_tx_cntrs(event).sent_32bytes;
		to[5] = doca_pcc_dev_get_roce_tx_cntrs(event).sent_pkts;
		break;
	case DOCA_PCC_DEV_EVNT_RTT:
		to[3] = doca_pcc_dev_get_rtt_req_send_timestamp(event);
		to[4] = doca_pcc_dev_get_rtt_req_recv_timestamp(event);
		to[5] = doca_pcc_dev_get_rtt_resp_send_timestamp(event);
		__builtin_memcpy(&to[6], doca_pcc_dev_get_rtt_raw_data(event), 12);
		to[9] = (uint32_t)doca_pcc_dev_get_rtt_raw_data_size(event);
		to[10] = doca_pcc_dev_get_rtt_np_rx_byte_counter(event);
		to[11] = doca_pcc_dev_get_rtt_resp_version(event);
		break;
	default:
		to[3] = doca_pcc_dev_get_roce_first_timestamp(event);
		to[4] = doca_pcc_dev_get_roce_ack_first_sn(event);
		to[5] = doca_pcc_dev_get_ack_nack_cnp_extra(event).num_coalesced;
		break;
	}
}
