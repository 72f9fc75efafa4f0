//! The location of device memory in a context's file, and the device's own mappings of it.

use crate::fabric::objects::Umem;
use crate::sys;

/// Pages of device memory of one context.
pub(crate) const PAGES: usize = 32;
/// Bytes of a page.
pub(crate) const PAGE_BYTES: u64 = super::pages::BYTES as u64;
/// First page of device memory in the driver's mmap offsets: command 8 (`MLX5_IB_MMAP_DEVICE_MEM`,
/// at bit 8), in pages.
pub(crate) const PAGE_FIRST: u64 = 8 << 8;

/// True if this page of a context's file is device memory.
pub(super) fn contains(page: u64) -> bool {
    (PAGE_FIRST..PAGE_FIRST + PAGES as u64).contains(&page)
}

/// Number of pages for this many bytes.
pub(crate) fn pages(length: u64) -> u64 {
    length.div_ceil(PAGE_BYTES)
}

/// Removes the device's own mapping of an allocation, in the process that allocated it.
pub(crate) fn unmap(memory: &Umem) {
    sys::unmap(memory.address, pages(memory.length) * PAGE_BYTES);
}
