//! The simulator: state of the network, and the loop over its events.

mod fault;
mod flow;
mod host;
mod measure;
mod messages;
mod posting;
mod reaction;
mod receiver;
mod setup;
mod switch;
mod waiting;

use flow::{Flow, State};
pub use messages::Arrival;
use messages::Messages;

use crate::algorithm::{Algorithm, Context};
use crate::calendar::{Calendar, Due};
use crate::counts::{Counts, Reason};
use crate::native;
use crate::pacer::Pacer;
use crate::packet::{Kind, Packet, Packets};
use crate::port::Port;
use crate::refusal::Refusal;
use crate::report::{ProcessFailure, Report, Sample};
use crate::scenario::{Fault, Guesses, Host, Loss, Scenario, Switch};
use crate::trace::{RecordKind, Trace};
use crate::units::{KIB, NEVER, PS_PER_NS, PS_PER_US, serialize_ps};
use fastrand::Rng;
use waiting::Waiting;

/// Flows whose rates are recorded with each sample.
const SAMPLED_FLOWS: usize = 128;

/// The properties of the scenario. Times and sizes of the simulator are ps and bytes.
#[derive(Debug)]
pub(crate) struct Settings {
    end_ps: u64,
    warm_ps: u64,
    sample_ps: u64,
    samples_max: usize,
    /// Mask of the lossless priorities.
    lossless: u8,
    has_telemetry: bool,
    switch: Switch,
    host: Host,
    guesses: Guesses,
}

/// What a host has besides its port.
#[derive(Debug)]
pub(crate) struct HostState {
    port: u32,
    pacers: [Pacer; 8],
    /// Priorities with a flow in their pacer.
    paced: u8,
    /// When the earliest event for a paced flow is due.
    pace_ps: u64,
    /// Processes with the algorithm, the active one, and the internal algorithm.
    processes: Vec<Box<dyn Algorithm>>,
    active: usize,
    internal: Box<dyn Algorithm>,
    takeover_ps: u64,
    /// Events on their way to the algorithm.
    queued: u32,
    /// When the threads have capacity again.
    handlers_free_ps: u64,
    /// Instructions of the last event.
    instructions: u32,
    received_bytes: u64,
}

/// The buffer of a switch.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    /// Bytes that are no headroom.
    total: u64,
    used: u64,
    pub(crate) peak: u64,
}

/// Where an algorithm runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Number of the host.
    pub host: u32,
    /// 0 is the first active process, others are standbys.
    pub process: u32,
}

/// A run: create it, [`run`](Self::run) it, read [`report`](Self::report) and [`trace`](Self::trace).
#[derive(Debug)]
pub struct Lab {
    pub(crate) settings: Settings,
    pub(crate) name: String,
    now_ps: u64,
    calendar: Calendar,
    pub(crate) packets: Packets,
    pub(crate) ports: Vec<Port>,
    hosts: Vec<HostState>,
    pub(crate) buffers: Vec<Buffer>,
    pub(crate) flows: Vec<Flow>,
    /// Place of each flow in its pacer.
    places: Vec<u32>,
    contexts: Vec<Context>,
    /// The paths of all flows, one after another.
    pub(crate) paths: Vec<u32>,
    waiting: Waiting,
    faults: Vec<Fault>,
    losses: Vec<Loss>,
    random: Rng,
    pub(crate) counts: Counts,
    pub(crate) trace: Trace,
    pub(crate) samples: Vec<Sample>,
    pub(crate) failures: Vec<ProcessFailure>,
    messages: Messages,
    open_flows: u32,
    pub(crate) measured_from_ps: u64,
}

impl Lab {
    /// A run with one of the lab's algorithms.
    ///
    /// # Errors
    /// The lab refuses the scenario.
    pub fn new(scenario: &Scenario) -> Result<Self, Refusal> {
        let choice = &scenario.algorithm;
        if choice.name == "none" {
            return Self::build(scenario, None);
        }
        let make = |_| {
            native::by_name(&choice.name, &choice.parameters)
                .unwrap_or_else(|| Box::new(native::Constant(crate::units::RATE_MAX)))
        };
        Self::build(scenario, Some(&make))
    }

    /// A run with another algorithm: `make` is called for each process of each host.
    ///
    /// # Errors
    /// The lab refuses the scenario.
    pub fn with_algorithm(
        scenario: &Scenario,
        make: &dyn Fn(Place) -> Box<dyn Algorithm>,
    ) -> Result<Self, Refusal> {
        Self::build(scenario, Some(make))
    }

    /// Runs to the end: the end of the scenario's time, or of all flows.
    pub fn run(&mut self) -> Report {
        self.run_until(self.settings.end_ps);
        self.report()
    }

