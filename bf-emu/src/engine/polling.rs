//! The polling mode of a process, and the marks that it needs in doorbell records. The thread is in [`super::poller`].
//!
//! The library owns the records. Two values that no library writes mark an unwritten record. The upper half of a send
//! record, which a device ignores, is all ones from the creation or reset of its queue to the first post. An arm record
//! is all ones until it is armed.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::memory::Space;
use crate::{guard, sys};

/// Upper half of a send record that is not written yet.
pub(super) const NOT_RUNG: u16 = 0xffff;
/// Arm record that is not written yet.
pub(super) const NOT_ARMED: u32 = u32::MAX;
/// Place of the send counter, and of the arm word, in their doorbell records.
pub(super) const SECOND_WORD: u64 = 4;

static ON: AtomicBool = AtomicBool::new(false);
/// Counts the calls that may have made, changed or removed a queue of this process.
static CHANGES: AtomicU32 = AtomicU32::new(0);

/// Makes this process one that polls, before it posts anything.
pub(super) fn set(on: bool) {
    ON.store(on, Ordering::Relaxed);
}

/// True if this process polls.
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Number of such calls so far.
pub(super) fn changes() -> u32 {
    CHANGES.load(Ordering::Acquire)
}

/// A call may have made, changed or removed a queue.
pub(crate) fn changed() {
    CHANGES.fetch_add(1, Ordering::Release);
}

/// Marks the send record of a queue of this process as not written: the queue is new, or was reset.
pub(crate) fn forget_rung(dbrec: u64) {
    let at = dbrec.wrapping_add(SECOND_WORD);
    if is_on()
        && let Some(record) = word(at)
    {
        put(at, u32::from(NOT_RUNG) << 16 | record & 0xffff);
    }
}

/// Marks the arm record of a new completion queue of this process as not written.
pub(crate) fn forget_armed(dbrec: u64) {
    if is_on() {
        put(dbrec.wrapping_add(SECOND_WORD), NOT_ARMED);
    }
}

/// A word of this process, whole: its writer may be at it.
pub(super) fn word(at: u64) -> Option<u32> {
    Space::of(sys::pid()).read_be32(at).ok()
}

fn put(at: u64, value: u32) {
    // SAFETY: a doorbell record that this process has given to the device, in a call that it is in. One
    // that is not there is found out when it is read.
    let _ = unsafe { guard::write(at, &value.to_be_bytes()) };
}
