//! Signal sets in the kernel's form, and the mask of the calling thread.

use std::ffi::c_int;
use std::ptr;

use bf_emu::sys::Errno;
use libc::sigset_t;

/// The signals of the trap: a store to a read-only page, and a store to a page beyond the end of
/// its file.
pub(crate) const TRAP_SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];
/// The same as bits of a signal set.
pub(crate) const TRAP_BITS: u64 = bit(libc::SIGSEGV) | bit(libc::SIGBUS);

/// A signal's bit in a set.
pub(crate) const fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// Changes this thread's mask by a direct system call and returns the previous mask.
pub(crate) fn change_mask(how: c_int, new: Option<u64>) -> Result<u64, Errno> {
    let mut before = 0_u64;
    let new = new.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: NULL or a set of the kernel's size, which is 8 bytes, and a buffer for one.
    let result =
        unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, new, &raw mut before, 8_usize) };
    if result == 0 {
        return Ok(before);
    }
    // SAFETY: the location of the calling thread's errno is always valid.
    Err(Errno(unsafe { *libc::__errno_location() }))
}

/// The kernel's part of a signal set: its 64 signals.
pub(crate) fn bits(set: &sigset_t) -> u64 {
    // SAFETY: a signal set consists of bits, more than 64 of them, and is aligned for longs.
    unsafe { ptr::from_ref(set).cast::<u64>().read() }
}

pub(crate) fn set_bits(set: &mut sigset_t, bits: u64) {
    // SAFETY: as above.
    unsafe { ptr::from_mut(set).cast::<u64>().write(bits) };
}
