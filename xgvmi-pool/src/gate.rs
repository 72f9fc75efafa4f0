//! A gate that work passes and that closing shuts: behind it, nobody uses what is torn down.

use std::time::{Duration, Instant};

use crate::sync::{AtomicUsize, Ordering, yield_now};

/// Set once the gate is shut; the bits below count those inside.
const SHUT: usize = 1 << (usize::BITS - 1);

/// Counts who is inside.
#[derive(Debug)]
pub(crate) struct Gate {
    state: AtomicUsize,
}

/// One that is inside, until dropped.
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

    /// Goes in, unless the gate is shut.
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

    /// Shuts the gate. True for the one caller that did it.
    pub(crate) fn shut(&self) -> bool {
        self.state.fetch_or(SHUT, Ordering::AcqRel) & SHUT == 0
    }

    /// Waits until nobody is inside. False if that takes longer than `limit`.
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
