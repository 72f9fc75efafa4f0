//! Errors of the library.

use std::fmt;

/// Results of FlexIO's functions, with its numbers; success has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Status {
    /// The call has changed nothing, and others go on.
    Failed = 1,
    /// Something takes too long.
    Timeout = 2,
    /// The process on the DPA, or the whole DPA, is lost.
    Fatal = 3,
}

/// Why a call has failed: one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// What is affected.
    pub status: Status,
    pub(crate) text: String,
}

/// Result of a call.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error that affects nothing else.
    pub fn failed(text: impl Into<String>) -> Self {
        Self {
            status: Status::Failed,
            text: text.into(),
        }
    }

    /// The process or the DPA is lost.
    pub fn fatal(text: impl Into<String>) -> Self {
        Self {
            status: Status::Fatal,
            text: text.into(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Error {}
