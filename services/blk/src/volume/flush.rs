//! Flushes: enough targets make each block durable that was written before. One that begins serves all requests that wait for one.

use super::io::Targets;
use super::pending::{Batch, Due};
use super::state::{Volume, add};
use crate::error::{BlkError, Result};
use crate::geometry::{PerTarget, Role};
use crate::store::Target;
use std::panic::resume_unwind;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError, RwLockReadGuard, TryLockError};

impl Volume {
    /// Makes all data durable that was acknowledged before.
    ///
    /// # Errors
    /// Too few targets could do it for some block.
    pub fn flush(&self) -> Result<()> {
        // What was acknowledged before is in each flush that begins from here on. A write and a flush have the lock of what
        // waits in common, which orders this, too.
        let asked = self.commits.begun.load(Ordering::Acquire);
        add(&self.counters.flushes, 1);
        self.with_return(|| self.flush_after(asked))
    }

    /// Flushes, unless a flush behind that with the number `asked` was successful.
    fn flush_after(&self, asked: u64) -> Result<()> {
        let done = self.commits.done.lock();
        // A panic cannot leave it half changed.
        let mut done = done.unwrap_or_else(PoisonError::into_inner);
        if *done > asked {
            return Ok(());
        }
        let number = self.commits.begun.fetch_add(1, Ordering::AcqRel) + 1;
        add(&self.counters.flush_groups, 1);
        self.flush_once()?;
        *done = number;
        Ok(())
    }

    /// As [`Volume::flush`], without a wait for targets that return.
    pub(super) fn flush_once(&self) -> Result<()> {
        let left = self.flush_pending()?;
        if left.is_empty() {
            return Ok(());
        }
        // A target that had no space, or has returned, may take them now.
        for role in self.layout.roles() {
            if let Ok(target) = self.target(role) {
                self.replay(role, &target)?;
            }
        }
        let left = self.flush_pending()?;
        match left.first() {
            None => Ok(()),
            Some(due) => Err(BlkError::TooFewTargets {
                layout: self.layout,
                usable: self.layout.needed() - 1,
                reasons: format!(
                    "{} blocks since the last flush are durable at too few, block {} first",
                    left.len(),
                    due.block
                ),
            }),
        }
    }

    /// Flushes all targets. Returns the blocks that too few have made durable.
    fn flush_pending(&self) -> Result<Vec<Due>> {
        if !self.layout.keeps_flushed() {
            // First these: a target that takes a place afterwards is not flushed here.
            let targets = self.targets();
            return self.flush_batch(&targets, self.pending.begin());
        }
        let _turn = self.flushing();
        let targets = self.targets();
        let (batch, generation) = {
            // No write is under way: each up to here is a part of this flush.
            let writing = self.commits.writing.write();
            let _none = writing.unwrap_or_else(PoisonError::into_inner);
            (self.pending.cover(), self.last_generation())
        };
        let left = self.flush_batch(&targets, batch);
        if left.as_ref().is_ok_and(Vec::is_empty) {
            self.released.store(generation, Ordering::Release);
            let release = |role: Role| {
                let target = targets[role.index()].as_ref()?;
                Some((target, target.begin_release(generation)))
            };
            let begun: PerTarget<_> = self.layout.map(release);
            for (target, begun) in begun.into_iter().flatten() {
                let _ = target
                    .finish(begun)
                    .inspect_err(|error| self.fail(target, error));
            }
        }
        self.pending.uncover();
        left
    }

