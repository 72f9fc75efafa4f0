//! Messages to the other end of a connection: send, RDMA write and RDMA read.

use mlx5_prm::cqe::{Cqe, opcode as cqe_opcode, syndrome};
use mlx5_prm::qp::service;
use mlx5_prm::umr::access;
use mlx5_prm::wqe::RemoteAddress;

use super::access::Need;
use super::agree::{Way, check_packets, check_reads};
use super::arrival::{Alone, arrive};
use super::complete::complete_scattered;
use super::event::Event;
use super::fault;
use super::list::{Failure, List};
use super::outcome::{
    Fault, LOCAL_LENGTH, LOCAL_PROTECTION, NO_ANSWER, Outcome, REMOTE_ACCESS, REMOTE_INVALID,
    REMOTE_OPERATION, Reason,
};
use super::overtake::{Behind, First};
use super::peer::{Poster, peer, permits};
use super::receive::{self, Entry, NoEntry};
use super::refused::Refused;
use super::room;
use super::scatter::Scattered;
use super::traffic::{self, Kind};
use crate::fabric::Locked;
use crate::fabric::counters::{PortCounter, Work};
use crate::fabric::journal::Take;
use crate::fabric::numbers::{key_of, slot_of};
use crate::memory::MemoryError;

/// Longest message, as the port advertises it.
pub(crate) const MESSAGE_BYTES_MAX: u32 = 1 << 30;

/// The contents of a message and the notification of its receiver.
pub(super) struct Message {
    pub(super) list: List,
    pub(super) imm: Option<u32>,
    pub(super) invalidate: Option<u32>,
    pub(super) solicited: bool,
}

pub(super) fn length_of(list: &List, max: u32) -> Result<u32, Fault> {
    let length = u32::try_from(list.length()).map_err(|_| LOCAL_LENGTH)?;
    if length <= max {
        Ok(length)
    } else {
        Err(LOCAL_LENGTH)
    }
}

pub(super) fn send(
    locked: &mut Locked<'_>,
    poster: &Poster,
    message: &Message,
) -> Result<Outcome, Refused> {
    let length = length_of(&message.list, MESSAGE_BYTES_MAX)?;
    let bytes = u64::from(length);
    let peer = peer(locked, poster)?;
    check_packets(locked, (poster, &peer), bytes, Way::Out)?;
    let entry = next_entry(locked, &peer)?;
    if room::receiver_waits(locked, poster, &peer) {
        return Err(Fault::NotYet(Reason::Full).into());
    }
    if bytes > entry.list.length() {
        refuse_entry(locked, &peer, &entry, syndrome::LOCAL_LENGTH_ERR);
        return Err(Refused::by(&peer, Event::QpFatal, REMOTE_INVALID));
    }
    if let Some(key) = message.invalidate
        && !invalidate(locked, &peer, key)
    {
        return Err(Refused::by(&peer, Event::QpAccessError, REMOTE_ACCESS));
    }
    let alone = Alone::of_entry(&peer);
    let moved = if Scattered::fits(peer.qp.cs_res, bytes) {
        Scattered::take(locked, &message.list, (peer.qp.cs_res, bytes))
    } else {
        let which = poster.which();
        arrive(
            locked,
            which,
            &message.list,
            (&entry.list, 0),
            (bytes, alone),
        )
        .map(|()| Scattered::NONE)
    };
    let scattered = match moved {
        Ok(scattered) => scattered,
        Err(Failure::Source | Failure::SourceGone) => return Err(LOCAL_PROTECTION.into()),
        Err(Failure::TargetGone) => return Err(NO_ANSWER.into()),
        Err(Failure::Target) => {
            refuse_entry(locked, &peer, &entry, syndrome::LOCAL_PROT_ERR);
            return Err(Refused::by(&peer, Event::QpFatal, REMOTE_OPERATION));
        }
    };
    let opcode = match (message.imm, message.invalidate) {
        (_, Some(_)) => cqe_opcode::RESP_SEND_INV,
        (Some(_), None) => cqe_opcode::RESP_SEND_IMM,
        (None, None) => cqe_opcode::RESP_SEND,
    };
    let cqe = Cqe {
        opcode,
        imm: message.imm.or(message.invalidate).unwrap_or(0),
        byte_count: length,
        solicited: message.solicited,
        slid: lid(locked, poster),
        ..Cqe::default()
    };
    received(locked, &peer, &entry, (cqe, &scattered));
    let immediate = message.imm.or(message.invalidate).is_some();
    traffic::count(locked, (poster, &peer), Kind::Send { immediate }, bytes);
    Ok(Outcome::of(length))
}

