/*
 * Versions of the FlexIO device API.
 */
#ifndef FLEXIO_DEV_VER_H
#define FLEXIO_DEV_VER_H

#define FLEXIO_DEV_VER(major, minor, patch) ((major) * 1000000 + (minor) * 1000 + (patch))
/* For FLEXIO_DEV_VER_USED: the newest version. */
#define FLEXIO_DEV_VER_LATEST 0x7fffffff

#endif
