/*
 * Programs that misbehave after some events, chosen by the macro CASE.
 */
#include <doca_pcc_dev_algo_access.h>

static uint32_t events;

void doca_pcc_dev_user_init(uint32_t *disable_event_bitmask)
{
	struct doca_pcc_dev_algo_meta_data about = {7, 1, 0, 0, 0};

	*disable_event_bitmask = 0;
	doca_pcc_dev_algo_init_metadata(0, &about, 0, 0);
	doca_pcc_dev_init_algo_slot(0, 0, 0, 1);
}

doca_pcc_dev_error_t doca_pcc_dev_user_set_algo_params(uint32_t port_num, uint32_t algo_slot, uint32_t param_id_base,
						       uint32_t param_num, const uint32_t *new_param_values, uint32_t *params)
{
	(void)port_num, (void)algo_slot, (void)param_id_base, (void)param_num, (void)new_param_values, (void)params;
	return DOCA_PCC_DEV_STATUS_OK;
}

static void misbehave(doca_pcc_dev_results_t *results)
{
	switch (CASE) {
	case 1:
		*(volatile uint32_t *)(uintptr_t)0 = 1;
		break;
	case 2:
		for (volatile uint32_t i = 0;; i++)
			;
		break;
	case 3:
		((void (*)(void))(uintptr_t)0xdead0)();
		break;
	case 4:
		results->rate = 0;
		break;
	case 5:
		results->rate = UINT32_MAX;
		break;
	default:
		break;
	}
}

void doca_pcc_dev_user_algo(doca_pcc_dev_algo_ctxt_t *ctxt, doca_pcc_dev_event_t *event, const doca_pcc_dev_attr_t *attr,
			    doca_pcc_dev_results_t *results)
{
	(void)ctxt, (void)event, (void)attr;
	results->rate = DOCA_PCC_DEV_MAX_RATE / 64;
	/* Case 6 never asks for a probe. */
	results->rtt_req = CASE != 6;
	if (++events > 50)
		misbehave(results);
}
