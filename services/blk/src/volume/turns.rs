//! What requests and commands of a volume wait for: flushes in their order, threads for groups, and the scrub.

use smallvec::SmallVec;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

/// Locks, the last of which is released first: a thread that waits for the first one finds the others free, and waits once.
#[derive(Debug)]
pub(super) struct Locks<G>(SmallVec<[G; 1]>);

impl<G> FromIterator<G> for Locks<G> {
    fn from_iter<T: IntoIterator<Item = G>>(guards: T) -> Self {
        Self(guards.into_iter().collect())
    }
}

impl<G> Drop for Locks<G> {
    fn drop(&mut self) {
        while self.0.pop().is_some() {}
    }
}

/// The order of flushes.
#[derive(Debug, Default)]
pub(super) struct Commits {
    /// Flushes that have begun.
    pub(super) begun: AtomicU64,
    /// The last one that was successful. Held during each.
    pub(super) done: Mutex<u64>,
    /// Held during each flush of all targets of those layouts whose targets keep what it is about.
    pub(super) flushing: Mutex<()>,
    /// Shared by the writes of such a layout. A flush of all targets begins between them.
    pub(super) writing: RwLock<()>,
}

/// Threads for that, of all requests.
const THREADS_MAX: usize = 16;

/// Threads that carry out groups beside those of their requests.
#[derive(Debug, Default)]
pub(super) struct Helpers(AtomicUsize);

/// One of them.
pub(super) struct Helper<'a>(&'a Helpers);

impl Helpers {
    pub(super) fn take(&self) -> Option<Helper<'_>> {
        let more = |count| (count < THREADS_MAX).then_some(count + 1);
        // Relaxed: a count orders nothing.
        let taken = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.is_ok().then_some(Helper(self))
    }
}

impl Drop for Helper<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether a scrub runs.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) runs: bool,
    pub(super) stops: bool,
}

/// The scrub of a volume that serves.
#[derive(Debug, Default)]
pub(super) struct Scrubbing {
    state: Mutex<State>,
    pub(super) stopped: Condvar,
}

impl Scrubbing {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // A panic cannot leave it half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn runs(&self) -> bool {
        self.state().runs
    }

    /// Waits until `end`, or the scrub is stopped. True if it goes on.
    pub(super) fn wait(&self, end: Instant) -> bool {
        let mut state = self.state();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if state.stops || left.is_zero() {
                return !state.stops;
            }
            let waited = self.stopped.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    struct Guard<'a>(usize, &'a RefCell<Vec<usize>>);

    impl Drop for Guard<'_> {
        fn drop(&mut self) {
            self.1.borrow_mut().push(self.0);
        }
    }

    #[test]
    fn the_last_lock_is_released_first() {
        let released = RefCell::default();
        let guards = (0..5).map(|nth| Guard(nth, &released));
        drop(guards.collect::<Locks<_>>());
        assert_eq!(*released.borrow(), [4, 3, 2, 1, 0]);
    }
}
