//! Functions that start programs. A program whose starter replaced `LD_PRELOAD`, such as `env
//! LD_PRELOAD=LIBRARY PROGRAM`, gets this library again, before the others, if its environment
//! requests devices.
//!
//! `execl` and its variants take variadic arguments and are not interposed. The functions may run
//! in a child of `vfork`, so they do not allocate or lock.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use bf_emu::sys;
use bf_emu::view::state::{ENV_AS, ENV_LIBRARY, ENV_STATE};
use libc::pid_t;

use crate::call::enabled;
use crate::next::next_or;

const LD_PRELOAD: &str = "LD_PRELOAD";
/// Largest environment of a started program, in variables with the final NULL.
const VARIABLES_MAX: usize = 4096;
/// Longest `LD_PRELOAD` of a started program in bytes, with the name and the NUL.
const PRELOAD_BYTES_MAX: usize = 4096;

type Strings = *const *const c_char;

unsafe extern "C" {
    static environ: Strings;
}

fn own_environment() -> Strings {
    // SAFETY: the C library's variable. A program that changes the environment while another thread
    // starts a program has the same race without this library.
    unsafe { environ }
}

/// # Safety
/// The preconditions of execve(2): `path` is a string; `arguments` and `variables` are NULL or arrays of strings with NULL at
/// the end. No other thread changes them during the call.
#[unsafe(no_mangle)]
unsafe extern "C" fn execve(path: *const c_char, arguments: Strings, variables: Strings) -> c_int {
    let next = next_or!(-1, fn execve(*const c_char, Strings, Strings) -> c_int);
    // SAFETY: the caller's own arguments. The replaced environment is valid.
    let start = |variables| unsafe { next(path, arguments, variables) };
    // SAFETY: NULL or an environment, by the caller's promise.
    unsafe { with_library(variables, start) }
}

/// # Safety
/// The preconditions of execv(3): as for `execve`, and no other thread changes the environment during the call.
#[unsafe(no_mangle)]
unsafe extern "C" fn execv(path: *const c_char, arguments: Strings) -> c_int {
    let next = next_or!(-1, fn execve(*const c_char, Strings, Strings) -> c_int);
    // SAFETY: as above.
    let start = |variables| unsafe { next(path, arguments, variables) };
    // SAFETY: the process's own environment.
    unsafe { with_library(own_environment(), start) }
}

/// # Safety
/// The preconditions of execvpe(3), which are those of `execve` with the name of a file.
#[unsafe(no_mangle)]
unsafe extern "C" fn execvpe(file: *const c_char, arguments: Strings, variables: Strings) -> c_int {
    let next = next_or!(-1, fn execvpe(*const c_char, Strings, Strings) -> c_int);
    // SAFETY: as above.
    let start = |variables| unsafe { next(file, arguments, variables) };
    // SAFETY: NULL or an environment, by the caller's promise.
    unsafe { with_library(variables, start) }
}

/// # Safety
/// The preconditions of execvp(3), which are those of `execv` with the name of a file.
#[unsafe(no_mangle)]
unsafe extern "C" fn execvp(file: *const c_char, arguments: Strings) -> c_int {
    let next = next_or!(-1, fn execvpe(*const c_char, Strings, Strings) -> c_int);
    // SAFETY: as above.
    let start = |variables| unsafe { next(file, arguments, variables) };
    // SAFETY: the process's own environment.
    unsafe { with_library(own_environment(), start) }
}

/// Defines the two interposers that start a child.
macro_rules! spawning {
    ($($name:ident),*) => {$(
        /// # Safety
        /// The preconditions of posix_spawn(3): `child` is NULL or writable, the others are NULL or valid as the call requires.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            child: *mut pid_t,
            path: *const c_char,
            actions: *const c_void,
            attributes: *const c_void,
            arguments: Strings,
            variables: Strings,
        ) -> c_int {
            let next = next_or!(
                libc::ENOSYS,
                fn $name(
                    *mut pid_t, *const c_char, *const c_void, *const c_void, Strings, Strings
                ) -> c_int
            );
            // SAFETY: the caller's own arguments. The replaced environment is valid.
            let start = |variables| unsafe {
                next(child, path, actions, attributes, arguments, variables)
            };
            // SAFETY: NULL or an environment, by the caller's promise.
            unsafe { with_library(variables, start) }
        }
    )*};
}

spawning!(posix_spawn, posix_spawnp);

/// Calls `start` with an environment that loads this library, if the environment requests devices.
///
/// # Safety
/// `variables` is NULL or an environment: C strings followed by a NULL.
unsafe fn with_library(variables: Strings, start: impl FnOnce(Strings) -> c_int) -> c_int {
    if variables.is_null() || !enabled() {
        return start(variables);
    }
    // SAFETY: the caller's promise.
    let length = unsafe { length_of(variables) };
    // SAFETY: the environment has this number of strings, which do not change during the call.
    let all = unsafe { std::slice::from_raw_parts(variables, length) };
    let value = |name: &str| all.iter().find_map(|variable| value_of(*variable, name));
    let (Some(library), Some(_), Some(_)) = (value(ENV_LIBRARY), value(ENV_STATE), value(ENV_AS))
    else {
        return start(variables);
    };
    let others = value(LD_PRELOAD).unwrap_or_default();
    let is_separator = |byte: &u8| *byte == b':' || byte.is_ascii_whitespace();
    if others.split(is_separator).any(|other| other == library) {
        return start(variables);
    }
    let mut preload = [0; PRELOAD_BYTES_MAX];
    let mut list = [ptr::null(); VARIABLES_MAX];
    let fits = put(
        &mut preload,
        &[LD_PRELOAD.as_bytes(), b"=", library, b":", others],
    );
    // One additional variable, and the NULL.
    if !fits || length + 2 > list.len() {
        const TEXT: &[u8] =
            b"bf-emu: LD_PRELOAD of a started program is too long to add the device's \
            library: the program has no device\n";
        let _ = sys::write(libc::STDERR_FILENO, TEXT);
        return start(variables);
    }
    let kept = all
        .iter()
        .filter(|variable| value_of(**variable, LD_PRELOAD).is_none());
    let new: *const c_char = preload.as_ptr().cast();
    for (to, from) in list.iter_mut().zip(kept.chain([&new])) {
        *to = *from;
    }
    start(list.as_ptr())
}

/// Number of strings before the NULL.
///
/// # Safety
/// Same as [`with_library`], and `variables` is not NULL.
unsafe fn length_of(variables: Strings) -> usize {
    let at = |length| {
        // SAFETY: no element after the NULL is read.
        unsafe { *variables.wrapping_add(length) }
    };
    (0..)
        .find(|length| at(*length).is_null())
        .unwrap_or_default()
}

/// The value of a variable with this name.
fn value_of<'a>(variable: *const c_char, name: &str) -> Option<&'a [u8]> {
    // SAFETY: a string of the environment from the interposed function's caller.
    let bytes = unsafe { CStr::from_ptr(variable) }.to_bytes();
    bytes.strip_prefix(name.as_bytes())?.strip_prefix(b"=")
}

/// Concatenates parts into a buffer that ends with a NUL. Returns false if they do not fit.
fn put(buffer: &mut [u8], parts: &[&[u8]]) -> bool {
    let mut at = 0;
    for part in parts {
        let end = at + part.len();
        match buffer.get_mut(at..end) {
            Some(space) if end < PRELOAD_BYTES_MAX => space.copy_from_slice(part),
            _ => return false,
        }
        at = end;
    }
    true
}
