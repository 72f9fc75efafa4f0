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

/// Locks for blocks: so many that the groups of a client's requests have different ones.
const LOCKS: usize = 1024;

/// Excludes operations on the same block.
#[derive(Debug)]
pub(super) struct BlockLocks {
    locks: Vec<Mutex<()>>,
    /// Blocks with the same remainder share a lock.
    remainder: AtomicU64,
}

impl Default for BlockLocks {
    fn default() -> Self {
        Self {
            locks: (0..LOCKS).map(|_| Mutex::new(())).collect(),
            remainder: AtomicU64::new(LOCKS as u64),
        }
    }
}

impl BlockLocks {
    /// A block and its places in layers have one lock from now on: their remainder of `step` is the same. The caller holds all
    /// locks, unless nobody else knows of them.
    pub(super) fn share(&self, step: u64) {
        // Relaxed: who takes a lock behind the caller sees it.
        self.remainder.store(step, Ordering::Relaxed);
    }

    /// Excludes all operations.
    pub(super) fn all(&self) -> Locks<MutexGuard<'_, ()>> {
        let all = 0..self.locks.len() as u64;
        all.map(|number| self.numbered(number)).collect()
    }

    /// Excludes other operations on a block.
    pub(super) fn one(&self, block: u64) -> MutexGuard<'_, ()> {
        self.hold(|remainder| self.numbered(block % remainder))
    }

    /// Excludes other operations on blocks.
    pub(super) fn of(&self, blocks: impl Iterator<Item = u64>) -> Locks<MutexGuard<'_, ()>> {
        let blocks: SmallVec<[u64; 1]> = blocks.collect();
        self.hold(|remainder| {
            let mut locks: SmallVec<[u64; 1]> =
                blocks.iter().map(|block| block % remainder).collect();
            // In their order: two groups never wait for each other.
            locks.sort_unstable();
            locks.dedup();
            locks.into_iter().map(|lock| self.numbered(lock)).collect()
        })
    }

    /// Takes locks, again if other blocks share them since.
    fn hold<G>(&self, take: impl Fn(u64) -> G) -> G {
        loop {
            let remainder = self.remainder.load(Ordering::Relaxed);
            let guards = take(remainder);
            if self.remainder.load(Ordering::Relaxed) == remainder {
                return guards;
            }
        }
    }

    fn numbered(&self, lock: u64) -> MutexGuard<'_, ()> {
        // Cannot be cut: less than LOCKS.
        let index = usize::try_from(lock).unwrap_or(0);
        // The lock protects no data of its own.
        self.locks[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
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

    /// The groups that a client has under way do not wait for each other; with layers a block waits for its places.
    #[test]
    fn blocks_share_locks_as_layers_need_it() {
        let locks = BlockLocks::default();
        let is_free = |block: u64| {
            let number = block % locks.remainder.load(Ordering::Relaxed);
            locks.locks[usize::try_from(number).unwrap()]
                .try_lock()
                .is_ok()
        };
        let group = locks.of(5000..5064);
        assert!((5064..5000 + LOCKS as u64).all(is_free));
        assert!(!is_free(5000) && !is_free(5063 + LOCKS as u64));
        drop(group);
        // What was taken before others share its lock is taken again.
        let tries = RefCell::new(0);
        let held = locks.hold(|remainder| {
            *tries.borrow_mut() += 1;
            locks.share(256);
            remainder
        });
        assert_eq!((held, *tries.borrow()), (256, 2));
        let _group = locks.of([300, 310].into_iter());
        assert!(!is_free(44) && !is_free(300 + 256) && is_free(45));
    }

    #[test]
    fn the_last_lock_is_released_first() {
        let released = RefCell::default();
        let guards = (0..5).map(|nth| Guard(nth, &released));
        drop(guards.collect::<Locks<_>>());
        assert_eq!(*released.borrow(), [4, 3, 2, 1, 0]);
    }
}
