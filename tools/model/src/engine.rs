//! The discrete-event simulation of ranks, service processes, adapters and ports.
//!
//! A rank `g` sends block `i` to rank `g + i` (modulo all ranks), `i` from 1. This schedule, and everything else, looks
//! the same from each node. So the traffic of `ring` nodes can be simulated on fewer: with one simulated node, the block
//! that it sends to its neighbour at some moment is the block that its other neighbour sends to it at that moment. Each
//! event therefore names its node relative to the one that caused it, and [`Engine`] takes that modulo the simulated
//! nodes. With as many as the ring has, nothing is assumed to be alike; a test compares the two.
//!
//! The order of simultaneous events on one node does not depend on the node's number.

use super::config::{Config, SendOrder, Software};
use super::events::{Event, Events, Kind};
use super::fabric::Fabric;
use super::keys::{KeyWork, Step};
use std::collections::VecDeque;

/// Picoseconds in a nanosecond: at 400 Gb/s a byte takes 20.
const PS_PER_NS: f64 = 1000.0;

/// Result of one call.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Call {
    /// For each simulated rank, the time from entry to return, in picoseconds.
    pub(super) rank_ps: Vec<u64>,
    /// Return of the last rank, since the entry of the first.
    pub(super) span_ps: u64,
    /// Blocks read per simulated node.
    pub(super) blocks_read: Vec<u64>,
    /// Time that the busiest port was sending.
    pub(super) port_ps: u64,
    /// Time that the busiest SP spent on messages.
    pub(super) messages_ps: u64,
    /// Time that the busiest SP spent on key commands.
    pub(super) keys_ps: u64,
}

#[derive(Debug)]
struct Rank {
    entry_ps: u64,
    end_ps: u64,
    /// End of the call including deregistration.
    idle_ps: u64,
    arrived: bool,
    /// DPU_RTS messages that arrived before HOST_ARRIVE.
    early: Vec<u32>,
    announced: u32,
    sent: u32,
    received: u32,
}

#[derive(Debug)]
struct ServiceProcess {
    free_ps: u64,
    messages_ps: u64,
    keys_ps: u64,
    send_credits: u32,
    receive_credits: u32,
    /// Announced blocks that wait for a receive credit: local rank and step.
    ready: VecDeque<(u32, u32)>,
    /// Its ranks in order of arrival.
    arrived: Vec<u32>,
    /// The rank whose block it announces next.
    turn: usize,
}

#[derive(Debug)]
struct Node {
    ranks: Vec<Rank>,
    sps: Vec<ServiceProcess>,
    egress_free_ps: u64,
    ingress_free_ps: u64,
    local_free_ps: u64,
    egress_ps: u64,
    host_lanes_ps: Vec<u64>,
    dpu_lanes_ps: Vec<u64>,
    blocks_read: u64,
}

/// Times in picoseconds, computed once.
#[derive(Debug)]
struct Times {
    wire: u64,
    block: u64,
    arrive: u64,
    send: u64,
    receive: u64,
    read: u64,
    completion: u64,
    fetch: u64,
}

/// Simulated nodes and their pending events.
#[derive(Debug)]
pub(super) struct Engine<'a> {
    config: &'a Config,
    /// Nodes whose traffic is simulated.
    ring: u32,
    /// Blocks that each rank sends.
    blocks: u32,
    times: Times,
    nodes: Vec<Node>,
    events: Events,
    work: KeyWork,
    calls: u32,
    /// Carries the blocks between nodes. Without it, they have a fabric that never blocks.
    fabric: Option<Fabric<Event>>,
}

fn ps(ns: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "times are not negative and below an hour by the limits on configuration and table"
    )]
    let ps = (ns * PS_PER_NS).round() as u64;
    ps
}

fn index(number: u32) -> usize {
    // A usize has at least 32 bits on all supported machines.
    number as usize
}

