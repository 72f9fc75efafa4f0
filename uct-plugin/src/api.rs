//! The library's own interface for programs, declared in `include/xgvmi.h`. Programs look it up
//! with `dlsym`, and thus also run without the library.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use crate::announce::{self, AnnounceFailure};
use crate::numbers::Numbers;
use crate::panic::guard;
use crate::{domains, log};

/// Maximum length of a message. Longer ones (256 memory domains with a million scattered keys each)
/// indicate a mistake.
const MESSAGE_MAX: usize = 1 << 28;

/// `ssize_t xgvmi_announce(void *buffer, size_t length)`.
///
/// # Safety
/// `buffer` has space for `length` bytes, or `length` is zero.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xgvmi_announce(buffer: *mut c_void, length: usize) -> isize {
    // SAFETY: the caller upholds the contract.
    unsafe { write_announcement(buffer, length, announce::KEYS_MIN) }
}

/// `ssize_t xgvmi_announce_keys(void *buffer, size_t length, uint32_t keys)`.
///
/// # Safety
/// `buffer` has space for `length` bytes, or `length` is zero.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xgvmi_announce_keys(
    buffer: *mut c_void,
    length: usize,
    keys: u32,
) -> isize {
    // SAFETY: the caller upholds the contract.
    unsafe { write_announcement(buffer, length, keys) }
}

/// # Safety
/// `buffer` has space for `length` bytes, or `length` is zero.
unsafe fn write_announcement(buffer: *mut c_void, length: usize, keys: u32) -> isize {
    if buffer.is_null() && length != 0 {
        return failure(libc::EINVAL);
    }
    let message = match guard("xgvmi_announce", || announce::announce(keys)) {
        Some(Ok(message)) => message,
        Some(Err(error)) => {
            log::debug!("nothing announced: {error}");
            return failure(errno(&error));
        }
        None => return failure(libc::EIO),
    };
    if message.len() <= length {
        // SAFETY: by the contract the buffer has enough space, and no other code has the message.
        unsafe {
            buffer
                .cast::<u8>()
                .copy_from_nonoverlapping(message.as_ptr(), message.len())
        };
    }
    // Cannot fail: a vector has at most isize::MAX bytes.
    isize::try_from(message.len()).unwrap_or(isize::MAX)
}

/// `int64_t xgvmi_accept(const void *buffer, size_t length)`.
///
/// # Safety
/// `buffer` holds `length` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xgvmi_accept(buffer: *const c_void, length: usize) -> i64 {
    if buffer.is_null() || length > MESSAGE_MAX {
        return failure(libc::EINVAL) as i64;
    }
    // SAFETY: by the contract; the caller does not modify it during the call.
    let message = unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), length) };
    match guard("xgvmi_accept", || announce::accept(message)) {
        Some(Ok(ready)) => i64::try_from(ready).unwrap_or(i64::MAX),
        Some(Err(error)) => {
            log::diag!("announcement refused: {error}");
            failure(errno(&error)) as i64
        }
        None => failure(libc::EIO) as i64,
    }
}

/// `int xgvmi_stats(struct xgvmi_stats *out, size_t size)`.
///
/// # Safety
/// `out` has space for `size` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xgvmi_stats(out: *mut c_void, size: usize) -> c_int {
    if out.is_null() {
        return -libc::EINVAL;
    }
    let Some(numbers) = guard("xgvmi_stats", domains::numbers) else {
        return -libc::EIO;
    };
    let known = size.min(size_of::<Numbers>());
    let from = (&raw const numbers).cast::<u8>();
    let out = out.cast::<u8>();
    // SAFETY: by the contract the target has enough space, and it does not overlap this function's
    // own data.
    unsafe { out.copy_from_nonoverlapping(from, known) };
    // SAFETY: as above; the additional fields of a newer program are zero.
    unsafe { ptr::write_bytes(out.add(known), 0, size - known) };
    0
}

/// `const char *xgvmi_version(void)`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn xgvmi_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Common error handling of these functions.
const fn failure(errno: c_int) -> isize {
    -(errno as isize)
}

fn errno(error: &AnnounceFailure) -> c_int {
    match error {
        AnnounceFailure::NobodyServed => libc::ENODEV,
        AnnounceFailure::Part {
            source: xgvmi_pool::AnnounceError::Seal,
            ..
        } => libc::EACCES,
        AnnounceFailure::Form { .. } | AnnounceFailure::Part { .. } => libc::EBADMSG,
    }
}
