/* xgvmi_blk: volumes of block storage on three targets, two of which are enough.
 *
 * Link with -lxgvmi_blk. A volume is opened on its targets by this process (xgvmi_blk_open), or is that of a service on
 * this host's DPU (xgvmi_blk_connect), which moves the data by itself from and to the caller's own memory. One process
 * uses the targets of a volume at a time; any number of programs connect to a service, up to 16.
 *
 * A function that returns an int returns 0, or a negative number of errno: -EINVAL (a wrong argument, a range outside the
 * volume, targets that do not belong together, a wrong key file), -EBUSY (another process uses a target), -EPERM (a write by
 * an initiator that may only read), -ENOSPC (two targets are full),
 * -ENOTCONN (the service does not answer), -EIO (fewer than two targets, a block is lost, the service refuses, the adapter
 * cannot be used). xgvmi_blk_error() has the text.
 *
 * Any thread may call any function at any time, also for the same volume or queue: calls do not wait for each other, except as
 * the service limits the number of requests. Overlapping writes at the same time leave each block as one of them wrote it. Only
 * xgvmi_blk_close() and xgvmi_blk_queue_close() must be called when no other call for their volume or queue runs. No function may be called from a signal
 * handler, nor in a child of fork() for a volume of its parent.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0 */

#ifndef XGVMI_BLK_H
#define XGVMI_BLK_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A volume that is open. */
struct xgvmi_blk;

/* How targets are opened. Members that are 0 or NULL have their default. */
struct xgvmi_blk_options {
    size_t      size;              /* sizeof(struct xgvmi_blk_options): a program of an earlier version has fewer members */
    const char *secret_file;       /* file with the secret of targets at tcp: addresses */
    uint64_t    target_timeout_ms; /* a target that does not answer for so long is absent; default 5000 */
    uint64_t    capacity;          /* most bytes of data in each target file; default: no limit */
    const char *key_file;          /* file with the key of an encrypted volume */
};

/* Opens the volume on one to eleven targets, in any order: files, or "tcp:HOST:PORT". `options` may be NULL. */
int xgvmi_blk_open(const char *const *targets, size_t count, const struct xgvmi_blk_options *options,
                   struct xgvmi_blk **volume);

/* How a service is reached. Members that are 0 or NULL have their default. */
struct xgvmi_blk_connect_options {
    size_t      size;              /* sizeof(struct xgvmi_blk_connect_options), as above */
    const char *secret_file;       /* file with the secret of the service's initiators; necessary beyond loopback */
    const char *device;            /* RDMA device of this host; default: the first one. A process uses one. */
    uint64_t    reconnect_ms;      /* a call waits so long for a service that is gone, and repeats its request;
                                      default 10000, at most 600000 */
    const char *identity;          /* name by which the service knows this program; secret_file is then that name's */
    const char *volume;            /* its name, if the service has several volumes */
};

/* Connects to the volume of the service at "HOST:PORT", and waits for a service that is still starting. `options` may be
 * NULL.
 *
 * The memory of a read or write may be any memory of this process; nothing has to be registered. Offsets and lengths are
 * multiples of 512 bytes. While a call runs, its memory stays mapped; after its return, no access of the DPU to it succeeds.
 * Transfers of up to 16 KiB are copied through memory of the library. */
int xgvmi_blk_connect(const char *service, const struct xgvmi_blk_connect_options *options, struct xgvmi_blk **volume);

/* Makes everything durable and closes the volume. It is closed also if this fails, except for -EBUSY: a queue of it is open,
 * and nothing has happened. NULL is allowed. */
int xgvmi_blk_close(struct xgvmi_blk *volume);

/* Size of the volume, and of a block, in bytes. Writes of whole blocks are the fastest. */
uint64_t xgvmi_blk_size(const struct xgvmi_blk *volume);
uint32_t xgvmi_blk_block_size(const struct xgvmi_blk *volume);

/* Reads `length` bytes from `offset`. Blocks that were never written are zero. */
int xgvmi_blk_read(struct xgvmi_blk *volume, uint64_t offset, void *bytes, size_t length);

