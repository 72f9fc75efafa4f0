//! The requests of own queue pairs: from a posted entry to a message, and from its end to a completion.

use mlx5_prm::qp::{service, state};
use mlx5_prm::wqe::{Ctrl, flag};

use crate::engine::access::{Need, Side};
use crate::engine::carried::running;
use crate::engine::entry;
use crate::engine::execute::execute;
use crate::engine::fault::Verdict;
use crate::engine::list::List;
use crate::engine::message::MESSAGE_BYTES_MAX;
use crate::engine::message::length_of;
use crate::engine::outcome::{
    BAD_RESPONSE, Fault, LOCAL_LENGTH, LOCAL_OPERATION, LOCAL_PROTECTION, NO_ANSWER, Outcome,
    REMOTE_ACCESS, REMOTE_INVALID, REMOTE_OPERATION, Reason,
};
use crate::engine::overtake::Behind;
use crate::engine::peer::Poster;
use crate::engine::step;
use crate::engine::wire::packet::{Atomic, Nak, Service};
use crate::engine::wire::requester::{Broken, Memory, NoAccess, Operation, Requester, Settings};
use crate::engine::work::{self, AtomicKind, WORK_BYTES_MAX};
use crate::fabric::Locked;
use crate::fabric::counters::Work;
use crate::fabric::numbers::qp_slot;

/// A posted entry that is on its way.
#[derive(Debug)]
pub(super) struct Posted {
    /// The queue's counter before it.
    at: u32,
    ctrl: Ctrl,
    /// A copy of the entry, with its inline data.
    bytes: Box<[u8]>,
    data: std::ops::Range<usize>,
    counted: Work,
}

impl Posted {
    fn list(&self, side: Side) -> List {
        let data = self.bytes.get(self.data.clone()).unwrap_or_default();
        // The list was checked when the entry was admitted.
        match self.counted {
            Work::RdmaRead | Work::Atomic => {
                let mut list = List::new(side, Need::LocalWrite);
                let _ = list.scatter(data);
                list
            }
            _ => {
                let mut list = List::new(side, Need::LocalRead);
                let _ = list.gather(data);
                list
            }
        }
    }
}

/// The memory of own requests.
pub(super) struct Own<'a, 'l> {
    pub(super) locked: &'a mut Locked<'l>,
    pub(super) side: Side,
}

impl Memory<Posted> for Own<'_, '_> {
    fn gather(&mut self, tag: &Posted, offset: u32, into: &mut [u8]) -> Result<(), NoAccess> {
        let list = tag.list(self.side);
        list.read_at(self.locked, offset.into(), into)
            .map_err(|_| NoAccess)
    }

    fn scatter(&mut self, tag: &Posted, offset: u32, bytes: &[u8]) -> Result<(), NoAccess> {
        let list = tag.list(self.side);
        let word = match (tag.counted, <[u8; 8]>::try_from(bytes)) {
            // Memory receives a word of eight bytes in host order.
            (Work::Atomic, Ok(word)) => Some(u64::from_be_bytes(word).to_ne_bytes()),
            _ => None,
        };
        let bytes = word.as_ref().map_or(bytes, |word| word);
        list.write_at(self.locked, offset.into(), bytes)
            .map_err(|_| NoAccess)
    }
}

/// The requests of a queue pair.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// Absent until the queue pair may send.
    pub(super) requester: Option<Requester<Posted>>,
    /// Counter of the first posted entry that the requester does not have.
    admitted: u32,
    /// Partition key and data bytes of packets.
    packets: (u16, u32),
}

impl Outgoing {
    /// Those of a queue pair from this counter on.
    pub(super) fn new(counter: u32, packets: (u16, u32)) -> Self {
        Self {
            requester: None,
            admitted: counter,
            packets,
        }
    }

    /// Gives posted entries to the requester, as many as fit. Entries without a destination are executed when all before them
    /// are complete. Returns false if the queue pair has ended.
    pub(super) fn admit(&mut self, locked: &mut Locked<'_>, poster: &Poster) -> bool {
        let (function, qpn) = (poster.function, poster.qpn);
        if poster.qp.state != state::RTS {
            return true;
        }
        let (pkey, mtu) = self.packets;
        let requester = self
            .requester
            .get_or_insert_with(|| Requester::new(settings(poster, pkey, mtu)));
        let mut bytes = [0; WORK_BYTES_MAX];
        while requester.has_room() {
            let mut at = *poster;
            at.qp.sq_done = self.admitted;
            let Some(fetched) = entry::fetch(locked, (function, qpn), &at.qp, &mut bytes) else {
                return true;
            };
            let ctrl = fetched.ctrl;
            // A fence waits for the answers of earlier reads.
            if ctrl.flags & flag::FENCE_MASK != 0 && !requester.is_idle() {
                return true;
            }
            let wanted = match fetched.sound {
                true => message(locked, &at, &ctrl, &bytes),
                false => Err(LOCAL_OPERATION),
            };
            if let Ok(Some((posted, what, length))) = wanted {
                requester.push(posted, what, (length, ctrl.is_solicited()));
            } else if requester.is_idle() {
                let mut behind = Behind::of(&at, &ctrl, fetched.space, execute);
                let result = match wanted {
                    Ok(_) => execute(locked, &at, &bytes, 0, &mut behind),
                    Err(fault) => Err(fault),
                };
                step::finish(locked, &at, &ctrl, (result, Verdict::Go));
                let slot = qp_slot(qpn);
                if running(locked, (function, slot)).is_none_or(|now| now.qp.state != state::RTS) {
                    return false;
                }
            } else {
                return true;
            }
            self.admitted = self.admitted.wrapping_add(ctrl.wqebbs().into());
        }
        true
    }

