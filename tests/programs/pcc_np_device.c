/* Device side of the test at a receiver. */
#include <doca_pcc_np_dev.h>

doca_pcc_dev_error_t doca_pcc_dev_np_user_packet_handler(struct doca_pcc_np_dev_request_packet *in,
							 struct doca_pcc_np_dev_response_packet *out)
{
	out->data[0] = doca_pcc_np_dev_get_port_num(in);
	return DOCA_PCC_DEV_STATUS_OK;
}
