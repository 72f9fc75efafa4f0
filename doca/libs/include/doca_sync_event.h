/*
 * Sync events: counters of 64 bits that one side changes and another awaits. Create, add the places of publishers (who change)
 * and subscribers (who read and wait), start. At least one of each.
 *
 * Device code that includes this header, through one that it shares with the host, gets the types of handles only.
 */
#ifndef DOCA_SYNC_EVENT_H
#define DOCA_SYNC_EVENT_H

#ifdef __DPA__
#include <doca_dpa_dev_sync_event.h>

struct doca_sync_event;
#else

#include <doca_error.h>
#include <doca_types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct doca_dev;
struct doca_dpa;
struct doca_sync_event;
struct doca_sync_event_remote_net;

typedef uint64_t doca_dpa_dev_sync_event_t;
typedef uint64_t doca_dpa_dev_sync_event_remote_net_t;

doca_error_t doca_sync_event_create(struct doca_sync_event **event);
/* Stops and frees the event. A kernel that still uses it gets a fatal error. */
doca_error_t doca_sync_event_destroy(struct doca_sync_event *event);

/* Before start: the places. All DPA contexts of an event belong to one process of the DPA; a DPA and a CPU may each be
 * publisher and subscriber. */
doca_error_t doca_sync_event_add_publisher_location_cpu(struct doca_sync_event *event, struct doca_dev *dev);
doca_error_t doca_sync_event_add_publisher_location_dpa(struct doca_sync_event *event, struct doca_dpa *dpa);
/* The other node of an RDMA connection. Needs a subscriber on the CPU or the DPA. */
doca_error_t doca_sync_event_add_publisher_location_remote_net(struct doca_sync_event *event);
doca_error_t doca_sync_event_add_subscriber_location_cpu(struct doca_sync_event *event, struct doca_dev *dev);
doca_error_t doca_sync_event_add_subscriber_location_dpa(struct doca_sync_event *event, struct doca_dpa *dpa);

/* The value is 0 then. DOCA_ERROR_BAD_CONFIG names a missing place. */
doca_error_t doca_sync_event_start(struct doca_sync_event *event);
doca_error_t doca_sync_event_stop(struct doca_sync_event *event);

/* For a started event of which the CPU is publisher or subscriber; else DOCA_ERROR_NOT_PERMITTED. Several threads may call
 * these at the same time. */
doca_error_t doca_sync_event_get(const struct doca_sync_event *event, uint64_t *value);
/* `before`, if not NULL, gets the value before the addition. */
doca_error_t doca_sync_event_update_add(struct doca_sync_event *event, uint64_t value, uint64_t *before);
doca_error_t doca_sync_event_update_set(struct doca_sync_event *event, uint64_t value);
/* Wait until (value of the event & mask) is above, or different from, `value`. They use the processor; the _yield form gives it up
 * between two looks. They end with DOCA_ERROR_BAD_STATE if the event stops, and DOCA_ERROR_DEVICE_FATAL_ERROR if the
 * publishing DPA has a fatal error. */
doca_error_t doca_sync_event_wait_gt(const struct doca_sync_event *event, uint64_t value, uint64_t mask);
doca_error_t doca_sync_event_wait_gt_yield(const struct doca_sync_event *event, uint64_t value, uint64_t mask);
doca_error_t doca_sync_event_wait_neq(const struct doca_sync_event *event, uint64_t value, uint64_t mask);

/* The handle of a started event for device code of a context that is a publisher or subscriber. */
doca_error_t doca_sync_event_get_dpa_handle(struct doca_sync_event *event,
					    struct doca_dpa *dpa,
					    doca_dpa_dev_sync_event_t *handle);

/* Description of a started event for the other node, which may then signal it. The event owns it until it stops. */
doca_error_t doca_sync_event_export_to_remote_net(struct doca_sync_event *event, const uint8_t **export_data, size_t *length);
/* An event of the other node. DOCA_ERROR_INVALID_VALUE if the bytes are no description. */
doca_error_t doca_sync_event_remote_net_create_from_export(struct doca_dev *dev,
							   const uint8_t *export_data,
							   size_t length,
							   struct doca_sync_event_remote_net **event);
doca_error_t doca_sync_event_remote_net_destroy(struct doca_sync_event_remote_net *event);
doca_error_t doca_sync_event_remote_net_get_dpa_handle(struct doca_sync_event_remote_net *event,
						       struct doca_dpa *dpa,
						       doca_dpa_dev_sync_event_remote_net_t *handle);

#ifdef __cplusplus
}
#endif

#endif
#endif
