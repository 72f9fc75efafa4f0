//! Limits of this process, and its privileges to exceed them.

use super::once::Once;

/// The limit of open files.
#[must_use]
pub fn files_max() -> u64 {
    limit(libc::RLIMIT_NOFILE)
}

/// The limit of locked memory in bytes; None if there is none.
#[must_use]
pub fn locked_bytes_max() -> Option<u64> {
    Some(limit(libc::RLIMIT_MEMLOCK)).filter(|bytes| *bytes != libc::RLIM_INFINITY)
}

fn limit(resource: libc::__rlimit_resource_t) -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    let no_new = std::ptr::null::<libc::rlimit>();
    // SAFETY: the kernel writes one structure, which outlives the call.
    unsafe { libc::syscall(libc::SYS_prlimit64, 0, resource, no_new, &raw mut limit) };
    limit.rlim_cur
}

/// Bit of CAP_IPC_LOCK.
const CAP_IPC_LOCK: u64 = 1 << 14;

/// True if this process may lock any amount of memory: CAP_IPC_LOCK, in the first user namespace, as
/// `capable` demands. A container's root without the capability on the host may not.
#[must_use]
pub fn may_lock_memory() -> bool {
    effective() & CAP_IPC_LOCK != 0 && is_first_namespace()
}

/// The effective capabilities of this thread.
fn effective() -> u64 {
    /// `_LINUX_CAPABILITY_VERSION_3`: two words of 32 bits for each set.
    const VERSION: u32 = 0x2008_0522;
    let mut header = [VERSION, 0];
    let mut sets = [0_u32; 6];
    // SAFETY: the header and the six words are as long as the kernel's structures of this version, and
    // outlive the call.
    let result = unsafe { libc::syscall(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr()) };
    let [low, _, _, high, ..] = sets;
    match result {
        0 => u64::from(high) << 32 | u64::from(low),
        _ => 0,
    }
}

/// True if user numbers mean the same as on the host.
fn is_first_namespace() -> bool {
    static FIRST: Once<bool> = Once::new();
    *FIRST.get_or_make(|| {
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
    })
}