impl<'a> Engine<'a> {
    /// `simulated` nodes that represent a ring of `ring`. `simulated` divides `ring`, and the configuration is
    /// valid.
    pub(super) fn new(config: &'a Config, ring: u32, simulated: u32) -> Self {
        assert!(
            simulated > 0 && ring.is_multiple_of(simulated) && ring <= config.nodes,
            "{simulated} nodes cannot stand for {ring} of {}",
            config.nodes
        );
        let assumptions = &config.assumptions;
        let lanes = index(assumptions.command_lanes.unwrap_or(0));
        let node = |_| Node {
            ranks: (0..config.ppn).map(|_| Rank::new()).collect(),
            sps: (0..config.sps)
                .map(|_| ServiceProcess {
                    free_ps: 0,
                    messages_ps: 0,
                    keys_ps: 0,
                    send_credits: config.send_credits,
                    receive_credits: config.receive_credits,
                    ready: VecDeque::new(),
                    arrived: Vec::new(),
                    turn: 0,
                })
                .collect(),
            egress_free_ps: 0,
            ingress_free_ps: 0,
            local_free_ps: 0,
            egress_ps: 0,
            host_lanes_ps: vec![0; lanes],
            dpu_lanes_ps: vec![0; lanes],
            blocks_read: 0,
        };
        let software = |ns: f64| ps(ns * assumptions.software_factor);
        let steps = config.steps();
        let on_the_wire = |bytes| ps(config.on_the_wire_ns(bytes));
        Self {
            config,
            ring,
            // RANKS_MAX keeps it within 25 bits.
            blocks: ring * config.ppn - 1,
            times: Times {
                wire: config.latency_ns * 1000,
                block: on_the_wire(config.block_bytes),
                arrive: on_the_wire(assumptions.arrive_bytes_per_rank * config.ranks()),
                send: software(steps.send),
                receive: software(steps.receive),
                read: software(steps.read),
                completion: software(steps.completion),
                // The adapter executes it, not a core, so the factor does not apply.
                fetch: Software::UCX.fetch_ns * 1000,
            },
            nodes: (0..simulated).map(node).collect(),
            events: Events::default(),
            work: KeyWork {
                export: Vec::new(),
                import: Vec::new(),
                unimport_before: Vec::new(),
                unimport_after: Vec::new(),
                release: Vec::new(),
            },
            calls: 0,
            fabric: None,
        }
    }

    /// The same with a network for blocks between nodes, all of which must be simulated.
    pub(super) fn on(mut self, fabric: Fabric<Event>) -> Self {
        let is_whole = index(self.ring) == self.nodes.len();
        assert!(is_whole, "each node has its own traffic");
        self.fabric = Some(fabric);
        self
    }

    /// What a call takes of the busiest SP and of a port, whatever the order of events: [`Call::messages_ps`] and
    /// [`Call::port_ps`].
    pub(super) fn messages_and_port_ps(&self) -> (u64, u64) {
        let Times {
            block,
            send,
            receive,
            read,
            completion,
            ..
        } = self.times;
        let ppn = u64::from(self.config.ppn);
        let of_sp = ppn.div_ceil(self.config.sps.into());
        let of_block = 2 * (send + receive) + read + completion;
        let of_rank = receive + send + u64::from(self.blocks) * of_block;
        let away = match self.config.assumptions.local_uses_port {
            true => self.blocks.into(),
            false => u64::from(self.ring - 1) * ppn,
        };
        (of_sp * of_rank, ppn * away * block)
    }

    /// Whether the next call begins as the first one did: nothing is busy when the last rank has returned.
    pub(super) fn is_idle(&self) -> bool {
        let ranks = self.nodes.iter().flat_map(|node| &node.ranks);
        let entry_ps = ranks.map(|rank| rank.idle_ps).max().unwrap_or(0);
        let is_free = |free_ps: u64| free_ps <= entry_ps;
        self.fabric.is_none()
            && self.nodes.iter().all(|node| {
                let ports = [
                    node.egress_free_ps,
                    node.ingress_free_ps,
                    node.local_free_ps,
                ];
                let lanes = node.host_lanes_ps.iter().chain(&node.dpu_lanes_ps);
                let sps = node.sps.iter().map(|sp| sp.free_ps);
                ports
                    .into_iter()
                    .chain(lanes.copied())
                    .chain(sps)
                    .all(is_free)
            })
    }

    /// One call of all ranks. It starts when all ranks have finished the previous one (the benchmark's
    /// barrier).
    pub(super) fn call(&mut self, work: KeyWork) -> Call {
        self.work = work;
        let entry_ps = self
            .nodes
            .iter()
            .flat_map(|node| &node.ranks)
            .map(|rank| rank.idle_ps)
            .max()
            .unwrap_or(0);
        for (at, node) in (0_u32..).zip(&mut self.nodes) {
            (node.egress_ps, node.blocks_read) = (0, 0);
            for sp in &mut node.sps {
                (sp.messages_ps, sp.keys_ps, sp.turn) = (0, 0, 0);
                sp.arrived.clear();
            }
            for (local, rank) in (0_u32..).zip(&mut node.ranks) {
                let late = skew_ps(self.config, self.calls, at, local);
                *rank = Rank::new();
                rank.entry_ps = entry_ps + late;
                self.events.push(Event {
                    at_ps: rank.entry_ps,
                    node: at,
                    kind: Kind::Host,
                    local,
                    step: 0,
                });
            }
        }
        self.calls += 1;
        while self.next() {}
        self.result(entry_ps)
    }

