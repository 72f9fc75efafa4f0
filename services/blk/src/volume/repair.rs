//! Targets that return or are new, rebuild, and scrub, while the volume serves.

use super::decide::{Unclean, unclean};
use super::evidence::{Evidence, Records, changed, each_part, pages, torn};
use super::open::agree;
use super::parts::Halves;
use super::state::{BlockState, PAGE, Volume, add};
use super::trustees::is_used;
use crate::block::{self, Kind};
use crate::error::{BlkError, Result};
use crate::geometry::Role;
use crate::record::Half;
use crate::say::say;
use crate::store::{Held, Identity, Mark, Standing, Step, Target};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, MutexGuard, PoisonError};

/// Result of a scrub.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct ScrubReport {
    /// Blocks with data.
    pub blocks: u64,
    /// Half blocks that were absent or wrong.
    pub bad_halves: u64,
    /// Half blocks that were written again.
    pub repaired_halves: u64,
    /// Blocks that cannot be read.
    pub lost_blocks: u64,
    /// Index entries that could not be read when the volume was opened.
    pub damaged_entries: u64,
}

impl Volume {
    /// Uses a target that returns, or a new one of the same role. One that lacks nothing is complete at once;
    /// [`Volume::rebuild`] completes others.
    ///
    /// # Errors
    /// It belongs to another volume, its place is taken, a later owner has used it, or it was used without the others and they
    /// without it.
    pub fn attach(&self, target: Arc<dyn Target>) -> Result<Role> {
        let identity = self.check_arrival(&target)?;
        let role = identity.role;
        let turn = self.arrival();
        self.seats.check_free(&target)?;
        self.check_member(target.as_ref())?;
        self.check_apart(target.as_ref())?;
        // Of what has not changed since all were equal nothing must be looked at.
        let is_near = identity.standing != Standing::New && identity.equal == self.equal;
        let mut ranges = Vec::new();
        let mut all_known = true;
        if is_near && self.equal != 0 {
            ranges = pages(changed(target.as_ref())?, self.end());
            for range in &ranges {
                match self.know(range.clone()) {
                    // Then it is known with this target.
                    Err(error) if error.wants_target() => break,
                    known => known?,
                }
            }
        } else {
            all_known = match self.know_all() {
                // It may be one of the two that tell.
                Err(error) if error.wants_target() && identity.standing != Standing::New => false,
                known => known.map(|()| true)?,
            };
        }
        target.mark(self.epoch, Mark::Owned)?;
        target.grow(self.geometry().blocks())?;
        self.tell_released(&target)?;
        self.tell_members(role, &target)?;
        self.tell_wrapping(&target)?;
        self.tell_layers(&target)?;
        self.seat(&target);
        drop(turn);
        if !all_known {
            // Before it can count as complete: what was not looked at is not the same here.
            self.know_all()
                .inspect_err(|error| self.fail(&target, error))?;
        }
        self.arrive(role, &target, ranges)?;
        Ok(role)
    }

    /// Held while a target takes its place.
    pub(super) fn arrival(&self) -> MutexGuard<'_, ()> {
        // The lock protects no data of its own.
        self.attaching
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// What a target is that is to take a place.
    ///
    /// # Errors
    /// It belongs to another volume, or a later owner has used it.
    pub(super) fn check_arrival(&self, target: &Arc<dyn Target>) -> Result<Identity> {
        let identity = target.identity();
        let ours = Identity {
            volume: self.id,
            geometry: self.geometry(),
            wrapping: *self.wrapping(),
            standing: Standing::Complete,
            ..identity
        };
        agree(("the volume", &ours), (target.name(), &identity))?;
        if identity.epoch > self.epoch {
            self.check_apart(target.as_ref())?;
            return Err(BlkError::NotATarget {
                target: target.name().to_owned(),
                fault: "another process has opened the volume since: close this one".to_owned(),
            });
        }
        Ok(identity)
    }

    /// Gives a target its place. Writes from here on reach it.
    pub(super) fn seat(&self, target: &Arc<dyn Target>) {
        let role = target.identity().role;
        self.seats.take(target, || {
            // What it held before is unknown.
            self.blocks().forget(role);
            self.pending.left(role);
        });
        target.seated(self.seating());
    }

