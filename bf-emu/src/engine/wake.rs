//! Wakes the thread of a process that retries postponed work ([`super::tick`]).

use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::fabric::Fabric;
use crate::sys::{self, steps::step};

/// The word in the device's file on which this process's thread sleeps; null before the thread
/// exists.
static WORD: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

/// Records the word on which this process's thread sleeps, before the thread starts.
pub(super) fn sleeps_on(fabric: &'static Fabric, process: u32) {
    if let Some(word) = word_of(fabric, process) {
        WORD.store(std::ptr::from_ref(word).cast_mut(), Ordering::Release);
    }
}

/// Wakes the thread of this process. Async-signal-safe.
pub(super) fn wake() {
    let word = WORD.load(Ordering::Acquire);
    // SAFETY: null, or a word of a device that its process never unmaps.
    if let Some(word) = unsafe { word.as_ref() } {
        wake_at(word);
    }
}

/// Wakes the thread of another process, by the process's number on the device. Async-signal-safe.
pub(super) fn wake_of(fabric: &Fabric, process: u32) {
    if let Some(word) = word_of(fabric, process) {
        wake_at(word);
    }
}

/// The word on which the thread of a process sleeps, by the process's number on the device.
pub(super) fn word_of(fabric: &Fabric, process: u32) -> Option<&AtomicU32> {
    fabric.tick(process.checked_sub(1)?)
}

fn wake_at(word: &AtomicU32) {
    step();
    word.fetch_add(1, Ordering::Release);
    sys::futex_wake(word);
}
