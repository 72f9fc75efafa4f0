//! Work requests carried out: one entry of a send queue at a time.

use mlx5_prm::cqe::{Cqe, opcode as cqe_opcode, syndrome};
use mlx5_prm::qp::{service, state};
use mlx5_prm::umr::access;
use mlx5_prm::wqe::{AddressVector, Ctrl, RemoteAddress, WQEBB_BYTES};

use super::access::Need;
use super::atomic;
use super::complete::{complete_scattered, enter_error, fail, flush, space_of_qp};
use super::event::Event;
use super::fault::{self, Verdict};
use super::link;
use super::list::{Failure, List, transfer, transfer_at_once};
use super::peer::{Poster, destination, fail_peer, peer, permits};
use super::receive::{self, Entry, NoEntry};
use super::scatter::Scattered;
use super::umr;
use super::work::{self, Operation, WORK_BYTES_MAX, WorkError};
use crate::bits::low16;
use crate::fabric::Locked;
use crate::fabric::counters::{Refusal, Work};
use crate::fabric::journal::Take;
use crate::fabric::numbers::{key_of, qp_slot, slot_of};
use crate::fabric::objects::Ring;
use crate::fabric::trace::What;
use crate::memory::{MemoryError, Space};
use crate::sys;

/// Longest message, as the port tells its users.
pub(crate) const MESSAGE_BYTES_MAX: u64 = 1 << 30;
/// Longest datagram: one packet of the largest MTU.
pub(crate) const DATAGRAM_BYTES_MAX: u64 = 4096;
/// Bytes in front of each received datagram, for its global route.
const GRH_BYTES: usize = 40;

/// What became of a queue pair's next entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// There is none.
    Idle,
    /// It was carried out, or failed; hardware would have taken so long.
    Done {
        /// Nanoseconds.
        cost_ns: u64,
    },
    /// Its message is on the link.
    OnItsWay {
        /// When it has arrived.
        until_ns: u64,
    },
    /// The other side is not ready: try again.
    Wait,
}

/// Why an entry did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// It completes in error.
    Error(u8, Refusal),
    /// The other side is not ready, or does not answer: with this error if that stays so.
    NotYet(Reason),
}

/// Why the other side is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// It has no receive entry, and asks to be tried again after this delay (a code).
    NotReady(u8),
    /// It does not answer yet.
    Silent,
    /// It will never answer.
    Gone,
}

impl Reason {
    /// The error if that stays so.
    fn error(self) -> (u8, Refusal) {
        match self {
            Self::NotReady(_) => (syndrome::RNR_RETRY_EXC_ERR, Refusal::ReceiverNotReady),
            Self::Silent | Self::Gone => {
                (syndrome::TRANSPORT_RETRY_EXC_ERR, Refusal::RetryExceeded)
            }
        }
    }
}

pub(super) const LOCAL_LENGTH: Fault =
    Fault::Error(syndrome::LOCAL_LENGTH_ERR, Refusal::LocalLength);
const LOCAL_OPERATION: Fault = Fault::Error(syndrome::LOCAL_QP_OP_ERR, Refusal::LocalOperation);
pub(super) const LOCAL_PROTECTION: Fault =
    Fault::Error(syndrome::LOCAL_PROT_ERR, Refusal::LocalProtection);
const WINDOW_BIND: Fault = Fault::Error(syndrome::MW_BIND_ERR, Refusal::WindowBind);
pub(super) const REMOTE_ACCESS: Fault =
    Fault::Error(syndrome::REMOTE_ACCESS_ERR, Refusal::RemoteAccess);
pub(super) const REMOTE_INVALID: Fault = Fault::Error(
    syndrome::REMOTE_INVAL_REQ_ERR,
    Refusal::RemoteInvalidRequest,
);
const REMOTE_OPERATION: Fault = Fault::Error(syndrome::REMOTE_OP_ERR, Refusal::RemoteOperation);
pub(super) const NO_ANSWER: Fault = Fault::NotYet(Reason::Gone);
pub(super) const SILENT: Fault = Fault::NotYet(Reason::Silent);

/// What a successful entry did.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    bytes: u64,
    cost_ns: u64,
    /// What of it lies in the completion.
    scattered: Scattered,
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

