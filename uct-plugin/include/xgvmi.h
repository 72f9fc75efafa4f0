/* xgvmi: pooled memory keys for DPU-offloaded communication through stock UCX.
 *
 * Optional interface of the library libuct_ib_mlx5_xgvmi.so.0. The library exports and imports keys
 * without any of these calls.
 *
 * A program that also runs without the library does not link it. It looks up the functions, first in
 * the global scope (preload), then in the loaded library (UCX loaded it):
 *
 *     void *library = dlopen("libuct_ib_mlx5_xgvmi.so.0", RTLD_LAZY | RTLD_NOLOAD);
 *     void *function = dlsym(RTLD_DEFAULT, "xgvmi_announce");
 *     if ((function == NULL) && (library != NULL)) {
 *         function = dlsym(library, "xgvmi_announce");
 *     }
 *
 * All functions may be called from any thread at any time, except from a signal handler. None of them
 * ends the program.
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

/* Counters of all memory domains of the process. Counts include closed memory domains. Values that are
 * "now" do not. */
struct xgvmi_stats {
    uint64_t pool_hits;       /* exports that found a free key in the pool */
    uint64_t pool_misses;     /* exports that did not */
    uint64_t pool_keys;       /* keys in the pools now */
    uint64_t pool_in_use;     /* of these, keys bound to memory now */
    uint64_t exports;         /* exports served from the pool */
    uint64_t exports_left;    /* exports that UCX handled */
    uint64_t releases;        /* released exports of the pool */
    uint64_t releases_failed; /* of these, keys that may have worked until the deregistration */
    uint64_t alias_hits;      /* imports that found an alias */
    uint64_t alias_misses;    /* imports and announced keys that needed a new alias */
    uint64_t alias_stale;     /* replaced aliases of dead exporters */
    uint64_t aliases;         /* aliases now */
    uint64_t imports;         /* imports served from the alias map */
    uint64_t imports_left;    /* imports that UCX handled */
    uint64_t imports_released; /* served imports that UCX has released */
    uint64_t exporters;       /* exporters with an import cache in UCP now */
    uint64_t arena_ranges;    /* mappings of the program that were ranges of the arena */
    uint64_t arena_zeroed;    /* bytes zeroed before the reuse of a range */
    uint64_t arena_bytes;     /* bytes of slabs with memory now */
    uint64_t arena_retired;   /* bytes of the arena that are not given out again */
    uint64_t arena_registrations; /* registrations answered with a slab's key */
    uint64_t arena_left;      /* registrations of memory of the arena that UCX made */
    uint64_t kept_hits;       /* registrations answered with a kept one */
    uint64_t kept_now;        /* kept registrations now */
    uint64_t kept_bytes;      /* their bytes */
};

/* Host: writes one message with all keys of all pools of this process. The DPU accepts it before the
 * first import. The call first fills each pool to 64 keys (or UCX_XGVMI_POOL_INIT, if that is more).
 * This takes hundreds of microseconds per new key. Call it during set-up, after ucp_init and before the
 * first collective.
 *
 * Returns the length of the message in bytes. If it exceeds `length`, nothing is written, so a call with
 * NULL and 0 returns the required length: 16 + 96 per memory domain + 8 per run of consecutive keys.
 * -ENODEV: no memory domain is served (before ucp_init, without a device, or with a disabled library);
 * -EINVAL: no buffer; -EIO: internal error. */
ssize_t xgvmi_announce(void *buffer, size_t length);

/* Host: like xgvmi_announce, but fills each pool to `keys` keys only (or UCX_XGVMI_POOL_INIT, if that is
 * more). With 0 it creates no key: a program whose pools have grown announces the new keys this way. */
ssize_t xgvmi_announce_keys(void *buffer, size_t length, uint32_t keys);

/* DPU: creates the aliases of all keys in a message of xgvmi_announce, on each memory domain of this
 * process on the same adapter. It evicts no alias for them. Each new alias takes hundreds of
 * microseconds. Up to four threads work until the call returns.
 *
 * Returns the number of announced keys that have an alias now, counted per memory domain. Returns 0 if
 * a later message of the same process was accepted before. -EBADMSG: not a message, or damaged;
 * -EACCES: from another job (UCX_XGVMI_KEY_FILE); -ENODEV, -EINVAL, -EIO as above. After an error the
 * call has no effect. The message is not trusted: no content can harm this process. */
int64_t xgvmi_accept(const void *buffer, size_t length);

/* Writes the counters to `out`. `size` is the caller's sizeof(struct xgvmi_stats). Fields that this
 * version does not know are set to zero. Returns 0, or -EINVAL. */
int xgvmi_stats(struct xgvmi_stats *out, size_t size);

/* Version of the library, such as "0.1.0". Never freed. */
const char *xgvmi_version(void);

#ifdef __cplusplus
}
#endif

#endif
