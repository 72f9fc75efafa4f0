//! The reaction point: events wait for a thread, the algorithm decides, and the limiter obeys.

use super::Lab;
use super::waiting::merge;
use crate::algorithm::{Decision, Detail, Event, EventType, Port, ProbePriority};
use crate::calendar::Due;
use crate::packet::NONE;
use crate::report::ProcessFailure;
use crate::trace::RecordKind;
use crate::units::{NEVER, PS_PER_NS, PS_PER_US, RATE_MAX, clock_ns};

/// The slot of the user's algorithm, and that of the internal one.
const SLOT: u8 = 0;
const SLOT_INTERNAL: u8 = 15;

/// Failures of processes whose reasons a report has.
const FAILURES_MAX: usize = 64;

impl Lab {
    /// Puts an event into the queue of the flow's host. `codes`: subtype and flags.
    pub(super) fn post(
        &mut self,
        number: u32,
        kind: EventType,
        codes: (u8, u8),
        sn: u32,
        detail: Detail,
    ) {
        let flow = &self.flows[number as usize];
        let host = &self.hosts[flow.from as usize];
        let algorithm = match (flow.is_internal, host.processes.get(host.active)) {
            (false, Some(process)) => process,
            (false, None) if host.processes.is_empty() => return,
            _ => &host.internal,
        };
        if algorithm.disabled_events() & kind.mask() != 0 {
            return;
        }
        if !self.losses.is_empty() && self.is_lost(None) {
            self.lose_event(number, kind);
            return;
        }
        let event = Event {
            kind,
            subtype: codes.0,
            flags: codes.1,
            flow_tag: number,
            sn,
            timestamp: clock_ns(self.now_ps),
            detail,
        };
        let waiting = self.flows[number as usize].queued[kind.index()];
        if waiting != NONE {
            let most = self.settings.guesses.coalesced_max;
            if merge(&mut self.waiting.slots[waiting as usize], &event, most) {
                self.counts.merged[kind.index()] += 1;
                return;
            }
        }
        if self.queue_is_full(self.flows[number as usize].from) {
            self.lose_event(number, kind);
            return;
        }
        let index = self.waiting.insert(event);
        self.flows[number as usize].queued[kind.index()] = index;
        let guesses = &self.settings.guesses;
        let host = &mut self.hosts[self.flows[number as usize].from as usize];
        host.queued += 1;
        self.counts.other.events_peak = self.counts.other.events_peak.max(host.queued);
        let counted = u64::from(host.instructions) * PS_PER_US;
        let service = match counted.checked_div(guesses.handler_mips) {
            Some(counted) if counted > 0 => counted,
            _ => guesses.handler_ns * PS_PER_NS,
        };
        let arrival = self.now_ps + guesses.event_latency_ns * PS_PER_NS;
        let begin = arrival.max(host.handlers_free_ps);
        host.handlers_free_ps = begin + service / guesses.handler_threads;
        self.calendar.push(begin + service, Due::Handle(index));
    }

    /// Drops as RED does: never below the lower limit, always at the upper one.
    fn queue_is_full(&mut self, host: u32) -> bool {
        let guesses = &self.settings.guesses;
        let queued = self.hosts[host as usize].queued;
        let (low, high) = (guesses.event_queue_min, guesses.event_queue_max);
        if queued >= high {
            return true;
        }
        if queued < low {
            return false;
        }
        let place = f64::from(queued - low) / f64::from(high - low).max(1.0);
        self.random.f64() < guesses.event_drop * place
    }

    fn lose_event(&mut self, number: u32, kind: EventType) {
        self.counts.lost[kind.index()] += 1;
        self.trace
            .record(self.now_ps, RecordKind::EventLost, number, kind as u64);
    }

