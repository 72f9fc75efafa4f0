//! Errors of the daemon layer of a service process.

use std::io;

/// Result of this crate's functions.
pub type Result<T> = std::result::Result<T, DaemonError>;

/// Why a daemon cannot start or must end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DaemonError {
    /// Options that are invalid on any machine.
    #[error("{0}")]
    Options(String),
    /// A worker process has failed.
    #[error("{0}")]
    Failed(String),
    /// A system call has failed.
    #[error("{what}: {error}")]
    Io {
        /// The attempted operation and its object.
        what: String,
        /// The error of the system. It is in the text, so it is not named again as the source.
        error: io::Error,
    },
}

impl DaemonError {
    /// A failed system call.
    pub fn io(what: impl Into<String>, error: io::Error) -> Self {
        Self::Io {
            what: what.into(),
            error,
        }
    }
}