    /// Handles the next event, of the nodes or of the network. False: there is none.
    fn next(&mut self) -> bool {
        if let Some(fabric) = &mut self.fabric {
            let until = self.events.next_ps();
            if let Some((at_ps, event)) = fabric.advance(until) {
                self.events.push(Event { at_ps, ..event });
                return true;
            }
        }
        let event = self.events.pop();
        event.map(|event| self.handle(event)).is_some()
    }

    fn result(&self, entry_ps: u64) -> Call {
        let ranks = || self.nodes.iter().flat_map(|node| &node.ranks);
        let sps = || self.nodes.iter().flat_map(|node| &node.sps);
        debug_assert!(ranks().all(|r| r.sent == self.blocks && r.received == self.blocks));
        Call {
            rank_ps: ranks().map(|rank| rank.end_ps - rank.entry_ps).collect(),
            span_ps: ranks().map(|rank| rank.end_ps).max().unwrap_or(0) - entry_ps,
            blocks_read: self.nodes.iter().map(|node| node.blocks_read).collect(),
            port_ps: self.nodes.iter().map(|n| n.egress_ps).max().unwrap_or(0),
            messages_ps: sps().map(|sp| sp.messages_ps).max().unwrap_or(0),
            keys_ps: sps().map(|sp| sp.keys_ps).max().unwrap_or(0),
        }
    }

    fn handle(&mut self, event: Event) {
        match event.kind {
            Kind::Host => self.host(event),
            Kind::Arrive => self.arrive(event),
            Kind::Rts => self.rts(event),
            Kind::Request => self.request(event),
            Kind::Response => self.response(event),
            Kind::Read => self.read(event),
            Kind::Ack => self.ack(event),
            Kind::Done => self.done(event),
        }
    }

    /// The rank executes its next step of key work, sends HOST_ARRIVE, or returns.
    fn host(&mut self, event: Event) {
        let timed = self.config.assumptions.host_release_timed;
        let exports = self.work.export.len();
        let at = index(event.step);
        let node = &mut self.nodes[index(event.node)];
        let step = if at < exports {
            Some(self.work.export[at])
        } else if at == exports {
            // HOST_ARRIVE: from host memory to the DPU's, inside the adapter.
            let sent_ps = event.at_ps + self.times.send + self.times.fetch;
            node.local_free_ps = node.local_free_ps.max(sent_ps) + self.times.arrive;
            let at_ps = node.local_free_ps + self.times.wire;
            self.push(at_ps, event, Kind::Arrive, 0);
            return;
        } else {
            self.work.release.get(at - exports - 1).copied()
        };
        match step {
            Some(step) => {
                let at_ps = run(&mut node.host_lanes_ps, event.at_ps, step);
                self.push(at_ps, event, Kind::Host, event.step + 1);
            }
            None => {
                let rank = &mut node.ranks[index(event.local)];
                rank.idle_ps = event.at_ps;
                if timed {
                    rank.end_ps = event.at_ps;
                }
            }
        }
    }

    /// The SP imports the rank's keys, processes earlier announcements for it, and announces its blocks.
    fn arrive(&mut self, event: Event) {
        self.spend(event, self.times.receive);
        self.keys(event, Keys::Import);
        let node = &mut self.nodes[index(event.node)];
        let rank = &mut node.ranks[index(event.local)];
        rank.arrived = true;
        let early = std::mem::take(&mut rank.early);
        let sp = &mut node.sps[index(event.local % self.config.sps)];
        sp.arrived.push(event.local);
        sp.ready
            .extend(early.into_iter().map(|step| (event.local, step)));
        self.post_reads(event);
        self.announce(event);
    }

    fn rts(&mut self, event: Event) {
        self.spend(event, self.times.receive);
        let node = &mut self.nodes[index(event.node)];
        let rank = &mut node.ranks[index(event.local)];
        if rank.arrived {
            let sp = &mut node.sps[index(event.local % self.config.sps)];
            sp.ready.push_back((event.local, event.step));
            self.post_reads(event);
        } else {
            rank.early.push(event.step);
        }
    }

