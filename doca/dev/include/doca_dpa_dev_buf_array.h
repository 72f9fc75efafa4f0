/*
 * Another name of doca_dpa_dev_buf.h.
 */
#ifndef DOCA_DPA_DEV_BUF_ARRAY_H
#define DOCA_DPA_DEV_BUF_ARRAY_H

#include <doca_dpa_dev_buf.h>

#endif
