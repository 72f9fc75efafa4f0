/*
 * Arithmetic, messages and services: the flow tag is the operation, and the sequence number and time are the operands.
 */
#include <doca_pcc_dev_algo_access.h>

static uint32_t ids[2], values[2];

void doca_pcc_dev_user_port_info_changed(uint32_t portid)
{
	ids[0] = DOCA_PCC_DEV_GET_PORT_COUNTER_ID(portid, DOCA_PCC_DEV_NIC_COUNTER_TYPE_RX_BYTES, 0);
	ids[1] = DOCA_PCC_DEV_GET_PORT_COUNTER_ID(portid, DOCA_PCC_DEV_NIC_COUNTER_TYPE_TX_BYTES, 0);
	doca_pcc_dev_nic_counters_config(ids, 2, values);
}

void doca_pcc_dev_user_init(uint32_t *disable_event_bitmask)
{
	*disable_event_bitmask = 0;
	doca_pcc_dev_printf("%s: %d %5u|%-5u|%05d %x %#X %lu %lld %c%c %.3s %p %%\n", __func__, -7, 42u, 42u, -42, 0xbeefu,
			    0xbeefu, 1ul << 40, -(1ll << 40), 'o', 'k', "abcdef", (void *)0x10);
	doca_pcc_dev_trace_5(3, 1, 2, 3, 4, 1ull << 63);
	doca_pcc_dev_trace_flush();
}

doca_pcc_dev_error_t doca_pcc_dev_user_set_algo_params(uint32_t port_num, uint32_t algo_slot, uint32_t param_id_base,
						       uint32_t param_num, const uint32_t *new_param_values, uint32_t *params)
{
	(void)port_num, (void)algo_slot, (void)param_id_base, (void)param_num, (void)new_param_values, (void)params;
	return DOCA_PCC_DEV_STATUS_OK;
}

doca_pcc_dev_error_t doca_pcc_dev_user_mailbox_handle(void *request, uint32_t request_size, uint32_t max_response_size,
						      void *response, uint32_t *response_size)
{
	if (request_size == 0)
		return DOCA_PCC_DEV_STATUS_FAIL;
	for (uint32_t i = 0; i < request_size && i < max_response_size; i++)
		((uint8_t *)response)[i] = ((uint8_t *)request)[request_size - 1 - i];
	*response_size = request_size;
	return DOCA_PCC_DEV_STATUS_OK;
}

void doca_pcc_dev_user_algo(doca_pcc_dev_algo_ctxt_t *ctxt, doca_pcc_dev_event_t *event, const doca_pcc_dev_attr_t *attr,
			    doca_pcc_dev_results_t *results)
{
	uint32_t a = doca_pcc_dev_get_sn(event), b = doca_pcc_dev_get_timestamp(event);
	uint32_t *to = ctxt->data, header[2] = {a, b};

	(void)attr;
	to[0] = doca_pcc_dev_fls(a);
	to[1] = (uint32_t)doca_pcc_dev_mult(a, b);
	to[2] = (uint32_t)(doca_pcc_dev_mult(a, b) >> 32);
	to[3] = doca_pcc_dev_fxp_mult(a, b);
	to[4] = doca_pcc_dev_fxp_recip(a);
	to[5] = doca_pcc_dev_fxp_pow2(a);
	to[6] = doca_pcc_dev_fxp_log2(a);
	doca_pcc_dev_nic_counters_sample();
	to[7] = values[0];
	to[8] = values[1];
	to[9] = doca_pcc_dev_get_timer_lo();
	to[10] = doca_pcc_dev_get_port_speed(0) | doca_pcc_dev_get_logical_ports() << 16 |
		 doca_pcc_dev_get_port_planes(0) << 24 | doca_pcc_dev_thread_rank() << 28;
	to[11] = doca_pcc_dev_custom_header_set(ctxt, event, header, 2, 1) |
		 doca_pcc_dev_custom_header_set(ctxt, event, header, 17, 0) << 1 |
		 doca_pcc_dev_probe_prio_set(ctxt, event, 1, 5, 0) << 2 |
		 doca_pcc_dev_probe_prio_set(ctxt, event, 1, 8, 0) << 3;
	results->rate = DOCA_PCC_DEV_DEFAULT_RATE;
}
