//! What the cases share: results of C calls, and comparisons that name what was compared.

use std::ffi::{CStr, c_int};
use std::io;
use std::mem::MaybeUninit;

pub(crate) const UVERBS0: &CStr = c"/dev/infiniband/uverbs0";
pub(crate) fn expect<T: PartialEq + std::fmt::Debug>(
    what: &str,
    found: T,
    expected: T,
) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    Err(format!("{what}: found {found:?}, expected {expected:?}"))
}

pub(crate) fn ok<T>(what: &str, result: io::Result<T>) -> Result<T, String> {
    result.map_err(|error| format!("{what}: {error}"))
}

/// The result of a C call, or its errno.
pub(crate) fn call(answer: c_int) -> io::Result<c_int> {
    if answer == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(answer)
    }
}

pub(crate) fn stat_of(fd: c_int) -> Result<libc::stat, String> {
    let mut stat = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the buffer is large enough for the result.
    ok("fstat", call(unsafe { libc::fstat(fd, stat.as_mut_ptr()) }))?;
    // SAFETY: zeroed memory is a valid result, and the call has written it.
    Ok(unsafe { stat.assume_init() })
}

pub(crate) fn expect_device(what: &str, stat: &libc::stat, minor: u32) -> Result<(), String> {
    expect(what, stat.st_mode, libc::S_IFCHR | 0o666)?;
    expect(what, stat.st_rdev, libc::makedev(231, minor))
}