    fn request(&mut self, event: Event) {
        let (away, receiver) = self.receiver(event.node, event.local, event.step);
        let block = self.times.block;
        let node = &mut self.nodes[index(event.node)];
        let local = away == 0 && !self.config.assumptions.local_uses_port;
        if let (false, Some(fabric)) = (local, &mut self.fabric) {
            let (kind, step, sps) = (Kind::Read, event.step, self.config.sps);
            let arrives = Event {
                kind,
                step,
                ..receiver
            };
            let [from, to] = [event, receiver].map(|end| (end.node, end.local % sps));
            fabric.send(from, to, arrives);
            node.egress_ps += block;
            return;
        }
        let (at_ps, kind) = if local {
            node.local_free_ps = node.local_free_ps.max(event.at_ps) + block;
            (node.local_free_ps, Kind::Read)
        } else {
            let start_ps = node.egress_free_ps.max(event.at_ps);
            node.egress_free_ps = start_ps + block;
            node.egress_ps += block;
            (start_ps, Kind::Response)
        };
        self.events.push(Event {
            at_ps: at_ps + self.times.wire,
            kind,
            step: event.step,
            ..receiver
        });
    }

    fn response(&mut self, event: Event) {
        let node = &mut self.nodes[index(event.node)];
        // Cut-through: the last byte arrives one block time after the first byte, or after the preceding
        // blocks.
        node.ingress_free_ps = node.ingress_free_ps.max(event.at_ps) + self.times.block;
        let at_ps = node.ingress_free_ps;
        self.push(at_ps, event, Kind::Read, event.step);
    }

    fn read(&mut self, event: Event) {
        self.spend(event, self.times.completion);
        self.nodes[index(event.node)].blocks_read += 1;
        self.spend(event, self.times.send);
        let sp = self.sp(event);
        sp.receive_credits += 1;
        let at_ps = sp.free_ps + self.times.fetch + self.times.wire;
        let sender = self.sender(event.node, event.local, event.step);
        self.events.push(Event {
            at_ps,
            kind: Kind::Ack,
            step: event.step,
            ..sender
        });
        self.rank(event).received += 1;
        self.finish(event);
        self.post_reads(event);
    }

    fn ack(&mut self, event: Event) {
        self.spend(event, self.times.receive);
        self.sp(event).send_credits += 1;
        self.rank(event).sent += 1;
        self.finish(event);
        self.announce(event);
    }

    /// The rank learns that its call is complete.
    fn done(&mut self, event: Event) {
        let at_ps = event.at_ps + self.times.receive;
        if !self.config.assumptions.host_release_timed {
            self.rank(event).end_ps = at_ps;
        }
        // Behind the exports and HOST_ARRIVE.
        let next =
            u32::try_from(self.work.export.len() + 1).expect("a call has a handful of steps");
        self.push(at_ps, event, Kind::Host, next);
    }

    /// Informs the rank and releases its keys when all its blocks are sent and received.
    fn finish(&mut self, event: Event) {
        let blocks = self.blocks;
        let rank = self.rank(event);
        if rank.sent < blocks || rank.received < blocks {
            return;
        }
        self.keys(event, Keys::UnimportBefore);
        self.spend(event, self.times.send);
        let at_ps = self.sp(event).free_ps + self.times.fetch + self.times.wire;
        self.push(at_ps, event, Kind::Done, 0);
        self.keys(event, Keys::UnimportAfter);
    }

    /// Posts RDMA READs while there are announced blocks and receive credits.
    fn post_reads(&mut self, event: Event) {
        loop {
            let sp = self.sp(event);
            if sp.receive_credits == 0 {
                return;
            }
            let Some((local, step)) = sp.ready.pop_front() else {
                return;
            };
            sp.receive_credits -= 1;
            self.spend(event, self.times.read);
            let at_ps = self.sp(event).free_ps + self.times.fetch + self.times.wire;
            let sender = self.sender(event.node, local, step);
            self.events.push(Event {
                at_ps,
                kind: Kind::Request,
                step,
                ..sender
            });
        }
    }

    /// Sends DPU_RTS while there are blocks to announce and send credits.
    fn announce(&mut self, event: Event) {
        loop {
            let Some((local, step)) = self.next_block(event) else {
                return;
            };
            self.spend(event, self.times.send);
            let at_ps = self.sp(event).free_ps + self.times.fetch + self.times.wire;
            let (_, receiver) = self.receiver(event.node, local, step);
            self.events.push(Event {
                at_ps,
                kind: Kind::Rts,
                step,
                ..receiver
            });
        }
    }

