//! Completes a target while the volume serves: groups of blocks, several of them at once, each by one call to every target that
//! gives parts and two calls to the one that lacks them. A client waits for one group at most.
//!
//! A target that cannot read a block leaves its place. The next rebuild begins behind that block: the others are completed, however
//! often that one fails.

use super::seats::{Seat, same};
use super::state::{BlockState, Volume, add};
use crate::block::Kind;
use crate::error::{BlkError, Result};
use crate::geometry::Role;
use crate::record::Half;
use crate::say::say;
use crate::store::{Step, Target};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

/// Blocks that a rebuild writes before it flushes.
const FLUSH: u64 = 1 << 12;
/// Groups that it looks at before it sees whether a flush is due.
const GROUPS: usize = 16;

/// What a rebuild has done.
#[derive(Debug, Default)]
struct Progress {
    rebuilt: u64,
    /// Blocks that it has marked as lost.
    lost: u64,
    /// The first block that could not be read now, and why.
    unread: Option<(u64, BlkError)>,
}

impl Progress {
    fn unread(&mut self, block: u64, error: BlkError) {
        // Groups that are under way at once end in any order.
        if self.unread.as_ref().is_none_or(|(first, _)| block < *first) {
            self.unread = Some((block, error));
        }
    }
}

impl Volume {
    /// Completes the target of a role. Returns the number of blocks that it lacked. Of blocks that are lost it gets to know
    /// that they are.
    ///
    /// # Errors
    /// A block cannot be read now, or the target fails or is full. What is complete stays so.
    pub fn rebuild(&self, role: Role) -> Result<u64> {
        let target = self.target(role)?;
        let progress = Mutex::new(Progress::default());
        let now = || progress.lock().unwrap_or_else(PoisonError::into_inner);
        let count = || {
            let progress = now();
            progress.rebuilt + progress.lost
        };
        let mut flushed = 0;
        // What was not looked at lacks nothing.
        let next = &self.starts[role.index()];
        // Relaxed: any start is right.
        let (start, end) = (next.load(Ordering::Relaxed), self.end());
        let mut blocks = self.written_blocks(start..end);
        let mut before = self.written_blocks(0..start.min(end));
        loop {
            let most = GROUPS * self.group();
            let mut some: Vec<u64> = blocks.by_ref().take(most).collect();
            if some.is_empty() {
                some.extend(before.by_ref().take(most));
            }
            if some.is_empty() {
                break;
            }
            let groups: Vec<&[u64]> = some.chunks(self.group()).collect();
            let work = |group: &[u64]| self.rebuild_group(group, (role, &target), &progress);
            let seems_missing = |block: &u64| self.state(*block).is_missing_at(role);
            let first = some.iter().find(|block| seems_missing(block));
            if let Some(first) = first.filter(|_| count() == 0) {
                // A target that is still full refuses one block, and not each of several groups.
                work(std::slice::from_ref(first))?;
            }
            // Each group looks again, with its locks. Those that lack nothing need no other threads.
            match first {
                Some(_) => self.each_group(groups, work)?,
                None => groups.into_iter().try_for_each(work)?,
            }
            let done = count();
            if done - flushed >= FLUSH {
                self.flush_target(role, &target)?;
                flushed = done;
            }
            if now().unread.is_some() && !self.has_sources(role) {
                // Nothing more can be read.
                break;
            }
        }
        let Progress {
            rebuilt,
            lost,
            unread,
        } = progress
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some((block, error)) = unread {
            next.store(block + 1, Ordering::Relaxed);
            return Err(error);
        }
        if lost > 0 {
            say(format_args!(
                "{role} knows of {lost} blocks that too few targets hold"
            ));
        }
        next.store(0, Ordering::Relaxed);
        self.complete(role, &target)?;
        Ok(rebuilt)
    }

    /// True if enough others are there to give blocks.
    fn has_sources(&self, role: Role) -> bool {
        let is_there = |other| other != role && self.target(other).is_ok();
        !self.layout.is_short(self.layout.mask(is_there))
    }

    /// Gives a target what it lacks of these blocks.
    fn rebuild_group(
        &self,
        group: &[u64],
        (role, target): (Role, &Arc<dyn Target>),
        progress: &Mutex<Progress>,
    ) -> Result<()> {
        let _locks = self.locks.of(group.iter().copied());
        let states = group.iter().map(|block| (*block, self.state(*block)));
        let missing = states.filter(|(_, state)| state.is_missing_at(role));
        let (lost, there): (Vec<_>, Vec<_>) = missing.partition(|(_, state)| state.lost);
        if lost.is_empty() && there.is_empty() {
            return Ok(());
        }
        let others = self.certain_others(role);
        let done = self.rebuild_blocks(&there, (role, target));
        let known_lost = lost.into_iter().map(|of_block| (of_block, Err(None)));
        let done = done.into_iter().map(|done| done.map_err(Some));
        for ((block, state), done) in there.iter().copied().zip(done).chain(known_lost) {
            let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
            match done {
                Ok(()) => progress.rebuilt += 1,
                Err(None) => match self.mark_lost(block, state, (role, target)) {
                    Ok(()) => progress.lost += 1,
                    Err(error @ BlkError::Lost { .. }) => {
                        progress.unread(block, error);
                    }
                    Err(error) => return Err(error),
                },
                Err(Some(error @ BlkError::Lost { .. })) => {
                    if others.is_some() && others == self.certain_others(role) {
                        // Their half blocks are wrong: that does not become better.
                        if progress.lost == 0 {
                            say(&error);
                        }
                        self.mark_lost(block, state, (role, target))?;
                        progress.lost += 1;
                    } else {
                        // The other blocks are completed nevertheless.
                        progress.unread(block, error);
                    }
                }
                Err(Some(error)) => return Err(error),
            }
        }
        Ok(())
    }

