//! Reads, writes and flushes of a volume.

use super::state::{BlockState, Volume, add};
use crate::block::{self, Encoded, Kind};
use crate::error::{BlkError, Result};
use crate::geometry::{GeometryError, Role, TARGETS};
use crate::record::Half;
use crate::store::Target;
use std::sync::Arc;

/// The part of a range that lies in one block.
struct Piece {
    block: u64,
    /// Start in the block.
    at: usize,
    /// Part of the caller's bytes.
    range: std::ops::Range<usize>,
}

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
        let size = self.geometry.block_size();
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

    /// Reads `bytes` from `offset`. Blocks that were never written are zero.
    ///
    /// # Errors
    /// The range is outside the volume, or a block is lost.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.geometry.check(offset, bytes.len() as u64)?;
        let mut whole = Vec::new();
        for piece in self.pieces(offset, bytes.len()) {
            let _lock = self.lock(piece.block);
            let part = &mut bytes[piece.range];
            if part.len() == self.geometry.block_len() {
                self.read_block(piece.block, part)?;
            } else {
                whole.resize(self.geometry.block_len(), 0);
                self.read_block(piece.block, &mut whole)?;
                part.copy_from_slice(&whole[piece.at..piece.at + part.len()]);
            }
        }
        add(&self.counters.read_bytes, bytes.len() as u64);
        Ok(())
    }

    /// Writes `bytes` at `offset`. When it returns, the data is at two targets at least, and [`Volume::flush`] makes it
    /// durable.
    ///
    /// # Errors
    /// The range is outside the volume, a block that is written in part is lost, or fewer than two targets accept the
    /// data. Each block then holds its old data, or the new one.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.geometry.check(offset, bytes.len() as u64)?;
        for piece in self.pieces(offset, bytes.len()) {
            let part = &bytes[piece.range.clone()];
            self.update(&piece, block::encode, |into| into.copy_from_slice(part))?;
        }
        add(&self.counters.written_bytes, bytes.len() as u64);
        Ok(())
    }

    /// Writes zeros. Whole blocks take no space unless `allocate` is set.
    ///
    /// # Errors
    /// As [`Volume::write`].
    pub fn write_zeroes(&self, offset: u64, length: u64, allocate: bool) -> Result<()> {
        self.geometry.check(offset, length)?;
        let encode = if allocate {
            block::encode_allocated
        } else {
            block::encode
        };
        for piece in self.pieces(offset, length_of(length)?) {
            self.update(&piece, encode, |into| into.fill(0))?;
        }
        Ok(())
    }

    /// Gives the space of whole blocks back. They are zero afterwards. The rest of the range does not change.
    ///
    /// # Errors
    /// As [`Volume::write`].
    pub fn trim(&self, offset: u64, length: u64) -> Result<()> {
        self.geometry.check(offset, length)?;
        let whole = |piece: &Piece| piece.range.len() == self.geometry.block_len();
        for piece in self.pieces(offset, length_of(length)?).filter(whole) {
            self.update(&piece, block::encode, |into| into.fill(0))?;
        }
        Ok(())
    }

    /// The states of the bytes from `offset` on, up to `length` bytes in at most `limit` runs.
    ///
    /// # Errors
    /// The range is outside the volume.
    pub fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>> {
        self.geometry.check(offset, length)?;
        let mut extents: Vec<Extent> = Vec::new();
        for piece in self.pieces(offset, length_of(length)?) {
            let state = self.state(piece.block);
            let zero = !state.lost && (state.generation == 0 || state.zero);
            let length = piece.range.len() as u64;
            let last = extents.len();
            match extents.last_mut() {
                Some(run) if run.zero == zero => run.length += length,
                _ if last == limit => break,
                _ => extents.push(Extent { length, zero }),
            }
        }
        Ok(extents)
    }

    /// Makes all data durable that was acknowledged before.
    ///
    /// # Errors
    /// Fewer than two targets could do it.
    pub fn flush(&self) -> Result<()> {
        add(&self.counters.flushes, 1);
        let done = self.each(|_| true, |_, target| target.flush());
        self.at_least_two(&done)
    }

    /// Calls `each` for the target of each role that `wanted` accepts. A target that fails is not used any more, unless
    /// it is only full.
    fn each(
        &self,
        wanted: impl Fn(Role) -> bool,
        each: impl Fn(Role, &dyn Target) -> Result<()>,
    ) -> [Result<()>; TARGETS] {
        Role::ALL.map(|role| {
            if !wanted(role) {
                return Err(BlkError::Offline(role));
            }
            let target = self.target(role)?;
            each(role, target.as_ref()).inspect_err(|error| {
                if !error.is_full() {
                    self.fail(role, &target, error);
                }
            })
        })
    }

    /// An error unless two targets were successful.
    fn at_least_two(&self, done: &[Result<()>; TARGETS]) -> Result<()> {
        let usable = done.iter().filter(|done| done.is_ok()).count();
        if usable >= 2 {
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
            usable,
            reasons: reasons.join(", "),
        })
    }

    /// Changes a part of a block, or all of it.
    fn update(
        &self,
        piece: &Piece,
        encode: fn(&[u8]) -> Encoded,
        change: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        let mut whole = vec![0; self.geometry.block_len()];
        let _lock = self.lock(piece.block);
        if piece.range.len() != whole.len() {
            self.read_block(piece.block, &mut whole)?;
        }
        change(&mut whole[piece.at..piece.at + piece.range.len()]);
        self.write_block(piece.block, encode(&whole))
    }

    /// Writes a block. The caller holds its lock.
    fn write_block(&self, block: u64, encoded: Encoded) -> Result<()> {
        let old = self.state(block);
        let generation = self.next_generation();
        let Encoded {
            kind,
            stored,
            parts,
        } = encoded;
        let moved: usize = parts.iter().map(Vec::len).sum();
        let halves = parts.map(|data| Half {
            generation,
            kind,
            stored,
            data,
        });
        // A lost block has no generation to keep beside the new one, but the one that a target may bring back.
        let prepared = self.each(
            |_| true,
            |role, target| target.prepare(block, &halves[role.index()], old.generation),
        );
        self.at_least_two(&prepared)?;
        add(&self.counters.moved_bytes, moved as u64);
        let committed = self.each(
            |role| prepared[role.index()].is_ok(),
            |_, target| target.commit(block, generation),
        );
        let holders = Role::ALL
            .into_iter()
            .filter(|role| prepared[role.index()].is_ok());
        self.set_state(
            block,
            BlockState {
                generation,
                holders: holders.fold(0, |mask, role| mask | role.bit()),
                zero: kind == Kind::Zero,
                lost: false,
            },
        );
        self.at_least_two(&committed)
    }

    /// Reads a block. The caller holds its lock.
    pub(super) fn read_block(&self, block: u64, into: &mut [u8]) -> Result<()> {
        let state = self.state(block);
        if state.lost {
            return Err(BlkError::Lost {
                block,
                reason: "fewer than two targets hold its last generation".to_owned(),
            });
        }
        if state.generation == 0 || state.zero {
            into.fill(0);
            return Ok(());
        }
        let mut halves = Halves::default();
        for role in [Role::First, Role::Second] {
            self.get(block, state, role, &mut halves);
        }
        if halves.count() < 2 {
            self.get(block, state, Role::Parity, &mut halves);
            add(&self.counters.degraded_reads, 1);
        }
        halves
            .decode(into)
            .map_err(|error| halves.lost(block, error))?;
        self.write_again(block, state, &halves);
        Ok(())
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
            if let Err(error) = &fetched {
                if error.is_repairable() {
                    add(&self.counters.corrupt_halves, 1);
                    eprintln!("xgvmi-blk: {role}: {error}");
                } else {
                    self.fail(role, &target, error);
                }
            }
            fetched
        });
        halves.found[role.index()] = Some(found);
    }

    /// Writes halves again that are absent or wrong at targets that answer. Errors leave the block as it is. Returns the
    /// number of halves.
    pub(super) fn write_again(&self, block: u64, state: BlockState, halves: &Halves) -> u64 {
        let mut written = 0;
        for role in Role::ALL {
            let Some(Err(error)) = &halves.found[role.index()] else {
                continue;
            };
            if !error.is_repairable() {
                continue;
            }
            let (Ok(half), Ok(target)) = (halves.restored(role), self.target(role)) else {
                continue;
            };
            written += u64::from(self.put(block, state, (role, &target), &half));
        }
        written
    }

    /// Writes a restored half of the generation that counts. True if the target has it now.
    pub(super) fn put(
        &self,
        block: u64,
        state: BlockState,
        (role, target): (Role, &Arc<dyn Target>),
        half: &Half,
    ) -> bool {
        let written = target.prepare(block, half, 0);
        match written.and_then(|()| target.commit(block, state.generation)) {
            Ok(()) => {
                let holders = self.state(block).holders | role.bit();
                self.set_state(block, BlockState { holders, ..state });
                add(&self.counters.repaired_halves, 1);
                add(&self.counters.moved_bytes, half.data.len() as u64);
                true
            }
            Err(error) => {
                if !error.is_full() {
                    self.fail(role, target, &error);
                }
                false
            }
        }
    }
}