    /// Finds out what a target holds that has its place.
    pub(super) fn arrive(
        &self,
        role: Role,
        target: &Arc<dyn Target>,
        ranges: Vec<Range<u64>>,
    ) -> Result<()> {
        // Without this its place stays taken by a target that nobody completes.
        self.recognize(role, target, ranges)
            .and_then(|()| self.replay(role, target))
            .inspect_err(|error| self.fail(target, error))?;
        self.reconsider();
        self.seats.arrived(target);
        if self.missing_blocks(role) == 0 {
            self.complete(role, target)?;
        }
        Ok(())
    }

    /// Finds out what a target holds that has returned, of these ranges and of all blocks that were looked at.
    fn recognize(
        &self,
        role: Role,
        target: &Arc<dyn Target>,
        mut ranges: Vec<Range<u64>>,
    ) -> Result<()> {
        let blocks = self.end();
        {
            let known = self.blocks();
            match known.are_all_known() {
                true => ranges.push(0..blocks),
                false => ranges.extend(known.ranges()),
            }
        }
        let mut ranges = pages(ranges, blocks);
        for range in ranges.clone() {
            match self.know(range) {
                Err(error) if error.wants_target() => {
                    // The others are away. What was not looked at is looked at when they are there, and at this one too.
                    ranges = pages(self.blocks().ranges(), blocks);
                    break;
                }
                known => known?,
            }
        }
        let mut unclean = Vec::new();
        for range in ranges {
            each_part(target.as_ref(), range, |held| {
                self.recognize_part(role, target, &held, &mut unclean)
            })?;
        }
        add(&self.counters.damaged_entries, target.usage().damaged);
        self.clean(role, target, &unclean)
    }

    fn recognize_part(
        &self,
        role: Role,
        target: &Arc<dyn Target>,
        held: &[Held],
        unclean: &mut Vec<Unclean>,
    ) -> Result<()> {
        // A loss of power may have left entries without their records.
        let torn = torn(target.as_ref(), held)?;
        for of_block in held.chunk_by(|a, b| a.block == b.block) {
            let Some(Held { block, .. }) = of_block.first().copied() else {
                continue;
            };
            let _lock = self.locks.one(block);
            if self.pending.is_doubted(role, block) {
                continue;
            }
            if self.recognize_block(role, block, of_block, &torn) {
                unclean.push(Unclean {
                    block,
                    roles: role.bit(),
                });
            }
        }
        Ok(())
    }

    /// Records what a target holds of a block. True if its entry says more. The caller holds the lock.
    fn recognize_block(&self, role: Role, block: u64, of_block: &[Held], torn: &Records) -> bool {
        let state = self.state(block);
        if state.generation == 0 {
            return !state.lost;
        }
        let is_whole = |held: &&Held| !held.damaged && !torn.contains(&(block, held.generation));
        let mut slots = of_block.iter().filter(is_whole);
        let Some(held) = slots.find(|held| held.generation == state.generation) else {
            return false;
        };
        if held.kind == Kind::Lost {
            let marked = state.marked | role.bit();
            self.set_state(block, BlockState { marked, ..state });
            return false;
        }
        // Whether a lost block is still lost is decided afterwards.
        let holders = state.holders | role.bit();
        self.set_state(block, BlockState { holders, ..state });
        self.pending.holds(block, state.generation, role, true);
        !state.lost && (of_block.len() > 1 || !held.settled)
    }

    /// Settles at a target what its entries say too much.
    fn clean(&self, role: Role, target: &Arc<dyn Target>, blocks: &[Unclean]) -> Result<()> {
        for group in blocks.chunks(self.group()) {
            let _locks = self.locks.of(group.iter().map(|unclean| unclean.block));
            let step = |unclean: &Unclean| {
                let state = self.state(unclean.block);
                let has_it = state.generation == 0 || state.is_held_by(role);
                (!state.lost && has_it).then_some(Step::Commit {
                    block: unclean.block,
                    generation: state.generation,
                })
            };
            let steps: Vec<Step<'_>> = group.iter().filter_map(step).collect();
            let mut done = Ok(());
            for begun in target.begin_all(&steps) {
                match target.finish(begun) {
                    Err(error) if !error.is_full() => done = done.and(Err(error)),
                    _ => {}
                }
            }
            done?;
        }
        Ok(())
    }

