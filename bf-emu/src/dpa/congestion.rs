//! Processes of congestion control: which one is active on a card, and the thread that brings the events to it.
//!
//! The first process of a sender on a card is active, the others wait. The next one becomes active when the active one is detached,
//! ends, crashes, or does not handle an event within its instructions. Without any, queue pairs have the whole port.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

use mlx5_prm::cmd::status;
use mlx5_prm::dpa::{self, congestion as state_of, query as op};
use pcc_dev::layout::{self, Block, Detail, Model};
use pcc_dev::{Query, limits};

use super::command::{Command, Refused, Result, get, get8, get16, gone, refused};
use super::probe::{self, Arrival};
use super::tables::{Attached, Contexts, Dpa, Functions, Runner};
use super::worker::State;
use crate::engine::pace::{BASE_DEVICE_NS, obey};
use crate::fabric::Place;
use crate::fabric::congestion::{Diagnostic, Event, GBPS, Kind};
use crate::sys;

/// Most processes of congestion control on all cards.
const CONTEXTS_MAX: usize = 256;
/// Most events of the thread. Others stay in the device's queue, which loses what it cannot hold.
const WAITING_MAX: usize = 1_024;
/// Waiting events from which the program sees the overload bit.
const OVERLOAD: usize = 256;
/// Longest sleep, in case a wake-up is lost.
const IDLE_NS: u64 = 100_000_000;
/// Slot of the flows that the connection manager has connected.
const SLOT: u8 = 0;

/// The addresses of a function of the library.
fn functions(state: &State, name: &str) -> Result<Functions> {
    let symbol = |name: &str| state.os.program().symbol(name);
    match symbol(&format!("__dpacc_unpack_{name}")).zip(symbol(name)) {
        Some(found) => Ok(found),
        None => refused(
            status::BAD_PARAM,
            format!(
                "the program has no {name}(): link it with the device library of congestion control"
            ),
        ),
    }
}

/// Attaches a process to the congestion control of its card.
pub(super) fn attach(command: &Command<'_>, id: u32, dpa: &Arc<Dpa>) -> Result<()> {
    let (runner, input) = (command.runner, command.input);
    let fabric = runner.process.fabric();
    let (role, unwanted) = (get8(input, dpa::ROLE), get(input, dpa::DISABLED_EVENTS));
    let place = Place {
        function: command.function,
        port: 1,
    };
    if !fabric.link_of(place).is_ethernet() {
        let text = "the port is an InfiniBand port: congestion control needs Ethernet";
        return refused(status::BAD_PARAM, text);
    }
    let (name, bytes) = match role {
        state_of::NOTIFICATION => ("__pcc_np_packet", probe::PLACE_BYTES),
        _ => ("__pcc_event", layout::BLOCK_BYTES),
    };
    let made = dpa.worker.ask(move |state| -> Result<_> {
        let functions = functions(state, name)?;
        Ok((functions, state.os.allocate(bytes as u64)?))
    });
    let (event, block) = made.ok_or_else(gone)??;
    let attached = Attached {
        id,
        dpa: Arc::clone(dpa),
        card: fabric.card(command.function),
        role,
        event,
        block,
        probe: (get8(input, dpa::PROBE_FORM), get8(input, dpa::PROBE_HOPS)),
        unwanted,
        state: state_of::ACTIVE,
        reason: String::new(),
    };
    let added = runner.add(attached);
    if added.is_err() {
        dpa.worker.ask(move |state| state.os.free(block));
    }
    added
}

