//! Errors: what happened, where, and what to do about it.

use crate::limits::{FUNCTION_MAX, REGION_BYTES_MAX, REGIONS_MAX};
use std::io;
use std::time::Duration;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, NaaError>;

/// An error of the library. After an error of a session, only [`crate::Session::finalize`] remains.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NaaError {
    /// Invalid arguments of the caller. Nothing has happened.
    #[error("{0}")]
    Arguments(#[from] ArgumentError),
    /// `NAA_SPEC` is malformed.
    #[error("NAA_SPEC: {0}")]
    Spec(#[from] SpecError),
    /// No accelerator of `NAA_SPEC` serves the function, or each is in use.
    #[error("no accelerator for function {function}: {reason}")]
    NoAccelerator {
        /// The function code.
        function: u8,
        /// Why there is none.
        reason: String,
    },
    /// librdmacm cannot be loaded.
    #[error(transparent)]
    Load(#[from] rdmacm_sys::LoadError),
    /// The process was forked after its parent had opened a device.
    #[error(
        "this process was forked after its parent opened the adapter: use exec, or create sessions in one of both \
         processes only"
    )]
    Forked,
    /// A call of librdmacm or libibverbs failed.
    #[error("{call}: {source}{}", hint(call))]
    Call {
        /// The function.
        call: &'static str,
        /// Its errno.
        source: io::Error,
    },
    /// The accelerator refuses the connection.
    #[error("{peer} refuses the connection{reason}")]
    Rejected {
        /// Address of the accelerator.
        peer: String,
        /// The text of the accelerator, after a colon; empty without one.
        reason: String,
    },
    /// The accelerator's system has no place for another connection request.
    #[error("{peer} has too many waiting connection requests; try again later")]
    Crowded {
        /// Address of the accelerator.
        peer: String,
    },
    /// The connection cannot be established.
    #[error("cannot connect to {peer}: {reason}; check that the accelerator's service runs there")]
    Connect {
        /// Address of the accelerator.
        peer: String,
        /// The event of the connection manager.
        reason: String,
    },
    /// The connection has ended.
    #[error("the connection to {peer} has ended: {reason}")]
    Lost {
        /// Address of the peer.
        peer: String,
        /// The event or the completion.
        reason: String,
    },
    /// A step has exceeded its time limit.
    #[error("{step} has not ended within {} s", .limit.as_secs_f64())]
    Late {
        /// The step.
        step: &'static str,
        /// Its limit.
        limit: Duration,
    },
    /// The peer's announcement message is malformed.
    #[error("announcement of {peer}: {error}")]
    Message {
        /// Address of the peer.
        peer: String,
        /// The fault.
        error: MessageError,
    },
    /// The peer's announcement does not match the session.
    #[error("announcement of {peer}: {reason}")]
    Announcement {
        /// Address of the peer.
        peer: String,
        /// The difference.
        reason: String,
    },
    /// The call is not possible in the current state.
    #[error("{call} in state {state}: {rule}")]
    State {
        /// The function that was called.
        call: &'static str,
        /// The session's state.
        state: &'static str,
        /// Rule that the caller broke.
        rule: &'static str,
    },
    /// A completion that the protocol does not allow.
    #[error("{what} in state {state}")]
    Protocol {
        /// The completion.
        what: &'static str,
        /// The session's state.
        state: &'static str,
    },
    /// The host's adapter cannot provide keys for the DPU.
    #[error("keys for the DPU: {reason}")]
    Keys {
        /// The adapter's error.
        reason: String,
    },
    /// A service on the DPU refuses the session.
    #[error("{peer} refuses the session: {reason}")]
    Refused {
        /// Address of the service.
        peer: String,
        /// The service's text.
        reason: String,
    },
    /// A shared object of kernels is unusable.
    #[error("kernels of {path}: {reason}")]
    Kernels {
        /// The file.
        path: String,
        /// What is wrong.
        reason: String,
    },
}

fn hint(call: &str) -> &'static str {
    match call {
        "ibv_reg_mr" => {
            "; check that the region is mapped and writable, and the limit of locked memory (ulimit -l)"
        }
        "rdma_create_event_channel" => {
            "; check that /dev/infiniband/rdma_cm exists and is accessible"
        }
        "rdma_bind_addr" => {
            "; check that no other process listens there and that the address is this machine's"
        }
        _ => "",
    }
}

impl NaaError {
    /// The error of the last failed call of this thread.
    pub(crate) fn last(call: &'static str) -> Self {
        Self::Call {
            call,
            source: io::Error::last_os_error(),
        }
    }

