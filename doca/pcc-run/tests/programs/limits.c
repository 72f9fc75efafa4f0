/*
 * Asks the library for something that it refuses, chosen by the speed of the port. LACKS is the callback that it does not have.
 */
#include <doca_pcc_dev_algo_access.h>

static void declare(uint32_t algorithm, uint32_t parameters, uint32_t counters)
{
	struct doca_pcc_dev_algo_meta_data about = {7, 1, 2, 0, 0};

	doca_pcc_dev_algo_init_metadata(algorithm, &about, parameters, counters);
}

#if LACKS != 1
void doca_pcc_dev_user_init(uint32_t *disable_event_bitmask)
{
	*disable_event_bitmask = 0;
	switch (doca_pcc_dev_get_port_speed(0)) {
	case 1:
		declare(8, 1, 1);
		break;
	case 2:
		declare(0, DOCA_PCC_DEV_MAX_NUM_PARAMS_PER_ALGO + 1, 0);
		break;
	case 3:
		declare(0, 0, DOCA_PCC_DEV_MAX_NUM_COUNTERS_PER_ALGO + 1);
		break;
	case 4:
		declare(0, 0, 0);
		doca_pcc_dev_init_algo_slot(0, 8, 0, 1);
		break;
	case 5:
		doca_pcc_dev_init_algo_slot(0, 0, 3, 1);
		break;
	case 6:
		declare(0, 0, 0);
		doca_pcc_dev_init_algo_slot(DOCA_PCC_DEV_MAX_NUM_PORTS, 0, 0, 1);
		break;
	case 7:
		declare(0, 2, 0);
		doca_pcc_dev_algo_init_param(0, 2, 1, 1, 1, 1, 0, 0);
		break;
	case 8:
		declare(0, 2, 0);
		doca_pcc_dev_algo_init_param(0, 1, 9, 8, 1, 1, 0, 0);
		break;
	case 9:
		declare(0, 0, 1);
		doca_pcc_dev_algo_init_counter(0, 1, 1, 1, 0, 0);
		break;
	case 10:
		declare(0, 1, 1);
		declare(0, 1, 1);
		break;
	default:
		/* All limits are met. */
		for (uint32_t i = 0; i < 8; i++)
			declare(i, DOCA_PCC_DEV_MAX_NUM_PARAMS_PER_ALGO, DOCA_PCC_DEV_MAX_NUM_COUNTERS_PER_ALGO);
		doca_pcc_dev_algo_init_param(7, 0, 5, 8, 2, 1, sizeof("first"), (uint64_t)(uintptr_t)"first");
		doca_pcc_dev_algo_init_param(7, 1, 6, 8, 2, 0, 0, 0);
		doca_pcc_dev_algo_init_counter(7, 62 % DOCA_PCC_DEV_MAX_NUM_COUNTERS_PER_ALGO, 3, 2, sizeof("calls"),
					       (uint64_t)(uintptr_t)"calls");
		doca_pcc_dev_init_algo_slot(0, 7, 7, 1);
		break;
	}
}
#endif

#if LACKS != 2
void doca_pcc_dev_user_algo(doca_pcc_dev_algo_ctxt_t *ctxt, doca_pcc_dev_event_t *event, const doca_pcc_dev_attr_t *attr,
			    doca_pcc_dev_results_t *results)
{
	uint32_t *counters = doca_pcc_dev_get_counters(0, attr->algo_slot);

	(void)event;
	ctxt->data[0] = doca_pcc_dev_get_algo_index(0, attr->algo_slot);
	ctxt->data[1] = doca_pcc_dev_get_algo_params_num(0, attr->algo_slot);
	ctxt->data[2] = doca_pcc_dev_get_counters_num(0, attr->algo_slot);
	ctxt->data[3] = counters == NULL ? 0 : ++counters[62 % DOCA_PCC_DEV_MAX_NUM_COUNTERS_PER_ALGO];
	ctxt->data[4] = doca_pcc_dev_get_algo_params(0, attr->algo_slot) == NULL;
	results->rate = 1;
}
#endif

#if LACKS != 3
doca_pcc_dev_error_t doca_pcc_dev_user_set_algo_params(uint32_t port_num, uint32_t algo_slot, uint32_t param_id_base,
						       uint32_t param_num, const uint32_t *new_param_values, uint32_t *params)
{
	(void)port_num, (void)algo_slot, (void)params;
	/* The program itself refuses this value. */
	return param_id_base == 0 && param_num == 1 && new_param_values[0] == 4 ? DOCA_PCC_DEV_STATUS_FAIL
										 : DOCA_PCC_DEV_STATUS_OK;
}
#endif
