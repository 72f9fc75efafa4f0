//! Reads, writes and flushes of a volume.

use super::memory::SHORTEST;
use super::parts::Halves;
use super::seats::{Seat, same};
use super::stack::View;
use super::state::{BlockState, Volume, add};
use super::steps::{Outcome, begin_each};
use super::turns::Locks;
use crate::block::{self, Encoded, Kind};
use crate::error::{BlkError, Result};
use crate::geometry::{GeometryError, PerTarget, Role};
use crate::record::Half;
use crate::say::say;
use crate::store::{Begun, KEEP_ALL, Step, Target};
use bytes::Bytes;
use smallvec::SmallVec;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

/// The part of a range that lies in one block.
struct Piece {
    block: u64,
    /// Start in the block.
    at: usize,
    /// Part of the caller's bytes.
    range: std::ops::Range<usize>,
}

impl Piece {
    fn block(&self) -> u64 {
        self.block
    }
}

/// A block that is to be written.
pub(super) struct BlockWrite {
    block: u64,
    keep: u64,
    generation: u64,
    kind: Kind,
    halves: PerTarget<Half>,
}

/// The targets that an operation uses. None: absent.
pub(super) type Targets = PerTarget<Option<Arc<dyn Target>>>;

/// Most blocks whose calls are under way at once, far below the number of locks.
const GROUP_BLOCKS: usize = 64;
/// Most bytes of them. A target's connection holds them until it has sent them.
const GROUP_BYTES: usize = 1 << 20;

/// Most blocks of an answer about extents.
const EXTENT_BLOCKS: u64 = 1 << 16;

/// A run of bytes in the same state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes.
    pub length: u64,
    /// The bytes are zero and take no space.
    pub zero: bool,
}

impl Volume {
    fn pieces(&self, offset: u64, length: usize) -> impl Iterator<Item = Piece> + use<> {
        let size = self.geometry().block_size();
        let mut done = 0;
        std::iter::from_fn(move || {
            let position = offset + done as u64;
            // Cannot be cut: less than a block.
            let at = usize::try_from(position % u64::from(size)).unwrap_or(0);
            let count = (length - done).min(size as usize - at);
            let range = done..done + count;
            done = range.end;
            (count != 0).then_some(Piece {
                block: position / u64::from(size),
                at,
                range,
            })
        })
    }

    fn all_pieces(&self, offset: u64, length: usize) -> Vec<Piece> {
        // Both ends may lie in a block of their own.
        let mut all = Vec::with_capacity(length / self.geometry().block_len() + 2);
        all.extend(self.pieces(offset, length));
        all
    }

