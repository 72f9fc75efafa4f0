/*
 * Another name of flexio_dev.h. Its functions of messages replace those of a simulator's log.
 */
#ifndef FLEXIO_DEV_DEBUG_H
#define FLEXIO_DEV_DEBUG_H

#include <libflexio-dev/flexio_dev.h>

#endif
