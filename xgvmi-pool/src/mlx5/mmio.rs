//! Order of stores towards the adapter, and of loads from what it writes.
//!
//! The adapter is a second writer of memory, beyond what the language's memory model knows. Each
//! barrier is the one that rdma-core puts at the same place; docs/HARDWARE.md argues them one by one
//! in a table.

use std::sync::atomic::{Ordering, compiler_fence};

/// Stores before it reach memory before stores behind it, for a device that reads both: request
/// before doorbell record. (rdma-core: `udma_to_device_barrier`.)
#[inline]
pub(super) fn to_device_barrier() {
    compiler_fence(Ordering::SeqCst);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier has no operands and no effect but the order.
    unsafe {
        std::arch::asm!("dmb oshst", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    std::sync::atomic::fence(Ordering::SeqCst);
}

/// Stores before it, to ordinary memory or to a register, are on their way before a store to
/// write-combined memory behind it: record before doorbell. On x86-64 this is a real fence, because
/// the order of ordinary stores does not hold for write-combined ones. (rdma-core:
/// `mmio_wc_start`, which is `mmio_flush_writes`.)
#[inline]
pub(super) fn wc_start() {
    flush_writes();
}

/// A doorbell written before it leaves the processor now and not when a buffer fills up, and is
/// never combined with the next one. (rdma-core: `mmio_flush_writes`.)
#[inline]
pub(super) fn flush_writes() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a fence has no operands and no effect but the order; every x86-64 has it.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    compiler_fence(Ordering::SeqCst);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier has no operands and no effect but the order.
    unsafe {
        std::arch::asm!("dsb st", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    std::sync::atomic::fence(Ordering::SeqCst);
}

/// Loads behind it see what the adapter wrote before what was loaded before it: the completion
/// after its owner bit. (rdma-core: `udma_from_device_barrier`.)
#[inline]
pub(super) fn from_device_barrier() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a fence has no operands and no effect but the order; every x86-64 has it.
    unsafe {
        std::arch::x86_64::_mm_lfence();
    }
    compiler_fence(Ordering::SeqCst);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier has no operands and no effect but the order.
    unsafe {
        std::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    std::sync::atomic::fence(Ordering::SeqCst);
}
