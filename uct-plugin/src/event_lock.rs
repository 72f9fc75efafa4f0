//! The lock of the tables that handlers of memory events change. It is held for the time of a table
//! operation, never while other code is called; only [`Start`](crate::first::Start) holds one for longer.
//!
//! The handlers of memory events take it inside `mmap` and `munmap`. It therefore allocates nothing
//! and uses no thread-local data, and it refuses a thread that already holds it: a signal handler
//! that maps memory.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;

#[cfg(not(loom))]
use std::sync::atomic::AtomicUsize;
#[cfg(not(loom))]
use std::{hint, thread};

#[cfg(loom)]
use crate::forked::me;
#[cfg(loom)]
use loom::sync::atomic::AtomicUsize;
#[cfg(loom)]
use loom::{hint, thread};

use crate::forked;

/// No thread has this identity.
const FREE: usize = 0;
/// Attempts before the thread gives its processor to another one.
const SPINS: u32 = if cfg!(loom) { 0 } else { 64 };
/// Yields of a forked child, whose parent may have held the lock.
const YIELDS_IN_CHILD: u32 = 1000;

/// A value behind the lock.
#[derive(Debug)]
pub(crate) struct Lock<T> {
    holder: AtomicUsize,
    value: UnsafeCell<T>,
}

// SAFETY: only the holder accesses the value.
unsafe impl<T: Send> Sync for Lock<T> {}

/// Access to the value.
#[derive(Debug)]
pub(crate) struct Held<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Lock<T> {
    /// A free lock.
    #[cfg(not(loom))]
    pub(crate) const fn new(value: T) -> Self {
        Self {
            holder: AtomicUsize::new(FREE),
            value: UnsafeCell::new(value),
        }
    }

    /// A free lock.
    #[cfg(loom)]
    pub(crate) fn new(value: T) -> Self {
        Self {
            holder: AtomicUsize::new(FREE),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits for the lock. `None` if this thread already holds it, or in a child whose parent held
    /// it at the fork.
    pub(crate) fn take(&self) -> Option<Held<'_, T>> {
        let me = me();
        let mut attempts = 0_u32;
        loop {
            let taken =
                self.holder
                    .compare_exchange_weak(FREE, me, Ordering::Acquire, Ordering::Relaxed);
            match taken {
                Ok(_) => return Some(Held { lock: self }),
                Err(holder) if holder == me => return None,
                Err(_) => {}
            }
            attempts = attempts.saturating_add(1);
            if attempts < SPINS {
                hint::spin_loop();
            } else if forked::generation() > 0 && attempts > SPINS + YIELDS_IN_CHILD {
                return None;
            } else {
                thread::yield_now();
            }
        }
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this thread holds the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this thread holds the lock.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        self.lock.holder.store(FREE, Ordering::Release);
    }
}

/// Identity of this thread.
#[cfg(not(loom))]
fn me() -> usize {
    // SAFETY: it has no preconditions. It reads a register.
    let me = unsafe { libc::pthread_self() };
    usize::try_from(me).unwrap_or(usize::MAX)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time_holds_it() {
        const STEPS: u64 = 20_000;
        let lock = Lock::new(0_u64);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..STEPS {
                        *lock.take().expect("no thread holds it twice") += 1;
                    }
                });
            }
        });
        assert_eq!(*lock.take().expect("free"), 8 * STEPS);
    }

    #[test]
    fn its_holder_is_refused_and_does_not_wait() {
        let lock = Lock::new(());
        let held = lock.take();
        assert!(held.is_some() && lock.take().is_none());
        drop(held);
        assert!(lock.take().is_some());
    }
}
