//! A place of a memory domain: its address, and what serves it. Threads look it up without a lock.

use std::ptr::null_mut;
use std::sync::atomic::Ordering;

#[cfg(not(loom))]
use std::sync::atomic::{AtomicPtr, AtomicUsize};

#[cfg(loom)]
use loom::sync::atomic::{AtomicPtr, AtomicUsize};

/// Never used: neither this place nor a later one has a memory domain.
pub(crate) const NEVER_USED: usize = 0;

/// The place. One thread at a time changes it.
#[derive(Debug)]
pub(crate) struct Place<T> {
    address: AtomicUsize,
    /// Null if nothing serves the domain. Written before the address.
    served: AtomicPtr<T>,
}

impl<T> Place<T> {
    /// Never used.
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Self {
            address: AtomicUsize::new(NEVER_USED),
            served: AtomicPtr::new(null_mut()),
        }
    }

    /// Never used.
    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Self {
            address: AtomicUsize::new(NEVER_USED),
            served: AtomicPtr::new(null_mut()),
        }
    }

    /// The address, or what [`Place::clear`] left.
    #[inline(always)]
    pub(crate) fn address(&self) -> usize {
        self.address.load(Ordering::Acquire)
    }

    /// What serves the domain whose address the caller has found here, and which is open.
    #[inline(always)]
    pub(crate) fn served(&self) -> *mut T {
        self.served.load(Ordering::Relaxed)
    }

    /// Enters a domain.
    pub(crate) fn set(&self, address: usize, served: *mut T) {
        self.served.store(served, Ordering::Relaxed);
        self.address.store(address, Ordering::Release);
    }

    /// Removes the domain. No operation on it runs.
    pub(crate) fn clear(&self, empty: usize) {
        self.address.store(empty, Ordering::Release);
        self.served.store(null_mut(), Ordering::Relaxed);
    }

    /// Leaves the domain to UCX, in a child, which has one thread.
    pub(crate) fn leave(&self) {
        self.served.store(null_mut(), Ordering::Relaxed);
    }
}

#[cfg(all(test, loom))]
#[path = "place/models.rs"]
mod models;
