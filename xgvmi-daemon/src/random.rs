//! Random numbers from the kernel.

use std::io;

/// 128 random bits.
///
/// # Errors
/// Errors of the system.
pub fn random() -> io::Result<u128> {
    let mut bytes = [0; 16];
    // SAFETY: the buffer is writable and `bytes.len()` long.
    let count = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if count == 16 {
        Ok(u128::from_ne_bytes(bytes))
    } else {
        Err(io::Error::last_os_error())
    }
}
