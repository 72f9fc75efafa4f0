//! The open files of this process that are contexts of the device or files of its connection
//! manager.

use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// Largest file descriptor whose close is watched. A context with a larger descriptor works and
/// ends with the process.
const WATCHED_MAX: usize = 65_536;

/// The file descriptors that are known files of the device.
static WATCHED: Set = [const { AtomicU64::new(0) }; WATCHED_MAX / 64];
/// Those of them that are files of the connection manager.
static CONNECTIONS: Set = [const { AtomicU64::new(0) }; WATCHED_MAX / 64];

/// A set of file descriptors.
type Set = [AtomicU64; WATCHED_MAX / 64];

/// The process that owns the files. A child of vfork shares this memory, but not the files.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// Records that `fd` is a context of the device.
pub(crate) fn watch(fd: c_int) {
    if let Some((word, bit)) = place_of(&WATCHED, fd) {
        OWNER.store(process_id(), Ordering::Relaxed);
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// Records that `fd`, which is watched, is a file of the connection manager.
pub(crate) fn watch_connections(fd: c_int) {
    if let Some((word, bit)) = place_of(&CONNECTIONS, fd) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// True if `fd` is known to be a file of the connection manager.
pub(crate) fn is_connections(fd: c_int) -> bool {
    place_of(&CONNECTIONS, fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// The process number from the kernel, not from a cache.
fn process_id() -> c_int {
    // SAFETY: getpid has no preconditions and cannot fail.
    unsafe { libc::getpid() }
}

/// True if this process owns the files. False in a child of vfork.
pub(crate) fn is_owner() -> bool {
    OWNER.load(Ordering::Relaxed) == process_id()
}

/// True if `fd` is known to be a context of the device.
pub(crate) fn is_watched(fd: c_int) -> bool {
    place_of(&WATCHED, fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

fn place_of(set: &'static Set, fd: c_int) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((set.get(fd / 64)?, 1 << (fd % 64)))
}

/// Removes the record that `fd` is a file of the connection manager.
pub(crate) fn forget_connections(fd: c_int) {
    if let Some((word, bit)) = place_of(&CONNECTIONS, fd) {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// Removes the record of `fd`, which is about to be closed.
pub(crate) fn forget(fd: c_int) {
    for set in [&WATCHED, &CONNECTIONS] {
        if let Some((word, bit)) = place_of(set, fd) {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }
}

/// The child of a fork owns its own files.
pub(crate) fn after_fork_in_child() {
    OWNER.store(process_id(), Ordering::Relaxed);
}
