//! Conditions without which the arena stays off.

use std::sync::atomic::{AtomicBool, Ordering};

use super::pages::PAGE;
use crate::original::Object;
use crate::{config, forked, ucm};

/// Set if this library's functions were written into UCX's operations table.
static IS_PATCHED: AtomicBool = AtomicBool::new(false);

/// Remembers that this library's functions were written into UCX's operations table. Another table
/// of the same module, that of its GGA transport, then holds UCX's own functions.
pub(crate) fn table_is_patched() {
    IS_PATCHED.store(true, Ordering::Relaxed);
}

/// A reason for no arena.
pub(super) type Off = &'static str;

/// Checks that the system's pages have the size that arena and kept registrations count in.
pub(crate) fn pages_fit() -> Result<(), Off> {
    // SAFETY: it has no preconditions.
    fits(unsafe { libc::sysconf(libc::_SC_PAGESIZE) })
}

/// The units of pages are the system's. BlueField kernels with pages of 64 KiB exist.
fn fits(system_page: libc::c_long) -> Result<(), Off> {
    if system_page == PAGE as libc::c_long {
        Ok(())
    } else {
        Err("the system's pages are not of 4 KiB")
    }
}

/// The first condition that does not hold.
pub(super) fn check(object: &Object) -> Result<(), Off> {
    pages_fit()?;
    if !config::get().is_strict() {
        return Err("it needs UCX_XGVMI_INVALIDATE=strict");
    }
    if IS_PATCHED.load(Ordering::Relaxed) && object.symbol(c"uct_gga_mlx5_cleanup").is_some() {
        return Err("UCX's GGA transport registers memory unseen, unless the library is preloaded");
    }
    if !forked::is_safe(|name| object.symbol(name)) {
        return Err("a forked child would lose memory (see UCX_IB_FORK_INIT)");
    }
    if !forked::watch(|| {}) {
        return Err("the system reports no forks");
    }
    if !ucm::is_allocator_known() {
        return Err("the program's allocator is not that of the C library");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn other_pages_do_not_fit() {
        assert_eq!(fits(4096), Ok(()));
        for page in [64 << 10, 16 << 10, 0, -1] {
            let why = fits(page).expect_err("another size");
            assert!(why.contains("4 KiB"), "{why}");
        }
    }
}
