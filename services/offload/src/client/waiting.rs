//! Calls that wait at the rank, because as many of their communicator are under way as may be, or because memory could not
//! be registered, or because the rank has many messages under way.
//!
//! Ordinary calls of a communicator start in their order, which is the same at all members. The oldest of them that is not
//! complete therefore always starts, whatever other communicators do. Persistent calls start in any order, so none of them
//! waits for another.

use super::lanes::Slice;
use super::window::Window;
use crate::reduction::Reduction;
use crate::wire::{BlockList, Collective, Members, Message, Route, Target};
use std::collections::{HashMap, VecDeque};

/// Maximum number of ordinary calls of a communicator that are under way at the SP. Each holds two registrations and, at the
/// SP, two imports.
pub(super) const UNDER_WAY_MAX: u32 = 256;

/// Element of a broadcast, to which its slices are aligned.
const PART_OF_BROADCAST: usize = 64;

/// Maximum number of messages of a rank that are under way at the SPs, and their memory there, about, in shares of a communicator. The
/// oldest message of its two ranks and tag always starts: its other end does too, so both become complete.
const MESSAGES_MAX: usize = 4096;
const MESSAGE_SHARES: usize = 8;

/// A call with its checked arguments.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) collective: Collective,
    pub(super) is_persistent: bool,
    /// Bytes that the call takes at an SP, about.
    pub(super) cost: usize,
    /// The lanes of a call that is not spread, and their parts of its vector.
    pub(super) slices: Vec<Slice>,
    pub(super) work: Work,
}

#[derive(Debug)]
pub(super) enum Work {
    Exchange {
        send: Part,
        receive: Part,
        /// The blocks to send are those of the receive buffer, so they have to be copied.
        in_place: bool,
        /// Each block travels in the lane of its receiver.
        is_spread: bool,
        route: Route,
    },
    Reduce {
        /// `None` in place.
        send: Option<Area>,
        /// `None` for a rank that gets nothing.
        receive: Option<Area>,
        reduction: Reduction,
        /// For each slice of an ordinary one; `None` for a persistent one.
        turns: Option<Vec<u32>>,
        members: Members,
        target: Target,
    },
    /// A broadcast, or a barrier without an area.
    Tree {
        area: Option<Area>,
        /// The job's rank that has the data.
        root: u32,
        members: Members,
    },
}

/// A buffer.
#[derive(Debug, Clone)]
pub(super) struct Area {
    pub(super) start: *mut u8,
    pub(super) length: usize,
    /// The exported handle, if the program has registered the buffer.
    pub(super) packed: Option<Vec<u8>>,
}

/// A buffer and its blocks.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) area: Area,
    pub(super) blocks: BlockList,
}

/// Calls that start one after the other: the ordinary ones of a communicator, or the starts of a persistent one.
pub(super) type Line = (u64, Option<u32>);

/// Ordinary calls of a communicator that are under way, and their cost.
#[derive(Debug, Clone, Copy, Default)]
struct UnderWay {
    count: u32,
    cost: usize,
}

/// The lines of the calls that wait, and the ordinary calls under way of each communicator.
#[derive(Debug)]
pub(super) struct Waiting {
    /// Maximum cost of a communicator's calls under way. One call always fits.
    cost_max: usize,
    lines: HashMap<Line, VecDeque<Prepared>>,
    under_way: HashMap<u64, UnderWay>,
    /// Messages under way, and their cost.
    messages: usize,
    messages_cost: usize,
    started: usize,
    /// The first call of a line could not get memory.
    is_short: bool,
    /// Lines whose first call may start now.
    ready: Vec<Line>,
}

impl Work {
    /// Bytes that the call takes at an SP, about.
    pub(super) fn cost(&self, window: Window, direct_min: usize) -> usize {
        match self {
            Self::Exchange {
                send,
                receive,
                route,
                ..
            } => {
                let groups = send.blocks.groups();
                let short = groups.filter(|group| group.length < direct_min as u64);
                // Inside a buffer.
                let short: u64 = short.map(|group| group.length * group.count).sum();
                let short = usize::try_from(short).unwrap_or(usize::MAX);
                let blocks = send.blocks.len().max(receive.blocks.len());
                let cost = window.exchange(blocks, short);
                match route {
                    Route::Gather { members, .. } => cost.max(window.gather(members.len(), short)),
                    _ => cost,
                }
            }
            Self::Reduce {
                send,
                receive,
                members,
                ..
            } => {
                let length = send.as_ref().or(receive.as_ref()).map_or(0, |of| of.length);
                let short = if length < direct_min { length } else { 0 };
                window.allreduce(members.len(), short)
            }
            Self::Tree { area, members, .. } => {
                let length = area.as_ref().map_or(0, |area| area.length);
                window.tree(members.len(), if length < direct_min { length } else { 0 })
            }
        }
    }
}

