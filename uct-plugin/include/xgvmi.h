/* xgvmi: pooled memory keys for DPU-offloaded communication through stock UCX.
 *
 * What a program may ask of the library libuct_ib_mlx5_xgvmi.so.0 once it is in its process. None of
 * it is needed: without any of these calls, keys are exported and imported all the same.
 *
 * A program that must run without the library as well does not link to it but looks the functions
 * up, first everywhere (the library is preloaded), then by the library's name (UCX loaded it):
 *
 *     void *library = dlopen("libuct_ib_mlx5_xgvmi.so.0", RTLD_LAZY | RTLD_NOLOAD);
 *     void *function = dlsym(RTLD_DEFAULT, "xgvmi_announce");
 *     if ((function == NULL) && (library != NULL)) {
 *         function = dlsym(library, "xgvmi_announce");
 *     }
 *
 * All functions may be called from any thread, at any time, but not from a signal handler. None of
 * them ends the program.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0 */

#ifndef XGVMI_H
#define XGVMI_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Numbers of all memory domains of the process. Counts include those of memory domains that are
 * closed; what there is "now" does not. */
struct xgvmi_stats {
    uint64_t pool_hits;       /* exports for which the pool had a free key */
    uint64_t pool_misses;     /* exports for which it had none */
    uint64_t pool_keys;       /* keys that the pools have now */
    uint64_t pool_in_use;     /* of these, those that stand for memory now */
    uint64_t exports;         /* exports served from the pool */
    uint64_t exports_left;    /* exports left to UCX */
    uint64_t releases;        /* served exports that were released */
    uint64_t releases_failed; /* of these, those whose key may have worked until UCX freed the memory */
    uint64_t alias_hits;      /* imports for which there was an alias */
    uint64_t alias_misses;    /* imports, and announced keys, for which one had to be made */
    uint64_t alias_stale;     /* aliases of an exporter that was gone, replaced */
    uint64_t aliases;         /* aliases that there are now */
    uint64_t imports;         /* imports served from the map of aliases */
    uint64_t imports_left;    /* imports left to UCX */
    uint64_t imports_released; /* served imports that UCX has given back */
    uint64_t exporters;       /* exporters that UCP has a cache of now */
};

/* Host: writes one message with all keys of all pools of this process, for its DPU to accept ahead of
 * the first import. A pool with fewer than 64 keys (or UCX_XGVMI_POOL_INIT, if that is more) is filled
 * up first, which takes hundreds of microseconds for each key that is created: call it where there is
 * time, after ucp_init and before the first collective.
 *
 * Returns the bytes of the message. Nothing is written if that is more than `length`, so that a call
 * with NULL and 0 tells how many are needed; 16 + 96 for each memory domain + 8 for each run of
 * consecutive keys. -ENODEV: no memory domain is served (ucp_init was not called yet, there is no
 * device, or the library stays out); -EINVAL: no buffer; -EIO: an internal error. */
ssize_t xgvmi_announce(void *buffer, size_t length);

/* DPU: makes the aliases of all keys in a message of xgvmi_announce, on each memory domain of this
 * process that is of the same adapter, and puts none out for them. Hundreds of microseconds for each
 * alias that is not there yet; up to four threads work on it until the call returns.
 *
 * Returns how many of the announced keys have an alias now, counted for each memory domain; 0 as well
 * if another message of the same process, sent later, was accepted before. -EBADMSG: no message, or a
 * damaged one; -EACCES: another job's (UCX_XGVMI_KEY_FILE); -ENODEV, -EINVAL, -EIO as above. Nothing is
 * done then. The message is not trusted: whatever it holds, this process is not harmed. */
int64_t xgvmi_accept(const void *buffer, size_t length);

/* Writes the numbers so far to `out`, of which the caller has `size` bytes, sizeof(struct xgvmi_stats)
 * as it was compiled. What this library does not know is set to zero. Returns 0, or -EINVAL. */
int xgvmi_stats(struct xgvmi_stats *out, size_t size);

/* Version of the library, such as "0.1.0". Never freed. */
const char *xgvmi_version(void);

#ifdef __cplusplus
}
#endif

#endif
