/*
 * The C library's <stdlib.h>.
 */
#ifndef FLEXIO_LIBC_STDLIB_H
#define FLEXIO_LIBC_STDLIB_H

#include <stdlib.h>

#endif