impl Work {
    /// Length and element of the vector that is divided into slices; `None` if each block has its lane.
    pub(super) fn vector(&self) -> Option<(usize, usize)> {
        match self {
            Self::Exchange { is_spread, .. } => (!is_spread).then_some((0, 1)),
            Self::Reduce {
                send,
                receive,
                reduction,
                ..
            } => {
                let length = send.as_ref().or(receive.as_ref()).map_or(0, |of| of.length);
                Some((length, reduction.element_size()))
            }
            Self::Tree { area, .. } => {
                let length = area.as_ref().map_or(0, |area| area.length);
                Some((length, PART_OF_BROADCAST))
            }
        }
    }
}

impl Prepared {
    pub(super) fn line(&self) -> Line {
        let of = self.is_persistent.then_some(self.collective.sequence);
        (self.collective.communicator, of)
    }
}

impl Waiting {
    pub(super) fn new(cost_max: usize) -> Self {
        Self {
            cost_max,
            lines: HashMap::new(),
            under_way: HashMap::new(),
            messages: 0,
            messages_cost: 0,
            started: 0,
            is_short: false,
            ready: Vec::new(),
        }
    }

    /// Adds a call behind those of its line.
    pub(super) fn push(&mut self, call: Prepared) {
        let line = call.line();
        self.lines.entry(line).or_default().push_back(call);
        self.ready.push(line);
    }

    /// The next call to start.
    pub(super) fn next(&mut self) -> Option<Prepared> {
        while let Some(line) = self.ready.last().copied() {
            let of = self.under_way.get(&line.0).copied().unwrap_or_default();
            let (cost_max, messages_cost) = (self.cost_max, self.messages_cost);
            let all_max = cost_max.saturating_mul(MESSAGE_SHARES);
            let is_message = Message::of(line.0).is_some();
            let is_full = is_message && self.messages >= MESSAGES_MAX;
            let has_room = |call: &Prepared| {
                let cost = of.cost.saturating_add(call.cost);
                let all = messages_cost.saturating_add(call.cost);
                let fits = of.count < UNDER_WAY_MAX && cost <= cost_max;
                let fits = fits && !is_full && (!is_message || all <= all_max);
                line.1.is_some() || of.count == 0 || fits
            };
            let calls = self.lines.get_mut(&line);
            let call = calls
                .filter(|calls| calls.front().is_some_and(has_room))
                .and_then(VecDeque::pop_front);
            if let Some(call) = call {
                return Some(call);
            }
            self.ready.pop();
            if self.lines.get(&line).is_some_and(VecDeque::is_empty) {
                self.lines.remove(&line);
            }
        }
        None
    }

    /// A call of [`Waiting::next`] is under way.
    pub(super) fn begun(&mut self, call: Line, cost: usize) {
        self.started += 1;
        if call.1.is_none() {
            let of = self.under_way.entry(call.0).or_default();
            of.count += 1;
            of.cost = of.cost.saturating_add(cost);
        }
        if Message::of(call.0).is_some() {
            self.messages += 1;
            self.messages_cost = self.messages_cost.saturating_add(cost);
        }
    }

    /// A call of [`Waiting::next`] has to wait until another one is over.
    pub(super) fn put_back(&mut self, call: Prepared) {
        let line = call.line();
        self.ready.retain(|ready| *ready != line);
        self.lines.entry(line).or_default().push_front(call);
        self.is_short = true;
    }

    /// A call is over.
    pub(super) fn over(&mut self, collective: Collective, is_persistent: bool, cost: usize) {
        self.started -= 1;
        let communicator = collective.communicator;
        if Message::of(communicator).is_some() {
            self.messages -= 1;
            self.messages_cost = self.messages_cost.saturating_sub(cost);
        }
        if !is_persistent && let Some(of) = self.under_way.get_mut(&communicator) {
            of.count -= 1;
            of.cost = of.cost.saturating_sub(cost);
            if of.count == 0 {
                self.under_way.remove(&communicator);
            }
        }
        if std::mem::take(&mut self.is_short) {
            self.ready = self.lines.keys().copied().collect();
        } else if self.lines.contains_key(&(communicator, None)) {
            self.ready.push((communicator, None));
        }
    }