    /// Completes the entries whose messages have ended. Returns whether there were any.
    pub(super) fn complete(&mut self, locked: &mut Locked<'_>, poster: &Poster) -> bool {
        let Some(requester) = &mut self.requester else {
            return false;
        };
        let mut any = false;
        while let Some(ended) = requester.ended() {
            let posted = ended.tag;
            let mut at = *poster;
            at.qp.sq_done = posted.at;
            if !step::is_next(locked, &at) {
                // The queue pair was flushed.
                return true;
            }
            if ended.result.is_ok() {
                locked.fabric().counters(at.function).work(posted.counted);
            }
            let result = ended.result.map(Outcome::of).map_err(fault_of);
            step::finish(locked, &at, &posted.ctrl, (result, Verdict::Go));
            any = true;
        }
        any
    }
}

/// The attributes of a queue pair that may send.
fn settings(poster: &Poster, pkey: u16, mtu: u32) -> Settings {
    let path = &poster.qp.path;
    Settings {
        queue: poster.qp.remote_qpn,
        pkey,
        mtu,
        first_psn: path.sq_psn,
        // 4.096 us * 2^timeout. Code 0 means no limit.
        timeout_ns: match path.timeout & 31 {
            0 => None,
            code => Some(4096 << code),
        },
        retries: path.retry_count,
        rnr_retries: path.rnr_retry,
        reads: path.max_rd_atomic,
    }
}

/// A message, what it does, and its length.
type Wanted = (Posted, (Service, Operation), u32);

/// The message of an entry; None if the entry has no destination or is malformed.
fn message(
    locked: &Locked<'_>,
    at: &Poster,
    ctrl: &Ctrl,
    bytes: &[u8; WORK_BYTES_MAX],
) -> Result<Option<Wanted>, Fault> {
    let Ok(work) = work::parse(bytes, at.qp.service) else {
        return Ok(None);
    };
    let (operation, counted) = match work.operation {
        work::Operation::Nop | work::Operation::Umr { .. } | work::Operation::Memcpy { .. } => {
            return Ok(None);
        }
        // The standard has no packet for it.
        work::Operation::Send {
            invalidate: Some(_),
            ..
        } if at.qp.service == service::UC => return Err(LOCAL_OPERATION),
        work::Operation::Send { imm, invalidate } => {
            let counted = match invalidate {
                Some(_) => Work::SendInvalidate,
                None => Work::Send,
            };
            (Operation::Send { imm, invalidate }, counted)
        }
        work::Operation::Write { remote, imm } => {
            let operation = Operation::Write {
                address: remote.address,
                rkey: remote.rkey,
                imm,
            };
            (operation, Work::RdmaWrite)
        }
        work::Operation::Read { remote } => {
            let operation = Operation::Read {
                address: remote.address,
                rkey: remote.rkey,
            };
            (operation, Work::RdmaRead)
        }
        work::Operation::Atomic { remote, atomic } => {
            let operation = Operation::Atomic {
                address: remote.address,
                rkey: remote.rkey,
                atomic: match (atomic.kind, atomic.bytes) {
                    (AtomicKind::CompareSwap { compare, swap }, 8) => {
                        Atomic::CompareSwap { compare, swap }
                    }
                    (AtomicKind::FetchAdd { add }, 8) => Atomic::FetchAdd { add },
                    // The standard has no packets for masked operations.
                    _ => return Err(LOCAL_OPERATION),
                },
            };
            (operation, Work::Atomic)
        }
    };
    let posted = Posted {
        at: at.qp.sq_done,
        ctrl: *ctrl,
        bytes: bytes.get(..work.end).unwrap_or_default().into(),
        data: work.data_at..work.end,
        counted,
    };
    let data = posted.bytes.get(work.data_at..).unwrap_or_default();
    let mut list = List::new(at.side(), Need::LocalRead);
    match counted {
        Work::RdmaRead | Work::Atomic => {
            list = List::new(at.side(), Need::LocalWrite);
            list.scatter(data)?;
        }
        _ => list.gather(data)?,
    }
    let length = length_of(&list, MESSAGE_BYTES_MAX)?;
    if counted == Work::Atomic && length != 8 {
        return Err(LOCAL_LENGTH);
    }
    list.check(locked, length.into())
        .map_err(|_| LOCAL_PROTECTION)?;
    let service = match (at.qp.service, work.xrc_srq) {
        (service::UC, _) => Service::Unreliable,
        (service::XRC, Some(srq)) => Service::Extended { srq },
        _ => Service::Reliable,
    };
    Ok(Some((posted, (service, operation), length)))
}

fn fault_of(broken: Broken) -> Fault {
    match broken {
        Broken::RetryExceeded | Broken::Nak(Nak::Sequence) => NO_ANSWER,
        Broken::NotReady => Fault::NotYet(Reason::NotReady(0)),
        Broken::Nak(Nak::InvalidRequest) => REMOTE_INVALID,
        Broken::Nak(Nak::RemoteAccess) => REMOTE_ACCESS,
        Broken::Nak(Nak::RemoteOperation) => REMOTE_OPERATION,
        Broken::BadResponse => BAD_RESPONSE,
        Broken::Local => LOCAL_PROTECTION,
    }
}
