//! The door to locks and atomics: std's, or loom's when the crate is built with `--cfg loom`, so
//! that every interleaving of our own protocols can be tried. [`CountedArc`] is for what is decided
//! by a look at the count; what is merely shared is in an ordinary `Arc`.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Arc as CountedArc, Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, fence};
#[cfg(loom)]
pub(crate) use loom::sync::{
    Arc as CountedArc, Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

pub(crate) use std::sync::atomic::Ordering;
#[cfg(not(loom))]
pub(crate) use std::thread::yield_now;

#[cfg(loom)]
pub(crate) use loom::thread::yield_now;

/// Takes a lock. A panic of another thread inside one of our short critical sections leaves the
/// data whole, as none of them calls out, so poison is not passed on: the plugin lives in a foreign
/// process and must not fall over its own locks.
#[inline]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Takes a read lock; of poison as [`lock`].
#[inline]
pub(crate) fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Takes a write lock; of poison as [`lock`].
#[inline]
pub(crate) fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Numbers threads as they come, so that the first ones get a tray each.
#[cfg(not(loom))]
#[inline]
pub(crate) fn thread_number() -> usize {
    use std::cell::Cell;

    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    let number = NUMBER.get();
    if number != usize::MAX {
        return number;
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    NUMBER.set(number);
    number
}

/// Loom's threads all run on one of the system's, so their numbers are in loom's hands.
#[cfg(loom)]
pub(crate) fn thread_number() -> usize {
    loom::lazy_static! {
        static ref NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    }
    loom::thread_local! {
        static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}

/// A bounded queue for all threads, first in, first out. What is in it is in one place at a time, and
/// there is room for all of it, so it is never full.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    #[cfg(not(loom))]
    first: crossbeam_queue::ArrayQueue<T>,
    /// Room for all of it, made when there is more than a few. From then on everything goes there,
    /// and what is in the first comes out before it.
    #[cfg(not(loom))]
    rest: std::sync::OnceLock<crossbeam_queue::ArrayQueue<T>>,
    #[cfg(not(loom))]
    capacity: usize,
    /// Crossbeam's queue is not made for loom; what is modelled is what we do with it.
    #[cfg(loom)]
    items: Mutex<std::collections::VecDeque<T>>,
}

#[cfg(not(loom))]
impl<T> Queue<T> {
    /// A queue touches all of its memory when it is made, and most pools stay far below what they
    /// may have: so many are made room for at first.
    const FEW: usize = 64;

    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            first: crossbeam_queue::ArrayQueue::new(capacity.clamp(1, Self::FEW)),
            rest: std::sync::OnceLock::new(),
            capacity,
        }
    }

    pub(crate) fn push(&self, item: T) {
        let left = match self.rest.get() {
            Some(rest) => rest.push(item),
            // Whoever is late and pushes here while another thread makes the rest, is early in the
            // order by that; nothing is lost, because this one is always looked into.
            None => match self.first.push(item) {
                Err(item) if self.capacity > Self::FEW => {
                    let room = || crossbeam_queue::ArrayQueue::new(self.capacity);
                    self.rest.get_or_init(room).push(item)
                }
                pushed => pushed,
            },
        };
        assert!(left.is_ok(), "more in a queue than there is");
    }

    pub(crate) fn pop(&self) -> Option<T> {
        let rest = || self.rest.get()?.pop();
        self.first.pop().or_else(rest)
    }

    pub(crate) fn len(&self) -> usize {
        let rest = self.rest.get().map(crossbeam_queue::ArrayQueue::len);
        self.first.len() + rest.unwrap_or_default()
    }
}

#[cfg(loom)]
impl<T> Queue<T> {
    pub(crate) fn new(_capacity: usize) -> Self {
        Self {
            items: Mutex::new(std::collections::VecDeque::new()),
        }
    }

    pub(crate) fn push(&self, item: T) {
        lock(&self.items).push_back(item);
    }

    pub(crate) fn pop(&self) -> Option<T> {
        lock(&self.items).pop_front()
    }

    pub(crate) fn len(&self) -> usize {
        lock(&self.items).len()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_queue_grows_once_and_keeps_its_order() {
        let queue = Queue::new(1000);
        for round in 0..3 {
            for item in 0..1000 {
                queue.push(1000 * round + item);
            }
            assert_eq!(queue.len(), 1000);
            for item in 0..1000 {
                assert_eq!(queue.pop(), Some(1000 * round + item));
            }
            assert_eq!((queue.pop(), queue.len()), (None, 0));
        }
    }

    #[test]
    fn nothing_is_lost_while_it_grows() {
        const THREADS: usize = 4;
        const ITEMS: usize = 200;
        for _ in 0..50 {
            let queue = Queue::new(THREADS * ITEMS);
            let found = std::thread::scope(|scope| {
                let work = |thread: usize| {
                    let mut found = Vec::new();
                    for item in 0..ITEMS {
                        queue.push(thread * ITEMS + item);
                        if item % 3 == 0 {
                            found.extend(queue.pop());
                        }
                    }
                    found
                };
                let threads: Vec<_> = (0..THREADS)
                    .map(|thread| scope.spawn(move || work(thread)))
                    .collect();
                let joined = threads.into_iter().map(|thread| thread.join());
                let mut found: Vec<_> = joined.flatten().flatten().collect();
                found.extend(std::iter::from_fn(|| queue.pop()));
                found
            });
            let mut found = found;
            found.sort_unstable();
            assert!(found.into_iter().eq(0..THREADS * ITEMS));
        }
    }
}
