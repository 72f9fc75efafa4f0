//! The thread of polling mode: it watches the doorbell records of the process's queues. Stores to
//! doorbell pages are then ordinary stores.
//!
//! Posting costs the same as on hardware, and work executes beside the poster. On machines with few
//! cores the trap is faster, because no other thread has to be scheduled. A library writes the
//! doorbell record before the doorbell. The record alone therefore shows the posted work (PRM,
//! "Posting a Work Request to Work Queue") and, for a completion queue, the arming.
//!
//! The thread spins while work exists and for a short time after. Then it sleeps, for increasing
//! times up to [`SLEEP_NS_MAX`], which bounds the delay of the first doorbell after a pause. While
//! other threads compete for the processor, it sleeps between all rounds.

use std::sync::atomic::{AtomicBool, Ordering};

use super::doorbell;
use super::polling::{self, NOT_ARMED, NOT_RUNG, SECOND_WORD, word};
use crate::bits::low16;
use crate::fabric::trace::What;
use crate::fabric::{Fabric, QPN_BASE};
use crate::sys;

/// The thread spins for this time after the last work.
const LINGER_NS: u64 = 100_000;
/// A round of this length was preempted. Spinning then takes processor time from the threads that
/// post.
const CROWDED_AFTER_NS: u64 = 300_000;
/// The thread does not spin for this time after a preempted round.
const CROWDED_NS: u64 = 50_000_000;
/// Shortest sleep. The system's timer slack triples it.
const SLEEP_NS_MIN: u64 = 10_000;
/// Longest sleep.
pub const SLEEP_NS_MAX: u64 = 1_000_000;
/// A sleep lasts this fraction of the time without work.
const SLEEP_PART: u64 = 16;

static STARTED: AtomicBool = AtomicBool::new(false);

/// The child of a fork has no polling thread.
pub(crate) fn after_fork_in_child() {
    STARTED.store(false, Ordering::Release);
}

/// Starts the thread, if this process polls and has no such thread. Not for signal handlers.
///
/// # Errors
/// The operating system cannot create a thread.
pub(crate) fn start(fabric: &'static Fabric, process: u32) -> std::io::Result<()> {
    if !polling::is_on() || STARTED.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    // All signals are blocked in this thread, so none of the application's handlers runs in it.
    let held = sys::SignalsHeld::new();
    let thread = std::thread::Builder::new()
        .name("bf-emu-poll".to_owned())
        .stack_size(128 * 1024)
        .spawn(move || run(Watch::new(fabric, process)));
    drop(held);
    thread.map(drop).inspect_err(|_| {
        STARTED.store(false, Ordering::Release);
    })
}

fn run(mut watch: Watch) {
    sys::sleep_precisely();
    let mut pace = Pace::default();
    let mut now_ns = sys::now_ns();
    loop {
        let worked = watch.round();
        let before_ns = now_ns;
        now_ns = sys::now_ns();
        match pace.next(before_ns, now_ns, worked) {
            0 => sys::yield_now(),
            sleep_ns => {
                sys::sleep(sleep_ns);
                // The length of the sleep must not count as preemption.
                now_ns = sys::now_ns();
            }
        }
    }
}

/// Decides between spinning and sleeping.
#[derive(Debug, Default)]
struct Pace {
    worked_at_ns: u64,
    crowded_until_ns: u64,
}

impl Pace {
    /// Length of the sleep after a round from `before_ns` to `now_ns`; 0 for none.
    fn next(&mut self, before_ns: u64, now_ns: u64, worked: bool) -> u64 {
        if worked {
            self.worked_at_ns = now_ns;
            return 0;
        }
        // An empty round takes one or two microseconds. This round was preempted.
        if now_ns.saturating_sub(before_ns) > CROWDED_AFTER_NS {
            self.crowded_until_ns = now_ns.saturating_add(CROWDED_NS);
        }
        let idle_ns = now_ns.saturating_sub(self.worked_at_ns);
        if idle_ns < LINGER_NS && now_ns >= self.crowded_until_ns {
            return 0;
        }
        (idle_ns / SLEEP_PART).clamp(SLEEP_NS_MIN, SLEEP_NS_MAX)
    }
}

/// A watched send queue.
#[derive(Clone, Copy, Debug)]
struct Send {
    function: usize,
    qpn: u32,
    generation: u32,
    record_at: u64,
    seen: u16,
}

/// A watched completion queue.
#[derive(Clone, Copy, Debug)]
struct Arm {
    function: usize,
    slot: u32,
    generation: u32,
    record_at: u64,
    seen: u32,
}

/// The queues of this process.
struct Watch {
    fabric: &'static Fabric,
    process: u32,
    changes: Option<u32>,
    sends: Vec<Send>,
    arms: Vec<Arm>,
}

impl Watch {
    fn new(fabric: &'static Fabric, process: u32) -> Self {
        Self {
            fabric,
            process,
            changes: None,
            sends: Vec::new(),
            arms: Vec::new(),
        }
    }

