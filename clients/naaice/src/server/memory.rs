//! A limit on the memory of the regions of all sessions: registered memory stays in RAM.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The limit and the current use.
#[derive(Debug)]
pub struct MemoryLimit {
    max: u64,
    used: AtomicU64,
}

/// Bytes of a session. Dropping it returns them.
#[derive(Debug)]
pub struct Taken {
    limit: Arc<MemoryLimit>,
    bytes: u64,
}

impl MemoryLimit {
    /// A limit of `max` bytes.
    #[must_use]
    pub fn new(max: u64) -> Arc<Self> {
        Arc::new(Self {
            max,
            used: AtomicU64::new(0),
        })
    }

    /// Half of the machine's memory.
    #[must_use]
    pub fn half_of_machine() -> u64 {
        let number = |name| {
            // SAFETY: the call has no preconditions.
            u64::try_from(unsafe { libc::sysconf(name) }).unwrap_or(0)
        };
        number(libc::_SC_PHYS_PAGES).saturating_mul(number(libc::_SC_PAGESIZE)) / 2
    }

    /// The maximum in bytes.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Bytes in use.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Acquire)
    }

    /// Takes bytes; `None` if they exceed the limit.
    #[must_use]
    pub fn take(self: &Arc<Self>, bytes: u64) -> Option<Taken> {
        let more = |used: u64| used.checked_add(bytes).filter(|used| *used <= self.max);
        self.used
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more)
            .ok()?;
        Some(Taken {
            limit: Arc::clone(self),
            bytes,
        })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.limit.used.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_share_the_limit_and_return_their_bytes() {
        let limit = MemoryLimit::new(100);
        let first = limit.take(60).expect("60 of 100");
        assert!(limit.take(41).is_none() && limit.take(u64::MAX).is_none());
        let second = limit.take(40).expect("exactly the rest");
        assert_eq!(limit.used(), 100);
        drop(first);
        assert_eq!(limit.used(), 40);
        drop(second);
        assert!(limit.take(100).is_some());
    }
}
