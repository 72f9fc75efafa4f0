/*
 * The DPA's operating system. Programs include this header beside FlexIO's; the functions that they call are FlexIO's.
 */
#ifndef FLEXIO_OS_H
#define FLEXIO_OS_H

#include <libflexio-dev/flexio_dev.h>

#endif
