//! What a service counts, in all and for each initiator.

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) requests: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) fetched: AtomicU64,
    pub(super) delivered: AtomicU64,
}

impl Counters {
    /// All, in their order.
    pub(super) fn all(&self) -> [u64; 4] {
        let all = [&self.requests, &self.failed, &self.fetched, &self.delivered];
        all.map(|counter| counter.load(Ordering::Relaxed))
    }
}

pub(super) fn add(counter: &AtomicU64, amount: u64) {
    // Relaxed: a counter orders nothing.
    counter.fetch_add(amount, Ordering::Relaxed);
}
