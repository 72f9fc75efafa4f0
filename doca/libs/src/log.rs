//! Log lines of the program and of the library.

use crate::error::{Code, Result, call, fail};
use crate::object::{self, Object, check_place, find, publish};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// `enum doca_log_level`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
#[expect(missing_docs, reason = "the names of the header")]
pub enum Level {
    Disable = 10,
    Crit = 20,
    Error = 30,
    Warning = 40,
    Info = 50,
    Debug = 60,
    Trace = 70,
}

use Level::{Crit, Disable, Error, Info, Trace, Warning};

impl Level {
    const ALL: [Level; 7] = [Disable, Crit, Error, Warning, Info, Level::Debug, Trace];

    fn parse(level: u32) -> Result<Self> {
        match Self::ALL.iter().find(|known| **known as u32 == level) {
            Some(level) => Ok(*level),
            None => fail!(
                InvalidValue,
                "{level} is no log level; they are 10, 20, 30, 40, 50, 60 and 70"
            ),
        }
    }

    fn word(self) -> &'static str {
        match self {
            Disable => "OFF",
            Crit => "CRT",
            Error => "ERR",
            Warning => "WRN",
            Info => "INF",
            Level::Debug => "DBG",
            Trace => "TRC",
        }
    }
}

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

/// Where lines go.
enum Sink {
    /// Standard output, and standard error for warnings and errors.
    Standard,
    /// A stream of C, which the program keeps open.
    File(*mut libc::FILE),
    /// A file descriptor.
    Fd(c_int),
}

struct Backend {
    sink: Sink,
    /// Whether it takes the lines of the library, instead of the program's.
    is_sdk: bool,
    level: Level,
}

// SAFETY: streams of C have locks of their own, and the pointer is used under the lock of `STATE`.
unsafe impl Send for Backend {}

struct State {
    backends: Vec<Backend>,
    sources: Vec<String>,
    /// Levels that hold for backends to come.
    program: Option<Level>,
    sdk: Option<Level>,
}

static STATE: Mutex<State> = Mutex::new(State {
    backends: Vec::new(),
    sources: Vec::new(),
    program: None,
    sdk: None,
});

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes a line of the library. Without a backend of it, errors go to standard error.
pub(crate) fn sdk(level: Level, text: &str) {
    let state = state();
    let line = line(level, "DOCA", None, text);
    let mut has = false;
    for backend in state.backends.iter().filter(|backend| backend.is_sdk) {
        has = true;
        write(backend, level, &line);
    }
    if !has && level <= state.sdk.unwrap_or(Error) {
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

/// Writes a line of the program, or of device code.
fn program(level: Level, source: &str, place: Option<(&str, c_int)>, text: &str) {
    let state = state();
    let mut made = None;
    for backend in state.backends.iter().filter(|backend| !backend.is_sdk) {
        if level <= backend.level {
            let line = made.get_or_insert_with(|| line(level, source, place, text));
            write(backend, level, line);
        }
    }
}

/// Writes a line that device code has logged: to the program's backends, or to standard output without one.
pub(crate) fn device(level: Level, text: &str) {
    let has = state().backends.iter().any(|backend| !backend.is_sdk);
    if has {
        program(level, "DPA", None, text.trim_end_matches('\n'));
    } else {
        let line = line(level, "DPA", None, text.trim_end_matches('\n'));
        let _ = std::io::stdout().write_all(line.as_bytes());
    }
}

fn write(backend: &Backend, level: Level, line: &str) {
    if level > backend.level {
        return;
    }
    let bytes = line.as_bytes();
    match backend.sink {
        Sink::Standard if level <= Warning => {
            let _ = std::io::stderr().write_all(bytes);
        }
        Sink::Standard => {
            let mut out = std::io::stdout();
            let _ = out.write_all(bytes).and_then(|()| out.flush());
        }
        // SAFETY: the program keeps the stream open.
        Sink::File(file) => unsafe {
            libc::fwrite(bytes.as_ptr().cast(), 1, bytes.len(), file);
            libc::fflush(file);
        },
        // SAFETY: the bytes are readable. A line that the descriptor does not take whole is cut.
        Sink::Fd(fd) => unsafe {
            libc::write(fd, bytes.as_ptr().cast(), bytes.len());
        },
    }
}

fn line(level: Level, source: &str, place: Option<(&str, c_int)>, text: &str) -> String {
    let now = std::time::SystemTime::now();
    let since = now
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    let seconds = libc::time_t::try_from(since.as_secs()).unwrap_or_default();
    // SAFETY: a structure of integers and a pointer, for which all zeros are valid.
    let mut parts: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both are valid.
    unsafe { libc::localtime_r(&raw const seconds, &raw mut parts) };
    let place = match place {
        Some((file, line)) => format!("[{file}:{line}]"),
        None => String::new(),
    };
    format!(
        "[{:02}:{:02}:{:02}:{:06}][{}][DOCA][{}][{source}]{place} {}\n",
        parts.tm_hour,
        parts.tm_min,
        parts.tm_sec,
        since.subsec_micros(),
        object::thread_id(),
        level.word(),
        text.trim_end_matches('\n'),
    )
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
        let level = Level::parse(level)?;
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
    let level = Level::parse(level)?;
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
        let level = Level::parse(level)?;
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
