//! A gate for calls. Closing shuts it and waits for running calls, so no call uses destroyed
//! objects.

use std::time::{Duration, Instant};

use crate::sync::{AtomicUsize, Ordering, yield_now};

/// Set when the gate is shut. The lower bits count the running calls.
const SHUT: usize = 1 << (usize::BITS - 1);

/// Counts the running calls.
#[derive(Debug)]
pub(crate) struct Gate {
    state: AtomicUsize,
}

/// A running call, until the drop.
#[derive(Debug)]
pub(crate) struct Inside<'a> {
    gate: &'a Gate,
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self {
            state: AtomicUsize::new(0),
        }
    }

    /// Starts a call, unless the gate is shut.
    #[inline]
    pub(crate) fn enter(&self) -> Option<Inside<'_>> {
        // The count cannot reach the bit: each unit is a live guard on some thread's stack.
        let before = self.state.fetch_add(1, Ordering::Acquire);
        let inside = Inside { gate: self };
        (before & SHUT == 0).then_some(inside)
    }

    #[inline]
    pub(crate) fn is_shut(&self) -> bool {
        self.state.load(Ordering::Acquire) & SHUT != 0
    }

    /// Shuts the gate. True only for the call that shut it.
    pub(crate) fn shut(&self) -> bool {
        self.state.fetch_or(SHUT, Ordering::AcqRel) & SHUT == 0
    }

    /// Waits until no call is running. False if that takes longer than `limit`.
    pub(crate) fn wait_empty(&self, limit: Duration) -> bool {
        let start = Instant::now();
        while self.state.load(Ordering::Acquire) & !SHUT != 0 {
            if start.elapsed() > limit {
                return false;
            }
            yield_now();
        }
        true
    }
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        self.gate.state.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_shut_gate_lets_nobody_in_and_waits_for_those_inside() {
        let gate = Gate::new();
        let inside = gate.enter().expect("open");
        assert!(gate.shut());
        assert!(!gate.shut(), "only one caller shuts it");
        assert!(gate.enter().is_none());
        assert!(!gate.wait_empty(Duration::ZERO));
        drop(inside);
        assert!(gate.wait_empty(Duration::ZERO));
    }
}
