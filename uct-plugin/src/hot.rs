//! Global state that every export and release reads, together in one cache line. It is written only when
//! a copy of UCX, a memory domain or a thread is first seen, at the first export, and when something
//! fails.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use xgvmi_pool::mlx5;

/// The line.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Hot {
    /// The first known operations table, null before; written after `object`.
    pub(crate) ops: AtomicPtr<c_void>,
    /// The copy of UCX that it belongs to, an `Object` of [`crate::original`] that is never freed.
    pub(crate) object: AtomicPtr<c_void>,
    /// Address of a memory domain of [`crate::domains`]; zero if there is none. Written after `served`.
    pub(crate) md: AtomicUsize,
    /// What serves this domain, a [`crate::md::Md`]; null if nothing does.
    pub(crate) served: AtomicPtr<c_void>,
    /// The first thread, as [`mlx5::thread_mark`] marks it, zero before; written after its number.
    thread_mark: AtomicUsize,
    thread_number: AtomicU32,
    /// Places of registrations, see [`crate::registrations`].
    pub(crate) places: AtomicU32,
    /// Address after the arena, see [`crate::arena`]; zero without one.
    pub(crate) arena_end: AtomicUsize,
    /// Set by the first export with a key of a pool, see [`crate::rkey`].
    pub(crate) has_exported: AtomicBool,
    /// Set by the first panic, see [`crate::panic`].
    pub(crate) is_broken: AtomicBool,
    /// Set while the system refuses memory, see [`crate::allocator`].
    pub(crate) is_short: AtomicBool,
}

const _: () = assert!(size_of::<Hot>() == 64);

pub(crate) static HOT: Hot = Hot {
    ops: AtomicPtr::new(null_mut()),
    object: AtomicPtr::new(null_mut()),
    md: AtomicUsize::new(0),
    served: AtomicPtr::new(null_mut()),
    thread_mark: AtomicUsize::new(0),
    thread_number: AtomicU32::new(0),
    places: AtomicU32::new(0),
    arena_end: AtomicUsize::new(0),
    has_exported: AtomicBool::new(false),
    is_broken: AtomicBool::new(false),
    is_short: AtomicBool::new(false),
};

/// Number of the calling thread, which no other living thread has.
#[inline(always)]
pub(crate) fn thread() -> usize {
    match mlx5::thread_mark() {
        Some(mark) if HOT.thread_mark.load(Ordering::Acquire) == mark => {
            HOT.thread_number.load(Ordering::Relaxed) as usize
        }
        mark => thread_slowly(mark),
    }
}

/// The number of a thread other than the first one, or of the first one at its first call.
#[inline(never)]
fn thread_slowly(mark: Option<usize>) -> usize {
    static IS_TAKEN: AtomicBool = AtomicBool::new(false);
    let number = mlx5::thread_number();
    // A later thread with the mark of the first one inherits its number: the first one has ended.
    if let (Some(mark), Ok(short)) = (mark, u32::try_from(number))
        && !IS_TAKEN.load(Ordering::Relaxed)
        && !IS_TAKEN.swap(true, Ordering::Relaxed)
    {
        HOT.thread_number.store(short, Ordering::Relaxed);
        HOT.thread_mark.store(mark, Ordering::Release);
    }
    number
}

#[cfg(test)]
mod tests {
    use super::thread;

    #[test]
    fn threads_have_different_numbers() {
        let here = thread();
        assert_eq!(here, thread());
        let there = std::thread::spawn(|| (thread(), thread()))
            .join()
            .expect("no panic");
        assert_eq!(there.0, there.1);
        assert_ne!(here, there.0);
    }
}