/// Carries out the next posted entry of queue pair `qpn`.
pub(crate) fn step(locked: &mut Locked<'_>, function: usize, qpn: u32) -> Step {
    let Some(qp) = locked.peek(function).qps.get(qp_slot(qpn)) else {
        return Step::Idle;
    };
    let qp = qp.as_poster();
    match qp.state {
        state::RTS => {}
        state::ERR => {
            flush(locked, function, qpn);
            return Step::Idle;
        }
        _ => return Step::Idle,
    }
    if fault::waits(locked, function, qpn) {
        return Step::Wait;
    }
    if qp.retry_at_ns != 0 && qp.retry_at_ns > sys::now_ns() {
        return Step::Wait;
    }
    let Some(space) = space_of_qp(locked, function, qpn) else {
        return Step::Idle;
    };
    let Ok(record) = space.read_be32(qp.dbrec.wrapping_add(4)) else {
        return Step::Idle;
    };
    let posted = low16(record).wrapping_sub(low16(qp.sq_done));
    if posted == 0 || qp.sq.count == 0 {
        return Step::Idle;
    }
    let mut bytes = [0; WORK_BYTES_MAX];
    let read = read_entry(space, &qp.sq, qp.sq_done, &mut bytes);
    let ctrl = Ctrl::parse(bytes.first_chunk().unwrap_or(&[0; Ctrl::BYTES]));
    // A record that claims more than the ring holds, or an entry that cannot be read or is for
    // another queue, is the poster's own fault.
    let sound = u32::from(posted) <= qp.sq.count && read.is_ok() && ctrl.qpn == qpn;
    if sound && let Some(until_ns) = link::arrives_at(locked, (function, qpn), &qp, &bytes) {
        return Step::OnItsWay { until_ns };
    }
    let poster = Poster {
        function,
        qpn,
        qp,
        address: None,
        xrc_srq: None,
    };
    let verdict = fault::verdict(locked, (function, qpn), &qp, &bytes);
    // Data goes into a completion only if there will be one, and now.
    let limit = match verdict {
        Verdict::Go if ctrl.is_signaled() => qp.cs_req,
        _ => 0,
    };
    let result = match verdict {
        Verdict::QpError => {
            enter_error(locked, function, qpn, Some(Event::QpFatal));
            return Step::Done { cost_ns: 0 };
        }
        Verdict::Fail(syndrome) => Err(Fault::Error(syndrome, Refusal::Injected)),
        Verdict::Go | Verdict::Hold(_) if sound => execute(locked, &poster, &bytes, limit),
        Verdict::Go | Verdict::Hold(_) => Err(LOCAL_OPERATION),
    };
    if let Err(Fault::NotYet(reason)) = result
        && !give_up(locked, &poster, reason)
    {
        return Step::Wait;
    }
    advance(locked, &poster, ctrl.wqebbs());
    trace(locked, &poster, &ctrl, &result);
    match result {
        Ok(outcome) => {
            locked.fabric().counters(function).payload(outcome.bytes);
            if let Verdict::Hold(until_ns) = verdict {
                fault::hold(locked, (function, qpn), &ctrl, outcome.bytes, until_ns);
            } else if ctrl.is_signaled() {
                let cqe = Cqe {
                    opcode: cqe_opcode::REQ,
                    user_index: qp.user_index,
                    wqe_opcode: ctrl.opcode,
                    qpn,
                    wqe_counter: ctrl.index,
                    byte_count: u32::try_from(outcome.bytes).unwrap_or(u32::MAX),
                    ..Cqe::default()
                };
                let completion = (cqe, &outcome.scattered);
                let take = Take::default();
                complete_scattered(locked, (function, qp.send_cq), completion, take);
            }
            Step::Done {
                cost_ns: outcome.cost_ns,
            }
        }
        Err(fault) => {
            let error = match fault {
                Fault::Error(syndrome, refusal) => (syndrome, refusal),
                Fault::NotYet(reason) => reason.error(),
            };
            fail(locked, function, qpn, &ctrl, error);
            Step::Done { cost_ns: 0 }
        }
    }
}