    /// A thread handles an event.
    pub(super) fn handle(&mut self, index: u32) {
        let event = self.waiting.slots[index as usize];
        self.waiting.free.push(index);
        let number = event.flow_tag;
        let flow = &mut self.flows[number as usize];
        let waiting = &mut flow.queued[event.kind.index()];
        if *waiting == index {
            *waiting = NONE;
        }
        let host_number = flow.from;
        let host = &mut self.hosts[host_number as usize];
        host.queued -= 1;
        let is_internal = flow.is_internal || host.active >= host.processes.len();
        if !is_internal && self.now_ps < host.takeover_ps {
            self.lose_event(number, event.kind);
            return;
        }
        let overload = host.queued >= self.settings.guesses.overload_events;
        self.counts.other.overloaded += u64::from(overload);
        let port = Port {
            slot: if is_internal { SLOT_INTERNAL } else { SLOT },
            overload,
            mbps: self.ports[host.port as usize].mbps,
            mtu: u32::from(self.settings.host.mtu),
            time_ps: self.now_ps,
            sent_bytes: self.ports[host.port as usize].sent_bytes,
            received_bytes: host.received_bytes,
        };
        let algorithm = match is_internal {
            true => &mut host.internal,
            false => &mut host.processes[host.active],
        };
        match algorithm.handle(&mut self.contexts[number as usize], &event, &port) {
            Ok(decision) => {
                self.counts.handled[event.kind.index()] += 1;
                self.counts.instructions += u64::from(decision.instructions);
                if !is_internal {
                    host.instructions = decision.instructions;
                }
                flow.handled += 1;
                self.obey(number, decision);
            }
            Err(failure) => {
                self.lose_event(number, event.kind);
                self.fail_process(host_number, &failure.0);
            }
        }
    }

    /// Sets the limiter, and notes what it does not accept.
    fn obey(&mut self, number: u32, decision: Decision) {
        let guesses = &self.settings.guesses;
        let flow = &mut self.flows[number as usize];
        flow.wants_probe |= decision.probe;
        match decision.probe_priority {
            Some(ProbePriority::Own(priority)) => flow.probe_priority = priority & 7,
            Some(ProbePriority::Flow) => flow.probe_priority = flow.priority,
            None => {}
        }
        let Some(asked) = decision.rate else { return };
        let floor = guesses.rate_floor;
        if asked == 0 {
            flow.rate_zero += 1;
            if flow.rate_zero == 1 {
                self.trace
                    .record(self.now_ps, RecordKind::RateZero, number, u64::from(floor));
            }
        } else if asked > RATE_MAX {
            flow.rate_above += 1;
            if flow.rate_above == 1 {
                let kind = RecordKind::RateAboveMaximum;
                self.trace
                    .record(self.now_ps, kind, number, u64::from(asked));
            }
        }
        let limited = asked.min(RATE_MAX);
        let rate = (limited - limited % guesses.rate_granularity).max(floor);
        if rate == flow.rate {
            return;
        }
        flow.rate = rate;
        self.trace
            .record(self.now_ps, RecordKind::Rate, number, u64::from(rate));
        self.repace(number);
    }

    /// The active process ends, and a standby takes over, or the internal algorithm. Contexts begin anew.
    pub(super) fn fail_process(&mut self, number: u32, reason: &str) {
        let now = self.now_ps;
        let host = &mut self.hosts[number as usize];
        if host.active >= host.processes.len() {
            return;
        }
        if self.failures.len() < FAILURES_MAX {
            self.failures.push(ProcessFailure {
                time_ns: now / PS_PER_NS,
                host: number,
                process: u32::try_from(host.active).unwrap_or(u32::MAX),
                reason: reason.to_owned(),
            });
        }
        self.counts.other.failures += 1;
        self.trace
            .record(now, RecordKind::ProcessFailed, number, host.active as u64);
        host.active += 1;
        host.instructions = 0;
        host.takeover_ps = now + self.settings.guesses.takeover_us.saturating_mul(PS_PER_US);
        let (kind, value) = match host.processes.get(host.active) {
            Some(_) => (RecordKind::ProcessActive, host.active as u64),
            None => (RecordKind::InternalActive, u64::from(SLOT_INTERNAL)),
        };
        self.trace.record(now, kind, number, value);
        for (flow, context) in self.flows.iter_mut().zip(&mut self.contexts) {
            if flow.from == number && !flow.is_internal {
                context.fill(0);
                // The new process knows nothing of the old one's probe.
                flow.probe_ps = NEVER;
                flow.wants_probe = false;
            }
        }
    }
}
