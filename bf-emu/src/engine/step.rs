//! The next entry of a send queue: read it, wait for it, execute it, complete it.

use mlx5_prm::cqe::{Cqe, opcode as cqe_opcode};
use mlx5_prm::qp::{service, state};
use mlx5_prm::wqe::{Ctrl, OCTOWORD_BYTES, opcode};

use super::adversary;
use super::carried;
use super::complete::{complete_scattered, enter_error, fail, flush, owes_events};
use super::entry::{Fetched, executes, fetch};
use super::event::Event;
use super::execute::execute;
use super::fault::{self, Verdict};
use super::link;
use super::migration;
use super::notice;
use super::outcome::{Fault, LOCAL_OPERATION, LOST, NO_ANSWER, Outcome, Reason};
use super::overtake::{Behind, Passed};
use super::pace;
use super::peer::Poster;
use super::room;
use super::wire::requester::rnr_delay_ns;
use super::work::WORK_BYTES_MAX;
use crate::fabric::Locked;
use crate::fabric::counters::{PortCounter, Refusal};
use crate::fabric::journal::Take;
use crate::fabric::numbers::qp_slot;
use crate::fabric::objects::Qp;
use crate::fabric::trace::{ENTRY_BYTES, What};
use crate::sys;

/// Result of a step on a queue pair's next entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The queue has no posted entry.
    Idle,
    /// The entry was executed or failed. Hardware would need this time.
    Done {
        /// Nanoseconds.
        cost_ns: u64,
    },
    /// The entry's message is on the link.
    OnItsWay {
        /// Time of its arrival.
        until_ns: u64,
    },
    /// The other side is not ready. The step must be retried.
    Wait,
    /// Another process carries the posted entries to another machine.
    Carried,
}

/// Executes the next posted entry of queue pair `qpn`.
pub(crate) fn step(locked: &mut Locked<'_>, function: usize, qpn: u32) -> Step {
    if carried::hand_over(locked, function, qpn) {
        return Step::Carried;
    }
    let qp = match ready(locked, function, qpn) {
        Ok(qp) => qp,
        Err(step) => return step,
    };
    let mut bytes = [0; WORK_BYTES_MAX];
    let Some(fetched) = fetch(locked, (function, qpn), &qp, &mut bytes) else {
        return Step::Idle;
    };
    let Fetched { ctrl, sound, space } = fetched;
    let poster = Poster {
        function,
        qpn,
        qp,
        address: None,
        xrc_srq: None,
    };
    if sound && ctrl.is_signaled() && room::sender_waits(locked, &poster, space) {
        return Step::Wait;
    }
    if sound && let Some(until_ns) = link::arrives_at(locked, (function, qpn), &qp, &bytes) {
        return Step::OnItsWay { until_ns };
    }
    if sound && pace::holds(locked, &poster, &bytes) {
        return Step::Wait;
    }
    let verdict = fault::verdict(locked, (function, qpn), &qp, &bytes);
    trace_umr(locked, &poster, &ctrl, &bytes);
    if verdict == Verdict::QpError {
        enter_error(locked, function, qpn, Some(Event::QpFatal));
        return Step::Done { cost_ns: 0 };
    }
    let mut behind = Behind::of(&poster, &ctrl, space, execute);
    let result = judged(locked, &poster, (fetched, &mut bytes), verdict, &mut behind);
    if !is_next(locked, &poster) {
        // It was flushed while the lock was free.
        return Step::Done { cost_ns: 0 };
    }
    let passed = behind.passed();
    if let Err(Fault::NotYet(reason)) = result
        && passed.is_none()
        && (!give_up(locked, &poster, reason)
            || migration::instead(locked, (function, qpn), reason))
    {
        if let Reason::NotReady(_) = reason {
            let counters = locked.fabric().counters(function);
            counters.count_port(poster.qp.port(), PortCounter::RnrNakRetryErr);
            pace::not_ready(locked, &poster);
        }
        return Step::Wait;
    }
    let Some(Passed {
        poster: second,
        ctrl: second_ctrl,
        result: second_result,
    }) = passed
    else {
        let cost_ns = finish(locked, &poster, &ctrl, (result, verdict));
        return Step::Done { cost_ns };
    };
    // The completions are in order, so only the second one may be late.
    let mut cost_ns = finish(locked, &poster, &ctrl, (result, Verdict::Go));
    if is_next(locked, &second) {
        cost_ns += finish(locked, &second, &second_ctrl, (second_result, verdict));
    }
    Step::Done { cost_ns }
}

