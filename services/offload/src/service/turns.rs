//! The order of ordinary allreduces: those of a rank on a communicator run in the order of their turns. Their messages may
//! overtake each other. If two SPs ran them in the order of their arrivals, each could wait for what the other runs later.
//!
//! An SP expects the next turn of each line. A communicator may be gone when its last allreduce is complete, and its line
//! must not stay forever: a rank tells how many earlier allreduces of the line are not complete, so a line that is not
//! known begins with the first of these. The lines of the last [`KEPT`] allreduces of a rank are kept, because the next
//! message may have left the rank before it knew of their end. It would have to be overtaken by that many allreduces.

use crate::wire::Collective;
use std::collections::{HashMap, VecDeque};

/// Number of completed allreduces of a rank whose lines are kept.
const KEPT: usize = 1024;

/// Allreduces that run one after the other: a local rank and a communicator; and for a persistent call its number, as the
/// members may start two of these in different orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Line {
    pub(super) local: usize,
    pub(super) communicator: u64,
    pub(super) persistent: Option<u32>,
}

impl Line {
    /// The line of a call that starts.
    pub(super) fn new(local: usize, collective: Collective, turn: Option<u32>) -> Self {
        Self {
            local,
            communicator: collective.communicator,
            persistent: turn.is_none().then_some(collective.sequence),
        }
    }
}

/// The lines' next turns.
#[derive(Debug, Default)]
pub(super) struct Turns {
    lines: HashMap<Line, Next>,
    /// Lines that became idle, the oldest first, with their count then. By local number of the rank.
    idle: HashMap<usize, VecDeque<(Line, u64)>>,
}

#[derive(Debug)]
struct Next {
    turn: u32,
    /// How often the line has become idle.
    idle: u64,
}

impl Turns {
    /// The next turn of a line. A message says that `open` allreduces before `turn` are not complete.
    pub(super) fn next(&mut self, line: Line, turn: u32, open: u32) -> &mut u32 {
        let next = self.lines.entry(line).or_insert(Next {
            turn: turn.wrapping_sub(open),
            idle: 0,
        });
        &mut next.turn
    }

    /// No allreduce of a line is under way.
    pub(super) fn is_idle(&mut self, line: Line) {
        let Some(next) = self.lines.get_mut(&line) else {
            return;
        };
        next.idle += 1;
        let idle = self.idle.entry(line.local).or_default();
        idle.push_back((line, next.idle));
        if idle.len() > KEPT
            && let Some((oldest, count)) = idle.pop_front()
            && self.lines.get(&oldest).is_some_and(|of| of.idle == count)
        {
            self.lines.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(communicator: u64) -> Line {
        Line {
            local: 3,
            communicator,
            persistent: None,
        }
    }

    #[test]
    fn a_line_begins_with_the_oldest_open_allreduce() {
        let mut turns = Turns::default();
        assert_eq!(*turns.next(line(1), 7, 2), 5);
        // It is known now, whatever the rank knows of the ends.
        *turns.next(line(1), 7, 2) = 8;
        assert_eq!(*turns.next(line(1), 8, 3), 8);
        assert_eq!(*turns.next(line(2), 1, 1), 0);
    }

    #[test]
    fn lines_of_communicators_that_come_and_go_do_not_stay() {
        let mut turns = Turns::default();
        for turn in 0..100_000 {
            let communicator = u64::from(turn);
            *turns.next(line(communicator), 0, 0) += 1;
            turns.is_idle(line(communicator));
            // One communicator stays in use.
            *turns.next(line(7), turn, 0) += 1;
            turns.is_idle(line(7));
        }
        assert!(turns.lines.len() <= KEPT + 1, "{}", turns.lines.len());
        assert_eq!(turns.idle[&3].len(), KEPT);
        let known = turns.lines.contains_key(&line(7));
        assert!(known && turns.lines.contains_key(&line(99_999)));
    }
}
