//! The pages of the device: doorbells, clock and memory have one each, at the driver's offsets in pages.

/// Bytes of a page.
pub(crate) const BYTES: usize = 4096;

/// Checks that the system has pages of this size.
///
/// # Errors
/// What to do.
pub fn check() -> Result<(), String> {
    // SAFETY: queries a constant of the system.
    fits(unsafe { libc::sysconf(libc::_SC_PAGESIZE) })
}

/// Drivers of a system with larger pages map several doorbells at once, at other offsets.
fn fits(system: libc::c_long) -> Result<(), String> {
    if usize::try_from(system) == Ok(BYTES) {
        return Ok(());
    }
    Err(format!(
        "the pages of this system have {system} bytes, those of the emulated device {BYTES}: boot a kernel with pages of 4 KiB"
    ))
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn a_system_with_pages_of_64_kib_is_refused_with_the_reason() {
        assert_eq!(fits(4096), Ok(()));
        for other in [64 << 10, 16 << 10, 0, -1] {
            let why = fits(other).unwrap_err();
            assert!(
                why.contains("4 KiB") && why.contains(&other.to_string()),
                "{why}"
            );
        }
    }
}