/// Takes an executed request off its queue and completes it. Returns the time that hardware would
/// need.
pub(super) fn finish(
    locked: &mut Locked<'_>,
    poster: &Poster,
    ctrl: &Ctrl,
    (result, verdict): (Result<Outcome, Fault>, Verdict),
) -> u64 {
    let result = match result {
        Ok(_) if is_acknowledged(poster, ctrl) && adversary::fails(poster.which()) => Err(LOST),
        result => result,
    };
    advance(locked, poster, ctrl.wqebbs());
    trace(locked, poster, ctrl, &result);
    match result {
        Ok(outcome) => {
            succeed(locked, poster, ctrl, (&outcome, verdict));
            outcome.cost_ns
        }
        Err(fault) => {
            fail(locked, poster.function, poster.qpn, ctrl, fault.error());
            0
        }
    }
}

/// Fails the next posted request of a queue pair whose peer cannot be reached.
pub(super) fn give_up_at_once(locked: &mut Locked<'_>, poster: &Poster) {
    let mut bytes = [0; WORK_BYTES_MAX];
    let next = fetch(
        locked,
        (poster.function, poster.qpn),
        &poster.qp,
        &mut bytes,
    );
    if let Some(fetched) = next.filter(|_| is_next(locked, poster)) {
        let result = (Err(NO_ANSWER), Verdict::Go);
        finish(locked, poster, &fetched.ctrl, result);
    }
}

/// True for a request that the other side acknowledges.
fn is_acknowledged(poster: &Poster, ctrl: &Ctrl) -> bool {
    !matches!(poster.qp.service, service::UD | service::UC)
        && !matches!(ctrl.opcode, opcode::NOP | opcode::UMR | opcode::MMO)
}

/// True if a copy of a queue pair stands at its next entry.
pub(super) fn is_next(locked: &Locked<'_>, poster: &Poster) -> bool {
    let qps = &locked.peek(poster.function).qps;
    let qp = qps.get(qp_slot(poster.qpn));
    qp.is_some_and(|qp| qp.sq_done == poster.qp.sq_done && executes(qp))
}

/// A copy of the queue pair, if its next entry may be executed now.
fn ready(locked: &mut Locked<'_>, function: usize, qpn: u32) -> Result<Qp, Step> {
    let qp = locked.peek(function).qps.get(qp_slot(qpn));
    let qp = qp.ok_or(Step::Idle)?.as_poster();
    match qp.state {
        state::RTS => {}
        // A request that has begun ends, before the queue is drained.
        state::SQD if qp.give_up_at_ns != 0 || qp.retry_at_ns != 0 => {}
        state::ERR => {
            flush(locked, function, qpn);
            return Err(Step::Idle);
        }
        state::SQD if fault::waits(locked, function, qpn) => return Err(Step::Wait),
        state::SQD => {
            notice::drained(locked, function, qpn);
            return Err(Step::Idle);
        }
        _ => return Err(Step::Idle),
    }
    if fault::waits(locked, function, qpn) {
        return Err(Step::Wait);
    }
    if qp.retry_at_ns != 0 && qp.retry_at_ns > sys::now_ns() {
        return Err(Step::Wait);
    }
    Ok(qp)
}

/// Executes an entry as the fault rules demand.
fn judged(
    locked: &mut Locked<'_>,
    poster: &Poster,
    (fetched, bytes): (Fetched, &mut [u8; WORK_BYTES_MAX]),
    verdict: Verdict,
    behind: &mut Behind,
) -> Result<Outcome, Fault> {
    // A completion holds data only if it is written, and written now.
    let limit = match verdict {
        Verdict::Go if fetched.ctrl.is_signaled() => poster.qp.cs_req,
        _ => 0,
    };
    match verdict {
        Verdict::Fail(syndrome) => Err(Fault::Error(syndrome, Refusal::Injected)),
        _ if !fetched.sound => Err(LOCAL_OPERATION),
        Verdict::Wrong(wrong) => {
            fault::distort(bytes, wrong);
            execute(locked, poster, bytes, limit, behind)
        }
        _ => execute(locked, poster, bytes, limit, behind),
    }
}

