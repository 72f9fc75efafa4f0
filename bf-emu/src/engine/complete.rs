//! Completions, and the error state of queue pairs.

use std::sync::atomic::{AtomicBool, Ordering};

use mlx5_prm::cqe::{CQE_BYTES, Cqe, opcode as cqe_opcode, syndrome};
use mlx5_prm::qp::state;
use mlx5_prm::wqe::Ctrl;

use super::adversary::{self, Which};
use super::event::{self, Event};
use super::migration;
use super::moderation::{self, Verdict};
use super::owed::{self, Object};
use super::receive;
use super::scatter::Scattered;
use super::wake;
use crate::bits::low16;
use crate::fabric::counters::{PortCounter, Refusal, Work};
use crate::fabric::journal::{Record, Take, TakenFrom, Written};
use crate::fabric::numbers::qp_slot;
use crate::fabric::objects::{Armed, Cq, Qp, Ring, Srq, Subscription, Window};
use crate::fabric::{Locked, NUMBER_BASE, QPN_BASE};
use crate::memory::Space;
use crate::model::topology::FUNCTIONS_MAX;
use crate::sys;

/// Writes an entry into completion queue `slot`, and notifies the owner if the queue is armed.
pub(crate) fn complete(locked: &mut Locked<'_>, function: usize, slot: u32, cqe: Cqe) {
    complete_taking(locked, (function, slot), cqe, Take::default());
}

/// Like [`complete`], and takes an entry of a work queue in the same step. Other processes see both
/// changes or neither, even if this process is killed between them.
pub(crate) fn complete_taking(locked: &mut Locked<'_>, queue: (usize, u32), cqe: Cqe, take: Take) {
    complete_scattered(locked, queue, (cqe, &Scattered::NONE), take);
}

/// Like [`complete_taking`], with data in the entry.
pub(crate) fn complete_scattered(
    locked: &mut Locked<'_>,
    (function, slot): (usize, u32),
    (mut cqe, scattered): (Cqe, &Scattered),
    take: Take,
) {
    let counters = locked.fabric().counters(function);
    let tables = locked.peek(function);
    let owner = tables.cqs.owner(slot);
    let queue = (tables.cqs.get(slot).copied(), tables.cqs.generation(slot));
    let pid = owner.and_then(|owner| locked.pid(owner.process));
    let ((Some(cq), Some(generation)), Some(pid)) = (queue, pid) else {
        receive::count(locked, &take);
        return;
    };
    let space = Space::of(pid);
    let free = match cq.overrun {
        true => None,
        false => free_entry(space, &cq),
    };
    let Some(consumed) = free else {
        receive::count(locked, &take);
        counters.refuse(Refusal::CqOverrun);
        overrun(locked, function, slot);
        return;
    };
    match cqe.is_error() {
        true => count_error(locked, function, &cqe),
        false => cqe.timestamp = sys::now_ns(),
    }
    cqe.owner = cq.produced & cq.ring.count != 0;
    let address = entry_at(&cq);
    let mut entry = cqe.to_bytes();
    if let Some(data) = scattered.put(&mut cqe, &mut entry) {
        // A reader looks at this half only after the entry behind it is valid. A queue without
        // first halves has no queue pair that scatters into them.
        let _ = space.write(address.wrapping_sub(data.len() as u64), &data);
    }
    let record = Record {
        take,
        function,
        slot,
        generation,
        produced: cq.produced.wrapping_add(1),
        consumed,
        address,
        entry,
    };
    let written = locked.function(function).journal.begin(record);
    if carry_out(locked, space, (written, &record)) {
        counters.completion();
    }
}

