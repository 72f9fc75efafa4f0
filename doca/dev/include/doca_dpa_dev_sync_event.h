/*
 * Device API of DOCA DPA: events, which are counters that threads and the host wait for.
 */
#ifndef DOCA_DPA_DEV_SYNC_EVENT_H
#define DOCA_DPA_DEV_SYNC_EVENT_H

#include <doca_dpa_dev.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef uint64_t doca_dpa_dev_sync_event_t;
/* An event of another node. */
typedef uint64_t doca_dpa_dev_sync_event_remote_net_t;

void doca_dpa_dev_sync_event_get(doca_dpa_dev_sync_event_t event, uint64_t *value);
void doca_dpa_dev_sync_event_update_add(doca_dpa_dev_sync_event_t event, uint64_t value);
void doca_dpa_dev_sync_event_update_set(doca_dpa_dev_sync_event_t event, uint64_t value);
/* Waits until the event's value, of which only the bits of `mask` count, is above `value`. */
void doca_dpa_dev_sync_event_wait_gt(doca_dpa_dev_sync_event_t event, uint64_t value, uint64_t mask);
/* Activates the attached thread when the event's value is above `value`, or is another one. `value` is 0 to 254. */
void doca_dpa_dev_sync_event_post_wait_gt(doca_dpa_dev_async_ops_t async_ops,
					  doca_dpa_dev_sync_event_t event,
					  uint64_t value);
void doca_dpa_dev_sync_event_post_wait_ne(doca_dpa_dev_async_ops_t async_ops,
					  doca_dpa_dev_sync_event_t event,
					  uint64_t value);

#ifdef __cplusplus
}
#endif

#endif
