//! A request that the other side, or the way to it, refused, and the one place that settles it.
//!
//! The checks of a request return what is wrong. They change neither the other side's queue pair nor
//! the request's result.

use mlx5_prm::cqe::syndrome;
use mlx5_prm::qp::service;

use super::complete::enter_error;
use super::event::Event;
use super::outcome::{Fault, Outcome, Reason};
use super::owed::{self, Object};
use super::peer::Poster;
use crate::fabric::Locked;
use crate::fabric::counters::{PortCounter, Refusal};
use crate::fabric::numbers::qp_slot;
use crate::fabric::objects::SERVICE_DCT;

/// A request that did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    fault: Fault,
    by: Option<By>,
}

/// The queue pair that refused a request, and the event of its error state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct By {
    function: usize,
    qpn: u32,
    port: u8,
    /// A DCT refuses one request and serves the next.
    ends: bool,
    event: Event,
}

impl From<Fault> for Refused {
    fn from(fault: Fault) -> Self {
        Self { fault, by: None }
    }
}

impl Refused {
    /// A refusal by `peer`, which enters the error state with this event.
    pub(super) fn by(peer: &Poster, event: Event, fault: Fault) -> Self {
        let by = By {
            function: peer.function,
            qpn: peer.qpn,
            port: peer.qp.port(),
            ends: peer.qp.service != SERVICE_DCT,
            event,
        };
        Self {
            fault,
            by: Some(by),
        }
    }

    /// True if the sender learns of the refusal only by an answer.
    fn is_told_by_answer(self) -> bool {
        match self.fault {
            Fault::NotYet(reason) => reason != Reason::Full,
            Fault::Error(syndrome, _) => matches!(
                syndrome,
                syndrome::REMOTE_INVAL_REQ_ERR
                    | syndrome::REMOTE_ACCESS_ERR
                    | syndrome::REMOTE_OP_ERR
            ),
        }
    }
}

/// Settles a message of `bytes` bytes: brings the queue pair that refused it into the error state, and
/// drops it where no answer comes back.
pub(super) fn settle(
    locked: &mut Locked<'_>,
    poster: &Poster,
    bytes: u64,
    result: Result<Outcome, Refused>,
) -> Result<Outcome, Fault> {
    let refused = match result {
        Ok(outcome) => return Ok(outcome),
        Err(refused) => refused,
    };
    if let Some(by) = refused.by {
        end(locked, Some((poster.function, poster.qpn)), by);
    }
    if poster.qp.service != service::UC || !refused.is_told_by_answer() {
        return Err(refused.fault);
    }
    let counters = locked.fabric().counters(poster.function);
    counters.refuse(Refusal::Dropped);
    Ok(Outcome::of(u32::try_from(bytes).unwrap_or(u32::MAX)))
}

/// Settles a message from another machine: brings the queue pair that refused it into the error state. Returns the fault
/// for the answer.
pub(super) fn settle_here(locked: &mut Locked<'_>, refused: Refused) -> Fault {
    if let Some(by) = refused.by {
        end(locked, None, by);
    }
    refused.fault
}

/// A queue pair that is its own peer only records the event: its request must complete in error
/// before the flush, so [`super::step`] enters the error state then.
fn end(locked: &mut Locked<'_>, poster: Option<(usize, u32)>, by: By) {
    let By {
        function,
        qpn,
        event,
        ..
    } = by;
    if event == Event::QpAccessError {
        let counters = locked.fabric().counters(function);
        counters.count_port(by.port, PortCounter::RespRemoteAccessErrors);
    }
    if !by.ends {
        return;
    }
    if poster == Some((function, qpn)) {
        let queue = Object::QueuePair(qp_slot(qpn));
        owed::owe(locked, function, queue, event.bit());
    } else {
        enter_error(locked, function, qpn, Some(event));
    }
}
