//! Work requests carried out: one entry of a send queue, by its operation.

use mlx5_prm::qp::service;

use super::access::Need;
use super::atomic;
use super::datagram::datagram;
use super::list::List;
use super::message::{Message, read, send, write};
use super::outcome::{Fault, LOCAL_OPERATION, LOCAL_PROTECTION, Outcome, WINDOW_BIND};
use super::peer::Poster;
use super::umr;
use super::work::{self, Operation, WorkError};
use crate::fabric::Locked;
use crate::fabric::counters::{Refusal, Work};

/// Carries out the entry in `bytes`. Up to `limit` bytes that come back may lie in the completion.
pub(super) fn execute(
    locked: &mut Locked<'_>,
    poster: &Poster,
    bytes: &[u8],
    limit: u8,
) -> Result<Outcome, Fault> {
    let work = work::parse(bytes, poster.qp.service).map_err(|error| {
        let counters = locked.fabric().counters(poster.function);
        if error == WorkError::Opcode {
            counters.refuse(Refusal::UnknownWork);
        }
        LOCAL_OPERATION
    })?;
    let data = &bytes[work.data_at..work.end];
    let poster = &Poster {
        address: work.address,
        xrc_srq: work.xrc_srq,
        ..*poster
    };
    let counters = locked.fabric().counters(poster.function);
    let count = |work: Work| counters.work(work);
    match work.operation {
        Operation::Nop => {
            count(Work::Nop);
            Ok(Outcome::default())
        }
        Operation::Umr {
            mkey,
            ctrl,
            context,
        } => {
            let by = (poster.qpn, &poster.qp);
            let done = umr::execute(locked, poster.function, by, mkey, (ctrl, context), data)
                .map_err(|error| match error {
                    umr::UmrError::Key => WINDOW_BIND,
                    umr::UmrError::List => LOCAL_OPERATION,
                    umr::UmrError::Memory => LOCAL_PROTECTION,
                })?;
            count(done.work);
            let cost_ns = locked.fabric().profile().cost_ns(done.cost, done.bytes);
            Ok(Outcome {
                cost_ns,
                ..Outcome::default()
            })
        }
        Operation::Send { imm, invalidate } => {
            let mut list = List::new(poster.side(), Need::LocalRead);
            list.gather(data).map_err(|_| LOCAL_OPERATION)?;
            let message = Message {
                list,
                imm,
                invalidate,
                solicited: work.ctrl.is_solicited(),
            };
            let outcome = match work.address {
                Some(to) if poster.qp.service == service::UD => {
                    datagram(locked, poster, &message, &to)?
                }
                _ => send(locked, poster, &message)?,
            };
            let counted = if invalidate.is_some() {
                Work::SendInvalidate
            } else {
                Work::Send
            };
            count(counted);
            Ok(outcome)
        }
        Operation::Write { remote, imm } => {
            let mut list = List::new(poster.side(), Need::LocalRead);
            list.gather(data).map_err(|_| LOCAL_OPERATION)?;
            let solicited = work.ctrl.is_solicited();
            let message = Message {
                list,
                imm,
                invalidate: None,
                solicited,
            };
            let outcome = write(locked, poster, &message, remote)?;
            count(Work::RdmaWrite);
            Ok(outcome)
        }
        Operation::Read { remote } => {
            let mut list = List::new(poster.side(), Need::LocalWrite);
            list.scatter(data).map_err(|_| LOCAL_OPERATION)?;
            let outcome = read(locked, poster, (&list, limit), remote)?;
            count(Work::RdmaRead);
            Ok(outcome)
        }
        Operation::Atomic { remote, atomic } => {
            let mut list = List::new(poster.side(), Need::LocalWrite);
            list.scatter(data).map_err(|_| LOCAL_OPERATION)?;
            let scattered = atomic::execute(locked, poster, (&list, limit), remote, atomic)?;
            count(Work::Atomic);
            Ok(Outcome {
                scattered,
                ..Outcome::of(u32::from(atomic.bytes))
            })
        }
    }
}
