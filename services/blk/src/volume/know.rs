//! What a volume knows of its blocks: it looks up what the targets have not changed since they were equal. Growth, and the end.

use super::decide::Rule;
use super::evidence::examine;
use super::io::Targets;
use super::seats::Seat;
use super::state::{PAGE, Volume};
use crate::error::{BlkError, Result};
use crate::geometry::Geometry;
use crate::store::Mark;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Blocks that are looked up at once.
const AHEAD: u64 = 16 * PAGE;

impl Volume {
    /// Looks up the states of blocks. Those that are known already, or were never written, cost nothing.
    ///
    /// # Errors
    /// Too few targets are there.
    pub(super) fn know(&self, blocks: Range<u64>) -> Result<()> {
        let end = self.end();
        loop {
            let unknown = self.blocks().unknown(blocks.start, blocks.end.min(end));
            let Some(from) = unknown else {
                return Ok(());
            };
            let from = from / PAGE * PAGE;
            self.look_up(from..(from + AHEAD).min(end), true)?;
        }
    }

    /// Looks up the next blocks from `from` on, as many as the targets tell at once. Returns the first of the others.
    pub(super) fn know_next(&self, from: u64) -> Result<u64> {
        let end = self.end();
        if self.blocks().are_all_known() {
            return Ok(end);
        }
        self.look_up(from / PAGE * PAGE..end, false)
    }

    /// Looks up the states of all blocks.
    pub(super) fn know_all(&self) -> Result<()> {
        let mut from = 0;
        loop {
            let end = self.end();
            if self.blocks().are_all_known() {
                return Ok(());
            }
            if from >= end {
                self.blocks().all_known();
                return Ok(());
            }
            from = self.know_next(from)?;
        }
    }

    fn look_up(&self, blocks: Range<u64>, remembers: bool) -> Result<u64> {
        loop {
            let forgets = self.blocks().forgets();
            let targets = self.targets();
            let present = self.layout.map(|role| match targets[role.index()] {
                Some(_) => Ok(()),
                None => Err(BlkError::Offline(role)),
            });
            self.enough(&present)?;
            match examine(self.rule_of_unchanged(&targets), &targets, blocks.clone()) {
                Err((role, error)) => {
                    if let Some(target) = &targets[role.index()] {
                        self.fail(target, &error);
                    }
                }
                Ok(found) => {
                    let mut known = self.blocks();
                    // A target has returned meanwhile, or another one is there.
                    if known.forgets() != forgets {
                        continue;
                    }
                    known.learn(&found.states);
                    if remembers {
                        known.learned(blocks.start..found.next);
                    }
                    return Ok(found.next);
                }
            }
        }
    }

    /// Which targets decide about blocks that have not changed since all were equal: the trusted ones that are there. One that has
    /// left since the opening has nothing newer.
    fn rule_of_unchanged(&self, targets: &Targets) -> Rule {
        let rule = self.rule();
        let there = self.layout.mask(|role| targets[role.index()].is_some());
        let here = rule.trusted.map(|trusted| trusted & there);
        match here {
            Some(here) if !self.layout.is_short(here) => Rule {
                trusted: Some(here),
                ..rule
            },
            _ => rule,
        }
    }

    /// Gives the volume more blocks, durably. They are zeros. Targets that are absent get them when they return.
    ///
    /// # Errors
    /// The volume would become smaller, a target has no room for the index, or too few are there. If it fails after one
    /// target has grown, the volume may have the new size when it is opened again.
    pub fn grow(&self, size: u64) -> Result<Geometry> {
        // A target that takes its place meanwhile would not grow.
        let _turn = self.arrival();
        let now = self.geometry();
        let wanted = Geometry::of_size(self.block_size, size)?;
        if wanted.blocks() < now.blocks() {
            return Err(BlkError::Argument(format!(
                "size {size}: the volume has {} bytes, and no volume becomes smaller: copy it to a new one",
                now.size()
            )));
        }
        // All are asked before one is changed.
        for target in self.targets().iter().flatten() {
            let room = target.identity().room;
            if wanted.blocks() > room {
                return Err(BlkError::NoRoom {
                    target: target.name().to_owned(),
                    blocks: wanted.blocks(),
                    room,
                });
            }
        }
        self.grow_layers(wanted.blocks())?;
        let grown = self
            .layout
            .map(|role| self.target(role)?.grow(wanted.blocks()));
        for (role, done) in self.layout.roles().zip(&grown) {
            if let (Err(error), Ok(target)) = (done, self.target(role)) {
                self.fail(&target, error);
            }
        }
        self.enough(&grown)?;
        self.acknowledge(self.successful(&grown))?;
        self.size.store(wanted.blocks(), Ordering::Release);
        Ok(wanted)
    }

    /// Flushes. If all targets hold everything then, records that they are equal: the next opening looks only at what
    /// changes from then on. No request may be under way, nor follow.
    ///
    /// # Errors
    /// As [`Volume::flush`].
    pub fn close(&self) -> Result<()> {
        self.stop_merging();
        self.flush()?;
        let is_whole = |seat: &Seat| matches!(seat, Seat::Present(occupant) if occupant.whole);
        let are_there = self.seats.look(|seats| seats.iter().all(is_whole));
        let is_undisturbed = !self.disturbed.load(Ordering::Relaxed);
        if !are_there || !is_undisturbed || !self.blocks().is_whole() || !self.pending.is_empty() {
            return Ok(());
        }
        for role in self.layout.roles() {
            let Ok(target) = self.target(role) else {
                return Ok(());
            };
            if let Err(error) = target.mark(self.epoch, Mark::Equal) {
                // Everything is durable. The next opening compares all blocks.
                self.fail(&target, &error);
                return Ok(());
            }
        }
        Ok(())
    }
}
