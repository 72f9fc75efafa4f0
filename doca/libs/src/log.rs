//! The C functions of the log: backends, levels and sources of the program.

use crate::error::{Code, Result, call, fail};
use crate::lines::{Backend, Level, Sink, program, state};
use crate::object::{Object, check_place, find, publish, store};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;

use Level::{Disable, Info, Warning};

/// Most backends.
const BACKENDS_MAX: usize = 16;
/// Most sources.
const SOURCES_MAX: usize = 1024;
/// Most bytes of a source's name.
const SOURCE_BYTES: usize = 64;
/// Most bytes of a line's text.
const LINE_BYTES: usize = 4096;

/// `struct doca_log_backend`: the index of a backend.
#[derive(Debug)]
pub struct LogBackend(usize);

impl Object for LogBackend {
    const NAME: &'static str = "struct doca_log_backend";
}

/// The level with a number of the program.
fn level_of(number: u32) -> Result<Level> {
    match Level::of(number) {
        Some(level) => Ok(level),
        None => fail!(
            InvalidValue,
            "{number} is no log level; they are 10, 20, 30, 40, 50, 60 and 70"
        ),
    }
}

fn add(sink: Sink, is_sdk: bool, place: Option<*mut *mut LogBackend>) -> Result<()> {
    let mut state = state();
    let index = state.backends.len();
    if index >= BACKENDS_MAX {
        fail!(Full, "there are {BACKENDS_MAX} log backends already");
    }
    let level = if is_sdk {
        state.sdk.unwrap_or(Warning)
    } else {
        state.program.unwrap_or(Info)
    };
    state.backends.push(Backend {
        sink,
        is_sdk,
        level,
    });
    drop(state);
    if let Some(place) = place {
        // SAFETY: the caller has checked that it is not NULL, and the program promises that it is writable.
        unsafe { place.write(publish(&Arc::new(LogBackend(index)))) };
    }
    Ok(())
}

/// `doca_log_backend_create_standard`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_log_backend_create_standard() -> Code {
    call("doca_log_backend_create_standard", || {
        let exists = state()
            .backends
            .iter()
            .any(|backend| matches!(backend.sink, Sink::Standard));
        if exists {
            fail!(AlreadyExist, "the standard backend exists; one is enough");
        }
        add(Sink::Standard, false, None)
    })
}

fn add_file(
    name: &'static str,
    file: *mut libc::FILE,
    is_sdk: bool,
    place: *mut *mut LogBackend,
) -> Code {
    call(name, || {
        check_place(place)?;
        if file.is_null() {
            fail!(InvalidValue, "the stream is NULL");
        }
        add(Sink::File(file), is_sdk, Some(place))
    })
}

fn add_fd(name: &'static str, fd: c_int, is_sdk: bool, place: *mut *mut LogBackend) -> Code {
    call(name, || {
        check_place(place)?;
        if fd < 0 {
            fail!(InvalidValue, "{fd} is no file descriptor");
        }
        add(Sink::Fd(fd), is_sdk, Some(place))
    })
}

/// `doca_log_backend_create_with_file`.
///
/// # Safety
/// The stream stays open, and `backend` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_log_backend_create_with_file(
    file: *mut libc::FILE,
    backend: *mut *mut LogBackend,
) -> Code {
    add_file("doca_log_backend_create_with_file", file, false, backend)
}

/// `doca_log_backend_create_with_file_sdk`.
///
/// # Safety
/// The stream stays open, and `backend` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_log_backend_create_with_file_sdk(
    file: *mut libc::FILE,
    backend: *mut *mut LogBackend,
) -> Code {
    add_file("doca_log_backend_create_with_file_sdk", file, true, backend)
}

/// `doca_log_backend_create_with_fd`.
///
/// # Safety
/// `backend` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_log_backend_create_with_fd(
    fd: c_int,
    backend: *mut *mut LogBackend,
) -> Code {
    add_fd("doca_log_backend_create_with_fd", fd, false, backend)
}

/// `doca_log_backend_create_with_fd_sdk`.
///
/// # Safety
/// `backend` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_log_backend_create_with_fd_sdk(
    fd: c_int,
    backend: *mut *mut LogBackend,
) -> Code {
    add_fd("doca_log_backend_create_with_fd_sdk", fd, true, backend)
}

