//! An outstanding operation and the objects that it uses.

use super::{ImportedMemory, RemoteKey, Result, UcpError, Waiter, Worker};
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
    call: &'static str,
    state: State,
    holds: Holds,
}

/// The objects in use until completion.
#[derive(Debug)]
#[expect(dead_code, reason = "held for their life, never read")]
pub(super) enum Holds {
    Nothing,
    Message {
        header: Vec<u8>,
        data: Vec<u8>,
    },
    Transfer {
        into: ImportedMemory,
        from: RemoteKey,
    },
}

#[derive(Debug)]
enum State {
    Done(ucs_status_t),
    InFlight(ucs_status_ptr_t),
}

impl Request {
    /// Wraps the result of an `_nbx` call on an endpoint of `worker`.
    pub(super) fn new(
        worker: &Worker,
        call: &'static str,
        answer: ucs_status_ptr_t,
        holds: Holds,
    ) -> Self {
        let state = if ucs_ptr_is_ptr(answer) {
            State::InFlight(answer)
        } else {
            State::Done(ucs_ptr_status(answer))
        };
        Self {
            worker: worker.clone(),
            call,
            state,
            holds,
        }
    }

    /// Progresses the worker until the operation is complete.
    ///
    /// # Errors
    /// The operation's own error, [`UcpError::Timeout`] after `limit`, or that of the wait.
    pub fn wait(self, waiter: &Waiter, limit: Duration) -> Result<()> {
        waiter.until(&self.worker, limit, self.call, || {
            Ok(self.test()?.then_some(()))
        })
    }

    /// Whether the operation is complete. The caller must progress its worker.
    ///
    /// # Errors
    /// The operation's own error.
    pub fn test(&self) -> Result<bool> {
        match self.poll() {
            None => Ok(false),
            Some(UCS_OK) => Ok(true),
            Some(status) => {
                let ucp = self.worker.ucp();
                Err(UcpError::call(ucp, self.call, "in flight", status))
            }
        }
    }

    /// The final status, if the operation is complete.
    fn poll(&self) -> Option<ucs_status_t> {
        match self.state {
            State::Done(status) => Some(status),
            State::InFlight(request) => {
                // SAFETY: the request came from UCP and is freed only in drop.
                let status = unsafe { self.worker.ucp().ucp_request_check_status(request) };
                (status != UCS_INPROGRESS).then_some(status)
            }
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if self.poll().is_none() {
            std::mem::forget(std::mem::replace(&mut self.holds, Holds::Nothing));
        }
        if let State::InFlight(request) = self.state {
            // SAFETY: the request came from UCP and is freed once; UCP itself puts off the release of one that is
            // still in flight.
            unsafe { self.worker.ucp().ucp_request_free(request) };
        }
    }
}
