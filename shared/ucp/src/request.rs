//! An outstanding message or end of a connection, and the objects that it uses.

use super::{Result, UcpError, Waiter, Worker};
use std::any::Any;
use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};
use ucx_sys::{
    UCS_INPROGRESS, UCS_OK, Ucp, ucp_request_param_t, ucs_ptr_is_ptr, ucs_ptr_status,
    ucs_status_ptr_t, ucs_status_t,
};

/// A message, or the end of a connection, that UCP has accepted.
///
/// It owns the objects that the operation uses. If it is dropped before completion, it leaks them,
/// because UCX or the device may still use them.
#[derive(Debug)]
pub struct Request {
    worker: Worker,
    progress: Progress,
    holds: Holds,
}

/// The objects in use until completion.
#[derive(Debug)]
#[expect(dead_code, reason = "held for their life, never read")]
pub(super) enum Holds {
    /// For the end of a connection.
    Nothing,
    Message {
        header: Vec<u8>,
        data: Vec<u8>,
    },
    /// A message whose header is in its connection.
    SentAs {
        to: Rc<dyn Any>,
        data: Vec<u8>,
    },
}

/// The state of an operation.
#[derive(Debug)]
pub(super) struct Progress(Cell<State>);

#[derive(Debug, Clone, Copy)]
enum State {
    /// UCX has no request for the operation any more.
    Done(ucs_status_t),
    InFlight(ucs_status_ptr_t),
}

impl Holds {
    /// The UCX call of the operation.
    fn call(&self) -> &'static str {
        match self {
            Self::Nothing => "ucp_ep_close_nbx or ucp_worker_flush_nbx",
            Self::Message { .. } | Self::SentAs { .. } => "ucp_am_send_nbx",
        }
    }
}

impl Progress {
    #[inline]
    pub(super) fn new(answer: ucs_status_ptr_t) -> Self {
        Self(Cell::new(if ucs_ptr_is_ptr(answer) {
            State::InFlight(answer)
        } else {
            State::Done(ucs_ptr_status(answer))
        }))
    }

    /// The final status, if the operation was complete at its start or at the last poll.
    #[inline]
    pub(super) fn known(&self) -> Option<ucs_status_t> {
        match self.0.get() {
            State::Done(status) => Some(status),
            State::InFlight(_) => None,
        }
    }

    /// The final status, if the operation is complete. UCX's request is free then.
    #[inline]
    pub(super) fn poll(&self, ucp: &Ucp) -> Option<ucs_status_t> {
        let request = match self.0.get() {
            State::Done(status) => return Some(status),
            State::InFlight(request) => request,
        };
        // SAFETY: the request came from UCP, and is free only in the state `Done`.
        let status = unsafe { ucp.ucp_request_check_status(request) };
        if status == UCS_INPROGRESS {
            return None;
        }
        self.0.set(State::Done(status));
        // SAFETY: as above; the state is `Done` now, so nothing uses the request again.
        unsafe { ucp.ucp_request_free(request) };
        Some(status)
    }

    /// Gives up an operation in flight.
    #[cold]
    pub(super) fn abandon(&self, ucp: &Ucp) {
        if let State::InFlight(request) = self.0.replace(State::Done(UCS_INPROGRESS)) {
            // SAFETY: the request came from UCP and is freed once: the state changes with it. UCP itself puts off the
            // release of one that is still in flight.
            unsafe { ucp.ucp_request_free(request) };
        }
    }
}

/// Whether an operation with this status is complete.
#[inline]
pub(super) fn is_complete(
    ucp: &Ucp,
    call: &'static str,
    status: Option<ucs_status_t>,
) -> Result<bool> {
    #[cold]
    fn failed(ucp: &Ucp, call: &'static str, status: ucs_status_t) -> UcpError {
        UcpError::call(ucp, call, "in flight", status)
    }
    match status {
        None => Ok(false),
        Some(UCS_OK) => Ok(true),
        Some(status) => Err(failed(ucp, call, status)),
    }
}

impl Request {
    /// Wraps the result of an `_nbx` call on an endpoint of `worker`.
    #[inline]
    pub(super) fn new(worker: &Worker, answer: ucs_status_ptr_t, holds: Holds) -> Self {
        Self {
            worker: worker.clone(),
            progress: Progress::new(answer),
            holds,
        }
    }

    /// Progresses the worker until the operation is complete.
    ///
    /// # Errors
    /// The operation's own error, [`UcpError::Timeout`] after `limit`, or that of the wait.
    pub fn wait(self, waiter: &Waiter, limit: Duration) -> Result<()> {
        waiter.until(&self.worker, limit, self.holds.call(), || {
            Ok(self.test()?.then_some(()))
        })
    }

    /// Whether the operation is complete. The caller must progress its worker.
    ///
    /// # Errors
    /// The operation's own error.
    pub fn test(&self) -> Result<bool> {
        let ucp = self.worker.ucp();
        is_complete(ucp, self.holds.call(), self.progress.poll(ucp))
    }

    /// Whether the operation was complete when it was started, or at the last test. This function makes no call of UCX.
    ///
    /// # Errors
    /// The operation's own error.
    pub fn was_complete(&self) -> Result<bool> {
        is_complete(self.worker.ucp(), self.holds.call(), self.progress.known())
    }
}

impl Worker {
    /// Progresses communication until all messages have arrived that were sent so far, at most for `limit`. A message
    /// whose send is complete may still be on its way, and is lost if its connection is closed.
    pub fn settle(&self, limit: Duration) {
        let param = ucp_request_param_t::default();
        // SAFETY: the worker is alive and used by this thread alone.
        let answer = unsafe {
            self.ucp()
                .ucp_worker_flush_nbx(self.handle(), &raw const param)
        };
        let flush = Request::new(self, answer, Holds::Nothing);
        let end = Instant::now() + limit;
        // A connection that has failed has nothing on its way.
        while matches!(flush.test(), Ok(false)) && Instant::now() < end {
            if !self.progress() {
                std::thread::yield_now();
            }
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let ucp = self.worker.ucp();
        if self.progress.poll(ucp).is_none() {
            std::mem::forget(std::mem::replace(&mut self.holds, Holds::Nothing));
            self.progress.abandon(ucp);
        }
    }
}
