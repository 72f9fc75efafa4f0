//! A limit on bytes that many connections share.

use std::cell::Cell;
use std::rc::Rc;

/// Bytes that may be held, and bytes that are. Clones share both.
#[derive(Debug, Clone)]
pub struct Budget {
    inner: Rc<Inner>,
}

#[derive(Debug)]
struct Inner {
    bytes_max: usize,
    used: Cell<usize>,
}

/// One holder's share of a budget, given back when dropped.
#[derive(Debug)]
pub struct Share {
    budget: Budget,
    bytes: usize,
}

/// A budget that has no more to give.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "all connections together use {used} bytes; {wanted} more would exceed the limit of {bytes_max}"
)]
pub struct Exceeded {
    /// Bytes in use.
    pub used: usize,
    /// The limit.
    pub bytes_max: usize,
    /// Bytes that were asked for.
    pub wanted: usize,
}

impl Budget {
    /// A budget of this many bytes.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Self {
            inner: Rc::new(Inner {
                bytes_max,
                used: Cell::new(0),
            }),
        }
    }

    /// Bytes in use.
    #[must_use]
    pub fn used(&self) -> usize {
        self.inner.used.get()
    }

    /// A share that holds nothing yet.
    #[must_use]
    pub fn share(&self) -> Share {
        Share {
            budget: self.clone(),
            bytes: 0,
        }
    }
}

impl Share {
    /// Changes what this holder has to `bytes`.
    ///
    /// # Errors
    /// [`Exceeded`]; the share stays as it was.
    pub fn resize(&mut self, bytes: usize) -> Result<(), Exceeded> {
        let inner = &self.budget.inner;
        // `used` is the sum of all shares, this one's included.
        let others = inner.used.get() - self.bytes;
        if bytes > self.bytes && others.saturating_add(bytes) > inner.bytes_max {
            return Err(Exceeded {
                used: inner.used.get(),
                bytes_max: inner.bytes_max,
                wanted: bytes - self.bytes,
            });
        }
        inner.used.set(others + bytes);
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let inner = &self.budget.inner;
        inner.used.set(inner.used.get() - self.bytes);
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