/// LID of a message's source, for all services. UCX uses it to answer a request of a DCI: without it, the first 512
/// messages over DC arrive and the grant for more does not.
pub(super) fn lid(locked: &Locked<'_>, poster: &Poster) -> u16 {
    let identity = locked.fabric().identity(poster.function);
    identity.map_or(0, |identity| identity.lid(poster.qp.port()))
}

/// Counts a request that the peer executes.
pub(super) fn arrived(locked: &Locked<'_>, peer: &Poster, request: PortCounter) {
    let counters = locked.fabric().counters(peer.function);
    counters.count_port(peer.qp.port(), request);
}

/// The next receive entry of a queue pair. A message that finds none is counted.
pub(super) fn next_entry(locked: &mut Locked<'_>, peer: &Poster) -> Result<Entry, Refused> {
    match receive::next(locked, peer.function, (peer.qpn, &peer.qp)) {
        Ok(entry) => Ok(entry),
        Err(NoEntry::NotReady) => {
            let counters = locked.fabric().counters(peer.function);
            counters.count_port(peer.qp.port(), PortCounter::OutOfBuffer);
            Err(Fault::NotYet(Reason::NotReady(peer.qp.path.min_rnr_timer)).into())
        }
        Err(NoEntry::Broken(error)) => match peer.qp.srq.checked_sub(1) {
            Some(shared) if error == MemoryError::Fault => {
                receive::fail_shared(locked, peer.function, shared);
                Err(Refused::by(peer, Event::QpFatal, REMOTE_OPERATION))
            }
            _ => Err(NO_ANSWER.into()),
        },
    }
}

/// Takes a receive entry and completes it.
pub(super) fn received(
    locked: &mut Locked<'_>,
    peer: &Poster,
    entry: &Entry,
    (cqe, scattered): (Cqe, &Scattered),
) {
    let take = receive::taking(locked, peer.function, (peer.qpn, &peer.qp), entry);
    complete_entry(locked, peer, entry.counter, (cqe, scattered), take);
}

/// Completes a receive entry with this counter, and takes it if `take` says so.
pub(super) fn complete_entry(
    locked: &mut Locked<'_>,
    peer: &Poster,
    counter: u16,
    (cqe, scattered): (Cqe, &Scattered),
    take: Take,
) {
    locked.fabric().counters(peer.function).work(Work::Receive);
    let cqe = Cqe {
        user_index: peer.qp.user_index,
        qpn: peer.qpn,
        wqe_counter: counter,
        ..cqe
    };
    let queue = (peer.function, peer.qp.recv_cq);
    complete_scattered(locked, queue, (cqe, scattered), take);
    receive::taken(locked, &take);
    fault::answered(locked, peer.function, peer.qpn);
}

/// Completes a receive entry in error.
fn refuse_entry(locked: &mut Locked<'_>, peer: &Poster, entry: &Entry, syndrome: u8) {
    let cqe = Cqe {
        opcode: cqe_opcode::RESP_ERR,
        syndrome,
        ..Cqe::default()
    };
    if syndrome == syndrome::LOCAL_LENGTH_ERR {
        arrived(locked, peer, PortCounter::RespLocalLengthError);
    }
    received(locked, peer, entry, (cqe, &Scattered::NONE));
}

/// Invalidates a key of the receiver on the sender's behalf.
pub(super) fn invalidate(locked: &mut Locked<'_>, peer: &Poster, key: u32) -> bool {
    let mkeys = &mut locked.function(peer.function).mkeys;
    let Some(slot) = slot_of(key) else {
        return false;
    };
    let Some(mkey) = mkeys.get_mut(slot) else {
        return false;
    };
    let ours = key_of(slot, mkey.variant) == key && mkey.pd == peer.qp.pd && !mkey.free;
    let open = mkey.window_type_2 || mkey.remote_invalidate;
    if ours && open {
        mkey.free = true;
    }
    ours && open
}

