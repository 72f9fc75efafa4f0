//! Why a device call is refused.

use crate::device::Denied;

/// Why a device call ends its thread, and with it the process: one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

impl From<Denied> for Refusal {
    fn from(denied: Denied) -> Self {
        Self(denied.0)
    }
}

impl From<rv64::Fault> for Refusal {
    fn from(fault: rv64::Fault) -> Self {
        Self(fault.to_string())
    }
}