    /// Whether the accelerator cannot be reached. The C interface reports `SOCKET_UNAVAIL` then.
    #[must_use]
    pub const fn is_unreachable(&self) -> bool {
        matches!(
            self,
            Self::Rejected { .. }
                | Self::Crowded { .. }
                | Self::Refused { .. }
                | Self::Connect { .. }
                | Self::Lost { .. }
                | Self::NoAccelerator { .. }
        )
    }
}

/// Invalid arguments of a session.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArgumentError {
    /// The function code is out of range.
    #[error("function code {0}: codes are 1 to {FUNCTION_MAX}")]
    Function(u32),
    /// There are no regions.
    #[error("no regions: a session needs at least one")]
    NoRegions,
    /// There are too many regions.
    #[error(
        "{0} regions: the maximum is {REGIONS_MAX}, regions that are input and output counted once"
    )]
    TooManyRegions(usize),
    /// A region has no address.
    #[error("{0}: the address is NULL")]
    Null(String),
    /// A region has no bytes.
    #[error("{0}: the size is 0 bytes; leave the region out")]
    Empty(String),
    /// A region is too large.
    #[error(
        "{name}: {size} bytes; the maximum is {REGION_BYTES_MAX}, split it into several regions"
    )]
    TooLarge {
        /// The region.
        name: String,
        /// Its size in bytes.
        size: u64,
    },
    /// A region exceeds the address space.
    #[error("{0}: address plus size exceed the address space")]
    Range(String),
    /// Two regions overlap.
    #[error(
        "{first} and {second} overlap: use the same address and size for a region that is input and output, or separate \
         regions"
    )]
    Overlap {
        /// One region.
        first: String,
        /// The other region.
        second: String,
    },
    /// The number of inputs differs from the specification.
    #[error("{found} inputs; NAA_SPEC says that function {function} of {peer} takes {expected}")]
    Inputs {
        /// Number of the caller's inputs.
        found: usize,
        /// Number of inputs in `NAA_SPEC`.
        expected: u32,
        /// The function code.
        function: u8,
        /// Address of the accelerator.
        peer: String,
    },
    /// A pointer of the C interface is NULL.
    #[error("{0} is NULL")]
    NullPointer(&'static str),
    /// An index of the C interface is out of range.
    #[error("region {index}: there are {count}")]
    Index {
        /// The index.
        index: usize,
        /// Number of regions.
        count: usize,
    },
    /// A partial length exceeds its region.
    #[error("{bytes} bytes of region {index}: it has {size}")]
    Length {
        /// The requested length.
        bytes: u64,
        /// The region.
        index: usize,
        /// Its size in bytes.
        size: u64,
    },
    /// Requested addresses on the accelerator exceed 56 bits.
    #[error("the requested addresses on the accelerator exceed 56 bits: choose a smaller offset")]
    NaaAddress,
    /// An environment variable has an impossible value.
    #[error("{name}={value}: {rule}")]
    Environment {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What is possible.
        rule: &'static str,
    },
    /// A text is not an address.
    #[error("address '{0}': write an IPv4 or IPv6 address or a host name")]
    Address(String),
}

/// A fault in `NAA_SPEC`, with its position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("entry {entry}, field {field} ({name}), column {column}: {what}")]
pub struct SpecError {
    /// Number of the entry, from 1.
    pub entry: usize,
    /// Number of the field in the entry, from 1.
    pub field: usize,
    /// Name of the field.
    pub name: &'static str,
    /// First character of the field in the whole text, from 1.
    pub column: usize,
    /// The fault.
    pub what: String,
}

/// A malformed announcement message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{}{what}", region_name(*.region))]
pub struct MessageError {
    /// Index of the region; `None` for the header.
    pub region: Option<usize>,
    /// The fault.
    pub what: Wrong,
}

fn region_name(region: Option<usize>) -> String {
    region.map_or_else(String::new, |index| format!("region {index}: "))
}

/// The fault of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Wrong {
    /// Unknown type.
    #[error("type {0}; known are 0, 1 and 2")]
    Type(u8),
    /// Impossible number of regions.
    #[error("{0} regions; 1 to {REGIONS_MAX} are possible")]
    Count(u8),
    /// The length does not match the number of regions.
    #[error("{found} bytes instead of {expected}")]
    Length {
        /// Length according to the header.
        expected: usize,
        /// Received length.
        found: usize,
    },
    /// Padding contains data.
    #[error("padding that is not zero")]
    Padding,
    /// Unknown flags, or flags that exclude each other.
    #[error("flags {0:#04x}")]
    Flags(u8),
    /// A region without bytes.
    #[error("0 bytes")]
    Empty,
    /// A region beyond the address space.
    #[error("{size} bytes at {addr:#x} exceed the address space")]
    Range {
        /// First address.
        addr: u64,
        /// Size in bytes.
        size: u32,
    },
}
