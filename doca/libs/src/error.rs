//! Results of the C functions, and the frame around each of them.

use crate::lines::{self, Level};
use std::cell::Cell;
use std::ffi::{CStr, c_char};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

macro_rules! codes {
    ($($code:ident = $value:literal $name:literal $text:literal;)*) => {
        /// `doca_error_t`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u32)]
        #[expect(missing_docs, reason = "the texts below")]
        pub enum Code { $($code = $value,)* }

        impl Code {
            const ALL: &[(Code, &CStr, &CStr)] = &[$((Code::$code, $name, $text),)*];
        }
    };
}

codes! {
    Success = 0 c"DOCA_SUCCESS" c"Success";
    Unknown = 1 c"DOCA_ERROR_UNKNOWN" c"Unknown error";
    NotPermitted = 2 c"DOCA_ERROR_NOT_PERMITTED" c"Operation not permitted";
    InUse = 3 c"DOCA_ERROR_IN_USE" c"Resource in use";
    NotSupported = 4 c"DOCA_ERROR_NOT_SUPPORTED" c"Operation not supported";
    Again = 5 c"DOCA_ERROR_AGAIN" c"Resource temporarily unavailable";
    InvalidValue = 6 c"DOCA_ERROR_INVALID_VALUE" c"Invalid value";
    NoMemory = 7 c"DOCA_ERROR_NO_MEMORY" c"Not enough memory";
    Initialization = 8 c"DOCA_ERROR_INITIALIZATION" c"Initialization failed";
    TimeOut = 9 c"DOCA_ERROR_TIME_OUT" c"Time limit exceeded";
    Shutdown = 10 c"DOCA_ERROR_SHUTDOWN" c"Shut down";
    ConnectionReset = 11 c"DOCA_ERROR_CONNECTION_RESET" c"Connection reset";
    ConnectionAborted = 12 c"DOCA_ERROR_CONNECTION_ABORTED" c"Connection aborted";
    ConnectionInProgress = 13 c"DOCA_ERROR_CONNECTION_INPROGRESS" c"Connection in progress";
    NotConnected = 14 c"DOCA_ERROR_NOT_CONNECTED" c"Not connected";
    NoLock = 15 c"DOCA_ERROR_NO_LOCK" c"Lock not available";
    NotFound = 16 c"DOCA_ERROR_NOT_FOUND" c"Not found";
    IoFailed = 17 c"DOCA_ERROR_IO_FAILED" c"Input or output failed";
    BadState = 18 c"DOCA_ERROR_BAD_STATE" c"Not possible in the current state";
    UnsupportedVersion = 19 c"DOCA_ERROR_UNSUPPORTED_VERSION" c"Version not supported";
    OperatingSystem = 20 c"DOCA_ERROR_OPERATING_SYSTEM" c"A call of the operating system failed";
    Driver = 21 c"DOCA_ERROR_DRIVER" c"The driver or the device refused";
    Unexpected = 22 c"DOCA_ERROR_UNEXPECTED" c"Unexpected condition";
    AlreadyExist = 23 c"DOCA_ERROR_ALREADY_EXIST" c"Exists already";
    Full = 24 c"DOCA_ERROR_FULL" c"No more place";
    Empty = 25 c"DOCA_ERROR_EMPTY" c"Nothing there";
    InProgress = 26 c"DOCA_ERROR_IN_PROGRESS" c"In progress";
    TooBig = 27 c"DOCA_ERROR_TOO_BIG" c"Too big";
    Authentication = 28 c"DOCA_ERROR_AUTHENTICATION" c"Authentication failed";
    BadConfig = 29 c"DOCA_ERROR_BAD_CONFIG" c"Bad or missing setting";
    Skipped = 30 c"DOCA_ERROR_SKIPPED" c"Skipped";
    DeviceFatalError = 31 c"DOCA_ERROR_DEVICE_FATAL_ERROR" c"Fatal error of the device";
}

impl Code {
    pub(crate) fn from_number(number: u32) -> Option<Self> {
        find(number).map(|(code, ..)| *code)
    }

    pub(crate) fn name(self) -> String {
        find(self as u32).map_or_else(String::new, |(_, name, _)| {
            name.to_string_lossy().into_owned()
        })
    }
}

/// Why a function fails: its result, and the text of the log line.
#[derive(Debug)]
pub struct Fault {
    pub(crate) code: Code,
    pub(crate) text: String,
    level: Level,
}

impl Fault {
    pub(crate) fn new(code: Code, text: impl Into<String>) -> Self {
        Self {
            code,
            text: text.into(),
            level: Level::Error,
        }
    }

    /// An answer that a program asks for, such as a missing capability: no error for the log.
    pub(crate) fn answer(code: Code, text: impl Into<String>) -> Self {
        Self {
            level: Level::Debug,
            ..Self::new(code, text)
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

pub(crate) type Result<T> = std::result::Result<T, Fault>;

/// `Err` with a formatted text.
macro_rules! fail {
    ($code:ident, $($text:tt)*) => {
        return Err($crate::error::Fault::new($crate::error::Code::$code, format!($($text)*)))
    };
}
pub(crate) use fail;

thread_local! {
    static CALL: Cell<&'static str> = const { Cell::new("") };
}

/// Name of the C function that this thread is in.
pub(crate) fn current() -> &'static str {
    CALL.get()
}

/// Runs the body of a C function. No panic leaves it, and a fault becomes one line of the log.
pub(crate) fn call(name: &'static str, body: impl FnOnce() -> Result<()>) -> Code {
    match value(name, body) {
        Ok(()) => Code::Success,
        Err(code) => code,
    }
}

/// As [`call`], for a function that returns something else than `doca_error_t`.
pub(crate) fn value<T>(
    name: &'static str,
    body: impl FnOnce() -> Result<T>,
) -> std::result::Result<T, Code> {
    let outer = CALL.replace(name);
    let outcome = catch_unwind(AssertUnwindSafe(body));
    CALL.set(outer);
    let fault = match outcome {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(fault)) => fault,
        Err(_) => Fault::new(
            Code::Unexpected,
            "internal error of the library; please report it",
        ),
    };
    lines::sdk(fault.level, &format!("{name}: {fault}"));
    Err(fault.code)
}

fn find(code: u32) -> Option<&'static (Code, &'static CStr, &'static CStr)> {
    Code::ALL.iter().find(|(known, ..)| *known as u32 == code)
}

/// `doca_error_get_name`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_error_get_name(code: u32) -> *const c_char {
    find(code)
        .map_or(c"DOCA_ERROR_UNKNOWN", |(_, name, _)| name)
        .as_ptr()
}

/// `doca_error_get_descr`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_error_get_descr(code: u32) -> *const c_char {
    find(code)
        .map_or(c"Unknown error", |(_, _, text)| text)
        .as_ptr()
}
