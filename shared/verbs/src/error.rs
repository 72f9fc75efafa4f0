//! Errors of this crate, and how libibverbs' results become one.

use std::ffi::c_int;
use std::io;
use std::time::Duration;
use xgvmi_pool::mlx5::LoadError;
use xgvmi_pool::{DeviceError, PoolError, RegionError};

/// An error of the adapter, or of a call that was not valid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// A call of libibverbs or of the system failed.
    #[error("{call}: {source}")]
    Call {
        /// Its name.
        call: &'static str,
        /// Its error.
        source: io::Error,
    },
    /// libibverbs or libmlx5 does not load.
    #[error(transparent)]
    Library(#[from] LoadError),
    /// There is no such device, or the device refuses.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The pool has no key for the memory.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// No key can be bound to this memory.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The adapter refused an access.
    #[error(
        "the adapter cannot access the host's memory: completion status {status}; it was unmapped or its key has ended"
    )]
    Refused {
        /// Status of the completion (`enum ibv_wc_status`).
        status: u32,
    },
    /// No completion within the limit.
    #[error("no completion of a transfer within {} s", limit.as_secs())]
    Late {
        /// The limit.
        limit: Duration,
    },
    /// A copy is longer than its buffer.
    #[error("a copy of {length} bytes: the buffer has {bytes}; copy parts")]
    TooLong {
        /// Requested bytes.
        length: usize,
        /// Bytes of the buffer.
        bytes: usize,
    },
    /// The process was forked.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// A child process uses objects that its parent opened. Device memory and doorbells do not survive a fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this process was forked after its parent opened the adapter: use exec")]
pub struct Forked;

pub(crate) type Result<T> = std::result::Result<T, VerbsError>;

/// The result of a call that returns an error number, positive or negative.
pub(crate) fn check(call: &'static str, errno: c_int) -> Result<()> {
    match errno {
        0 => Ok(()),
        errno => Err(VerbsError::Call {
            call,
            source: io::Error::from_raw_os_error(errno.wrapping_abs()),
        }),
    }
}

/// The error of a call that sets `errno`.
pub(crate) fn last(call: &'static str) -> VerbsError {
    VerbsError::Call {
        call,
        source: io::Error::last_os_error(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_numbers_of_both_signs_name_the_call() {
        for errno in [22, -22] {
            let error = check("ibv_modify_qp", errno).expect_err("not zero");
            let text = error.to_string();
            assert!(text.starts_with("ibv_modify_qp: "), "{text}");
            assert!(text.contains("os error 22"), "{text}");
        }
        assert!(check("ibv_modify_qp", 0).is_ok());
    }

    #[test]
    fn errors_say_numbers_and_a_way_out() {
        let check = |error: VerbsError, words: [&str; 2]| {
            let text = error.to_string();
            for word in words {
                assert!(text.contains(word), "{text}");
            }
        };
        check(VerbsError::Refused { status: 10 }, ["status 10", "its key"]);
        let limit = Duration::from_secs(7);
        check(VerbsError::Late { limit }, ["7 s", "no completion"]);
        let (length, bytes) = (8192, 4096);
        check(
            VerbsError::TooLong { length, bytes },
            ["8192 bytes: the buffer has 4096", "copy parts"],
        );
        check(Forked.into(), ["forked", "use exec"]);
    }
}
