//! Pages of the system. Their size is the kernel's: BlueField kernels with pages of 64 KiB exist.

/// Bytes of a page.
pub(crate) fn bytes() -> usize {
    // SAFETY: queries a constant of the system.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(4096)
}

/// Start and length of the pages that contain a range, which does not exceed the address space.
pub(crate) fn around(start: u64, length: u64, page: usize) -> (u64, u64) {
    let page = page as u64;
    let first = start - start % page;
    (first, (start + length).next_multiple_of(page) - first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_within_whole_pages_of_any_size() {
        for (start, length, page, expect) in [
            (0x1_3000, 0x1000, 4096, (0x1_3000, 0x1000)),
            (0x1_3001, 0x1000, 4096, (0x1_3000, 0x2000)),
            (0x1_3000, 0x1000, 64 << 10, (0x1_0000, 0x1_0000)),
            (0x1_f000, 0x2000, 64 << 10, (0x1_0000, 0x2_0000)),
        ] {
            assert_eq!(around(start, length, page), expect, "{start:#x} {page}");
        }
        assert!(bytes().is_power_of_two());
    }
}
