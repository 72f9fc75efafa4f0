//! What happens once in a process. A child of a fork never waits for it: the thread that began it may exist in the parent only.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::event_lock::Lock;

/// True for one caller.
#[derive(Debug)]
pub(crate) struct First(AtomicBool);

impl First {
    pub(crate) const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// True for the first call. Later ones do not wait for what the first caller does.
    pub(crate) fn is_this(&self) -> bool {
        !self.0.swap(true, Ordering::Relaxed)
    }
}

/// A start for which other threads wait.
#[derive(Debug)]
pub(crate) struct Start(Lock<bool>);

impl Start {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Self(Lock::new(false))
    }

    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Self(Lock::new(false))
    }

    /// Calls the function in the first call, and returns when it has ended: also in a child whose parent was in it, where it
    /// has not.
    pub(crate) fn once(&self, start: impl FnOnce()) {
        if let Some(mut has_begun) = self.0.take()
            && !std::mem::replace(&mut *has_begun, true)
        {
            start();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::AtomicU32;
    use std::thread;

    #[test]
    fn one_call_is_the_first() {
        static FIRST: First = First::new();
        assert!(FIRST.is_this() && !FIRST.is_this());
    }

    #[test]
    fn threads_wait_for_the_start_and_a_child_of_a_fork_does_not() {
        static START: Start = Start::new();
        static STARTED: AtomicU32 = AtomicU32::new(0);
        assert!(crate::forked::watch_forks());
        let (within, over) = (Barrier::new(2), Barrier::new(2));
        thread::scope(|scope| {
            scope.spawn(|| {
                START.once(|| {
                    within.wait();
                    over.wait();
                    STARTED.fetch_add(1, Ordering::Relaxed);
                });
            });
            within.wait();
            // SAFETY: the child calls only functions that allocate nothing, and then ends at once.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: the alarm ends a child that waits.
                unsafe { libc::alarm(30) };
                START.once(|| {
                    STARTED.store(7, Ordering::Relaxed);
                });
                let started = STARTED.load(Ordering::Relaxed);
                // SAFETY: it runs no destructor.
                unsafe { libc::_exit(i32::from(started != 0)) };
            }
            let mut status = -1;
            // SAFETY: the child is this process's own, and the status is writable.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            let waiter = scope.spawn(|| {
                START.once(|| {
                    STARTED.store(7, Ordering::Relaxed);
                });
                STARTED.load(Ordering::Relaxed)
            });
            over.wait();
            assert_eq!((status, waiter.join().expect("no panic")), (0, 1));
        });
    }
}
