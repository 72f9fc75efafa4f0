//! The identifier of a job.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Identifies the ranks that were started together. Rank 0 draws it at random. Only members of the job learn the full
/// value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct JobId(pub(super) u128);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Enough to distinguish the jobs in a log, and too little to join one.
        write!(f, "{:08x}", self.0 >> 96)
    }
}

/// Serialized as text: some JSON readers do not keep 128 bits.
impl Serialize for JobId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{:032x}", self.0))
    }
}

impl<'de> Deserialize<'de> for JobId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(serde::de::Error::custom("a job has 32 hexadecimal digits"));
        }
        u128::from_str_radix(&text, 16)
            .map(Self)
            .map_err(serde::de::Error::custom)
    }
}