pub(super) fn write(
    locked: &mut Locked<'_>,
    poster: &Poster,
    message: &Message,
    remote: RemoteAddress,
    behind: &mut Behind,
) -> Result<Outcome, Refused> {
    let length = length_of(&message.list, MESSAGE_BYTES_MAX)?;
    let bytes = u64::from(length);
    let peer = peer(locked, poster)?;
    if !permits(&peer, access::REMOTE_WRITE) {
        return Err(Refused::by(&peer, Event::QpRequestError, REMOTE_INVALID));
    }
    check_packets(locked, (poster, &peer), bytes, Way::Out)?;
    let entry = message.imm.map(|_| next_entry(locked, &peer)).transpose()?;
    if entry.is_some() && room::receiver_waits(locked, poster, &peer) {
        return Err(Fault::NotYet(Reason::Full).into());
    }
    let to = List::of_key(
        peer.side(),
        Need::RemoteWrite,
        remote.rkey,
        remote.address,
        bytes,
    );
    let alone = match entry {
        Some(_) => Alone::of_entry(&peer),
        None => {
            behind.pass(locked, First::Write);
            Alone::Never
        }
    };
    arrived(locked, &peer, PortCounter::RxWriteRequests);
    match arrive(
        locked,
        poster.which(),
        &message.list,
        (&to, 0),
        (bytes, alone),
    ) {
        Ok(()) => {}
        Err(Failure::Source | Failure::SourceGone) => return Err(LOCAL_PROTECTION.into()),
        Err(Failure::TargetGone) => return Err(NO_ANSWER.into()),
        Err(Failure::Target) => {
            return Err(match poster.qp.service {
                service::RC => Refused::by(&peer, Event::QpAccessError, REMOTE_ACCESS),
                _ => REMOTE_ACCESS.into(),
            });
        }
    }
    if let (Some(imm), Some(entry)) = (message.imm, entry) {
        let cqe = Cqe {
            opcode: cqe_opcode::RESP_WR_IMM,
            imm,
            byte_count: length,
            solicited: message.solicited,
            slid: lid(locked, poster),
            ..Cqe::default()
        };
        received(locked, &peer, &entry, (cqe, &Scattered::NONE));
    }
    let immediate = message.imm.is_some();
    traffic::count(locked, (poster, &peer), Kind::Write { immediate }, bytes);
    Ok(Outcome::of(length))
}

pub(super) fn read(
    locked: &mut Locked<'_>,
    poster: &Poster,
    (list, limit): (&List, u8),
    remote: RemoteAddress,
    behind: &mut Behind,
) -> Result<Outcome, Refused> {
    let length = length_of(list, MESSAGE_BYTES_MAX)?;
    let bytes = u64::from(length);
    let peer = peer(locked, poster)?;
    if !permits(&peer, access::REMOTE_READ) {
        return Err(Refused::by(&peer, Event::QpRequestError, REMOTE_INVALID));
    }
    check_reads(locked, (poster, &peer))?;
    check_packets(locked, (poster, &peer), bytes, Way::Back)?;
    let from = List::of_key(
        peer.side(),
        Need::RemoteRead,
        remote.rkey,
        remote.address,
        bytes,
    );
    arrived(locked, &peer, PortCounter::RxReadRequests);
    // A request that fails lets none pass: the peer refuses it before it sees the next one.
    if from.check(locked, bytes).is_ok() && list.check(locked, bytes).is_ok() {
        behind.pass(locked, First::Read);
    }
    let moved = if Scattered::fits(limit, bytes) {
        Scattered::take(locked, &from, (limit, bytes))
    } else {
        let which = poster.which();
        arrive(locked, which, &from, (list, 0), (bytes, Alone::Never)).map(|()| Scattered::NONE)
    };
    match moved {
        Ok(scattered) => {
            traffic::count(locked, (poster, &peer), Kind::Read, bytes);
            Ok(Outcome {
                scattered,
                ..Outcome::of(length)
            })
        }
        Err(Failure::SourceGone) => Err(NO_ANSWER.into()),
        Err(Failure::Source) => Err(Refused::by(&peer, Event::QpAccessError, REMOTE_ACCESS)),
        Err(Failure::Target | Failure::TargetGone) => Err(LOCAL_PROTECTION.into()),
    }
}
