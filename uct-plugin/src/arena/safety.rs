//! Conditions without which the arena stays off.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::original::Object;
use crate::{config, forked, system_pages, ucm};

/// Set if this library's functions were written into UCX's operations table.
static IS_PATCHED: AtomicBool = AtomicBool::new(false);

/// Remembers that this library's functions were written into UCX's operations table. Another table
/// of the same module, that of its GGA transport, then holds UCX's own functions.
pub(crate) fn table_is_patched() {
    IS_PATCHED.store(true, Ordering::Relaxed);
}

/// A reason for no arena.
pub(super) type Off = &'static str;

/// The first condition that does not hold.
pub(super) fn check(object: &Object) -> Result<(), Off> {
    system_pages::check()?;
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
