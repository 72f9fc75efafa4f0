//! From a scenario to the state of a run.

use super::messages::Messages;
use super::waiting::Waiting;
use super::{Buffer, Flow, HostState, Lab, Place, Settings};
use crate::algorithm::{Algorithm, Context};
use crate::calendar::{Calendar, Due};
use crate::check::check;
use crate::counts::Counts;
use crate::native;
use crate::pacer::{OUT, Pacer};
use crate::packet::Packets;
use crate::port::Port;
use crate::refusal::{Refusal, limits, refuse};
use crate::routes::Routes;
use crate::scenario::{Network, Probe, Scenario};
use crate::trace::Trace;
use crate::units::{KIB, NEVER, PS_PER_NS, PS_PER_US, RATE_MAX, serialize_ps};
use fastrand::Rng;

impl Settings {
    fn new(scenario: &Scenario) -> Self {
        let us = |us: u64| us.saturating_mul(PS_PER_US);
        let (switch, host) = (scenario.switch.clone(), scenario.host.clone());
        Self {
            end_ps: us(scenario.duration_us),
            warm_ps: us(scenario.warmup_us),
            sample_ps: us(scenario.sample_us),
            samples_max: scenario.limits.samples as usize,
            lossless: switch
                .pfc_priorities
                .iter()
                .fold(0, |all, priority| all | 1 << priority),
            // The switches write into probes of both IFA forms.
            has_telemetry: host.probe != Probe::Ccmad,
            switch,
            host,
            guesses: scenario.guesses.clone(),
        }
    }
}

/// Makes the algorithm of a process.
type Make<'a> = &'a dyn Fn(Place) -> Box<dyn Algorithm>;

impl Lab {
    pub(super) fn build(scenario: &Scenario, make: Option<Make<'_>>) -> Result<Self, Refusal> {
        check(scenario)?;
        let network = Network::new(&scenario.topology)?;
        let settings = Settings::new(scenario);
        let mut random = Rng::with_seed(scenario.seed);
        let ports = ports(&network, scenario.switch.latency_ns * PS_PER_NS);
        let (flows, paths) = flows(scenario, &network, make.is_some(), &settings, &mut random)?;
        let mut hosts = Vec::new();
        for (host, node_ports) in (0..network.hosts).zip(network.ports()) {
            let processes = if make.is_some() {
                scenario.algorithm.processes
            } else {
                0
            };
            let place = |process| Place { host, process };
            hosts.push(HostState {
                port: node_ports[0],
                pacers: std::array::from_fn(|_| Pacer::default()),
                paced: 0,
                pace_ps: NEVER,
                processes: make
                    .into_iter()
                    .flat_map(|make| (0..processes).map(move |process| make(place(process))))
                    .collect(),
                active: 0,
                internal: internal(scenario),
                takeover_ps: 0,
                queued: 0,
                handlers_free_ps: 0,
                instructions: 0,
                received_bytes: 0,
            });
        }
        let first = hosts.iter().find_map(|host| host.processes.first());
        let mut lab = Self {
            name: first.map_or("none", |process| process.name()).to_owned(),
            now_ps: 0,
            calendar: Calendar::default(),
            packets: Packets::new(scenario.limits.packets),
            ports,
            hosts,
            buffers: Vec::new(),
            places: vec![OUT; flows.len()],
            contexts: vec![Context::default(); flows.len()],
            open_flows: u32::try_from(flows.len()).unwrap_or(u32::MAX),
            messages: Messages::new(&flows),
            flows,
            paths,
            waiting: Waiting::default(),
            faults: scenario.fault.clone(),
            losses: scenario.loss.clone(),
            random,
            counts: Counts::default(),
            trace: Trace::new(scenario.limits.trace),
            samples: Vec::new(),
            failures: Vec::new(),
            measured_from_ps: 0,
            settings,
        };
        lab.reserve_headroom(scenario, &network)?;
        lab.ideal_times();
        lab.first_events();
        Ok(lab)
    }

    /// Divides the buffer of each switch into headroom and the shared part.
    fn reserve_headroom(&mut self, scenario: &Scenario, network: &Network) -> Result<(), Refusal> {
        let settings = &self.settings;
        let probe = scenario.guesses.probe_bytes + 16 * scenario.guesses.ifa_hop_bytes;
        let largest = u64::from((settings.host.mtu + settings.host.header_bytes).max(probe));
        let frame = u64::from(settings.host.control_bytes);
        let priorities = u64::from(settings.lossless.count_ones());
        let total = scenario.switch.buffer_kib * KIB;
        for (node, ports) in (0..).zip(network.ports()) {
            if node < network.hosts {
                continue;
            }
            let mut reserved = 0;
            for port in ports {
                // Packets that arrive through a port come from the other direction of its link.
                let (out, back) = (&self.ports[port as usize], &self.ports[port as usize ^ 1]);
                let needed = back.headroom_needed(largest, frame, out.delay_ps);
                let limit = scenario.switch.headroom_bytes.unwrap_or(needed);
                self.ports[port as usize].headroom_limit = limit;
                reserved += limit * priorities;
            }
            let Some(shared) = total.checked_sub(reserved).filter(|shared| *shared > 0) else {
                let switch = network.name(node);
                return refuse(format!(
                    "switch {switch}: the headroom of its ports needs {reserved} bytes and its buffer has {total}; raise \
                     buffer_kib"
                ));
            };
            self.buffers.push(Buffer {
                total: shared,
                used: 0,
                peak: 0,
            });
        }
        Ok(())
    }

