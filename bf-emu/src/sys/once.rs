//! A value that is made once in a process, also in the child of a fork whose parent was just making it.
//!
//! Such a child has no thread that would finish the work, and would wait without end for a lock of the standard library's.
//! Here it makes the value itself.

use std::ptr::null_mut;
use std::sync::atomic::Ordering;

#[cfg(not(loom))]
use std::sync::atomic::{AtomicI32, AtomicPtr};

#[cfg(loom)]
use loom::sync::atomic::{AtomicI32, AtomicPtr};

use super::own_process;

/// No process makes the value.
const NOBODY: i32 = 0;

/// The value, for a static.
#[derive(Debug)]
pub struct Once<T> {
    /// Null before; never freed.
    value: AtomicPtr<T>,
    /// Number of the process whose thread makes it, or has made it.
    maker: AtomicI32,
}

impl<T> Default for Once<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Once<T> {
    /// Without a value.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            value: AtomicPtr::new(null_mut()),
            maker: AtomicI32::new(NOBODY),
        }
    }

    /// Without a value.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self {
            value: AtomicPtr::new(null_mut()),
            maker: AtomicI32::new(NOBODY),
        }
    }

    /// The value, if it is made. Async-signal-safe.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        // SAFETY: null, or from a box that is never freed.
        unsafe { self.value.load(Ordering::Acquire).as_ref() }
    }

    /// The value. The first call makes it; other threads wait meanwhile. `make` must not need the value.
    pub fn get_or_make(&self, make: impl FnOnce() -> T) -> &T {
        let process = own_process();
        loop {
            if let Some(value) = self.get() {
                return value;
            }
            let maker = self.maker.load(Ordering::Acquire);
            if maker != process && self.claim(maker, process) {
                break;
            }
            super::yield_now();
        }
        let claimed = Claimed(&self.maker);
        let made = Box::into_raw(Box::new(make()));
        std::mem::forget(claimed);
        let published =
            self.value
                .compare_exchange(null_mut(), made, Ordering::AcqRel, Ordering::Acquire);
        let value = match published {
            Ok(_) => made,
            // A child of vfork, which shares this memory, was faster.
            Err(first) => {
                // SAFETY: it came from a box, and no other thread has it.
                drop(unsafe { Box::from_raw(made) });
                first
            }
        };
        // SAFETY: from a box that is never freed.
        unsafe { &*value }
    }

    /// Without a value again, also if a thread of the parent was making one. The parent's is leaked, because it may be half
    /// changed. For the child of a fork, which has one thread.
    pub fn forget(&self) {
        self.value.store(null_mut(), Ordering::Relaxed);
        self.maker.store(NOBODY, Ordering::Release);
    }

    /// Takes over from nobody, or from a process whose child this one is.
    fn claim(&self, from: i32, process: i32) -> bool {
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        let claimed = self.maker.compare_exchange(from, process, order.0, order.1);
        claimed.is_ok()
    }
}

/// Lets another thread make the value if this one panics.
struct Claimed<'a>(&'a AtomicI32);

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        self.0.store(NOBODY, Ordering::Release);
    }
}

#[cfg(all(test, loom))]
#[path = "once/models.rs"]
mod models;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn a_child_does_not_wait_for_a_thread_of_its_parent() {
        static VALUE: Once<u32> = Once::new();
        let (making, over) = (Barrier::new(2), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let maker = scope.spawn(|| {
                VALUE.get_or_make(|| {
                    making.wait();
                    while !over.load(Ordering::Acquire) {
                        std::thread::yield_now();
                    }
                    1
                })
            });
            making.wait();
            // SAFETY: the child allocates one value, which glibc allows in a child, and ends at once.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: the alarm ends a child that waits.
                unsafe { libc::alarm(30) };
                let made = *VALUE.get_or_make(|| 2);
                // SAFETY: ends the child without its parent's destructors.
                unsafe { libc::_exit(i32::from(made != 2)) };
            }
            let mut status = -1;
            // SAFETY: the child is this process's own, and the status is of this frame.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            over.store(true, Ordering::Release);
            assert_eq!((status, *maker.join().unwrap()), (0, 1));
        });
        assert_eq!((*VALUE.get_or_make(|| 3), VALUE.get()), (1, Some(&1)));
    }

    #[test]
    fn after_a_panic_the_next_call_makes_the_value() {
        let value = Once::new();
        let fails = || value.get_or_make(|| panic!("no value"));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(fails)).is_err());
        assert_eq!((value.get(), value.get_or_make(|| 5)), (None, &5));
    }
}
