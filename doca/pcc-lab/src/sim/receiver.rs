//! Arrivals at a host: the receiver (go-back-N, CNPs, responses to probes) and the sender's side of the answers.

use super::{Lab, State};
use crate::algorithm::{Detail, EventType, NACK_OUT_OF_SEQUENCE};
use crate::calendar::Due;
use crate::packet::{ACK_REQUEST, Kind, MARKED, Packet};
use crate::trace::RecordKind;
use crate::units::{NEVER, PS_PER_NS, clock_ns};

impl Lab {
    /// A packet has arrived at its host.
    pub(super) fn deliver(&mut self, host: u32, packet: u32) {
        let entry = self.packets[packet];
        let now_ns = clock_ns(self.now_ps);
        let coalesced = Detail::Ack {
            first_timestamp: now_ns,
            first_sn: entry.sn,
            coalesced: 1,
        };
        match entry.kind {
            Kind::Data => {
                self.packets.remove(packet);
                self.receive(host, &entry);
                return;
            }
            Kind::Probe => {
                self.respond(packet);
                return;
            }
            Kind::Ack => {
                if self.acknowledge(entry.flow, entry.sn) {
                    self.post(entry.flow, EventType::Ack, (0, 0), entry.sn, coalesced);
                }
            }
            Kind::Nack => {
                if self.acknowledge(entry.flow, entry.sn) {
                    self.go_back(entry.flow, entry.sn);
                    let subtype = NACK_OUT_OF_SEQUENCE;
                    self.post(
                        entry.flow,
                        EventType::Nack,
                        (subtype, 0),
                        entry.sn,
                        coalesced,
                    );
                }
            }
            Kind::Cnp => {
                self.flows[entry.flow as usize].cnps += 1;
                self.post(entry.flow, EventType::Cnp, (0, 0), entry.sn, coalesced);
            }
            Kind::Response => self.measure(&entry),
            Kind::Pause => {}
        }
        self.packets.remove(packet);
    }

    /// A data packet: in order, known, or beyond a gap.
    fn receive(&mut self, host: u32, packet: &Packet) {
        let ack_every = self.settings.host.ack_every;
        let flow = &mut self.flows[packet.flow as usize];
        flow.since_ack += 1;
        let mut reply = None;
        if packet.sn == flow.expected {
            self.counts.other.accepted += 1;
            flow.expected += 1;
            flow.delivered += u64::from(packet.payload);
            flow.has_nacked = false;
            if flow.has_messages {
                let expected = flow.expected;
                self.messages.arrived(self.now_ps, packet.flow, expected);
            } else if flow.expected == flow.total {
                flow.finish_ps = self.now_ps;
                let duration = (self.now_ps - flow.start_ps) / PS_PER_NS;
                self.trace
                    .record(self.now_ps, RecordKind::Finish, packet.flow, duration);
            }
        } else if packet.sn < flow.expected {
            self.counts.other.duplicates += 1;
        } else {
            self.counts.other.beyond_gap += 1;
            if !flow.has_nacked {
                flow.has_nacked = true;
                reply = Some(Kind::Nack);
            }
        }
        let asks = packet.flags & ACK_REQUEST != 0 || flow.since_ack >= ack_every;
        if reply.is_none() && packet.sn < flow.expected && asks {
            reply = Some(Kind::Ack);
        }
        let sn = flow.expected;
        if let Some(kind) = reply {
            flow.since_ack = 0;
            let priority = self.settings.host.ack_priority;
            let reply = Packet::new(
                kind,
                packet.flow,
                sn,
                self.settings.host.control_bytes,
                priority,
            );
            if let Some(reply) = self.create(reply) {
                self.enqueue(host, reply);
            }
        }
        if packet.flags & MARKED != 0 {
            self.notify(host, packet);
        }
    }

    /// A marked packet: a CNP, unless the flow had one shortly before.
    fn notify(&mut self, host: u32, packet: &Packet) {
        let flow = &mut self.flows[packet.flow as usize];
        if self.now_ps < flow.cnp_ps {
            return;
        }
        flow.cnp_ps = self.now_ps + self.settings.cnp_interval_ps();
        let (control, priority) = (
            self.settings.host.control_bytes,
            self.settings.host.cnp_priority,
        );
        let cnp = Packet::new(Kind::Cnp, packet.flow, packet.sn, control, priority);
        let Some(cnp) = self.create(cnp) else { return };
        match self.settings.cnp_delay_ps() {
            0 => self.enqueue(host, cnp),
            delay => self.calendar.push(self.now_ps + delay, Due::Inject(cnp)),
        }
    }

    /// A probe becomes its response.
    fn respond(&mut self, packet: u32) {
        let guesses = &self.settings.guesses;
        self.counts.sent[Kind::Response as usize] += 1;
        let entry = &mut self.packets[packet];
        entry.kind = Kind::Response;
        entry.hop = 0;
        entry.flags = 0;
        entry.priority = guesses.response_priority;
        entry.stamps[1] = clock_ns(self.now_ps);
        let time = self.now_ps + guesses.response_ns * PS_PER_NS;
        self.calendar.push(time, Due::Inject(packet));
    }

    /// The response to a probe.
    fn measure(&mut self, packet: &Packet) {
        let flow = &mut self.flows[packet.flow as usize];
        if flow.probe_ps == NEVER || flow.probe_sn != packet.sn {
            self.counts.other.stale_responses += 1;
            return;
        }
        flow.probe_ps = NEVER;
        if flow.state != State::Open {
            return;
        }
        let detail = Detail::Rtt {
            request_sent: packet.stamps[0],
            request_received: packet.stamps[1],
            response_sent: packet.stamps[2],
            raw: packet.telemetry,
        };
        self.post(packet.flow, EventType::Rtt, (0, 0), packet.sn, detail);
    }
}