    /// The duration of each flow on an empty network at line rate: a line of stores and forwards.
    fn ideal_times(&mut self) {
        let (mtu, header) = (
            self.settings.host.mtu,
            u64::from(self.settings.host.header_bytes),
        );
        for flow in &mut self.flows {
            if flow.bytes == 0 {
                continue;
            }
            let path = &self.paths[flow.forward as usize..][..flow.links as usize];
            let full = u64::from(flow.payload(0, mtu)) + header;
            let last = u64::from(flow.last_payload) + header;
            let before = u64::from(flow.total - 1);
            // When the last but one packet, and the last one, have left each port.
            let (mut first_ps, mut slowest_ps, mut done_ps, mut last_ps) = (0, 0, 0, 0);
            for &port in path {
                let port = &self.ports[port as usize];
                let each = serialize_ps(full, port.mbps);
                first_ps += each;
                slowest_ps = each.max(slowest_ps);
                let free = if before == 0 {
                    0
                } else {
                    first_ps + (before - 1) * slowest_ps
                };
                last_ps = free.max(last_ps) + serialize_ps(last, port.mbps);
                done_ps = last_ps + port.delay_ps;
                // Both travel on to the next port.
                first_ps += port.delay_ps;
                last_ps = done_ps;
            }
            flow.ideal_ps = done_ps;
        }
    }

    fn first_events(&mut self) {
        for (number, flow) in (0..).zip(&self.flows) {
            if flow.has_messages {
                self.open_flows -= 1;
            } else if flow.start_ps < self.settings.end_ps {
                self.calendar.push(flow.start_ps, Due::Start(number));
            } else {
                self.open_flows -= 1;
            }
        }
        for (number, fault) in (0..).zip(&self.faults) {
            let time = fault.at_us.saturating_mul(PS_PER_US);
            if time < self.settings.end_ps {
                self.calendar.push(time, Due::Fault(number));
            }
        }
        if self.settings.warm_ps > 0 {
            self.calendar.push(self.settings.warm_ps, Due::Warm);
        }
        if self.settings.sample_ps > 0 {
            self.calendar.push(0, Due::Sample);
        }
        self.calendar.push(self.settings.watch_ps(), Due::Watch);
    }
}

fn internal(scenario: &Scenario) -> Box<dyn Algorithm> {
    native::by_name(&scenario.guesses.internal, &scenario.algorithm.parameters)
        .unwrap_or_else(|| Box::new(native::Constant(RATE_MAX)))
}

fn ports(network: &Network, latency_ps: u64) -> Vec<Port> {
    let mut ports = Vec::with_capacity(network.links.len() * 2);
    for link in &network.links {
        for (from, to) in [(link.a, link.b), (link.b, link.a)] {
            // The pipeline of a switch is part of the way to its queue.
            let pipeline = if to >= network.hosts { latency_ps } else { 0 };
            let is_switch = from >= network.hosts;
            ports.push(Port::new(
                (from, to),
                link.mbps,
                link.delay_ps + pipeline,
                is_switch,
            ));
        }
    }
    ports
}

/// The flows of all traffic, and their paths.
fn flows(
    scenario: &Scenario,
    network: &Network,
    is_controlled: bool,
    settings: &Settings,
    random: &mut Rng,
) -> Result<(Vec<Flow>, Vec<u32>), Refusal> {
    let speed = network.links[0].mbps;
    let mut specs = Vec::new();
    for traffic in &scenario.traffic {
        let place = (network.hosts, speed);
        let max = scenario.limits.flows;
        traffic.flows(
            &scenario.topology,
            place,
            settings.end_ps,
            random,
            &mut specs,
            max,
        )?;
    }
    let mut routes = Routes::new(network);
    let (mut flows, mut paths): (Vec<Flow>, Vec<u32>) = (Vec::new(), Vec::new());
    for (number, spec) in (0..).zip(&specs) {
        limits::at_most("bytes of a flow", spec.bytes, limits::BYTES_MAX)?;
        let is_limited = is_controlled || !spec.class.rdma_cm;
        let rate = if is_limited {
            settings.guesses.rate_initial
        } else {
            RATE_MAX
        };
        let mut flow = Flow::new(spec, settings.host.mtu, rate);
        let forward = routes.path(spec.from, spec.to, number)?;
        let reverse = routes.path(spec.to, spec.from, number)?;
        flow.links = u32::try_from(forward.len()).unwrap_or(0);
        flow.forward = u32::try_from(paths.len()).unwrap_or(u32::MAX);
        paths.extend(forward);
        flow.reverse = u32::try_from(paths.len()).unwrap_or(u32::MAX);
        paths.extend(reverse);
        flows.push(flow);
    }
    Ok((flows, paths))
}
