//! Switches: shared buffer, RED with ECN, PFC, and what they write into IFA probes.

use super::{Lab, Settings};
use crate::calendar::Due;
use crate::counts::Reason;
use crate::packet::{IN_HEADROOM, Kind, MARKED, Packet};
use crate::port::{CONTROL, Port};
use crate::trace::RecordKind;

impl Settings {
    /// Probability that a packet is marked when it joins a queue of this size.
    #[expect(clippy::cast_precision_loss, reason = "a probability")]
    pub(super) fn mark_probability(&self, queue: u64) -> f64 {
        if !self.has_ecn || queue <= self.kmin {
            0.0
        } else if queue >= self.kmax {
            1.0
        } else {
            self.pmax * (queue - self.kmin) as f64 / (self.kmax - self.kmin) as f64
        }
    }
}

/// A part of some bytes.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "at most 64 times a buffer"
)]
fn part(alpha: f64, bytes: u64) -> u64 {
    (alpha * bytes as f64) as u64
}

impl Lab {
    fn switch_of(&self, node: u32) -> usize {
        node as usize - self.hosts.len()
    }

    /// Bytes of one priority above which a port pauses its neighbour.
    fn pause_threshold(&self, switch: usize) -> u64 {
        let buffer = &self.buffers[switch];
        match self.settings.xoff {
            0 => part(self.settings.pfc_alpha, buffer.total - buffer.used),
            fixed => fixed,
        }
    }

    /// A packet has arrived through `ingress`: into the queue of the next port of its path, or dropped.
    pub(super) fn admit(&mut self, ingress: u32, packet: u32) {
        let entry = self.packets[packet];
        let size = u64::from(entry.wire);
        let flow = &self.flows[entry.flow as usize];
        let path = if entry.kind.is_reverse() {
            flow.reverse
        } else {
            flow.forward
        };
        let egress = self.paths[path as usize + usize::from(entry.hop)];
        if !self.ports[egress as usize].is_up {
            self.lose(packet, Reason::LinkDown);
            return;
        }
        let switch = self.switch_of(self.ports[egress as usize].node);
        let buffer = &self.buffers[switch];
        let fits = buffer.used + size <= buffer.total;
        let queued = self.ports[egress as usize].fifos[usize::from(entry.priority)].bytes;
        let mut flags = entry.flags & !IN_HEADROOM;
        if self.settings.is_lossless(entry.priority) {
            let threshold = self.pause_threshold(switch);
            let port = &mut self.ports[ingress as usize];
            let priority = usize::from(entry.priority);
            let is_pausing = port.pausing & (1 << priority) != 0;
            let is_above = port.shared[priority] + size > threshold;
            if is_above || !fits {
                if port.headroom[priority] + size > port.headroom_limit {
                    self.lose(packet, Reason::Headroom);
                    return;
                }
                port.headroom[priority] += size;
                flags |= IN_HEADROOM;
                if !is_pausing {
                    self.send_pause(ingress, entry.priority, true);
                }
            } else {
                port.shared[priority] += size;
            }
        } else if !fits
            || queued + size > part(self.settings.drop_alpha, buffer.total - buffer.used)
        {
            self.lose(packet, Reason::Buffer);
            return;
        }
        if flags & IN_HEADROOM == 0 {
            let buffer = &mut self.buffers[switch];
            buffer.used += size;
            buffer.peak = buffer.peak.max(buffer.used);
        }
        if entry.kind == Kind::Data && queued > self.settings.kmin {
            let probability = self.settings.mark_probability(queued);
            if self.random.f64() < probability {
                flags |= MARKED;
                self.counts.marked += 1;
            }
        }
        let entry = &mut self.packets[packet];
        entry.flags = flags;
        entry.ingress = ingress;
        let (priority, now) = (entry.priority, self.now_ps);
        self.ports[egress as usize].push(&mut self.packets, packet, priority, now);
        self.serve_port(egress);
    }

