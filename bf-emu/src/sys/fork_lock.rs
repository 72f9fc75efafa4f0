//! A lock that a fork holds, so that the child finds it free and its value whole.
//!
//! The lock names its holder in the same step in which it is taken. A fork in a signal handler that interrupted the holder
//! therefore does not wait for itself: the child is a copy of the holder, and ends the work that was interrupted.
//!
//! A fork waits for other threads, for a limited time. After that the child begins with a new value.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};

/// No thread has this identity.
const FREE: usize = 0;
/// Yields of a waiting thread before it sleeps between its attempts.
const YIELDS: u32 = 64;
/// This sleep.
const NAP_NS: u64 = 50_000;

/// A value behind the lock.
#[derive(Debug)]
pub struct ForkLock<T> {
    holder: AtomicUsize,
    value: UnsafeCell<T>,
}

// SAFETY: only the holder accesses the value.
unsafe impl<T: Send> Sync for ForkLock<T> {}

/// Access to the value, until the drop.
#[derive(Debug)]
pub struct Held<'a, T>(&'a ForkLock<T>);

/// What a fork has done with the lock before it, and must undo after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Fork {
    /// It has taken the lock.
    Holds,
    /// The forking thread held the lock already, and holds it in parent and child.
    IsHolder,
    /// Another thread holds the lock for too long.
    GaveUp,
}

