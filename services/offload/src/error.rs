//! Errors of an offloaded collective, worded for the user of an MPI program.

use std::io;
use xgvmi_daemon::DaemonError;
use xgvmi_daemon::codec::BadMessage;
use xgvmi_ucp::UcpError;

/// Result of this module's functions.
pub type Result<T> = std::result::Result<T, OffloadError>;

/// Why the offload is unavailable or has failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OffloadError {
    /// Options that are invalid on any machine.
    #[error("{0}")]
    Options(String),
    /// Ranks that were started with different options.
    #[error("{what}: rank {rank} has {theirs}, rank 0 has {first}")]
    Disagree {
        /// The property that differs.
        what: &'static str,
        /// The first rank that differs from rank 0.
        rank: u32,
        /// Value at that rank.
        theirs: String,
        /// Value at rank 0.
        first: String,
    },
    /// Some ranks could not connect; all ranks return this error.
    #[error("rank {rank}: {reason}{}", others(*.count))]
    Connect {
        /// The first of these ranks.
        rank: u32,
        /// Error at that rank.
        reason: String,
        /// Number of these ranks.
        count: usize,
    },
    /// Invalid arguments of a call.
    #[error("{0}")]
    Arguments(String),
    /// The job has failed, here or elsewhere. Every later call returns the same error.
    #[error("{0}")]
    Failed(String),
    /// Other ranks did not connect in time. The error of one of them is more likely to be the cause.
    #[error("{0}")]
    Late(String),
    /// The exchange between the ranks has failed.
    #[error("exchange between the ranks: {0}")]
    Exchange(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The daemon layer has failed: options, files, system calls.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// UCX has failed.
    #[error(transparent)]
    Ucp(#[from] UcpError),
    /// A peer sent a malformed message.
    #[error("from {peer}: {message}")]
    Message {
        /// The sender.
        peer: String,
        /// The defect.
        message: String,
    },
    /// A system call has failed.
    #[error("{what}: {source}")]
    Io {
        /// The operation and its object.
        what: String,
        /// Error of the system.
        source: io::Error,
    },
}

impl OffloadError {
    pub(super) fn io(what: impl Into<String>, source: io::Error) -> Self {
        Self::Io {
            what: what.into(),
            source,
        }
    }

    pub(super) fn message(peer: &str, bad: &BadMessage) -> Self {
        Self::Message {
            peer: peer.to_owned(),
            message: bad.to_string(),
        }
    }
}

fn others(count: usize) -> String {
    match count {
        0 | 1 => String::new(),
        2 => " (and 1 rank more)".to_owned(),
        _ => format!(" (and {} ranks more)", count - 1),
    }
}