    /// Transmits the next packet of a switch's port, if it is free.
    pub(super) fn serve_port(&mut self, number: u32) {
        let now = self.now_ps;
        let port = &mut self.ports[number as usize];
        let Some(queue) = Port::highest(port.ready()) else {
            return;
        };
        if !port.is_up {
            return;
        }
        if now < port.busy_until_ps {
            if !port.is_woken {
                port.is_woken = true;
                self.calendar.push(port.busy_until_ps, Due::Port(number));
            }
            return;
        }
        let Some(packet) = port.pop(&self.packets, queue, now) else {
            return;
        };
        if queue != CONTROL {
            self.release(packet);
            if self.settings.has_telemetry {
                self.write_telemetry(number, packet);
            }
        }
        self.launch(number, packet);
        let port = &mut self.ports[number as usize];
        if port.ready() != 0 && !port.is_woken {
            port.is_woken = true;
            self.calendar.push(port.busy_until_ps, Due::Port(number));
        }
    }

    /// A packet leaves the buffer. Ends the pause of its ingress port if there is room again.
    pub(super) fn release(&mut self, packet: u32) {
        let Packet {
            ingress,
            priority,
            flags,
            wire,
            ..
        } = self.packets[packet];
        let (size, at) = (u64::from(wire), usize::from(priority));
        let switch = self.switch_of(self.ports[ingress as usize].node);
        let is_lossless = self.settings.is_lossless(priority);
        let port = &mut self.ports[ingress as usize];
        if flags & IN_HEADROOM != 0 {
            port.headroom[at] -= size;
        } else {
            self.buffers[switch].used -= size;
            if is_lossless {
                port.shared[at] -= size;
            }
        }
        if !is_lossless || self.ports[ingress as usize].pausing & (1 << priority) == 0 {
            return;
        }
        let limit = self
            .pause_threshold(switch)
            .saturating_sub(self.settings.xon);
        let port = &self.ports[ingress as usize];
        if port.headroom[at] == 0 && port.shared[at] <= limit {
            self.send_pause(ingress, priority, false);
        }
    }

    /// Sends a PFC frame through a port, or its end.
    fn send_pause(&mut self, port: u32, priority: u8, is_pause: bool) {
        let wire = self.settings.control;
        let frame = Packet::new(Kind::Pause, 0, u32::from(is_pause), wire, priority);
        // Without a packet, the state stays as it is, and the next arrival or departure tries again.
        let Some(frame) = self.create(frame) else {
            return;
        };
        let entry = &mut self.ports[port as usize];
        let kind = if is_pause {
            entry.pausing |= 1 << priority;
            self.counts.pauses += 1;
            RecordKind::Pause
        } else {
            entry.pausing &= !(1 << priority);
            RecordKind::Resume
        };
        self.trace
            .record(self.now_ps, kind, port, u64::from(priority));
        self.ports[port as usize].push(&mut self.packets, frame, CONTROL, self.now_ps);
        self.serve_port(port);
    }

    /// Averages the utilisation of a link (PINT, section 3.3.1: the queue and the packet, over the base round trip), and
    /// writes the largest of a path into probes.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "utilisations are limited to 2^15, queues to 32 bits"
    )]
    fn write_telemetry(&mut self, number: u32, packet: u32) {
        let window = self.settings.telemetry_ps;
        let port = &mut self.ports[number as usize];
        let entry = &mut self.packets[packet];
        let span = (self.now_ps - port.averaged_ps).max(1);
        port.averaged_ps = self.now_ps;
        let bytes_per_ps = port.mbps as f64 / 8e6;
        let share = span.min(window) as f64 / window as f64;
        let queue = port.bytes as f64 / (bytes_per_ps * window as f64);
        let flow = f64::from(entry.wire) / (bytes_per_ps * span as f64);
        port.utilisation += share * (queue + flow - port.utilisation);
        if entry.kind != Kind::Probe {
            return;
        }
        let seen = (port.utilisation.min(32_768.0) * 65_536.0) as u32;
        if seen >= entry.telemetry[0] {
            entry.telemetry = [
                seen,
                port.bytes.min(u64::from(u32::MAX)) as u32,
                entry.hop.into(),
            ];
        }
        entry.wire += self.settings.guesses.ifa_hop_bytes;
    }
}
