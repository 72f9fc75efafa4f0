/*
 * Types of doca_sync_event that headers shared by the host and the device name. Device code calls none of the host's
 * functions.
 */
#ifndef DOCA_SYNC_EVENT_H
#define DOCA_SYNC_EVENT_H

#include <doca_dpa_dev_sync_event.h>

struct doca_sync_event;

#endif
