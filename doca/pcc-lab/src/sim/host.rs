//! The sender: limits each flow's rate, transmits what is due, and goes back when packets were lost.

use super::{Lab, State};
use crate::algorithm::{Detail, EventType, TX_PROBE_SENT};
use crate::calendar::Due;
use crate::counts::Reason;
use crate::pacer::OUT;
use crate::packet::{ACK_REQUEST, Kind, Packet};
use crate::trace::RecordKind;
use crate::units::{NEVER, PS_PER_NS, PS_PER_US, clock_ns, interval_ps};

impl Lab {
    pub(super) fn start(&mut self, number: u32) {
        let flow = &mut self.flows[number as usize];
        flow.state = State::Open;
        let (bytes, from, is_internal) = (flow.bytes, flow.from, flow.is_internal);
        self.trace
            .record(self.now_ps, RecordKind::Start, number, bytes);
        if is_internal {
            self.trace
                .record(self.now_ps, RecordKind::InternalSlot, number, 15);
        }
        self.pace(number);
        self.serve_host(from);
    }

    /// Enters a flow into its pacer, or moves it there.
    pub(super) fn pace(&mut self, number: u32) {
        let flow = &self.flows[number as usize];
        let (priority, due) = (flow.priority, flow.due_ps);
        let host = &mut self.hosts[flow.from as usize];
        host.pacers[usize::from(priority)].set(&mut self.places, number, due);
        host.paced |= 1 << priority;
    }

    fn unpace(&mut self, number: u32) {
        let flow = &self.flows[number as usize];
        let (priority, host) = (flow.priority, &mut self.hosts[flow.from as usize]);
        let pacer = &mut host.pacers[usize::from(priority)];
        pacer.remove(&mut self.places, number);
        if pacer.first().is_none() {
            host.paced &= !(1 << priority);
        }
    }

    /// Transmits the next packet that is due: the highest priority first, and packets without a rate before flows.
    pub(super) fn serve_host(&mut self, number: u32) {
        let now = self.now_ps;
        let host = &self.hosts[number as usize];
        let port_number = host.port;
        let port = &mut self.ports[port_number as usize];
        if !port.is_up {
            return;
        }
        if now < port.busy_until_ps {
            if !port.is_woken {
                port.is_woken = true;
                self.calendar
                    .push(port.busy_until_ps, Due::HostPort(number));
            }
            return;
        }
        let mut left = (port.waiting & 0xff | u16::from(host.paced)) & !u16::from(port.paused);
        let mut soonest = NEVER;
        while let Some(priority) = crate::port::Port::highest(left) {
            left &= !(1 << priority);
            if port.waiting & (1 << priority) != 0 {
                if let Some(packet) = port.pop(&self.packets, priority, now) {
                    let entry = &mut self.packets[packet];
                    match entry.kind {
                        Kind::Probe => entry.stamps[0] = clock_ns(now),
                        Kind::Response => entry.stamps[2] = clock_ns(now),
                        _ => {}
                    }
                    self.launch(port_number, packet);
                    self.wake_host(number);
                }
                return;
            }
            if let Some((due, flow)) = host.pacers[usize::from(priority)].first() {
                if due <= now {
                    self.send(flow, port_number);
                    self.wake_host(number);
                    return;
                }
                soonest = soonest.min(due);
            }
        }
        self.wake_at(number, soonest);
    }

    /// After a transmission: the next event of the host.
    fn wake_host(&mut self, number: u32) {
        let host = &self.hosts[number as usize];
        let port = &mut self.ports[host.port as usize];
        let free = port.busy_until_ps;
        let mut soonest = NEVER;
        if port.ready() == 0 {
            let mut left = u16::from(host.paced & !port.paused);
            while let Some(priority) = crate::port::Port::highest(left) {
                left &= !(1 << priority);
                if let Some((due, _)) = host.pacers[usize::from(priority)].first() {
                    soonest = soonest.min(due);
                }
            }
            if soonest > free {
                self.wake_at(number, soonest);
                return;
            }
        }
        if !port.is_woken {
            port.is_woken = true;
            self.calendar.push(free, Due::HostPort(number));
        }
    }

    fn wake_at(&mut self, number: u32, time_ps: u64) {
        let host = &mut self.hosts[number as usize];
        if time_ps < host.pace_ps {
            host.pace_ps = time_ps;
            self.calendar.push(time_ps, Due::Pace(number));
        }
    }

