//! Writes log lines to UCC's log. Before UCC is known, it writes them to standard error in UCC's format.

use std::ffi::{CStr, CString, c_int, c_uint};
use std::fmt;
use std::io::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use ucx_sys::ucs::{LogComponent, LogDispatch};

/// The levels of `ucs_log_level_t` that the component uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Level {
    Error = 1,
    Warn = 2,
    Info = 4,
    Debug = 5,
}

/// UCC's log, once UCC is known.
static DISPATCH: OnceLock<LogDispatch> = OnceLock::new();

/// Writes all further lines to UCC's log.
pub(crate) fn set_dispatch(dispatch: LogDispatch) {
    // A process has one UCC.
    let _ = DISPATCH.set(dispatch);
}

/// Maximum level of written lines: UCC's default until `UCC_TL_XGVMI_LOG_LEVEL` is known.
static LEVEL: AtomicU8 = AtomicU8::new(Level::Warn as u8);

/// Sets the maximum level of written lines; the number is UCS's.
pub(crate) fn set_level(level: c_int) {
    LEVEL.store(u8::try_from(level).unwrap_or(0), Ordering::Relaxed);
}

/// Whether the level is enabled.
pub(crate) fn enabled(level: Level) -> bool {
    level as u8 <= LEVEL.load(Ordering::Relaxed)
}

/// Writes a line regardless of its level.
pub(crate) fn write(level: Level, file: &CStr, line: u32, message: fmt::Arguments<'_>) {
    // A NUL in foreign text ends the line.
    let mut text = message.to_string().into_bytes();
    text.truncate(
        text.iter()
            .position(|byte| *byte == 0)
            .unwrap_or(text.len()),
    );
    let Ok(text) = CString::new(text) else { return };
    let Some(dispatch) = DISPATCH.get() else {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        // A failed write to standard error is ignored.
        let _ = writeln!(
            std::io::stderr(),
            "[{}.{:06}] [pid {}] {}:{line} TL_XGVMI {level:?} {}",
            now.as_secs(),
            now.subsec_micros(),
            std::process::id(),
            file.to_string_lossy(),
            text.to_string_lossy(),
        );
        return;
    };
    let mut component = LogComponent {
        level: level as c_int,
        name: *b"TL_XGVMI\0\0\0\0\0\0\0\0",
        file_filter: c"*".as_ptr(),
    };
    // SAFETY: the texts end with a NUL and outlive the call, as does the component; the format takes one text.
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

macro_rules! at {
    ($level:expr, $($message:tt)+) => {
        if $crate::log::enabled($level) {
            const FILE: &::std::ffi::CStr =
                match ::std::ffi::CStr::from_bytes_with_nul(concat!(file!(), "\0").as_bytes()) {
                    Ok(file) => file,
                    Err(_) => c"ucc-tl",
                };
            $crate::log::write($level, FILE, line!(), format_args!($($message)+));
        }
    };
}
macro_rules! error { ($($message:tt)+) => { $crate::log::at!($crate::log::Level::Error, $($message)+) } }
macro_rules! warning { ($($message:tt)+) => { $crate::log::at!($crate::log::Level::Warn, $($message)+) } }
macro_rules! info { ($($message:tt)+) => { $crate::log::at!($crate::log::Level::Info, $($message)+) } }
macro_rules! debug { ($($message:tt)+) => { $crate::log::at!($crate::log::Level::Debug, $($message)+) } }
pub(crate) use {at, debug, error, info, warning};
