//! All names of the functions through which old, new and hardened programs access the device,
//! looked up as by their loader.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::{MaybeUninit, transmute};
use std::ptr;

use crate::checks::{UVERBS0, call, expect, expect_device, ok, stat_of};

const FLAGS: c_int = libc::O_RDWR | libc::O_CLOEXEC;
const LINK: &CStr = c"/sys/class/infiniband/mlx5_0";
const DIRECTORY: &CStr = c"/sys/class/infiniband_verbs";
const TEXT: &CStr = c"/sys/class/infiniband_verbs/abi_version";

/// The function with this name, as a program's loader finds it.
fn find(name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: a C string.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    expect(&name.to_string_lossy(), found.is_null(), false)?;
    Ok(found)
}

fn opened(name: &CStr, file: c_int) -> Result<(), String> {
    let name = name.to_string_lossy();
    let file = ok(&name, call(file))?;
    expect_device(&name, &stat_of(file)?, 192)?;
    // SAFETY: just opened and not used again.
    unsafe { libc::close(file) };
    Ok(())
}

pub(crate) fn every_way_to_open() -> Result<(), String> {
    type Open = unsafe extern "C" fn(*const c_char, c_int, ...) -> c_int;
    type Openat = unsafe extern "C" fn(c_int, *const c_char, c_int, ...) -> c_int;
    type Open2 = unsafe extern "C" fn(*const c_char, c_int) -> c_int;
    type Openat2 = unsafe extern "C" fn(c_int, *const c_char, c_int) -> c_int;
    for name in [c"open", c"open64"] {
        // SAFETY: the C library's functions with these names have this type.
        let open = unsafe { transmute::<*mut c_void, Open>(find(name)?) };
        // SAFETY: a C string.
        opened(name, unsafe { open(UVERBS0.as_ptr(), FLAGS) })?;
    }
    for name in [c"openat", c"openat64"] {
        // SAFETY: as above.
        let openat = unsafe { transmute::<*mut c_void, Openat>(find(name)?) };
        // SAFETY: a C string.
        opened(name, unsafe {
            openat(libc::AT_FDCWD, UVERBS0.as_ptr(), FLAGS)
        })?;
    }
    for name in [c"__open_2", c"__open64_2"] {
        // SAFETY: as above.
        let open = unsafe { transmute::<*mut c_void, Open2>(find(name)?) };
        // SAFETY: a C string.
        opened(name, unsafe { open(UVERBS0.as_ptr(), FLAGS) })?;
    }
    for name in [c"__openat_2", c"__openat64_2"] {
        // SAFETY: as above.
        let openat = unsafe { transmute::<*mut c_void, Openat2>(find(name)?) };
        // SAFETY: a C string.
        opened(name, unsafe {
            openat(libc::AT_FDCWD, UVERBS0.as_ptr(), FLAGS)
        })?;
    }
    Ok(())
}

pub(crate) fn every_way_to_read() -> Result<(), String> {
    type Fopen = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut libc::FILE;
    type Freopen =
        unsafe extern "C" fn(*const c_char, *const c_char, *mut libc::FILE) -> *mut libc::FILE;
    let first_byte = |name: &CStr, file: *mut libc::FILE| {
        let name = name.to_string_lossy();
        expect(&name, file.is_null(), false)?;
        // SAFETY: the file is open.
        expect(&name, unsafe { libc::fgetc(file) }, c_int::from(b'6'))
    };
    let mut file = ptr::null_mut();
    for name in [c"fopen", c"fopen64"] {
        // SAFETY: the C library's functions with these names have this type.
        let fopen = unsafe { transmute::<*mut c_void, Fopen>(find(name)?) };
        // SAFETY: C strings.
        file = unsafe { fopen(TEXT.as_ptr(), c"r".as_ptr()) };
        first_byte(name, file)?;
    }
    for name in [c"freopen", c"freopen64"] {
        // SAFETY: as above.
        let freopen = unsafe { transmute::<*mut c_void, Freopen>(find(name)?) };
        // SAFETY: C strings, and the last opened file.
        file = unsafe { freopen(TEXT.as_ptr(), c"r".as_ptr(), file) };
        first_byte(name, file)?;
    }
    Ok(())
}

