//! Programmable congestion control: which cards are under control, their flows, events and ports.
//!
//! Cards whose DPA has an active program of a sender are under control.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::device::{Fabric, Locked};
use super::flow::EVENTS_MAX;
pub use super::flow::{
    CONTEXT_WORDS, DIAGNOSTIC_IDS, Diagnostic, Event, Flow, GBPS, Kind, RATE_MAX, SLOWDOWN,
};
pub(crate) use super::flow::{full_ns, stamp};
use super::numbers::{QPN_BASE, qp_slot};
use super::port::Place;
use crate::sys;

impl Fabric {
    /// True if any card is under control.
    #[must_use]
    pub(crate) fn has_control(&self) -> bool {
        self.congestion().cards.load(Ordering::Relaxed) != 0
    }

    /// The first function of a function's card.
    #[must_use]
    pub fn card(&self, function: usize) -> usize {
        let image = self.identity(function).map(|own| own.sys_image_guid);
        let mut all = self.identities().iter();
        all.position(|other| Some(other.sys_image_guid) == image)
            .unwrap_or(function)
    }

    /// The mask of unwanted events of a card under control.
    #[must_use]
    pub(crate) fn control(&self, card: usize) -> Option<u32> {
        let control = self.congestion().controls.get(card)?;
        control.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Puts a card under the control of a program that does not want some kinds of events, or ends the control.
    pub(crate) fn set_control(&self, card: usize, unwanted: Option<u32>) {
        let shared = self.congestion();
        if let Some(control) = shared.controls.get(card) {
            control.store(
                unwanted.map_or(0, |mask| (mask & 0x7fff_ffff) + 1),
                Ordering::Relaxed,
            );
        }
        let all = shared.controls.iter();
        let count = all.fold(0, |count, control| {
            count + u32::from(control.load(Ordering::Relaxed) != 0)
        });
        shared.cards.store(count, Ordering::Release);
    }

    /// The word that counts events.
    #[must_use]
    pub(crate) fn events_word(&self) -> &AtomicU32 {
        &self.congestion().word
    }

    /// Counts for a card.
    pub(crate) fn diagnose(&self, card: usize, what: Diagnostic) {
        if let Some(counters) = self.congestion().diagnostics.get(card) {
            counters[what as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The diagnostic counters of a card, in their order.
    pub fn diagnostics(&self, card: usize) -> impl Iterator<Item = (Diagnostic, u64)> {
        let counters = self.congestion().diagnostics.get(card);
        let counters = counters.into_iter().flatten();
        let values = counters.map(|counter| counter.load(Ordering::Relaxed));
        Diagnostic::ALL.iter().copied().zip(values)
    }

    /// Bytes that a card's port has sent and received under control.
    #[must_use]
    pub(crate) fn port_bytes(&self, card: usize) -> (u64, u64) {
        let shared = self.congestion();
        let of = |all: &[AtomicU64]| all.get(card).map_or(0, |one| one.load(Ordering::Relaxed));
        (of(&shared.sent_bytes), of(&shared.received_bytes))
    }

    /// True if a card that wants to send to another must let a third one send first, which has waited since its last message.
    pub(crate) fn must_yield(&self, (from, to): (usize, usize)) -> bool {
        let shared = self.congestion();
        let others = shared.waiting.get(to).map_or(0, |waiting| {
            waiting.load(Ordering::Relaxed) & !(1 << (from % 64))
        });
        let last = shared.last.get(to).map(|last| last.load(Ordering::Relaxed));
        others != 0 && last == u32::try_from(from + 1).ok()
    }

    /// A card waits to send to another.
    pub(crate) fn waits_for(&self, (from, to): (usize, usize)) {
        if let Some(waiting) = self.congestion().waiting.get(to) {
            waiting.fetch_or(1 << (from % 64), Ordering::Relaxed);
        }
    }

    /// No card waits to send to this one any more.
    pub(crate) fn forget_waiting(&self, to: usize) {
        if let Some(waiting) = self.congestion().waiting.get(to) {
            waiting.store(0, Ordering::Relaxed);
        }
    }

    /// Time at which the queue before a card's port ends.
    #[must_use]
    pub(crate) fn queue_until_ns(&self, card: usize) -> u64 {
        let into = self.congestion().into_ns.get(card);
        into.map_or(0, |into| into.load(Ordering::Relaxed))
    }
}

impl Locked<'_> {
    /// The flow of a queue pair; None if there is no such queue pair.
    pub fn flow(&mut self, function: usize, qpn: u32) -> Option<&mut Flow> {
        let slot = qp_slot(qpn);
        let tables = self.function(function);
        let generation = tables.qps.get(slot).and(tables.qps.generation(slot))?;
        let flow = tables.flows.get_mut(slot as usize)?;
        if flow.generation != generation {
            *flow = Flow::of(generation);
        }
        Some(flow)
    }

    /// A queue pair is connected by the connection manager: its flow belongs to slot 0.
    pub(crate) fn bind_flow(&mut self, place: Option<Place>, qpn: u32) {
        if let Some(flow) = place.and_then(|place| self.flow(place.function, qpn)) {
            flow.by_cm = true;
        }
    }

    /// The flow of an event, if its queue pair still exists.
    pub(crate) fn flow_of(&mut self, event: &Event) -> Option<&mut Flow> {
        let qpn = event.slot + QPN_BASE;
        let flow = self.flow(event.function as usize, qpn)?;
        (flow.generation == event.generation).then_some(flow)
    }

    /// Flows of a card forget the program that has controlled them.
    pub(crate) fn forget_flows(&mut self, card: usize) {
        let fabric = self.fabric();
        for function in (0..fabric.identities().len()).filter(|one| fabric.card(*one) == card) {
            let tables = self.function(function);
            let slots: Vec<u32> = tables.qps.iter().map(|(slot, ..)| slot).collect();
            for slot in slots {
                if let Some(flow) = self.flow(function, slot + QPN_BASE) {
                    flow.forget();
                }
            }
        }
    }

    /// A message occupies the ports of two cards. Returns the time that it waits behind others at the second one.
    pub(crate) fn occupy(&mut self, (from, to): (usize, usize), wire: u64, now_ns: u64) -> u64 {
        let shared = self.fabric().congestion();
        let full_ns = full_ns(wire);
        let pass = |line: Option<&AtomicU64>| {
            let Some(line) = line.filter(|_| from != to) else {
                return 0;
            };
            let free_ns = line.load(Ordering::Relaxed).max(now_ns);
            line.store(free_ns.saturating_add(full_ns), Ordering::Relaxed);
            free_ns - now_ns
        };
        pass(shared.out_ns.get(from));
        if let (Some(waiting), Some(last)) = (shared.waiting.get(to), shared.last.get(to)) {
            waiting.fetch_and(!(1 << (from % 64)), Ordering::Relaxed);
            last.store(u32::try_from(from + 1).unwrap_or(0), Ordering::Relaxed);
        }
        let count = |bytes: Option<&AtomicU64>| {
            bytes.map(|bytes| bytes.fetch_add(wire, Ordering::Relaxed));
        };
        count(shared.sent_bytes.get(from));
        count(shared.received_bytes.get(to));
        pass(shared.into_ns.get(to))
    }

    /// Sends an event of a flow to the program of its card. A full queue loses it, and counters rise. A program that has
    /// just become active does not hear of the message under way.
    pub(crate) fn post_event(&mut self, card: usize, function: usize, qpn: u32, event: Event) {
        let fabric = self.fabric();
        if !self.is_whole() {
            return;
        }
        let unwanted = fabric.control(card).unwrap_or(u32::MAX);
        if unwanted & 1 << (event.kind as u32) != 0 {
            return;
        }
        let Some(flow) = self.flow(function, qpn) else {
            return;
        };
        let event = Event {
            function: u32::try_from(function).unwrap_or(u32::MAX),
            slot: qp_slot(qpn),
            generation: flow.generation,
            ..event
        };
        let events = &mut self.common().congestion;
        if events.posted.wrapping_sub(events.taken) as usize >= EVENTS_MAX {
            if let Some(flow) = self.flow(function, qpn) {
                flow.lost += 1;
            }
            fabric.diagnose(card, event.kind.drop(event.flags));
            return;
        }
        events.ring[events.posted as usize % EVENTS_MAX] = event;
        events.posted = events.posted.wrapping_add(1);
        let word = fabric.events_word();
        word.fetch_add(1, Ordering::Release);
        sys::futex_wake(word);
    }

    /// Takes the next event.
    pub(crate) fn take_event(&mut self) -> Option<Event> {
        let events = &mut self.common().congestion;
        if events.taken == events.posted {
            return None;
        }
        let event = events.ring[events.taken as usize % EVENTS_MAX];
        events.taken = events.taken.wrapping_add(1);
        Some(event)
    }
}
