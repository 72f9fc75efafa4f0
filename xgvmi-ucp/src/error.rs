//! What can go wrong between us and UCP, with the call, the object and UCX's own words.

use std::time::Duration;
use ucx_sys::{UCS_OK, Ucp, ucs_status_t};

/// Short for this module's results.
pub type Result<T> = std::result::Result<T, UcpError>;

/// A failed call, or a wait that came to its limit.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UcpError {
    /// UCX answered with an error status.
    #[error("{call}({object}): {text} (status {status})")]
    Call {
        /// The function that failed.
        call: &'static str,
        /// What it was called on, with the numbers that matter.
        object: String,
        /// UCX's words.
        text: &'static str,
        /// `ucs_status_t`.
        status: ucs_status_t,
    },
    /// A condition did not come true in time.
    #[error("waited {} ms for {what}", limit.as_millis())]
    Timeout {
        /// What was waited for.
        what: &'static str,
        /// For how long.
        limit: Duration,
    },
    /// Whoever started this process has closed its end of the control channel: nobody wants the result any more.
    #[error("the control channel closed during a wait for {what}")]
    Abandoned {
        /// What was waited for.
        what: &'static str,
    },
    /// A system call of the waiting loop failed.
    #[error("{call} during a wait for {what}: {source}")]
    Wait {
        /// The system call.
        call: &'static str,
        /// What was waited for.
        what: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
    /// An access to imported memory that is not inside it, or too short to be done by the device alone.
    #[error(
        "{length} bytes at {address:#x} of imported memory {start:#x}+{size}: outside, or shorter than {min} bytes"
    )]
    ImportedAccess {
        /// First address asked for, in the exporter's address space.
        address: u64,
        /// Bytes asked for.
        length: usize,
        /// First address imported.
        start: u64,
        /// Bytes imported.
        size: usize,
        /// See [`super::Context::access_min`].
        min: usize,
    },
    /// More active messages arrived than anyone took.
    #[error("{count} active messages are waiting or were refused; the most is {max}")]
    InboxFull {
        /// Messages waiting or refused.
        count: usize,
        /// The limit.
        max: usize,
    },
}

impl UcpError {
    pub(super) fn call(
        ucp: &Ucp,
        call: &'static str,
        object: impl Into<String>,
        status: ucs_status_t,
    ) -> Self {
        Self::Call {
            call,
            object: object.into(),
            text: ucp.status_string(status),
            status,
        }
    }
}

/// Turns a status into a result; the object's description is only made for a failure.
pub(super) fn check(
    ucp: &Ucp,
    call: &'static str,
    status: ucs_status_t,
    object: impl FnOnce() -> String,
) -> Result<()> {
    if status == UCS_OK {
        Ok(())
    } else {
        Err(UcpError::call(ucp, call, object(), status))
    }
}
