//! Doorbells: execute the requests posted on a send queue, or arm a completion queue.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use mlx5_prm::qp::service;

use super::adversary::Which;
use super::step::{self, Step};
use super::{complete, deferred, wake};
use crate::fabric::cards::Cards;
use crate::fabric::counters::Refusal;
use crate::fabric::numbers::qp_slot;
use crate::fabric::objects::Qp;
use crate::fabric::table::Owner;
use crate::fabric::trace::What;
use crate::fabric::{Fabric, Locked, NUMBER_BASE};
use crate::sys;
use crate::sys::tasks::has_ended;

/// Entries of one queue that are executed before the lock is offered to other processes.
const ENTRIES_PER_TURN: u32 = 16;

/// Place of a store to a doorbell page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// The page's number on the device.
    pub(crate) uar: u32,
    /// Register in the page, counted from 1. `None` if the stored value is unknown, so that the
    /// store counts for all queues of the page.
    pub(crate) register: Option<u8>,
}

impl Place {
    /// True if a queue pair may ring here. Hardware checks the page only. But a store through
    /// another queue pair's register can come between the stores of that queue pair's BlueFlame
    /// copy, so a queue pair must keep to the register of its first doorbell.
    fn is_of(self, qp: &Qp) -> bool {
        let register = self.register.unwrap_or(qp.bf_register);
        qp.uar == self.uar && (qp.bf_register == 0 || qp.bf_register == register)
    }
}

/// Handles the doorbell of send queue `qpn`, written by a user of `context`. Returns false, without
/// effect, if the context has no such queue. A doorbell on another page or register than the
/// queue's has no effect either.
pub(crate) fn ring_send(
    fabric: &Fabric,
    function: usize,
    (context, qpn): (u32, u32),
    place: Place,
) -> bool {
    let start_ns = now_if_it_counts(fabric);
    let mut locked = fabric.lock_function(function);
    reach(&mut locked, function, qpn);
    let Some(qp) = locked.peek(function).qps.owned(qp_slot(qpn), context) else {
        return false;
    };
    if !place.is_of(qp) {
        fabric.counters(function).refuse(Refusal::ForeignDoorbell);
        return true;
    }
    if let (0, Some(register)) = (qp.bf_register, place.register)
        && let Some(qp) = locked.function(function).qps.get_mut(qp_slot(qpn))
    {
        qp.bf_register = register;
    }
    fabric.counters(function).doorbell();
    fabric.trace().write(function, What::Doorbell { qpn });
    if deferred::postpone(&mut locked, function, qp_slot(qpn)) {
        drop(locked);
        wake::wake();
        return true;
    }
    let remote = remote_of(&locked, function, qpn);
    // An event wakes the peer without a yield. An RDMA read needs no action of the peer.
    let not_polled_for = || {
        let events = remote.map(|(remote, _)| fabric.counters(remote).events());
        (events, fabric.counters(function).reads())
    };
    let before = not_polled_for();
    let cost_ns = run_locked(&mut locked, function, qpn);
    let in_the_way = stands_in_the_way(&locked, function, qpn) && not_polled_for() == before;
    drop(locked);
    pay(start_ns, cost_ns);
    if in_the_way {
        sys::yield_now();
    }
    true
}

/// Executes the requests posted on queue pair `qpn`.
pub(crate) fn run(fabric: &Fabric, function: usize, qpn: u32) {
    let start_ns = now_if_it_counts(fabric);
    let mut locked = fabric.lock_function(function);
    let cost_ns = run_locked(&mut locked, function, qpn);
    drop(locked);
    pay(start_ns, cost_ns);
}

/// Takes the locks that the next request of a queue pair needs: those of the cards at both ends of a connection; all of
/// them for a request that may reach any card, and while rules of faults or congestion control apply. Values read before
/// may have changed.
fn reach(locked: &mut Locked<'_>, function: usize, qpn: u32) {
    // The queue pair may be connected to another card while no lock is held.
    for _ in 0..RECONNECTIONS_MAX {
        let wanted = needed(locked, function, qpn);
        if locked.extend(wanted) {
            return;
        }
    }
    locked.extend(locked.fabric().all_cards());
}

/// How often [`reach`] looks anew before it takes all locks.
const RECONNECTIONS_MAX: u32 = 4;

fn needed(locked: &Locked<'_>, function: usize, qpn: u32) -> Cards {
    let fabric = locked.fabric();
    let own = fabric.card_of(function);
    let Some(qp) = locked.peek(function).qps.get(qp_slot(qpn)) else {
        return own;
    };
    let is_connection = matches!(qp.service, service::RC | service::UC | service::XRC);
    if !is_connection || fabric.has_faults() || fabric.has_control() {
        return fabric.all_cards();
    }
    match qp.remote() {
        Some(remote) => own.and(fabric.card_of(remote.function)),
        None => own,
    }
}

fn now_if_it_counts(fabric: &Fabric) -> u64 {
    if fabric.profile().is_free() {
        0
    } else {
        sys::now_ns()
    }
}

/// Waits for the rest of the time that hardware would need.
fn pay(start_ns: u64, cost_ns: u64) {
    if cost_ns != 0 {
        sys::wait_until(start_ns.saturating_add(cost_ns));
    }
}

/// After this many unanswered doorbells the poster assumes that the peer does not wait for it.
const ANSWERED_WITHIN: u32 = 8;
/// Doorbell count of the last peer's function at this process's last look. `UNANSWERED` counts the
/// own doorbells since it changed. With several peers the counts are mixed, and the process yields
/// too often or too seldom.
static PEER_RANG: AtomicU64 = AtomicU64::new(0);
static UNANSWERED: AtomicU32 = AtomicU32::new(0);

