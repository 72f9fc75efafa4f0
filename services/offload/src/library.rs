//! Access to this project's library, if it is loaded in this process. Its functions are looked up at run time.
//!
//! Nothing links to the library. With stock UCX it is absent, and nothing is announced, accepted or counted.

use std::ffi::{CStr, c_int, c_void};

/// The library's soname, for the case that UCX has loaded it with local symbol scope.
const SONAME: &CStr = c"libuct_ib_mlx5_xgvmi.so.0";

/// The longest announcement that is accepted: 65,536 keys without consecutive numbers take half a megabyte.
const ANNOUNCEMENT_MAX: usize = 16 << 20;

type Announce = unsafe extern "C" fn(*mut c_void, usize) -> isize;
type AnnounceKeys = unsafe extern "C" fn(*mut c_void, usize, u32) -> isize;
type Accept = unsafe extern "C" fn(*const c_void, usize) -> i64;
type Stats = unsafe extern "C" fn(*mut LibraryStats, usize) -> c_int;

/// The functions of `uct-plugin/include/xgvmi.h` that this module uses.
#[derive(Debug, Clone, Copy)]
pub(super) struct Library {
    announce: Announce,
    /// Absent in older versions of the library.
    announce_keys: Option<AnnounceKeys>,
    accept: Accept,
    stats: Stats,
}

/// `struct xgvmi_stats`: counters of all memory domains of the process. See the header for each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
#[expect(missing_docs, reason = "the header says what each is")]
pub struct LibraryStats {
    pub pool_hits: u64,
    pub pool_misses: u64,
    pub pool_keys: u64,
    pub pool_in_use: u64,
    pub exports: u64,
    pub exports_left: u64,
    pub releases: u64,
    pub releases_failed: u64,
    pub alias_hits: u64,
    pub alias_misses: u64,
    pub alias_stale: u64,
    pub aliases: u64,
    pub imports: u64,
    pub imports_left: u64,
}

/// Errors of the library's functions.
#[derive(Debug, thiserror::Error)]
pub(super) enum LibraryError {
    /// The keys were announced under another secret.
    #[error(
        "xgvmi_accept: the rank's key file (UCX_XGVMI_KEY_FILE) and this service's differ; this service has {here}: use \
         the same file at both"
    )]
    KeyFile {
        /// The secret of this process.
        here: String,
    },
    /// Any other failure.
    #[error("{call}: {source}")]
    Call {
        /// The failed function.
        call: &'static str,
        /// Its error.
        source: std::io::Error,
    },
}

impl Library {
    /// Finds the library; `None` when it is not loaded in this process.
    pub(super) fn find() -> Option<Self> {
        let announce = symbol(c"xgvmi_announce")?;
        let announce_keys = symbol(c"xgvmi_announce_keys");
        let accept = symbol(c"xgvmi_accept")?;
        let stats = symbol(c"xgvmi_stats")?;
        // SAFETY: the functions have these names and types in the library's header, and no other library uses this
        // prefix.
        unsafe {
            Some(Self {
                announce: std::mem::transmute::<*mut c_void, Announce>(announce),
                announce_keys: announce_keys
                    .map(|found| std::mem::transmute::<*mut c_void, AnnounceKeys>(found)),
                accept: std::mem::transmute::<*mut c_void, Accept>(accept),
                stats: std::mem::transmute::<*mut c_void, Stats>(stats),
            })
        }
    }

    /// Whether any version of the library is loaded, including versions without these functions.
    pub(super) fn is_loaded() -> bool {
        // SAFETY: requests a library that is already loaded, by a constant name; the call runs no code of the library.
        let handle = unsafe { libc::dlopen(SONAME.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if handle.is_null() {
            return false;
        }
        // SAFETY: releases the reference that the call above took.
        unsafe { libc::dlclose(handle) };
        true
    }

    /// Fills each pool of this process to `keys` keys and returns a message with all keys of the pools.
    pub(super) fn announce(&self, keys: u32) -> Result<Vec<u8>, LibraryError> {
        let mut message: Vec<u8> = Vec::new();
        // The message fits at the second call unless a pool has grown in between.
        for _ in 0..3 {
            let (start, length) = (message.as_mut_ptr().cast(), message.len());
            let answer = match self.announce_keys {
                // SAFETY: the buffer is writable for the given length.
                Some(announce_keys) => unsafe { announce_keys(start, length, keys) },
                // SAFETY: the same.
                None => unsafe { (self.announce)(start, length) },
            };
            let needed = usize::try_from(answer)
                .map_err(|_| failure("xgvmi_announce", i64::try_from(answer).unwrap_or(-1)))?;
            if needed <= message.len() || needed > ANNOUNCEMENT_MAX {
                message.truncate(needed);
                return Ok(message);
            }
            message.resize(needed, 0);
        }
        // The pool keeps growing: its keys are imported on first use instead.
        Ok(Vec::new())
    }

    /// Creates the aliases of announced keys and returns their number.
    pub(super) fn accept(&self, message: &[u8]) -> Result<u64, LibraryError> {
        // SAFETY: the buffer is readable for the given length; the library validates its contents.
        let answer = unsafe { (self.accept)(message.as_ptr().cast(), message.len()) };
        u64::try_from(answer).map_err(|_| match failure("xgvmi_accept", answer) {
            LibraryError::Call { source, .. } if source.raw_os_error() == Some(libc::EACCES) => {
                let here = std::env::var("UCX_XGVMI_KEY_FILE");
                LibraryError::KeyFile {
                    here: here.unwrap_or_else(|_| "none".to_owned()),
                }
            }
            other => other,
        })
    }

    /// The current counters.
    pub(super) fn stats(&self) -> LibraryStats {
        let mut stats = LibraryStats::default();
        // SAFETY: the buffer is writable for the given length, and any bytes are valid numbers.
        let answer = unsafe { (self.stats)(&raw mut stats, size_of::<LibraryStats>()) };
        debug_assert_eq!(answer, 0, "xgvmi_stats of a valid structure");
        stats
    }
}

fn failure(call: &'static str, negative_errno: i64) -> LibraryError {
    let errno = i32::try_from(-negative_errno).unwrap_or(libc::EIO);
    LibraryError::Call {
        call,
        source: std::io::Error::from_raw_os_error(errno),
    }
}

/// Searches the global scope first (preloaded library), then the library itself (loaded by UCX).
fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a constant name; the lookup runs no code.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if !found.is_null() {
        return Some(found);
    }
    // SAFETY: as in is_loaded(). The reference is kept because the symbols must stay valid.
    let handle = unsafe { libc::dlopen(SONAME.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        return None;
    }
    // SAFETY: a loaded library and a constant name.
    let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}