impl Runner {
    fn contexts(&self) -> MutexGuard<'_, Contexts> {
        self.congestion
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&'static self, mut attached: Attached) -> Result<()> {
        let mut contexts = self.contexts();
        let all = &contexts.all;
        if all.iter().any(|one| one.id == attached.id) {
            return refused(status::BAD_RES_STATE, "the process is attached already");
        }
        if all.len() >= CONTEXTS_MAX {
            let text = format!("{CONTEXTS_MAX} processes of congestion control exist");
            return refused(status::LIMITS_EXCEEDED, text);
        }
        let is_same = |one: &&Attached| (one.card, one.role) == (attached.card, attached.role);
        if attached.role == state_of::NOTIFICATION {
            if all.iter().any(|one| is_same(&one)) {
                let text = "the card has a process of a receiver (NP) already";
                return refused(status::BAD_RES_STATE, text);
            }
        } else if contexts.active(attached.card).is_some() {
            attached.state = state_of::STANDBY;
        } else {
            self.take_control(&attached);
        }
        contexts.all.push(attached);
        if !contexts.has_thread {
            contexts.has_thread = true;
            let started = std::thread::Builder::new()
                .name("dpa-events".to_owned())
                .spawn(move || run(self));
            if let Err(error) = started {
                contexts.has_thread = false;
                contexts.all.pop();
                return refused(status::NO_RESOURCES, format!("a thread: {error}"));
            }
        }
        Ok(())
    }

    fn take_control(&self, active: &Attached) {
        let fabric = self.process.fabric();
        fabric.lock().forget_flows(active.card);
        fabric.set_control(active.card, Some(active.unwanted));
    }

    /// Detaches a process, if it is attached.
    pub(super) fn detach(&self, id: u32) {
        let mut contexts = self.contexts();
        let Some(at) = contexts.all.iter().position(|one| one.id == id) else {
            return;
        };
        let gone = contexts.all.remove(at);
        if gone.role == state_of::REACTION && gone.state == state_of::ACTIVE {
            self.promote(&mut contexts, gone.card);
        }
    }

    /// Makes the next process of a card that lives the active one, or ends its control.
    fn promote(&self, contexts: &mut Contexts, card: usize) {
        for next in &mut contexts.all {
            if (next.card, next.role, next.state) != (card, state_of::REACTION, state_of::STANDBY) {
                continue;
            }
            match fault(&next.dpa) {
                None => {
                    next.state = state_of::ACTIVE;
                    return self.take_control(next);
                }
                Some((state, reason)) => (next.state, next.reason) = (state, reason),
            }
        }
        self.process.fabric().set_control(card, None);
    }

    /// A process has failed.
    fn fail(&self, id: u32, (state, reason): (u8, String)) {
        let mut contexts = self.contexts();
        let Some(failed) = contexts.all.iter_mut().find(|one| one.id == id) else {
            return;
        };
        let before = failed.state;
        if matches!(before, state_of::DEACTIVATED | state_of::ERROR) {
            return;
        }
        (failed.state, failed.reason) = (state, reason);
        let (card, role) = (failed.card, failed.role);
        if role == state_of::REACTION && before == state_of::ACTIVE {
            self.promote(&mut contexts, card);
        }
    }

    /// State of a process, and why it has failed.
    pub(super) fn congestion_state(&self, id: u32, dpa: &Arc<Dpa>) -> (u8, String) {
        // A fault outside of an event shows here first.
        if let Some(fault) = fault(dpa) {
            self.fail(id, fault);
        }
        let contexts = self.contexts();
        let found = contexts.all.iter().find(|one| one.id == id);
        found.map_or((state_of::DETACHED, String::new()), |one| {
            (one.state, one.reason.clone())
        })
    }

    /// Brings an event to the active process of its card, or to the next one if that fails.
    fn bring(&self, event: &Event, is_overloaded: bool) {
        let fabric = self.process.fabric();
        let card = fabric.card(event.function as usize);
        let count = self.contexts().all.len();
        for _ in 0..=count {
            let Some(active) = self.contexts().active(card).cloned() else {
                return;
            };
            let mut locked = fabric.lock();
            let context = locked.flow_of(event).map(|flow| flow.context);
            drop(locked);
            let Some(context) = context else { return };
            let Some(detail) = self.detail(event, active.probe) else {
                return;
            };
            let block = Block::new(&context, &encode(event, detail), SLOT, is_overloaded);
            let (functions, address) = (active.event, active.block);
            let handled = active
                .dpa
                .worker
                .ask(move |state| handle(state, functions, address, block));
            match handled.flatten() {
                Some(answer) => {
                    obey(&mut fabric.lock(), event, &answer);
                    fabric.diagnose(card, event.kind.handled());
                    return;
                }
                None => self.fail(active.id, fault_of(&active.dpa)),
            }
        }
    }
}

