//! The report, and the sums of single steps.

use serde::Serialize;
use std::collections::{BTreeMap, HashMap};

use crate::owners::{OWNERS_MAX, Owner};

/// The whole result.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// Rounds in program order.
    pub(crate) rounds: Vec<Round>,
    /// Execution count of each instruction of the owner given by `--addresses`: `PATH+0xOFFSET`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) addresses: BTreeMap<String, u64>,
    /// Each cache line of that owner, as `PATH+0xOFFSET` of the object below it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) lines: BTreeMap<String, Line>,
}

/// A cache line of the owner given by `--addresses`.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Line {
    /// Accesses by this owner.
    pub(crate) count: u64,
    /// One of them writes the line.
    pub(crate) is_written: bool,
    /// Another owner accesses the line as well.
    pub(crate) is_shared: bool,
}

/// Sections without a gap between them.
#[derive(Debug, Serialize)]
pub(crate) struct Round {
    pub(crate) sections: Vec<Section>,
    /// Cache lines of data that the owners accessed in the whole round, without the stack. Empty if blocks were counted.
    pub(crate) lines: BTreeMap<String, Lines>,
}

/// Counts between two marks.
#[derive(Debug, Serialize)]
pub(crate) struct Section {
    pub(crate) label: u64,
    pub(crate) owners: BTreeMap<String, Counts>,
}

/// Counts of one owner in a section.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Counts {
    /// Instructions; a repeated instruction counts once.
    pub(crate) instructions: u64,
    /// Instructions that lock a cache line. Zero if blocks were counted.
    pub(crate) locked: u64,
    /// Calls of `malloc`, `calloc`, `realloc` and similar functions.
    pub(crate) allocations: u64,
    pub(crate) system_calls: u64,
    /// Instructions that faulted.
    pub(crate) faults: u64,
}

/// Cache lines of 64 bytes.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Lines {
    pub(crate) all: u64,
    /// Lines that no other owner accessed in the same round.
    pub(crate) own: u64,
}

/// Sums of one round.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    sections: Vec<(u64, [Counts; OWNERS_MAX])>,
    /// Owners of each accessed line, one bit each.
    lines: HashMap<u64, u32>,
}

impl Sums {
    pub(crate) fn begin(&mut self, label: u64) {
        self.sections.push((label, [Counts::default(); OWNERS_MAX]));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sections.is_empty()
    }

    /// Counts of an owner in the current section.
    pub(crate) fn counts(&mut self, owner: Owner) -> Option<&mut Counts> {
        self.sections
            .last_mut()
            .map(|(_, counts)| &mut counts[owner.0])
    }

    pub(crate) fn touch(&mut self, owner: Owner, line: u64) {
        *self.lines.entry(line).or_default() |= 1 << owner.0;
    }

    /// Returns the round, with the owners' names. Without `has_lines` the accessed lines are not known.
    pub(crate) fn finish(self, names: &[String], has_lines: bool) -> Round {
        let named = |number: usize| names[number].clone();
        let sections = self.sections.into_iter().map(|(label, counts)| {
            let owners = counts.into_iter().take(names.len()).enumerate();
            Section {
                label,
                owners: owners
                    .map(|(number, counts)| (named(number), counts))
                    .collect(),
            }
        });
        let mut lines = vec![Lines::default(); names.len()];
        for owners in self.lines.values() {
            for (number, lines) in lines.iter_mut().enumerate() {
                let bit = 1 << number;
                lines.all += u64::from(owners & bit != 0);
                lines.own += u64::from(*owners == bit);
            }
        }
        let lines = lines.into_iter().enumerate().filter(|_| has_lines);
        Round {
            sections: sections.collect(),
            lines: lines
                .map(|(number, lines)| (named(number), lines))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_two_owners_touch_is_nobodys_own() {
        let mut sums = Sums::default();
        assert!(sums.is_empty());
        sums.begin(1);
        let (first, second) = (Owner(0), Owner(1));
        sums.counts(first).expect("begun").instructions += 2;
        sums.begin(2);
        sums.counts(second).expect("begun").faults += 1;
        for (owner, line) in [(first, 5), (first, 5), (first, 6), (second, 6), (second, 7)] {
            sums.touch(owner, line);
        }
        let round = sums.finish(&["a".to_owned(), "b".to_owned()], true);
        assert_eq!(round.sections[0].owners["a"].instructions, 2);
        assert_eq!(round.sections[1].owners["b"].faults, 1);
        let lines = |name: &str| (round.lines[name].all, round.lines[name].own);
        assert_eq!((lines("a"), lines("b")), ((2, 1), (2, 1)));
    }
}
