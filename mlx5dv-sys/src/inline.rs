//! The verbs that are inline functions of `verbs.h`: calls through the context's table of operations.

use std::ffi::c_int;

use crate::{ibv_cq, ibv_qp, ibv_send_wr, ibv_wc};

/// `ENOSYS`'s place is taken by `EOPNOTSUPP`, as the library itself answers for operations that a driver lacks.
const EOPNOTSUPP: c_int = libc::EOPNOTSUPP;

/// `ibv_poll_cq` (`verbs.h`): takes up to `num_entries` completions off the queue. Returns how many, or a negative
/// number on failure.
///
/// # Safety
/// `cq` is a live completion queue, and `wc` has room for `num_entries` completions.
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: a live queue has a live context, whose operations were set when the device was opened.
    let poll = unsafe { (*(*cq).context).ops.poll_cq };
    match poll {
        // SAFETY: the driver's operation for this queue, with the caller's promises.
        Some(poll) => unsafe { poll(cq, num_entries, wc) },
        None => -EOPNOTSUPP,
    }
}

/// `ibv_post_send` (`verbs.h`): posts a list of work requests. Returns 0, or the error number and the first request
/// that was not posted.
///
/// # Safety
/// `qp` is a live queue pair; `wr` is a list of work requests as `verbs.h` describes them, whose buffers stay valid
/// until the requests complete; `bad_wr` may be written.
pub unsafe fn ibv_post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: a live queue pair has a live context, whose operations were set when the device was opened.
    let post = unsafe { (*(*qp).context).ops.post_send };
    match post {
        // SAFETY: the driver's operation for this queue pair, with the caller's promises.
        Some(post) => unsafe { post(qp, wr, bad_wr) },
        None => EOPNOTSUPP,
    }
}