impl Runner {
    /// What an event says. A probe has the answer of the receiver's program, if its form is one that such a program answers and
    /// the receiving card has one; times otherwise. None if that program does not answer.
    fn detail(&self, event: &Event, (form, hops): (u8, u8)) -> Option<Detail> {
        let fabric = self.process.fabric();
        let to = event.to as usize;
        let [sent_ns, arrived_ns, _] = event.words;
        let answers = event.kind == Kind::Rtt && probe::is_answered(form);
        let Some(receiver) = answers
            .then(|| self.contexts().receiver(to).cloned())
            .flatten()
        else {
            return Some(detail_of(event));
        };
        let way_ns = u64::from(arrived_ns.wrapping_sub(sent_ns));
        let arrival = Arrival {
            form,
            hops,
            queue_bytes: way_ns.saturating_sub(BASE_DEVICE_NS / 2) * GBPS / 8,
            port_bytes: fabric.port_bytes(to).1,
            time_ns: arrived_ns,
        };
        let (functions, address) = (receiver.event, receiver.block);
        let answered = receiver
            .dpa
            .worker
            .ask(move |state| probe::answer(state, functions, address, &arrival));
        match answered.flatten() {
            Some(Some(raw)) => Some(Detail::Raw(raw)),
            Some(None) => {
                fabric.diagnose(to, Diagnostic::DropPort0Response);
                None
            }
            // The device answers in its place.
            None => {
                self.fail(receiver.id, fault_of(&receiver.dpa));
                Some(detail_of(event))
            }
        }
    }
}

/// The fault of a process that has failed.
fn fault_of(dpa: &Dpa) -> (u8, String) {
    fault(dpa).unwrap_or_else(|| (state_of::ERROR, "the process is gone".to_owned()))
}

/// What has ended a process, and its state then.
fn fault(dpa: &Dpa) -> Option<(u8, String)> {
    let asked = dpa.worker.ask(|state| {
        let fault = state.os.fault()?;
        // The limits of instructions and of waits have this text.
        let is_late = fault.text.starts_with("killed");
        Some((is_late, fault.to_string()))
    });
    let (is_late, text) = asked.unwrap_or_else(|| Some((false, "it is gone".to_owned())))?;
    let state = match is_late {
        true => state_of::DEACTIVATED,
        false => state_of::ERROR,
    };
    Some((state, text))
}

/// Lets a process handle the event of a block. None if it fails.
fn handle(
    state: &mut State,
    functions: Functions,
    address: u64,
    mut block: Block,
) -> Option<Block> {
    state.os.write(address, &block.0).ok()?;
    let arguments = address.to_le_bytes().to_vec();
    state.complete(functions, arguments).ok()?;
    state.os.read(address, &mut block.0).ok()?;
    Some(block)
}

/// The words of an event by its kind.
fn detail_of(event: &Event) -> Detail {
    let [first, second, third] = event.words;
    let short = |value: u32| u16::try_from(value).unwrap_or(u16::MAX);
    match event.kind {
        Kind::Tx => Detail::Tx {
            first_timestamp: first,
            sent_32bytes: short(second),
            sent_packets: short(third),
        },
        Kind::Rtt => Detail::Rtt {
            request_sent: first,
            request_received: second,
            response_sent: third,
            received: (0, 0),
        },
        Kind::Ack | Kind::Nack | Kind::Cnp => Detail::Ack {
            first_timestamp: first,
            first_sn: second,
            coalesced: short(third),
        },
    }
}

