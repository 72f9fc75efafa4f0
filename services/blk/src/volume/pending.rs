//! What was written since it was last made durable: the data of blocks, to give it to targets again that lose it, and the
//! blocks that each target may lose.

use super::memory::Memory;
use crate::geometry::{Layout, PerTarget, Role};
use crate::record::Half;
use crate::store::{GROUP, Shape};
use smallvec::SmallVec;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most bytes of memory and blocks that wait for a flush. More of them make a write flush.
const BYTES_MAX: usize = 64 << 20;
const BLOCKS_MAX: usize = 1 << 15;

/// The parts of blocks that were written together, which share their memory: it is free when none of them is kept any more.
#[derive(Debug)]
struct Together {
    blocks: SmallVec<[PerTarget<Half>; 1]>,
    bytes: usize,
    /// Bytes of all of them.
    kept: Arc<AtomicUsize>,
}

impl Together {
    fn new(
        blocks: SmallVec<[PerTarget<Half>; 1]>,
        layout: Layout,
        kept: &Arc<AtomicUsize>,
    ) -> Self {
        // Copies are the same bytes.
        let count = if layout.is_mirror() { 1 } else { usize::MAX };
        let halves = blocks.iter().flat_map(|halves| halves.iter().take(count));
        let bytes = halves.map(|half| half.data.len()).sum();
        // Relaxed: a count orders nothing.
        kept.fetch_add(bytes, Ordering::Relaxed);
        Self {
            blocks,
            bytes,
            kept: Arc::clone(kept),
        }
    }
}

