//! A thread that runs rounds of upkeep, periodically or on request. The owner supplies the function
//! of a round.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::signals;
use crate::sync::{AtomicBool, Ordering, fence};

/// Longest sleep of a keeper.
const SLEEP_MAX: Duration = Duration::from_secs(60);

/// Maximum time that stopping waits for the thread, which may be in a device command.
const STOP_WAIT: Duration = Duration::from_secs(5);

/// Maximum number of keys that one round creates or destroys. With hundreds of microseconds per
/// key, a round takes some tens of milliseconds.
pub(crate) const ROUND_MAX: u32 = 64;

/// Number of keeper rounds per policy age.
pub(crate) const LOOKS_PER_AGE: u32 = 4;

/// Control of the thread, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Keeper {
    /// A round is requested. Leases set it without the lock.
    wanted: Arc<Wanted>,
    state: Arc<(Mutex<State>, Condvar)>,
}

/// A request for a round. A thread asks after it has changed the pool, and the keeper looks at the pool after it has taken
/// the request. The fences ensure that the keeper sees the change, or that the request stays.
#[derive(Debug)]
pub(crate) struct Wanted(AtomicBool);

impl Default for Wanted {
    fn default() -> Self {
        Self(AtomicBool::new(false))
    }
}

impl Wanted {
    /// Requests a round. True if the keeper may sleep.
    pub(crate) fn ask(&self) -> bool {
        fence(Ordering::SeqCst);
        // The flag is usually set already, and then a load is enough.
        !self.0.load(Ordering::Relaxed) && !self.0.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Takes the request. The round follows.
    pub(crate) fn take(&self) {
        self.0.store(false, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

#[derive(Debug, Default)]
struct State {
    thread: Option<thread::ThreadId>,
    stopped: bool,
    gone: bool,
}

/// Result of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Round {
    /// The work is complete for now.
    Done,
    /// The round hit its limit and more work remains.
    More,
    /// More work follows after this time.
    After(Duration),
    /// The owner is gone.
    Over,
}

impl Keeper {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Starts the thread. It runs a round at once, and then after each sleep of `sleep` or on
    /// request. False if the system starts no thread. The caller must then run upkeep.
    pub(crate) fn start(
        &self,
        sleep: Duration,
        mut round: impl FnMut() -> Round + Send + 'static,
    ) -> bool {
        let (wanted, state) = (Arc::clone(&self.wanted), Arc::clone(&self.state));
        let _sleeps = wanted.ask();
        // Zero would make it spin.
        let sleep = sleep.clamp(Duration::from_millis(1), SLEEP_MAX);
        let body = move || {
            let mut pause = sleep;
            loop {
                let mut keeper = lock(&state.0);
                if !wanted.is_set() && !keeper.stopped {
                    keeper = wait(&state.1, keeper, pause);
                }
                pause = sleep;
                wanted.take();
                if keeper.stopped {
                    break;
                }
                drop(keeper);
                match round() {
                    Round::Done => {}
                    Round::More => {
                        let _is_this_thread = wanted.ask();
                    }
                    Round::After(time) => pause = time.min(sleep),
                    Round::Over => break,
                }
            }
            lock(&state.0).gone = true;
            state.1.notify_all();
        };
        let thread = thread::Builder::new().name("xgvmi-keeper".to_owned());
        match signals::blocked(|| thread.spawn(body)) {
            Ok(handle) => {
                lock(&self.state.0).thread = Some(handle.thread().id());
                true
            }
            Err(_) => false,
        }
    }

    /// Requests a round.
    pub(crate) fn kick(&self) {
        if self.wanted.ask() {
            // Under the lock: the request then arrives before the keeper's check or during its
            // sleep.
            let _keeper = lock(&self.state.0);
            self.state.1.notify_all();
        }
    }

    /// Stops the thread. Waits for its end unless the caller is the thread itself.
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

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait<'a>(
    condvar: &Condvar,
    guard: MutexGuard<'a, State>,
    limit: Duration,
) -> MutexGuard<'a, State> {
    match condvar.wait_timeout(guard, limit) {
        Ok((guard, _timed_out)) => guard,
        Err(poisoned) => poisoned.into_inner().0,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_round_is_done_at_once_when_called_and_as_long_as_there_is_more() {
        let keeper = Keeper::new();
        let (tell, told) = mpsc::channel();
        let mut rounds = 0;
        let started = keeper.start(Duration::from_secs(3600), move || {
            rounds += 1;
            let _gone = tell.send(rounds);
            if rounds == 2 {
                Round::More
            } else {
                Round::Done
            }
        });
        assert!(started);
        let next = || told.recv_timeout(Duration::from_secs(60));
        assert_eq!(next(), Ok(1), "at once");
        keeper.kick();
        assert_eq!(next(), Ok(2), "when called");
        assert_eq!(next(), Ok(3), "there was more to do");
        keeper.stop();
        assert_eq!(
            next(),
            Err(mpsc::RecvTimeoutError::Disconnected),
            "it is gone"
        );
    }
}
