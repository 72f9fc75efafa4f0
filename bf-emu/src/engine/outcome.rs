//! The result of a send queue entry: its effect, or the cause of its failure.

use mlx5_prm::cqe::syndrome;

use super::list::Malformed;
use super::scatter::Scattered;
use crate::fabric::counters::Refusal;

/// Reason why an entry did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The entry completes in error.
    Error(u8, Refusal),
    /// The other side is not ready or does not answer. The entry fails with this error if that
    /// persists.
    NotYet(Reason),
}

/// Reason to wait for the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// It has no receive entry. It requests a new try after this delay (a code).
    NotReady(u8),
    /// It does not answer yet.
    Silent,
    /// It no longer exists.
    Gone,
    /// Its completion queue seems full ([`super::room`]).
    Full,
}

impl Fault {
    /// Syndrome and refusal of the entry's error.
    pub(super) fn error(self) -> (u8, Refusal) {
        match self {
            Self::Error(syndrome, refusal) => (syndrome, refusal),
            Self::NotYet(reason) => reason.error(),
        }
    }
}

impl Reason {
    /// The error, if the reason persists.
    fn error(self) -> (u8, Refusal) {
        match self {
            Self::NotReady(_) => (syndrome::RNR_RETRY_EXC_ERR, Refusal::ReceiverNotReady),
            Self::Silent | Self::Gone | Self::Full => {
                (syndrome::TRANSPORT_RETRY_EXC_ERR, Refusal::RetryExceeded)
            }
        }
    }
}

pub(super) const LOCAL_LENGTH: Fault =
    Fault::Error(syndrome::LOCAL_LENGTH_ERR, Refusal::LocalLength);
pub(super) const LOCAL_OPERATION: Fault =
    Fault::Error(syndrome::LOCAL_QP_OP_ERR, Refusal::LocalOperation);
pub(super) const LOCAL_PROTECTION: Fault =
    Fault::Error(syndrome::LOCAL_PROT_ERR, Refusal::LocalProtection);
pub(super) const WINDOW_BIND: Fault = Fault::Error(syndrome::MW_BIND_ERR, Refusal::WindowBind);
pub(super) const REMOTE_ACCESS: Fault =
    Fault::Error(syndrome::REMOTE_ACCESS_ERR, Refusal::RemoteAccess);
pub(super) const REMOTE_INVALID: Fault = Fault::Error(
    syndrome::REMOTE_INVAL_REQ_ERR,
    Refusal::RemoteInvalidRequest,
);
pub(super) const BAD_RESPONSE: Fault =
    Fault::Error(syndrome::BAD_RESP_ERR, Refusal::RemoteInvalidRequest);
pub(super) const REMOTE_OPERATION: Fault =
    Fault::Error(syndrome::REMOTE_OP_ERR, Refusal::RemoteOperation);
/// The acknowledgement of an executed request was lost in each try.
pub(super) const LOST: Fault = Fault::Error(syndrome::TRANSPORT_RETRY_EXC_ERR, Refusal::Injected);
pub(super) const NO_ANSWER: Fault = Fault::NotYet(Reason::Gone);
pub(super) const SILENT: Fault = Fault::NotYet(Reason::Silent);

impl From<Malformed> for Fault {
    fn from(_: Malformed) -> Self {
        LOCAL_OPERATION
    }
}

/// The result of a successful entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    /// Bytes moved.
    pub(super) bytes: u32,
    /// Nanoseconds that hardware would need.
    pub(super) cost_ns: u64,
    /// Data in the completion.
    pub(super) scattered: Scattered,
}

impl Default for Outcome {
    fn default() -> Self {
        Self {
            bytes: 0,
            cost_ns: 0,
            scattered: Scattered::NONE,
        }
    }
}

impl Outcome {
    /// The result of a request that moved this many bytes.
    pub(super) fn of(bytes: u32) -> Self {
        Self {
            bytes,
            ..Self::default()
        }
    }
}
