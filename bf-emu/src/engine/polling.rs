//! The polling mode of a process, and the marks that it needs in doorbell records. The thread is in
//! [`super::poller`].
//!
//! The library owns the records. Two values that no library writes mark an unwritten record. The
//! upper half of a send record, which a device ignores, is all ones from the creation or reset of
//! its queue to the first post. An arm record is all ones until it is armed.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::memory::Space;
use crate::{guard, sys};

/// Upper half of an unwritten send record.
pub(super) const NOT_RUNG: u16 = 0xffff;
/// An unwritten arm record.
pub(super) const NOT_ARMED: u32 = u32::MAX;
/// Offset of the send counter, and of the arm word, in a doorbell record.
pub(super) const SECOND_WORD: u64 = 4;

static ON: AtomicBool = AtomicBool::new(false);
/// Number of calls that may have created, changed or removed a queue of this process.
static CHANGES: AtomicU32 = AtomicU32::new(0);

/// Switches the polling mode of this process. Must precede the first post.
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

/// Counts a call that may have created, changed or removed a queue.
pub(crate) fn changed() {
    CHANGES.fetch_add(1, Ordering::Release);
}

/// Marks the send record of a new or reset queue of this process as unwritten.
pub(crate) fn forget_rung(dbrec: u64) {
    let at = dbrec.wrapping_add(SECOND_WORD);
    if is_on()
        && let Some(record) = word(at)
    {
        put(at, u32::from(NOT_RUNG) << 16 | record & 0xffff);
    }
}

/// Marks the arm record of a new completion queue of this process as unwritten.
pub(crate) fn forget_armed(dbrec: u64) {
    if is_on() {
        put(dbrec.wrapping_add(SECOND_WORD), NOT_ARMED);
    }
}

/// Reads a word of this process atomically, because its owner may write it at the same time.
pub(super) fn word(at: u64) -> Option<u32> {
    Space::of(sys::pid()).read_be32(at).ok()
}

fn put(at: u64, value: u32) {
    // SAFETY: the address is a doorbell record that this process named in the current call.
    // `guard::write` reports an unmapped address as an error.
    let _ = unsafe { guard::write(at, &value.to_be_bytes()) };
}
