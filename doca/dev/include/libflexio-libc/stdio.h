/*
 * The C library's <stdio.h>.
 */
#ifndef FLEXIO_LIBC_STDIO_H
#define FLEXIO_LIBC_STDIO_H

#include <stdio.h>

#endif
