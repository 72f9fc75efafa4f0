//! Threads that wait for a key, served in the order of their arrival.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::flight::Flight;
use crate::slots::SlotId;
use crate::sync::{AtomicUsize, Mutex, Ordering, fence, lock};

/// Result of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// A free key.
    Key(SlotId),
    /// The pool may create a key.
    SlotVacated,
    /// The pool is closed.
    Closed,
}

/// The queue of waiters.
#[derive(Debug)]
pub(crate) struct Waiters {
    /// Length of the queue, readable without the lock.
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

    /// True if a thread waits. A thread that frees a key calls this afterwards, and a waiter
    /// searches for free keys after it joined the queue. The fences on both sides ensure that one
    /// of them sees the other.
    pub(crate) fn any(&self) -> bool {
        fence(Ordering::SeqCst);
        self.waiting.load(Ordering::Relaxed) != 0
    }

    /// Joins the queue at its end. A waiter that was woken without success joins at the front.
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

    /// Waits to be served, at most for `limit`. Leaves the queue in any case.
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
        // Served at the last moment: the thread that removed it from the queue will complete the
        // flight.
        flight.wait(Duration::MAX)
    }

    /// Serves the first waiter. False if there is none.
    pub(crate) fn serve(&self, wake: Wake) -> bool {
        let mut queue = lock(&self.queue);
        let first = queue.pop_front();
        self.waiting.store(queue.len(), Ordering::Relaxed);
        drop(queue);
        match first {
            Some(flight) => {
                flight.complete(wake);
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
            assert!(waiters.serve(Wake::SlotVacated));
            assert_eq!(
                waiters.wait(&flight, Duration::ZERO),
                Some(Wake::SlotVacated)
            );
        }
        assert!(!waiters.any());
        assert!(!waiters.serve(Wake::SlotVacated), "nobody is left");
    }

    #[test]
    fn who_has_waited_too_long_leaves() {
        let waiters = Waiters::new();
        let flight = waiters.join(false);
        assert_eq!(waiters.wait(&flight, Duration::ZERO), None);
        assert!(!waiters.any());
    }
}
