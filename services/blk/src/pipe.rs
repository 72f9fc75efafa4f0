//! Calls over one connection, several at a time, by any number of threads. No thread of its own: one of the threads that
//! wait reads for all.

use std::collections::HashMap;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use xgvmi_daemon::{Link, poll};

/// Time after which a call that is late asks again whether it is given up.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// How answers name their calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Answers come in the order of the calls.
    InTurn,
    /// Each answer starts with the number of its call, 8 bytes, little endian.
    ByNumber,
}

/// Why a call has no answer. The connection is closed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Broken(pub(crate) String);

type Result<T> = std::result::Result<T, Broken>;

/// A connection with calls under way. After an error it stays closed: a late answer would be taken for another one.
#[derive(Debug)]
pub(crate) struct Pipe {
    order: Order,
    limit: Duration,
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Debug)]
struct State {
    link: Option<Link>,
    /// Why there is no link.
    reason: String,
    /// Number of the next call.
    next: u64,
    /// Number of the next answer, if they come in turn.
    taken: u64,
    /// Answers that nobody has taken yet.
    answers: HashMap<u64, Vec<u8>>,
    /// Calls without an answer.
    open: usize,
    /// A thread waits for the socket, without the lock.
    reading: bool,
    /// A closed connection whose socket that thread still waits for.
    left: Option<Link>,
}

impl Pipe {
    /// Calls over `link`. An answer that takes longer than `limit` closes it.
    pub(crate) fn new(link: Link, order: Order, limit: Duration) -> Self {
        Self {
            order,
            limit,
            state: Mutex::new(State {
                link: Some(link),
                reason: String::new(),
                next: 0,
                taken: 0,
                answers: HashMap::new(),
                open: 0,
                reading: false,
                left: None,
            }),
            arrived: Condvar::new(),
        }
    }

    /// Sends a call, which `bytes` makes of its number. Each number must be given to [`Pipe::wait`] once.
    pub(crate) fn send(&self, bytes: impl FnOnce(u64) -> Vec<u8>) -> Result<u64> {
        let mut state = self.state();
        let number = state.next;
        let link = state.link()?;
        if let Err(error) = link.send(&bytes(number)) {
            return Err(self.close(&mut state, error.to_string()));
        }
        state.next += 1;
        state.open += 1;
        Ok(number)
    }

    /// Waits for the answer to a call.
    pub(crate) fn wait(&self, number: u64) -> Result<Vec<u8>> {
        self.wait_longer(number, self.limit, |_| true)
    }

    /// As [`Pipe::wait`]. At the limit `gives_up` gets the reason and decides. The answer is awaited as long as it
    /// refuses, up to `longest`.
    pub(crate) fn wait_longer(
        &self,
        number: u64,
        longest: Duration,
        gives_up: impl Fn(&str) -> bool,
    ) -> Result<Vec<u8>> {
        let begun = Instant::now();
        let mut limit = self.limit;
        loop {
            if let Some(answer) = self.look(number, begun + limit)? {
                return Ok(answer);
            }
            let waited = begun.elapsed();
            if waited < limit {
                continue;
            }
            let reason = format!("no answer within {} ms", limit.as_millis());
            if limit >= longest || gives_up(&reason) {
                return Err(self.shut(&reason));
            }
            limit = (limit + self.limit.min(ASK_AGAIN)).min(longest);
        }
    }

    /// True if [`Pipe::wait`] does not block. Does not block either.
    pub(crate) fn has(&self, number: u64) -> bool {
        let mut state = self.state();
        if !state.reading && !state.answers.contains_key(&number) {
            // An error closes the connection, which the wait reports.
            let _ = self.receive(&mut state);
        }
        state.link.is_none() || state.answers.contains_key(&number)
    }

    /// Closes the connection: all calls fail.
    pub(crate) fn shut(&self, reason: &str) -> Broken {
        self.close(&mut self.state(), reason.to_owned())
    }

