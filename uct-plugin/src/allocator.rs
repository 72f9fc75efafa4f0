//! The library's allocator. If the system has no memory, the library completes outstanding work
//! from a reserve and starts nothing new; UCX handles further calls until memory is available.
//!
//! Without this allocator the standard library would end the program, as it does after a failed
//! infallible allocation. Code with potentially large allocations uses fallible calls
//! ([`Vec::try_reserve`] and the like) and handles a failure. The reserve covers all other
//! allocations. It is part of the library's zeroed data, so it takes no memory until its first use.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::hint;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::hot::{self, SHORT};
use crate::log;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// Bytes of the reserve. The largest infallible allocation is a pool of the default size, whose
/// parts take 900 KiB together. A pool requests its memory before it starts.
const RESERVE_BYTES: usize = 2 << 20;
/// Bytes of the smallest piece. Each following size is twice as large.
const PIECE_MIN: usize = 64;
/// Bytes of the largest piece. Larger requests are fallible.
const PIECE_MAX: usize = 1 << 19;
/// Number of piece sizes.
const KINDS: usize = (PIECE_MAX / PIECE_MIN).ilog2() as usize + 1;
/// Largest supported alignment: a page.
const ALIGNMENT_MAX: usize = 4096;
/// Size of the request that tests whether memory is available again.
const TRIAL_BYTES: usize = 64 << 10;
/// Number of attempts to take the reserve's lock. It is held for nanoseconds, or forever in a
/// forked child whose parent held it.
const TRIES_MAX: u32 = 1 << 20;

/// True if nothing new should start.
#[inline]
pub(crate) fn is_short() -> bool {
    hot::has(SHORT) && is_still_short()
}

#[cold]
fn is_still_short() -> bool {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !TOLD.swap(true, Ordering::Relaxed) {
        log::warning!("out of memory, UCX handles exports and imports until memory is available");
    }
    let Ok(layout) = Layout::from_size_align(TRIAL_BYTES, PIECE_MIN) else {
        return true;
    };
    if !RESERVE.is_half_free() {
        return true;
    }
    // SAFETY: the layout's size is not zero.
    let trial = unsafe { system(layout, false) };
    if trial.is_null() {
        return true;
    }
    // SAFETY: it was just allocated with this layout.
    unsafe { System.dealloc(trial, layout) };
    hot::set(SHORT, false);
    false
}

/// The system's allocator with the reserve as a fallback.
struct Allocator;

/// Memory from the system, unless a test simulates its absence.
///
/// # Safety
/// As [`GlobalAlloc::alloc`].
#[inline]
unsafe fn system(layout: Layout, is_zeroed: bool) -> *mut u8 {
    #[cfg(debug_assertions)]
    if injected::fails() {
        return null_mut();
    }
    match is_zeroed {
        // SAFETY: by the contract of this function.
        true => unsafe { System.alloc_zeroed(layout) },
        // SAFETY: as above.
        false => unsafe { System.alloc(layout) },
    }
}

// SAFETY: every piece of memory comes from the system's allocator or from the reserve. Its address
// identifies its origin, and it returns there. No function here allocates or unwinds.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: by the contract of this function.
        let given = unsafe { system(layout, false) };
        match given.is_null() {
            true => RESERVE.take(layout),
            false => given,
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: by the contract of this function.
        let given = unsafe { system(layout, true) };
        if !given.is_null() {
            return given;
        }
        let given = RESERVE.take(layout);
        if !given.is_null() {
            // SAFETY: the piece is at least as large as the layout.
            unsafe { given.write_bytes(0, layout.size()) };
        }
        given
    }

    #[inline]
    unsafe fn dealloc(&self, given: *mut u8, layout: Layout) {
        if RESERVE.has(given) {
            RESERVE.give_back(given, layout);
        } else {
            // SAFETY: by the contract of this function; it is the system's.
            unsafe { System.dealloc(given, layout) };
        }
    }

    #[inline]
    unsafe fn realloc(&self, given: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: by the contract of this function: the size, rounded up, fits.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // The system is tried first in any case: a piece of the reserve should return as soon as
        // possible.
        let moved = if RESERVE.has(given) {
            // SAFETY: by the contract of this function the size is not zero.
            unsafe { system(new, false) }
        } else {
            let grown = match is_made_to_fail() {
                true => null_mut(),
                // SAFETY: by the contract of this function; it is the system's.
                false => unsafe { System.realloc(given, layout, size) },
            };
            if !grown.is_null() {
                return grown;
            }
            null_mut()
        };
        let moved = match moved.is_null() {
            true => RESERVE.take(new),
            false => moved,
        };
        if !moved.is_null() {
            let kept = layout.size().min(size);
            // SAFETY: both are as large as their layouts, and only this call uses the new one.
            unsafe { moved.copy_from_nonoverlapping(given, kept) };
            // SAFETY: by the contract of this function.
            unsafe { self.dealloc(given, layout) };
        }
        moved
    }
}

