//! What the cases share: results of C calls, and comparisons that name what was compared.

use std::ffi::{CStr, c_int};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

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

pub(crate) fn open_device() -> Result<OwnedFd, String> {
    // SAFETY: the path is a C string.
    let fd = call(unsafe { libc::open(UVERBS0.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) });
    let fd = ok("open", fd)?;
    // SAFETY: just opened, without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Runs `act` in a child of fork. Its result must be success.
pub(crate) fn in_child(act: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    // SAFETY: the child may call any function: the C library's locks are free in it.
    let child = ok("fork", call(unsafe { libc::fork() }))?;
    if child == 0 {
        let code = match act() {
            Ok(()) => 0,
            Err(fault) => {
                eprintln!("in the child: {fault}");
                1
            }
        };
        // SAFETY: no pointers. The parent's exit handlers do not run again.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: a buffer for the status.
    let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
    ok("waitpid", call(ended))?;
    expect("the child's status", status, 0)
}

pub(crate) static FAULTS: AtomicU32 = AtomicU32::new(0);

pub(crate) extern "C" fn count(_: c_int) {
    FAULTS.fetch_add(1, Ordering::Relaxed);
}

pub(crate) fn action(handler: usize, flags: c_int, blocked: &[c_int]) -> libc::sigaction {
    // SAFETY: an action is plain data.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    for signal in blocked {
        // SAFETY: a local set and a valid signal.
        unsafe { libc::sigaddset(&raw mut action.sa_mask, *signal) };
    }
    action
}

pub(crate) fn exchange(
    signal: c_int,
    new: Option<&libc::sigaction>,
) -> Result<libc::sigaction, String> {
    let mut old = action(0, 0, &[]);
    let new = new.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: NULL or an action whose flags match its handler, and a buffer for one.
    let answer = unsafe { libc::sigaction(signal, new, &raw mut old) };
    ok("sigaction", call(answer))?;
    Ok(old)
}
