//! Congestion control of messages: they wait for the rate of their flow and for the ports, and cause the program's events.
//!
//! A message takes its time on the ports of both cards, in order. What waits there is the queue: a probe measures it, a long
//! one causes notifications, and beyond [`QUEUE_DEVICE_NS`] senders pause, so that nothing is lost.

use mlx5_prm::qp::service;
use mlx5_prm::wqe::{Ctrl, opcode};
use pcc_dev::layout::{Block, TX_ACK_EXPECTED, TX_PROBE_SENT};

use super::link::way;
use super::peer::Poster;
use super::wake::wake_of;
use super::work::WORK_BYTES_MAX;
use crate::fabric::congestion::{Diagnostic, Event, Kind, SLOWDOWN, full_ns, stamp};
use crate::fabric::numbers::qp_slot;
use crate::fabric::{Locked, Place};
use crate::sys;

/// Bytes of headers, check sums, preamble and gap of a packet of RoCE v2.
const HEADER_BYTES: u64 = 82;
/// Time to the other card and back, without queues.
pub(crate) const BASE_DEVICE_NS: u64 = 4_000;
/// Time between a probe and its response.
const ANSWER_DEVICE_NS: u64 = 1_000;
/// Queue from which packets are marked.
const MARK_DEVICE_NS: u64 = 10_000;
/// Least time between two notifications of a flow.
const NOTIFY_DEVICE_NS: u64 = 50_000;
/// Queue at which senders pause.
const QUEUE_DEVICE_NS: u64 = 40_000;
/// Subtype of a NACK: the receiver was not ready.
const NOT_READY: u8 = 1;

/// The sending side of a message.
struct Sender {
    function: usize,
    qpn: u32,
    /// First functions of both cards.
    cards: (usize, usize),
}

impl Sender {
    /// The sender between two places, if its card is under control and its port is an Ethernet port.
    fn of(locked: &Locked<'_>, poster: &Poster, (from, to): (Place, Place)) -> Option<Self> {
        let fabric = locked.fabric();
        let is_connected = matches!(poster.qp.service, service::RC | service::UC);
        if !is_connected || !fabric.link_of(from).is_ethernet() {
            return None;
        }
        let cards = (fabric.card(from.function), fabric.card(to.function));
        fabric.control(cards.0)?;
        let is_own = from == poster.place();
        Some(Self {
            function: from.function,
            qpn: if is_own {
                poster.qpn
            } else {
                poster.qp.remote_qpn
            },
            cards,
        })
    }
}

/// True if the next message of a queue pair must wait. It is tried again when its time has come.
pub(super) fn holds(
    locked: &mut Locked<'_>,
    poster: &Poster,
    bytes: &[u8; WORK_BYTES_MAX],
) -> bool {
    let fabric = locked.fabric();
    if !fabric.has_control() {
        return false;
    }
    let Some((from, to, _)) = way(fabric, poster.function, &poster.qp, bytes) else {
        return false;
    };
    let Some(sender) = Sender::of(locked, poster, (from, to)) else {
        return false;
    };
    let Some(due_ns) = locked
        .flow(sender.function, sender.qpn)
        .map(|flow| flow.due_ns())
    else {
        return false;
    };
    let now_ns = sys::now_ns();
    let queue_ns = fabric.queue_until_ns(sender.cards.1);
    // Senders take turns at a port that is never idle: one that has just sent waits for the others, while the queue lasts.
    let yields = fabric.must_yield(sender.cards);
    let turn_ns = match yields {
        true => queue_ns,
        false => queue_ns.saturating_sub(QUEUE_DEVICE_NS * SLOWDOWN),
    };
    let until_ns = due_ns.max(turn_ns);
    if until_ns <= now_ns {
        if yields {
            // They had their time, and have nothing to send.
            fabric.forget_waiting(sender.cards.1);
        }
        return false;
    }
    if due_ns <= now_ns {
        fabric.waits_for(sender.cards);
    }
    if let Some(qp) = locked
        .function(poster.function)
        .qps
        .get_mut(qp_slot(poster.qpn))
    {
        qp.retry_at_ns = until_ns;
    }
    true
}

/// A message of this many bytes was executed.
pub(super) fn sent(locked: &mut Locked<'_>, poster: &Poster, ctrl: &Ctrl, bytes: u32) {
    if !locked.fabric().has_control() {
        return;
    }
    let (here, Some(there)) = (poster.place(), poster.qp.remote()) else {
        return;
    };
    let places = match ctrl.opcode {
        opcode::NOP | opcode::UMR | opcode::MMO => return,
        opcode::RDMA_READ => (there, here),
        _ => (here, there),
    };
    let Some(sender) = Sender::of(locked, poster, places) else {
        return;
    };
    let now_ns = sys::now_ns();
    // Codes 1 to 5 are 256 to 4096 bytes.
    let mtu = 128_u64 << poster.qp.path.path_mtu.clamp(1, 5);
    let packets = u64::from(bytes).div_ceil(mtu).max(1);
    let wire = u64::from(bytes) + packets * HEADER_BYTES;
    let queue_ns = locked.occupy(sender.cards, wire, now_ns);
    let Some(flow) = locked.flow(sender.function, sender.qpn) else {
        return;
    };
    flow.charge(now_ns, full_ns(wire));
    flow.messages += 1;
    flow.payload += u64::from(bytes);
    flow.wire += wire;
    let has_probe = std::mem::take(&mut flow.wants_probe);
    let is_marked = queue_ns > MARK_DEVICE_NS * SLOWDOWN
        && now_ns.saturating_sub(flow.cnp_ns) >= NOTIFY_DEVICE_NS * SLOWDOWN;
    if is_marked {
        flow.cnp_ns = now_ns;
    }
    let first_sn = flow.sn;
    let packets = u32::try_from(packets).unwrap_or(u32::MAX);
    flow.sn = flow.sn.wrapping_add(packets);
    // Other queue pairs belong to the device's own algorithm, and the program never hears of them.
    if flow.by_cm {
        let message = Message {
            now_ns,
            queue_ns,
            first_sn,
            packets,
            wire,
            has_probe,
            is_marked,
        };
        message.tell(locked, &sender);
    }
}

