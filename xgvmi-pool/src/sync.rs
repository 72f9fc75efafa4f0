//! The door to locks and atomics: std's, or loom's when the crate is built with `--cfg loom`, so
//! that every interleaving of our own protocols can be tried. [`CountedArc`] is for what is decided
//! by a look at the count; what is merely shared is in an ordinary `Arc`.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, fence,
};
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Arc as CountedArc, Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, fence,
};
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
    items: crossbeam_queue::ArrayQueue<T>,
    /// Crossbeam's queue is not made for loom; what is modelled is what we do with it.
    #[cfg(loom)]
    items: Mutex<std::collections::VecDeque<T>>,
}

#[cfg(not(loom))]
impl<T> Queue<T> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            items: crossbeam_queue::ArrayQueue::new(capacity.max(1)),
        }
    }

    pub(crate) fn push(&self, item: T) {
        assert!(
            self.items.push(item).is_ok(),
            "more in a queue than there is"
        );
    }

    pub(crate) fn pop(&self) -> Option<T> {
        self.items.pop()
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
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