    /// Decides again about blocks that count as lost: a target that has returned may say something about them.
    fn reconsider(&self) {
        let lost: BTreeSet<u64> = self.blocks().lost().into_iter().collect();
        if lost.is_empty() {
            return;
        }
        let rule = self.rule();
        let part = |role| {
            let target = self.target(role).ok()?;
            let part = Evidence::of_blocks(rule, role, target.as_ref(), &lost);
            part.inspect_err(|error| self.fail(&target, error)).ok()
        };
        let mut evidence = Evidence::together(rule, self.layout.roles().filter_map(part));
        self.verify(&lost, &mut evidence);
        let is_decided = |block: &u64| !evidence.decide(evidence.block(*block)).lost;
        if !lost.iter().any(is_decided) {
            return;
        }
        // Before a block is shown: the next opening does not reverse what these targets have decided.
        if let Err(error) = self.mark_agreed() {
            say(error);
            return;
        }
        let mut to_settle = Vec::new();
        for block in lost {
            // Empty, if the target with a damaged entry has left.
            let of_block = evidence.block(block);
            let _lock = self.locks.one(block);
            let found = evidence.decide(of_block);
            if self.state(block).lost && !found.lost {
                self.set_state(block, found);
                let roles = unclean(of_block, found, self.layout);
                to_settle.push(Unclean { block, roles });
            }
        }
        if let Err(error) = self.settle(&to_settle) {
            say(error);
        }
    }

    /// Reads the records on which decisions about lost blocks rest.
    fn verify(&self, lost: &BTreeSet<u64>, evidence: &mut Evidence) {
        loop {
            let targets = self.targets();
            let found = |block: &u64| (*block, evidence.decide(evidence.block(*block)));
            let found: Vec<(u64, BlockState)> = lost.iter().map(found).collect();
            let found = found.into_iter().filter(|(_, state)| !state.lost);
            match evidence.verify(&targets, found) {
                Ok(false) => return,
                Ok(true) => {}
                Err((role, error)) => {
                    if let Some(target) = &targets[role.index()] {
                        self.fail(target, &error);
                    }
                    evidence.leave_out(role);
                }
            }
        }
    }

    /// How many targets have returned, if the two others are there, and it is known what they hold: one that takes its place
    /// may hold what it does not seem to.
    pub(super) fn certain_others(&self, role: Role) -> Option<u64> {
        let returns = self.seats.returns();
        let is_certain = |other| self.target(other).is_ok() && !self.is_arriving(other);
        self.others(role).all(is_certain).then_some(returns)
    }

    pub(super) fn others(&self, role: Role) -> impl Iterator<Item = Role> + use<> {
        self.layout.roles().filter(move |other| *other != role)
    }

    /// Records, after a flush of its own, that a target lacks nothing.
    pub(super) fn complete(&self, role: Role, target: &Arc<dyn Target>) -> Result<()> {
        self.flush_target(role, target)?;
        target
            .mark(self.epoch, Mark::Complete)
            .inspect_err(|error| self.fail(target, error))?;
        self.seats.completed(target);
        self.admit(role, target)?;
        Ok(())
    }

    /// Lets a new target know of a block that is lost: without it, two targets that hold nothing would say that the block was
    /// never written.
    pub(super) fn mark_lost(
        &self,
        block: u64,
        state: BlockState,
        (role, target): (Role, &Arc<dyn Target>),
    ) -> Result<()> {
        let has_voice = !is_used(self.layout) || self.is_trusted(role);
        if target.identity().standing != Standing::New && has_voice {
            // What it holds, or that it holds nothing, is true and may help to decide later.
            let marked = state.marked | role.bit();
            self.set_state(block, BlockState { marked, ..state });
            return Ok(());
        }
        if state.generation == 0 {
            return Err(BlkError::Lost {
                block,
                reason: "nobody knows whether it was written".to_owned(),
            });
        }
        let half = Half {
            generation: state.generation,
            kind: Kind::Lost,
            stored: 0,
            data: bytes::Bytes::new(),
        };
        self.put(block, state, (role, target), &half)
    }