/// The receiver of a message was not ready.
pub(super) fn not_ready(locked: &mut Locked<'_>, poster: &Poster) {
    if !locked.fabric().has_control() {
        return;
    }
    let Some(there) = poster.qp.remote() else {
        return;
    };
    let Some(sender) = Sender::of(locked, poster, (poster.place(), there)) else {
        return;
    };
    let now_ns = sys::now_ns();
    let Some(flow) = locked.flow(sender.function, sender.qpn) else {
        return;
    };
    if !flow.by_cm {
        return;
    }
    let sn = flow.sn;
    let event = Event {
        at_ns: now_ns,
        kind: Kind::Nack,
        subtype: NOT_READY,
        sn,
        timestamp: stamp(now_ns),
        words: [stamp(now_ns), sn, 1],
        ..Event::default()
    };
    locked.post_event(sender.cards.0, sender.function, sender.qpn, event);
}

/// Carries out the program's answer to an event.
pub(crate) fn obey(locked: &mut Locked<'_>, event: &Event, answer: &Block) {
    let Some(flow) = locked.flow_of(event) else {
        return;
    };
    let results = answer.results();
    flow.context = answer.context();
    flow.events += 1;
    if results.probe != 0 && !flow.wants_probe {
        flow.wants_probe = true;
        flow.probes += 1;
    }
    flow.set_rate(results.rate);
    let due_ns = flow.due_ns();
    let qps = &mut locked.function(event.function as usize).qps;
    let owner = qps.owner(event.slot);
    // A message that waits may start at another time now. It may still wait for the port.
    if let (Some(owner), Some(qp)) = (owner, qps.get_mut(event.slot))
        && qp.pending
        && qp.retry_at_ns != 0
    {
        qp.retry_at_ns = due_ns;
        wake_of(locked.fabric(), owner.process);
    }
}

/// What the program hears of a message.
struct Message {
    now_ns: u64,
    queue_ns: u64,
    first_sn: u32,
    packets: u32,
    wire: u64,
    has_probe: bool,
    is_marked: bool,
}

impl Message {
    fn tell(&self, locked: &mut Locked<'_>, sender: &Sender) {
        let fabric = locked.fabric();
        let card = sender.cards.0;
        let last_sn = self.first_sn.wrapping_add(self.packets - 1);
        let to = u32::try_from(sender.cards.1).unwrap_or(u32::MAX);
        let mut post = |at_ns, kind, flags, words| {
            let event = Event {
                at_ns,
                kind,
                flags,
                to,
                sn: last_sn,
                timestamp: stamp(at_ns),
                words,
                ..Event::default()
            };
            locked.post_event(card, sender.function, sender.qpn, event);
        };
        let probe = if self.has_probe { TX_PROBE_SENT } else { 0 };
        let units = u32::try_from(self.wire / 32).unwrap_or(u32::MAX);
        let counts = [stamp(self.now_ns), units, self.packets];
        post(self.now_ns, Kind::Tx, TX_ACK_EXPECTED | probe, counts);
        let there_ns = self.now_ns + BASE_DEVICE_NS / 2 * SLOWDOWN + self.queue_ns;
        let back_ns = there_ns + BASE_DEVICE_NS / 2 * SLOWDOWN;
        let counts = [stamp(back_ns), self.first_sn, self.packets];
        if self.is_marked {
            fabric.diagnose(card, Diagnostic::Cnp);
            post(back_ns, Kind::Cnp, 0, [stamp(back_ns), last_sn, 1]);
        }
        post(back_ns, Kind::Ack, 0, counts);
        if self.has_probe {
            let (from, to) = sender.cards;
            fabric.diagnose(from, Diagnostic::ProbeRequest);
            fabric.diagnose(from, Diagnostic::Port0Request);
            fabric.diagnose(to, Diagnostic::ProbeResponse);
            fabric.diagnose(to, Diagnostic::Port0Response);
            let answer_ns = ANSWER_DEVICE_NS * SLOWDOWN;
            let times = [self.now_ns, there_ns, there_ns + answer_ns].map(stamp);
            post(back_ns + answer_ns, Kind::Rtt, 0, times);
        }
    }
}
