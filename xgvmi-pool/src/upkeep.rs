//! What a pool does beside the exports: creating keys before they are needed, and destroying those
//! that have not been needed for long. By call, or in a thread of the pool's own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::core::Core;
use crate::device::MkeyDevice;
use crate::slots::State;

/// Keys that one round of upkeep creates or destroys at most: at hundreds of microseconds each, a
/// round takes some tens of milliseconds.
const ROUND_MAX: u32 = 64;

/// How often the keeper looks for keys that are not needed, as a part of [`PoolPolicy::age`].
///
/// [`PoolPolicy::age`]: crate::PoolPolicy::age
const LOOKS_PER_AGE: u32 = 4;

/// Longest sleep of the keeper.
const SLEEP_MAX: Duration = Duration::from_secs(60);

/// How long closing waits for the keeper, which may be in a command.
const STOP_WAIT: Duration = Duration::from_secs(5);

/// The line to the keeper thread, if there is one.
#[derive(Debug)]
pub(crate) struct KeeperHandle {
    /// There is work for the keeper. Set without the lock by those who lease.
    wanted: Arc<AtomicBool>,
    state: Arc<(Mutex<Keeper>, Condvar)>,
}

#[derive(Debug, Default)]
struct Keeper {
    thread: Option<thread::ThreadId>,
    stopped: bool,
    gone: bool,
    /// Since when the shelf has been watched for keys that nobody needs.
    since: Option<Instant>,
    /// Keys that nobody needed and that are still to be destroyed.
    surplus: usize,
}

/// What a round of upkeep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Upkeep {
    /// Keys created.
    pub created: u32,
    /// Keys destroyed.
    pub destroyed: u32,
}

impl KeeperHandle {
    pub(crate) fn new() -> Self {
        Self {
            wanted: Arc::default(),
            state: Arc::default(),
        }
    }

    /// Wakes the keeper up: there are fewer free keys than there should be.
    pub(crate) fn kick(&self) {
        // Most of the time it has been told already, and a load tells.
        if !self.wanted.load(Ordering::Relaxed) && !self.wanted.swap(true, Ordering::Relaxed) {
            // Under the lock, so that it falls before the keeper's look or into its sleep.
            let _keeper = lock(&self.state.0);
            self.state.1.notify_all();
        }
    }

    /// Ends the keeper, and waits for it unless it is the caller.
    pub(crate) fn stop(&self) {
        let mut keeper = lock(&self.state.0);
        keeper.stopped = true;
        self.state.1.notify_all();
        let deadline = Instant::now() + STOP_WAIT;
        while let Some(id) = keeper.thread
            && id != thread::current().id()
            && !keeper.gone
        {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            keeper = wait(&self.state.1, keeper, left);
        }
    }
}

impl<D: MkeyDevice> Core<D> {
    /// One round: creates up to the high mark if there are fewer free keys than the low one, and
    /// destroys what was not needed for the policy's age beyond the high one.
    pub(crate) fn upkeep(&self) -> Upkeep {
        let (low, high) = (self.policy.low as usize, self.policy.high as usize);
        let mut done = Upkeep::default();
        if self.enter().is_err() {
            return done;
        }
        if self.shelf.queued() < low {
            while done.created < ROUND_MAX && self.shelf.queued() < high {
                match self.create(State::Free) {
                    Ok(id) => {
                        self.shelf.add(id);
                        done.created += 1;
                    }
                    Err(_) => break,
                }
            }
        }
        let surplus = self.surplus();
        for _ in 0..surplus {
            let (Ok(_inside), Some(id)) = (self.enter(), self.shelf.retire()) else {
                break;
            };
            self.slots.advance(id, State::Free, State::Unsure);
            if self.destroy(id).is_ok() {
                self.counters.aged.one();
                done.destroyed += 1;
            }
        }
        done
    }

    /// Keys for this round to destroy: of those that nobody needed for the policy's age, as many as
    /// there are beyond the high mark.
    fn surplus(&self) -> usize {
        let mut keeper = lock(&self.keeper.state.0);
        let now = Instant::now();
        let since = *keeper.since.get_or_insert(now);
        if now.duration_since(since) >= self.policy.age {
            keeper.since = Some(now);
            keeper.surplus = self.shelf.idle().saturating_sub(self.policy.high as usize);
        }
        let surplus = keeper.surplus.min(ROUND_MAX as usize);
        keeper.surplus -= surplus;
        surplus
    }

    /// Starts the keeper thread. False if the system gives none; upkeep is then the caller's.
    pub(crate) fn start_keeper(self: &Arc<Self>) -> bool {
        let wanted = Arc::clone(&self.keeper.wanted);
        // Its first round fills the pool up to the mark.
        wanted.store(true, Ordering::Relaxed);
        let (state, core) = (Arc::clone(&self.keeper.state), Arc::downgrade(self));
        let sleep = (self.policy.age / LOOKS_PER_AGE).min(SLEEP_MAX);
        let body = move || {
            loop {
                let mut keeper = lock(&state.0);
                if !wanted.load(Ordering::Relaxed) && !keeper.stopped {
                    keeper = wait(&state.1, keeper, sleep);
                }
                wanted.store(false, Ordering::Relaxed);
                if keeper.stopped {
                    break;
                }
                drop(keeper);
                // Held for one round only: the pool ends with its last handle.
                let Some(core) = core.upgrade() else {
                    break;
                };
                let done = core.upkeep();
                if done.created.max(done.destroyed) == ROUND_MAX {
                    // There is more to do.
                    wanted.store(true, Ordering::Relaxed);
                }
            }
            lock(&state.0).gone = true;
            state.1.notify_all();
        };
        match thread::Builder::new()
            .name("xgvmi-keeper".to_owned())
            .spawn(body)
        {
            Ok(handle) => {
                lock(&self.keeper.state.0).thread = Some(handle.thread().id());
                true
            }
            Err(_) => false,
        }
    }
}

fn lock(keeper: &Mutex<Keeper>) -> MutexGuard<'_, Keeper> {
    keeper.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait<'a>(
    condvar: &Condvar,
    guard: MutexGuard<'a, Keeper>,
    limit: Duration,
) -> MutexGuard<'a, Keeper> {
    match condvar.wait_timeout(guard, limit) {
        Ok((guard, _timed_out)) => guard,
        Err(poisoned) => poisoned.into_inner().0,
    }
}
