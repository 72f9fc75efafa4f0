//! Errors of UCP calls, with the call, the object and UCX's own text.

use std::time::Duration;
use ucx_sys::{UCS_OK, Ucp, ucs_status_t};

/// Result type of this crate.
pub type Result<T> = std::result::Result<T, UcpError>;

/// A failed call or an expired wait.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UcpError {
    /// UCX returned an error status.
    #[error("{call}({object}): {text} (status {status})")]
    Call {
        /// The function that failed.
        call: &'static str,
        /// The object, with the relevant numbers.
        object: String,
        /// UCX's text.
        text: &'static str,
        /// `ucs_status_t`.
        status: ucs_status_t,
    },
    /// A condition was not met in time.
    #[error("waited {} ms for {what}", limit.as_millis())]
    Timeout {
        /// The awaited condition.
        what: &'static str,
        /// The time limit.
        limit: Duration,
    },
    /// The parent process has closed its end of the control channel and no longer needs the result.
    #[error("the control channel closed during a wait for {what}")]
    Abandoned {
        /// The awaited condition.
        what: &'static str,
    },
    /// A system call of the waiting loop failed.
    #[error("{call} during a wait for {what}: {source}")]
    Wait {
        /// The system call.
        call: &'static str,
        /// The awaited condition.
        what: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// An access to imported memory that is out of bounds, or too short for the device.
    #[error(
        "{length} bytes at {address:#x} of imported memory {start:#x}+{size}: outside, or shorter than {min} bytes"
    )]
    ImportedAccess {
        /// First address of the access, in the exporter's address space.
        address: u64,
        /// Length of the access in bytes.
        length: usize,
        /// First imported address.
        start: u64,
        /// Length of the imported range in bytes.
        size: usize,
        /// See [`super::Context::access_min`].
        min: usize,
    },
    /// The inbox of active messages is full.
    #[error("{count} {what} wait in the inbox; the most is {max}")]
    InboxFull {
        /// What exceeds its limit.
        what: &'static str,
        /// The number of it.
        count: usize,
        /// The limit.
        max: usize,
    },
    /// UCX packs keys of exported memory in an unknown format.
    #[error(
        "the {bytes} bytes of an exported handle have an unknown format: UCX {version} is not one of 1.18 to 1.23"
    )]
    ExportedKey {
        /// Bytes of the handle.
        bytes: usize,
        /// UCX's version.
        version: &'static str,
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

/// Turns a status into a result. The description of the object is only created on failure.
#[inline(always)]
pub(super) fn check(
    ucp: &Ucp,
    call: &'static str,
    status: ucs_status_t,
    object: impl FnOnce() -> String,
) -> Result<()> {
    if status == UCS_OK {
        return Ok(());
    }
    failed(ucp, call, status, object)
}

#[cold]
fn failed(
    ucp: &Ucp,
    call: &'static str,
    status: ucs_status_t,
    object: impl FnOnce() -> String,
) -> Result<()> {
    Err(UcpError::call(ucp, call, object(), status))
}