/// Counts a completion in error at the port of its queue pair.
fn count_error(locked: &Locked<'_>, function: usize, cqe: &Cqe) {
    use PortCounter as C;
    let Some(qp) = locked.peek(function).qps.get(qp_slot(cqe.qpn)) else {
        return;
    };
    let (all, flushed) = match cqe.opcode {
        cqe_opcode::REQ_ERR => (C::ReqCqeError, C::ReqCqeFlushError),
        _ => (C::RespCqeError, C::RespCqeFlushError),
    };
    let cause = match cqe.syndrome {
        syndrome::WR_FLUSH_ERR => Some(flushed),
        syndrome::REMOTE_INVAL_REQ_ERR => Some(C::ReqRemoteInvalidRequest),
        syndrome::REMOTE_ACCESS_ERR => Some(C::ReqRemoteAccessErrors),
        syndrome::TRANSPORT_RETRY_EXC_ERR => Some(C::ReqTransportRetriesExceeded),
        syndrome::RNR_RETRY_EXC_ERR => Some(C::ReqRnrRetriesExceeded),
        _ => None,
    };
    let counters = locked.fabric().counters(function);
    for counter in [Some(all), cause].into_iter().flatten() {
        counters.count_port(qp.port(), counter);
    }
}

/// Executes the journal's record and closes it. Returns false if the entry could not be written.
/// The execution is idempotent.
fn carry_out(locked: &mut Locked<'_>, space: Space, (journal, record): (Written, &Record)) -> bool {
    let (function, slot) = (record.function, record.slot);
    receive::count(locked, &record.take);
    let written = space.publish(record.address, &record.entry).is_ok();
    let trace = locked.fabric().trace();
    trace.completion(function, slot + NUMBER_BASE, &record.entry);
    let mut verdict = None;
    let mut delayed = false;
    let mut told = ((0, 0), Subscription::default());
    if let Some(cq) = locked.function(function).cqs.get_mut(slot)
        && written
    {
        cq.consumed = record.consumed;
        cq.produced = record.produced;
        let cqe = Cqe::parse(&record.entry);
        let wakes = match cq.armed {
            Armed::No => false,
            Armed::Next => true,
            Armed::Solicited => cqe.solicited || cqe.is_error(),
        };
        if wakes {
            verdict = Some(moderation::entry(cq, cqe.solicited, sys::now_ns));
        }
        let which = Which {
            function,
            queue: slot,
            index: record.produced,
        };
        if verdict == Some(Verdict::Tell)
            && let Some(due_ns) = adversary::tells_later(which)
        {
            cq.window = Window {
                due_ns,
                from: record.produced.wrapping_sub(1),
            };
            verdict = Some(Verdict::Open);
            delayed = true;
        }
        told = ((cq.channel, cq.user_handle), cq.devx);
    }
    if delayed {
        locked.fabric().moderates();
    }
    if verdict == Some(Verdict::Tell) {
        wake(locked, (function, slot), told, Some(journal));
    } else {
        locked.function(function).journal.end(journal);
    }
    if verdict == Some(Verdict::Open)
        && let Some(owner) = locked.peek(function).cqs.owner(slot)
    {
        wake::wake_of(locked.fabric(), owner.process);
    }
    written
}

/// Notifies the owner of a completion queue that was armed and whose event was delayed.
pub(super) fn tell_armed(locked: &mut Locked<'_>, function: usize, slot: u32) {
    if let Some(cq) = locked.peek(function).cqs.get(slot) {
        let told = ((cq.channel, cq.user_handle), cq.devx);
        wake(locked, (function, slot), told, None);
    }
}

/// Notifies the owner of an armed completion queue. The event is counted immediately before it is
/// written, and the journal's record (if any) is closed after that.
fn wake(
    locked: &mut Locked<'_>,
    (function, slot): (usize, u32),
    (channel, devx): ((u32, u64), Subscription),
    journal: Option<Written>,
) {
    let about_to_send = |locked: &mut Locked<'_>, counts: bool| {
        if let Some(journal) = journal {
            locked.function(function).journal.tells(journal);
        }
        if let Some(cq) = locked.function(function).cqs.get_mut(slot) {
            cq.armed = Armed::No;
            cq.window = Window::default();
            cq.events_sent = cq.events_sent.wrapping_add(u32::from(counts));
        }
    };
    let sent = event::completion_counted(locked, function, channel, devx, about_to_send);
    if sent == Some(false)
        && let Some(cq) = locked.function(function).cqs.get_mut(slot)
    {
        cq.events_sent = cq.events_sent.wrapping_sub(1);
    }
    if let Some(journal) = journal {
        locked.function(function).journal.end(journal);
    }
}