    /// Runs up to this time. True if something is left to do before the end of the scenario.
    pub fn run_until(&mut self, time_ps: u64) -> bool {
        let limit = time_ps.min(self.settings.end_ps);
        while let Some(next) = self.calendar.next_ps() {
            if self.open_flows == 0 && self.packets.live() == 0 {
                return false;
            }
            if next > limit {
                self.now_ps = limit;
                return limit < self.settings.end_ps;
            }
            self.step();
        }
        false
    }

    /// The time of the run.
    #[must_use]
    pub fn now_ps(&self) -> u64 {
        self.now_ps
    }

    /// The trace so far.
    #[must_use]
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Ends the active process of a host, as a crash does.
    pub fn kill(&mut self, host: u32) {
        if (host as usize) < self.hosts.len() {
            self.fail_process(host, "killed");
        }
    }

    /// The active process of a host; None when the internal algorithm has taken over.
    pub fn active_process(&mut self, host: u32) -> Option<&mut dyn Algorithm> {
        let host = self.hosts.get_mut(host as usize)?;
        let active = host.active;
        host.processes
            .get_mut(active)
            .map(|process| &mut **process as _)
    }

    fn step(&mut self) {
        let Some((time, due, packed)) = self.calendar.pop() else {
            return;
        };
        self.now_ps = time;
        self.counts.calendar += 1;
        self.trace.mix(time << 20 ^ u64::from(packed));
        match due {
            Due::Arrive(packet) => self.arrive(packet),
            Due::Port(port) => {
                self.ports[port as usize].is_woken = false;
                self.serve_port(port);
            }
            Due::HostPort(host) => {
                let port = self.hosts[host as usize].port;
                self.ports[port as usize].is_woken = false;
                self.serve_host(host);
            }
            Due::Pace(host) => {
                let pace = &mut self.hosts[host as usize].pace_ps;
                if *pace == time {
                    *pace = NEVER;
                    self.serve_host(host);
                }
            }
            Due::Inject(packet) => self.inject(packet),
            Due::Handle(event) => self.handle(event),
            Due::Timeout(flow) => self.timeout(flow),
            Due::Start(flow) => self.start(flow),
            Due::Fault(fault) => self.fault(fault),
            Due::Sample => self.sample(),
            Due::Watch => self.watch(),
            Due::Warm => self.warm(),
        }
    }

    /// A port begins to transmit a packet.
    fn launch(&mut self, port_number: u32, packet: u32) {
        let now = self.now_ps;
        let port = &mut self.ports[port_number as usize];
        let entry = &mut self.packets[packet];
        entry.port = port_number;
        entry.downs = port.downs;
        port.busy_until_ps = now + serialize_ps(u64::from(entry.wire), port.mbps);
        port.sent_bytes += u64::from(entry.wire);
        self.counts.transmissions += 1;
        self.calendar
            .push(port.busy_until_ps + port.delay_ps, Due::Arrive(packet));
    }

    /// The whole packet has arrived at the next node.
    fn arrive(&mut self, packet: u32) {
        let entry = &mut self.packets[packet];
        entry.hop += 1;
        let (from, kind, downs) = (entry.port, entry.kind, entry.downs);
        let wire = u64::from(entry.wire);
        let port = &self.ports[from as usize];
        if !port.is_up || port.downs != downs {
            self.lose(packet, Reason::LinkDown);
            return;
        }
        let node = port.to_node;
        // The other direction of the same link.
        let back = from ^ 1;
        if kind == Kind::Pause {
            self.counts.delivered[kind as usize] += 1;
            let (priority, is_pause) = (entry.priority, entry.sn == 1);
            self.packets.remove(packet);
            self.pause(back, priority, is_pause);
        } else if let Some(host) = self.hosts.get_mut(node as usize) {
            host.received_bytes += wire;
            if !self.losses.is_empty() && self.is_lost(Some(kind)) {
                self.lose(packet, Reason::Injected);
                return;
            }
            self.counts.delivered[kind as usize] += 1;
            self.deliver(node, packet);
        } else {
            self.admit(back, packet);
        }
    }

    /// The neighbour pauses this port's priority, or ends the pause.
    fn pause(&mut self, port: u32, priority: u8, is_pause: bool) {
        let entry = &mut self.ports[port as usize];
        if is_pause {
            entry.paused |= 1 << priority;
            return;
        }
        entry.paused &= !(1 << priority);
        self.serve(port);
    }

    /// Transmits what waits at a port.
    fn serve(&mut self, port: u32) {
        let node = self.ports[port as usize].node;
        if (node as usize) < self.hosts.len() {
            self.serve_host(node);
        } else {
            self.serve_port(port);
        }
    }