fn length_of(length: u64) -> Result<usize> {
    let error = |_| GeometryError::Size(format!("{length} bytes at once"));
    Ok(usize::try_from(length).map_err(error)?)
}

/// The parts of a block that were fetched. None: not asked for.
#[derive(Debug, Default)]
pub(super) struct Halves {
    pub(super) found: [Option<Result<Half>>; TARGETS],
}

impl Halves {
    fn get(&self, role: Role) -> Option<&Half> {
        self.found[role.index()].as_ref()?.as_ref().ok()
    }

    pub(super) fn count(&self) -> usize {
        Role::ALL
            .into_iter()
            .filter(|role| self.get(*role).is_some())
            .count()
    }

    /// Form and stored length, as two parts agree on.
    fn agreed(&self) -> Option<&Half> {
        let mut halves = Role::ALL.into_iter().filter_map(|role| self.get(role));
        let first = halves.next()?;
        let same = |other: &Half| (other.kind, other.stored) == (first.kind, first.stored);
        (self.count() >= 2 && halves.all(same)).then_some(first)
    }

    /// Decodes the block from its halves, one of which may have to be restored.
    pub(super) fn decode(&self, into: &mut [u8]) -> Result<(), block::BadBlock> {
        match (self.get(Role::First), self.get(Role::Second)) {
            (Some(first), Some(second)) if self.agreed().is_some() => {
                block::decode(first.kind, &first.data, &second.data, into)
            }
            _ => {
                let (first, second) = (self.restored(Role::First)?, self.restored(Role::Second)?);
                block::decode(first.kind, &first.data, &second.data, into)
            }
        }
    }

    /// Why the block cannot be decoded.
    pub(super) fn lost(&self, block: u64, error: block::BadBlock) -> BlkError {
        let reasons = self
            .found
            .iter()
            .flatten()
            .filter_map(|found| found.as_ref().err());
        let mut reasons: Vec<String> = reasons.map(ToString::to_string).collect();
        if self.count() >= 2 {
            reasons.push(error.to_string());
        }
        BlkError::Lost {
            block,
            reason: reasons.join(", "),
        }
    }

    /// The part of a role, restored from the two others.
    pub(super) fn restored(&self, role: Role) -> Result<Half, block::BadBlock> {
        let agreed = self.agreed().ok_or(block::BadBlock::Halves)?;
        let part = |role| self.get(role).map_or(&[][..], |half| &half.data);
        let data = match self.get(role) {
            Some(half) => half.data.clone(),
            None => block::restore(role, agreed.stored, Role::ALL.map(part))?,
        };
        Ok(Half {
            data,
            ..agreed.clone()
        })
    }
}