#[inline]
fn is_made_to_fail() -> bool {
    #[cfg(debug_assertions)]
    return injected::fails();
    #[cfg(not(debug_assertions))]
    false
}

#[repr(align(4096))]
struct Bytes(UnsafeCell<[u8; RESERVE_BYTES]>);

/// Pieces with sizes of powers of two. They are cut from the front of the reserve, and kept in
/// lists by size after they are freed.
struct Reserve {
    bytes: Bytes,
    lock: AtomicBool,
    cut: UnsafeCell<Cut>,
}

/// The allocated part. The reserve's lock protects it.
struct Cut {
    /// Bytes from the front.
    used: usize,
    /// Bytes of these in use.
    live: usize,
    /// The last freed piece of each size.
    back: [Option<NonNull<Piece>>; KINDS],
}

/// A free piece.
struct Piece {
    /// The previously freed piece of the same size.
    before: Option<NonNull<Piece>>,
}

const _: () = assert!(size_of::<Piece>() <= PIECE_MIN);

// SAFETY: the content is only accessed under its lock, and each piece has one owner.
unsafe impl Sync for Reserve {}

static RESERVE: Reserve = Reserve {
    bytes: Bytes(UnsafeCell::new([0; RESERVE_BYTES])),
    lock: AtomicBool::new(false),
    cut: UnsafeCell::new(Cut {
        used: 0,
        live: 0,
        back: [None; KINDS],
    }),
};

/// Index and bytes of the piece for a layout; `None` if it is too large.
fn kind(layout: Layout) -> Option<(usize, usize)> {
    let wanted = layout.size().max(layout.align()).max(PIECE_MIN);
    if wanted > PIECE_MAX || layout.align() > ALIGNMENT_MAX {
        return None;
    }
    let bytes = wanted.next_power_of_two();
    Some(((bytes / PIECE_MIN).ilog2() as usize, bytes))
}

impl Reserve {
    /// A piece for the layout; null if there is none. The library then starts no new work.
    #[cold]
    fn take(&self, layout: Layout) -> *mut u8 {
        hot::set(SHORT, true);
        #[cfg(debug_assertions)]
        if injected::has_no_reserve() {
            return null_mut();
        }
        let Some((kind, bytes)) = kind(layout) else {
            return null_mut();
        };
        let piece = self.locked(|cut| {
            if let Some(piece) = cut.back[kind] {
                // SAFETY: a freed piece contains its link, and no other code uses it.
                cut.back[kind] = unsafe { piece.as_ref() }.before;
                cut.live += bytes;
                return piece.as_ptr().cast();
            }
            let start = cut.used.next_multiple_of(bytes.min(ALIGNMENT_MAX));
            if start + bytes > RESERVE_BYTES {
                return null_mut();
            }
            cut.used = start + bytes;
            cut.live += bytes;
            self.start().wrapping_add(start)
        });
        piece.unwrap_or_default()
    }

    /// Frees a piece.
    #[cold]
    fn give_back(&self, given: *mut u8, layout: Layout) {
        let (Some((kind, bytes)), Some(piece)) = (kind(layout), NonNull::new(given.cast())) else {
            return;
        };
        // Without the lock one piece is leaked.
        let _kept = self.locked(|cut| {
            let before = cut.back[kind];
            // SAFETY: the piece is aligned to its size and large enough, and its owner has freed
            // it.
            unsafe { piece.write(Piece { before }) };
            cut.back[kind] = Some(piece);
            cut.live -= bytes;
        });
    }

    fn is_half_free(&self) -> bool {
        self.locked(|cut| cut.live <= RESERVE_BYTES / 2)
            .unwrap_or_default()
    }

    fn start(&self) -> *mut u8 {
        self.bytes.0.get().cast()
    }

    /// True if it is a piece of the reserve.
    #[inline]
    fn has(&self, given: *mut u8) -> bool {
        given.addr().wrapping_sub(self.start().addr()) < RESERVE_BYTES
    }

    /// Runs a function under the lock; `None` if the lock is not available.
    fn locked<R>(&self, work: impl FnOnce(&mut Cut) -> R) -> Option<R> {
        for _ in 0..TRIES_MAX {
            if !self.lock.swap(true, Ordering::Acquire) {
                // SAFETY: only the holder of the lock accesses it.
                let result = work(unsafe { &mut *self.cut.get() });
                self.lock.store(false, Ordering::Release);
                return Some(result);
            }
            hint::spin_loop();
        }
        None
    }
}

/// Injects allocation failures: `XGVMI_NO_MEMORY` in the environment of a debug build. `7` selects
/// the seventh of the library's allocations, `7+` the seventh and all later ones, `/7` every
/// seventh. A trailing `!` takes the reserve away as well, which shows what fallible collections
/// alone would do. The release library does not contain this code.
#[cfg(debug_assertions)]
pub(crate) mod injected {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    /// The reserve has no pieces.
    static NO_RESERVE: AtomicBool = AtomicBool::new(false);

