//! Verbs that are inline functions in `verbs.h`: calls through the context's table of operations.

use std::ffi::c_int;

use crate::{ibv_cq, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_wc};

/// Error of operations that a driver lacks. rdma-core uses `EOPNOTSUPP` for this, not `ENOSYS`.
const EOPNOTSUPP: c_int = libc::EOPNOTSUPP;

/// `ibv_poll_cq` (`verbs.h`): removes up to `num_entries` completions from the queue. Returns their number, or a
/// negative number on failure.
///
/// # Safety
/// `cq` is a live completion queue, and `wc` has space for `num_entries` completions.
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: a live queue has a live context. Its operations were set when the device was opened.
    let poll = unsafe { (*(*cq).context).ops.poll_cq };
    match poll {
        // SAFETY: the driver's operation for this queue; the caller upholds its contract.
        Some(poll) => unsafe { poll(cq, num_entries, wc) },
        None => -EOPNOTSUPP,
    }
}

/// `ibv_req_notify_cq` (`verbs.h`): requests an event for the next completion, or for the next solicited one. Returns
/// 0 or the error number.
///
/// # Safety
/// `cq` is a live completion queue with a completion channel.
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: a live queue has a live context. Its operations were set when the device was opened.
    let notify = unsafe { (*(*cq).context).ops.req_notify_cq };
    match notify {
        // SAFETY: the driver's operation for this queue; the caller upholds its contract.
        Some(notify) => unsafe { notify(cq, solicited_only) },
        None => EOPNOTSUPP,
    }
}

/// `ibv_post_send` (`verbs.h`): posts a list of work requests. Returns 0, or the error number and the first request
/// that was not posted.
///
/// # Safety
/// `qp` is a live queue pair; `wr` is a valid list of work requests as described in `verbs.h`, and their buffers stay
/// valid until the requests complete; `bad_wr` is writable.
pub unsafe fn ibv_post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: a live queue pair has a live context. Its operations were set when the device was opened.
    let post = unsafe { (*(*qp).context).ops.post_send };
    match post {
        // SAFETY: the driver's operation for this queue pair; the caller upholds its contract.
        Some(post) => unsafe { post(qp, wr, bad_wr) },
        None => EOPNOTSUPP,
    }
}

/// `ibv_post_recv` (`verbs.h`): posts a list of receive requests. Returns 0, or the error number and the first request
/// that was not posted.
///
/// # Safety
/// As for [`ibv_post_send`].
pub unsafe fn ibv_post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: a live queue pair has a live context. Its operations were set when the device was opened.
    let post = unsafe { (*(*qp).context).ops.post_recv };
    match post {
        // SAFETY: the driver's operation for this queue pair; the caller upholds its contract.
        Some(post) => unsafe { post(qp, wr, bad_wr) },
        None => EOPNOTSUPP,
    }
}
