//! Conditions without which the arena stays off.

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use super::pages::PAGE;
use crate::module::{self, file_of};
use crate::original::Object;
use crate::{config, forked};

/// Set if this library's functions were written into UCX's operations table.
static IS_PATCHED: AtomicBool = AtomicBool::new(false);

/// Remembers that this library's functions were written into UCX's operations table. Another table
/// of the same module, that of its GGA transport, then holds UCX's own functions.
pub(crate) fn table_is_patched() {
    IS_PATCHED.store(true, Ordering::Relaxed);
}

/// A reason for no arena.
pub(super) type Off = &'static str;

/// `ibv_is_fork_initialized`, an `enum ibv_fork_status` (infiniband/verbs.h).
type ForkStatusFn = unsafe extern "C" fn() -> c_int;

/// `IBV_FORK_DISABLED`: `ibv_fork_init` was not called, and the kernel does not say that it copies.
const FORK_DISABLED: c_int = 0;
/// `IBV_FORK_UNNEEDED`: the kernel copies pinned pages for a child.
const FORK_UNNEEDED: c_int = 2;
/// Linux copies pinned pages for a child since this version.
const COPIES_PINNED: (u32, u32) = (5, 12);

/// The first condition that does not hold.
pub(super) fn check(object: &Object) -> Result<(), Off> {
    // SAFETY: it has no preconditions.
    if unsafe { libc::sysconf(libc::_SC_PAGESIZE) } != PAGE as libc::c_long {
        return Err("the system's pages are not of 4 KiB");
    }
    if !config::get().is_strict() {
        return Err("it needs UCX_XGVMI_INVALIDATE=strict");
    }
    if IS_PATCHED.load(Ordering::Relaxed) && object.symbol(c"uct_gga_mlx5_cleanup").is_some() {
        return Err("UCX's GGA transport registers memory unseen, unless the library is preloaded");
    }
    let status = object
        .symbol(c"ibv_is_fork_initialized")
        .map(|function| {
            // SAFETY: libibverbs' function of that name has this type.
            unsafe { std::mem::transmute::<*mut c_void, ForkStatusFn>(function.as_ptr()) }
        })
        // SAFETY: it has no preconditions.
        .map(|status| unsafe { status() });
    if !is_fork_safe(status, release()) {
        return Err("a forked child would lose memory (see UCX_IB_FORK_INIT)");
    }
    if !forked::watch(|| {}) {
        return Err("the system reports no forks");
    }
    if !is_allocator_known() {
        return Err("the program's allocator is not that of the C library");
    }
    Ok(())
}

/// Whether a child of a fork has all memory that is registered: with `MADV_DONTFORK` on slabs it would
/// lose its heap, and on an old kernel the parent's pages could move away from their registration.
fn is_fork_safe(status: Option<c_int>, release: Option<(u32, u32)>) -> bool {
    match status {
        Some(FORK_UNNEEDED) => true,
        Some(FORK_DISABLED) | None => release.is_some_and(|release| release >= COPIES_PINNED),
        Some(_) => false,
    }
}

/// Version of the kernel.
fn release() -> Option<(u32, u32)> {
    // SAFETY: an all-zero value is valid.
    let mut name: libc::utsname = unsafe { std::mem::zeroed() };
    // SAFETY: the result can be written.
    if unsafe { libc::uname(&raw mut name) } != 0 {
        return None;
    }
    // SAFETY: the kernel ends the text with a zero byte.
    let text = unsafe { CStr::from_ptr(name.release.as_ptr()) };
    version(text.to_str().ok()?)
}

fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// True if `malloc` is glibc's. Others may release memory with system calls of their own, which cause
/// no events.
fn is_allocator_known() -> bool {
    let file = |name| module::global(name).and_then(|symbol| file_of(symbol.as_ptr()));
    match (file(c"malloc"), file(c"gnu_get_libc_version")) {
        (Some((malloc, _)), Some((libc, _))) => malloc == libc,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_is_safe_only_where_the_kernel_copies_pinned_pages() {
        for (status, release, expect) in [
            (Some(FORK_UNNEEDED), None, true),
            (Some(FORK_UNNEEDED), Some((4, 18)), true),
            (Some(FORK_DISABLED), Some((5, 12)), true),
            (Some(FORK_DISABLED), Some((5, 11)), false),
            (Some(FORK_DISABLED), None, false),
            // IBV_FORK_ENABLED: registrations take their pages away from children.
            (Some(1), Some((6, 1)), false),
            (None, Some((6, 1)), true),
            (None, Some((4, 19)), false),
        ] {
            assert_eq!(
                is_fork_safe(status, release),
                expect,
                "{status:?} {release:?}"
            );
        }
    }

    #[test]
    fn versions_are_read() {
        assert_eq!(version("6.1.0-18-amd64"), Some((6, 1)));
        assert_eq!(version("5.14-rc1"), Some((5, 14)));
        assert_eq!(version("none"), None);
        assert!(release().is_some());
    }
}
