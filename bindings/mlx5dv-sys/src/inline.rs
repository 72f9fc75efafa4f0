//! Verbs that are inline functions in `verbs.h`: calls through the context's table of operations.

use std::ffi::c_int;
use std::mem::offset_of;
use std::ptr;

use crate::{
    ibv_context, ibv_cq, ibv_parent_domain_init_attr, ibv_pd, ibv_qp, ibv_recv_wr, ibv_send_wr,
    ibv_td, ibv_td_init_attr, ibv_wc, verbs_context,
};

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

/// The extended table of a context; `None` for a plain context (`verbs.h`, `verbs_get_ctx`).
///
/// # Safety
/// `context` is a live context.
unsafe fn extended(context: *mut ibv_context) -> Option<*mut verbs_context> {
    // SAFETY: the caller upholds the contract.
    let mark = unsafe { (*context).abi_compat };
    // `__VERBS_ABI_IS_EXTENDED`: all bits are set if the context is the last field of an extended one.
    if mark.addr() != usize::MAX {
        return None;
    }
    // SAFETY: the mark says that the context is the last field of an extended one.
    Some(unsafe { context.byte_sub(offset_of!(verbs_context, context)) }.cast())
}

/// The operation of the extended table, if the library has the field and the driver has set it
/// (`verbs.h`, `verbs_get_ctx_op`).
macro_rules! operation {
    ($context:expr, $field:ident) => {{
        // SAFETY: the caller upholds the contract.
        unsafe { extended($context) }.and_then(|table| {
            // SAFETY: the size of an extended context is the field just before the plain one.
            let bytes = unsafe { (*table).sz };
            if bytes < size_of::<verbs_context>() - offset_of!(verbs_context, $field) {
                return None;
            }
            // SAFETY: the comparison has shown that the table contains this field.
            unsafe { (*table).$field }
        })
    }};
}

/// Sets errno to `EOPNOTSUPP`, as `verbs.h` does for a driver without the operation.
fn not_supported<T>() -> *mut T {
    // SAFETY: errno belongs to this thread.
    unsafe { *libc::__errno_location() = EOPNOTSUPP };
    ptr::null_mut()
}

/// `ibv_alloc_td` (`verbs.h`): allocates a thread domain. Returns null and sets errno on failure.
///
/// # Safety
/// `context` is a live context, and `attr` is valid as described in `verbs.h`.
pub unsafe fn ibv_alloc_td(context: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td {
    match operation!(context, alloc_td) {
        // SAFETY: the driver's operation; the caller upholds its contract.
        Some(alloc) => unsafe { alloc(context, attr) },
        None => not_supported(),
    }
}

/// `ibv_dealloc_td` (`verbs.h`): frees a thread domain. Returns 0 or the error number.
///
/// # Safety
/// `td` is a live thread domain without a parent domain.
pub unsafe fn ibv_dealloc_td(td: *mut ibv_td) -> c_int {
    // SAFETY: a live thread domain contains its context.
    let context = unsafe { (*td).context };
    match operation!(context, dealloc_td) {
        // SAFETY: the driver's operation; the caller upholds its contract.
        Some(dealloc) => unsafe { dealloc(td) },
        None => EOPNOTSUPP,
    }
}

/// `ibv_alloc_parent_domain` (`verbs.h`): allocates a domain that combines a protection domain and a thread domain.
/// Returns null and sets errno on failure. `ibv_dealloc_pd` frees it.
///
/// # Safety
/// `context` is a live context, and `attr` refers to its live domains.
pub unsafe fn ibv_alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    match operation!(context, alloc_parent_domain) {
        // SAFETY: the driver's operation; the caller upholds its contract.
        Some(alloc) => unsafe { alloc(context, attr) },
        None => not_supported(),
    }
}
