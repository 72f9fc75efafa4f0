//! Random numbers from the kernel.

use rustix::rand::{GetRandomFlags, getrandom};
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
    match getrandom(&mut bytes, GetRandomFlags::empty())? {
        count if count == N => Ok(bytes),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
