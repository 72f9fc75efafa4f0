//! The stat functions. A device's file appears as a character device with the numbers in sysfs, by
//! path and by open file. libibverbs compares them (util/open_cdev.c).

use std::ffi::{CStr, c_char, c_int, c_uint};

use bf_emu::process::CONTEXT_FILE_BYTES;
use bf_emu::view::paths::{Device, PATH_BYTES_MAX, Place};
use bf_emu::view::sysfs::{RDMA_CM_NUMBERS, UVERBS_MAJOR, UVERBS_MINOR_BASE};
use libc::{stat as Stat, statx as Statx};

use crate::call::{device, guarded, place};
use crate::next::next_or;
use crate::watch::is_connections;

/// Type and mode of a uverbs device.
const DEVICE_MODE: libc::mode_t = libc::S_IFCHR | 0o666;

/// Defines interposers of calls on a path: the arguments before it, a semicolon, the buffer for the
/// result, and the arguments after it. After `or` follows the file descriptor that an empty path
/// refers to. `struct stat` and `struct stat64` are equal on 64-bit Linux, and so are the calls.
macro_rules! by_path {
    ($(fn $name:ident($($before:ident),*; buffer $(, $after:ident)*) $(or $file:ident)?;)*) => {$(
        /// # Safety
        /// The preconditions of the C function of this name: `path` is NULL or a string, the buffer is writable for its structure.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            $($before: c_int,)*
            path: *const c_char,
            stat: *mut Stat,
            $($after: c_int),*
        ) -> c_int {
            let next = next_or!(
                -1,
                fn $name(
                    $(by_path!(@int $before),)* *const c_char, *mut Stat $(, by_path!(@int $after))*
                ) -> c_int
            );
            let mut buffer = [0; PATH_BYTES_MAX];
            // SAFETY: the caller gives a C string or NULL, as the function demands.
            let (path, device) = match unsafe { place(path, &mut buffer) } {
                Place::Elsewhere => (path, None),
                Place::Tree(path) => (path.as_ptr(), None),
                Place::Device { device, stand_in } => (stand_in.as_ptr(), Some(device)),
            };
            // SAFETY: the caller's own arguments except the path, which is a C string or NULL.
            let answer = unsafe { next($($before,)* path, stat $(, $after)*) };
            if answer == 0 {
                if let Some(device) = device {
                    // SAFETY: the call has written it.
                    unsafe { present(device, stat) };
                }
                $(
                    // SAFETY: the call has accepted the path and written the result.
                    unsafe { present_if_empty($file, path, stat) };
                )?
            }
            answer
        }
    )*};
    (@int $any:ident) => { c_int };
}

by_path! {
    fn stat(; buffer);
    fn stat64(; buffer);
    fn lstat(; buffer);
    fn lstat64(; buffer);
    fn fstatat(dirfd; buffer, flags) or dirfd;
    fn fstatat64(dirfd; buffer, flags) or dirfd;
    fn __xstat(version; buffer);
    fn __xstat64(version; buffer);
    fn __lxstat(version; buffer);
    fn __lxstat64(version; buffer);
    fn __fxstatat(version, dirfd; buffer, flags) or dirfd;
    fn __fxstatat64(version, dirfd; buffer, flags) or dirfd;
}

/// Defines interposers of calls on an open file.
macro_rules! by_file {
    ($(fn $name:ident($($before:ident)?);)*) => {$(
        /// # Safety
        /// The preconditions of the C function of this name: `stat` is writable for its structure.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($before: c_int,)? fd: c_int, stat: *mut Stat) -> c_int {
            let next = next_or!(
                -1,
                fn $name($(by_file!(@int $before),)? c_int, *mut Stat) -> c_int
            );
            // SAFETY: the caller's own arguments.
            let answer = unsafe { next($($before,)? fd, stat) };
            if answer == 0 {
                // SAFETY: the call has written it.
                unsafe { present_file(fd, stat) };
            }
            answer
        }
    )*};
    (@int $any:ident) => { c_int };
}

by_file! {
    fn fstat();
    fn fstat64();
    fn __fxstat(version);
    fn __fxstat64(version);
}

