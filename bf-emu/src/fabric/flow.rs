//! Data of programmable congestion control: flows of queue pairs, events on their way to the program, ports.
//!
//! Time passes for congestion control [`SLOWDOWN`] times more slowly than on the machine: a port of 400 Gb/s carries 4 Gb/s,
//! which any machine can move. Times of the machine are called `_ns` here, and times of the device `_device_ns`.

use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::model::names::countable;
use crate::model::topology::FUNCTIONS_MAX;

/// Speed of a port in Gb/s, as in sysfs.
pub const GBPS: u64 = 400;
/// Time of the machine by that of the device.
pub const SLOWDOWN: u64 = 100;
/// Rate of a flow that has the whole port.
pub const RATE_MAX: u32 = 1 << 20;
/// Rate of a flow before the first decision of the program (DOCA PCC: the largest one, shifted by 8).
const RATE_FIRST: u32 = RATE_MAX >> 8;
/// Lowest rate. A program that asks for rate 0 gets this one, so that no flow stands still.
const RATE_FLOOR: u32 = 64;
/// Events without a request for a probe after which a report says so.
const PROBE_PATIENCE: u64 = 100;
/// Time by which a late flow may catch up.
const BURST_NS: u64 = 20_000_000;
/// Events that wait for the program.
pub(super) const EVENTS_MAX: usize = 1_024;
/// Words of a flow's context.
pub const CONTEXT_WORDS: usize = pcc_dev::layout::CONTEXT_WORDS;

countable! {
    /// Diagnostic counters of a card, with the names that DOCA's script `pcc_counters.sh` prints.
    #[expect(missing_docs, reason = "the names say it all")]
    pub enum Diagnostic {
        Cnp = "PCC_CNP_COUNT",
        ProbeRequest = "MAD_RTT_PERF_CONT_REQ",
        ProbeResponse = "MAD_RTT_PERF_CONT_RES",
        DropTx = "SX_EVENT_WRED_DROP",
        DropProbe = "SX_RTT_EVENT_WRED_DROP",
        DropAck = "ACK_EVENT_WRED_DROP",
        DropNack = "NACK_EVENT_WRED_DROP",
        DropCnp = "CNP_EVENT_WRED_DROP",
        DropRtt = "RTT_EVENT_WRED_DROP",
        HandledTx = "HANDLED_SXW_EVENTS",
        HandledReceived = "HANDLED_RXT_EVENTS",
        DropPort0Request = "DROP_RTT_PORT0_REQ",
        DropPort1Request = "DROP_RTT_PORT1_REQ",
        DropPort0Response = "DROP_RTT_PORT0_RES",
        DropPort1Response = "DROP_RTT_PORT1_RES",
        Port0Request = "RTT_GEN_PORT0_REQ",
        Port1Request = "RTT_GEN_PORT1_REQ",
        Port0Response = "RTT_GEN_PORT0_RES",
        Port1Response = "RTT_GEN_PORT1_RES",
    }
}

/// The firmware's numbers of these counters, in the same order.
pub const DIAGNOSTIC_IDS: [u16; Diagnostic::ALL.len()] = [
    0x0a07, 0x100b, 0x100c, 0x200d, 0x200e, 0x200f, 0x2010, 0x2011, 0x2012, 0x2013, 0x2014, 0x2c11,
    0x2c12, 0x2c13, 0x2c14, 0x2c15, 0x2c16, 0x2c17, 0x2c18,
];

/// Kinds of events. The numbers are those of the library.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A congestion notification arrived.
    Cnp = pcc_dev::layout::event_type::CNP,
    /// A message was sent.
    #[default]
    Tx = pcc_dev::layout::event_type::TX,
    /// It was acknowledged.
    Ack = pcc_dev::layout::event_type::ACK,
    /// The receiver was not ready.
    Nack = pcc_dev::layout::event_type::NACK,
    /// The response to a probe arrived.
    Rtt = pcc_dev::layout::event_type::RTT,
}

/// An event of a flow.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Event {
    /// Time at which the program gets it.
    pub at_ns: u64,
    /// The sender.
    pub function: u32,
    /// Slot of its queue pair.
    pub slot: u32,
    /// Generation of that slot.
    pub generation: u32,
    /// The card to which its message went.
    pub to: u32,
    /// Sequence number of the packet.
    pub sn: u32,
    /// Time of the event, as the program sees it.
    pub timestamp: u32,
    /// By kind: first time, bytes in units of 32, packets; or three times of a probe.
    pub words: [u32; 3],
    /// Kind.
    pub kind: Kind,
    /// Flags of the library.
    pub flags: u8,
    /// Subtype of a NACK.
    pub subtype: u8,
}

/// Events on their way to the programs. The device's lock protects them.
#[derive(Debug)]
#[repr(C)]
pub struct Events {
    pub(super) taken: u32,
    pub(super) posted: u32,
    pub(super) ring: [Event; EVENTS_MAX],
}

