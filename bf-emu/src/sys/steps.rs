//! Steps of the device at which a test ends its process: each lock, each unlock, each access to the shared state, each write
//! to another process, and each wake-up. Outside of tests a step does nothing.

#[cfg(test)]
use std::sync::atomic::{AtomicU32, Ordering};

/// Steps that are left until the process ends; 0 for no end.
#[cfg(test)]
static LEFT: AtomicU32 = AtomicU32::new(0);

/// Ends this process at its step of this number, counted from 1. For the child of a fork.
#[cfg(test)]
pub(crate) fn end_at(number: u32) {
    LEFT.store(number, Ordering::Relaxed);
}

/// A step.
#[cfg(test)]
pub(crate) fn step() {
    let left = LEFT.load(Ordering::Relaxed);
    if left != 0 {
        LEFT.store(left - 1, Ordering::Relaxed);
        if left == 1 {
            super::vanish();
        }
    }
}

/// A step.
#[cfg(not(test))]
#[inline]
pub(crate) const fn step() {}