    /// Gives a target one block. The caller holds its lock.
    pub(super) fn rebuild_block(
        &self,
        block: u64,
        state: BlockState,
        role: Role,
        target: &Arc<dyn Target>,
    ) -> Result<()> {
        let mut done = self.rebuild_blocks(&[(block, state)], (role, target));
        done.pop().unwrap_or(Ok(()))
    }

    /// Gives a target blocks that are not lost, whose locks the caller holds. Returns the result of each.
    fn rebuild_blocks(
        &self,
        blocks: &[(u64, BlockState)],
        (role, target): (Role, &Arc<dyn Target>),
    ) -> Vec<Result<()>> {
        let targets = self.targets();
        // As many parts as are needed, if all of them are right.
        let is_source = |state: &BlockState, other: Role| {
            let gives = |other: &Role| state.is_held_by(*other) && targets[other.index()].is_some();
            let mut sources = self.others(role).filter(gives).take(self.layout.needed());
            !state.hole && sources.any(|source| source == other)
        };
        let fetched = self.fetch_each(&targets, blocks, |(block, state), other| {
            is_source(state, other).then_some((*block, state.generation))
        });
        let mut puts = Vec::with_capacity(blocks.len());
        let restored = blocks
            .iter()
            .zip(fetched)
            .map(|((block, state), mut halves)| {
                if state.hole {
                    // There is nothing to read.
                    return Ok(Half {
                        generation: state.generation,
                        kind: Kind::Hole,
                        stored: 0,
                        data: bytes::Bytes::new(),
                    });
                }
                for other in self.others(role) {
                    if !halves.are_enough() && halves.found[other.index()].is_none() {
                        self.get(*block, *state, other, &mut halves);
                    }
                }
                self.add_kept(*block, *state, &mut halves);
                let half = halves.restored(role);
                half.map_err(|error| halves.lost(*block, error))
            });
        let restored: Vec<Result<()>> = restored
            .zip(blocks)
            .map(|(half, (block, state))| half.map(|half| puts.push((*block, *state, half))))
            .collect();
        let mut written = self.put_all(&puts, (role, target)).into_iter();
        let written = restored
            .into_iter()
            .map(|half| half.and_then(|()| written.next().unwrap_or(Ok(()))));
        written.collect()
    }

    /// Writes a restored half of the generation that counts, or that the target has to know of. The caller holds the lock of
    /// the block. Stops the use of a target that fails, unless it is only full.
    pub(super) fn put(
        &self,
        block: u64,
        state: BlockState,
        (role, target): (Role, &Arc<dyn Target>),
        half: &Half,
    ) -> Result<()> {
        let put = [(block, state, half.clone())];
        self.put_all(&put, (role, target)).pop().unwrap_or(Ok(()))
    }

    /// As [`Volume::put`], of several blocks by one call for each step.
    pub(super) fn put_all(
        &self,
        puts: &[(u64, BlockState, Half)],
        (role, target): (Role, &Arc<dyn Target>),
    ) -> Vec<Result<()>> {
        let finish = |begun| {
            let done: Result<()> = target.finish(begun).map(drop);
            done.inspect_err(|error| {
                if !error.is_full() {
                    self.fail(target, error);
                }
            })
        };
        let steps: Vec<Step<'_>> = puts
            .iter()
            .map(|(block, _, half)| Step::Prepare {
                block: *block,
                half,
                keep: 0,
            })
            .collect();
        let begun = target.begin_all(&steps);
        let mut done: Vec<Result<()>> = begun.into_iter().map(finish).collect();
        let prepared: Vec<usize> = (0..done.len()).filter(|at| done[*at].is_ok()).collect();
        let steps: Vec<Step<'_>> = prepared
            .iter()
            .map(|at| Step::Commit {
                block: puts[*at].0,
                generation: puts[*at].2.generation,
            })
            .collect();
        for (at, begun) in prepared.iter().zip(target.begin_all(&steps)) {
            done[*at] = finish(begun);
        }
        let taken = || {
            let done = puts.iter().zip(&done);
            done.filter_map(|(put, done)| done.is_ok().then_some(put))
        };
        // Another target in this place does not have them.
        self.seats.look(|seats| {
            if !matches!(&seats[role.index()], Seat::Present(now) if same(now.target.as_ref(), target.as_ref()))
            {
                return;
            }
            for (block, state, half) in taken() {
                let now = self.state(*block);
                let (holders, marked) = match half.kind {
                    Kind::Lost => (now.holders, now.marked | role.bit()),
                    _ => (now.holders | role.bit(), now.marked & !role.bit()),
                };
                self.set_state(
                    *block,
                    BlockState {
                        generation: half.generation,
                        holders,
                        marked,
                        ..*state
                    },
                );
                self.pending.holds(*block, half.generation, role, false);
            }
        });
        for (_, _, half) in taken() {
            if half.kind != Kind::Lost {
                add(&self.counters.repaired_halves, 1);
            }
            add(&self.counters.moved_bytes, half.data.len() as u64);
        }
        done
    }
}