/// The sending side of a queue pair.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Flow {
    /// Generation of the queue pair that it belongs to.
    pub(super) generation: u32,
    /// Its rate, a part of [`RATE_MAX`]; 0 before its first message.
    rate: u32,
    /// The rate that the program has asked for last.
    asked: u32,
    /// Packets so far: the sequence number of the next one.
    pub sn: u32,
    /// The connection manager has connected it: it has slot 0.
    pub by_cm: bool,
    /// The next message takes a probe along.
    pub wants_probe: bool,
    /// The program has decided about it.
    pub is_decided: bool,
    /// Earliest start of the next message.
    due_ns: u64,
    /// Start of the last message in this order, and its time at the full rate.
    anchor_ns: u64,
    full_ns: u64,
    /// Time of its last congestion notification.
    pub cnp_ns: u64,
    /// The program's words.
    pub context: [u32; CONTEXT_WORDS],
    /// Messages, bytes of data, and bytes with headers that were sent under control.
    pub messages: u64,
    /// See before.
    pub payload: u64,
    /// See before.
    pub wire: u64,
    /// Times that its messages had by its rates, of the device.
    pub paced_ns: u64,
    /// Time that the sender has lost because its messages came late, of the device.
    pub late_ns: u64,
    /// Probes that the program has asked for.
    pub probes: u64,
    /// Events that the program has handled.
    pub events: u64,
    /// Events that were lost.
    pub lost: u64,
}

impl Flow {
    /// A flow of a new queue pair.
    pub(super) fn of(generation: u32) -> Self {
        Self {
            generation,
            ..Self::default()
        }
    }

    /// Rate of the limiter.
    #[must_use]
    pub fn rate(&self) -> u32 {
        match self.rate {
            0 if self.by_cm => RATE_FIRST,
            // The device's own algorithm uses the whole port.
            0 => RATE_MAX,
            rate => rate,
        }
    }

    /// Earliest start of the next message.
    #[must_use]
    pub(crate) fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// Time of the last message at a rate.
    fn interval_ns(&self, rate: u32) -> u64 {
        let interval = u128::from(self.full_ns) * u128::from(RATE_MAX) / u128::from(rate.max(1));
        u64::try_from(interval).unwrap_or(u64::MAX)
    }

    /// Counts a message that starts now and needs `full_ns` at the full rate.
    pub(crate) fn charge(&mut self, now_ns: u64, full_ns: u64) {
        self.anchor_ns = self.due_ns.max(now_ns.saturating_sub(BURST_NS));
        if self.messages > 0 {
            let lost_ns = self.anchor_ns - self.due_ns;
            self.late_ns = self.late_ns.saturating_add(lost_ns / SLOWDOWN);
        }
        self.full_ns = full_ns;
        let interval_ns = self.interval_ns(self.rate());
        self.due_ns = self.anchor_ns.saturating_add(interval_ns);
        self.paced_ns = self.paced_ns.saturating_add(interval_ns / SLOWDOWN);
    }

    /// Sets the rate, within its limits. It moves the start of the next message.
    pub(crate) fn set_rate(&mut self, asked: u32) {
        let old_ns = self.interval_ns(self.rate());
        self.rate = asked.clamp(RATE_FLOOR, RATE_MAX);
        self.asked = asked;
        self.is_decided = true;
        let new_ns = self.interval_ns(self.rate);
        self.due_ns = self.anchor_ns.saturating_add(new_ns);
        let paced_ns = self.paced_ns.saturating_add(new_ns / SLOWDOWN);
        self.paced_ns = paced_ns.saturating_sub(old_ns / SLOWDOWN);
    }

    /// What is wrong with the program's decisions about this flow, or nothing.
    #[must_use]
    pub fn fault(&self) -> &'static str {
        match self {
            Self { by_cm: false, .. } => {
                "no program is called: rdma_cm has not connected this queue pair (perftest: -R)"
            }
            Self {
                is_decided: true,
                asked: 0,
                ..
            } => "the program asks for rate 0; the limiter keeps its lowest rate",
            Self { asked, .. } if *asked > RATE_MAX => {
                "the program asks for more than 2^20; the limiter keeps the port's speed"
            }
            Self {
                events: PROBE_PATIENCE..,
                probes: 0,
                ..
            } => "the program has never asked for a probe",
            _ => "",
        }
    }

    /// Another process takes over. The rate stays until its first decision.
    pub(super) fn forget(&mut self) {
        self.context = [0; CONTEXT_WORDS];
        self.wants_probe = false;
    }
}

/// A card has a bit in a word.
const _: () = assert!(FUNCTIONS_MAX <= 64);

/// State in the header of the device's file: atomic.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Shared {
    /// Number of cards under control. Zero keeps the common case free of cost.
    pub(super) cards: AtomicU32,
    /// Counts events; the runner of the DPA sleeps on it.
    pub(super) word: AtomicU32,
    /// By the first function of a card, 1 + the mask of unwanted kinds of events; 0: no control.
    pub(super) controls: [AtomicU32; FUNCTIONS_MAX],
    /// By the first function of a card: times at which the ports are free. Changes need the device's lock.
    pub(super) out_ns: [AtomicU64; FUNCTIONS_MAX],
    pub(super) into_ns: [AtomicU64; FUNCTIONS_MAX],
    /// By the first function of a card: cards that wait to send to it, one bit for each, and 1 + the card that sent last.
    pub(super) waiting: [AtomicU64; FUNCTIONS_MAX],
    pub(super) last: [AtomicU32; FUNCTIONS_MAX],
    pub(super) sent_bytes: [AtomicU64; FUNCTIONS_MAX],
    pub(super) received_bytes: [AtomicU64; FUNCTIONS_MAX],
    pub(super) diagnostics: [[AtomicU64; Diagnostic::ALL.len()]; FUNCTIONS_MAX],
}

