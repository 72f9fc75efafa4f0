//! Pages of the system. What counts in pages of 4 KiB, arena and kept registrations, is off where they have another size:
//! BlueField kernels with pages of 64 KiB exist.

/// Bytes of a page that they count in.
pub(crate) const PAGE: usize = 4096;

/// Checks that the system's pages have this size.
///
/// # Errors
/// The reason for the user.
pub(crate) fn check() -> Result<(), &'static str> {
    // SAFETY: it has no preconditions.
    fits(unsafe { libc::sysconf(libc::_SC_PAGESIZE) })
}

fn fits(system_page: libc::c_long) -> Result<(), &'static str> {
    if system_page == PAGE as libc::c_long {
        Ok(())
    } else {
        Err("the system's pages are not of 4 KiB")
    }
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn pages_of_64_kib_do_not_fit() {
        assert_eq!(fits(4096), Ok(()));
        for page in [64 << 10, 16 << 10, 0, -1] {
            let why = fits(page).expect_err("another size");
            assert!(why.contains("4 KiB"), "{why}");
        }
    }
}
