//! An agent's calls to the library itself, and to UCX about the library: by name, like a program
//! that also runs without it.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::null_mut;

/// As in `uct-plugin/include/xgvmi.h`.
type AnnounceFn = unsafe extern "C" fn(*mut c_void, usize) -> isize;
type AcceptFn = unsafe extern "C" fn(*const c_void, usize) -> i64;
type StatsFn = unsafe extern "C" fn(*mut c_void, usize) -> c_int;
/// As in `src/ucs/vfs/base/vfs_obj.h` of UCX.
type ReadFileFn = unsafe extern "C" fn(*const c_char, *mut c_void) -> i8;
/// As in `src/ucs/datastruct/string_buffer.h` of UCX.
type InitFn = unsafe extern "C" fn(*mut c_void);
type TextFn = unsafe extern "C" fn(*mut c_void) -> *const c_char;

/// Number of fields of the header's structure.
const NUMBERS: usize = 16;

/// Maximum number of devices of an emulated adapter.
const DEVICES: u32 = 8;

/// A message with the keys of this process's pools.
pub(crate) fn announce() -> Result<Vec<u8>, String> {
    let function = find(c"xgvmi_announce")?;
    // SAFETY: the library's function of that name has this type.
    let announce = unsafe { std::mem::transmute::<*mut c_void, AnnounceFn>(function) };
    // SAFETY: no buffer is passed, and the length is zero.
    let needed = unsafe { announce(null_mut(), 0) };
    let length = usize::try_from(needed).map_err(|_| format!("xgvmi_announce: {needed}"))?;
    let mut message = vec![0_u8; length];
    // SAFETY: the buffer has the given length.
    let written = unsafe { announce(message.as_mut_ptr().cast(), length) };
    match written == needed {
        true => Ok(message),
        false => Err(format!(
            "xgvmi_announce: {written} bytes instead of {needed}"
        )),
    }
}

/// Creates aliases of the keys in a message and returns their number.
pub(crate) fn accept(message: &[u8]) -> Result<i64, String> {
    let function = find(c"xgvmi_accept")?;
    // SAFETY: the library's function of that name has this type.
    let accept = unsafe { std::mem::transmute::<*mut c_void, AcceptFn>(function) };
    // SAFETY: the message has the given length.
    let ready = unsafe { accept(message.as_ptr().cast(), message.len()) };
    match ready < 0 {
        true => Err(format!("xgvmi_accept: {ready}")),
        false => Ok(ready),
    }
}

/// The library's counters, in the order of the header.
pub(crate) fn numbers() -> Result<Vec<u64>, String> {
    let function = find(c"xgvmi_stats")?;
    // SAFETY: the library's function of that name has this type.
    let stats = unsafe { std::mem::transmute::<*mut c_void, StatsFn>(function) };
    let mut numbers = vec![0_u64; NUMBERS];
    // SAFETY: the buffer has the given length.
    match unsafe { stats(numbers.as_mut_ptr().cast(), 8 * NUMBERS) } {
        0 => Ok(numbers),
        error => Err(format!("xgvmi_stats: {error}")),
    }
}

/// Number of threads of this process, and resident memory of the library's own file and data in
/// KiB.
pub(crate) fn weight() -> Result<String, String> {
    let failed = |error: std::io::Error| error.to_string();
    let threads = std::fs::read_dir("/proc/self/task")
        .map_err(failed)?
        .count();
    let maps = std::fs::read_to_string("/proc/self/smaps").map_err(failed)?;
    let (mut is_ours, mut resident) = (false, 0);
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("Rss:") if is_ours => {
                let kib = words.next().and_then(|word| word.parse::<u64>().ok());
                resident += kib.ok_or("a line without a number")?;
            }
            // The head of a mapping begins with its addresses.
            Some(word) if !word.ends_with(':') => {
                is_ours = line.contains("libuct_ib_mlx5_xgvmi.so");
            }
            _ => {}
        }
    }
    Ok(format!("{threads} {resident}"))
}

/// The content of one of the library's files in UCX's virtual file system.
pub(crate) fn file(libucp: Option<&Path>, name: &str) -> Result<String, String> {
    let libucp = libucp
        .ok_or("no UCX by name")?
        .to_string_lossy()
        .into_owned();
    let libucp = CString::new(libucp).map_err(|error| error.to_string())?;
    let find = |name| find_in(&libucp, name);
    let read = find(c"ucs_vfs_path_read_file")?;
    let [init, text, cleanup] = [
        find(c"ucs_string_buffer_init")?,
        find(c"ucs_string_buffer_cstr")?,
        find(c"ucs_string_buffer_cleanup")?,
    ];
    // SAFETY: UCX's function of that name has this type.
    let read = unsafe { std::mem::transmute::<*mut c_void, ReadFileFn>(read) };
    // SAFETY: as above.
    let init = unsafe { std::mem::transmute::<*mut c_void, InitFn>(init) };
    // SAFETY: as above.
    let cleanup = unsafe { std::mem::transmute::<*mut c_void, InitFn>(cleanup) };
    // SAFETY: as above.
    let text = unsafe { std::mem::transmute::<*mut c_void, TextFn>(text) };
    for device in 0..DEVICES {
        let path = format!("/uct/component/ib/memory_domain/mlx5_{device}/xgvmi/{name}");
        let path = CString::new(path).map_err(|error| error.to_string())?;
        // Several times as long as UCX's buffer.
        let mut buffer = [0_u64; 32];
        let buffer = buffer.as_mut_ptr().cast();
        // SAFETY: the buffer has space for UCX's.
        unsafe { init(buffer) };
        // SAFETY: the path ends in a zero byte, and the buffer is initialised.
        let status = unsafe { read(path.as_ptr(), buffer) };
        // SAFETY: as above.
        let found = unsafe { CStr::from_ptr(text(buffer)) };
        let found = found.to_string_lossy().trim_end().to_owned();
        // SAFETY: the buffer is no longer in use.
        unsafe { cleanup(buffer) };
        if status == 0 {
            return Ok(found);
        }
    }
    Err(format!("no file {name}"))
}

/// A function of the library, loaded in any way.
fn find(name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: the name ends in a zero byte.
    let function = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if !function.is_null() {
        return Ok(function);
    }
    find_in(c"libuct_ib_mlx5_xgvmi.so.0", name)
}

/// A function of a loaded library, or of one of its dependencies.
fn find_in(library: &CStr, name: &CStr) -> Result<*mut c_void, String> {
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
    // SAFETY: the name ends in a zero byte; nothing is loaded.
    let handle = unsafe { libc::dlopen(library.as_ptr(), flags) };
    if handle.is_null() {
        return Err(format!("{} is not there", library.to_string_lossy()));
    }
    // SAFETY: the handle is open, and the name ends in a zero byte.
    let function = unsafe { libc::dlsym(handle, name.as_ptr()) };
    match function.is_null() {
        true => Err(format!("{library:?} has no {name:?}")),
        false => Ok(function),
    }
}
