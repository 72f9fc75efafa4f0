//! Global state that every export and release reads, together in one cache line. It is written only when
//! a copy of UCX, a memory domain or a thread is first seen, at the first export, and when something
//! fails.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering};

use xgvmi_pool::mlx5;

use crate::domains::place::Place;

/// A static of this library. On x86-64 its address comes from the instruction: the compiler would read it
/// from a table of the loader, which takes a cache line.
macro_rules! near {
    ($name:ident) => {{
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            let place: *const u8;
            // SAFETY: computes an address. The linker refuses a symbol of another object.
            unsafe {
                std::arch::asm!(
                    "lea {}, [rip + {}]",
                    out(reg) place,
                    sym $name,
                    options(pure, nomem, nostack, preserves_flags)
                );
            }
            // SAFETY: it is the address of the static.
            unsafe { $crate::hot::of_type(&|| &$name, place) }
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        &$name
    }};
}
pub(crate) use near;

/// The static at this address.
///
/// # Safety
/// The address is that of the function's result.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
pub(crate) unsafe fn of_type<T>(_of: &impl Fn() -> &'static T, place: *const u8) -> &'static T {
    // SAFETY: by the contract of this function.
    unsafe { &*place.cast() }
}

/// [`HOT`].
#[inline(always)]
pub(crate) fn hot() -> &'static Hot {
    near!(HOT)
}

/// The line.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Hot {
    /// The first known operations table, null before; written after `object`.
    pub(crate) ops: AtomicPtr<c_void>,
    /// The copy of UCX that it belongs to, an `Object` of [`crate::original`] that is never freed.
    pub(crate) object: AtomicPtr<c_void>,
    /// A memory domain of [`crate::domains`] that a [`crate::md::Md`] serves, or none.
    pub(crate) first: Place<c_void>,
    /// The first thread, as [`mlx5::thread_mark`] marks it, zero before; written after its number.
    thread_mark: AtomicUsize,
    thread_number: AtomicU32,
    /// Address after the arena, see [`crate::arena`]; zero without one.
    pub(crate) arena_end: AtomicUsize,
    /// Set by the first export with a key of a pool, see [`crate::rkey`].
    pub(crate) has_exported: AtomicBool,
    /// Reasons to start nothing new: [`BROKEN`] and [`SHORT`].
    troubles: AtomicU8,
}

const _: () = assert!(size_of::<Hot>() == 64);

static HOT: Hot = Hot {
    ops: AtomicPtr::new(null_mut()),
    object: AtomicPtr::new(null_mut()),
    first: Place::new(),
    thread_mark: AtomicUsize::new(0),
    thread_number: AtomicU32::new(0),
    arena_end: AtomicUsize::new(0),
    has_exported: AtomicBool::new(false),
    troubles: AtomicU8::new(0),
};

/// Set by the first panic, see [`crate::panic`].
pub(crate) const BROKEN: u8 = 1;
/// Set while the system refuses memory, see [`crate::allocator`].
pub(crate) const SHORT: u8 = 2;

/// True if there is no reason to start nothing new.
#[inline(always)]
pub(crate) fn is_sound() -> bool {
    hot().troubles.load(Ordering::Relaxed) == 0
}

/// True if there is this reason.
#[inline(always)]
pub(crate) fn has(trouble: u8) -> bool {
    hot().troubles.load(Ordering::Relaxed) & trouble != 0
}

/// Sets or clears a reason. Returns whether it was set before.
#[cold]
pub(crate) fn set(trouble: u8, is_set: bool) -> bool {
    let before = match is_set {
        true => hot().troubles.fetch_or(trouble, Ordering::Relaxed),
        false => hot().troubles.fetch_and(!trouble, Ordering::Relaxed),
    };
    before & trouble != 0
}

/// Number of the calling thread, which no other living thread has.
#[inline(always)]
pub(crate) fn thread() -> usize {
    match mlx5::thread_mark() {
        Some(mark) if hot().thread_mark.load(Ordering::Acquire) == mark => {
            hot().thread_number.load(Ordering::Relaxed) as usize
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
        hot().thread_number.store(short, Ordering::Relaxed);
        hot().thread_mark.store(mark, Ordering::Release);
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