/// Finishes the changes to other processes' queues that a dead holder of a lock began. The caller
/// holds all locks.
pub(crate) fn recover(locked: &mut Locked<'_>) {
    for function in 0..locked.fabric().identities().len() {
        finish_completion(locked, function);
    }
    for function in 0..locked.fabric().identities().len() {
        let mut from = 0;
        let ends = |qp: &Qp| qp.state == state::ERR || qp.owed & Event::OF_ERROR != 0;
        let owes = |qp: &Qp| ends(qp) || qp.owed != 0;
        while let Some(slot) = locked.peek(function).qps.next(from, |_, qp| owes(qp)) {
            match locked.peek(function).qps.get(slot).is_some_and(ends) {
                true => end(locked, function, slot + QPN_BASE),
                false => migration::finish(locked, function, slot + QPN_BASE),
            }
            from = slot + 1;
        }
        owed::recover(locked, function);
        // The sender of a message may have died before it looked at the limit of the shared queue.
        from = 0;
        let limited = |srq: &Srq| srq.limit != 0;
        while let Some(slot) = locked.peek(function).srqs.next(from, |_, srq| limited(srq)) {
            receive::check_limit(locked, function, slot);
            from = slot + 1;
        }
    }
}

/// Finishes the completion that a dead holder of the lock of a function's card began.
fn finish_completion(locked: &mut Locked<'_>, function: usize) {
    let Some((written, record, tells)) = locked.peek(function).journal.pending() else {
        return;
    };
    let record = Record { function, ..record };
    let cqs = &locked.peek(function).cqs;
    let same = cqs.generation(record.slot) == Some(record.generation);
    let owner = cqs.owner(record.slot).filter(|_| same);
    match owner.and_then(|owner| locked.pid(owner.process)) {
        Some(_) if tells => {
            if let Some(cq) = locked.function(function).cqs.get_mut(record.slot) {
                cq.events_unsure = cq.events_unsure.wrapping_add(1);
                let told = ((cq.channel, cq.user_handle), cq.devx);
                wake(locked, (function, record.slot), told, Some(written));
            }
        }
        Some(pid) => {
            carry_out(locked, Space::of(pid), (written, &record));
        }
        None => locked.function(function).journal.end(written),
    }
}

/// Moves a completion queue to another ring. The last entry of the old ring reports the move.
/// Returns false if that entry, or the unread entries, do not fit.
pub(crate) fn resize(locked: &mut Locked<'_>, function: usize, slot: u32, ring: Ring) -> bool {
    let tables = locked.peek(function);
    let Some(cq) = tables.cqs.get(slot).copied() else {
        return false;
    };
    let owner = tables.cqs.owner(slot);
    let Some(pid) = owner.and_then(|owner| locked.pid(owner.process)) else {
        return false;
    };
    let space = Space::of(pid);
    let Some(consumed) = consumed_now(space, &cq) else {
        return false;
    };
    let unread = cq.produced.wrapping_sub(consumed);
    if unread >= cq.ring.count || unread >= ring.count {
        return false;
    }
    let last = Cqe {
        opcode: cqe_opcode::RESIZE_CQ,
        owner: cq.produced & cq.ring.count != 0,
        ..Cqe::default()
    };
    if space.publish(entry_at(&cq), &last.to_bytes()).is_err() {
        return false;
    }
    if let Some(cq) = locked.function(function).cqs.get_mut(slot) {
        cq.consumed = consumed;
        cq.produced = cq.produced.wrapping_add(1);
        // The resize entry itself causes no event.
        cq.window.from = cq.window.from.wrapping_add(1);
        cq.ring = ring;
    }
    true
}

/// Address of the contents of a queue's next entry. An entry of 128 bytes has them in its second
/// half.
fn entry_at(cq: &Cq) -> u64 {
    cq.ring
        .entry(cq.produced)
        .wrapping_add((1 << cq.ring.log_stride) - CQE_BYTES as u64)
}

