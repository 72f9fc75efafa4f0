/* Device side of the test at a receiver: it answers some probes, leaves some without answer, and crashes then. */
#include <doca_pcc_np_dev.h>

#include "pcc_shared.h"

doca_pcc_dev_error_t doca_pcc_dev_np_user_packet_handler(struct doca_pcc_np_dev_request_packet *in,
							 struct doca_pcc_np_dev_response_packet *out)
{
	static uint32_t probes;
	volatile uint8_t *nowhere = NULL;

	if (++probes > 120)
		*nowhere = 1;
	if (probes > 60 && probes % 2 == 0)
		return DOCA_PCC_DEV_STATUS_FAIL;
	/* UDP, port 4791, and data behind the management header. */
	if (doca_pcc_np_dev_get_l4_header(in)[2] == 4791 >> 8 && doca_pcc_np_dev_get_payload_size(in) > 0 &&
	    doca_pcc_np_dev_get_port_num(in) == 0)
		out->data[0] = PCC_MARK;
	return DOCA_PCC_DEV_STATUS_OK;
}
