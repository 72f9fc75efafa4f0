//! Ordering of stores to the adapter, and of loads of data that the adapter writes.
//!
//! The adapter is a second writer of memory, outside the language's memory model. Each barrier is
//! the one that rdma-core 44 uses in the same place (`providers/mlx5`). On aarch64, versions up to 50 use the stronger
//! `dsb` in the first and the last row.
//!
//! | Between | x86-64 | aarch64 | Why | rdma-core |
//! |---|---|---|---|---|
//! | work request and doorbell record | compiler only | `dmb oshst` | The adapter may read the ring as soon as it sees the record. Both are ordinary memory. | `qp.c:767` |
//! | doorbell record and doorbell | `sfence` | `dsb st` | The doorbell is write-combined memory, which the order of ordinary stores does not include. | `qp.c:777` |
//! | doorbell and all later stores | `sfence` | `dsb st` | The store leaves the processor now, and does not merge with the next doorbell. | `qp.c:797` |
//! | ownership bit and content of a completion | `lfence` | `dmb oshld` | The adapter writes the bit last, so read it first. | `cq.c:557` |
//!
//! Consecutive doorbells alternate between the two halves of the register (`qp.c:798`). The record of the completion queue
//! is stored without a barrier, as in `cq.c:161`: the queue has an entry for every request that may be under way.
//!
//! A doorbell is one volatile store. On aarch64 its page is device memory, where exclusive loads and stores, which an atomic
//! operation may become, need not work.

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
