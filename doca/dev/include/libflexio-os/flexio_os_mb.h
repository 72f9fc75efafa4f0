/*
 * Another name of flexio_os.h.
 */
#ifndef FLEXIO_OS_MB_H
#define FLEXIO_OS_MB_H

#include <libflexio-os/flexio_os.h>

#endif