    /// Transmits the next data packet of a flow.
    fn send(&mut self, number: u32, port: u32) {
        let now = self.now_ps;
        let settings = &self.settings;
        let flow = &mut self.flows[number as usize];
        let sn = flow.next;
        let payload = flow.payload(sn, settings.host.mtu);
        let wire = payload + settings.host.header_bytes;
        let counted = if settings.guesses.rate_counts_headers {
            wire
        } else {
            payload
        };
        let interval = interval_ps(
            u64::from(counted),
            self.ports[port as usize].mbps,
            flow.rate,
        );
        let mut packet = Packet::new(Kind::Data, number, sn, wire, flow.priority);
        packet.payload = payload;
        let is_last = sn + 1 == flow.total;
        let is_slow = interval > settings.timeout_ps() / 4;
        if is_last || is_slow || flow.asks_ack || (sn + 1).is_multiple_of(settings.host.ack_every) {
            packet.flags = ACK_REQUEST;
        }
        let Some(packet) = self.create(packet) else {
            // All packets are in use: the flow tries again later. Its number is not used up.
            let flow = &mut self.flows[number as usize];
            flow.due_ps = now + PS_PER_US;
            self.pace(number);
            return;
        };
        let settings = &self.settings;
        let flow = &mut self.flows[number as usize];
        flow.asks_ack = false;
        flow.resent += u32::from(sn < flow.fresh);
        let is_first = flow.fresh == 0;
        flow.next = sn + 1;
        flow.fresh = flow.fresh.max(flow.next);
        // A late flow catches up, but no further than its burst.
        let burst = settings.guesses.burst_packets * interval;
        flow.anchor_ps = flow.due_ps.max(now.saturating_sub(burst));
        flow.due_ps = flow.anchor_ps + interval;
        flow.last_bytes = counted;
        if flow.deadline_ps == NEVER {
            flow.deadline_ps = now + settings.timeout_ps();
        }
        if !flow.has_timer {
            flow.has_timer = true;
            self.calendar.push(flow.deadline_ps, Due::Timeout(number));
        }
        self.launch(port, packet);
        if is_last {
            self.unpace(number);
        } else {
            self.pace(number);
        }
        let has_probe = self.flows[number as usize].wants_probe && self.probe(number, port);
        self.count_tx(number, u32::from(wire), has_probe, is_first || is_last);
    }

    /// Sends a probe behind the packet that has just left, unless one is on its way.
    fn probe(&mut self, number: u32, port: u32) -> bool {
        let guesses = &self.settings.guesses;
        let timeout = guesses.probe_timeout_us.saturating_mul(PS_PER_US);
        let flow = &mut self.flows[number as usize];
        flow.wants_probe = false;
        if flow.probe_ps != NEVER && self.now_ps - flow.probe_ps < timeout {
            self.counts.other.probes_refused += 1;
            return false;
        }
        flow.probe_sn = flow.probe_sn.wrapping_add(1);
        let packet = Packet::new(
            Kind::Probe,
            number,
            flow.probe_sn,
            guesses.probe_bytes,
            flow.probe_priority,
        );
        let Some(packet) = self.create(packet) else {
            return false;
        };
        let flow = &mut self.flows[number as usize];
        flow.probe_ps = self.now_ps;
        flow.probes += 1;
        let priority = flow.probe_priority;
        self.ports[port as usize].push(&mut self.packets, packet, priority, self.now_ps);
        true
    }

    /// TX events: for every few packets, for a packet with a probe, and for the first and the last one.
    fn count_tx(&mut self, number: u32, bytes: u32, has_probe: bool, is_edge: bool) {
        let now = clock_ns(self.now_ps);
        let flow = &mut self.flows[number as usize];
        if flow.tx_packets == 0 {
            flow.tx_first_ns = now;
        }
        flow.tx_packets += 1;
        flow.tx_bytes += bytes;
        if !has_probe && !is_edge && flow.tx_packets < self.settings.guesses.tx_event_packets {
            return;
        }
        let detail = Detail::Tx {
            first_timestamp: flow.tx_first_ns,
            sent_32bytes: u16::try_from(flow.tx_bytes / 32).unwrap_or(u16::MAX),
            sent_packets: flow.tx_packets,
        };
        flow.tx_packets = 0;
        flow.tx_bytes = 0;
        let sn = flow.next - 1;
        let flags = if has_probe { TX_PROBE_SENT } else { 0 };
        self.post(number, EventType::Tx, (0, flags), sn, detail);
    }

    /// A packet that the receiver, or the port itself, sends without a rate.
    pub(super) fn enqueue(&mut self, host: u32, packet: u32) {
        let port = self.hosts[host as usize].port;
        let entry = &mut self.ports[port as usize];
        if !entry.is_up {
            self.lose(packet, Reason::LinkDown);
            return;
        }
        let priority = self.packets[packet].priority;
        entry.push(&mut self.packets, packet, priority, self.now_ps);
        self.serve_host(host);
    }

    pub(super) fn inject(&mut self, packet: u32) {
        let entry = self.packets[packet];
        let flow = &self.flows[entry.flow as usize];
        let host = if entry.kind.is_reverse() {
            flow.to
        } else {
            flow.from
        };
        self.enqueue(host, packet);
    }