impl<T> ForkLock<T> {
    /// A free lock.
    #[must_use]
    pub const fn new(value: T) -> Self {
        Self {
            holder: AtomicUsize::new(FREE),
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the lock. None for a signal handler of the holder.
    #[must_use]
    pub fn lock(&self) -> Option<Held<'_, T>> {
        self.take(u64::MAX).then_some(Held(self))
    }

    /// Before a fork. Waits for another holder, at most `limit_ns`. Async-signal-safe.
    pub fn before_fork(&self, limit_ns: u64) -> Fork {
        if self.is_mine() {
            return Fork::IsHolder;
        }
        match self.take(super::now_ns().saturating_add(limit_ns)) {
            true => Fork::Holds,
            false => Fork::GaveUp,
        }
    }

    /// After [`ForkLock::before_fork`], in the same thread of the parent. Async-signal-safe.
    pub fn after_fork_in_parent(&self, fork: Fork) {
        if fork == Fork::Holds {
            self.holder.store(FREE, Ordering::Release);
        }
    }

    /// The same in the child, which has no other thread. Async-signal-safe if `new` is.
    pub fn after_fork_in_child(&self, fork: Fork, new: impl FnOnce() -> T) {
        if fork == Fork::GaveUp {
            // SAFETY: the child has one thread, which is here. The old value may be half changed, so it is not dropped.
            unsafe { self.value.get().write(new()) };
        }
        if fork != Fork::IsHolder {
            self.holder.store(FREE, Ordering::Release);
        }
    }

    fn is_mine(&self) -> bool {
        self.holder.load(Ordering::Relaxed) == me()
    }

    /// False if the calling thread holds the lock already, or at `until_ns`.
    fn take(&self, until_ns: u64) -> bool {
        let me = me();
        let mut attempts = 0;
        loop {
            let order = (Ordering::Acquire, Ordering::Relaxed);
            match self.holder.compare_exchange(FREE, me, order.0, order.1) {
                Ok(_) => return true,
                Err(holder) if holder == me => return false,
                Err(_) if until_ns != u64::MAX && super::now_ns() >= until_ns => return false,
                Err(_) if attempts < YIELDS => super::yield_now(),
                Err(_) => super::sleep(NAP_NS),
            }
            attempts += 1;
        }
    }
}

/// Identity of this thread, and of its copy in the child of a fork.
fn me() -> usize {
    // SAFETY: it has no preconditions. It reads a register.
    let me = unsafe { libc::pthread_self() };
    usize::try_from(me).unwrap_or(usize::MAX)
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this thread holds the lock.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this thread holds the lock.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        self.0.holder.store(FREE, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    const LONG_NS: u64 = 60_000_000_000;

    /// Forks as the C library does with handlers. Returns the status of the child, which ends with `child`'s answer.
    fn fork_around(
        lock: &ForkLock<u32>,
        limit_ns: u64,
        child: impl FnOnce() -> bool,
    ) -> (Fork, i32) {
        let fork = lock.before_fork(limit_ns);
        // SAFETY: the child calls functions that allocate nothing, and ends at once.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            lock.after_fork_in_child(fork, || 0);
            // SAFETY: the alarm ends a child that waits, and `_exit` runs no destructor.
            unsafe {
                libc::alarm(30);
                libc::_exit(i32::from(!child()));
            }
        }
        lock.after_fork_in_parent(fork);
        let mut status = -1;
        // SAFETY: the child is this process's own, and the status is of this frame.
        unsafe { libc::waitpid(pid, &raw mut status, 0) };
        (fork, status)
    }

    static INTERRUPTED: ForkLock<u32> = ForkLock::new(1);
    static FORKED: AtomicBool = AtomicBool::new(false);

    extern "C" fn forks(_signal: libc::c_int) {
        // The handler, and its child, find the lock held by themselves.
        let refused = || INTERRUPTED.lock().is_none();
        let forked = fork_around(&INTERRUPTED, LONG_NS, refused);
        FORKED.store(
            refused() && forked == (Fork::IsHolder, 0),
            Ordering::Relaxed,
        );
    }

    #[test]
    fn a_handler_that_interrupts_the_holder_forks_without_a_wait() {
        let handler: extern "C" fn(libc::c_int) = forks;
        // SAFETY: the handler calls async-signal-safe functions; no other test uses the signal.
        unsafe { libc::signal(libc::SIGWINCH, handler as libc::sighandler_t) };
        let mut held = INTERRUPTED.lock().expect("free");
        // SAFETY: the handler is set above.
        unsafe { libc::raise(libc::SIGWINCH) };
        assert!(FORKED.load(Ordering::Relaxed));
        *held += 1;
        drop(held);
        assert_eq!(INTERRUPTED.lock().as_deref(), Some(&2));
    }

    /// A child that goes on with the interrupted work of its parent's thread.
    #[test]
    fn the_copy_of_the_holder_ends_its_work() {
        let lock = ForkLock::new(1);
        let mut held = lock.lock().expect("free");
        let forked = fork_around(&lock, LONG_NS, || {
            *held += 1;
            drop(held);
            lock.lock().as_deref() == Some(&2)
        });
        assert_eq!(forked, (Fork::IsHolder, 0));
    }

    /// A signal handler forks while its thread forks.
    #[test]
    fn a_fork_within_a_fork_leaves_the_lock_to_the_outer_one() {
        let lock = ForkLock::new(1);
        let outer = lock.before_fork(LONG_NS);
        let inner = fork_around(&lock, LONG_NS, || {
            lock.after_fork_in_child(outer, || 0);
            lock.lock().as_deref() == Some(&1)
        });
        assert_eq!((outer, inner), (Fork::Holds, (Fork::IsHolder, 0)));
        assert!(lock.lock().is_none());
        lock.after_fork_in_parent(outer);
        assert!(lock.lock().is_some());
    }

    #[test]
    fn a_thread_that_does_not_release_the_lock_stops_neither_a_fork_nor_its_child() {
        let lock = ForkLock::new(1);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _held = lock.lock();
                while !over.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
            });
            while lock.holder.load(Ordering::Relaxed) == FREE {
                std::thread::yield_now();
            }
            let begins_anew = || lock.lock().as_deref() == Some(&0);
            let forked = fork_around(&lock, 1000, begins_anew);
            over.store(true, Ordering::Release);
            assert_eq!(forked, (Fork::GaveUp, 0));
        });
        assert_eq!(lock.lock().as_deref(), Some(&1));
    }
}
