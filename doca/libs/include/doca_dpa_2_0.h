/*
 * Names of DOCA 2.0 for programs of the host. Include this header after all others of this library. Names that later versions
 * have kept, such as doca_dpa_kernel_launch_update_add, are those of doca_dpa.h; a few have other arguments here:
 *
 *   doca_dpa_create(dev, app, &dpa, flags)   also sets the program and starts the context
 *   doca_buf_arr_get_dpa_handle, doca_rdma_get_dpa_handle   give a pointer, whose value is the handle for kernels
 */
#ifndef DOCA_DPA_2_0_H
#define DOCA_DPA_2_0_H

#include <doca_buf_array.h>
#include <doca_ctx.h>
#include <doca_dev.h>
#include <doca_dpa.h>
#include <doca_rdma.h>
#include <doca_sync_event.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct doca_dpa *doca_dpa_t;
typedef struct doca_dpa_app *doca_dpa_app_t;

/* Handles for kernels: pass them as they are. They point to memory of the DPA, which the host cannot read. */
struct doca_dpa_dev_buf_arr;
struct doca_dpa_dev_rdma;

/* DOCA_SUCCESS if the device has a DPA, DOCA_ERROR_NOT_SUPPORTED without one. */
static inline doca_error_t doca_devinfo_get_is_dpa_supported(const struct doca_devinfo *devinfo)
{
	return doca_dpa_cap_is_supported(devinfo);
}

/* `flags`: 0; else DOCA_ERROR_INVALID_VALUE. After an error there is no context. */
static inline doca_error_t doca_dpa_create_2_0(struct doca_dev *dev, doca_dpa_app_t app, doca_dpa_t *dpa, unsigned int flags)
{
	doca_error_t result = DOCA_ERROR_INVALID_VALUE;

	if (flags != 0 || dpa == NULL)
		return result;
	result = doca_dpa_create(dev, dpa);
	if (result != DOCA_SUCCESS)
		return result;
	result = doca_dpa_set_app(*dpa, app);
	if (result == DOCA_SUCCESS)
		result = doca_dpa_start(*dpa);
	if (result != DOCA_SUCCESS) {
		doca_dpa_destroy(*dpa);
		*dpa = NULL;
	}
	return result;
}
#define doca_dpa_create doca_dpa_create_2_0

static inline doca_error_t doca_sync_event_publisher_add_location_cpu(struct doca_sync_event *event, struct doca_dev *dev)
{
	return doca_sync_event_add_publisher_location_cpu(event, dev);
}

static inline doca_error_t doca_sync_event_publisher_add_location_dpa(struct doca_sync_event *event, doca_dpa_t dpa)
{
	return doca_sync_event_add_publisher_location_dpa(event, dpa);
}

static inline doca_error_t doca_sync_event_publisher_add_location_remote_net(struct doca_sync_event *event)
{
	return doca_sync_event_add_publisher_location_remote_net(event);
}

static inline doca_error_t doca_sync_event_subscriber_add_location_cpu(struct doca_sync_event *event, struct doca_dev *dev)
{
	return doca_sync_event_add_subscriber_location_cpu(event, dev);
}

static inline doca_error_t doca_sync_event_subscriber_add_location_dpa(struct doca_sync_event *event, doca_dpa_t dpa)
{
	return doca_sync_event_add_subscriber_location_dpa(event, dpa);
}

/* The handle of a started event for kernels. */
static inline doca_error_t doca_sync_event_export_to_dpa(struct doca_sync_event *event,
							 doca_dpa_t dpa,
							 doca_dpa_dev_sync_event_t *handle)
{
	return doca_sync_event_get_dpa_handle(event, dpa, handle);
}

static inline doca_error_t doca_buf_arr_get_dpa_handle_2_0(const struct doca_buf_arr *array,
							   struct doca_dpa_dev_buf_arr **handle)
{
	doca_dpa_dev_buf_arr_t number = 0;
	doca_error_t result = DOCA_ERROR_INVALID_VALUE;

	if (handle == NULL)
		return result;
	result = doca_buf_arr_get_dpa_handle(array, &number);
	if (result == DOCA_SUCCESS)
		*handle = (struct doca_dpa_dev_buf_arr *)number;
	return result;
}
#define doca_buf_arr_get_dpa_handle doca_buf_arr_get_dpa_handle_2_0

static inline doca_error_t doca_rdma_get_dpa_handle_2_0(struct doca_rdma *rdma, struct doca_dpa_dev_rdma **handle)
{
	doca_dpa_dev_rdma_t number = 0;
	doca_error_t result = DOCA_ERROR_INVALID_VALUE;

	if (handle == NULL)
		return result;
	result = doca_rdma_get_dpa_handle(rdma, &number);
	if (result == DOCA_SUCCESS)
		*handle = (struct doca_dpa_dev_rdma *)number;
	return result;
}
#define doca_rdma_get_dpa_handle doca_rdma_get_dpa_handle_2_0

#ifdef __cplusplus
}
#endif

#endif