pub(crate) fn every_way_to_ask() -> Result<(), String> {
    type Access = unsafe extern "C" fn(*const c_char, c_int) -> c_int;
    type Stat = unsafe extern "C" fn(*const c_char, *mut libc::stat) -> c_int;
    type Fstat = unsafe extern "C" fn(c_int, *mut libc::stat) -> c_int;
    type Fstatat = unsafe extern "C" fn(c_int, *const c_char, *mut libc::stat, c_int) -> c_int;
    for name in [c"access", c"euidaccess", c"eaccess"] {
        // SAFETY: the C library's functions with these names have this type.
        let access = unsafe { transmute::<*mut c_void, Access>(find(name)?) };
        // SAFETY: a C string.
        let answer = unsafe { access(UVERBS0.as_ptr(), libc::R_OK | libc::W_OK) };
        expect(&name.to_string_lossy(), answer, 0)?;
    }
    // SAFETY: a C string.
    let answer = unsafe { libc::faccessat(libc::AT_FDCWD, UVERBS0.as_ptr(), libc::R_OK, 0) };
    expect("faccessat", answer, 0)?;
    let filled = |name: &CStr, fill: &dyn Fn(*mut libc::stat) -> c_int| {
        let mut stat = MaybeUninit::<libc::stat>::zeroed();
        ok(&name.to_string_lossy(), call(fill(stat.as_mut_ptr())))?;
        // SAFETY: zeroed memory is a valid result, and the call has written it.
        expect_device(&name.to_string_lossy(), &unsafe { stat.assume_init() }, 192)
    };
    for name in [c"stat", c"stat64", c"lstat", c"lstat64"] {
        // SAFETY: as above.
        let stat = unsafe { transmute::<*mut c_void, Stat>(find(name)?) };
        // SAFETY: a C string, and a buffer for the result.
        filled(name, &|answer| unsafe { stat(UVERBS0.as_ptr(), answer) })?;
    }
    for name in [c"fstatat", c"fstatat64"] {
        // SAFETY: as above.
        let fstatat = unsafe { transmute::<*mut c_void, Fstatat>(find(name)?) };
        // SAFETY: a C string, and a buffer for the result.
        filled(name, &|answer| unsafe {
            fstatat(libc::AT_FDCWD, UVERBS0.as_ptr(), answer, 0)
        })?;
    }
    // SAFETY: a C string.
    let file = ok("open", call(unsafe { libc::open(UVERBS0.as_ptr(), FLAGS) }))?;
    for name in [c"fstat", c"fstat64"] {
        // SAFETY: as above.
        let fstat = unsafe { transmute::<*mut c_void, Fstat>(find(name)?) };
        // SAFETY: a buffer for the result.
        filled(name, &|answer| unsafe { fstat(file, answer) })?;
    }
    old_ways_to_ask(file, &filled)
}

type Filled<'a> = dyn Fn(&CStr, &dyn Fn(*mut libc::stat) -> c_int) -> Result<(), String> + 'a;

/// The functions that programs for an old C library call.
#[cfg(target_arch = "x86_64")]
fn old_ways_to_ask(file: c_int, filled: &Filled<'_>) -> Result<(), String> {
    type Fxstat = unsafe extern "C" fn(c_int, c_int, *mut libc::stat) -> c_int;
    type Fxstatat =
        unsafe extern "C" fn(c_int, c_int, *const c_char, *mut libc::stat, c_int) -> c_int;
    for name in [c"__fxstat", c"__fxstat64"] {
        // SAFETY: the C library's functions with these names have this type.
        let fxstat = unsafe { transmute::<*mut c_void, Fxstat>(find(name)?) };
        // SAFETY: version 1 is that of x86-64; a buffer for the result.
        filled(name, &|answer| unsafe { fxstat(1, file, answer) })?;
    }
    for name in [c"__fxstatat", c"__fxstatat64"] {
        // SAFETY: as above.
        let fxstatat = unsafe { transmute::<*mut c_void, Fxstatat>(find(name)?) };
        // SAFETY: as above, and a C string.
        filled(name, &|answer| unsafe {
            fxstatat(1, libc::AT_FDCWD, UVERBS0.as_ptr(), answer, 0)
        })?;
    }
    Ok(())
}

