//! Functions on open files: ioctl to the device, write to the connection manager, and the end of
//! contexts by close and dup2. The
//! library identifies a file by its inode and not by its number, so duplicated, inherited and
//! received files work. It also refuses the netlink socket of RDMA.

use std::ffi::{c_int, c_ulong, c_void};

use bf_emu::commands::Written;
use bf_emu::process::channels;
use bf_emu::sys::Errno;
use bf_emu::{commands, memory, process};

use crate::call::{answer, device, enabled, guarded, set_errno};
use crate::install;
use crate::next::next_or;
use crate::watch::{
    forget, forget_connections, is_connections, is_owner, is_watched, watch, watch_connections,
};
use libc::{size_t, ssize_t};

/// `RDMA_VERBS_IOCTL`, the only request of uverbs devices (rdma/rdma_user_ioctl_cmds.h).
const RDMA_VERBS_IOCTL: c_ulong = 0xc018_1b01;
/// Protocol of the socket that libibverbs uses to list devices (linux/netlink.h).
const NETLINK_RDMA: c_int = 20;

/// # Safety
/// The preconditions of ioctl(2). With [`RDMA_VERBS_IOCTL`], `argument` is the address of a request whose attributes are
/// readable, and writable where they are outputs.
#[unsafe(no_mangle)]
unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    if request == RDMA_VERBS_IOCTL && enabled() {
        let result = guarded(Some(Err(Errno(libc::EIO))), || {
            let device = device()?;
            let context = device.context_of(fd)?;
            if !is_watched(fd) {
                // The file is inherited or received, and this is its first use in this process.
                install::before_first_doorbell();
                watch(fd);
            }
            Some(commands::ioctl(device, (context, fd), request, argument))
        });
        if let Some(result) = result {
            return answer(result);
        }
    }
    let next = next_or!(-1, fn ioctl(c_int, c_ulong, usize) -> c_int);
    // SAFETY: the caller's own arguments.
    unsafe { next(fd, request, argument) }
}

// A thread can be cancelled while it waits here. Its stack is then unwound through this function,
// which has nothing to drop.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn write(fd: c_int, bytes: *const c_void, length: size_t) -> ssize_t {
    // Any other file costs one look at a set.
    if is_connections(fd) && is_still_connections(fd) {
        // SAFETY: the caller's own arguments.
        return unsafe { command(fd, bytes, length) };
    }
    let next = next_or!(
        -1,
        extern "C-unwind" fn write(c_int, *const c_void, size_t) -> ssize_t
    );
    // SAFETY: the caller's own arguments.
    let written = unsafe { next(fd, bytes, length) };
    if written < 0 && enabled() && is_received(fd) {
        // SAFETY: as above.
        return unsafe { command(fd, bytes, length) };
    }
    written
}

/// True if a file that is recorded as one of the connection manager is one. A program may close it by
/// a system call of its own or by `close_range`, and another file may get its number.
fn is_still_connections(fd: c_int) -> bool {
    let is = guarded(true, || {
        device().is_some_and(|device| device.is_rdma_cm(fd))
    });
    if !is {
        forget_connections(fd);
    }
    is
}

/// True if a failed write went to a file of the connection manager that this process has inherited
/// or received. The file is a pipe that the system does not write to.
fn is_received(fd: c_int) -> bool {
    // SAFETY: the location of the calling thread's errno is always valid.
    let failed = unsafe { *libc::__errno_location() };
    if failed != libc::EBADF {
        return false;
    }
    let found = guarded(false, || {
        let found = device().is_some_and(|device| device.is_rdma_cm(fd));
        if found {
            install::before_first_doorbell();
            watch(fd);
            watch_connections(fd);
        }
        found
    });
    set_errno(Errno(failed));
    found
}

/// A command to the connection manager. It waits for an event if the command needs one.
///
/// # Safety
/// As for `write`.
unsafe fn command(fd: c_int, bytes: *const c_void, length: size_t) -> ssize_t {
    loop {
        match attempt(fd, bytes, length) {
            Ok(Written::Done(written)) => return written,
            Ok(Written::Waits) => {}
            Err(errno) => {
                set_errno(errno);
                return -1;
            }
        }
        // SAFETY: the function waits like the caller's write would.
        if unsafe { wait_for_event(fd) } < 0 {
            return -1;
        }
    }
}

fn attempt(fd: c_int, bytes: *const c_void, length: size_t) -> Result<Written, Errno> {
    guarded(Err(Errno(libc::EIO)), || {
        let device = device().ok_or(Errno(libc::EIO))?;
        commands::write_rdma_cm(device, fd, bytes.expose_provenance(), length)
    })
}