    /// Creates a packet. None if the limit is reached; it counts as sent and dropped then.
    fn create(&mut self, packet: Packet) -> Option<u32> {
        self.counts.sent[packet.kind as usize] += 1;
        let created = self.packets.insert(packet);
        if created.is_none() {
            self.counts.drop(packet.kind, Reason::Limit);
            self.trace.record(
                self.now_ps,
                RecordKind::Drop,
                packet.flow,
                u64::from(packet.sn),
            );
        }
        created
    }

    /// A packet is lost. Lost pause frames have no flow.
    fn lose(&mut self, packet: u32, reason: Reason) {
        let entry = self.packets[packet];
        self.counts.drop(entry.kind, reason);
        if entry.kind != Kind::Pause {
            self.trace.record(
                self.now_ps,
                RecordKind::Drop,
                entry.flow,
                u64::from(entry.sn),
            );
        }
        self.packets.remove(packet);
    }

    /// Whether a packet of this kind, or an event, is to be lost now.
    fn is_lost(&mut self, kind: Option<Kind>) -> bool {
        let now = self.now_ps;
        let (losses, random) = (&self.losses, &mut self.random);
        losses.iter().any(|loss| {
            let span = loss.from_us.saturating_mul(1_000 * PS_PER_NS)
                ..loss.to_us.saturating_mul(1_000 * PS_PER_NS);
            loss.kind.kind() == kind && span.contains(&now) && random.f64() < loss.probability
        })
    }

    fn sample(&mut self) {
        if self.samples.len() >= self.settings.samples_max {
            return;
        }
        let switch_ports = self
            .ports
            .iter()
            .filter(|port| port.node as usize >= self.hosts.len());
        self.samples.push(Sample {
            time_ns: self.now_ps / PS_PER_NS,
            queue_bytes: switch_ports.map(|port| port.bytes).max().unwrap_or(0),
            rates: self
                .flows
                .iter()
                .take(SAMPLED_FLOWS)
                .map(|flow| flow.rate)
                .collect(),
            delivered: self
                .flows
                .iter()
                .take(SAMPLED_FLOWS)
                .map(|flow| flow.delivered)
                .collect(),
        });
        self.calendar
            .push(self.now_ps + self.settings.sample_ps, Due::Sample);
    }

    /// The measured part begins.
    fn warm(&mut self) {
        self.measured_from_ps = self.now_ps;
        for port in &mut self.ports {
            port.queue.restart(self.now_ps);
        }
        for flow in &mut self.flows {
            flow.delivered_before = flow.delivered;
        }
    }
}

impl Settings {
    fn timeout_ps(&self) -> u64 {
        self.host.timeout_us * PS_PER_US
    }

    fn watch_ps(&self) -> u64 {
        self.host.starvation_us * PS_PER_US
    }

    fn cnp_interval_ps(&self) -> u64 {
        self.host.cnp_interval_us * PS_PER_US
    }

    fn cnp_delay_ps(&self) -> u64 {
        self.guesses.cnp_delay_us * PS_PER_US
    }

    fn telemetry_ps(&self) -> u64 {
        self.switch.telemetry_window_ns * PS_PER_NS
    }

    fn kmin(&self) -> u64 {
        self.switch.kmin_kib * KIB
    }

    fn kmax(&self) -> u64 {
        self.switch.kmax_kib * KIB
    }

    fn xoff(&self) -> u64 {
        self.switch.pfc_xoff_kib * KIB
    }

    fn xon(&self) -> u64 {
        self.switch.pfc_xon_kib * KIB
    }

    fn is_lossless(&self, priority: u8) -> bool {
        self.lossless & (1 << priority) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_queue_of_the_simulator_grows_in_steady_state() {
        for algorithm in native::NAMES {
            let text = format!(
                "duration_us = 6000\nalgorithm.name = '{algorithm}'\nhost.probe = 'ifa2'\nlimits.trace = 0
topology = {{ shape = 'star', hosts = 9, gbps = 200, delay_ns = 1000 }}
traffic = [{{ kind = 'incast', to = 0, flows = 16 }}]"
            );
            let scenario = Scenario::from_toml(&text).expect("a scenario");
            let mut lab = Lab::new(&scenario).expect("a lab");
            let capacities = |lab: &Lab| {
                let (slots, free) = (lab.waiting.slots.capacity(), lab.waiting.free.capacity());
                (lab.calendar.capacity(), lab.packets.capacity(), slots, free)
            };
            assert!(lab.run_until(4_000_000_000));
            let (before, events) = (capacities(&lab), lab.counts.calendar);
            lab.run();
            assert_eq!(capacities(&lab), before, "{algorithm}");
            assert!(lab.counts.calendar > events + 10_000, "{algorithm}");
        }
    }
}