/// The bytes of an event for the program.
fn encode(event: &Event, detail: Detail) -> [u8; layout::EVENT_BYTES] {
    let qpn = event.slot + crate::fabric::QPN_BASE;
    layout::Event {
        kind: event.kind as u8,
        subtype: event.subtype,
        port: 0,
        plane: 0,
        flags: event.flags,
        flow_tag: event.function << 24 | qpn,
        qpn,
        hop_limit: 64,
        sn: event.sn,
        timestamp: event.timestamp,
        detail,
    }
    .encode(Model::Bf3)
}

/// The thread: events become due and are handled, one after the other.
fn run(runner: &'static Runner) {
    let fabric = runner.process.fabric();
    let word = fabric.events_word();
    let mut waiting = BTreeMap::new();
    let mut number = 0_u64;
    loop {
        let seen = word.load(Ordering::Acquire);
        let mut locked = fabric.lock();
        while waiting.len() < WAITING_MAX
            && let Some(event) = locked.take_event()
        {
            waiting.insert((event.at_ns, number), event);
            number += 1;
        }
        drop(locked);
        let now_ns = sys::now_ns();
        let is_overloaded = waiting.len() >= OVERLOAD;
        match waiting.first_entry() {
            Some(first) if first.key().0 <= now_ns => {
                let event = first.remove();
                runner.bring(&event, is_overloaded);
            }
            Some(first) => sys::futex_wait(word, seen, first.key().0 - now_ns),
            None => sys::futex_wait(word, seen, IDLE_NS),
        }
    }
}

/// Answers a question about the active program of a card: a number, or a text.
pub(super) fn telemetry(
    command: &Command<'_>,
    card: usize,
    operation: u16,
) -> Result<(u64, Vec<u8>)> {
    let input = command.input;
    let (what, slot) = (
        get16(input, dpa::TELEMETRY_WHAT),
        get16(input, dpa::TELEMETRY_SLOT),
    );
    let number = get(input, dpa::TELEMETRY_NUMBER);
    if u32::from(slot) >= limits::CURRENT.slots {
        let last = limits::CURRENT.slots - 1;
        return refused(
            status::BAD_PARAM,
            format!("slot {slot}: the last one is {last}"),
        );
    }
    let Some(active) = command.runner.contexts().active(card).cloned() else {
        let text = "no program controls congestion on this card";
        return refused(status::BAD_RES_STATE, text);
    };
    let asked = active.dpa.worker.ask(move |state| -> Result<_> {
        let functions = functions(state, "__pcc_query")?;
        let mut ask = |function: u64, what: u16| {
            let words = [u64::from(what), 0, slot.into(), number.into()];
            let arguments = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let called = state.complete((functions.0, function), arguments);
            called.map_err(|reason| Refused(status::BAD_SYS_STATE, reason))
        };
        let value = ask(functions.1, what)?;
        match operation {
            op::TEXT => {
                let bytes = ask(functions.1, what + 1)?.min(u64::from(limits::TEXT_BYTES));
                let mut text = vec![0; usize::try_from(bytes).unwrap_or_default()];
                state.os.read(value, &mut text)?;
                let end = text.iter().position(|byte| *byte == 0);
                text.truncate(end.unwrap_or(text.len()));
                Ok((0, text))
            }
            op::CLEAR => {
                let count = ask(functions.1, Query::Counters as u16)?;
                let address = ask(functions.1, Query::CountersAddress as u16)?;
                let bytes = usize::try_from(count.min(limits::CURRENT.counters.into()) * 4);
                state
                    .os
                    .write(address, &vec![0; bytes.unwrap_or_default()])?;
                Ok((count, Vec::new()))
            }
            _ => Ok((value, Vec::new())),
        }
    });
    asked.ok_or_else(gone)?
}
