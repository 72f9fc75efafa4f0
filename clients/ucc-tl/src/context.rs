//! The component's state of a UCC context: settings, and the jobs of its teams.

use crate::job::Job;
use crate::settings::{Fallback, OnFailure, Settings};
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The component's state of a UCC context.
pub(crate) struct ContextState {
    /// `ucc_context_t`.
    pub(crate) core: *mut c_void,
    /// The settings, or why the options are invalid.
    pub(crate) settings: Result<Settings, String>,
    pub(crate) fallback: Fallback,
    pub(crate) jobs: Mutex<Vec<Arc<Job>>>,
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

    /// Whether a team that the calling thread creates can be served. UCC's allgather, by which the ranks of a team introduce
    /// themselves, mixes up teams that threads create at the same time: one tag serves all of them (`tl_ucp_coll.h`,
    /// `UCC_TL_UCP_SERVICE_TAG`). The process's main thread is the one that a program uses at all of its ranks.
    pub(crate) fn may_create_here(&self) -> bool {
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

    /// Maximum time of a collective; `None` for no limit.
    pub(crate) fn limit(&self) -> Option<Duration> {
        self.settings.as_ref().ok()?.client.limit
    }

    pub(crate) fn jobs(&self) -> Vec<Arc<Job>> {
        self.jobs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn job(&self, id: u128) -> Option<Arc<Job>> {
        self.jobs().into_iter().find(|job| job.id == id)
    }

    pub(crate) fn add_job(&self, job: &Arc<Job>) {
        self.jobs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Arc::clone(job));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn teams_of_other_threads_are_left_to_ucc() {
        let context = |is_shared| ContextState {
            is_shared,
            ..ContextState::with_settings(Settings::of_services("127.0.0.1:1"))
        };
        for (is_shared, expect) in [(true, false), (false, true)] {
            let context = context(is_shared);
            std::thread::scope(|scope| {
                let other = scope.spawn(|| context.may_create_here()).join();
                assert_eq!(other.expect("no panic"), expect);
            });
        }
    }
}