#[cfg(not(target_arch = "x86_64"))]
fn old_ways_to_ask(_file: c_int, _filled: &Filled<'_>) -> Result<(), String> {
    Ok(())
}

pub(crate) fn every_way_to_resolve() -> Result<(), String> {
    type Canonical = unsafe extern "C" fn(*const c_char) -> *mut c_char;
    type Resolve = unsafe extern "C" fn(*const c_char, *mut c_char) -> *mut c_char;
    type ResolveChecked = unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> *mut c_char;
    type ReadChecked = unsafe extern "C" fn(*const c_char, *mut c_char, usize, usize) -> isize;
    const CAPACITY: usize = libc::PATH_MAX as usize;
    const REAL: &[u8] = b"/sys/devices/pcibf00:03/bf00:03:00.0/infiniband/mlx5_0";
    let mut resolved: [c_char; CAPACITY] = [0; CAPACITY];
    let is_real = |name: &CStr, found: *mut c_char| {
        let name = name.to_string_lossy();
        expect(&name, found.is_null(), false)?;
        // SAFETY: these functions return a C string.
        expect(&name, unsafe { CStr::from_ptr(found) }.to_bytes(), REAL)
    };
    let name = c"realpath";
    // SAFETY: the C library's functions with these names have these types.
    let resolve = unsafe { transmute::<*mut c_void, Resolve>(find(name)?) };
    // SAFETY: a C string, and a buffer for the longest path.
    is_real(name, unsafe {
        resolve(LINK.as_ptr(), resolved.as_mut_ptr())
    })?;
    let name = c"__realpath_chk";
    // SAFETY: as above.
    let resolve = unsafe { transmute::<*mut c_void, ResolveChecked>(find(name)?) };
    // SAFETY: as above.
    is_real(name, unsafe {
        resolve(LINK.as_ptr(), resolved.as_mut_ptr(), CAPACITY)
    })?;
    let name = c"canonicalize_file_name";
    // SAFETY: as above.
    let resolve = unsafe { transmute::<*mut c_void, Canonical>(find(name)?) };
    // SAFETY: a C string.
    is_real(name, unsafe { resolve(LINK.as_ptr()) })?;
    let name = c"__readlink_chk";
    // SAFETY: as above.
    let read = unsafe { transmute::<*mut c_void, ReadChecked>(find(name)?) };
    // SAFETY: a C string, and a buffer of the given length.
    let checked = unsafe { read(LINK.as_ptr(), resolved.as_mut_ptr(), CAPACITY, CAPACITY) };
    let at = libc::AT_FDCWD;
    // SAFETY: as above.
    let plain = unsafe { libc::readlinkat(at, LINK.as_ptr(), resolved.as_mut_ptr(), CAPACITY) };
    let relative = isize::try_from(b"../../".len() + REAL.len() - b"/sys/".len());
    expect("__readlink_chk", Ok(checked), relative)?;
    expect("readlinkat", Ok(plain), relative)
}

pub(crate) fn every_way_to_list() -> Result<(), String> {
    type Scandir = unsafe extern "C" fn(
        *const c_char,
        *mut *mut *mut libc::dirent,
        Option<unsafe extern "C" fn(*const libc::dirent) -> c_int>,
        *const c_void,
    ) -> c_int;
    for name in [c"scandir", c"scandir64"] {
        // SAFETY: the C library's functions with these names have this type.
        let scandir = unsafe { transmute::<*mut c_void, Scandir>(find(name)?) };
        let mut list = ptr::null_mut();
        // SAFETY: a C string, a buffer for the list, no filter and no order.
        let found = unsafe { scandir(DIRECTORY.as_ptr(), &raw mut list, None, ptr::null()) };
        // abi_version, two devices, the directory and its parent. The list is freed at the end of
        // the process.
        expect(&name.to_string_lossy(), found, 5)?;
    }
    // SAFETY: a C string.
    let directory = unsafe { libc::opendir(DIRECTORY.as_ptr()) };
    expect("opendir", directory.is_null(), false)
}
