//! Global state that every export and release reads, together in one cache line. It is written only when
//! a copy of UCX is first seen, at the first export, and when something fails.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr};

/// The line.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Hot {
    /// The first known operations table, null before; written after `object`.
    pub(crate) ops: AtomicPtr<c_void>,
    /// The copy of UCX that it belongs to, an `Object` of [`crate::original`] that is never freed.
    pub(crate) object: AtomicPtr<c_void>,
    /// Set by the first export with a key of a pool, see [`crate::rkey`].
    pub(crate) has_exported: AtomicBool,
    /// Set by the first panic, see [`crate::panic`].
    pub(crate) is_broken: AtomicBool,
    /// Set while the system refuses memory, see [`crate::allocator`].
    pub(crate) is_short: AtomicBool,
}

pub(crate) static HOT: Hot = Hot {
    ops: AtomicPtr::new(null_mut()),
    object: AtomicPtr::new(null_mut()),
    has_exported: AtomicBool::new(false),
    is_broken: AtomicBool::new(false),
    is_short: AtomicBool::new(false),
};
