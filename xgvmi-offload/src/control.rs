//! What ranks and SPs say to each other over TCP: who they are, who else there is, and when something fails.
//!
//! Nothing of a collective goes this way. With a secret, whoever calls opens as [`super::secret`] describes. The connection stays open: its end without [`Frame::Bye`] is a death.

use super::secret::{Nonce, Proof};
use super::wire::Export;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Which of the frames, active messages and their order are understood. Each frame carries it, so that two versions
/// find out whatever else has changed.
pub const PROTOCOL: u32 = 2;

/// Most ranks of a job: lists of all of them go into one message.
pub const RANKS_MAX: u32 = 1 << 16;

/// A job: the ranks that were started together. Made up by its rank 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(super) struct JobId(pub(super) u128);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Enough to tell the jobs of a log apart.
        write!(f, "{:08x}", self.0 >> 96)
    }
}

/// How keys are made. The ranks and SPs of a job must be of one mind: what is measured is otherwise not what the
/// report says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Scheme {
    /// UCX creates a key for each buffer (indirection), and destroys it.
    Ksm,
    /// UCX's own pool of keys.
    #[default]
    Stock,
    /// This project's library, preloaded or found by UCX.
    Xgvmi,
}

impl Scheme {
    /// As in options and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ksm => "ksm",
            Self::Stock => "stock",
            Self::Xgvmi => "xgvmi",
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Frame {
    /// Whoever calls, where there is a secret, first of all.
    Open(Nonce),
    /// SP to who called: prove it.
    Challenge(Nonce),
    /// Here is the proof; the other's answer is its own.
    Proof(Proof),
    /// Rank to its SP, first of all.
    Hello(Hello),
    /// SP to rank: you are in.
    Welcome(Welcome),
    /// SP to whoever called: not with me, and why. The connection closes.
    Refused { reason: String },
    /// Rank to its SP: all SPs of the job, and who is served by which.
    Table(Table),
    /// SP to SP, first of all.
    Peer(PeerHello),
    /// SP to its ranks: all of the job's SPs that I need, and all of my ranks, can be reached.
    Ready,
    /// Anybody to anybody: the job has failed. The connection closes.
    Abort { reason: String },
    /// Rank to SP, SP to SP: I am done, in good order.
    Bye,
    /// SP to its ranks and to other SPs: I am alive.
    Beat,
}

/// A rank that wants to be served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) job: JobId,
    pub(super) rank: u32,
    pub(super) size: u32,
    pub(super) scheme: Scheme,
    pub(super) ucx_version: String,
    /// Of its UCP worker.
    pub(super) address: Vec<u8>,
    /// The keys of its pool, as the library announces them; empty without it.
    pub(super) announcement: Vec<u8>,
    /// The memory that it keeps for greetings.
    pub(super) greeting: Export,
}

/// An SP that will serve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Welcome {
    pub(super) service: ServiceAddress,
    /// Blocks shorter than this travel in messages; the same for all SPs of a job.
    pub(super) direct_min: u64,
    /// An SP that is silent for so long is dead; the same for all SPs of a job.
    pub(super) silence_ms: u64,
    /// Announced keys that have an alias now.
    pub(super) accepted: u64,
}

/// How an SP is reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ServiceAddress {
    /// Unlike any other process's, so that two ranks know when they have the same SP.
    pub(super) unique: u64,
    /// `host:port` for other SPs.
    pub(super) tcp: String,
    /// Of the UCP worker that it has for this job.
    pub(super) worker: Vec<u8>,
}

/// All of a job's SPs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Table {
    pub(super) services: Vec<ServiceAddress>,
    /// Of each rank, the place of its SP in `services`.
    pub(super) service_of: Vec<u32>,
}

/// An SP that shares a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PeerHello {
    pub(super) job: JobId,
    /// Its place in the table.
    pub(super) index: u32,
}