/// The owner's consumer counter, if the ring has a free entry.
fn free_entry(space: Space, cq: &Cq) -> Option<u32> {
    let full = |consumed: u32| cq.produced.wrapping_sub(consumed) >= cq.ring.count;
    if cq.ignore_overrun || !full(cq.consumed) {
        return Some(cq.consumed);
    }
    let consumed = consumed_now(space, cq)?;
    (!full(consumed)).then_some(consumed)
}

/// The owner's consumer counter by the doorbell record.
pub(super) fn consumed_now(space: Space, cq: &Cq) -> Option<u32> {
    Some(widen(cq, space.read_be32(cq.dbrec).ok()?))
}

/// Widens a consumer counter of 24 bits. The result is less than 2^24 behind the producer counter.
fn widen(cq: &Cq, counter: u32) -> u32 {
    const MASK: u32 = 0xff_ffff;
    cq.produced
        .wrapping_sub(cq.produced.wrapping_sub(counter) & MASK)
}

/// Ends a completion queue that has lost an entry, and its queue pairs: none of them could report
/// its requests any more (Linux `rxe_resp.c`, `RESPST_ERR_CQ_OVERFLOW`).
fn overrun(locked: &mut Locked<'_>, function: usize, slot: u32) {
    /// A queue of the function is ended now. Its card's lock is held for the whole time, so this process has at most one
    /// such call, and those inside it.
    static ENDS: [AtomicBool; FUNCTIONS_MAX] = [const { AtomicBool::new(false) }; FUNCTIONS_MAX];
    let overrun = |cq: &Cq| cq.overrun;
    if locked.peek(function).cqs.get(slot).is_none_or(overrun) {
        return;
    }
    let queue = Object::CompletionQueue(slot);
    owed::owe(locked, function, queue, Event::CqError.bit());
    if let Some(cq) = locked.function(function).cqs.get_mut(slot) {
        cq.overrun = true;
    }
    owed::pay(locked, function, queue);
    let alive = |qp: &Qp| !matches!(qp.state, state::RST | state::ERR);
    let reports = |qp: &Qp| qp.send_cq == slot || qp.recv_cq == slot;
    let mut from = 0;
    while let Some(qp) = next_qp(locked, function, from, |qp| alive(qp) && reports(qp)) {
        let last = locked
            .peek(function)
            .qps
            .get(qp)
            .is_some_and(|qp| qp.srq != 0);
        let last = if last { Event::LastWqe.bit() } else { 0 };
        owed::owe(
            locked,
            function,
            Object::QueuePair(qp),
            Event::QpFatal.bit() | last,
        );
        if let Some(qp) = locked.function(function).qps.get_mut(qp) {
            qp.state = state::ERR;
        }
        from = qp + 1;
    }
    // A flush may overrun another queue, whose queue pairs then end here too.
    let ends = ENDS.get(function);
    if ends.is_none_or(|ends| ends.swap(true, Ordering::Relaxed)) {
        return;
    }
    let ended = |qp: &Qp| qp.state == state::ERR && qp.owed & Event::QpFatal.bit() != 0;
    while let Some(qp) = next_qp(locked, function, 0, ended) {
        end(locked, function, qp + QPN_BASE);
    }
    if let Some(ends) = ends {
        ends.store(false, Ordering::Relaxed);
    }
}

fn next_qp(
    locked: &Locked<'_>,
    function: usize,
    from: u32,
    is: impl Fn(&Qp) -> bool,
) -> Option<u32> {
    locked.peek(function).qps.next(from, |_, qp| is(qp))
}

