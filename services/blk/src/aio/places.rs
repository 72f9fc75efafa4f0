//! The places for requests under way: a bound, and who waits for one.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// A bounded number of places.
#[derive(Debug)]
pub(super) struct Places {
    depth: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    taken: usize,
    /// Who waits for a place, in the order of arrival.
    waiting: BTreeMap<u64, Waker>,
    next: u64,
    closed: bool,
    /// Who waits for the end of all requests.
    closers: Vec<Waker>,
}

/// The answer to who wants a place.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// It has one.
    Taken,
    /// There is none. Its number in the order of arrival.
    Waits(u64),
    /// No request begins any more.
    Closed,
}

impl Places {
    pub(super) fn new(depth: usize) -> Self {
        Self {
            depth,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A waker that panics cannot leave it half changed: none is called under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place, or waits for one under the number of an earlier attempt.
    pub(super) fn enter(&self, number: Option<u64>, waker: &Waker) -> Entry {
        let mut state = self.state();
        if state.closed || state.taken < self.depth {
            if let Some(number) = number {
                state.waiting.remove(&number);
            }
            if state.closed {
                return Entry::Closed;
            }
            state.taken += 1;
            let next = self.next(&mut state);
            drop(state);
            wake(next);
            return Entry::Taken;
        }
        let number = number.unwrap_or_else(|| {
            state.next += 1;
            state.next
        });
        state.waiting.insert(number, waker.clone());
        Entry::Waits(number)
    }

    /// Frees a place.
    pub(super) fn leave(&self) {
        let mut state = self.state();
        state.taken -= 1;
        let closers = match state.taken {
            0 => std::mem::take(&mut state.closers),
            _ => Vec::new(),
        };
        let next = self.next(&mut state);
        drop(state);
        wake(next);
        wake(closers);
    }

    /// Somebody waits no more. If it was called already, the next one is called.
    pub(super) fn forget(&self, number: u64) {
        let mut state = self.state();
        let next = match state.waiting.remove(&number) {
            Some(_) => None,
            None => self.next(&mut state),
        };
        drop(state);
        wake(next);
    }

    /// The next one that waits, if there is a place for it.
    fn next(&self, state: &mut State) -> Option<Waker> {
        let is_free = state.taken < self.depth;
        is_free
            .then(|| state.waiting.pop_first())?
            .map(|next| next.1)
    }

    /// No request begins any more.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        wake(waiting.into_values());
    }

    /// Ready when no request is under way.
    pub(super) fn poll_empty(&self, context: &Context<'_>) -> Poll<()> {
        let mut state = self.state();
        if state.taken == 0 {
            return Poll::Ready(());
        }
        let waker = context.waker();
        if !state.closers.iter().any(|other| other.will_wake(waker)) {
            state.closers.push(waker.clone());
        }
        Poll::Pending
    }
}

fn wake(wakers: impl IntoIterator<Item = Waker>) {
    wakers.into_iter().for_each(Waker::wake);
}
