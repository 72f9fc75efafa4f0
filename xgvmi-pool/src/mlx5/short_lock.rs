//! A lock for the few instructions of a post or of a poll. It has no poison, and its end is one plain
//! store, so an export and its release save four locked instructions against the standard library's.
//!
//! A thread that finds it held marks it as wanted, spins, then yields, then sleeps: its holder posts
//! for some hundred nanoseconds, unless the system has preempted the holder or a queue is created or
//! destroyed. A holder that waits for something else looks at the mark and gives way.

use std::cell::UnsafeCell;
use std::hint;
use std::ops::{Deref, DerefMut};
use std::thread;
use std::time::Duration;

use crate::sync::{AtomicU32, Ordering};

/// Looks at the lock between two yields: about two microseconds.
const SPINS: u32 = 64;
/// Yields before the thread sleeps between its looks.
const YIELDS: u32 = 64;
/// This sleep.
const NAP: Duration = Duration::from_micros(50);

/// No thread holds the lock.
const FREE: u32 = 0;
/// A thread holds it.
const HELD: u32 = 1;
/// A thread holds it, and another thread waits for it. A thread that tries the lock may remove this
/// mark; those that wait set it again.
const WANTED: u32 = 2;

/// The lock and its value.
#[derive(Debug)]
pub(super) struct ShortLock<T> {
    /// [`FREE`], [`HELD`] or [`WANTED`].
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: `Held` is the only access through a shared reference, and `state` admits one at a time.
unsafe impl<T: Send> Sync for ShortLock<T> {}

/// The held lock, until the drop.
#[derive(Debug)]
pub(super) struct Held<'a, T>(&'a ShortLock<T>);

impl<T> ShortLock<T> {
    pub(super) const fn new(value: T) -> Self {
        Self {
            state: AtomicU32::new(FREE),
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the lock, if it is free.
    #[inline(always)]
    pub(super) fn try_lock(&self) -> Option<Held<'_, T>> {
        let before = self.state.swap(HELD, Ordering::Acquire);
        // Created only with the lock: its drop releases it.
        (before == FREE).then(|| Held(self))
    }

    /// True if no thread holds the lock. It may change at any time.
    pub(super) fn is_free(&self) -> bool {
        self.state.load(Ordering::Relaxed) == FREE
    }

    /// Takes the lock, and waits for it if necessary.
    #[inline(always)]
    pub(super) fn lock(&self) -> Held<'_, T> {
        match self.try_lock() {
            Some(held) => held,
            None => self.wait(),
        }
    }

    #[cold]
    fn wait(&self) -> Held<'_, T> {
        let mut yields = 0;
        loop {
            for _ in 0..SPINS {
                hint::spin_loop();
                match self.state.load(Ordering::Relaxed) {
                    FREE => {
                        if let Some(held) = self.try_lock() {
                            return held;
                        }
                    }
                    HELD => {
                        // The mark orders nothing. If the holder has just changed, the next one
                        // sees it.
                        let order = Ordering::Relaxed;
                        let _held = self.state.compare_exchange(HELD, WANTED, order, order);
                    }
                    _ => {}
                }
            }
            if yields < YIELDS {
                yields += 1;
                thread::yield_now();
            } else {
                thread::sleep(NAP);
            }
        }
    }

    pub(super) fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

impl<T> Held<'_, T> {
    /// True if another thread waits for the lock.
    #[inline(always)]
    pub(super) fn is_wanted(&self) -> bool {
        self.0.state.load(Ordering::Relaxed) == WANTED
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this value holds the lock, so no other thread accesses the value.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Held<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and `&mut self` excludes another reference by this thread.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Held<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.state.store(FREE, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time_holds_the_lock() {
        const ROUNDS: u64 = 20_000;
        let lock = ShortLock::new(0_u64);
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        assert!(lock.try_lock().is_none(), "and asking does not free it");
        drop(held);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        let mut value = lock.lock();
                        let before = *value;
                        hint::spin_loop();
                        *value = before + 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), 4 * ROUNDS);
    }

    #[test]
    fn a_holder_sees_that_another_thread_waits() {
        let lock = ShortLock::new(());
        let held = lock.lock();
        assert!(!held.is_wanted());
        thread::scope(|scope| {
            let other = scope.spawn(|| drop(lock.lock()));
            while !held.is_wanted() {
                thread::yield_now();
            }
            drop(held);
            other.join().expect("no panic");
        });
        assert!(!lock.lock().is_wanted(), "the mark ends with the hold");
    }

    #[test]
    fn a_panic_releases_the_lock() {
        let lock = ShortLock::new(1);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _held = lock.lock();
            std::panic::panic_any("on purpose");
        }));
        assert!(panicked.is_err());
        assert_eq!(*lock.lock(), 1);
    }
}
