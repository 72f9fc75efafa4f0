//! The open functions. A uverbs device opens as a new context of the device, the connection manager
//! as a pipe, and any other file of the tree under its rewritten path.

use std::ffi::{c_char, c_int};

use bf_emu::sys::Errno;
use bf_emu::view::paths::{Device, PATH_BYTES_MAX, Place};
use libc::mode_t;

use crate::call::{answer, device, guarded, place};
use crate::next::next_or;
use crate::{install, watch};

/// Defines interposers of the open functions. Those with a mode in C have `mode`.
macro_rules! opening {
    ($(fn $name:ident($($dirfd:ident)?; flags $(, $mode:ident)?);)*) => {$(
        /// # Safety
        /// The preconditions of the C function of this name: `path` is NULL or a string. The caller passes a mode if the flags ask
        /// for one.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            $($dirfd: c_int,)?
            path: *const c_char,
            flags: c_int,
            $($mode: mode_t)?
        ) -> c_int {
            let mut buffer = [0; PATH_BYTES_MAX];
            // SAFETY: the caller gives a C string or NULL, as the function demands.
            let path = match unsafe { place(path, &mut buffer) } {
                Place::Device { device, .. } => return open_device(device, flags),
                Place::Elsewhere => path,
                Place::Tree(path) => path.as_ptr(),
            };
            let next = next_or!(
                -1,
                fn $name($(opening!(@int $dirfd),)? *const c_char, c_int $(, opening!(@mode $mode))?)
                    -> c_int
            );
            // SAFETY: the caller's own arguments except the path, which is a C string.
            unsafe { next($($dirfd,)? path, flags $(, $mode)?) }
        }
    )*};
    (@int $any:ident) => { c_int };
    (@mode $any:ident) => { mode_t };
}

opening! {
    fn open(; flags, mode);
    fn open64(; flags, mode);
    fn __open_2(; flags);
    fn __open64_2(; flags);
    fn openat(dirfd; flags, mode);
    fn openat64(dirfd; flags, mode);
    fn __openat_2(dirfd; flags);
    fn __openat64_2(dirfd; flags);
}

/// A new context of a uverbs device, or a new file of the connection manager.
fn open_device(opened: Device, flags: c_int) -> c_int {
    let result = guarded(Err(Errno(libc::EIO)), || {
        let device = device().ok_or(Errno(libc::ENODEV))?;
        install::before_first_doorbell();
        let has = |flag| flags & flag != 0;
        let fd = match opened {
            Device::Uverbs(index) => device.open(index, has(libc::O_CLOEXEC))?,
            Device::RdmaCm => {
                let fd = device.open_rdma_cm(has(libc::O_CLOEXEC), has(libc::O_NONBLOCK))?;
                watch::watch_connections(fd);
                fd
            }
        };
        watch::watch(fd);
        Ok(fd)
    });
    answer(result)
}
