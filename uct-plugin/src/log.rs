//! Log lines. They go to UCX's own log if there is one, otherwise in UCX's format to the standard
//! error output. Hot paths never call this module.

use std::ffi::{CStr, CString, c_int, c_uint, c_void};
use std::fmt;
use std::io::Write as _;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use ucx_sys::ucs::{LogComponent, LogDispatch};

use crate::module::Module;

/// The used values of `ucs_log_level_t` (`src/ucs/config/types.h:16`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Level {
    /// `UCS_LOG_LEVEL_ERROR`.
    Error = 1,
    /// `UCS_LOG_LEVEL_WARN`.
    Warn = 2,
    /// `UCS_LOG_LEVEL_DIAG`.
    Diag = 3,
    /// `UCS_LOG_LEVEL_INFO`.
    Info = 4,
    /// `UCS_LOG_LEVEL_DEBUG`.
    Debug = 5,
}

/// Maximum level of written lines. UCX's own default, until the options are known.
static LEVEL: AtomicU8 = AtomicU8::new(Level::Warn as u8);

/// UCX's `ucs_log_dispatch`, after a copy of UCX is known.
static DISPATCH: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Directs later lines to the log of this copy of UCX, unless another one is set.
pub(crate) fn set_destination(module: &Module) {
    if let Some(dispatch) = module.symbol(c"ucs_log_dispatch") {
        let null = std::ptr::null_mut();
        // If another one was first, it stays.
        let _first =
            DISPATCH.compare_exchange(null, dispatch.as_ptr(), Ordering::AcqRel, Ordering::Acquire);
    }
}

/// Sets the maximum level of written lines, as a number of UCX's options.
pub(crate) fn set_level(level: u32) {
    LEVEL.store(u8::try_from(level).unwrap_or(u8::MAX), Ordering::Relaxed);
}

/// True if lines of the level are written.
pub(crate) fn enabled(level: Level) -> bool {
    level as u8 <= LEVEL.load(Ordering::Relaxed)
}

/// Writes a line.
pub(crate) fn write(level: Level, file: &CStr, line: u32, message: fmt::Arguments<'_>) {
    // Our own messages contain no zero byte. A foreign string with one is truncated there.
    let mut text = message.to_string().into_bytes();
    text.truncate(
        text.iter()
            .position(|&byte| byte == 0)
            .unwrap_or(text.len()),
    );
    let text = CString::new(text).unwrap_or_default();
    let dispatch = DISPATCH.load(Ordering::Acquire);
    if dispatch.is_null() {
        write_stderr(level, file, line, &text);
        return;
    }
    let mut component = LogComponent {
        level: level as c_int,
        name: *b"XGVMI\0\0\0\0\0\0\0\0\0\0\0",
        file_filter: c"*".as_ptr(),
    };
    // SAFETY: the symbol ucs_log_dispatch has this type in all versions.
    let dispatch = unsafe { std::mem::transmute::<*mut c_void, LogDispatch>(dispatch) };
    // SAFETY: all strings end in a zero byte and live during the call, like the component; the
    // format takes one string.
    unsafe {
        dispatch(
            file.as_ptr(),
            line,
            c"".as_ptr(),
            level as c_uint,
            &raw mut component,
            c"%s".as_ptr(),
            text.as_ptr(),
        );
    }
}

/// UCX's format: `[sec.usec] [host:pid:tid] file:line COMPONENT LEVEL message`.
fn write_stderr(level: Level, file: &CStr, line: u32, text: &CStr) {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let mut host = [0_u8; 64];
    // SAFETY: the array has the given length.
    unsafe { libc::gethostname(host.as_mut_ptr().cast(), host.len() - 1) };
    let host = CStr::from_bytes_until_nul(&host).unwrap_or_default();
    let pid = std::process::id();
    let tid = 0;
    let line = format!(
        "[{}.{:06}] [{}:{pid}:{tid}] {:>16}:{line:<4} {:<4} {:<5} {}\n",
        now.as_secs(),
        now.subsec_micros(),
        host.to_string_lossy(),
        file.to_string_lossy(),
        "XGVMI",
        level.name(),
        text.to_string_lossy(),
    );
    // There is nowhere to report that the error output cannot be written.
    let _written = std::io::stderr().write_all(line.as_bytes());
}

impl Level {
    const fn name(self) -> &'static str {
        match self {
            Self::Error => "ERROR",
            Self::Warn => "WARN",
            Self::Diag => "DIAG",
            Self::Info => "INFO",
            Self::Debug => "DEBUG",
        }
    }
}

/// Path of the source file, as a C string without allocation.
pub(crate) const fn c_file(file_and_zero: &str) -> &CStr {
    match CStr::from_bytes_with_nul(file_and_zero.as_bytes()) {
        Ok(file) => file,
        Err(_) => c"xgvmi",
    }
}

macro_rules! write_at {
    ($level:expr, $($message:tt)+) => {
        if $crate::log::enabled($level) {
            const FILE: &std::ffi::CStr = $crate::log::c_file(concat!(file!(), "\0"));
            $crate::log::write($level, FILE, line!(), format_args!($($message)+));
        }
    };
}

macro_rules! error {
    ($($message:tt)+) => { $crate::log::write_at!($crate::log::Level::Error, $($message)+) };
}

macro_rules! warning {
    ($($message:tt)+) => { $crate::log::write_at!($crate::log::Level::Warn, $($message)+) };
}

macro_rules! diag {
    ($($message:tt)+) => { $crate::log::write_at!($crate::log::Level::Diag, $($message)+) };
}

macro_rules! info {
    ($($message:tt)+) => { $crate::log::write_at!($crate::log::Level::Info, $($message)+) };
}

macro_rules! debug {
    ($($message:tt)+) => { $crate::log::write_at!($crate::log::Level::Debug, $($message)+) };
}

pub(crate) use {debug, diag, error, info, warning, write_at};
