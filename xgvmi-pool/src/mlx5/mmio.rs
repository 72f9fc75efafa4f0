//! Order of stores towards the adapter, and of loads from what it writes.
//!
//! The adapter is a second writer of memory, beyond what the language's memory model knows. On
//! x86-64 stores to ordinary memory are seen in their order and only write-combined ones need a
//! fence; on aarch64 each barrier reaches as far as the outer shareable domain, in which the
//! adapter is. (rdma-core: `util/udma_barrier.h`.)

use std::sync::atomic::{Ordering, compiler_fence};

/// Stores before it reach memory before stores behind it: request before doorbell record, record
/// before doorbell.
#[inline]
pub(super) fn store_barrier() {
    compiler_fence(Ordering::SeqCst);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier has no operands and no effect but the order.
    unsafe {
        std::arch::asm!("dmb oshst", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    std::sync::atomic::fence(Ordering::SeqCst);
}

/// A doorbell written before it leaves the processor now and not when a buffer fills up.
#[inline]
pub(super) fn flush_writes() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a fence has no operands and no effect but the order; every x86-64 has it.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier has no operands and no effect but the order.
    unsafe {
        std::arch::asm!("dsb st", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    std::sync::atomic::fence(Ordering::SeqCst);
}

/// Loads behind it see what the adapter wrote before what was loaded before it: the completion
/// after its owner bit.
#[inline]
pub(super) fn load_barrier() {
    compiler_fence(Ordering::SeqCst);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier has no operands and no effect but the order.
    unsafe {
        std::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    std::sync::atomic::fence(Ordering::SeqCst);
}
