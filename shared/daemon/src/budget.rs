//! A limit on the bytes that many connections use together.
//!
//! The first bytes of each connection are free: a peer that fills its buffers, or the memory of all, does not stop the short
//! frames of others. What connections of one address or one group use beyond has a limit of its own, so that one of them
//! cannot use everything.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of each share that are not charged: the longest frame of a peer that is not identified, and a short one more.
pub const FREE: usize = 6 << 10;

/// The limit and the current use. Clones share both, also between threads.
#[derive(Debug, Clone)]
pub struct Budget {
    inner: Arc<Inner>,
}

/// The payer of a share, which has a limit of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Payer {
    /// A peer that is not identified.
    Address(IpAddr),
    /// Peers that belong together, such as those of a job.
    Group(u128),
}

#[derive(Debug)]
struct Inner {
    bytes_max: usize,
    payer_max: usize,
    used: Mutex<Used>,
}

/// Charged bytes.
#[derive(Debug, Default)]
struct Used {
    all: usize,
    payers: HashMap<Payer, usize>,
}

/// One holder's share of a budget. Dropping it returns the bytes.
#[derive(Debug)]
pub struct Share {
    budget: Budget,
    payer: Option<Payer>,
    /// Charged bytes.
    bytes: usize,
}

/// The budget is exhausted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{whose} use {used} bytes; {wanted} more would exceed the limit of {bytes_max}")]
pub struct Exceeded {
    /// The connections that share the limit.
    pub whose: &'static str,
    /// Charged bytes.
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
        Self::with_payers(bytes_max, bytes_max)
    }

    /// A budget of `bytes_max` bytes, of which each payer may use `payer_max`.
    #[must_use]
    pub fn with_payers(bytes_max: usize, payer_max: usize) -> Self {
        Self {
            inner: Arc::new(Inner {
                bytes_max,
                payer_max,
                used: Mutex::default(),
            }),
        }
    }

    /// Bytes in use.
    #[must_use]
    pub fn used(&self) -> usize {
        self.inner.used().all
    }

    /// An empty share.
    #[must_use]
    pub fn share(&self) -> Share {
        Share {
            budget: self.clone(),
            payer: None,
            bytes: 0,
        }
    }
}

impl Inner {
    fn used(&self) -> MutexGuard<'_, Used> {
        // No holder panics between reading and writing the numbers.
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Used {
    /// Replaces `before` charged bytes of a payer by `bytes`.
    fn replace(&mut self, payer: Option<Payer>, before: usize, bytes: usize) {
        self.all = self.all - before + bytes;
        let Some(payer) = payer else { return };
        let used = self.payers.entry(payer).or_default();
        *used = *used - before + bytes;
        if *used == 0 {
            self.payers.remove(&payer);
        }
    }
}

impl Share {
    /// Changes the size of this share to `bytes`.
    ///
    /// # Errors
    /// [`Exceeded`]; the share stays unchanged.
    pub fn resize(&mut self, bytes: usize) -> Result<(), Exceeded> {
        let bytes = bytes.saturating_sub(FREE);
        if bytes == self.bytes {
            return Ok(());
        }
        let inner = &self.budget.inner;
        let mut used = inner.used();
        if let Some(wanted) = bytes.checked_sub(self.bytes) {
            let of_payer = self
                .payer
                .and_then(|payer| used.payers.get(&payer).copied());
            let limits = [
                ("all connections together", used.all, inner.bytes_max),
                (
                    "the connections of its job or address",
                    of_payer.unwrap_or(0),
                    inner.payer_max,
                ),
            ];
            for (whose, used, bytes_max) in limits {
                if used.saturating_add(wanted) > bytes_max {
                    return Err(Exceeded {
                        whose,
                        used,
                        bytes_max,
                        wanted,
                    });
                }
            }
        }
        used.replace(self.payer, self.bytes, bytes);
        self.bytes = bytes;
        Ok(())
    }

    /// Names the payer of this share from now on. Its limit holds from the next [`Share::resize`] on.
    pub fn charge(&mut self, payer: Payer) {
        let mut used = self.budget.inner.used();
        used.replace(self.payer, self.bytes, 0);
        used.replace(Some(payer), 0, self.bytes);
        self.payer = Some(payer);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut used = self.budget.inner.used();
        used.replace(self.payer, self.bytes, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_and_come_back() {
        let budget = Budget::new(100);
        let (mut one, mut other) = (budget.share(), budget.share());
        one.resize(FREE + 60).expect("free");
        let refused = other.resize(FREE + 41).expect_err("too much");
        assert_eq!((refused.used, refused.wanted), (60, 41));
        other.resize(FREE + 40).expect("free");
        one.resize(FREE + 10).expect("less is always possible");
        assert_eq!(budget.used(), 50);
        drop(other);
        one.resize(FREE + 100).expect("given back");
        drop(one);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_payer_cannot_use_everything_and_short_frames_always_fit() {
        let (one, other) = (Payer::Group(1), Payer::Address([127, 0, 0, 1].into()));
        let budget = Budget::with_payers(100, 60);
        let mut shares: Vec<Share> = (0..4).map(|_| budget.share()).collect();
        for (share, payer) in shares.iter_mut().zip([one, one, other, other]) {
            share.charge(payer);
        }
        shares[0].resize(FREE + 50).expect("free");
        let refused = shares[1].resize(FREE + 11).expect_err("too much of one");
        assert_eq!(
            refused.to_string(),
            "the connections of its job or address use 50 bytes; 11 more would exceed the limit of 60"
        );
        shares[2].resize(FREE + 50).expect("of another");
        let refused = shares[3].resize(FREE + 1).expect_err("too much of all");
        assert!(
            refused
                .to_string()
                .starts_with("all connections together use 100")
        );
        for share in &mut shares {
            share.resize(FREE).expect("always");
        }
        // A peer that is identified pays for itself.
        shares[2].resize(FREE + 50).expect("free");
        shares[2].charge(one);
        assert!(shares[0].resize(FREE + 11).is_err());
        shares[3].resize(FREE + 50).expect("free");
        drop(shares);
        assert_eq!(budget.used(), 0);
        assert!(budget.inner.used().payers.is_empty());
    }
}