    /// Reads `bytes` from `offset`. Blocks that were never written are zero.
    ///
    /// # Errors
    /// The range is outside the volume, or a block is lost.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.geometry().check(offset, bytes.len() as u64)?;
        self.read_of(None, offset, bytes)
    }

    /// Reads the volume, or a snapshot. The range is inside it.
    pub(super) fn read_of(&self, of: Option<u32>, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let pieces = self.all_pieces(offset, bytes.len());
        let length = bytes.len() as u64;
        let mut rest = bytes;
        let mut groups = Vec::new();
        for group in pieces.chunks(self.group()) {
            let count = group.iter().map(|piece| piece.range.len()).sum();
            let (part, behind) = rest.split_at_mut(count);
            groups.push((group, part));
            rest = behind;
        }
        self.each_group(groups, |(group, part)| {
            self.with_return(|| self.read_group(of, group, part))
        })?;
        add(&self.counters.read_bytes, length);
        Ok(())
    }

    /// Writes `bytes` at `offset`. When it returns, the data is at enough targets, and [`Volume::flush`] makes it
    /// durable.
    ///
    /// # Errors
    /// The range is outside the volume, a block that is written in part is lost, or too few targets accept the
    /// data. Each block then holds its old data, or the new one.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.geometry().check(offset, bytes.len() as u64)?;
        let pieces = self.all_pieces(offset, bytes.len());
        let groups: Vec<&[Piece]> = pieces.chunks(self.group()).collect();
        self.each_group(groups, |group| {
            self.with_return(|| {
                self.relieve()?;
                self.update(group, (false, None), |piece| {
                    Some(&bytes[piece.range.clone()])
                })
            })
        })?;
        add(&self.counters.written_bytes, bytes.len() as u64);
        Ok(())
    }

    /// As [`Volume::write`]. The bytes of a group of whole blocks that are stored as they are stay where they are until a flush.
    ///
    /// # Errors
    /// As [`Volume::write`].
    pub fn write_owned(&self, offset: u64, bytes: Vec<u8>) -> Result<()> {
        let length = bytes.len();
        self.geometry().check(offset, length as u64)?;
        let shared = self.pending.memory().share(bytes);
        let pieces = self.all_pieces(offset, length);
        let is_whole = pieces.len() * self.geometry().block_len() == length;
        if length < SHORTEST || !is_whole || pieces.len() > self.group() || self.cipher.is_some() {
            return self.write(offset, &shared);
        }
        self.with_return(|| {
            self.relieve()?;
            let new = |piece: &Piece| Some(&shared[piece.range.clone()]);
            self.update(&pieces, (false, Some(&shared)), new)
        })?;
        add(&self.counters.written_bytes, length as u64);
        Ok(())
    }

    /// Memory for the bytes of a long write, with other ones in it. Empty: there is none.
    pub fn memory(&self, length: usize) -> Vec<u8> {
        self.pending.memory().take_full(length)
    }

    /// Blocks whose calls are under way at once.
    pub(super) fn group(&self) -> usize {
        (GROUP_BYTES / self.geometry().block_len()).clamp(1, GROUP_BLOCKS)
    }

    /// Writes zeros. Whole blocks take no space unless `allocate` is set.
    ///
    /// # Errors
    /// As [`Volume::write`].
    pub fn write_zeroes(&self, offset: u64, length: u64, allocate: bool) -> Result<()> {
        self.geometry().check(offset, length)?;
        self.clear(self.pieces(offset, length_of(length)?), allocate)
    }

    /// Gives the space of whole blocks back. They are zero afterwards. The rest of the range does not change.
    ///
    /// # Errors
    /// As [`Volume::write`].
    pub fn trim(&self, offset: u64, length: u64) -> Result<()> {
        self.geometry().check(offset, length)?;
        let whole = |piece: &Piece| piece.range.len() == self.geometry().block_len();
        self.clear(self.pieces(offset, length_of(length)?).filter(whole), false)
    }

    fn clear(&self, mut pieces: impl Iterator<Item = Piece>, allocate: bool) -> Result<()> {
        loop {
            let group: Vec<Piece> = pieces.by_ref().take(self.group()).collect();
            if group.is_empty() {
                return Ok(());
            }
            self.with_return(|| {
                self.relieve()?;
                self.update(&group, (allocate, None), |_| None)
            })?;
        }
    }

    /// The states of the bytes from `offset` on, up to `length` bytes in at most `limit` runs.
    ///
    /// # Errors
    /// The range is outside the volume, or another process has opened the volume since.
    pub fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>> {
        self.geometry().check(offset, length)?;
        self.extents_of(None, (offset, length), limit)
    }

    /// As [`Volume::extents`], of the volume or a snapshot. The range is inside it.
    pub(super) fn extents_of(
        &self,
        of: Option<u32>,
        (offset, length): (u64, u64),
        limit: usize,
    ) -> Result<Vec<Extent>> {
        let first = offset / u64::from(self.block_size);
        let last = (offset + length).div_ceil(u64::from(self.block_size));
        // Of a volume that was written from end to end most would be looked up for nothing.
        let last = last.min(first + EXTENT_BLOCKS);
        let mut extents: Vec<Extent> = Vec::new();
        self.with_return(|| {
            // With any lock the table of layers stays.
            let _lock = self.locks.one(first);
            let view = self.view(of)?;
            self.know_of(&view, first..last)?;
            extents.clear();
            for piece in self.pieces(offset, length_of(length)?) {
                if piece.block >= last {
                    break;
                }
                let state = self.state(self.source(&view, piece.block));
                let zero = !state.lost && (state.generation == 0 || state.zero);
                let length = piece.range.len() as u64;
                let last = extents.len();
                match extents.last_mut() {
                    Some(run) if run.zero == zero => run.length += length,
                    _ if last == limit => break,
                    _ => extents.push(Extent { length, zero }),
                }
            }
            Ok(())
        })?;
        let shows_zeros = extents.iter().any(|extent| extent.zero);
        self.with_return(|| if shows_zeros { self.confirm() } else { Ok(()) })?;
        Ok(extents)
    }

    /// The targets now.
    pub(super) fn targets(&self) -> Targets {
        self.layout.map(|role| self.target(role).ok())
    }

    /// Takes the end of a step.
    fn finish(&self, targets: &Targets, role: Role, begun: Option<Begun>) -> Result<Option<Half>> {
        let (Some(target), Some(begun)) = (&targets[role.index()], begun) else {
            return Err(BlkError::Offline(role));
        };
        self.judged(target, target.finish(begun))
    }

    /// Carries out a step for each block at each target, all of them at once. `step` returns nothing for those that are
    /// left out.
    pub(super) fn each<'a, T>(
        &self,
        targets: &Targets,
        blocks: &'a [T],
        step: impl Fn(usize, &'a T, Role) -> Option<Step<'a>>,
    ) -> Outcome {
        let begun = begin_each(self.layout, targets, blocks, step);
        let mut outcome = Outcome::new(self.layout, blocks.len());
        // The last one that was sent to first: behind its answer those of the others have arrived, too.
        for (role, begun) in self.layout.roles().zip(begun).rev() {
            let Some(target) = &targets[role.index()] else {
                continue;
            };
            let mut take = |at: usize, ended| outcome.put(at, role, self.judged(target, ended));
            let mut steps = begun.steps;
            if let ([at], 1) = (&begun.places[..], steps.len()) {
                steps
                    .pop()
                    .into_iter()
                    .for_each(|step| take(*at, target.finish(step)));
                continue;
            }
            let ended = target.finish_all(steps.into_vec());
            begun
                .places
                .into_iter()
                .zip(ended)
                .for_each(|(at, ended)| take(at, ended));
        }
        outcome
    }

    /// A target that fails is not used any more, unless it is only full.
    fn judged<T>(&self, target: &Arc<dyn Target>, ended: Result<T>) -> Result<T> {
        ended.inspect_err(|error| {
            if !error.is_full() {
                self.fail(target, error);
            }
        })
    }

    /// The targets that were successful.
    pub(super) fn successful(&self, done: &[Result<()>]) -> u16 {
        self.layout.mask(|role| done[role.index()].is_ok())
    }

    /// An error unless so many targets were successful that they restore each block.
    pub(super) fn enough(&self, done: &[Result<()>]) -> Result<()> {
        let usable = done.iter().filter(|done| done.is_ok()).count();
        if usable >= self.layout.needed() {
            return Ok(());
        }
        if let Some(Err(BlkError::Full {
            target,
            wanted,
            free,
            capacity,
        })) = done
            .iter()
            .find(|done| matches!(done, Err(BlkError::Full { .. })))
        {
            return Err(BlkError::Full {
                target: target.clone(),
                wanted: *wanted,
                free: *free,
                capacity: *capacity,
            });
        }
        let reasons = done.iter().filter_map(|done| done.as_ref().err());
        let reasons: Vec<String> = reasons.map(ToString::to_string).collect();
        Err(BlkError::TooFewTargets {
            layout: self.layout,
            usable,
            reasons: reasons.join(", "),
        })
    }

    fn know_group(&self, view: &View, group: &[Piece]) -> Result<()> {
        let (Some(first), Some(last)) = (group.first(), group.last()) else {
            return Ok(());
        };
        self.know_of(view, first.block..last.block + 1)
    }

    fn lock_all(&self, group: &[Piece]) -> Locks<MutexGuard<'_, ()>> {
        self.locks.of(group.iter().map(|piece| piece.block))
    }

    /// As [`Volume::update_once`]. A target that is full only because of what a flush would drop gets space.
    fn update<'a>(
        &self,
        group: &[Piece],
        how: (bool, Option<&Bytes>),
        source: impl Fn(&Piece) -> Option<&'a [u8]>,
    ) -> Result<()> {
        match self.update_once(group, how, &source) {
            Err(error) if error.is_full() && self.layout.keeps_flushed() => {
                // The first one lets them drop it, the second one frees it.
                self.flush_once()?;
                self.flush_once()?;
                self.update_once(group, how, source)
            }
            done => done,
        }
    }

    /// Changes parts of blocks, or whole ones. `source` gives the new bytes of a piece. None: zeros, which take space with
    /// `allocate`. The bytes of all of them, whole blocks, may be `kept`.
    fn update_once<'a>(
        &self,
        group: &[Piece],
        (allocate, kept): (bool, Option<&Bytes>),
        source: impl Fn(&Piece) -> Option<&'a [u8]>,
    ) -> Result<()> {
        let _locks = self.lock_all(group);
        let view = self.view(None)?;
        self.know_group(&view, group)?;
        let length = self.geometry().block_len();
        let places = group.iter().map(|piece| self.sink(&view, piece.block));
        let _writing = self.begin_write(places);
        let mut whole = Vec::new();
        let mut places: SmallVec<[(u64, u64); 1]> = SmallVec::with_capacity(group.len());
        let memory = self.pending.memory();
        let mut run = match kept {
            Some(kept) => block::Run::of(self.layout, group.len(), kept.clone()),
            None => {
                let bytes = group.len() * block::raw_bytes(self.layout, length);
                block::Run::new(self.layout, group.len(), memory.take(bytes))
            }
        };
        for piece in group {
            let new = source(piece);
            let content = match new {
                Some(new) if new.len() == length => new,
                new => {
                    whole.resize(length, 0);
                    if piece.range.len() != length {
                        self.read_block(self.source(&view, piece.block), &mut whole)?;
                    }
                    let part = &mut whole[piece.at..piece.at + piece.range.len()];
                    match new {
                        Some(new) => part.copy_from_slice(new),
                        None => part.fill(0),
                    }
                    &whole[..]
                }
            };
            let place = (self.sink(&view, piece.block), self.next_generation());
            run.push(content, allocate, self.seal(place.0, place.1));
            places.push(place);
        }
        let writes = places.into_iter().zip(run.finish(|all| memory.share(all)));
        let writes = writes.map(|(place, encoded)| self.new_generation(place, encoded));
        self.write_blocks(writes.collect())
    }

    /// A write of a block, which replaces what is at its place.
    pub(super) fn new_write(&self, block: u64, content: &[u8], allocate: bool) -> BlockWrite {
        let generation = self.next_generation();
        let seal = self.seal(block, generation);
        let encoded = block::encode_with(self.layout, content, allocate, seal);
        self.new_generation((block, generation), encoded)
    }

    /// Lets the layer of a place not have the block any more.
    pub(super) fn new_hole(&self, block: u64) -> BlockWrite {
        self.new_generation((block, self.next_generation()), block::hole(self.layout))
    }

    fn new_generation(&self, (block, generation): (u64, u64), encoded: Encoded) -> BlockWrite {
        let Encoded {
            kind,
            stored,
            parts,
        } = encoded;
        let state = self.state(block);
        BlockWrite {
            block,
            // Of a lost block any generation may be the one of which an absent target has the other half.
            keep: if state.lost {
                KEEP_ALL
            } else {
                state.generation
            },
            generation,
            kind,
            halves: parts
                .into_iter()
                .map(|data| Half {
                    generation,
                    kind,
                    stored,
                    data,
                })
                .collect(),
        }
    }

    /// Writes blocks, whose locks the caller holds: all parts are stored at all targets before the first one is settled.
    /// Returns the first error.
    pub(super) fn write_blocks(&self, writes: Vec<BlockWrite>) -> Result<()> {
        let targets = self.targets();
        let mut prepared = self.each(&targets, &writes, |_, write, role| {
            Some(Step::Prepare {
                block: write.block,
                half: &write.halves[role.index()],
                keep: write.keep,
            })
        });
        let mut committed = self.each(&targets, &writes, |at, write, role| {
            (prepared.is_enough(at) && prepared.done(at) & role.bit() != 0).then_some(
                Step::Commit {
                    block: write.block,
                    generation: write.generation,
                },
            )
        });
        if !prepared.is_whole() || !committed.is_whole() {
            self.disturbed.store(true, Ordering::Relaxed);
        }
        let mut moved = 0;
        for (at, write) in writes.iter().enumerate() {
            let halves = self.layout.roles().zip(&write.halves);
            let there = halves.filter(|(role, _)| prepared.done(at) & role.bit() != 0);
            moved += there.map(|(_, half)| half.data.len() as u64).sum::<u64>();
        }
        add(&self.counters.moved_bytes, moved);
        let holders = self.record(writes, &targets, (&prepared, &committed));
        let mut result = Ok(());
        let mut acknowledged = None;
        for (at, holders) in holders.into_iter().enumerate() {
            let is_settled = prepared.is_enough(at) && committed.is_enough(at);
            if is_settled && acknowledged == Some(holders) {
                continue;
            }
            let known = match is_settled {
                true => self.acknowledge(holders),
                false => Ok(()),
            };
            if is_settled && known.is_ok() {
                acknowledged = Some(holders);
                continue;
            }
            let (prepared, committed) = (prepared.take(at), committed.take(at));
            let done = self.enough(&prepared);
            let done = done.map_err(|error| full(&prepared, error)).and_then(|()| {
                let settled = self.enough(&committed);
                settled.map_err(|error| full(&committed, error))?;
                known.map_err(|error| full(&prepared, full(&committed, error)))
            });
            result = result.and(done);
        }
        result
    }

    /// Records and returns who holds the blocks that were stored at enough targets.
    fn record(
        &self,
        writes: Vec<BlockWrite>,
        targets: &Targets,
        (prepared, committed): (&Outcome, &Outcome),
    ) -> Vec<u16> {
        // A target that took a seat meanwhile does not hold them. The lock excludes that until the states are there.
        self.seats.look(|seats| {
            let is_used = |role: Role| {
                matches!(
                    (&seats[role.index()], &targets[role.index()]),
                    (Seat::Present(now), Some(used)) if same(now.target.as_ref(), used.as_ref())
                )
            };
            let used = self.layout.mask(is_used);
            // A target without space for its index still holds the block, only not settled.
            let holders = (0..writes.len()).map(|at| used & committed.done_or_full(at));
            let holders: Vec<u16> = holders.collect();
            let recorded = writes.into_iter().zip(&holders).enumerate();
            let recorded = recorded.filter(|(at, _)| prepared.is_enough(*at));
            let mut blocks = self.blocks();
            // With its end the lock ends.
            let wrote = recorded.map(move |(_, (write, holders))| {
                let state = BlockState {
                    generation: write.generation,
                    holders: *holders,
                    marked: 0,
                    zero: !write.kind.has_bytes(),
                    hole: write.kind == Kind::Hole,
                    lost: false,
                };
                blocks.set(write.block, state);
                ((write.block, write.generation, *holders), write.halves)
            });
            self.pending.wrote(wrote);
            holders
        })
    }

    /// Reads a group of pieces into their part of the caller's bytes.
    fn read_group(&self, of: Option<u32>, group: &[Piece], bytes: &mut [u8]) -> Result<()> {
        let _locks = self.lock_all(group);
        let view = self.view(of)?;
        self.know_group(&view, group)?;
        let targets = self.targets();
        let fetch = |piece| {
            let block = self.source(&view, Piece::block(piece));
            (piece, block, self.state(block))
        };
        let fetches: Vec<(&Piece, u64, BlockState)> = group.iter().map(fetch).collect();
        let halves = self.fetch_each(&targets, &fetches, |(_, block, state), role| {
            let held =
                !state.lost && !state.zero && state.generation != 0 && state.is_held_by(role);
            (held && is_source(role, *block)).then_some((*block, state.generation))
        });
        let is_zero = |state: &BlockState| !state.lost && (state.generation == 0 || state.zero);
        let shows_zeros = fetches.iter().any(|(_, _, state)| is_zero(state));
        let mut whole = Vec::new();
        let start = group.first().map_or(0, |piece| piece.range.start);
        let mut result = Ok(());
        // All are decoded, also after an error.
        for ((piece, block, state), halves) in fetches.into_iter().zip(halves) {
            let part = &mut bytes[piece.range.start - start..piece.range.end - start];
            let done = if part.len() == self.geometry().block_len() {
                self.decode_block(block, state, halves, part)
            } else {
                whole.resize(self.geometry().block_len(), 0);
                self.decode_block(block, state, halves, &mut whole)
                    .map(|()| part.copy_from_slice(&whole[piece.at..piece.at + part.len()]))
            };
            result = result.and(done);
        }
        // No target was asked for zeros.
        if shows_zeros {
            result = result.and_then(|()| self.confirm());
        }
        result
    }

    /// Fetches parts of blocks, all of them at once. `wants` names the block and generation of those that are not left out.
    pub(super) fn fetch_each<T>(
        &self,
        targets: &Targets,
        blocks: &[T],
        wants: impl Fn(&T, Role) -> Option<(u64, u64)>,
    ) -> Vec<Halves> {
        let mut halves: Vec<Halves> = blocks.iter().map(|_| Halves::new(self.layout)).collect();
        let begun = begin_each(self.layout, targets, blocks, |_, block, role| {
            let (block, generation) = wants(block, role)?;
            Some(Step::Fetch { block, generation })
        });
        // As for other steps.
        for (role, begun) in self.layout.roles().zip(begun).rev() {
            let Some(target) = &targets[role.index()] else {
                continue;
            };
            let ended = target.finish_all(begun.steps.into_vec());
            for (at, found) in begun.places.into_iter().zip(ended) {
                self.judge(role, target, found.as_ref().err());
                halves[at].found[role.index()] =
                    Some(found.and_then(|half| half.ok_or(BlkError::Offline(role))));
            }
        }
        halves
    }

    /// Checks at enough targets that no other process has opened the volume since.
    fn confirm(&self) -> Result<()> {
        let targets = self.targets();
        let begin = |target: &Option<Arc<dyn Target>>| Some(target.as_ref()?.begin_confirm());
        let begun: PerTarget<_> = targets.iter().map(begin).collect();
        let done = self.layout.roles().zip(begun);
        let done = done.map(|(role, begun)| self.finish(&targets, role, begun).map(drop));
        self.enough(&done.collect::<Vec<_>>())
    }

    /// Reads a block. The caller holds its lock.
    pub(super) fn read_block(&self, block: u64, into: &mut [u8]) -> Result<()> {
        self.decode_block(block, self.state(block), Halves::new(self.layout), into)
    }

    /// Decodes a block from the halves that were fetched, and fetches what is absent. The caller holds its lock.
    fn decode_block(
        &self,
        block: u64,
        state: BlockState,
        mut halves: Halves,
        into: &mut [u8],
    ) -> Result<()> {
        if state.lost {
            return Err(BlkError::Lost {
                block,
                reason: "too few targets hold its last generation".to_owned(),
            });
        }
        if state.generation == 0 || state.zero {
            into.fill(0);
            return Ok(());
        }
        if halves.are_enough() && halves.found.iter().flatten().all(Result::is_ok) {
            // They are those of the sources: nothing is missing or to be repaired.
            let done = halves.decode(self.seal_of(block, state), into);
            return done.map_err(|error| halves.lost(block, error));
        }
        for role in self.layout.roles().filter(|role| is_source(*role, block)) {
            if halves.found[role.index()].is_none() {
                self.get(block, state, role, &mut halves);
            }
        }
        if !halves.are_enough() {
            add(&self.counters.degraded_reads, 1);
        }
        for role in self.layout.roles() {
            if !halves.are_enough() && halves.found[role.index()].is_none() {
                self.get(block, state, role, &mut halves);
            }
        }
        self.add_kept(block, state, &mut halves);
        halves
            .decode(self.seal_of(block, state), into)
            .map_err(|error| halves.lost(block, error))?;
        self.write_again(block, state, &halves);
        Ok(())
    }

    /// Adds the parts that are still in memory, if the targets do not have enough.
    pub(super) fn add_kept(&self, block: u64, state: BlockState, halves: &mut Halves) {
        if halves.are_enough() {
            return;
        }
        if let Some(parts) = self.pending.parts(block, state.generation) {
            for (found, half) in halves.found.iter_mut().zip(parts.iter()) {
                if !matches!(found, Some(Ok(_))) {
                    *found = Some(Ok(half.clone()));
                }
            }
        }
    }

    /// Stops the use of a target that fails to fetch. Wrong or absent halves are written again instead.
    fn judge(&self, role: Role, target: &Arc<dyn Target>, error: Option<&BlkError>) {
        match error {
            None => {}
            Some(error) if error.is_repairable() => {
                add(&self.counters.corrupt_halves, 1);
                say(format_args!("{role}: {error}"));
            }
            Some(error) => self.fail(target, error),
        }
    }

    /// Fetches the part of one role, or records why there is none.
    pub(super) fn get(&self, block: u64, state: BlockState, role: Role, halves: &mut Halves) {
        let found = self.target(role).and_then(|target| {
            if !state.is_held_by(role) {
                return Err(BlkError::Absent {
                    target: target.name().to_owned(),
                    block,
                    generation: state.generation,
                });
            }
            let fetched = target.fetch(block, state.generation);
            self.judge(role, &target, fetched.as_ref().err());
            fetched
        });
        halves.found[role.index()] = Some(found);
    }

    /// Writes halves again that are absent or wrong at targets that answer. Errors leave the block as it is. Returns the
    /// number of halves.
    pub(super) fn write_again(&self, block: u64, state: BlockState, halves: &Halves) -> u64 {
        let mut written = 0;
        for role in self.layout.roles() {
            let Some(Err(error)) = &halves.found[role.index()] else {
                continue;
            };
            if !error.is_repairable() {
                continue;
            }
            let (Ok(half), Ok(target)) = (halves.restored(role), self.target(role)) else {
                continue;
            };
            written += u64::from(self.put(block, state, (role, &target), &half).is_ok());
        }
        written
    }
}

/// True if a read takes a block from this role, as long as nothing is lost: from the parts of data, or one of the copies.
fn is_source(role: Role, block: u64) -> bool {
    let layout = role.layout();
    match layout.is_mirror() {
        true => block % layout.targets() as u64 == role.index() as u64,
        false => role.is_data(),
    }
}

/// The error of a write that too few targets take: that of one whose file system is full, if there is one. No return helps it.
fn full(done: &[Result<()>], error: BlkError) -> BlkError {
    let mut errors = done.iter().filter_map(|done| done.as_ref().err());
    match errors.find(|error| error.is_full()) {
        Some(BlkError::Full {
            target,
            wanted,
            free,
            capacity,
        }) => BlkError::Full {
            target: target.clone(),
            wanted: *wanted,
            free: *free,
            capacity: *capacity,
        },
        Some(BlkError::Io { target, error }) => {
            let code = error.raw_os_error().unwrap_or(libc::ENOSPC);
            BlkError::io(target, std::io::Error::from_raw_os_error(code))
        }
        _ => error,
    }
}

fn length_of(length: u64) -> Result<usize> {
    let error = |_| GeometryError::Size(format!("{length} bytes at once"));
    Ok(usize::try_from(length).map_err(error)?)
}
