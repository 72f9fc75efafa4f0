//! Ordering of stores to the adapter, and of loads of data that the adapter writes.
//!
//! The adapter is a second writer of memory, outside the language's memory model. Each barrier is
//! the one that rdma-core uses in the same place. A table in docs/HARDWARE.md justifies each of
//! them.

use std::sync::atomic::{Ordering, compiler_fence};

/// Orders earlier stores before later stores, for a device that reads both: the request before the
/// doorbell record. (rdma-core: `udma_to_device_barrier`.)
#[inline]
pub(super) fn to_device_barrier() {
    compiler_fence(Ordering::SeqCst);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier has no operands and no other effect.
    unsafe {
        std::arch::asm!("dmb oshst", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    std::sync::atomic::fence(Ordering::SeqCst);
}

/// Orders earlier stores, to ordinary memory or to a register, before a later store to
/// write-combined memory: the record before the doorbell. On x86-64 this needs a fence, because
/// write-combined stores do not follow the order of ordinary stores. (rdma-core: `mmio_wc_start`,
/// which is `mmio_flush_writes`.)
#[inline]
pub(super) fn wc_start() {
    flush_writes();
}

/// An earlier doorbell leaves the processor now, not when a buffer fills, and never combines with
/// the next one. (rdma-core: `mmio_flush_writes`.)
#[inline]
pub(super) fn flush_writes() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a fence has no operands and no other effect; every x86-64 has it.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    compiler_fence(Ordering::SeqCst);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier has no operands and no other effect.
    unsafe {
        std::arch::asm!("dsb st", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    std::sync::atomic::fence(Ordering::SeqCst);
}

/// Orders later loads behind earlier loads of data that the adapter wrote: the completion after its
/// owner bit. (rdma-core: `udma_from_device_barrier`.)
#[inline]
pub(super) fn from_device_barrier() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a fence has no operands and no other effect; every x86-64 has it.
    unsafe {
        std::arch::x86_64::_mm_lfence();
    }
    compiler_fence(Ordering::SeqCst);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier has no operands and no other effect.
    unsafe {
        std::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    std::sync::atomic::fence(Ordering::SeqCst);
}