/// Notes what became of a request, if there is a trace.
fn trace(locked: &Locked<'_>, poster: &Poster, ctrl: &Ctrl, result: &Result<Outcome, Fault>) {
    let trace = locked.fabric().trace();
    if !trace.is_on() {
        return;
    }
    let (syndrome, bytes) = match *result {
        Ok(outcome) => (0, outcome.bytes),
        Err(Fault::Error(syndrome, _)) => (syndrome, 0),
        Err(Fault::NotYet(reason)) => (reason.error().0, 0),
    };
    let what = What::Request {
        qpn: poster.qpn,
        opcode: ctrl.opcode,
        index: ctrl.index,
        syndrome,
        bytes,
    };
    trace.write(poster.function, what);
}

/// Copies an entry out of its ring, whose end it may run over.
fn read_entry(
    space: Space,
    sq: &Ring,
    done: u32,
    bytes: &mut [u8; WORK_BYTES_MAX],
) -> Result<(), MemoryError> {
    space.read(sq.entry(done), &mut bytes[..WQEBB_BYTES])?;
    let ctrl = Ctrl::parse(bytes.first_chunk().unwrap_or(&[0; Ctrl::BYTES]));
    let blocks = u32::from(ctrl.wqebbs());
    if blocks == 1 {
        return Ok(());
    }
    let before_end = sq.count - (done & sq.count.wrapping_sub(1));
    let first = blocks.min(before_end) as usize * WQEBB_BYTES;
    let whole = blocks as usize * WQEBB_BYTES;
    if first > WQEBB_BYTES {
        let next = sq.entry(done).wrapping_add(WQEBB_BYTES as u64);
        space.read(next, &mut bytes[WQEBB_BYTES..first])?;
    }
    if whole > first {
        space.read(sq.base, &mut bytes[first..whole])?;
    }
    Ok(())
}

fn advance(locked: &mut Locked<'_>, poster: &Poster, blocks: u16) {
    if let Some(qp) = locked
        .function(poster.function)
        .qps
        .get_mut(qp_slot(poster.qpn))
    {
        qp.sq_done = qp.sq_done.wrapping_add(u32::from(blocks));
        qp.give_up_at_ns = 0;
        qp.retry_at_ns = 0;
        qp.pending = false;
        if qp.arrives_at_ns != 0 {
            qp.arrives_at_ns = 0;
        }
    }
}

/// How long a receiver that is not ready wants to be left alone, by the code of its `min_rnr_timer`.
fn rnr_delay_ns(timer: u8) -> u64 {
    RNR_DELAYS_10US[usize::from(timer & 31)] * 10_000
}

/// These delays in units of 10 us (InfiniBand specification, table 45).
const RNR_DELAYS_10US: [u64; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];
/// `rnr_retry` that stands for "without end".
const RNR_RETRY_FOREVER: u8 = 7;

/// A peer that is gone is waited for no longer than this: long enough that what other peers have
/// still sent is seen before its error, as on hardware, and short against the seconds that retry
/// timers take there, of which nobody learns anything.
const GONE_PATIENCE_NS: u64 = 50_000_000;

/// True if the other side was waited for as long as the queue pair's attributes say.
fn give_up(locked: &mut Locked<'_>, poster: &Poster, reason: Reason) -> bool {
    let now = sys::now_ns();
    let path = poster.qp.path;
    // 4.096 us * 2^timeout per try; a code of zero waits without end.
    let retries = match path.timeout & 31 {
        0 => u64::MAX,
        code => (4096 << code) * (u64::from(path.retry_count) + 1),
    };
    let patience = match reason {
        Reason::NotReady(_) if path.rnr_retry >= RNR_RETRY_FOREVER => u64::MAX,
        Reason::NotReady(timer) => rnr_delay_ns(timer) * u64::from(path.rnr_retry),
        Reason::Silent => retries,
        Reason::Gone => retries.min(GONE_PATIENCE_NS),
    };
    let Some(qp) = locked
        .function(poster.function)
        .qps
        .get_mut(qp_slot(poster.qpn))
    else {
        return true;
    };
    if let Reason::NotReady(timer) = reason {
        qp.retry_at_ns = now.saturating_add(rnr_delay_ns(timer));
    }
    if patience == u64::MAX {
        return false;
    }
    let end = now.saturating_add(patience).max(1);
    // One who was waited for may go: the shorter patience counts from then on.
    if qp.give_up_at_ns == 0 || end < qp.give_up_at_ns {
        qp.give_up_at_ns = end;
    }
    now >= qp.give_up_at_ns
}

