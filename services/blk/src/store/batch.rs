//! Steps of several blocks at once. What is adjacent on the medium is written and read by one call: on an NBD server each
//! call costs a round trip, and in a file a system call.
//!
//! The order is that of single steps: records first, then the index. Each entry of the index lies in one sector, so a call
//! that does not reach the medium as a whole leaves each entry old or new, as single calls do.

use super::index::AT_ONCE;
use super::index::without_bytes;
use super::layout::GROUP;
use super::space::{Extent, Space};
use super::table::{Company, nth};
use super::{Change, Intent, Looked, Record, State, Step, Store, Target as _};
use crate::error::{BlkError, Result};
use crate::record::{self, Half};
use bytes::Bytes;
use smallvec::SmallVec;
use std::sync::atomic::Ordering;

/// What is behind a record, up to the next unit.
const NOTHING: [u8; record::HEADER] = [0; record::HEADER];

/// Most bytes of a call.
const RUN_MAX: u64 = 1 << 20;

/// The results of steps.
type Results = Vec<Result<Option<Half>>>;

impl Store {
    /// Carries out steps, each of another block.
    pub(crate) fn run(&self, steps: &[Step<'_>]) -> Results {
        if let [step] = steps {
            return vec![self.finish(self.begin(*step))];
        }
        let mut results: Results = steps.iter().map(|_| Ok(None)).collect();
        let count = |of: fn(&Step<'_>) -> bool| steps.iter().filter(|step| of(step)).count();
        let prepares = count(|step| matches!(step, Step::Prepare { .. }));
        let fetched = count(|step| matches!(step, Step::Fetch { .. }));
        let mut intents = Vec::with_capacity(steps.len() - fetched);
        let mut records = Vec::with_capacity(prepares);
        let mut fetches = Vec::with_capacity(fetched);
        let fetched = steps.iter().filter_map(|step| match *step {
            Step::Fetch { block, .. } => Some(block),
            _ => None,
        });
        let mut looked = self.look_ahead(fetched);
        let mut room = self.take_room(steps);
        for (at, step) in steps.iter().enumerate() {
            let planned = match *step {
                Step::Prepare { block, half, keep } => {
                    self.plan(block, half, &mut room).map(|(slot, record)| {
                        records.extend(record.map(|record| (at, record)));
                        intents.push((at, block, Intent::Prepare { slot, keep }));
                    })
                }
                Step::Commit { block, generation } => {
                    intents.push((at, block, Intent::Commit { generation }));
                    Ok(())
                }
                Step::Fetch { block, generation } => {
                    let found = self.find(block, generation, &mut looked);
                    found.map(|slot| match slot.extent() {
                        Some(extent) => fetches.push((at, extent)),
                        None => results[at] = Ok(Some(without_bytes(&slot))),
                    })
                }
            };
            if let Err(error) = planned {
                results[at] = Err(error);
            }
        }
        if let Some(left) = room.0.filter(|left| left.length > 0) {
            self.state().space.give(left);
        }
        self.write_records(records, &mut results);
        self.prepare_again(steps, &mut intents, &mut results);
        self.write_changes(intents, &mut results);
        self.fetch_runs(steps, fetches, &mut results);
        results
    }

    /// Leaves out what has failed. What had no space on the medium is carried out alone: that frees some.
    fn prepare_again(
        &self,
        steps: &[Step<'_>],
        intents: &mut Vec<(usize, u64, Intent)>,
        results: &mut Results,
    ) {
        intents.retain(|(at, ..)| {
            let result = &mut results[*at];
            if let (Err(BlkError::Io { .. }), Step::Prepare { block, half, keep }) =
                (&result, steps[*at])
                && result.as_ref().is_err_and(BlkError::is_full)
            {
                *result = self.prepare(block, half, keep).map(|()| None);
                return false;
            }
            result.is_ok()
        });
    }

    fn write_records(&self, mut records: Vec<(usize, Record<'_>)>, results: &mut Results) {
        records.sort_unstable_by_key(|(_, record)| record.extent);
        for run in runs(&records, |(_, record)| record.extent) {
            if let [(_, first), _, ..] = run {
                let mut parts: Vec<&[u8]> = Vec::with_capacity(3 * run.len());
                for (_, record) in run {
                    parts.extend([&record.header[..], record.data]);
                    // What is behind a record in its range belongs to it.
                    let length = record::HEADER + record.data.len();
                    let behind = usize::try_from(record.extent.length).unwrap_or(length) - length;
                    parts.push(&NOTHING[..behind]);
                }
                // But for the last one.
                parts.pop();
                if self.medium.write_parts(first.extent.offset, &parts).is_ok() {
                    continue;
                }
            }
            // One at a time each has its own result.
            for (at, record) in run {
                if let Err(error) = self.write_record(record) {
                    results[*at] = Err(error);
                }
            }
        }
    }

    fn write_changes(&self, mut intents: Vec<(usize, u64, Intent)>, results: &mut Results) {
        intents.sort_unstable_by_key(|(_, block, _)| *block);
        let mut alone = Vec::new();
        let shared = self.shared();
        let looked = self.look_ahead(intents.iter().map(|(_, block, _)| *block));
        let with = match &intents[..] {
            [_, _, ..] => Company::Neighbours,
            _ => Company::Others,
        };
        // Of what is changed, the steps are in the same order.
        let mut changes: Vec<Change> = Vec::with_capacity(intents.len());
        let mut changed: SmallVec<[usize; 64]> = SmallVec::with_capacity(intents.len());
        let blocks = self.blocks.load(Ordering::Acquire);
        {
            let mut state = self.state();
            for of_group in
                intents.chunk_by(|(_, one, _), (_, next, _)| one / GROUP == next / GROUP)
            {
                let mut add = |(at, change): (usize, Change)| {
                    changed.push(at);
                    changes.push(change);
                };
                state.change_group(of_group, (&looked, with, blocks), &mut add, &mut alone);
            }
        }
        let mut from = 0;
        for run in changes.chunk_by(|one, next| one.block + 1 == next.block) {
            let of_run = &changed[from..from + run.len()];
            from += run.len();
            if run.len() > 1 && self.replace(run).is_ok() {
                continue;
            }
            for (at, change) in of_run.iter().zip(run) {
                if let Err(error) = self.replace(std::slice::from_ref(change)) {
                    results[*at] = Err(error);
                }
            }
        }
        drop(shared);
        // These wait for the end of a sync, have an error, or their entries must be looked up.
        for (at, block, intent) in alone {
            results[at] = self.enter(block, intent).map(|()| None);
        }
    }

    fn fetch_runs(
        &self,
        steps: &[Step<'_>],
        mut fetches: Vec<(usize, Extent)>,
        results: &mut Results,
    ) {
        fetches.sort_unstable_by_key(|(_, extent)| *extent);
        let range = |(_, extent): &(usize, Extent)| Extent {
            length: Space::rounded(extent.length),
            ..*extent
        };
        for run in runs(&fetches, range) {
            let mut all = Bytes::new();
            if let ([(_, first), _, ..], [.., (_, last)]) = (run, run) {
                let length = last.offset + last.length - first.offset;
                // Cannot be cut: a run has a maximum.
                let length = usize::try_from(length).unwrap_or(0);
                if let Ok(bytes) = self.medium.read_new(first.offset, length) {
                    all = bytes.into();
                }
            }
            let start = run.first().map_or(0, |(_, first)| first.offset);
            for (at, extent) in run {
                let Step::Fetch { block, generation } = steps[*at] else {
                    continue;
                };
                let from = usize::try_from(extent.offset - start).unwrap_or(usize::MAX);
                let to = from.saturating_add(usize::try_from(extent.length).unwrap_or(0));
                results[*at] = match to <= all.len() {
                    true => self.parse(block, generation, &all.slice(from..to)),
                    false => self.read(block, generation, *extent),
                }
                .map(Some);
            }
        }
    }
}

impl State {
    /// What steps change whose blocks are of one group, by one look at it. Those that need more than that go to `alone`.
    fn change_group(
        &mut self,
        intents: &[(usize, u64, Intent)],
        (looked, with, blocks): (&Looked, Company, u64),
        add: &mut impl FnMut((usize, Change)),
        alone: &mut Vec<(usize, u64, Intent)>,
    ) {
        let Some((_, first, _)) = intents.first() else {
            return;
        };
        let number = first / GROUP;
        let mut is_in_change = self.table.groups.contains_key(&number);
        let entries = self.table.entries(number);
        let Some(entries) = entries.or_else(|| looked.get(&number).copied()) else {
            alone.extend_from_slice(intents);
            return;
        };
        for intent @ (at, block, change) in intents {
            let old = entries[nth(*block)];
            let new = (*block < blocks).then(|| change.applied(&old, self.released));
            let Some(new) = new.flatten() else {
                alone.push(*intent);
                continue;
            };
            if self.released != AT_ONCE && new.has_more() {
                self.kept.insert(*block);
            }
            if new == old {
                continue;
            }
            is_in_change = is_in_change || self.table.begin(number, entries, with);
            match is_in_change {
                true => add((
                    *at,
                    Change {
                        block: *block,
                        old,
                        new,
                    },
                )),
                false => alone.push(*intent),
            }
        }
    }
}

/// Parts of sorted items whose ranges are adjacent.
fn runs<T>(items: &[T], range: impl Fn(&T) -> Extent) -> impl Iterator<Item = &[T]> {
    let mut rest = items;
    std::iter::from_fn(move || {
        let mut ranges = rest.iter().map(&range);
        let first = ranges.next()?;
        let mut end = first.end();
        let adjacent = ranges.take_while(|range| {
            let fits = range.offset == end && range.end() - first.offset <= RUN_MAX;
            end = range.end();
            fits
        });
        let (run, left) = rest.split_at(1 + adjacent.count());
        rest = left;
        Some(run)
    })
}