/// Arms a completion queue. `command` is the arm word of the doorbell, or None to read it from the
/// doorbell record. Its counter says how far the owner has read; the owner requests an event for
/// any later entry. An owner that ignores overruns may leave the record's other word stale, as UCX
/// does.
pub(crate) fn arm(locked: &mut Locked<'_>, function: usize, slot: u32, command: Option<u32>) {
    let tables = locked.peek(function);
    let Some(cq) = tables.cqs.get(slot).copied() else {
        return;
    };
    let owner = tables.cqs.owner(slot);
    let Some(pid) = owner.and_then(|owner| locked.pid(owner.process)) else {
        return;
    };
    let command = command.or_else(|| Space::of(pid).read_be32(cq.dbrec.wrapping_add(4)).ok());
    let Some(command) = command else { return };
    let armed = if command & SOLICITED_ONLY == 0 {
        Armed::Next
    } else {
        Armed::Solicited
    };
    let consumed = widen(&cq, command);
    // An entry written before the arming counts. Otherwise the owner would sleep although it has an
    // entry.
    let late = cq.produced != consumed;
    let verdict = match locked.function(function).cqs.get_mut(slot) {
        Some(cq) if late && cq.moderation.is_on() => {
            moderation::armed_late(cq, consumed, sys::now_ns())
        }
        _ => Verdict::Tell,
    };
    let told = late && verdict == Verdict::Tell;
    let sent = told && event::completion(locked, function, (cq.channel, cq.user_handle), cq.devx);
    if let Some(cq) = locked.function(function).cqs.get_mut(slot) {
        cq.consumed = consumed;
        cq.armed = if told { Armed::No } else { armed };
        cq.events_sent = cq.events_sent.wrapping_add(u32::from(sent));
        if told || !late {
            cq.window = Window::default();
        }
    }
    if verdict == Verdict::Open
        && let Some(owner) = locked.peek(function).cqs.owner(slot)
    {
        wake::wake_of(locked.fabric(), owner.process);
    }
}

/// Bit of the arm word: only solicited completions and errors count (`mlx5.h`,
/// MLX5_CQ_DB_REQ_NOT_SOL).
const SOLICITED_ONLY: u32 = 1 << 24;

/// Completes a send entry in error and brings its queue pair into the error state.
pub(crate) fn fail(
    locked: &mut Locked<'_>,
    function: usize,
    qpn: u32,
    ctrl: &Ctrl,
    (syndrome, refusal): (u8, Refusal),
) {
    locked.fabric().counters(function).refuse(refusal);
    send_error(locked, (function, qpn), ctrl, syndrome, Take::default());
    enter_error(locked, function, qpn, None);
}

fn send_error(
    locked: &mut Locked<'_>,
    (function, qpn): (usize, u32),
    ctrl: &Ctrl,
    syndrome: u8,
    take: Take,
) {
    let Some(qp) = locked.peek(function).qps.get(qp_slot(qpn)).copied() else {
        return;
    };
    let cqe = Cqe {
        opcode: cqe_opcode::REQ_ERR,
        user_index: qp.user_index,
        wqe_opcode: ctrl.opcode,
        qpn,
        wqe_counter: ctrl.index,
        syndrome,
        ..Cqe::default()
    };
    complete_taking(locked, (function, qp.send_cq), cqe, take);
}

/// Brings a queue pair into the error state and flushes everything posted on it.
pub(crate) fn enter_error(
    locked: &mut Locked<'_>,
    function: usize,
    qpn: u32,
    event: Option<Event>,
) {
    let Some(qp) = locked.peek(function).qps.get(qp_slot(qpn)) else {
        return;
    };
    if matches!(qp.state, state::RST | state::ERR) {
        return;
    }
    let last = if qp.srq != 0 { Event::LastWqe.bit() } else { 0 };
    let events = event.map_or(0, Event::bit) | last;
    owed::owe(locked, function, Object::QueuePair(qp_slot(qpn)), events);
    end(locked, function, qpn);
}

/// True if a queue pair owes events of the error state, which it enters then.
pub(crate) fn owes_events(locked: &Locked<'_>, function: usize, qpn: u32) -> bool {
    let qp = locked.peek(function).qps.get(qp_slot(qpn));
    qp.is_some_and(|qp| qp.owed & Event::OF_ERROR != 0)
}

/// Brings a queue pair into the error state, and sends the events that it owes.
fn end(locked: &mut Locked<'_>, function: usize, qpn: u32) {
    if let Some(qp) = locked.function(function).qps.get_mut(qp_slot(qpn)) {
        qp.state = state::ERR;
        qp.pending = false;
    }
    flush(locked, function, qpn);
    owed::pay(locked, function, Object::QueuePair(qp_slot(qpn)));
}

