/*
 * Another name of flexio_os.h.
 */
#ifndef FLEXIO_OS_SYSCALL_H
#define FLEXIO_OS_SYSCALL_H

#include <libflexio-os/flexio_os.h>

#endif