    /// Number of calls under way.
    pub(super) fn started(&self) -> usize {
        self.started
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::null_mut;

    fn call(communicator: u64, sequence: u32, is_persistent: bool) -> Prepared {
        let area = Area {
            start: null_mut(),
            length: 0,
            packed: None,
        };
        let part = Part {
            area,
            blocks: Vec::new().into(),
        };
        Prepared {
            collective: Collective {
                communicator,
                sequence,
                start: 0,
                step: 0,
            },
            is_persistent,
            cost: COST,
            slices: Vec::new(),
            work: Work::Exchange {
                send: part.clone(),
                receive: part,
                in_place: false,
                is_spread: false,
                route: Route::Direct,
            },
        }
    }

    /// Starts what may start.
    fn start(waiting: &mut Waiting) -> Vec<u32> {
        let mut started = Vec::new();
        while let Some(call) = waiting.next() {
            waiting.begun(call.line(), call.cost);
            started.push(call.collective.sequence);
        }
        started
    }

    const MOST: u32 = UNDER_WAY_MAX;
    const COST: usize = 10;

    #[test]
    fn calls_beyond_the_memory_wait_and_one_always_starts() {
        for (cost_max, at_once) in [(4 * COST + 9, 4), (COST, 1), (0, 1)] {
            let mut waiting = Waiting::new(cost_max);
            for sequence in 0..2000 {
                waiting.push(call(1, sequence, false));
            }
            assert_eq!(start(&mut waiting), (0..at_once).collect::<Vec<_>>());
            for sequence in 0..2000 - at_once {
                waiting.over(call(1, sequence, false).collective, false, COST);
                assert_eq!(start(&mut waiting), [sequence + at_once]);
            }
        }
    }

    #[test]
    fn calls_beyond_the_limit_wait_and_start_in_their_order() {
        let mut waiting = Waiting::new(usize::MAX);
        for sequence in 0..2 * MOST + 2 {
            waiting.push(call(1, sequence, false));
        }
        assert_eq!(start(&mut waiting), (0..MOST).collect::<Vec<_>>());
        // They complete in another order than they started in.
        for (over, starts) in [(7, MOST), (0, MOST + 1), (MOST, MOST + 2)] {
            waiting.over(call(1, over, false).collective, false, COST);
            assert_eq!(start(&mut waiting), [starts]);
        }
        assert_eq!(waiting.started(), MOST as usize);
    }

    #[test]
    fn messages_beyond_the_limit_wait_but_never_the_oldest_of_a_pair_and_tag() {
        let of = |tag| {
            Message {
                from: 0,
                to: 1,
                tag,
            }
            .communicator()
            .expect("a tag")
        };
        for (cost_max, most) in [(usize::MAX, MESSAGES_MAX), (4 * COST, 4 * MESSAGE_SHARES)] {
            let mut waiting = Waiting::new(cost_max);
            let streams = u32::try_from(2 * most).expect("few");
            for sequence in 0..3 {
                (0..streams).for_each(|tag| waiting.push(call(of(tag), sequence, false)));
            }
            // The last streams come first, and one message of each other one.
            let started = start(&mut waiting);
            let later = started.iter().filter(|sequence| **sequence > 0).count();
            assert!(started.len() - later == 2 * most && later < most, "{later}");
            waiting.push(call(1, 7, false));
            assert_eq!(start(&mut waiting), [7], "no message");
            // Whatever ends, the next one of its pair and tag starts, and then all have room.
            for sequence in 0..3 {
                for tag in 0..streams {
                    waiting.over(call(of(tag), sequence, false).collective, false, COST);
                    start(&mut waiting);
                }
            }
            assert_eq!((waiting.started(), waiting.messages), (1, 0));
            assert_eq!(waiting.messages_cost, 0);
        }
    }

    #[test]
    fn a_full_communicator_holds_no_other_call_back() {
        let mut waiting = Waiting::new(usize::MAX);
        for sequence in 0..MOST + 5 {
            waiting.push(call(1, sequence, false));
        }
        start(&mut waiting);
        waiting.push(call(2, 0, false));
        waiting.push(call(1, 9000, true));
        assert_eq!(start(&mut waiting), [9000, 0]);
    }

    #[test]
    fn a_call_without_memory_starts_after_any_other_is_over() {
        let mut waiting = Waiting::new(usize::MAX);
        waiting.push(call(1, 0, false));
        start(&mut waiting);
        waiting.push(call(2, 0, false));
        waiting.push(call(2, 1, false));
        let without = waiting.next().expect("the first of the line");
        waiting.put_back(without);
        assert!(start(&mut waiting).is_empty());
        waiting.over(call(1, 0, false).collective, false, COST);
        assert_eq!(start(&mut waiting), [0, 1]);
        assert_eq!(waiting.started(), 2);
    }
}
