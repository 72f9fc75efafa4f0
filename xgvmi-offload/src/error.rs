//! What can go wrong in an offloaded collective, in words for the user of an MPI program.

use std::io;
use xgvmi_daemon::DaemonError;
use xgvmi_daemon::codec::BadMessage;
use xgvmi_ucp::UcpError;

/// Short for this module's results.
pub type Result<T> = std::result::Result<T, OffloadError>;

/// Why the offload is not there, or not any more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OffloadError {
    /// Options that cannot be right, whatever the machine.
    #[error("{0}")]
    Options(String),
    /// Ranks that were started differently.
    #[error("{what}: rank {rank} has {theirs}, rank 0 has {first}")]
    Disagree {
        /// What they do not agree on.
        what: &'static str,
        /// The first rank that is unlike rank 0.
        rank: u32,
        /// What it has.
        theirs: String,
        /// What rank 0 has.
        first: String,
    },
    /// Some ranks could not be connected; all ranks get this error.
    #[error("rank {rank}: {reason}{}", others(*.count))]
    Connect {
        /// The first of them.
        rank: u32,
        /// What it met.
        reason: String,
        /// How many there are.
        count: usize,
    },
    /// Arguments of a call that cannot be carried out.
    #[error("{0}")]
    Arguments(String),
    /// The job has failed, here or elsewhere; every later call answers the same.
    #[error("{0}")]
    Failed(String),
    /// The others have not been met in time: the cause is more likely what one of them has met.
    #[error("{0}")]
    Late(String),
    /// The way in which ranks tell each other who they are has failed.
    #[error("exchange between the ranks: {0}")]
    Exchange(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The daemon's part has failed: options, files, system calls.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// UCX has failed.
    #[error(transparent)]
    Ucp(#[from] UcpError),
    /// A message was not understood.
    #[error("from {peer}: {message}")]
    Message {
        /// Who sent it.
        peer: String,
        /// What is wrong with it.
        message: String,
    },
    /// A system call has failed.
    #[error("{what}: {source}")]
    Io {
        /// What was done, to what.
        what: String,
        /// The system's answer.
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