/// Completes an executed entry, at once or at the time of the fault rules.
fn succeed(
    locked: &mut Locked<'_>,
    poster: &Poster,
    ctrl: &Ctrl,
    (outcome, verdict): (&Outcome, Verdict),
) {
    let (function, qpn, qp) = (poster.function, poster.qpn, &poster.qp);
    let counters = locked.fabric().counters(function);
    counters.payload(outcome.bytes.into());
    pace::sent(locked, poster, ctrl, outcome.bytes);
    let held = match verdict {
        Verdict::Hold(until_ns) => Some((until_ns, false)),
        Verdict::HoldForAnswer(until_ns) => Some((until_ns, true)),
        _ => None,
    };
    if let Some(until) = held {
        fault::hold(locked, (function, qpn), ctrl, outcome.bytes, until);
    } else if ctrl.is_signaled() {
        let cqe = Cqe {
            opcode: cqe_opcode::REQ,
            user_index: qp.user_index,
            wqe_opcode: ctrl.opcode,
            qpn,
            wqe_counter: ctrl.index,
            byte_count: outcome.bytes,
            ..Cqe::default()
        };
        let completion = (cqe, &outcome.scattered);
        complete_scattered(locked, (function, qp.send_cq), completion, Take::default());
    }
    // On an unreliable connection the request succeeded although the queue pair, as its own peer,
    // refused the message.
    if qp.service == service::UC && owes_events(locked, function, qpn) {
        enter_error(locked, function, qpn, None);
    }
}

/// Records the bytes of a UMR request in the trace.
fn trace_umr(locked: &Locked<'_>, poster: &Poster, ctrl: &Ctrl, bytes: &[u8; WORK_BYTES_MAX]) {
    let trace = locked.fabric().trace();
    if !trace.is_on() || ctrl.opcode != opcode::UMR {
        return;
    }
    let used = usize::from(ctrl.ds) * OCTOWORD_BYTES;
    let parts = bytes.as_chunks().0;
    for (part, bytes) in (0..).zip(parts.iter().take(used.div_ceil(ENTRY_BYTES))) {
        let what = What::Entry {
            qpn: poster.qpn,
            index: ctrl.index,
            part,
            bytes: *bytes,
        };
        trace.write(poster.function, what);
    }
}

/// Records the result of a request, if a trace is on.
fn trace(locked: &Locked<'_>, poster: &Poster, ctrl: &Ctrl, result: &Result<Outcome, Fault>) {
    let trace = locked.fabric().trace();
    if !trace.is_on() {
        return;
    }
    let (syndrome, bytes) = match *result {
        Ok(outcome) => (0, u64::from(outcome.bytes)),
        Err(fault) => (fault.error().0, 0),
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

/// The value of `rnr_retry` for retries without end.
const RNR_RETRY_FOREVER: u8 = 7;

/// Longest wait for a peer that no longer exists. It is long enough that messages of other peers
/// arrive before the error, as on hardware. It is much shorter than the seconds of hardware's retry
/// timers, which only prolong a test.
const GONE_PATIENCE_NS: u64 = 50_000_000;

/// True if the queue pair has waited for the other side as long as its attributes say.
fn give_up(locked: &mut Locked<'_>, poster: &Poster, reason: Reason) -> bool {
    let now = sys::now_ns();
    let path = poster.qp.path;
    // 4.096 us * 2^timeout for each try. Code 0 means no limit.
    let retries = match path.timeout & 31 {
        0 => u64::MAX,
        code => (4096 << code) * (u64::from(path.retry_count) + 1),
    };
    let patience = match reason {
        Reason::NotReady(_) if path.rnr_retry >= RNR_RETRY_FOREVER => u64::MAX,
        Reason::NotReady(timer) => rnr_delay_ns(timer) * u64::from(path.rnr_retry),
        Reason::Silent => retries,
        Reason::Gone => retries.min(GONE_PATIENCE_NS),
        // The receiver's completion queue overruns if the wait takes too long.
        Reason::Full => u64::MAX,
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
    // The peer may disappear during the wait. The shorter limit then counts from that moment.
    if qp.give_up_at_ns == 0 || end < qp.give_up_at_ns {
        qp.give_up_at_ns = end;
    }
    now >= qp.give_up_at_ns
}
