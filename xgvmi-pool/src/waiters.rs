//! Those who wait for a key, served in the order in which they came.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::flight::Flight;
use crate::slots::SlotId;
use crate::sync::{AtomicUsize, Mutex, Ordering, fence, lock};

/// What a waiter is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// Here is a free key.
    Key(SlotId),
    /// There is room to create one.
    Room,
    /// The pool is closed.
    Closed,
}

/// The queue of waiters.
#[derive(Debug)]
pub(crate) struct Waiters {
    /// Length of the queue, to be looked at without the lock.
    waiting: AtomicUsize,
    queue: Mutex<VecDeque<Arc<Flight<Wake>>>>,
}

impl Waiters {
    pub(crate) fn new() -> Self {
        Self {
            waiting: AtomicUsize::new(0),
            queue: Mutex::new(VecDeque::new()),
        }
    }

    /// True if somebody waits. Whoever made a key free asks after that, and whoever waits looks for
    /// free keys after joining: with the fences on both sides one of them sees the other.
    pub(crate) fn any(&self) -> bool {
        fence(Ordering::SeqCst);
        self.waiting.load(Ordering::Relaxed) != 0
    }

    /// Joins the queue at its end, or at its front if it has been served in vain.
    pub(crate) fn join(&self, at_front: bool) -> Arc<Flight<Wake>> {
        let flight = Arc::new(Flight::new());
        let mut queue = lock(&self.queue);
        if at_front {
            queue.push_front(Arc::clone(&flight));
        } else {
            queue.push_back(Arc::clone(&flight));
        }
        self.waiting.store(queue.len(), Ordering::Relaxed);
        drop(queue);
        fence(Ordering::SeqCst);
        flight
    }

    /// Waits to be served, at most for `limit`; leaves the queue in any case.
    pub(crate) fn wait(&self, flight: &Arc<Flight<Wake>>, limit: Duration) -> Option<Wake> {
        if let Some(wake) = flight.wait(limit) {
            return Some(wake);
        }
        let mut queue = lock(&self.queue);
        if let Some(place) = queue.iter().position(|other| Arc::ptr_eq(other, flight)) {
            queue.remove(place);
            self.waiting.store(queue.len(), Ordering::Relaxed);
            return None;
        }
        drop(queue);
        // Served at the last moment: whoever took it off the queue lets it land.
        flight.wait(Duration::MAX)
    }

    /// Serves the first in the queue. False if there is nobody.
    pub(crate) fn serve(&self, wake: Wake) -> bool {
        let mut queue = lock(&self.queue);
        let first = queue.pop_front();
        self.waiting.store(queue.len(), Ordering::Relaxed);
        drop(queue);
        match first {
            Some(flight) => {
                flight.land(wake);
                true
            }
            None => false,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_first_in_the_queue_is_served_first() {
        let waiters = Waiters::new();
        let [first, second] = [(); 2].map(|()| waiters.join(false));
        let again = waiters.join(true);
        for flight in [again, first, second] {
            assert!(waiters.any());
            assert!(waiters.serve(Wake::Room));
            assert_eq!(waiters.wait(&flight, Duration::ZERO), Some(Wake::Room));
        }
        assert!(!waiters.any());
        assert!(!waiters.serve(Wake::Room), "nobody is left");
    }

    #[test]
    fn who_has_waited_too_long_leaves() {
        let waiters = Waiters::new();
        let flight = waiters.join(false);
        assert_eq!(waiters.wait(&flight, Duration::ZERO), None);
        assert!(!waiters.any());
    }
}
