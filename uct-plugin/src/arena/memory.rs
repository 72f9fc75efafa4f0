//! The arena's memory: address space, slabs with their NUMA node, and pages of zeros.

use std::ptr::NonNull;

use super::counts;
use super::pages::{PAGE, SLAB_BYTES};
use crate::ucm::Ucm;

/// Alignment of the first slab: a huge page.
const HUGE: usize = 2 << 20;
/// `MPOL_PREFERRED` (linux/mempolicy.h): the node, or another one if it is full.
const MPOL_PREFERRED: libc::c_int = 1;

/// The machine's NUMA nodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    has_nodes: bool,
}

impl Place {
    /// Looks at the machine.
    pub(super) fn find() -> Self {
        let online = std::fs::read_to_string("/sys/devices/system/node/online");
        Self {
            has_nodes: online.is_ok_and(|nodes| nodes.trim() != "0"),
        }
    }

    /// The node of the calling thread's processor.
    pub(super) fn node(self) -> u32 {
        if !self.has_nodes {
            return 0;
        }
        let (mut processor, mut node) = (0_u32, 0_u32);
        let unused = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: the kernel writes the two numbers.
        let asked =
            unsafe { libc::syscall(libc::SYS_getcpu, &raw mut processor, &raw mut node, unused) };
        if asked == 0 { node } else { 0 }
    }

    /// Reserves address space without memory. The address is that of a huge page.
    pub(super) fn reserve(self, ucm: &Ucm, bytes: usize) -> Option<usize> {
        let flags = libc::MAP_NORESERVE;
        // SAFETY: without MAP_FIXED the kernel chooses unused addresses.
        let found = unsafe { ucm.map(0, bytes + HUGE, libc::PROT_NONE, flags) }?;
        Some(found.next_multiple_of(HUGE))
    }

    /// Gives a slab its memory, on the node if possible. False if the kernel refuses.
    pub(super) fn make(self, ucm: &Ucm, address: usize, node: u32) -> bool {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the slab is reserved and has no memory.
        if unsafe { ucm.map(address, SLAB_BYTES, prot, libc::MAP_FIXED) }.is_none() {
            return false;
        }
        // Both are hints: the slab works on small pages and on any node.
        // SAFETY: no program uses the slab yet.
        let _is_huge = unsafe { ucm.advise(address, SLAB_BYTES, libc::MADV_HUGEPAGE) };
        if self.has_nodes && node < u64::BITS {
            let mask = 1_u64 << node;
            let mask: *const u64 = &raw const mask;
            // SAFETY: the kernel reads one word of the mask.
            unsafe {
                libc::syscall(
                    libc::SYS_mbind,
                    address,
                    SLAB_BYTES,
                    MPOL_PREFERRED,
                    mask,
                    u64::BITS + 1,
                    0,
                )
            };
        }
        counts::BYTES.add(SLAB_BYTES);
        true
    }

    /// Takes a slab's memory away and keeps its address space.
    pub(super) fn unmake(self, ucm: &Ucm, address: usize) {
        let flags = libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: no range and no registration of the slab exists.
        let reserved = unsafe { ucm.map(address, SLAB_BYTES, libc::PROT_NONE, flags) };
        if reserved.is_some() {
            counts::BYTES.subtract(SLAB_BYTES);
        }
    }
}

/// Makes pages zero and accessible: an earlier owner may have changed their protection, of which no
/// event tells. False if the kernel refuses.
///
/// # Safety
/// The pages are in a slab with memory, and nothing uses them.
pub(super) unsafe fn zero(address: usize, bytes: usize) -> bool {
    let pages = std::ptr::with_exposed_provenance_mut::<u8>(address);
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: by the contract of this function.
    if unsafe { libc::mprotect(pages.cast(), bytes, prot) } != 0 {
        return false;
    }
    // SAFETY: as above; the pages can be written.
    unsafe { pages.write_bytes(0, bytes) };
    counts::ZEROED.add(bytes);
    true
}

/// Zeroed memory for `count` values that is never freed.
pub(super) fn zeroed<T>(ucm: &Ucm, count: usize) -> Option<NonNull<T>> {
    const { assert!(align_of::<T>() <= PAGE) };
    let bytes = (count * size_of::<T>()).next_multiple_of(PAGE);
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: without MAP_FIXED the kernel chooses unused addresses.
    let address = unsafe { ucm.map(0, bytes, prot, libc::MAP_NORESERVE) }?;
    NonNull::new(std::ptr::with_exposed_provenance_mut(address))
}
