//! The component's state of a UCC context: settings, and the jobs of its teams.

use crate::job::Job;
use crate::places::Identity;
use crate::settings::{Fallback, OnFailure, Settings};
use crate::wait::Wait;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// The component's state of a UCC context.
pub(crate) struct ContextState {
    /// `ucc_context_t`.
    pub(crate) core: *mut c_void,
    /// The settings, or why the options are invalid.
    pub(crate) settings: Result<Settings, String>,
    pub(crate) fallback: Fallback,
    /// Teams keep their jobs.
    pub(crate) jobs: Mutex<Vec<Weak<Job>>>,
    /// Several threads of the program may use the context at the same time.
    pub(crate) is_shared: bool,
}

// SAFETY: the pointer is only passed back to UCC's own functions; the other fields are shared safely.
unsafe impl Send for ContextState {}
// SAFETY: as above.
unsafe impl Sync for ContextState {}

impl ContextState {
    /// A context without UCC, for tests of the teams.
    #[cfg(test)]
    pub(crate) fn with_settings(settings: Settings) -> Self {
        Self {
            core: std::ptr::null_mut(),
            settings: Ok(settings),
            fallback: Fallback::Host,
            jobs: Mutex::default(),
            is_shared: false,
        }
    }

    /// Whether the ranks of a team that the calling thread creates may introduce themselves. UCC's allgather mixes up teams
    /// that threads create at the same time, see `places.rs`. The process's main thread is the one that a program uses
    /// at all of its ranks.
    pub(crate) fn may_introduce_here(&self) -> bool {
        // SAFETY: both calls have no arguments and cannot fail.
        !self.is_shared || unsafe { libc::gettid() == libc::getpid() }
    }

    pub(crate) fn core(&self) -> *mut c_void {
        self.core
    }

    pub(crate) fn settings(&self) -> Result<&Settings, String> {
        self.settings.as_ref().map_err(Clone::clone)
    }

    /// What becomes of a team that cannot be offloaded. An invalid option means the hosts.
    pub(crate) fn fallback(&self) -> Fallback {
        self.fallback
    }

    pub(crate) fn on_failure(&self) -> OnFailure {
        self.settings
            .as_ref()
            .map_or(OnFailure::Error, |settings| settings.on_failure)
    }

    /// What a rank does while it waits.
    pub(crate) fn wait(&self) -> Wait {
        self.settings
            .as_ref()
            .map_or(Wait::Spin, |settings| settings.wait)
    }

    /// Maximum time of a collective; `None` for no limit.
    pub(crate) fn limit(&self) -> Option<Duration> {
        self.settings.as_ref().ok()?.client.limit
    }

    /// The jobs that have a team.
    pub(crate) fn jobs(&self) -> Vec<Arc<Job>> {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.iter().filter_map(Weak::upgrade).collect()
    }

    /// The oldest job to which all ranks of a team belong, and their ranks in it.
    pub(crate) fn job_of(&self, team: &Identity) -> Option<(Arc<Job>, Vec<u32>)> {
        let jobs = self.jobs().into_iter();
        jobs.filter_map(|job| job.members(team).map(|members| (job, members)))
            .next()
    }

    pub(crate) fn job(&self, id: u128) -> Option<Arc<Job>> {
        self.jobs().into_iter().find(|job| job.id == id)
    }

    pub(crate) fn add_job(&self, job: &Arc<Job>) {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.retain(|job| job.strong_count() > 0);
        jobs.push(Arc::downgrade(job));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_introduce_themselves_on_main_threads() {
        let context = |is_shared| ContextState {
            is_shared,
            ..ContextState::with_settings(Settings::of_services("127.0.0.1:1"))
        };
        for (is_shared, expect) in [(true, false), (false, true)] {
            let context = context(is_shared);
            std::thread::scope(|scope| {
                let other = scope.spawn(|| context.may_introduce_here()).join();
                assert_eq!(other.expect("no panic"), expect);
            });
        }
    }
}