/// Carries out the entry in `bytes`. Up to `limit` bytes that come back may lie in the completion.
fn execute(
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
                ..outcome(u64::from(atomic.bytes))
            })
        }
    }
}

/// What is sent, and how the receiver is to be told.
struct Message {
    list: List,
    imm: Option<u32>,
    invalidate: Option<u32>,
    solicited: bool,
}

fn outcome(bytes: u64) -> Outcome {
    Outcome {
        bytes,
        ..Outcome::default()
    }
}

/// Drops what an unreliable service may drop; hands on the error of a reliable one.
fn or_drop(
    locked: &Locked<'_>,
    poster: &Poster,
    bytes: u64,
    fault: Fault,
) -> Result<Outcome, Fault> {
    if poster.qp.service == service::UC {
        locked
            .fabric()
            .counters(poster.function)
            .refuse(Refusal::Dropped);
        return Ok(outcome(bytes));
    }
    Err(fault)
}

fn length_of(list: &List, max: u64) -> Result<u64, Fault> {
    let length = list.length();
    if length <= max {
        Ok(length)
    } else {
        Err(LOCAL_LENGTH)
    }
}

fn send(locked: &mut Locked<'_>, poster: &Poster, message: &Message) -> Result<Outcome, Fault> {
    let length = length_of(&message.list, MESSAGE_BYTES_MAX)?;
    let peer = match peer(locked, poster) {
        Ok(peer) => peer,
        Err(fault) => return or_drop(locked, poster, length, fault),
    };
    let entry = match next_entry(locked, &peer) {
        Ok(entry) => entry,
        Err(fault) => return or_drop(locked, poster, length, fault),
    };
    if length > entry.list.length() {
        refuse_message(locked, &peer, &entry, syndrome::LOCAL_LENGTH_ERR);
        return or_drop(locked, poster, length, REMOTE_INVALID);
    }
    if let Some(key) = message.invalidate
        && !invalidate(locked, &peer, key)
    {
        fail_peer(locked, &peer, Event::QpAccessError);
        return Err(REMOTE_ACCESS);
    }
    // Until it is taken, an entry of a shared queue is the next one for all its queue pairs.
    let transfer = match peer.qp.srq {
        0 => transfer,
        _ => transfer_at_once,
    };
    let moved = if Scattered::fits(peer.qp.cs_res, length) {
        Scattered::take(locked, &message.list, (peer.qp.cs_res, length))
    } else {
        transfer(locked, &message.list, (&entry.list, 0), length).map(|()| Scattered::NONE)
    };
    let scattered = match moved {
        Ok(scattered) => scattered,
        Err(Failure::Source | Failure::SourceGone) => return Err(LOCAL_PROTECTION),
        Err(Failure::TargetGone) => return Err(NO_ANSWER),
        Err(Failure::Target) => {
            refuse_message(locked, &peer, &entry, syndrome::LOCAL_PROT_ERR);
            return or_drop(locked, poster, length, REMOTE_OPERATION);
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
        byte_count: u32::try_from(length).unwrap_or(u32::MAX),
        solicited: message.solicited,
        slid: lid(locked, poster),
        ..Cqe::default()
    };
    received(locked, &peer, &entry, (cqe, &scattered));
    Ok(outcome(length))
}

/// Where a message comes from: UCX answers a request of a DCI by it.
fn lid(locked: &Locked<'_>, poster: &Poster) -> u16 {
    let identity = locked.fabric().identity(poster.function);
    identity.map_or(0, |identity| identity.lid(poster.qp.port()))
}

fn next_entry(locked: &mut Locked<'_>, peer: &Poster) -> Result<Entry, Fault> {
    receive::next(locked, peer.function, (peer.qpn, &peer.qp)).map_err(|none| match none {
        NoEntry::NotReady => Fault::NotYet(Reason::NotReady(peer.qp.path.min_rnr_timer)),
        NoEntry::Broken(_) => NO_ANSWER,
    })
}

/// Takes a receive entry and completes it.
fn received(
    locked: &mut Locked<'_>,
    peer: &Poster,
    entry: &Entry,
    (cqe, scattered): (Cqe, &Scattered),
) {
    let take = receive::taking(locked, peer.function, (peer.qpn, &peer.qp), entry);
    locked.fabric().counters(peer.function).work(Work::Receive);
    let cqe = Cqe {
        user_index: peer.qp.user_index,
        qpn: peer.qpn,
        wqe_counter: entry.counter,
        ..cqe
    };
    let queue = (peer.function, peer.qp.recv_cq);
    complete_scattered(locked, queue, (cqe, scattered), take);
    receive::taken(locked, &take);
}

/// Completes a receive entry in error and brings its queue pair into the error state.
fn refuse_message(locked: &mut Locked<'_>, peer: &Poster, entry: &Entry, syndrome: u8) {
    let cqe = Cqe {
        opcode: cqe_opcode::RESP_ERR,
        syndrome,
        ..Cqe::default()
    };
    received(locked, peer, entry, (cqe, &Scattered::NONE));
    fail_peer(locked, peer, Event::QpFatal);
}

/// Invalidates a key of the receiver on the sender's behalf.
fn invalidate(locked: &mut Locked<'_>, peer: &Poster, key: u32) -> bool {
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

fn write(
    locked: &mut Locked<'_>,
    poster: &Poster,
    message: &Message,
    remote: RemoteAddress,
) -> Result<Outcome, Fault> {
    let length = length_of(&message.list, MESSAGE_BYTES_MAX)?;
    let peer = match peer(locked, poster) {
        Ok(peer) => peer,
        Err(fault) => return or_drop(locked, poster, length, fault),
    };
    if !permits(&peer, access::REMOTE_WRITE) {
        fail_peer(locked, &peer, Event::QpRequestError);
        return or_drop(locked, poster, length, REMOTE_INVALID);
    }
    let entry = match message.imm.map(|_| next_entry(locked, &peer)).transpose() {
        Ok(entry) => entry,
        Err(fault) => return or_drop(locked, poster, length, fault),
    };
    let to = List::of_key(
        peer.side(),
        Need::RemoteWrite,
        remote.rkey,
        remote.address,
        length,
    );
    // As in `send`.
    let transfer = match (&entry, peer.qp.srq) {
        (Some(_), 1..) => transfer_at_once,
        _ => transfer,
    };
    match transfer(locked, &message.list, (&to, 0), length) {
        Ok(()) => {}
        Err(Failure::Source | Failure::SourceGone) => return Err(LOCAL_PROTECTION),
        Err(Failure::TargetGone) => return Err(NO_ANSWER),
        Err(Failure::Target) => {
            if poster.qp.service == service::RC {
                fail_peer(locked, &peer, Event::QpAccessError);
            }
            return or_drop(locked, poster, length, REMOTE_ACCESS);
        }
    }
    if let (Some(imm), Some(entry)) = (message.imm, entry) {
        let cqe = Cqe {
            opcode: cqe_opcode::RESP_WR_IMM,
            imm,
            byte_count: u32::try_from(length).unwrap_or(u32::MAX),
            solicited: message.solicited,
            slid: lid(locked, poster),
            ..Cqe::default()
        };
        received(locked, &peer, &entry, (cqe, &Scattered::NONE));
    }
    Ok(outcome(length))
}

fn read(
    locked: &mut Locked<'_>,
    poster: &Poster,
    (list, limit): (&List, u8),
    remote: RemoteAddress,
) -> Result<Outcome, Fault> {
    let length = length_of(list, MESSAGE_BYTES_MAX)?;
    let peer = peer(locked, poster)?;
    if !permits(&peer, access::REMOTE_READ) {
        fail_peer(locked, &peer, Event::QpRequestError);
        return Err(REMOTE_INVALID);
    }
    let from = List::of_key(
        peer.side(),
        Need::RemoteRead,
        remote.rkey,
        remote.address,
        length,
    );
    let moved = if Scattered::fits(limit, length) {
        Scattered::take(locked, &from, (limit, length))
    } else {
        transfer(locked, &from, (list, 0), length).map(|()| Scattered::NONE)
    };
    match moved {
        Ok(scattered) => Ok(Outcome {
            scattered,
            ..outcome(length)
        }),
        Err(Failure::SourceGone) => Err(NO_ANSWER),
        Err(Failure::Source) => {
            fail_peer(locked, &peer, Event::QpAccessError);
            Err(REMOTE_ACCESS)
        }
        Err(Failure::Target | Failure::TargetGone) => Err(LOCAL_PROTECTION),
    }
}

fn datagram(
    locked: &mut Locked<'_>,
    poster: &Poster,
    message: &Message,
    to: &AddressVector,
) -> Result<Outcome, Fault> {
    let length = length_of(&message.list, DATAGRAM_BYTES_MAX)?;
    let sent = outcome(length);
    let dropped = |locked: &Locked<'_>| {
        locked
            .fabric()
            .counters(poster.function)
            .refuse(Refusal::Dropped);
        Ok(sent)
    };
    let fabric = locked.fabric();
    let place = destination(fabric, to).filter(|to| fabric.connects(poster.place(), *to));
    let Some(place) = place else {
        return dropped(locked);
    };
    let qps = &locked.peek(place.function).qps;
    let Some(qp) = qps.get(qp_slot(to.dqp)) else {
        return dropped(locked);
    };
    let qp = qp.as_peer();
    let peer = Poster {
        function: place.function,
        qpn: to.dqp,
        qp,
        address: None,
        xrc_srq: None,
    };
    // The upper bit of the key asks for the sender's own.
    let [a, b, c, d, ..] = to.key.to_be_bytes();
    let asked = u32::from_be_bytes([a, b, c, d]);
    let qkey = if asked >> 31 == 1 {
        poster.qp.qkey
    } else {
        asked
    };
    let listens = qp.service == service::UD
        && matches!(qp.state, state::RTR | state::RTS | state::SQD | state::SQER)
        && (qp.qkey, qp.port()) == (qkey, place.port);
    if !listens {
        return dropped(locked);
    }
    let Ok(entry) = next_entry(locked, &peer) else {
        return dropped(locked);
    };
    let skip = GRH_BYTES as u64;
    if length + skip > entry.list.length() {
        return dropped(locked);
    }
    if to.grh {
        let grh = global_route(locked, poster, to, length);
        let from = List::of_bytes(poster.side(), &grh);
        if transfer(locked, &from, (&entry.list, 0), skip).is_err() {
            return dropped(locked);
        }
    }
    match transfer(locked, &message.list, (&entry.list, skip), length) {
        Ok(()) => {}
        Err(Failure::Source | Failure::SourceGone) => return Err(LOCAL_PROTECTION),
        Err(_) => return dropped(locked),
    }
    let opcode = match message.imm {
        Some(_) => cqe_opcode::RESP_SEND_IMM,
        None => cqe_opcode::RESP_SEND,
    };
    let cqe = Cqe {
        opcode,
        imm: message.imm.unwrap_or(0),
        byte_count: u32::try_from(length + skip).unwrap_or(u32::MAX),
        solicited: message.solicited,
        src_qpn: poster.qpn,
        slid: lid(locked, poster),
        // Bits 28 and 29 of flags_rqpn: a global route is there.
        rx_flags: if to.grh { 0x10 } else { 0 },
        ..Cqe::default()
    };
    received(locked, &peer, &entry, (cqe, &Scattered::NONE));
    Ok(sent)
}

/// The global route header that a receiver sees.
fn global_route(
    locked: &Locked<'_>,
    poster: &Poster,
    to: &AddressVector,
    length: u64,
) -> [u8; GRH_BYTES] {
    let mut grh = [0; GRH_BYTES];
    grh[0] = 0x60;
    // Payload, base and datagram headers, invariant check.
    let payload = u16::try_from(length + 24).unwrap_or(u16::MAX);
    grh[4..6].copy_from_slice(&payload.to_be_bytes());
    grh[6] = 0x1b;
    grh[7] = 0xff;
    if let Some(identity) = locked.fabric().identity(poster.function) {
        grh[8..24].copy_from_slice(&identity.gid(poster.qp.port()));
    }
    grh[24..].copy_from_slice(&to.dgid);
    grh
}