    /// Looks at every queue once and executes posted work. Returns true if there was work.
    fn round(&mut self) -> bool {
        let changes = polling::changes();
        if self.changes != Some(changes) {
            self.changes = Some(changes);
            self.look_anew();
        }
        let mut worked = false;
        for send in &mut self.sends {
            let Some(record) = word(send.record_at) else {
                continue;
            };
            let [high @ .., a, b] = record.to_be_bytes();
            let posted = u16::from_be_bytes([a, b]);
            if posted == send.seen || u16::from_be_bytes(high) == NOT_RUNG {
                continue;
            }
            send.seen = posted;
            worked = true;
            self.fabric.counters(send.function).doorbell();
            let what = What::Doorbell { qpn: send.qpn };
            self.fabric.trace().write(send.function, what);
            doorbell::run(self.fabric, send.function, send.qpn);
        }
        for arm in &mut self.arms {
            match word(arm.record_at) {
                Some(record) if record != arm.seen && record != NOT_ARMED => {
                    arm.seen = record;
                    worked = true;
                    doorbell::arm(self.fabric, arm.function, arm.slot, Some(record));
                }
                _ => {}
            }
        }
        worked
    }

    /// Builds the list of queues anew. The last seen values of remaining queues are kept.
    fn look_anew(&mut self) {
        let (sends, arms) = (
            std::mem::take(&mut self.sends),
            std::mem::take(&mut self.arms),
        );
        for function in 0..self.fabric.identities().len() {
            let locked = self.fabric.lock_function(function);
            let tables = locked.peek(function);
            for (slot, owner, qp) in tables.qps.iter() {
                if owner.process != self.process || qp.sq.count == 0 {
                    continue;
                }
                let Some(generation) = tables.qps.generation(slot) else {
                    continue;
                };
                let mut send = Send {
                    function,
                    qpn: slot + QPN_BASE,
                    generation,
                    record_at: qp.dbrec.wrapping_add(SECOND_WORD),
                    seen: low16(qp.sq_done),
                };
                let same = |old: &&Send| {
                    (old.function, old.qpn, old.generation)
                        == (send.function, send.qpn, send.generation)
                };
                // A reset queue starts at zero, and so does its last seen value.
                if let Some(old) = sends.iter().find(same)
                    && qp.sq_done != 0
                {
                    send.seen = old.seen;
                }
                self.sends.push(send);
            }
            for (slot, owner, cq) in tables.cqs.iter() {
                let wants_events = cq.channel != 0 || cq.devx.channel != 0;
                if owner.process != self.process || !wants_events {
                    continue;
                }
                let Some(generation) = tables.cqs.generation(slot) else {
                    continue;
                };
                let old = arms.iter().find(|old| {
                    (old.function, old.slot, old.generation) == (function, slot, generation)
                });
                self.arms.push(Arm {
                    function,
                    slot,
                    generation,
                    record_at: cq.dbrec.wrapping_add(SECOND_WORD),
                    seen: old.map_or(NOT_ARMED, |old| old.seen),
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Length of each sleep in rounds of one microsecond without work.
    fn sleeps(pace: &mut Pace, from_ns: u64, rounds: usize) -> Vec<u64> {
        let mut now_ns = from_ns;
        let mut sleeps = Vec::new();
        for _ in 0..rounds {
            let sleep_ns = pace.next(now_ns, now_ns + 1000, false);
            now_ns += 1000 + sleep_ns;
            sleeps.push(sleep_ns);
        }
        sleeps
    }

    #[test]
    fn it_spins_for_a_moment_and_then_sleeps_longer_and_longer() {
        let mut pace = Pace::default();
        assert_eq!(pace.next(0, 1_000_000, true), 0);
        let sleeps = sleeps(&mut pace, 1_000_000, 400);
        assert!(sleeps[..99].iter().all(|sleep| *sleep == 0), "{sleeps:?}");
        assert!(sleeps[100] >= SLEEP_NS_MIN);
        assert!(sleeps.is_sorted());
        assert_eq!(sleeps.last(), Some(&SLEEP_NS_MAX));
    }

    #[test]
    fn where_others_want_the_processor_it_does_not_spin() {
        let mut pace = Pace::default();
        let start_ns = 1_000_000_000;
        assert_eq!(pace.next(start_ns, start_ns, true), 0);
        // A round that was preempted for three milliseconds.
        let late_ns = start_ns + 3_000_000;
        assert!(pace.next(start_ns, late_ns, false) >= SLEEP_NS_MIN);
        // The round found work, but the thread does not spin after it.
        assert_eq!(pace.next(late_ns, late_ns + 1000, true), 0);
        let next_ns = pace.next(late_ns + 1000, late_ns + 2000, false);
        assert_eq!(next_ns, SLEEP_NS_MIN);
        // The thread spins again after the end of the period.
        let over_ns = late_ns + CROWDED_NS + 1;
        assert_eq!(pace.next(over_ns, over_ns, true), 0);
        assert_eq!(pace.next(over_ns, over_ns + 1000, false), 0);
    }
}