    /// Held during a flush of all targets, if they keep what it is about until all have made that durable.
    fn flushing(&self) -> MutexGuard<'_, ()> {
        // The lock protects no data of its own.
        let flushing = self.commits.flushing.lock();
        flushing.unwrap_or_else(PoisonError::into_inner)
    }

    /// Before a write of blocks whose locks the caller holds, and until it has ended: a flush of all targets begins before
    /// or behind it.
    pub(super) fn begin_write(
        &self,
        blocks: impl Iterator<Item = u64>,
    ) -> Option<RwLockReadGuard<'_, ()>> {
        if !self.layout.keeps_flushed() {
            return None;
        }
        if self.pending.wait_for_flush(blocks) {
            drop(self.flushing());
        }
        let writing = self.commits.writing.read();
        Some(writing.unwrap_or_else(PoisonError::into_inner))
    }

    /// Tells a target that takes its place, or counts from here on, what all others have made durable.
    pub(super) fn tell_released(&self, target: &Arc<dyn Target>) -> Result<()> {
        if !self.layout.keeps_flushed() {
            return Ok(());
        }
        let generation = self.released.load(Ordering::Acquire);
        target.finish(target.begin_release(generation)).map(drop)
    }

    fn flush_batch(&self, targets: &Targets, batch: Batch) -> Result<Vec<Due>> {
        let done = self.flush_targets(targets);
        let mut durable = 0;
        for role in self.layout.roles() {
            let (Ok(()), Some(target)) = (&done[role.index()], &targets[role.index()]) else {
                continue;
            };
            if self.seats.is_used(target) {
                self.pending.synced(role, &batch);
                durable |= role.bit();
            }
        }
        self.enough(&done)?;
        self.acknowledge(durable)?;
        Ok(self.pending.done(batch, durable, self.required()))
    }

    /// Flushes the targets, all at once. One that fails is not used any more: nobody knows what it has.
    fn flush_targets(&self, targets: &Targets) -> PerTarget<Result<()>> {
        let flush = |role: Role| -> Result<()> {
            let target = targets[role.index()]
                .as_ref()
                .ok_or(BlkError::Offline(role))?;
            target.flush().inspect_err(|error| self.fail(target, error))
        };
        let waits = |target: &Arc<dyn Target>| !target.flushes_at_once();
        if !targets.iter().flatten().any(waits) {
            return self.layout.map(flush);
        }
        std::thread::scope(|scope| {
            let mut roles = self.layout.roles();
            let last = roles.next_back().map(|role| move || flush(role));
            let threads: PerTarget<_> =
                roles.map(|role| scope.spawn(move || flush(role))).collect();
            let last = last.map(|flush| flush());
            let threads = threads.into_iter();
            let others =
                threads.map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
            others.chain(last).collect()
        })
    }

    /// Makes durable what one target holds.
    pub(super) fn flush_target(&self, role: Role, target: &Arc<dyn Target>) -> Result<()> {
        let batch = self.pending.begin();
        target
            .flush()
            .inspect_err(|error| self.fail(target, error))?;
        if self.seats.is_used(target) {
            self.pending.synced(role, &batch);
        }
        Ok(())
    }

    /// Gives a target the blocks that wait for a flush and that it does not hold.
    ///
    /// # Errors
    /// The target fails. One that is full takes a part.
    pub(super) fn replay(&self, role: Role, target: &Arc<dyn Target>) -> Result<()> {
        for block in self.pending.absent_at(role) {
            let _lock = self.locks.one(block);
            let state = self.state(block);
            let parts = self.pending.parts(block, state.generation);
            let Some(parts) = parts.filter(|_| !state.is_held_by(role)) else {
                continue;
            };
            match self.put(block, state, (role, target), &parts[role.index()]) {
                Err(error) if !error.is_full() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Flushes if much waits for that. Other writes go on meanwhile, up to twice as much.
    ///
    /// # Errors
    /// Twice as much waits, and the targets cannot make it durable.
    pub(super) fn relieve(&self) -> Result<()> {
        if !self.pending.is_flush_due(1) {
            return Ok(());
        }
        let turn = match self.relieving.try_lock() {
            Ok(turn) => Some(turn),
            // The lock protects no data of its own.
            Err(TryLockError::Poisoned(turn)) => Some(turn.into_inner()),
            Err(TryLockError::WouldBlock) if self.pending.is_flush_due(2) => {
                let turn = self.relieving.lock();
                Some(turn.unwrap_or_else(PoisonError::into_inner))
            }
            Err(TryLockError::WouldBlock) => None,
        };
        if turn.is_none() || !self.pending.is_flush_due(1) {
            return Ok(());
        }
        match self.flush_once() {
            Err(error) if self.pending.is_flush_due(2) => Err(error),
            _ => Ok(()),
        }
    }
}