    /// Takes a send credit and the next block, if both are available.
    fn next_block(&mut self, event: Event) -> Option<(u32, u32)> {
        let order = self.config.assumptions.send_order;
        let blocks = self.blocks;
        let node = &mut self.nodes[index(event.node)];
        let sp = &mut node.sps[index(event.local % self.config.sps)];
        if sp.send_credits == 0 {
            return None;
        }
        let ranks = sp.arrived.len();
        for offset in 0..ranks {
            let at = (sp.turn + offset) % ranks;
            let local = sp.arrived[at];
            let rank = &mut node.ranks[index(local)];
            if rank.announced < blocks {
                rank.announced += 1;
                sp.send_credits -= 1;
                sp.turn = match order {
                    SendOrder::RoundRobin => at + 1,
                    SendOrder::RankByRank => at,
                };
                return Some((local, rank.announced));
            }
        }
        None
    }

    /// The rank that receives block `step` from a node's rank: distance in nodes, and the event's place there.
    fn receiver(&self, node: u32, local: u32, step: u32) -> (u32, Event) {
        // Cannot overflow: both are below RANKS_MAX.
        self.place(node, local + step)
    }

    /// The rank that sends block `step` to a node's rank.
    fn sender(&self, node: u32, local: u32, step: u32) -> Event {
        self.place(node, self.ring * self.config.ppn + local - step)
            .1
    }

    /// The rank that is `number` behind the first of a node.
    fn place(&self, node: u32, number: u32) -> (u32, Event) {
        let away = number / self.config.ppn % self.ring;
        let simulated =
            u32::try_from(self.nodes.len()).expect("the configuration counts nodes in u32");
        let place = Event {
            at_ps: 0,
            node: (node + away) % simulated,
            kind: Kind::Host,
            local: number % self.config.ppn,
            step: 0,
        };
        (away, place)
    }

    fn rank(&mut self, event: Event) -> &mut Rank {
        &mut self.nodes[index(event.node)].ranks[index(event.local)]
    }

    fn sp(&mut self, event: Event) -> &mut ServiceProcess {
        let sp = index(event.local % self.config.sps);
        &mut self.nodes[index(event.node)].sps[sp]
    }

    /// The SP has one thread and processes items in order of arrival. The start and end of its work on an item
    /// are therefore known when the item arrives.
    fn spend(&mut self, event: Event, ps: u64) {
        let sp = self.sp(event);
        sp.free_ps = sp.free_ps.max(event.at_ps) + ps;
        sp.messages_ps += ps;
    }

    fn keys(&mut self, event: Event, which: Keys) {
        let sp = index(event.local % self.config.sps);
        let node = &mut self.nodes[index(event.node)];
        let sp = &mut node.sps[sp];
        let steps = match which {
            Keys::Import => &self.work.import,
            Keys::UnimportBefore => &self.work.unimport_before,
            Keys::UnimportAfter => &self.work.unimport_after,
        };
        for step in steps {
            let start_ps = sp.free_ps.max(event.at_ps);
            sp.free_ps = run(&mut node.dpu_lanes_ps, start_ps, *step);
            sp.keys_ps += sp.free_ps - start_ps;
        }
    }

    fn push(&mut self, at_ps: u64, cause: Event, kind: Kind, step: u32) {
        self.events.push(Event {
            at_ps,
            kind,
            step,
            ..cause
        });
    }
}

#[derive(Debug, Clone, Copy)]
enum Keys {
    Import,
    UnimportBefore,
    UnimportAfter,
}

impl Rank {
    fn new() -> Self {
        Self {
            entry_ps: 0,
            end_ps: 0,
            idle_ps: 0,
            arrived: false,
            early: Vec::new(),
            announced: 0,
            sent: 0,
            received: 0,
        }
    }
}

/// Completion time of a step issued at `from_ps`: at once, or when a lane of the function's firmware is free.
/// Steps get lanes in the order of issue.
fn run(lanes_ps: &mut [u64], from_ps: u64, step: Step) -> u64 {
    let time_ps = ps(step.ns);
    match lanes_ps.iter_mut().min() {
        Some(lane_ps) if step.command => {
            *lane_ps = from_ps.max(*lane_ps) + time_ps;
            *lane_ps
        }
        _ => from_ps + time_ps,
    }
}

/// Delay of this rank's entry into this call after the first rank.
fn skew_ps(config: &Config, call: u32, node: u32, local: u32) -> u64 {
    if config.skew_ns == 0 {
        return 0;
    }
    let mut state = config.seed;
    for word in [call, node, local] {
        state = scramble(state ^ u64::from(word));
    }
    state % (config.skew_ns * 1000 + 1)
}

/// SplitMix64's step (Steele, Lea, Flood, OOPSLA 2014): each input bit reaches each output bit.
fn scramble(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;
