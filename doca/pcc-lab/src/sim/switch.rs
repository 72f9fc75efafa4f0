//! Switches: shared buffer, RED with ECN, PFC, and what they write into IFA probes.

use super::{Lab, Settings};
use crate::calendar::Due;
use crate::counts::Reason;
use crate::packet::{Kind, MARKED, Packet};
use crate::port::{CONTROL, Port};
use crate::trace::RecordKind;

impl Settings {
    /// Probability that a packet is marked when it joins a queue of this size.
    #[expect(clippy::cast_precision_loss, reason = "a probability")]
    pub(super) fn mark_probability(&self, queue: u64) -> f64 {
        if !self.switch.ecn || queue <= self.kmin() {
            self.switch.mark_all
        } else if queue >= self.kmax() {
            1.0
        } else {
            self.switch.pmax * (queue - self.kmin()) as f64 / (self.kmax() - self.kmin()) as f64
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
        match self.settings.xoff() {
            0 => part(self.settings.switch.pfc_alpha, buffer.total - buffer.used),
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
        let (mut flags, mut is_shared) = (entry.flags, true);
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
                is_shared = false;
                if !is_pausing {
                    self.send_pause(ingress, entry.priority, true);
                }
            } else {
                port.shared[priority] += size;
            }
        } else if !fits
            || queued + size > part(self.settings.switch.drop_alpha, buffer.total - buffer.used)
        {
            self.lose(packet, Reason::Buffer);
            return;
        }
        if is_shared {
            let buffer = &mut self.buffers[switch];
            buffer.used += size;
            buffer.peak = buffer.peak.max(buffer.used);
        }
        let switch = &self.settings.switch;
        if entry.kind == Kind::Data && (queued > self.settings.kmin() || switch.mark_all > 0.0) {
            let probability = self.settings.mark_probability(queued);
            if self.random.f64() < probability {
                flags |= MARKED;
                self.counts.other.marked += 1;
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
        if port.ready() == 0 || !port.is_up {
            return;
        }
        if now < port.busy_until_ps {
            if !port.is_woken {
                port.is_woken = true;
                self.calendar.push(port.busy_until_ps, Due::Port(number));
            }
            return;
        }
        let chosen = match &self.settings.switch.weights {
            Some(weights) => port.choose(&self.packets, weights),
            None => Port::highest(port.ready()),
        };
        let Some(queue) = chosen else {
            return;
        };
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
            wire,
            ..
        } = self.packets[packet];
        let (size, at) = (u64::from(wire), usize::from(priority));
        let switch = self.switch_of(self.ports[ingress as usize].node);
        let is_lossless = self.settings.is_lossless(priority);
        let port = &mut self.ports[ingress as usize];
        // The headroom gets its bytes back first, whichever packet leaves.
        let from_headroom = port.headroom[at].min(size);
        let from_shared = size - from_headroom;
        port.headroom[at] -= from_headroom;
        self.buffers[switch].used -= from_shared;
        if is_lossless {
            port.shared[at] -= from_shared;
        }
        if !is_lossless || self.ports[ingress as usize].pausing & (1 << priority) == 0 {
            return;
        }
        let limit = self
            .pause_threshold(switch)
            .saturating_sub(self.settings.xon());
        let port = &self.ports[ingress as usize];
        if port.headroom[at] == 0 && port.shared[at] <= limit {
            self.send_pause(ingress, priority, false);
        }
    }

    /// Sends a PFC frame through a port, or its end.
    fn send_pause(&mut self, port: u32, priority: u8, is_pause: bool) {
        let wire = self.settings.host.control_bytes;
        let frame = Packet::new(Kind::Pause, 0, u32::from(is_pause), wire, priority);
        let Some(frame) = self.create(frame) else {
            return;
        };
        let entry = &mut self.ports[port as usize];
        let kind = if is_pause {
            entry.pausing |= 1 << priority;
            self.counts.other.pauses += 1;
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
        let window = self.settings.telemetry_ps();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;

    /// Two hosts at a switch of 100 Gb/s whose port 2 of host 1 transmits nothing.
    fn lab(switch: &str) -> Lab {
        let text = format!(
            "duration_us = 10\n[topology]\nshape = 'star'\nhosts = 2\ngbps = 100\ndelay_ns = 0\n[switch]\n{switch}\n\
             [[traffic]]\nkind = 'pairs'\npairs = [[0, 1]]\nbytes = 1\n"
        );
        let mut lab = Lab::new(&Scenario::from_toml(&text).expect("a scenario")).expect("a lab");
        lab.ports[3].busy_until_ps = u64::MAX;
        lab.ports[3].is_woken = true;
        lab
    }

    fn arrive(lab: &mut Lab, wire: u16) {
        let mut packet = Packet::new(Kind::Data, 0, 0, wire, 3);
        packet.hop = 1;
        let packet = lab.create(packet).expect("below the limit");
        lab.admit(1, packet);
    }

    #[test]
    fn marks_have_the_stated_probability_between_kmin_and_kmax() {
        let mut lab = lab("kmin_kib = 100\nkmax_kib = 1100\npmax = 0.4");
        let settings = &lab.settings;
        let at = |kib: u64| settings.mark_probability(kib * 1024);
        assert_eq!([at(0), at(100), at(1_100), at(2_000)], [0.0, 0.0, 1.0, 1.0]);
        assert!((at(600) - 0.2).abs() < 1e-9 && (at(1_099) - 0.4).abs() < 1e-3);
        // A queue that grows by 64 bytes at a time, up to K_min, to K_max, and beyond.
        let (mut expect, mut variance, mut before) = (0.0, 0.0, 0);
        for number in 0..18_000_u64 {
            let queue = number * 64;
            let probability = lab.settings.mark_probability(queue);
            expect += probability;
            variance += probability * (1.0 - probability);
            arrive(&mut lab, 64);
            if queue <= 100 * 1024 {
                assert_eq!(lab.counts.other.marked, 0, "below K_min");
            }
            if queue < 1_100 * 1024 {
                before = lab.counts.other.marked;
            }
        }
        let beyond = 18_000 - 1_100 * 1024 / 64;
        assert_eq!(lab.counts.other.marked - before, beyond, "all above K_max");
        let difference = f64::from(u32::try_from(lab.counts.other.marked).expect("few")) - expect;
        assert!(
            difference.abs() < 4.0 * f64::sqrt(variance),
            "{difference} from {expect}"
        );
    }

    #[test]
    fn a_port_pauses_at_its_threshold_and_resumes_below_it() {
        let mut lab = lab("ecn = false\npfc_xoff_kib = 100\npfc_xon_kib = 10");
        for _ in 0..100 {
            arrive(&mut lab, 1024);
        }
        assert_eq!(
            (lab.counts.other.pauses, lab.ports[1].headroom[3]),
            (0, 0),
            "exactly full"
        );
        arrive(&mut lab, 1024);
        assert_eq!(
            (lab.counts.other.pauses, lab.ports[1].headroom[3]),
            (1, 1024)
        );
        assert_eq!(lab.ports[1].pausing, 1 << 3);
        let mut left = 0;
        while lab.ports[1].pausing != 0 {
            lab.ports[3].busy_until_ps = 0;
            lab.serve_port(3);
            left += 1;
        }
        // The first packet frees the headroom, and ten more bring the buffer 10 KiB below the threshold.
        assert_eq!((left, lab.ports[1].shared[3]), (11, 90 * 1024));
    }

    #[test]
    fn a_full_headroom_drops_and_a_lossy_queue_is_limited() {
        let mut lab = lab("pfc_xoff_kib = 100\npfc_xon_kib = 10\nheadroom_bytes = 2048");
        for _ in 0..103 {
            arrive(&mut lab, 1024);
        }
        assert_eq!(lab.counts.dropped_for(Reason::Headroom), 1);

        let mut lossy = self::lab("pfc_priorities = []\nbuffer_kib = 100");
        for _ in 0..100 {
            arrive(&mut lossy, 1024);
        }
        // With alpha 1, a queue fills half of the buffer: it grows while it is smaller than what is free.
        assert_eq!(lossy.counts.dropped_for(Reason::Buffer), 50);
        assert_eq!(lossy.ports[3].bytes, 50 * 1024);
    }

    #[test]
    fn probes_carry_the_utilisation_of_the_busiest_link() {
        let mut lab = lab("telemetry_window_ns = 1000");
        // 100 Gb/s for 1000 ns are 12500 bytes. A packet of 1250 bytes every 200 ns is half of the speed.
        for number in 0..200_u64 {
            let packet = Packet::new(Kind::Data, 0, 0, 1_250, 3);
            let packet = lab.create(packet).expect("free");
            lab.now_ps = number * 200_000;
            lab.write_telemetry(3, packet);
        }
        assert!((lab.ports[3].utilisation - 0.5).abs() < 0.01);
        let probe = lab
            .create(Packet::new(Kind::Probe, 0, 0, 128, 3))
            .expect("free");
        lab.now_ps += 200_000;
        lab.write_telemetry(3, probe);
        let entry = &lab.packets[probe];
        let expect = (0.8 * 0.5 + 0.2 * 128.0 / 2_500.0) * 65_536.0;
        assert!(
            (f64::from(entry.telemetry[0]) - expect).abs() < 400.0,
            "{:?}",
            entry.telemetry
        );
        assert_eq!(entry.wire, 128 + lab.settings.guesses.ifa_hop_bytes);
    }
}