/// A time of the machine as congestion control sees it: 32 bits of nanoseconds.
#[must_use]
pub(crate) fn stamp(now_ns: u64) -> u32 {
    let [a, b, c, d, ..] = (now_ns / SLOWDOWN).to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// Time of the machine that a port needs for these bytes.
#[must_use]
pub(crate) fn full_ns(wire_bytes: u64) -> u64 {
    wire_bytes.saturating_mul(8 * SLOWDOWN) / GBPS
}

impl Kind {
    /// The counter of lost events of this kind.
    pub(super) fn drop(self, flags: u8) -> Diagnostic {
        match self {
            Self::Cnp => Diagnostic::DropCnp,
            Self::Tx if flags & pcc_dev::layout::TX_PROBE_SENT != 0 => Diagnostic::DropProbe,
            Self::Tx => Diagnostic::DropTx,
            Self::Ack => Diagnostic::DropAck,
            Self::Nack => Diagnostic::DropNack,
            Self::Rtt => Diagnostic::DropRtt,
        }
    }

    /// The counter of handled events of this kind.
    pub(crate) fn handled(self) -> Diagnostic {
        match self {
            Self::Tx => Diagnostic::HandledTx,
            _ => Diagnostic::HandledReceived,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 4 MB with the whole port: 8 ms of the machine.
    const FULL_NS: u64 = 8_000_000;

    #[test]
    fn a_flow_sends_by_its_rate_and_catches_up_for_a_moment_only() {
        assert_eq!(full_ns(4_000_000), FULL_NS);
        let mut flow = Flow::default();
        flow.set_rate(RATE_MAX / 4);
        let start_ns = 1_000_000_000;
        flow.due_ns = start_ns;
        flow.charge(start_ns, FULL_NS);
        assert_eq!(flow.due_ns(), start_ns + 4 * FULL_NS);
        // 10 ms late: the next one still follows the last one without a gap.
        flow.charge(flow.due_ns() + 10_000_000, FULL_NS);
        assert_eq!(flow.due_ns(), start_ns + 8 * FULL_NS);
        // After a second without work, most of it is lost.
        let late_ns = flow.due_ns() + 1_000_000_000;
        let due_ns = flow.due_ns();
        flow.messages = 2;
        flow.charge(late_ns, FULL_NS);
        assert_eq!(flow.due_ns(), late_ns - BURST_NS + 4 * FULL_NS);
        assert_eq!(flow.late_ns, (late_ns - BURST_NS - due_ns) / SLOWDOWN);
        assert_eq!(flow.paced_ns, 3 * 4 * FULL_NS / SLOWDOWN);
    }

    #[test]
    fn a_new_rate_moves_the_next_message_and_stays_within_its_limits() {
        let mut flow = Flow {
            by_cm: true,
            due_ns: 1_000_000_000,
            ..Flow::default()
        };
        assert_eq!(flow.rate(), RATE_FIRST);
        flow.charge(1_000_000_000, FULL_NS);
        assert_eq!(flow.due_ns(), 1_000_000_000 + 256 * FULL_NS);
        flow.set_rate(RATE_MAX / 2);
        assert_eq!(flow.due_ns(), 1_000_000_000 + 2 * FULL_NS);
        assert_eq!(flow.paced_ns, 2 * FULL_NS / SLOWDOWN);
        for (asked, expect) in [(0, RATE_FLOOR), (u32::MAX, RATE_MAX)] {
            flow.set_rate(asked);
            assert_eq!(flow.rate(), expect);
        }
        // Without a decision, the device's own algorithm uses the whole port.
        assert_eq!(Flow::default().rate(), RATE_MAX);
    }

    #[test]
    fn what_is_wrong_with_a_programs_decisions_is_named() {
        let mut flow = Flow::default();
        assert!(flow.fault().contains("rdma_cm has not connected"));
        flow.by_cm = true;
        assert_eq!(flow.fault(), "");
        for (asked, expect) in [(0, "rate 0"), (RATE_MAX + 1, "more than 2^20")] {
            flow.set_rate(asked);
            assert!(flow.fault().contains(expect), "{asked}: {}", flow.fault());
        }
        flow.set_rate(RATE_MAX);
        flow.events = PROBE_PATIENCE;
        assert!(flow.fault().contains("never asked for a probe"));
        flow.probes = 1;
        assert_eq!(flow.fault(), "");
    }

    #[test]
    fn each_counter_has_a_number_of_the_firmware() {
        let mut ids = DIAGNOSTIC_IDS;
        ids.sort_unstable();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]), "{ids:x?}");
    }
}