/// # Safety
/// The preconditions of statx(2): `path` is NULL or a string, `statx` is writable for its structure.
#[unsafe(no_mangle)]
unsafe extern "C" fn statx(
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    statx: *mut Statx,
) -> c_int {
    let next = next_or!(
        -1,
        fn statx(c_int, *const c_char, c_int, c_uint, *mut Statx) -> c_int
    );
    let mut buffer = [0; PATH_BYTES_MAX];
    // SAFETY: the caller gives a C string or NULL, as the function demands.
    let (path, device) = match unsafe { place(path, &mut buffer) } {
        Place::Elsewhere => (path, None),
        Place::Tree(path) => (path.as_ptr(), None),
        Place::Device { device, stand_in } => (stand_in.as_ptr(), Some(device)),
    };
    // SAFETY: the caller's own arguments except the path, which is a C string or NULL.
    let answer = unsafe { next(dirfd, path, flags, mask, statx) };
    if answer != 0 {
        return answer;
    }
    // SAFETY: the call has written it, and the caller has exclusive access.
    let found = unsafe { &mut *statx };
    let device = device.or_else(|| {
        // SAFETY: the call has accepted the path. It is a C string or, if an empty path is
        // permitted, NULL.
        let of_file = unsafe { is_empty(path) };
        let has_name = found.stx_nlink != 0;
        let mode = found.stx_mode.into();
        let file = (mode, has_name, found.stx_size);
        if of_file {
            device_of(dirfd, file)
        } else {
            None
        }
    });
    if let Some(device) = device {
        let (major, minor) = numbers(device);
        // S_IFCHR and the permissions are within 16 bits (uapi linux/stat.h).
        found.stx_mode = (DEVICE_MODE & 0xffff) as u16;
        found.stx_rdev_major = major;
        found.stx_rdev_minor = minor;
        found.stx_size = 0;
        found.stx_blocks = 0;
    }
    answer
}

/// # Safety
/// `path` is NULL or a C string.
unsafe fn is_empty(path: *const c_char) -> bool {
    // SAFETY: not NULL at the read, so the caller promises a C string.
    path.is_null() || unsafe { CStr::from_ptr(path) }.is_empty()
}

/// Replaces the result for an empty path, which refers to the open file, by the device's, if the
/// file is a device.
///
/// # Safety
/// `path` is NULL or a C string. The caller has exclusive access to the `struct stat` at `stat`.
unsafe fn present_if_empty(dirfd: c_int, path: *const c_char, stat: *mut Stat) {
    // SAFETY: the caller's promise.
    if unsafe { is_empty(path) } {
        // SAFETY: the caller's promise.
        unsafe { present_file(dirfd, stat) };
    }
}

/// Replaces the result for an open file by the device's, if the file is a device.
///
/// # Safety
/// The caller has exclusive access to the `struct stat` at `stat`.
unsafe fn present_file(fd: c_int, stat: *mut Stat) {
    // SAFETY: the caller's promise.
    let found = unsafe { &*stat };
    let bytes = u64::try_from(found.st_size).unwrap_or(0);
    let file = (found.st_mode, found.st_nlink != 0, bytes);
    if let Some(device) = device_of(fd, file) {
        // SAFETY: the caller's promise.
        unsafe { present(device, stat) };
    }
}

/// Replaces a result by that of a device.
///
/// # Safety
/// The caller has exclusive access to the `struct stat` at `stat`.
unsafe fn present(device: Device, stat: *mut Stat) {
    // SAFETY: the caller's promise.
    let found = unsafe { &mut *stat };
    let (major, minor) = numbers(device);
    found.st_mode = DEVICE_MODE;
    found.st_rdev = libc::makedev(major, minor);
    found.st_size = 0;
    found.st_blocks = 0;
}

/// Major and minor number of a device.
fn numbers(device: Device) -> (c_uint, c_uint) {
    match device {
        Device::RdmaCm => RDMA_CM_NUMBERS,
        Device::Uverbs(index) => {
            // A view has at most 16 devices.
            let index = c_uint::try_from(index).unwrap_or(c_uint::MAX - UVERBS_MINOR_BASE);
            (UVERBS_MAJOR, UVERBS_MINOR_BASE + index)
        }
    }
}

/// The device of an open file with this mode, name and size. The file of a context is a memory
/// file: a regular file without a name. A file of the connection manager is a pipe. Other files skip
/// the lookup in the device.
fn device_of(fd: c_int, (mode, has_name, bytes): (libc::mode_t, bool, u64)) -> Option<Device> {
    match mode & libc::S_IFMT {
        libc::S_IFREG if !has_name && bytes == CONTEXT_FILE_BYTES => {
            // A process that received a context and opened none itself, as for
            // `ibv_import_device`, attaches to the device here.
            guarded(None, || device()?.device_of(fd)).map(Device::Uverbs)
        }
        libc::S_IFIFO if is_connections(fd) => Some(Device::RdmaCm),
        _ => None,
    }
}