/// Waits until a file of the connection manager may have an event. Returns -1 and errno if a signal
/// ended the wait. The read obeys the program's signal actions, and a thread can be cancelled in it.
///
/// # Safety
/// The caller and its callers have nothing to drop.
unsafe fn wait_for_event(fd: c_int) -> c_int {
    let next = next_or!(
        -1,
        extern "C-unwind" fn read(c_int, *mut c_void, size_t) -> ssize_t
    );
    let mut byte = 0u8;
    // SAFETY: the byte belongs to this frame.
    let read = unsafe { next(fd, (&raw mut byte).cast(), 1) };
    // SAFETY: the location of the calling thread's errno is always valid.
    if read > 0 || read < 0 && unsafe { *libc::__errno_location() } == libc::EAGAIN {
        return 0;
    }
    // SAFETY: as above.
    if read < 0 && unsafe { *libc::__errno_location() } != libc::EBADF {
        return -1;
    }
    // Another thread has closed the file. The kernel keeps the file until this call ends, and no
    // event comes any more.
    let pause = next_or!(-1, extern "C-unwind" fn pause() -> c_int);
    // SAFETY: it has no preconditions.
    unsafe { pause() }
}

/// # Safety
/// The preconditions of close(2): no other part of the program uses `fd` after the call.
#[unsafe(no_mangle)]
unsafe extern "C" fn close(fd: c_int) -> c_int {
    let closing = before_close(fd);
    let next = next_or!(-1, fn close(c_int) -> c_int);
    // SAFETY: the caller's own argument.
    let result = unsafe { next(fd) };
    after_close(fd, closing);
    result
}

/// # Safety
/// None beyond the type: dup(2) checks its argument.
#[unsafe(no_mangle)]
unsafe extern "C" fn dup(fd: c_int) -> c_int {
    let next = next_or!(-1, fn dup(c_int) -> c_int);
    // SAFETY: the caller's own argument.
    let new = unsafe { next(fd) };
    duplicated(fd, new);
    new
}

/// # Safety
/// The preconditions of dup2(2): no other part of the program uses the file that `new` is now.
#[unsafe(no_mangle)]
unsafe extern "C" fn dup2(fd: c_int, new: c_int) -> c_int {
    let closing = if fd == new {
        Closing::Other
    } else {
        before_close(new)
    };
    let next = next_or!(-1, fn dup2(c_int, c_int) -> c_int);
    // SAFETY: the caller's own arguments.
    let result = unsafe { next(fd, new) };
    after_close(new, closing);
    duplicated(fd, result);
    result
}

/// # Safety
/// The preconditions of dup3(2): no other part of the program uses the file that `new` is now.
#[unsafe(no_mangle)]
unsafe extern "C" fn dup3(fd: c_int, new: c_int, flags: c_int) -> c_int {
    let closing = if fd == new {
        Closing::Other
    } else {
        before_close(new)
    };
    let next = next_or!(-1, fn dup3(c_int, c_int, c_int) -> c_int);
    // SAFETY: the caller's own arguments.
    let result = unsafe { next(fd, new, flags) };
    after_close(new, closing);
    duplicated(fd, result);
    result
}

/// Defines the two names of fcntl.
macro_rules! fcntl {
    ($($name:ident),*) => {$(
        /// # Safety
        /// The preconditions of fcntl(2): `argument` is an address where `command` takes one, and valid for it.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(fd: c_int, command: c_int, argument: usize) -> c_int {
            let next = next_or!(-1, fn $name(c_int, c_int, usize) -> c_int);
            // SAFETY: the caller's own arguments.
            let result = unsafe { next(fd, command, argument) };
            if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
                duplicated(fd, result);
            }
            result
        }
    )*};
}

fcntl!(fcntl, fcntl64);

/// # Safety
/// None beyond the type: socket(2) checks its arguments.
#[unsafe(no_mangle)]
unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // On a machine with RDMA devices this socket would list them, and libibverbs would not read
    // sysfs. Without the socket it reads sysfs (libibverbs/ibdev_nl.c:191).
    if domain == libc::AF_NETLINK && protocol == NETLINK_RDMA && enabled() {
        return answer(Err(Errno(libc::EPROTONOSUPPORT)));
    }
    let next = next_or!(-1, fn socket(c_int, c_int, c_int) -> c_int);
    // SAFETY: the caller's own arguments.
    unsafe { next(domain, kind, protocol) }
}

fn duplicated(fd: c_int, new: c_int) {
    if new < 0 || !is_owner() {
        return;
    }
    if channels::may_be(fd) {
        channels::watch(new);
    }
    if is_watched(fd) {
        watch(new);
        if is_connections(fd) {
            watch_connections(new);
        }
    }
}

/// What a descriptor is that is about to be closed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Closing {
    /// The read end of a channel.
    Channel,
    Other,
}

/// Notifies the device that a file descriptor of a context is about to be closed.
fn before_close(fd: c_int) -> Closing {
    if memory::files::may_be(fd) && is_owner() {
        memory::files::closing(fd);
    }
    if channels::may_be(fd) && is_owner() && channels::forget(fd) {
        return Closing::Channel;
    }
    if is_watched(fd) && is_owner() {
        forget(fd);
        guarded((), || {
            if let Some(process) = process::attached() {
                process.closing(fd);
            }
        });
    }
    Closing::Other
}

/// Notifies the device that a file descriptor was closed. The program's errno stays.
fn after_close(fd: c_int, closing: Closing) {
    if closing == Closing::Other {
        return;
    }
    // SAFETY: the location of the calling thread's errno is always valid.
    let errno = unsafe { *libc::__errno_location() };
    guarded((), || {
        if let Some(process) = process::attached() {
            process.closed_channel(fd);
        }
    });
    set_errno(Errno(errno));
}
