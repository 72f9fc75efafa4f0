//! What calls through the slots of each copy of UCX read: UCX's own functions, and shortcuts to them before the first import.
//!
//! A caller's read of its slot is UCX's, and orders nothing on Arm. A fence here makes up for it, where the order matters.

use std::ptr::null_mut;
use std::sync::atomic::Ordering;

#[cfg(not(loom))]
use std::sync::atomic::{AtomicPtr, AtomicU8, fence};

#[cfg(loom)]
use loom::sync::atomic::{AtomicPtr, AtomicU8, fence};

/// No thread imports.
const NONE: u8 = 0;
/// The first import waits for the end of the shortcuts.
const BEGINS: u8 = 1;
/// No copy has a shortcut.
const BEGUN: u8 = 2;

/// The copies: `T` describes one, and `F` is what its shortcuts point to.
#[derive(Debug)]
pub(super) struct Copies<T, F, const COUNT: usize, const SHORTCUTS: usize> {
    copies: [Place<T, F, SHORTCUTS>; COUNT],
    /// State of the imports.
    imports: AtomicU8,
}

#[derive(Debug)]
struct Place<T, F, const SHORTCUTS: usize> {
    /// Never freed; null without a copy.
    copy: AtomicPtr<T>,
    /// Null for none, and for all from the first import on.
    shortcuts: [AtomicPtr<F>; SHORTCUTS],
}

impl<T, F, const COUNT: usize, const SHORTCUTS: usize> Copies<T, F, COUNT, SHORTCUTS> {
    /// No copy.
    #[cfg(not(loom))]
    pub(super) const fn new() -> Self {
        Self {
            copies: [const {
                Place {
                    copy: AtomicPtr::new(null_mut()),
                    shortcuts: [const { AtomicPtr::new(null_mut()) }; SHORTCUTS],
                }
            }; COUNT],
            imports: AtomicU8::new(NONE),
        }
    }

    /// No copy.
    #[cfg(loom)]
    pub(super) fn new() -> Self {
        let none = || AtomicPtr::new(null_mut());
        Self {
            copies: std::array::from_fn(|_| Place {
                copy: AtomicPtr::new(null_mut()),
                shortcuts: std::array::from_fn(|_| none()),
            }),
            imports: AtomicU8::new(NONE),
        }
    }

    /// Enters a copy, before its slots are written. False if there is one with this number, or no place.
    pub(super) fn enter(&self, number: usize, copy: T, shortcuts: [*mut F; SHORTCUTS]) -> bool {
        let Some(place) = self.copies.get(number) else {
            return false;
        };
        let copy = Box::into_raw(Box::new(copy));
        let order = (Ordering::AcqRel, Ordering::Acquire);
        let entered = place
            .copy
            .compare_exchange(null_mut(), copy, order.0, order.1);
        if entered.is_err() {
            // SAFETY: it came from a box, and no other thread has it.
            drop(unsafe { Box::from_raw(copy) });
            return false;
        }
        for (place, shortcut) in place.shortcuts.iter().zip(shortcuts) {
            place.store(shortcut, Ordering::Relaxed);
        }
        // Either this thread sees the first import, or that one clears what was stored above.
        fence(Ordering::SeqCst);
        if self.imports.load(Ordering::Relaxed) != NONE {
            place.clear();
        }
        true
    }

    /// The copy with this number, for a call through one of its slots.
    #[inline]
    pub(super) fn of(&self, number: usize) -> Option<&T> {
        let place = &self.copies[number].copy;
        let mut copy = place.load(Ordering::Acquire);
        if copy.is_null() {
            // The processor may have done this read before that of the slot, which was written after the copy.
            fence(Ordering::Acquire);
            copy = place.load(Ordering::Acquire);
        }
        // SAFETY: null, or from `enter`, and never freed.
        unsafe { copy.as_ref() }
    }

    /// A shortcut of the copy with this number; null if it has none, or not any more.
    #[inline(always)]
    pub(super) fn shortcut(&self, number: usize, shortcut: usize) -> *mut F {
        self.copies[number].shortcuts[shortcut].load(Ordering::Relaxed)
    }

    /// Ends the shortcuts, for a thread that has come through a slot and is about to import. Its later calls, and those of
    /// threads that learn of the import from it, see none of that copy.
    pub(super) fn imports_begin(&self) {
        // The thread now sees all that was stored before the slot.
        fence(Ordering::Acquire);
        if self.imports.load(Ordering::Acquire) == BEGUN {
            return;
        }
        self.imports.fetch_max(BEGINS, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.copies.iter().for_each(Place::clear);
        self.imports.fetch_max(BEGUN, Ordering::Release);
    }
}

impl<T, F, const SHORTCUTS: usize> Place<T, F, SHORTCUTS> {
    fn clear(&self) {
        for shortcut in &self.shortcuts {
            shortcut.store(null_mut(), Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, loom))]
#[path = "copies/models.rs"]
mod models;