    /// The first allocation that fails; zero: none.
    static FIRST: AtomicU64 = AtomicU64::new(0);
    /// The distance of the following failures; zero: none.
    static EVERY: AtomicU64 = AtomicU64::new(0);
    /// Allocations so far.
    static COUNT: AtomicU64 = AtomicU64::new(0);

    pub(crate) fn arm() {
        let Ok(wanted) = std::env::var("XGVMI_NO_MEMORY") else {
            return;
        };
        let (wanted, no_reserve) = match wanted.strip_suffix('!') {
            Some(wanted) => (wanted, true),
            None => (&*wanted, false),
        };
        NO_RESERVE.store(no_reserve, Ordering::Relaxed);
        let number = |text: &str| text.parse().expect("XGVMI_NO_MEMORY is a number");
        let (first, every) = match (wanted.strip_prefix('/'), wanted.strip_suffix('+')) {
            (Some(every), _) => (number(every), number(every)),
            (_, Some(first)) => (number(first), 1),
            _ => (number(wanted), 0),
        };
        COUNT.store(0, Ordering::Relaxed);
        EVERY.store(every, Ordering::Relaxed);
        FIRST.store(first, Ordering::Relaxed);
    }

    pub(super) fn has_no_reserve() -> bool {
        NO_RESERVE.load(Ordering::Relaxed)
    }

    pub(super) fn fails() -> bool {
        let first = FIRST.load(Ordering::Relaxed);
        if first == 0 {
            return false;
        }
        let count = COUNT.fetch_add(1, Ordering::Relaxed) + 1;
        let every = EVERY.load(Ordering::Relaxed);
        count == first || (count > first && every != 0 && (count - first).is_multiple_of(every))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static OWN: Reserve = Reserve {
        bytes: Bytes(UnsafeCell::new([0; RESERVE_BYTES])),
        lock: AtomicBool::new(false),
        cut: UnsafeCell::new(Cut {
            used: 0,
            live: 0,
            back: [None; KINDS],
        }),
    };

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).expect("a good layout")
    }

    #[test]
    fn a_piece_that_grows_goes_back_to_the_reserve() {
        let (small, large) = (layout(100, 8), 200);
        let piece = RESERVE.take(small);
        assert!(RESERVE.has(piece));
        // SAFETY: the piece has the requested size.
        unsafe { piece.write_bytes(0x5a, small.size()) };
        // SAFETY: it is a piece of the allocator's, of this layout.
        let moved = unsafe { ALLOCATOR.realloc(piece, small, large) };
        assert!(
            !moved.is_null() && !RESERVE.has(moved),
            "the system has memory"
        );
        // SAFETY: `realloc` moved this number of bytes.
        let bytes = unsafe { std::slice::from_raw_parts(moved, small.size()) };
        assert!(bytes.iter().all(|byte| *byte == 0x5a));
        // The same piece is free again.
        let again = RESERVE.take(small);
        assert_eq!(again, piece);
        RESERVE.give_back(again, small);
        // SAFETY: it was allocated with this layout.
        unsafe { ALLOCATOR.dealloc(moved, layout(large, 8)) };
    }

    #[test]
    fn the_reserve_gives_pieces_that_do_not_meet_and_takes_them_back() {
        let wanted = [
            (1, 1),
            (64, 64),
            (65, 8),
            (4096, 4096),
            (100_000, 16),
            (24, 8),
        ];
        for _round in 0..100 {
            let mut given = Vec::new();
            for (size, align) in wanted {
                let piece = OWN.take(layout(size, align));
                assert!(!piece.is_null() && OWN.has(piece) && !RESERVE.has(piece));
                assert!(piece.addr().is_multiple_of(align));
                given.push((piece.addr(), piece.addr() + size));
                // SAFETY: the piece has the requested size.
                unsafe { piece.write_bytes(0xff, size) };
            }
            let mut sorted = given.clone();
            sorted.sort_unstable();
            assert!(sorted.windows(2).all(|pair| pair[0].1 <= pair[1].0));
            for ((start, _), (size, align)) in given.into_iter().zip(wanted) {
                OWN.give_back(
                    std::ptr::with_exposed_provenance_mut(start),
                    layout(size, align),
                );
            }
        }
        assert!(OWN.is_half_free());
        assert!(OWN.take(layout(PIECE_MAX + 1, 8)).is_null());
        assert!(OWN.take(layout(8, 8192)).is_null());
        let mut large = 0;
        while !OWN.take(layout(PIECE_MAX, 8)).is_null() {
            large += 1;
        }
        assert!((2..=4).contains(&large), "{large}");
        assert!(!OWN.is_half_free());
    }
}