impl Drop for Together {
    fn drop(&mut self) {
        self.kept.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The parts of a block, for all targets.
#[derive(Debug, Clone)]
pub(super) struct Parts {
    together: Arc<Together>,
    nth: usize,
}

impl std::ops::Deref for Parts {
    type Target = PerTarget<Half>;

    fn deref(&self) -> &Self::Target {
        &self.together.blocks[self.nth]
    }
}

/// A block that too few targets have made durable.
#[derive(Debug)]
struct Written {
    generation: u64,
    /// Targets that hold this generation, durable or not.
    holders: u16,
    /// The generation that the flush under way makes durable; 0: none.
    covered: u64,
    parts: Parts,
}

impl State {
    /// True if no other block of a group waits.
    fn is_alone(&self, block: u64) -> bool {
        let group = block / GROUP * GROUP;
        let mut others = self.blocks.range(group..group + GROUP);
        others.all(|(other, _)| *other == block)
    }
}

#[derive(Debug, Default)]
struct State {
    blocks: BTreeMap<u64, Written>,
    /// Groups of the targets' indexes in which they are.
    groups: u64,
    /// Flushes that have begun.
    begun: u64,
    /// Blocks that targets hold and have not made durable. For each target the number of the first flush that does; 0: none.
    unsynced: BTreeMap<u64, PerTarget<u64>>,
    /// Blocks of which nothing at a target counts before it is written again: the target has left before they were durable.
    doubted: PerTarget<BTreeSet<u64>>,
}

/// A block that a flush must make durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Due {
    pub(super) block: u64,
    pub(super) generation: u64,
    /// Targets that held it when the flush began.
    pub(super) holders: u16,
}

/// What a flush has to do.
pub(super) struct Batch {
    pub(super) due: Vec<Due>,
    /// Number of the flush.
    number: u64,
}

/// Blocks that wait for a flush.
#[derive(Debug)]
pub(super) struct Pending {
    layout: Layout,
    /// Most groups that may wait: what waits stays in change at the targets.
    groups_max: u64,
    /// Bytes of memory that waits.
    kept: Arc<AtomicUsize>,
    memory: Memory,
    state: Mutex<State>,
}

impl Pending {
    /// For a volume whose targets have room for so many blocks in their indexes.
    pub(super) fn new(layout: Layout, room: u64) -> Self {
        let doubted = layout.map(|_| BTreeSet::new());
        let groups_max = match layout.keeps_flushed() {
            true => Shape::with_room(room).groups_that_wait(),
            false => u64::MAX,
        };
        Self {
            layout,
            groups_max,
            kept: Arc::default(),
            memory: Memory::new(BYTES_MAX),
            state: Mutex::new(State {
                doubted,
                ..State::default()
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic cannot leave it half changed in a way that matters: the byte count alone may be too high.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory for the parts of blocks.
    pub(super) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Blocks were written together: their numbers, generations, the targets that hold them, and their parts.
    pub(super) fn wrote(
        &self,
        blocks: impl IntoIterator<Item = ((u64, u64, u16), PerTarget<Half>)>,
    ) {
        let blocks = blocks.into_iter();
        let count = blocks.size_hint().1.unwrap_or(0);
        let mut names: SmallVec<[(u64, u64, u16); 1]> = SmallVec::with_capacity(count);
        let mut parts = SmallVec::with_capacity(count);
        for (name, of_block) in blocks {
            names.push(name);
            parts.push(of_block);
        }
        let together = Arc::new(Together::new(parts, self.layout, &self.kept));
        let mut state = self.state();
        let next = state.begun + 1;
        for (nth, (block, generation, holders)) in names.into_iter().enumerate() {
            let mut new = Written {
                generation,
                holders,
                covered: 0,
                parts: Parts {
                    together: Arc::clone(&together),
                    nth,
                },
            };
            // Before it is among them.
            let is_alone = self.counts_groups() && state.is_alone(block);
            match state.blocks.entry(block) {
                Entry::Occupied(mut old) => {
                    new.covered = old.get().covered;
                    old.insert(new);
                }
                Entry::Vacant(place) => {
                    place.insert(new);
                    state.groups += u64::from(is_alone);
                }
            }
            let unsynced = self.layout.map(|role| match holders & role.bit() {
                0 => 0,
                _ => next,
            });
            state.unsynced.insert(block, unsynced);
            for doubted in &mut state.doubted {
                doubted.remove(&block);
            }
        }
    }

    /// True if so many groups may wait that they are counted.
    fn counts_groups(&self) -> bool {
        self.groups_max != u64::MAX
    }

    /// A target holds a generation of a block, newly written or not.
    pub(super) fn holds(&self, block: u64, generation: u64, role: Role, is_durable: bool) {
        let mut state = self.state();
        if let Some(written) = state.blocks.get_mut(&block)
            && written.generation == generation
        {
            written.holders |= role.bit();
        }
        if !is_durable {
            state.doubted[role.index()].remove(&block);
            let next = state.begun + 1;
            let flushes = state.unsynced.entry(block);
            flushes.or_insert_with(|| self.layout.map(|_| 0))[role.index()] = next;
        }
    }

    /// A target has left its place. What it had not made durable does not count when it returns.
    pub(super) fn left(&self, role: Role) {
        let mut state = self.state();
        let State {
            unsynced, doubted, ..
        } = &mut *state;
        for (block, flushes) in unsynced {
            if std::mem::take(&mut flushes[role.index()]) != 0 {
                doubted[role.index()].insert(*block);
            }
        }
        for written in state.blocks.values_mut() {
            written.holders &= !role.bit();
        }
    }

    /// True if what a target holds of a block does not count.
    pub(super) fn is_doubted(&self, role: Role, block: u64) -> bool {
        self.state().doubted[role.index()].contains(&block)
    }

    /// The parts of a generation, if it waits for a flush.
    pub(super) fn parts(&self, block: u64, generation: u64) -> Option<Parts> {
        let state = self.state();
        let written = state.blocks.get(&block)?;
        (written.generation == generation).then(|| written.parts.clone())
    }

    /// Blocks that wait and that a target does not hold.
    pub(super) fn absent_at(&self, role: Role) -> Vec<u64> {
        let state = self.state();
        let blocks = state.blocks.iter();
        let absent = blocks.filter(|(_, written)| written.holders & role.bit() == 0);
        absent.map(|(block, _)| *block).collect()
    }

    /// True if nothing waits, and no target has left something undone.
    pub(super) fn is_empty(&self) -> bool {
        let state = self.state();
        state.blocks.is_empty() && state.doubted.iter().all(BTreeSet::is_empty)
    }

    /// Number of blocks that wait and that too few targets hold. Their data is here.
    pub(super) fn kept_here(&self) -> u64 {
        let state = self.state();
        let mut blocks = state.blocks.values();
        let few = |written: &&Written| self.layout.is_short(written.holders);
        blocks.by_ref().filter(few).count() as u64
    }

    /// True if so much waits that a flush is due, or `times` as much.
    pub(super) fn is_flush_due(&self, times: usize) -> bool {
        let state = self.state();
        self.kept.load(Ordering::Relaxed) > times * BYTES_MAX
            || state.blocks.len() > times * BLOCKS_MAX
            || state.groups > self.groups_max.saturating_mul(times as u64)
    }

    /// What a flush that begins now has to make durable.
    pub(super) fn begin(&self) -> Batch {
        let mut state = self.state();
        state.begun += 1;
        let due = state.blocks.iter().map(|(block, written)| Due {
            block: *block,
            generation: written.generation,
            holders: written.holders,
        });
        Batch {
            due: due.collect(),
            number: state.begun,
        }
    }

    /// As [`Pending::begin`], for a flush of all targets, which keep what it is about until [`Pending::uncover`].
    pub(super) fn cover(&self) -> Batch {
        let batch = self.begin();
        let mut state = self.state();
        for written in state.blocks.values_mut() {
            written.covered = written.generation;
        }
        batch
    }

    /// The flush of all targets has ended.
    pub(super) fn uncover(&self) {
        let mut state = self.state();
        for written in state.blocks.values_mut() {
            written.covered = 0;
        }
    }

    /// True if a write of blocks, which keeps the last generations beside its own, must not begin: the flush under way is about
    /// one before that.
    pub(super) fn wait_for_flush(&self, mut blocks: impl Iterator<Item = u64>) -> bool {
        let state = self.state();
        blocks.any(|block| {
            let written = state.blocks.get(&block);
            written.is_some_and(|written| ![0, written.generation].contains(&written.covered))
        })
    }

    /// A target has made durable what it held when `batch` began.
    pub(super) fn synced(&self, role: Role, batch: &Batch) {
        let mut state = self.state();
        state.unsynced.retain(|_, flushes| {
            if flushes[role.index()] <= batch.number {
                flushes[role.index()] = 0;
            }
            flushes.iter().any(|flush| *flush != 0)
        });
    }

    /// The targets `durable` have made durable what they held when the flush began. Returns the blocks of it of which that
    /// are too few, or not all that are required.
    pub(super) fn done(&self, batch: Batch, durable: u16, required: u16) -> Vec<Due> {
        let mut state = self.state();
        let mut left = batch.due;
        left.retain(|due| {
            let holders = due.holders & durable;
            if self.layout.is_short(holders) || required & !holders != 0 {
                return true;
            }
            let is_same = state.blocks.get(&due.block);
            if is_same.is_some_and(|written| written.generation == due.generation) {
                state.groups -= u64::from(self.counts_groups() && state.is_alone(due.block));
                state.blocks.remove(&due.block);
            }
            false
        });
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Kind;
    use bytes::Bytes;

    fn parts(generation: u64) -> PerTarget<Half> {
        Layout::HALVES.map(|role| Half {
            generation,
            kind: Kind::Raw,
            stored: 3,
            data: vec![0; role.index() + 1].into(),
        })
    }

    /// Blocks that are written together share their memory: it waits as long as one of them does. Copies are the same bytes.
    #[test]
    fn memory_waits_until_its_last_block_does_not() {
        let copies = "mirror-2".parse().unwrap();
        // Halves of a fifth of what may wait.
        for (layout, count) in [(Layout::HALVES, 2), (copies, 6)] {
            let pending = Pending::new(layout, 1 << 16);
            let data = Bytes::from(vec![0; BYTES_MAX / 5]);
            let long = layout.map(|_| Half {
                generation: 9,
                kind: Kind::Raw,
                stored: 3,
                data: data.clone(),
            });
            let short = |block, generation| [((block, generation, 0b11), parts(generation))];
            pending.wrote((0..count).map(|block| ((block, 9, 0b11), long.clone())));
            assert!(pending.is_flush_due(1) && !pending.is_flush_due(2));
            for block in 1..count {
                pending.wrote(short(block, 10));
                assert!(pending.is_flush_due(1), "block 0 keeps it");
            }
            let kept = pending.parts(0, 9);
            pending.wrote(short(0, 10));
            assert!(pending.is_flush_due(1), "it is in use");
            drop(kept);
            assert!(!pending.is_flush_due(1));
        }
    }

    #[test]
    fn a_target_that_leaves_before_a_flush_is_doubted_until_it_is_written_again() {
        let pending = Pending::new(Layout::HALVES, 1 << 16);
        pending.wrote([((4, 9, 0b011), parts(9))]);
        let batch = pending.begin();
        pending.synced(Role::FIRST, &batch);
        for role in [Role::FIRST, Role::SECOND] {
            pending.left(role);
        }
        assert!(!pending.is_doubted(Role::FIRST, 4), "it was durable there");
        assert!(pending.is_doubted(Role::SECOND, 4));
        assert_eq!(pending.absent_at(Role::SECOND), [4]);
        assert_eq!(pending.kept_here(), 1);
        pending.holds(4, 9, Role::FIRST, true);
        pending.holds(4, 9, Role::SECOND, false);
        assert!(!pending.is_doubted(Role::SECOND, 4));
        assert_eq!(pending.begin().due[0].holders, 0b011);
        assert!(pending.done(pending.begin(), 0b011, 0).is_empty());
        assert!(pending.begin().due.is_empty() && pending.parts(4, 9).is_none());
    }

    /// Targets have space for one generation beside that of the flush and the one that was flushed before.
    #[test]
    fn the_second_write_of_a_block_during_a_flush_of_all_targets_waits_for_its_end() {
        let pending = Pending::new("4+2".parse().unwrap(), 1 << 16);
        pending.wrote([((4, 9, 0b11_1111), parts(9))]);
        assert!(!pending.wait_for_flush([4].into_iter()));
        let batch = pending.cover();
        assert!(
            !pending.wait_for_flush([4].into_iter()),
            "the first one keeps 9"
        );
        pending.wrote([((4, 10, 0b11_1111), parts(10))]);
        assert!(
            pending.wait_for_flush([4].into_iter()) && !pending.wait_for_flush([5].into_iter())
        );
        assert!(pending.done(batch, 0b11_1111, 0b11_1111).is_empty());
        pending.uncover();
        assert!(!pending.wait_for_flush([4].into_iter()));
        // Groups that stay in change until then are few.
        for group in 0..600 {
            pending.wrote([((group * GROUP, 11, 0b11_1111), parts(11))]);
            pending.wrote([((group * GROUP + 1, 11, 0b11_1111), parts(11))]);
        }
        assert!(pending.is_flush_due(1) && !pending.is_flush_due(2));
        let batch = pending.begin();
        pending.done(batch, 0b11_1111, 0b11_1111);
        assert_eq!(pending.state().groups, 0);
    }

    #[test]
    fn a_flush_ends_nothing_that_was_written_after_it_began() {
        let pending = Pending::new(Layout::HALVES, 1 << 16);
        pending.wrote([((4, 9, 0b111), parts(9))]);
        let batch = pending.begin();
        pending.wrote([((4, 10, 0b111), parts(10))]);
        pending.synced(Role::FIRST, &batch);
        assert!(pending.done(batch, 0b111, 0).is_empty());
        assert_eq!(pending.begin().due[0].generation, 10);
        pending.left(Role::FIRST);
        assert!(pending.is_doubted(Role::FIRST, 4));
        assert!(!pending.is_flush_due(1));
        for block in 0..=BLOCKS_MAX as u64 {
            pending.wrote([((block, 11, 0b111), parts(11))]);
        }
        assert!(pending.is_flush_due(1) && !pending.is_flush_due(2));
    }
}
