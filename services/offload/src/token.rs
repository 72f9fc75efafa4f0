//! Authenticates the sender of a message.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Authenticates the sender of each active message: a random number that the receiver issues to one peer of one job
/// over the peer's TCP connection.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Token(pub(super) [u8; 16]);

impl Token {
    pub(super) fn random() -> std::io::Result<Self> {
        Ok(Self(xgvmi_daemon::random()?.to_le_bytes()))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}
