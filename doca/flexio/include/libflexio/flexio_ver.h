/*
 * Versions of FlexIO.
 */
#ifndef FLEXIO_VER_H
#define FLEXIO_VER_H

#define FLEXIO_VER(MAJOR, MINOR, PATCH) ((MAJOR) * 1000000ULL + (MINOR) * 1000ULL + (PATCH))
/* The version whose names the headers have. */
#define FLEXIO_VER_LATEST FLEXIO_VER(25, 4, 0)

#endif