fn set_level(name: &'static str, backend: *const LogBackend, level: u32, is_sdk: bool) -> Code {
    call(name, || {
        let index = find(backend)?.0;
        let level = level_of(level)?;
        let mut state = state();
        let backend = &mut state.backends[index];
        if backend.is_sdk != is_sdk {
            let (is, other) = if is_sdk {
                ("program", "doca_log_backend_set_level_lower_limit")
            } else {
                ("library", "doca_log_backend_set_sdk_level")
            };
            fail!(InvalidValue, "this is a backend of the {is}: use {other}");
        }
        backend.level = level;
        Ok(())
    })
}

/// `doca_log_backend_set_level_lower_limit`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_log_backend_set_level_lower_limit(
    backend: *const LogBackend,
    level: u32,
) -> Code {
    set_level(
        "doca_log_backend_set_level_lower_limit",
        backend,
        level,
        false,
    )
}

/// `doca_log_backend_set_sdk_level`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_log_backend_set_sdk_level(backend: *const LogBackend, level: u32) -> Code {
    set_level("doca_log_backend_set_sdk_level", backend, level, true)
}

/// Sets the level of all backends of a kind.
pub(crate) fn set_all(level: u32, is_sdk: bool) -> Result<()> {
    let level = level_of(level)?;
    let mut state = state();
    if is_sdk {
        state.sdk = Some(level);
    } else {
        state.program = Some(level);
    }
    for backend in &mut state.backends {
        if backend.is_sdk == is_sdk {
            backend.level = level;
        }
    }
    Ok(())
}

/// `doca_log_level_set_global_lower_limit`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_log_level_set_global_lower_limit(level: u32) -> Code {
    call("doca_log_level_set_global_lower_limit", || {
        set_all(level, false)
    })
}

/// `doca_log_level_set_global_sdk_limit`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_log_level_set_global_sdk_limit(level: u32) -> Code {
    call("doca_log_level_set_global_sdk_limit", || {
        set_all(level, true)
    })
}

/// `doca_argp_get_log_level`: the level of the program's lines, by its option or by default.
///
/// # Safety
/// `level` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_argp_get_log_level(level: *mut c_int) -> Code {
    call("doca_argp_get_log_level", || {
        let own = state().program.unwrap_or(Info) as u32;
        // SAFETY: as the caller promises.
        unsafe { store(level, own.cast_signed()) }
    })
}

/// `doca_log_register_source`.
///
/// # Safety
/// `name` is NULL or a string, `source` NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_log_register_source(name: *const c_char, source: *mut c_int) -> Code {
    call("doca_log_register_source", || {
        check_place(source)?;
        if name.is_null() {
            fail!(InvalidValue, "the name of the source is NULL");
        }
        // SAFETY: not NULL, and a string by contract.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        let mut state = state();
        if state.sources.len() >= SOURCES_MAX {
            fail!(Full, "there are {SOURCES_MAX} sources of log lines already");
        }
        let index = c_int::try_from(state.sources.len()).unwrap_or(c_int::MAX);
        state
            .sources
            .push(name.chars().take(SOURCE_BYTES).collect());
        // SAFETY: checked above.
        unsafe { source.write(index) };
        Ok(())
    })
}

unsafe extern "C" {
    fn vsnprintf(to: *mut c_char, size: usize, format: *const c_char, list: *mut c_void) -> c_int;
}

/// Body of `doca_log`.
///
/// # Safety
/// The arguments are those of the header.
unsafe extern "C" fn log_line(
    level: u32,
    source: c_int,
    file: *const c_char,
    line: c_int,
    format: *const c_char,
    list: *mut c_void,
) {
    let log = || {
        let level = level_of(level)?;
        let wanted = state()
            .backends
            .iter()
            .any(|backend| !backend.is_sdk && level <= backend.level);
        if !wanted || level == Disable || format.is_null() {
            return Ok(());
        }
        let mut bytes = [0_u8; LINE_BYTES];
        // SAFETY: the buffer has this size, and the list belongs to the format by contract.
        unsafe { vsnprintf(bytes.as_mut_ptr().cast(), bytes.len(), format, list) };
        let said = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
        let source = usize::try_from(source).unwrap_or(usize::MAX);
        let source = state().sources.get(source).cloned().unwrap_or_default();
        let file = if file.is_null() {
            c""
        } else {
            // SAFETY: a string by contract.
            unsafe { CStr::from_ptr(file) }
        };
        let file = file.to_string_lossy();
        let file = file.rsplit('/').next().unwrap_or_default();
        program(level, &source, Some((file, line)), &said.to_string_lossy());
        Ok(())
    };
    call("doca_log", log);
}

flexio::variadic! {
    /// `doca_log`.
    doca_log, 5, log_line
}
