//! What can go wrong in a service process beside its service.

use std::io;

/// Short for this crate's results.
pub type Result<T> = std::result::Result<T, DaemonError>;

/// Why a daemon cannot start, or has to end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DaemonError {
    /// Options that cannot be right on any machine.
    #[error("{0}")]
    Options(String),
    /// A worker process has failed.
    #[error("{0}")]
    Failed(String),
    /// A system call has failed.
    #[error("{what}: {source}")]
    Io {
        /// The attempted operation and its object.
        what: String,
        /// The system's answer.
        source: io::Error,
    },
}

impl DaemonError {
    /// A failed system call.
    pub fn io(what: impl Into<String>, source: io::Error) -> Self {
        Self::Io {
            what: what.into(),
            source,
        }
    }
}
