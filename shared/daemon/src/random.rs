//! Random numbers from the kernel.

use std::io;

/// 128 random bits.
///
/// # Errors
/// Errors of the system.
pub fn random() -> io::Result<u128> {
    random_bytes().map(u128::from_ne_bytes)
}

/// Random bytes, such as those of an access key. `N` is at most 256, which the kernel never cuts.
///
/// # Errors
/// Errors of the system.
pub fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    // SAFETY: the buffer is writable and `bytes.len()` long.
    let count = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if usize::try_from(count) == Ok(N) {
        Ok(bytes)
    } else {
        Err(io::Error::last_os_error())
    }
}
