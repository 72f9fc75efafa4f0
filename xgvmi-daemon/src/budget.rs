//! A limit on the bytes that many connections use together.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The limit and the current use. Clones share both, also between threads.
#[derive(Debug, Clone)]
pub struct Budget {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    bytes_max: usize,
    used: Mutex<usize>,
}

/// One holder's share of a budget. Dropping it returns the bytes.
#[derive(Debug)]
pub struct Share {
    budget: Budget,
    bytes: usize,
}

/// The budget is exhausted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "all connections together use {used} bytes; {wanted} more would exceed the limit of {bytes_max}"
)]
pub struct Exceeded {
    /// Bytes in use.
    pub used: usize,
    /// The limit.
    pub bytes_max: usize,
    /// Requested bytes.
    pub wanted: usize,
}

impl Budget {
    /// A budget of `bytes_max` bytes.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Self {
            inner: Arc::new(Inner {
                bytes_max,
                used: Mutex::new(0),
            }),
        }
    }

    /// Bytes in use.
    #[must_use]
    pub fn used(&self) -> usize {
        *self.inner.used()
    }

    /// An empty share.
    #[must_use]
    pub fn share(&self) -> Share {
        Share {
            budget: self.clone(),
            bytes: 0,
        }
    }
}

impl Inner {
    fn used(&self) -> MutexGuard<'_, usize> {
        // No holder panics between reading and writing the number.
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Share {
    /// Changes the size of this share to `bytes`.
    ///
    /// # Errors
    /// [`Exceeded`]; the share stays unchanged.
    pub fn resize(&mut self, bytes: usize) -> Result<(), Exceeded> {
        let inner = &self.budget.inner;
        // `used` is the sum of all shares, including this one.
        let mut used = inner.used();
        let others = *used - self.bytes;
        if bytes > self.bytes && others.saturating_add(bytes) > inner.bytes_max {
            return Err(Exceeded {
                used: *used,
                bytes_max: inner.bytes_max,
                wanted: bytes - self.bytes,
            });
        }
        *used = others + bytes;
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        *self.budget.inner.used() -= self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_and_come_back() {
        let budget = Budget::new(100);
        let (mut one, mut other) = (budget.share(), budget.share());
        one.resize(60).expect("free");
        let refused = other.resize(41).expect_err("too much");
        assert_eq!((refused.used, refused.wanted), (60, 41));
        other.resize(40).expect("free");
        one.resize(10).expect("less is always possible");
        assert_eq!(budget.used(), 50);
        drop(other);
        one.resize(100).expect("given back");
        drop(one);
        assert_eq!(budget.used(), 0);
    }
}
