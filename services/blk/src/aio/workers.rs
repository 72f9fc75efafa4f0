//! Threads that carry out requests, started as they are needed.

use crate::crew::{Crew, REQUESTS_MAX};
use crate::say::say;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A request. It catches panics of its own.
type Job = Box<dyn FnOnce() + Send>;

/// Carries out requests, several at once. The caller bounds their number. The threads keep nothing of a request after its end.
///
/// Dropping it does not wait: the requests that it has taken are still carried out, then the threads end.
pub struct Workers {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// A request, or the end.
    call: Condvar,
}

struct State {
    crew: Crew,
    jobs: VecDeque<Job>,
    ended: bool,
}

impl std::fmt::Debug for Workers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Workers").finish_non_exhaustive()
    }
}

impl Workers {
    /// Up to `width` requests at once, and never more than [`REQUESTS_MAX`].
    #[must_use]
    pub fn new(width: usize) -> Self {
        let state = State {
            crew: Crew::new(width.clamp(1, REQUESTS_MAX)),
            jobs: VecDeque::new(),
            ended: false,
        };
        Self {
            shared: Arc::new(Shared {
                state: Mutex::new(state),
                call: Condvar::new(),
            }),
        }
    }

    /// Takes a request. A panic of it is lost. Carries it out itself only if no thread can be started.
    pub fn submit(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.shared.state();
        state.jobs.push_back(Box::new(job));
        if !self.shared.call_another(&mut state) && state.crew.threads() == 0 {
            state.crew.join();
            self.shared.work(state, false);
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.state().ended = true;
        self.shared.call.notify_all();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // No panic happens while it is locked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes or starts a thread. False if there is none.
    fn call_another(self: &Arc<Self>, state: &mut State) -> bool {
        let start = || {
            let shared = Arc::clone(self);
            let thread = std::thread::Builder::new().name("blk-aio".to_owned());
            thread
                .spawn(move || shared.work(shared.state(), true))
                .map(drop)
        };
        let wake = || self.call.notify_one();
        state.crew.call(wake, start).unwrap_or_else(|error| {
            say(format_args!(
                "asynchronous requests have {} threads, and another one cannot be started: {error}",
                state.crew.threads()
            ));
            false
        })
    }

    /// Carries out requests until the end, or, if the thread does not `stay`, until there are no more.
    fn work<'a>(self: &'a Arc<Self>, mut state: MutexGuard<'a, State>, stay: bool) {
        loop {
            if let Some(job) = state.jobs.pop_front() {
                if !state.jobs.is_empty() {
                    // One that was woken for two requests has this one alone.
                    self.call_another(&mut state);
                }
                drop(state);
                // A waker or a buffer of the caller may panic, which is no reason to lose a thread.
                let _ = catch_unwind(AssertUnwindSafe(job));
                state = self.state();
                continue;
            }
            if state.ended || !stay {
                state.crew.leave();
                return;
            }
            state.crew.rest();
            state = self
                .call
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
            state.crew.rise();
        }
    }
}