    /// True after an error.
    pub(crate) fn is_closed(&self) -> bool {
        self.state().link.is_none()
    }

    /// Waits until [`Pipe::wait`] does not block for one of these calls. False if that takes longer than `limit`.
    pub(crate) fn wait_any(&self, numbers: &[u64], limit: Duration) -> bool {
        let end = Instant::now() + limit;
        loop {
            let mut state = self.state();
            if !state.reading {
                // An error closes the connection, which the wait reports.
                let _ = self.receive(&mut state);
            }
            let has = |number: &u64| state.answers.contains_key(number);
            if state.link.is_none() || numbers.iter().any(has) {
                return true;
            }
            if Instant::now() >= end || self.arrive(state, end).is_err() {
                return self.has_any(numbers);
            }
        }
    }

    fn has_any(&self, numbers: &[u64]) -> bool {
        let state = self.state();
        state.link.is_none()
            || numbers
                .iter()
                .any(|number| state.answers.contains_key(number))
    }

    /// Takes the answer, or takes part in waiting for one.
    fn look(&self, number: u64, end: Instant) -> Result<Option<Vec<u8>>> {
        let mut state = self.state();
        if let Some(answer) = state.answers.remove(&number) {
            return Ok(Some(answer));
        }
        // Without a connection there is no answer.
        state.link()?;
        if end <= Instant::now() {
            return Ok(None);
        }
        self.arrive(state, end)?;
        Ok(self.state().answers.remove(&number))
    }

    /// Waits until something has arrived, at most until `end`. One thread reads for all.
    fn arrive(&self, mut state: MutexGuard<'_, State>, end: Instant) -> Result<()> {
        let left = end.saturating_duration_since(Instant::now());
        if state.reading {
            let waited = self.arrived.wait_timeout(state, left);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
            return Ok(());
        }
        let pollfd = state.link()?.pollfd();
        state.reading = true;
        drop(state);
        // Another thread may close the connection meanwhile, which ends the wait.
        let polled = poll(&mut [pollfd], Some(left));
        let mut state = self.state();
        state.reading = false;
        state.left = None;
        let received = match polled {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                Err(self.close(&mut state, error.to_string()))
            }
            _ => self.receive(&mut state),
        };
        // Another thread reads from here on.
        self.arrived.notify_all();
        received
    }

    /// Takes everything that has arrived.
    fn receive(&self, state: &mut State) -> Result<()> {
        loop {
            let link = state.link()?;
            let taken = link.flush().and_then(|()| link.take());
            let bytes = match taken {
                Ok(Some(bytes)) => bytes,
                Ok(None) => return Ok(()),
                Err(error) => return Err(self.close(state, error.to_string())),
            };
            let number = match (self.order, bytes.first_chunk()) {
                (Order::InTurn, _) => state.taken,
                (Order::ByNumber, Some(number)) => u64::from_le_bytes(*number),
                (Order::ByNumber, None) => u64::MAX,
            };
            if number >= state.next || state.open == 0 || state.answers.contains_key(&number) {
                return Err(self.close(state, "it answers no call".to_owned()));
            }
            state.taken += 1;
            state.open -= 1;
            state.answers.insert(number, bytes);
            self.arrived.notify_all();
        }
    }

    fn close(&self, state: &mut State, reason: String) -> Broken {
        if let Some(link) = state.link.take() {
            state.reason.clone_from(&reason);
            // SAFETY: an open socket of this process; no memory is involved. It ends a wait of another thread.
            unsafe { libc::shutdown(link.fd(), libc::SHUT_RDWR) };
            state.left = state.reading.then_some(link);
        }
        self.arrived.notify_all();
        Broken(state.reason.clone())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No holder panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn link(&mut self) -> Result<&mut Link> {
        let reason = &self.reason;
        self.link.as_mut().ok_or_else(|| Broken(reason.clone()))
    }
}