    /// Reads everything, parity included, compares it, and writes again what is absent or wrong.
    ///
    /// # Errors
    /// Too few targets are present.
    pub fn scrub(&self) -> Result<ScrubReport> {
        self.scrub_while(|_| true)
    }

    /// As [`Volume::scrub`], as long as `goes_on`, which is asked after each block.
    pub(super) fn scrub_while(
        &self,
        mut goes_on: impl FnMut(&ScrubReport) -> bool,
    ) -> Result<ScrubReport> {
        let mut report = ScrubReport {
            damaged_entries: self.damaged_entries(),
            ..ScrubReport::default()
        };
        let mut content = vec![0; self.block_size as usize];
        let mut from = 0;
        'all: while from < self.end() {
            let next = self.know_next(from)?;
            for block in self.written_blocks(from..next) {
                self.scrub_block(block, &mut content, &mut report);
                if !goes_on(&report) {
                    break 'all;
                }
            }
            from = next;
        }
        self.flush_once()?;
        report.damaged_entries = self.damaged_entries();
        Ok(report)
    }

    /// Blocks of pages of which something was written.
    pub(super) fn written_blocks(&self, blocks: Range<u64>) -> impl Iterator<Item = u64> {
        let mut page = blocks.start..blocks.start;
        let mut from = blocks.start / PAGE * PAGE;
        std::iter::from_fn(move || {
            if page.is_empty() {
                let first = self.blocks().next_page(from, blocks.end)?;
                page = first.max(blocks.start)..(first + PAGE).min(blocks.end);
                from = first + PAGE;
            }
            page.next()
        })
    }

    fn scrub_block(&self, block: u64, content: &mut [u8], report: &mut ScrubReport) {
        let _lock = self.locks.one(block);
        let state = self.state(block);
        if state.generation == 0 && !state.lost {
            return;
        }
        report.blocks += 1;
        if state.lost {
            report.lost_blocks += 1;
            return;
        }
        let mut halves = Halves::new(self.layout);
        for role in self.layout.roles() {
            self.get(block, state, role, &mut halves);
        }
        let bad = halves.found.iter().flatten().filter(|found| match found {
            Err(error) => error.is_repairable(),
            Ok(_) => false,
        });
        report.bad_halves += bad.count() as u64;
        if halves.decode(self.seal_of(block, state), content).is_err() {
            report.lost_blocks += 1;
            return;
        }
        report.repaired_halves += self.write_again(block, state, &halves);
        let wrong = self.correct_parity(block, state, &halves, report);
        report.bad_halves += wrong;
    }

    /// Writes parities and copies again that have the right checksum and are still not those of the data. Returns their number.
    fn correct_parity(
        &self,
        block: u64,
        state: BlockState,
        halves: &Halves,
        report: &mut ScrubReport,
    ) -> u64 {
        let data = self.layout.roles().filter(|role| role.is_data());
        let data: Option<Vec<&[u8]>> = data.map(|role| Some(&halves.get(role)?.data[..])).collect();
        let Some(data) = data else {
            return 0;
        };
        let mut wrong = 0;
        for role in self.layout.roles().filter(|role| !role.is_data()) {
            let Some(parity) = halves.get(role) else {
                continue;
            };
            let right = block::part(role, parity.stored, &data);
            if right == parity.data {
                continue;
            }
            wrong += 1;
            say(format_args!(
                "block {block}: {role} is not that of its data"
            ));
            let right = Half {
                data: right.into(),
                ..parity.clone()
            };
            if let Ok(target) = self.target(role) {
                let done = self.put(block, state, (role, &target), &right);
                report.repaired_halves += u64::from(done.is_ok());
            }
        }
        wrong
    }
}
