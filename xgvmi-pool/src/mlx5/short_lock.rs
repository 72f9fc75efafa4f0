//! A lock for the few instructions of a post or of a poll. It has no poison, and its end is one plain
//! store, so an export and its release save four locked instructions against the standard library's.
//!
//! A thread that finds it held spins, then yields, then sleeps: its holder is a post of some hundred
//! nanoseconds, unless the system has preempted the holder or a queue is created or destroyed.

use std::cell::UnsafeCell;
use std::hint;
use std::ops::{Deref, DerefMut};
use std::thread;
use std::time::Duration;

use crate::sync::{AtomicBool, Ordering};

/// Looks at the lock between two yields: about two microseconds.
const SPINS: u32 = 64;
/// Yields before the thread sleeps between its looks.
const YIELDS: u32 = 64;
/// This sleep.
const NAP: Duration = Duration::from_micros(50);

/// The lock and its value.
#[derive(Debug)]
pub(super) struct ShortLock<T> {
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: `Held` is the only access through a shared reference, and `held` admits one at a time.
unsafe impl<T: Send> Sync for ShortLock<T> {}

/// The held lock, until the drop.
#[derive(Debug)]
pub(super) struct Held<'a, T>(&'a ShortLock<T>);

impl<T> ShortLock<T> {
    pub(super) const fn new(value: T) -> Self {
        Self {
            held: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the lock, if it is free.
    #[inline(always)]
    pub(super) fn try_lock(&self) -> Option<Held<'_, T>> {
        let was_held = self.held.swap(true, Ordering::Acquire);
        // Created only with the lock: its drop releases it.
        (!was_held).then(|| Held(self))
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
                if !self.held.load(Ordering::Relaxed)
                    && let Some(held) = self.try_lock()
                {
                    return held;
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
        self.0.held.store(false, Ordering::Release);
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
