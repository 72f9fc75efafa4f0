//! Pinning of registered memory: the checks and the limit of the kernel (`ib_umem_get`).
//!
//! The device resolves addresses at each access, so no page is pinned here.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::commands::call::Call;
use crate::fabric::Locked;
use crate::fabric::objects::{Mkey, MkeyKind, MkeyOrigin};
use crate::process::LockedMemory;
use crate::sys::{self, Errno, limits, mapping};

const PAGE: u64 = 4096;

/// Checks that each page of a region is mapped, and writable if the device may write.
///
/// # Errors
/// EFAULT.
pub(super) fn check_mapped(start: u64, length: u64, writes: bool) -> Result<(), Errno> {
    let Some(last) = length.checked_sub(1) else {
        return Ok(());
    };
    // A page of a file may lie behind the file's end.
    let mut byte = [0];
    crate::guard::read(start, &mut byte)?;
    crate::guard::read(start + last, &mut byte)?;
    mapping::check(start, length, writes)
}

/// Checks that the process may pin `length` more bytes at `start`, by RLIMIT_MEMLOCK and CAP_IPC_LOCK.
///
/// # Errors
/// ENOMEM beyond the limit; EPERM if it is 0.
pub(super) fn check_limit(
    call: &Call<'_>,
    locked: &Locked<'_>,
    (start, length): (u64, u64),
) -> Result<(), Errno> {
    if call.process.locked_memory() == LockedMemory::Free {
        return Ok(());
    }
    let Some(limit) = limits::locked_bytes_max() else {
        return Ok(());
    };
    if limits::may_lock_memory() {
        return Ok(());
    }
    if limit == 0 {
        return Err(Errno(libc::EPERM));
    }
    let wanted = pinned(locked, call.owner()?.process) + pages(start, length);
    if wanted > limit / PAGE {
        tell(wanted, limit);
        return Err(Errno(libc::ENOMEM));
    }
    Ok(())
}

/// Pages that a process has pinned on the cards whose locks are held: `mm->pinned_vm`, which counts a page once for each registration.
/// The pages of queues, which the kernel counts too, are few.
fn pinned(locked: &Locked<'_>, process: u32) -> u64 {
    let pins = |mkey: &Mkey| {
        (mkey.origin, mkey.kind) == (MkeyOrigin::Region, MkeyKind::Direct)
            && !mkey.on_demand
            && !mkey.device_memory
    };
    (0..locked.fabric().identities().len())
        .filter(|function| locked.holds(*function))
        .map(|function| {
            let function = locked.peek(function);
            let regions = function
                .mkeys
                .iter()
                .filter(|(_, owner, mkey)| owner.process == process && pins(mkey))
                .map(|(_, _, mkey)| pages(mkey.host, mkey.len));
            let umems = function
                .umems
                .iter()
                .filter(|(_, owner, umem)| owner.process == process && umem.device_page == 0)
                .map(|(_, _, umem)| pages(umem.address, umem.length));
            regions.sum::<u64>() + umems.sum::<u64>()
        })
        .sum()
}

/// Pages that a range touches.
fn pages(start: u64, length: u64) -> u64 {
    // Cannot overflow: ranges end below 2^64 - 2^12, see `check_range`.
    let first = start / PAGE;
    (start.saturating_add(length)).div_ceil(PAGE) - first
}

/// Logs the limit, once in a process: an application sees only an errno.
fn tell(pages: u64, limit: u64) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if TOLD.swap(true, Ordering::Relaxed) {
        return;
    }
    let text = format!(
        "bf-emu: {} KiB of registered memory are more than RLIMIT_MEMLOCK, {} KiB: raise it (ulimit -l), or set \
         {}=free\n",
        pages * PAGE / 1024,
        limit / 1024,
        crate::process::ENV_MEMLOCK,
    );
    let _ = sys::write(2, text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_a_range() {
        for (start, length, expect) in [
            (0, 0, 0),
            (4095, 1, 1),
            (4095, 2, 2),
            (4096, 4096, 1),
            (1, 4096, 2),
            (0x10_0800, 1 << 30, (1 << 18) + 1),
        ] {
            assert_eq!(pages(start, length), expect, "{start:#x} {length}");
        }
    }
}
