//! Functions on open files: ioctl to the device, and the end of contexts by close and dup2. The
//! library identifies a file by its inode and not by its number, so duplicated, inherited and
//! received files work. It also refuses the netlink socket of RDMA.

use std::ffi::{c_int, c_ulong};

use bf_emu::sys::Errno;
use bf_emu::{commands, memory, process};

use crate::call::{answer, device, enabled, guarded};
use crate::install;
use crate::next::next_or;
use crate::watch::{forget, is_owner, is_watched, watch};

/// `RDMA_VERBS_IOCTL`, the only request of uverbs devices (rdma/rdma_user_ioctl_cmds.h).
const RDMA_VERBS_IOCTL: c_ulong = 0xc018_1b01;
/// Protocol of the socket that libibverbs uses to list devices (linux/netlink.h).
const NETLINK_RDMA: c_int = 20;
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

#[unsafe(no_mangle)]
unsafe extern "C" fn close(fd: c_int) -> c_int {
    before_close(fd);
    let next = next_or!(-1, fn close(c_int) -> c_int);
    // SAFETY: the caller's own argument.
    unsafe { next(fd) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup(fd: c_int) -> c_int {
    let next = next_or!(-1, fn dup(c_int) -> c_int);
    // SAFETY: the caller's own argument.
    let new = unsafe { next(fd) };
    duplicated(fd, new);
    new
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup2(fd: c_int, new: c_int) -> c_int {
    if fd != new {
        before_close(new);
    }
    let next = next_or!(-1, fn dup2(c_int, c_int) -> c_int);
    // SAFETY: the caller's own arguments.
    let new = unsafe { next(fd, new) };
    duplicated(fd, new);
    new
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup3(fd: c_int, new: c_int, flags: c_int) -> c_int {
    if fd != new {
        before_close(new);
    }
    let next = next_or!(-1, fn dup3(c_int, c_int, c_int) -> c_int);
    // SAFETY: the caller's own arguments.
    let new = unsafe { next(fd, new, flags) };
    duplicated(fd, new);
    new
}

/// Defines the two names of fcntl.
macro_rules! fcntl {
    ($($name:ident),*) => {$(
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
    if is_watched(fd) && new >= 0 && is_owner() {
        watch(new);
    }
}

/// Notifies the device that a file descriptor of a context is about to be closed.
fn before_close(fd: c_int) {
    if memory::files::may_be(fd) && is_owner() {
        memory::files::closing(fd);
    }
    if !is_watched(fd) || !is_owner() {
        return;
    }
    forget(fd);
    guarded((), || {
        if let Some(process) = process::attached() {
            process.closing(fd);
        }
    });
}
