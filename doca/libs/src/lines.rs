//! Lines of the log: their levels, and the backends that take them. Faults are written here, so this is below the C functions.

use std::ffi::c_int;
use std::io::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// `enum doca_log_level`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub(crate) enum Level {
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

    /// The level with a number.
    pub(crate) fn of(number: u32) -> Option<Self> {
        Self::ALL
            .iter()
            .find(|known| **known as u32 == number)
            .copied()
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

/// Where lines go.
pub(crate) enum Sink {
    /// Standard output, and standard error for warnings and errors.
    Standard,
    /// A stream of C, which the program keeps open.
    File(*mut libc::FILE),
    /// A file descriptor.
    Fd(c_int),
}

pub(crate) struct Backend {
    pub(crate) sink: Sink,
    /// Whether it takes the lines of the library, instead of the program's.
    pub(crate) is_sdk: bool,
    pub(crate) level: Level,
}

// SAFETY: streams of C have locks of their own, and the pointer is used under the lock of `STATE`.
unsafe impl Send for Backend {}

pub(crate) struct State {
    pub(crate) backends: Vec<Backend>,
    pub(crate) sources: Vec<String>,
    /// Levels that hold for backends to come.
    pub(crate) program: Option<Level>,
    pub(crate) sdk: Option<Level>,
}

static STATE: Mutex<State> = Mutex::new(State {
    backends: Vec::new(),
    sources: Vec::new(),
    program: None,
    sdk: None,
});

pub(crate) fn state() -> MutexGuard<'static, State> {
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
pub(crate) fn program(level: Level, source: &str, place: Option<(&str, c_int)>, text: &str) {
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
        thread_id(),
        level.word(),
        text.trim_end_matches('\n'),
    )
}

/// Number of this thread, as the system shows it.
pub(crate) fn thread_id() -> i32 {
    // SAFETY: no preconditions.
    unsafe { libc::gettid() }
}