/* Writes `length` bytes at `offset`. After an error each block holds the old or the new data. */
int xgvmi_blk_write(struct xgvmi_blk *volume, uint64_t offset, const void *bytes, size_t length);

/* Makes all data durable whose write has returned. */
int xgvmi_blk_flush(struct xgvmi_blk *volume);

/* Writes zeros. Whole blocks take no space. */
int xgvmi_blk_write_zeroes(struct xgvmi_blk *volume, uint64_t offset, uint64_t length);

/* Gives the space of the whole blocks of a range back. They are zero afterwards; the rest of the range does not change. */
int xgvmi_blk_trim(struct xgvmi_blk *volume, uint64_t offset, uint64_t length);

/* Number of targets in use; 0 for the volume of a service, which knows it (xgvmi-blk status). */
unsigned xgvmi_blk_targets(const struct xgvmi_blk *volume);

/* Takes absent targets back that have returned, and completes those that lack data. Call it from time to time, also while
 * other threads read and write. -EIO if a target is still absent. -EOPNOTSUPP for the
 * volume of a service, which does this by itself. */
int xgvmi_blk_repair(struct xgvmi_blk *volume);

/* Asynchronous requests
 *
 * A queue carries out requests of its volume, up to 16 at once, in any order: a flush makes durable what was completed before
 * it was submitted. Any number of queues may be open. Each has a limit of requests that were submitted and whose completions
 * were not taken; beyond it a submission returns -EAGAIN, and has not happened.
 *
 * The memory of a request is left alone until its completion: a read's is not used, a write's not changed, and neither is
 * freed. A submission that returns 0 has exactly one completion; one that returns an error has none. Submissions do not block,
 * unless the system has no thread for the queue. */
struct xgvmi_blk_queue;

/* A request that has ended. */
struct xgvmi_blk_completion {
    uint64_t user_data;  /* that of the submission */
    int      result;     /* 0, or what the blocking call would have returned */
    int      reserved;   /* 0 */
    char     error[112]; /* beginning of the error's text; "" without an error */
};

/* Opens a queue for up to `depth` requests, at most 4096; 0: 32. */
int xgvmi_blk_queue_open(struct xgvmi_blk *volume, unsigned depth, struct xgvmi_blk_queue **queue);

/* Waits for all requests, and closes the queue. Completions that were not taken are lost. NULL is allowed. */
int xgvmi_blk_queue_close(struct xgvmi_blk_queue *queue);

/* Submit a request. Arguments are those of the blocking calls; those that are wrong may return an error here. */
int xgvmi_blk_queue_read(struct xgvmi_blk_queue *queue, uint64_t offset, void *bytes, size_t length, uint64_t user_data);
int xgvmi_blk_queue_write(struct xgvmi_blk_queue *queue, uint64_t offset, const void *bytes, size_t length,
                          uint64_t user_data);
int xgvmi_blk_queue_flush(struct xgvmi_blk_queue *queue, uint64_t user_data);
int xgvmi_blk_queue_write_zeroes(struct xgvmi_blk_queue *queue, uint64_t offset, uint64_t length, uint64_t user_data);
int xgvmi_blk_queue_trim(struct xgvmi_blk_queue *queue, uint64_t offset, uint64_t length, uint64_t user_data);

/* Takes up to `max` completions, and returns their number. Waits until there are `min`, or `timeout_ms` have passed, or fewer
 * requests are under way. 0 as timeout does not wait, a negative one has no limit. */
int xgvmi_blk_queue_take(struct xgvmi_blk_queue *queue, struct xgvmi_blk_completion *completions, unsigned min, unsigned max,
                         int timeout_ms);

/* A descriptor for poll() or epoll: readable as long as there are completions to take. The queue owns it; do not read it. */
int xgvmi_blk_queue_fd(const struct xgvmi_blk_queue *queue);

/* The text of this thread's last error, until its next call. Never NULL. */
const char *xgvmi_blk_error(void);

/* Version of the library, as "0.2.0". */
const char *xgvmi_blk_version(void);

#ifdef __cplusplus
}
#endif

#endif
