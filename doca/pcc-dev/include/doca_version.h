/*
 * The version of DOCA whose device interface these headers have.
 */
#ifndef DOCA_VERSION_H_
#define DOCA_VERSION_H_

#define DOCA_VERSION_MAJOR 3
#define DOCA_VERSION_MINOR 3
#define DOCA_VERSION_PATCH 0

#endif
