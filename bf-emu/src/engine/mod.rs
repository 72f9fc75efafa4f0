//! The adapter: what happens when a doorbell rings.
//!
//! There is no engine of its own. A doorbell is a store into a page that may not be written; the
//! thread that made the store is led here by the signal, carries out what it posted, moves the data
//! between the processes, writes the completions, and goes on behind its store. Nobody else has to
//! be scheduled for that, which on few cores is the difference between microseconds and
//! milliseconds.
//!
//! Everything here runs in a signal handler: no allocation, no lock but the device's, no panic.

pub(crate) mod access;
pub(crate) mod complete;
pub(crate) mod event;
pub(crate) mod execute;
pub(crate) mod list;
pub(crate) mod receive;
pub(crate) mod tick;
pub(crate) mod umr;
pub(crate) mod work;

use crate::fabric::objects::Armed;
use crate::fabric::{Fabric, Locked, NUMBER_BASE};
use crate::sys;

use complete::qp_slot;
use execute::Step;

/// Entries of one queue that are carried out before others may use the device.
const ENTRIES_PER_TURN: u32 = 16;

/// The doorbell of a send queue rang.
pub(crate) fn ring_send(fabric: &Fabric, function: usize, qpn: u32) {
    fabric.counters(function).doorbell();
    run(fabric, function, qpn);
}

/// Carries out what is posted on queue pair `qpn`.
pub(crate) fn run(fabric: &Fabric, function: usize, qpn: u32) {
    let start_ns = if fabric.profile().is_free() { 0 } else { sys::now_ns() };
    let mut locked = fabric.lock();
    let cost_ns = run_locked(&mut locked, function, qpn);
    drop(locked);
    if cost_ns != 0 {
        sys::wait_until(start_ns.saturating_add(cost_ns));
    }
}

/// As [`run`]; returns the time that hardware would have taken, in nanoseconds.
fn run_locked(locked: &mut Locked<'_>, function: usize, qpn: u32) -> u64 {
    let thread = sys::thread_id();
    let slot = qp_slot(qpn);
    let qps = &mut locked.function(function).qps;
    let generation = qps.generation(slot);
    let Some(qp) = qps.get_mut(slot) else { return 0 };
    if qp.busy != 0 {
        // Another thread is at it, or this one in the middle of a pause, and looks again.
        qp.rang = true;
        return 0;
    }
    qp.busy = thread;
    let mut cost_ns = 0u64;
    let mut turn = 0;
    loop {
        let step = execute::step(locked, function, qpn);
        let qps = &mut locked.function(function).qps;
        if qps.generation(slot) != generation {
            // Destroyed in a pause.
            return cost_ns;
        }
        let Some(qp) = qps.get_mut(slot) else { return cost_ns };
        match step {
            Step::Done { cost_ns: more } => {
                cost_ns = cost_ns.saturating_add(more);
                turn += 1;
                if turn == ENTRIES_PER_TURN {
                    turn = 0;
                    locked.pause();
                }
            }
            Step::Idle if qp.rang => qp.rang = false,
            Step::Idle => {
                qp.busy = 0;
                return cost_ns;
            }
            Step::Wait => {
                qp.busy = 0;
                qp.rang = false;
                qp.pending = true;
                tick::wake();
                return cost_ns;
            }
        }
    }
}

/// The doorbell of a completion queue rang: its owner wants to be told.
pub(crate) fn ring_arm(fabric: &Fabric, function: usize, cqn: u32, armed: Armed) {
    fabric.counters(function).arm();
    let mut locked = fabric.lock();
    if let Some(slot) = cqn.checked_sub(NUMBER_BASE) {
        complete::arm(&mut locked, function, slot, armed);
    }
}
