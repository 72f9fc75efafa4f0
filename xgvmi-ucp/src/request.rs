//! An outstanding operation and the objects that it uses.

use super::{Endpoint, ImportedMemory, RemoteKey, Result, UcpError, Waiter, Worker};
use std::cell::Cell;
use std::time::Duration;
use ucx_sys::{
    UCS_INPROGRESS, UCS_OK, ucs_ptr_is_ptr, ucs_ptr_status, ucs_status_ptr_t, ucs_status_t,
};

/// An operation that UCP has accepted.
///
/// It owns the objects that the operation uses. If it is dropped before completion, it leaks them,
/// because UCX or the device may still use them.
#[derive(Debug)]
pub struct Request {
    worker: Worker,
    state: Cell<State>,
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
        to: Endpoint,
        data: Vec<u8>,
    },
    Transfer {
        into: ImportedMemory,
        from: RemoteKey,
    },
}

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
            Self::Nothing => "ucp_ep_close_nbx",
            Self::Message { .. } | Self::SentAs { .. } => "ucp_am_send_nbx",
            Self::Transfer { .. } => "ucp_get_nbx",
        }
    }
}

impl Request {
    /// Wraps the result of an `_nbx` call on an endpoint of `worker`.
    #[inline]
    pub(super) fn new(worker: &Worker, answer: ucs_status_ptr_t, holds: Holds) -> Self {
        let state = if ucs_ptr_is_ptr(answer) {
            State::InFlight(answer)
        } else {
            State::Done(ucs_ptr_status(answer))
        };
        Self {
            worker: worker.clone(),
            state: Cell::new(state),
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
    #[inline]
    pub fn test(&self) -> Result<bool> {
        self.answer(self.poll())
    }

    /// Whether the operation was complete when it was started, or at the last test. This function makes no call of UCX.
    ///
    /// # Errors
    /// The operation's own error.
    #[inline]
    pub fn was_complete(&self) -> Result<bool> {
        match self.state.get() {
            State::Done(status) => self.answer(Some(status)),
            State::InFlight(_) => Ok(false),
        }
    }

    #[inline]
    fn answer(&self, status: Option<ucs_status_t>) -> Result<bool> {
        match status {
            None => Ok(false),
            Some(UCS_OK) => Ok(true),
            Some(status) => Err(self.failed(status)),
        }
    }

    #[cold]
    fn failed(&self, status: ucs_status_t) -> UcpError {
        UcpError::call(self.worker.ucp(), self.holds.call(), "in flight", status)
    }

    /// The final status, if the operation is complete. UCX's request is free then.
    #[inline]
    fn poll(&self) -> Option<ucs_status_t> {
        let request = match self.state.get() {
            State::Done(status) => return Some(status),
            State::InFlight(request) => request,
        };
        let ucp = self.worker.ucp();
        // SAFETY: the request came from UCP, and is free only in the state `Done`.
        let status = unsafe { ucp.ucp_request_check_status(request) };
        if status == UCS_INPROGRESS {
            return None;
        }
        self.state.set(State::Done(status));
        // SAFETY: as above; the state is `Done` now, so nothing uses the request again.
        unsafe { ucp.ucp_request_free(request) };
        Some(status)
    }
}

impl Drop for Request {
    #[inline]
    fn drop(&mut self) {
        if self.poll().is_some() {
            return;
        }
        std::mem::forget(std::mem::replace(&mut self.holds, Holds::Nothing));
        if let State::InFlight(request) = self.state.get() {
            // SAFETY: the request came from UCP and is freed once; UCP itself puts off the release of one that is
            // still in flight.
            unsafe { self.worker.ucp().ucp_request_free(request) };
        }
    }
}
