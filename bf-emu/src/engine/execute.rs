//! Executes one entry of a send queue, by its operation.

use mlx5_prm::qp::service;
use mlx5_prm::umr::{UmrContext, UmrCtrl};

use super::access::Need;
use super::atomic;
use super::datagram::datagram;
use super::list::List;
use super::memcpy;
use super::message::{Message, read, send, write};
use super::outcome::{Fault, LOCAL_OPERATION, LOCAL_PROTECTION, Outcome, WINDOW_BIND};
use super::overtake::{Behind, First};
use super::peer::Poster;
use super::refused::settle;
use super::umr;
use super::work::{self, Operation, WorkError};
use crate::fabric::Locked;
use crate::fabric::counters::{Refusal, Work};

/// Executes the entry in `bytes`. Up to `limit` bytes of returned data may be stored in the
/// completion. The request behind it may pass it.
pub(super) fn execute(
    locked: &mut Locked<'_>,
    poster: &Poster,
    bytes: &[u8],
    limit: u8,
    behind: &mut Behind,
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
    let (outcome, counted) = match work.operation {
        Operation::Nop => (Outcome::default(), Work::Nop),
        Operation::Umr {
            mkey,
            ctrl,
            context,
        } => {
            behind.pass(locked, First::Umr);
            change_key(locked, poster, mkey, (ctrl, context), data)?
        }
        Operation::Send { imm, invalidate } => {
            let mut list = List::new(poster.side(), Need::LocalRead);
            list.gather(data)?;
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
                _ => {
                    let sent = send(locked, poster, &message);
                    settle(locked, poster, message.list.length(), sent)?
                }
            };
            let counted = match invalidate {
                Some(_) => Work::SendInvalidate,
                None => Work::Send,
            };
            (outcome, counted)
        }
        Operation::Write { remote, imm } => {
            let mut list = List::new(poster.side(), Need::LocalRead);
            list.gather(data)?;
            let message = Message {
                list,
                imm,
                invalidate: None,
                solicited: work.ctrl.is_solicited(),
            };
            let written = write(locked, poster, &message, remote, behind);
            let outcome = settle(locked, poster, message.list.length(), written)?;
            (outcome, Work::RdmaWrite)
        }
        Operation::Read { remote } => {
            let mut list = List::new(poster.side(), Need::LocalWrite);
            list.scatter(data)?;
            let done = read(locked, poster, (&list, limit), remote, behind);
            (settle(locked, poster, list.length(), done)?, Work::RdmaRead)
        }
        Operation::Atomic { remote, atomic } => {
            let mut list = List::new(poster.side(), Need::LocalWrite);
            list.scatter(data)?;
            let done = atomic::execute(locked, poster, (&list, limit), remote, atomic, behind);
            (settle(locked, poster, list.length(), done)?, Work::Atomic)
        }
        Operation::Memcpy { metadata } => {
            let outcome = memcpy::execute(locked, poster, &metadata, data)?;
            (outcome, Work::DmaMemcpy)
        }
    };
    locked.fabric().counters(poster.function).work(counted);
    Ok(outcome)
}

/// Binds, changes or invalidates an indirect mkey.
fn change_key(
    locked: &mut Locked<'_>,
    poster: &Poster,
    mkey: u32,
    change: (UmrCtrl, UmrContext),
    list: &[u8],
) -> Result<(Outcome, Work), Fault> {
    let by = (poster.qpn, &poster.qp);
    let done = umr::execute(locked, poster.function, by, mkey, change, list);
    let done = done.map_err(|error| match error {
        umr::UmrError::Key => WINDOW_BIND,
        umr::UmrError::List => LOCAL_OPERATION,
        umr::UmrError::Memory => LOCAL_PROTECTION,
    })?;
    let outcome = Outcome {
        cost_ns: locked.fabric().profile().cost_ns(done.cost, done.bytes),
        ..Outcome::default()
    };
    Ok((outcome, done.work))
}
