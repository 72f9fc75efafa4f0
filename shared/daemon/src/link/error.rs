//! Why a connection fails.

use crate::budget::Exceeded;
use std::io;

/// Maximum length of a frame from an unidentified peer.
pub const STRANGER_FRAME_MAX: usize = 4 << 10;

/// Why a connection has failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The peer has closed the connection, and all its frames have been taken.
    #[error("the connection is closed")]
    Closed,
    /// The peer refuses; the text is the peer's, in one line of printable characters.
    #[error("{0}")]
    Refused(String),
    /// The peer uses another protocol.
    #[error("the peer is neither {0} nor a client of it")]
    Stranger(&'static str),
    /// The peer uses another version.
    #[error("its protocol version is {theirs}, and this program's is {ours}")]
    Version {
        /// Version of the peer.
        theirs: u32,
        /// Version of this program.
        ours: u32,
    },
    /// A frame exceeds the limit for the peer.
    #[error("a frame of {length} bytes; the most is {max}{}", hint(*.max))]
    TooLong {
        /// Length in the header.
        length: usize,
        /// The limit.
        max: usize,
    },
    /// The frames violate the protocol.
    #[error("it breaks the protocol: {0}")]
    Malformed(&'static str),
    /// The secrets differ, or one side has no secret.
    #[error("{0}")]
    Secret(&'static str),
    /// A frame was modified in transit, or does not come from the peer.
    #[error(
        "a frame has a wrong seal: it was modified on the network, or another process wrote it"
    )]
    Seal,
    /// The memory for frames is exhausted.
    #[error("{0}: try again later, or raise the limit")]
    Budget(#[from] Exceeded),
    /// The peer does not read the data sent to it.
    #[error("{0} bytes wait for it, and it reads none")]
    Unread(usize),
    /// An error of the system.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl LinkError {
    /// Short name of the reason, for counters.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Refused(_) => "refused",
            Self::Stranger(_) => "stranger",
            Self::Version { .. } => "version",
            Self::TooLong { .. } => "frame_too_long",
            Self::Malformed(_) => "malformed",
            Self::Secret(_) => "secret",
            Self::Seal => "seal",
            Self::Budget(_) => "budget",
            Self::Unread(_) => "unread",
            Self::Io(_) => "io",
        }
    }

    /// Whether the peer violated the protocol. The peer then receives the reason.
    #[must_use]
    pub const fn is_violation(&self) -> bool {
        !matches!(
            self,
            Self::Closed | Self::Refused(_) | Self::Unread(_) | Self::Io(_)
        )
    }
}

fn hint(max: usize) -> &'static str {
    if max == STRANGER_FRAME_MAX {
        " before the peer has said who it is"
    } else {
        ""
    }
}