/// The other side of a connection: its function and queue pair.
fn remote_of(locked: &Locked<'_>, function: usize, qpn: u32) -> Option<(usize, u32)> {
    let qp = locked.peek(function).qps.get(qp_slot(qpn))?;
    Some((qp.remote_function.checked_sub(1)?, qp.remote_qpn))
}

/// True if the peer of a connection last ran on this processor and alternates with the poster. The
/// poster then yields, because it would otherwise poll for an answer while the peer cannot run.
/// Records the poster's processor.
fn stands_in_the_way(locked: &Locked<'_>, function: usize, qpn: u32) -> bool {
    let cpu = sys::cpu();
    let remote = remote_of(locked, function, qpn).filter(|(remote, _)| locked.holds(*remote));
    let process = |owner: Option<Owner>| owner.and_then(|owner| owner.process.checked_sub(1));
    let owner_of = |function, qpn| process(locked.peek(function).qps.owner(qp_slot(qpn)));
    let own = owner_of(function, qpn);
    let peer = remote.and_then(|(remote, remote_qpn)| owner_of(remote, remote_qpn));
    let fabric = locked.fabric();
    if let Some(slot) = own {
        fabric.set_processor(slot, cpu);
    }
    let other = peer.filter(|peer| Some(*peer) != own);
    if !other.is_some_and(|slot| fabric.was_on(slot, cpu)) {
        return false;
    }
    let rang = remote.map_or(0, |(remote, _)| fabric.counters(remote).doorbells());
    if PEER_RANG.swap(rang, Ordering::Relaxed) == rang {
        UNANSWERED.fetch_add(1, Ordering::Relaxed) < ANSWERED_WITHIN
    } else {
        UNANSWERED.store(0, Ordering::Relaxed);
        true
    }
}

/// Like [`run`]. Returns the time that hardware would need, in nanoseconds.
fn run_locked(locked: &mut Locked<'_>, function: usize, qpn: u32) -> u64 {
    let thread = locked.thread();
    let slot = qp_slot(qpn);
    let qps = &mut locked.function(function).qps;
    let generation = qps.generation(slot);
    let Some(qp) = qps.get_mut(slot) else {
        return 0;
    };
    if qp.busy != 0 && is_thread(qp.busy) {
        // Another thread executes this queue, or this thread does so in a pause. It looks at `rang`
        // again.
        qp.rang = true;
        return 0;
    }
    qp.busy = thread;
    if qp.defer_until_ns != 0 {
        qp.defer_until_ns = 0;
    }
    let mut cost_ns = 0u64;
    let mut turn = 0;
    loop {
        reach(locked, function, qpn);
        if locked.peek(function).qps.generation(slot) != generation {
            return cost_ns;
        }
        let step = step::step(locked, function, qpn);
        let qps = &mut locked.function(function).qps;
        if qps.generation(slot) != generation {
            // The queue pair was destroyed during a pause.
            return cost_ns;
        }
        let Some(qp) = qps.get_mut(slot) else {
            return cost_ns;
        };
        match step {
            Step::Done { cost_ns: more } => {
                cost_ns = cost_ns.saturating_add(more);
                turn += 1;
                // A forked child cannot leave requests to the thread of the queue's owner, so it executes them.
                let which = Which {
                    function,
                    queue: qpn,
                    index: qp.sq_done,
                };
                if deferred::leaves_the_rest(which) && deferred::postpone(locked, function, slot) {
                    if let Some(qp) = locked.function(function).qps.get_mut(slot) {
                        qp.busy = 0;
                        qp.rang = false;
                    }
                    return cost_ns;
                }
                if turn == ENTRIES_PER_TURN {
                    turn = 0;
                    locked.pause();
                }
            }
            // `busy` reserves the queue pair for this thread during the pause. Other threads set
            // `rang`.
            Step::OnItsWay { until_ns } => locked.pause_until(until_ns),
            Step::Idle | Step::Carried if qp.rang => qp.rang = false,
            Step::Carried => {
                qp.busy = 0;
                return cost_ns;
            }
            Step::Idle => {
                qp.busy = 0;
                if qp.left_at_ns != 0 {
                    qp.left_at_ns = 0;
                }
                return cost_ns;
            }
            Step::Wait => {
                qp.busy = 0;
                qp.rang = false;
                qp.pending = true;
                // The thread of the queue's owner retries, and the poster may be a forked child of it.
                if let Some(owner) = locked.peek(function).qps.owner(slot) {
                    wake::wake_of(locked.fabric(), owner.process);
                }
                return cost_ns;
            }
        }
    }
}

/// False if the thread no longer exists. This happens if a child of a fork is killed while it
/// executes a queue of its parent. Called only if two threads meet at a queue.
fn is_thread(thread: u32) -> bool {
    i32::try_from(thread).is_ok_and(|thread| !has_ended(thread, None))
}

/// Handles the doorbell of completion queue `cqn`, written by a user of `context`: the queue is
/// armed. `command` is the arm word, if the store contains it. The doorbell record contains it too.
pub(crate) fn ring_arm(
    fabric: &Fabric,
    function: usize,
    (context, cqn): (u32, u32),
    command: Option<u32>,
) {
    let Some(slot) = cqn.checked_sub(NUMBER_BASE) else {
        return;
    };
    let locked = fabric.lock_function(function);
    let owned = locked.peek(function).cqs.owned(slot, context).is_some();
    drop(locked);
    if owned {
        arm(fabric, function, slot, command);
    }
}

pub(super) fn arm(fabric: &Fabric, function: usize, slot: u32, command: Option<u32>) {
    let mut locked = fabric.lock_function(function);
    fabric.counters(function).arm();
    complete::arm(&mut locked, function, slot, command);
}
