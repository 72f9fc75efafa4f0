//! Addresses of windows.

/// First address of all windows.
pub const WINDOWS: u64 = 1 << 60;
/// Bytes of the window onto a key: all addresses of a process.
pub const WINDOW_BYTES: u64 = 1 << 48;
/// Most keys that a process has windows onto.
pub const WINDOWS_MAX: usize = 4096;