    /// A new rate moves the flow's next packet.
    pub(super) fn repace(&mut self, number: u32) {
        let flow = &mut self.flows[number as usize];
        if self.places[number as usize] == OUT {
            return;
        }
        let host = flow.from;
        let port = self.hosts[host as usize].port;
        let mbps = self.ports[port as usize].mbps;
        let bytes = u64::from(flow.last_bytes);
        flow.due_ps = flow.anchor_ps + interval_ps(bytes, mbps, flow.rate);
        self.pace(number);
        self.serve_host(host);
    }

    /// All packets before `sn` have arrived. True if the flow is still open.
    pub(super) fn acknowledge(&mut self, number: u32, sn: u32) -> bool {
        let timeout = self.settings.timeout_ps();
        let flow = &mut self.flows[number as usize];
        if flow.state != State::Open {
            return false;
        }
        if sn > flow.unacked {
            flow.unacked = sn;
            flow.retries = 0;
            flow.next = flow.next.max(sn);
            flow.deadline_ps = if flow.unacked < flow.next {
                self.now_ps + timeout
            } else {
                NEVER
            };
        }
        let is_done = flow.unacked == flow.total;
        if is_done {
            flow.state = State::Done;
            flow.deadline_ps = NEVER;
            self.open_flows -= 1;
        }
        if self.flows[number as usize].next == self.flows[number as usize].total {
            self.unpace(number);
        }
        !is_done
    }

    /// The receiver misses the packet `sn`: all from there are sent again.
    pub(super) fn go_back(&mut self, number: u32, sn: u32) {
        let flow = &mut self.flows[number as usize];
        if sn < flow.unacked || sn >= flow.next {
            return;
        }
        flow.next = sn;
        flow.asks_ack = true;
        self.counts.other.go_backs += 1;
        self.trace
            .record(self.now_ps, RecordKind::GoBack, number, u64::from(sn));
        self.resume(number);
    }

    /// Enters a flow into its pacer again.
    pub(super) fn resume(&mut self, number: u32) {
        let flow = &mut self.flows[number as usize];
        if self.places[number as usize] == OUT {
            flow.due_ps = flow.due_ps.max(self.now_ps);
        }
        let host = flow.from;
        self.pace(number);
        self.serve_host(host);
    }

    pub(super) fn timeout(&mut self, number: u32) {
        let now = self.now_ps;
        let flow = &mut self.flows[number as usize];
        flow.has_timer = false;
        if flow.state != State::Open || flow.deadline_ps == NEVER {
            return;
        }
        if now < flow.deadline_ps {
            flow.has_timer = true;
            self.calendar.push(flow.deadline_ps, Due::Timeout(number));
            return;
        }
        flow.deadline_ps = NEVER;
        flow.retries += 1;
        flow.timeouts += 1;
        self.counts.other.timeouts += 1;
        let unacked = flow.unacked;
        if flow.retries > self.settings.host.retries_max {
            flow.state = State::Failed;
            self.open_flows -= 1;
            self.unpace(number);
            self.trace
                .record(now, RecordKind::Fail, number, u64::from(unacked));
            return;
        }
        flow.next = unacked;
        flow.asks_ack = true;
        self.trace
            .record(now, RecordKind::Timeout, number, u64::from(unacked));
        self.resume(number);
    }

    /// Records flows without progress, and why.
    pub(super) fn watch(&mut self) {
        for number in (0..).take(self.flows.len()) {
            self.watch_flow(number);
        }
        if self.open_flows > 0 {
            self.calendar
                .push(self.now_ps + self.settings.watch_ps(), Due::Watch);
        }
    }

    fn watch_flow(&mut self, number: u32) {
        let now = self.now_ps;
        let flow = &mut self.flows[number as usize];
        if flow.state != State::Open || now - flow.start_ps < self.settings.watch_ps() {
            return;
        }
        let host = &self.hosts[flow.from as usize];
        if flow.handled > 0 && flow.probes == 0 && !flow.noted_no_probe {
            flow.noted_no_probe = true;
            self.trace
                .record(now, RecordKind::NoProbe, number, flow.handled);
        }
        if std::mem::replace(&mut flow.watched, flow.expected) != flow.expected {
            return;
        }
        let port = &self.ports[host.port as usize];
        let interval = interval_ps(u64::from(self.settings.host.mtu), port.mbps, flow.rate);
        let (kind, value) = if !port.is_up {
            (RecordKind::StarvedPortDown, flow.delivered)
        } else if port.paused & (1 << flow.priority) != 0 {
            (RecordKind::StarvedPaused, flow.delivered)
        } else if interval + PS_PER_NS > self.settings.watch_ps() {
            (RecordKind::StarvedRate, u64::from(flow.rate))
        } else if flow.retries > 0 || flow.next == flow.total {
            (RecordKind::StarvedLoss, flow.delivered)
        } else {
            (RecordKind::StarvedQueue, flow.delivered)
        };
        self.trace.record(now, kind, number, value);
    }
}
