//! A thread that does rounds of upkeep: in time, or when somebody calls for it. What a round is, its
//! owner says.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Longest sleep of a keeper.
const SLEEP_MAX: Duration = Duration::from_secs(60);

/// How long ending waits for the keeper, which may be in a command.
const STOP_WAIT: Duration = Duration::from_secs(5);

/// The line to the thread, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Keeper {
    /// There is work. Set without the lock by those who lease.
    wanted: Arc<AtomicBool>,
    state: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Debug, Default)]
struct State {
    thread: Option<thread::ThreadId>,
    stopped: bool,
    gone: bool,
}

/// What a round came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Round {
    /// There is no more to do for now.
    Done,
    /// The round was cut short: there is more to do.
    More,
    /// There is more to do after this time.
    After(Duration),
    /// There is nobody left to do it for.
    Over,
}

impl Keeper {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Starts the thread, which does a round at once and then whenever it has slept for `sleep` or
    /// is called. False if the system gives none; upkeep is then the caller's.
    pub(crate) fn start(
        &self,
        sleep: Duration,
        mut round: impl FnMut() -> Round + Send + 'static,
    ) -> bool {
        let (wanted, state) = (Arc::clone(&self.wanted), Arc::clone(&self.state));
        wanted.store(true, Ordering::Relaxed);
        // Zero would make it spin.
        let sleep = sleep.clamp(Duration::from_millis(1), SLEEP_MAX);
        let body = move || {
            let mut pause = sleep;
            loop {
                let mut keeper = lock(&state.0);
                if !wanted.load(Ordering::Relaxed) && !keeper.stopped {
                    keeper = wait(&state.1, keeper, pause);
                }
                pause = sleep;
                wanted.store(false, Ordering::Relaxed);
                if keeper.stopped {
                    break;
                }
                drop(keeper);
                match round() {
                    Round::Done => {}
                    Round::More => wanted.store(true, Ordering::Relaxed),
                    Round::After(time) => pause = time.min(sleep),
                    Round::Over => break,
                }
            }
            lock(&state.0).gone = true;
            state.1.notify_all();
        };
        let thread = thread::Builder::new().name("xgvmi-keeper".to_owned());
        match thread.spawn(body) {
            Ok(handle) => {
                lock(&self.state.0).thread = Some(handle.thread().id());
                true
            }
            Err(_) => false,
        }
    }

    /// Calls the thread.
    pub(crate) fn kick(&self) {
        // Most of the time it has been told already, and a load tells.
        if !self.wanted.load(Ordering::Relaxed) && !self.wanted.swap(true, Ordering::Relaxed) {
            // Under the lock, so that it falls before the keeper's look or into its sleep.
            let _keeper = lock(&self.state.0);
            self.state.1.notify_all();
        }
    }

    /// Ends the thread, and waits for it unless it is the caller.
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