/// Completes every posted request of a queue pair in error with a flush error.
pub(crate) fn flush(locked: &mut Locked<'_>, function: usize, qpn: u32) {
    flush_sends(locked, function, qpn);
    flush_receives(locked, function, qpn);
}

fn flush_sends(locked: &mut Locked<'_>, function: usize, qpn: u32) {
    let slot = qp_slot(qpn);
    if let Some(ctrl) = give_up_held(locked, function, qpn) {
        let syndrome = syndrome::WR_FLUSH_ERR;
        send_error(locked, (function, qpn), &ctrl, syndrome, Take::default());
    }
    let Some(space) = space_of_qp(locked, function, qpn) else {
        return;
    };
    let Some(qp) = locked.peek(function).qps.get(slot).copied() else {
        return;
    };
    if qp.sq.count == 0 {
        return;
    }
    let Ok(record) = space.read_be32(qp.dbrec.wrapping_add(4)) else {
        return;
    };
    let mut done = qp.sq_done;
    let mut left = low16(record).wrapping_sub(low16(done));
    // A doorbell record that claims more entries than the ring holds is ignored.
    while left != 0 && u32::from(left) <= qp.sq.count {
        let mut bytes = [0; Ctrl::BYTES];
        if space.read(qp.sq.entry(done), &mut bytes).is_err() {
            break;
        }
        let ctrl = Ctrl::parse(&bytes);
        let blocks = ctrl.wqebbs().min(left);
        done = done.wrapping_add(u32::from(blocks));
        left -= blocks;
        locked.fabric().counters(function).work(Work::Flushed);
        let take = taken(TakenFrom::Send, function, slot, done);
        send_error(locked, (function, qpn), &ctrl, syndrome::WR_FLUSH_ERR, take);
    }
}

/// Takes the delayed completion of a queue pair whose requests are flushed. Returns the request to
/// complete in error, if there was one.
fn give_up_held(locked: &mut Locked<'_>, function: usize, qpn: u32) -> Option<Ctrl> {
    let qp = locked.function(function).qps.get_mut(qp_slot(qpn))?;
    let held = std::mem::take(&mut qp.held);
    (held.until_ns != 0).then(|| Ctrl {
        index: held.index,
        opcode: held.opcode,
        qpn,
        ..Ctrl::default()
    })
}

fn flush_receives(locked: &mut Locked<'_>, function: usize, qpn: u32) {
    let slot = qp_slot(qpn);
    let Some(space) = space_of_qp(locked, function, qpn) else {
        return;
    };
    let Some(qp) = locked.peek(function).qps.get(slot).copied() else {
        return;
    };
    if qp.srq != 0 {
        return;
    }
    let Ok(left) = receive::posted(space, &qp) else {
        return;
    };
    if u32::from(left) > qp.rq.count {
        return;
    }
    for _ in 0..left {
        let Some(qp) = locked.peek(function).qps.get(slot) else {
            return;
        };
        let counter = low16(qp.rq_done);
        let (cq, user_index) = (qp.recv_cq, qp.user_index);
        let done = qp.rq_done.wrapping_add(1);
        locked.fabric().counters(function).work(Work::Flushed);
        let cqe = Cqe {
            opcode: cqe_opcode::RESP_ERR,
            user_index,
            qpn,
            wqe_counter: counter,
            syndrome: syndrome::WR_FLUSH_ERR,
            ..Cqe::default()
        };
        let take = taken(TakenFrom::Receive, function, slot, done);
        complete_taking(locked, (function, cq), cqe, take);
    }
}

fn taken(from: TakenFrom, function: usize, slot: u32, counter: u32) -> Take {
    Take {
        from,
        function,
        slot,
        counter,
        head: 0,
    }
}

/// The memory of a queue pair's owner.
pub(crate) fn space_of_qp(locked: &Locked<'_>, function: usize, qpn: u32) -> Option<Space> {
    let owner = locked.peek(function).qps.owner(qp_slot(qpn))?;
    locked.pid(owner.process).map(Space::of)
}
