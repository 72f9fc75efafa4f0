//! The counters of a memory domain in UCX's own virtual file system, which shows UCX's objects as
//! files: `uct/component/ib/memory_domain/mlx5_0/xgvmi/pool_hits`. A read computes the value at
//! that moment; nothing is written in between.

use std::ffi::{CStr, CString, c_char, c_void};

use crate::abi::{MdHandle, UcsStatus};
use crate::numbers::Numbers;
use crate::original::Object;
use crate::panic::guard;
use crate::{domains, log};

/// Name of the directory.
const DIRECTORY: &CStr = c"xgvmi";

/// `ucs_vfs_obj_add_dir` (`src/ucs/vfs/base/vfs_obj.h:99`).
type AddDirFn = unsafe extern "C" fn(*mut c_void, *mut c_void, *const c_char, ...) -> UcsStatus;
/// `ucs_vfs_obj_add_ro_file` (`src/ucs/vfs/base/vfs_obj.h:122`).
type AddFileFn =
    unsafe extern "C" fn(*mut c_void, ReadFn, *mut c_void, u64, *const c_char, ...) -> UcsStatus;
/// `ucs_vfs_file_read_cb_t` (`src/ucs/vfs/base/vfs_obj.h:44`).
type ReadFn = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void, u64);
/// `ucs_vfs_obj_remove` (`src/ucs/vfs/base/vfs_obj.h:188`).
type RemoveFn = unsafe extern "C" fn(*mut c_void);
/// `ucs_string_buffer_appendf` (`src/ucs/datastruct/string_buffer.h:143`).
type AppendFn = unsafe extern "C" fn(*mut c_void, *const c_char, ...);

/// Adds the counters of a memory domain. `identity` is a unique address that is never dereferenced.
/// A file that UCX refuses is skipped.
///
/// # Safety
/// `md` must be an open memory domain of the object.
pub(crate) unsafe fn show(object: &Object, md: MdHandle, identity: usize) {
    let symbols = (
        object.symbol(c"ucs_vfs_obj_add_dir"),
        object.symbol(c"ucs_vfs_obj_add_ro_file"),
        object.symbol(c"ucs_string_buffer_appendf"),
    );
    let (Some(add_dir), Some(add_file), Some(append)) = symbols else {
        // This UCX was built without it.
        return;
    };
    // SAFETY: the symbol of this name has this type.
    let add_dir = unsafe { std::mem::transmute::<*mut c_void, AddDirFn>(add_dir.as_ptr()) };
    // SAFETY: as above.
    let add_file = unsafe { std::mem::transmute::<*mut c_void, AddFileFn>(add_file.as_ptr()) };
    let identity = std::ptr::without_provenance_mut(identity);
    // SAFETY: UCX only compares the two objects with its known objects; the format is a plain name.
    let added = unsafe { add_dir(md, identity, DIRECTORY.as_ptr()) };
    if !added.is_ok() {
        // Not an error: the memory domain was opened in a way that does not add it.
        log::debug!(
            "not visible in UCX's virtual file system: status {}",
            added.0
        );
        return;
    }
    for (number, (name, _)) in (0..).zip(Numbers::NONE.each()) {
        let Ok(name) = CString::new(name) else {
            continue;
        };
        let (read, append): (ReadFn, _) = (print, append.as_ptr());
        // SAFETY: as above; UCX copies the name, and passes the other arguments only to the
        // callback.
        let _added = unsafe {
            add_file(
                identity,
                read,
                append,
                number,
                c"%s".as_ptr(),
                name.as_ptr(),
            )
        };
    }
}

/// Removes the counters.
pub(crate) fn remove(object: &Object, identity: usize) {
    let Some(remove) = object.symbol(c"ucs_vfs_obj_remove") else {
        return;
    };
    // SAFETY: the symbol of this name has this type.
    let remove = unsafe { std::mem::transmute::<*mut c_void, RemoveFn>(remove.as_ptr()) };
    // SAFETY: UCX only looks the object up, and does nothing if it no longer exists.
    unsafe { remove(std::ptr::without_provenance_mut(identity)) };
}

/// Prints a counter on a read of its file. UCX holds a lock meanwhile, so this takes no lock.
///
/// # Safety
/// Only UCX's virtual file system may call it, with the arguments that the file was created with, and its own buffer and function.
unsafe extern "C" fn print(
    identity: *mut c_void,
    buffer: *mut c_void,
    append: *mut c_void,
    number: u64,
) {
    let numbers = guard("a file of UCX's", || domains::numbers_of(identity.addr()));
    let Some(Some(numbers)) = numbers else {
        return;
    };
    let Some((_, value)) = usize::try_from(number)
        .ok()
        .and_then(|at| numbers.each().nth(at))
    else {
        return;
    };
    // SAFETY: `show` found the function under this name.
    let append = unsafe { std::mem::transmute::<*mut c_void, AppendFn>(append) };
    // SAFETY: the buffer is UCX's own; the format takes one number of 64 bits.
    unsafe { append(buffer, c"%lu\n".as_ptr(), value) };
}
