//! Functions that need only another path. The tree in place of `/sys` and `/dev/infiniband`
//! provides the contents.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use bf_emu::view::paths::{PATH_BYTES_MAX, Place};
use libc::{DIR, FILE, size_t, ssize_t};

use crate::call::{guarded, place, view_paths};
use crate::next::next_or;

/// Defines interposers that rewrite their path: the arguments before it, a semicolon, and the
/// arguments after it; then the result if no other library defines the function.
macro_rules! rewriting {
    ($(fn $name:ident($($before:ident: $before_type:ty),*; $($after:ident: $after_type:ty),*)
        -> $result:ty, else $failed:expr;)*) => {$(
        /// # Safety
        /// The preconditions of the C function of this name: `path` is NULL or a string, and pointers after it are valid for it.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            $($before: $before_type,)*
            path: *const c_char,
            $($after: $after_type),*
        ) -> $result {
            let next = next_or!(
                $failed,
                fn $name($($before_type,)* *const c_char, $($after_type),*) -> $result
            );
            let mut buffer = [0; PATH_BYTES_MAX];
            // SAFETY: the caller gives a C string or NULL, as the function demands.
            let path = match unsafe { place(path, &mut buffer) } {
                Place::Elsewhere => path,
                Place::Tree(path) | Place::Device { stand_in: path, .. } => path.as_ptr(),
            };
            // SAFETY: the caller's own arguments except the path, which is a C string.
            unsafe { next($($before,)* path, $($after),*) }
        }
    )*};
}

rewriting! {
    fn access(; mode: c_int) -> c_int, else -1;
    fn euidaccess(; mode: c_int) -> c_int, else -1;
    fn eaccess(; mode: c_int) -> c_int, else -1;
    fn faccessat(dirfd: c_int; mode: c_int, flags: c_int) -> c_int, else -1;
    fn opendir(;) -> *mut DIR, else ptr::null_mut();
    fn fopen(; mode: *const c_char) -> *mut FILE, else ptr::null_mut();
    fn fopen64(; mode: *const c_char) -> *mut FILE, else ptr::null_mut();
    fn freopen(; mode: *const c_char, stream: *mut FILE) -> *mut FILE, else ptr::null_mut();
    fn freopen64(; mode: *const c_char, stream: *mut FILE) -> *mut FILE, else ptr::null_mut();
    fn readlink(; buffer_: *mut c_char, length: size_t) -> ssize_t, else -1;
    fn readlinkat(dirfd: c_int; buffer_: *mut c_char, length: size_t) -> ssize_t, else -1;
    fn __readlink_chk(; buffer_: *mut c_char, length: size_t, capacity: size_t) -> ssize_t, else -1;
    fn __readlinkat_chk(
        dirfd: c_int; buffer_: *mut c_char, length: size_t, capacity: size_t
    ) -> ssize_t, else -1;
    fn scandir(
        ; list: *mut c_void, filter: *const c_void, compare: *const c_void
    ) -> c_int, else -1;
    fn scandir64(
        ; list: *mut c_void, filter: *const c_void, compare: *const c_void
    ) -> c_int, else -1;
    fn scandirat(
        dirfd: c_int; list: *mut c_void, filter: *const c_void, compare: *const c_void
    ) -> c_int, else -1;
    fn scandirat64(
        dirfd: c_int; list: *mut c_void, filter: *const c_void, compare: *const c_void
    ) -> c_int, else -1;
}

/// Defines interposers of realpath and similar functions, whose result is a path too.
macro_rules! resolving {
    ($(fn $name:ident($($after:ident: $after_type:ty),*);)*) => {$(
        /// # Safety
        /// The preconditions of the C function of this name: `path` is NULL or a string. A buffer after it is NULL or has room for
        /// `PATH_MAX` bytes.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(path: *const c_char, $($after: $after_type),*) -> *mut c_char {
            let next = next_or!(
                ptr::null_mut(),
                fn $name(*const c_char, $($after_type),*) -> *mut c_char
            );
            let mut buffer = [0; PATH_BYTES_MAX];
            // SAFETY: the caller gives a C string or NULL, as the function demands.
            let rewritten = match unsafe { place(path, &mut buffer) } {
                // SAFETY: the caller's own arguments.
                Place::Elsewhere => return unsafe { next(path, $($after),*) },
                Place::Tree(path) | Place::Device { stand_in: path, .. } => path,
            };
            // SAFETY: the caller's own arguments except the path, which is a C string.
            let found = unsafe { next(rewritten.as_ptr(), $($after),*) };
            if !found.is_null() {
                // SAFETY: a C string that the function has just written.
                unsafe { name_again(found) };
            }
            found
        }
    )*};
}

resolving! {
    fn realpath(resolved: *mut c_char);
    fn __realpath_chk(resolved: *mut c_char, capacity: size_t);
    fn canonicalize_file_name();
}

/// Replaces a path in the tree, in place, by the process's name for it.
///
/// # Safety
/// `path` is a writable C string.
unsafe fn name_again(path: *mut c_char) {
    // SAFETY: the caller's promise.
    let length = unsafe { libc::strlen(path) };
    // SAFETY: the bytes of the string, borrowed for a read only.
    let bytes = unsafe { std::slice::from_raw_parts(path.cast::<u8>(), length) };
    let known = guarded(None, || view_paths()?.known_as(bytes));
    let Some((name, cut)) = known.filter(|(name, cut)| name.len() <= *cut) else {
        return;
    };
    // SAFETY: `cut` is within the string, and the name is not longer than the replaced part. All
    // writes are within the string and its NUL.
    unsafe {
        ptr::copy_nonoverlapping(name.as_ptr(), path.cast::<u8>(), name.len());
        ptr::copy(path.add(cut), path.add(name.len()), length - cut + 1);
    }
}
