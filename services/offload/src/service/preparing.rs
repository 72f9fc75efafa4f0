//! Work of an SP that blocks and runs in a thread of its own: opening and closing UCX, and creating the aliases of
//! announced keys.

use super::connections::ConnectionId;
use super::job::Job;
use super::mover::Limits;
use super::transport::Fabric;
use crate::control::{Hello, Keys};
use crate::error::Result;
use crate::library::Library;
use std::time::Instant;
use xgvmi_daemon::Secret;
use xgvmi_ucp::InboxLimits;

/// A job on its way to another thread.
#[derive(Debug)]
pub(super) struct Moving<F: Fabric>(Job<F>);

// SAFETY: `Fabric` promises that a job may move to another thread as a whole. The channel between the threads orders the
// calls.
unsafe impl<F: Fabric> Send for Moving<F> {}

impl<F: Fabric> Moving<F> {
    pub(super) fn new(job: Job<F>) -> Self {
        Self(job)
    }

    pub(super) fn arrived(self) -> Job<F> {
        self.0
    }

    /// Releases everything. This may take seconds.
    pub(super) fn shut(self, done: bool) {
        self.0.shut(done);
    }
}

/// The admission of a rank, as far as it blocks.
#[derive(Debug)]
pub(super) struct Admission {
    pub(super) connection: ConnectionId,
    pub(super) hello: Hello,
    pub(super) keys: Keys,
    /// The secret that the rank has proved.
    pub(super) secret: Option<Secret>,
    /// When the rank was heard.
    pub(super) since: Instant,
}

/// A finished task.
#[derive(Debug)]
pub(super) enum Prepared<F: Fabric> {
    Admission {
        admission: Box<Admission>,
        /// The job, if this task has opened it.
        job: Option<Result<Box<Moving<F>>>>,
        /// Number of announced keys that have an alias now.
        accepted: Result<u64>,
    },
    /// The aliases of later keys of a rank.
    More {
        connection: ConnectionId,
        accepted: Result<u64>,
    },
}

/// Opens the job's UCX with `open`, and creates the aliases of the rank's keys.
pub(super) fn prepare<F: Fabric>(
    admission: Box<Admission>,
    open: Option<(F::Library, Limits, InboxLimits)>,
) -> Prepared<F> {
    let job = open.map(|(library, limits, inbox)| {
        Job::open(library, &admission.hello, limits, inbox).map(|job| Box::new(Moving(job)))
    });
    let accepted = match &job {
        Some(Err(_)) => Ok(0),
        _ => accept(&admission.keys.announcement),
    };
    Prepared::Admission {
        admission,
        job,
        accepted,
    }
}

/// Creates the aliases of announced keys.
pub(super) fn accept(announcement: &[u8]) -> Result<u64> {
    match Library::find() {
        Some(library) if !announcement.is_empty() => library
            .accept(announcement)
            .map_err(|error| crate::OffloadError::Failed(error.to_string())),
        _ => Ok(0),
    }
}
