//! Jobs of fio, and their requests under way.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use xgvmi_blk::BlkError;
use xgvmi_blk::client::{Io, Spec, Ticket, Volume};

/// Name of a request: its address in fio.
pub(crate) type Name = usize;

/// A request that is not under way yet.
#[derive(Debug)]
struct Waiting(Name, Io);

// SAFETY: the memory is fio's, which leaves it alone until the request has ended.
unsafe impl Send for Waiting {}

/// A job of fio with its connection.
#[derive(Debug)]
pub(crate) struct Connected {
    volume: Volume,
    /// A service that answers nothing for this time counts as gone.
    limit: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    open: Vec<(Name, Ticket)>,
    /// More requests than the service takes at once. fio could be told to try again, but then it draws the seeds of
    /// requests that it verifies twice, and finds its own data wrong.
    waiting: VecDeque<Waiting>,
    /// Requests that the last wait found, each with a number of errno or 0.
    done: Vec<(Name, c_int)>,
    /// A reason was printed.
    said: bool,
}

impl Connected {
    pub(crate) fn new(spec: &Spec) -> Result<Self, BlkError> {
        Ok(Self {
            volume: Volume::connect(spec)?,
            limit: spec.limit,
            state: Mutex::default(),
        })
    }

    /// Starts a request, now or when another one has ended.
    ///
    /// # Safety
    /// As for [`Volume::submit`], until the request has been taken or dropped.
    pub(crate) unsafe fn hand(&self, name: Name, io: Io) -> Result<(), c_int> {
        let mut state = self.state();
        // In the order of their arrival.
        let submitted = if state.waiting.is_empty() {
            // SAFETY: the caller's promise.
            unsafe { self.volume.submit(io) }
        } else {
            Ok(None)
        };
        match submitted {
            Ok(Some(ticket)) => state.open.push((name, ticket)),
            Ok(None) => state.waiting.push_back(Waiting(name, io)),
            Err(error) => return Err(state.errno(&error)),
        }
        Ok(())
    }

    /// Starts requests that have waited. One that cannot be started is done, of which fio takes `most` at most.
    fn go_on(&self, state: &mut State, most: usize) {
        while state.done.len() < most
            && let Some(Waiting(name, io)) = state.waiting.front()
        {
            let (name, io) = (*name, *io);
            // SAFETY: the promise of `hand`.
            match unsafe { self.volume.submit(io) } {
                Ok(Some(ticket)) => state.open.push((name, ticket)),
                Ok(None) => return,
                Err(error) => {
                    let errno = state.errno(&error);
                    state.done.push((name, errno));
                }
            }
            state.waiting.pop_front();
        }
    }

    /// Waits for `least` requests, or until `limit`; takes `most` at most. Returns their number.
    pub(crate) fn wait(&self, least: usize, most: usize, limit: Option<Duration>) -> usize {
        // A limit beyond the clock's end is none.
        let end = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut state = self.state();
        state.done.clear();
        loop {
            let mut at = 0;
            while at < state.open.len() && state.done.len() < most {
                if state.open[at].1.is_done() {
                    state.end(at);
                } else {
                    at += 1;
                }
            }
            self.go_on(&mut state, most);
            let left = end.map_or(self.limit, |end| {
                end.saturating_duration_since(Instant::now())
            });
            if state.done.len() >= least || state.open.is_empty() || left.is_zero() {
                return state.done.len();
            }
            let tickets: Vec<&Ticket> = state.open.iter().map(|(_, ticket)| ticket).collect();
            if !Ticket::wait_any(&tickets, left) && end.is_none() {
                // Its own wait closes the connection, so that the others end as well.
                state.end(0);
            }
        }
    }

    /// A request of the last wait.
    pub(crate) fn take(&self, index: usize) -> Option<(Name, c_int)> {
        self.state().done.get(index).copied()
    }

    /// Ends a request whose memory goes away.
    pub(crate) fn forget(&self, name: Name) {
        let mut state = self.state();
        state.waiting.retain(|Waiting(waiting, _)| *waiting != name);
        state.open.retain(|(open, _)| *open != name);
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        // The lists are whole between two statements.
        self.state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl State {
    /// Waits for a request.
    fn end(&mut self, at: usize) {
        let (name, ticket) = self.open.remove(at);
        let errno = match ticket.wait() {
            Ok(()) => 0,
            Err(error) => self.errno(&error),
        };
        self.done.push((name, errno));
    }

    /// The number that fio gets. The reason of the first error is printed.
    fn errno(&mut self, error: &BlkError) -> c_int {
        if !self.said {
            crate::say(&error.to_string());
            self.said = true;
        }
        errno(error)
    }
}

/// The number of errno for an error.
pub(crate) fn errno(error: &BlkError) -> c_int {
    match error {
        error if error.is_full() => libc::ENOSPC,
        BlkError::Geometry(_) | BlkError::Argument(_) => libc::EINVAL,
        BlkError::Disconnected { .. } => libc::ECONNRESET,
        BlkError::Denied { .. } => libc::EPERM,
        _ => libc::EIO,
    }
}
