//! The library's counters, if it is loaded.

use std::ffi::c_int;

/// `struct xgvmi_stats` of `xgvmi.h`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Stats {
    pool: [u64; 16],
    pub(crate) arena_ranges: u64,
    pub(crate) arena_zeroed: u64,
    pub(crate) arena_bytes: u64,
    pub(crate) arena_retired: u64,
    pub(crate) arena_registrations: u64,
    pub(crate) arena_left: u64,
    pub(crate) kept_hits: u64,
    pub(crate) kept_now: u64,
    pub(crate) kept_bytes: u64,
}

impl Stats {
    /// Exports from the pool.
    pub(crate) fn exports(&self) -> u64 {
        self.pool[4]
    }

    /// Exports that UCX handled.
    pub(crate) fn exports_left(&self) -> u64 {
        self.pool[5]
    }

    /// Keys of all pools.
    pub(crate) fn keys(&self) -> u64 {
        self.pool[2]
    }

    /// Keys bound to memory now.
    pub(crate) fn keys_in_use(&self) -> u64 {
        self.pool[3]
    }

    /// The counters now; zeros without the library.
    pub(crate) fn now() -> Self {
        let mut stats = Self::default();
        // SAFETY: the name ends in a zero byte.
        let function = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"xgvmi_stats".as_ptr()) };
        if function.is_null() {
            return stats;
        }
        type StatsFn = unsafe extern "C" fn(*mut Stats, usize) -> c_int;
        // SAFETY: the library's function of that name has this type.
        let read = unsafe { std::mem::transmute::<*mut libc::c_void, StatsFn>(function) };
        // SAFETY: the structure can be written and has this size.
        unsafe { read(&raw mut stats, size_of::<Self>()) };
        stats
    }
}
