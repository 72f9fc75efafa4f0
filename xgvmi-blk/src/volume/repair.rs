//! Targets that return or are new, rebuild, and scrub, while the volume serves.

use super::io::Halves;
use super::open::agree;
use super::state::{BlockState, Volume};
use crate::block;
use crate::error::{BlkError, Result};
use crate::geometry::Role;
use crate::say::say;
use crate::store::Target;
use std::sync::Arc;

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
}

impl Volume {
    /// Uses a target that returns, or a new one of the same role. [`Volume::rebuild`] then completes it.
    ///
    /// # Errors
    /// It belongs to another volume, its place is taken, or a later owner has used it.
    pub fn attach(&self, target: Arc<dyn Target>) -> Result<Role> {
        let identity = target.identity();
        let role = identity.role;
        let ours = crate::store::Identity {
            volume: self.id,
            geometry: self.geometry,
            ..identity
        };
        agree(("the volume", &ours), (target.name(), &identity))?;
        if identity.epoch > self.epoch {
            return Err(BlkError::NotATarget {
                target: target.name().to_owned(),
                fault: "another process has opened the volume since: close this one".to_owned(),
            });
        }
        // It is incomplete until the rebuild, so that two such targets never make a volume.
        target.mark(self.epoch, false)?;
        self.seats.take(&target, || {
            // What it held before is unknown; writes from here on reach it.
            for state in self.blocks().iter_mut() {
                state.holders &= !role.bit();
            }
        })?;
        target.seated(self.seating());
        // Without this its place stays taken by a target that nobody completes.
        self.recognize(&target)
            .inspect_err(|error| self.fail(&target, error))?;
        self.seats.arrived(&target);
        Ok(role)
    }

    /// Finds out what a target holds that has returned.
    fn recognize(&self, target: &Arc<dyn Target>) -> Result<()> {
        let role = target.identity().role;
        for held in target.held()? {
            let _lock = self.lock(held.block);
            let state = self.state(held.block);
            if held.generation != state.generation {
                continue;
            }
            let holders = state.holders | role.bit();
            let lost = state.lost && holders.count_ones() < 2;
            self.set_state(
                held.block,
                BlockState {
                    holders,
                    lost,
                    ..state
                },
            );
            target.commit(held.block, held.generation)?;
        }
        Ok(())
    }

    /// Completes the target of a role. Returns the number of blocks that it lacked.
    ///
    /// # Errors
    /// A block is lost, or a target fails. What is complete stays so.
    pub fn rebuild(&self, role: Role) -> Result<u64> {
        let target = self.target(role)?;
        let mut rebuilt = 0;
        let mut lost = None;
        for block in 0..self.geometry.blocks() {
            let _lock = self.lock(block);
            let state = self.state(block);
            if state.lost {
                lost.get_or_insert(block);
            } else if state.generation != 0 && !state.is_held_by(role) {
                match self.rebuild_block(block, state, role, &target) {
                    Ok(()) => rebuilt += 1,
                    // The other blocks are completed nevertheless.
                    Err(BlkError::Lost { .. }) => {
                        lost.get_or_insert(block);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        if let Some(block) = lost {
            return Err(BlkError::Lost {
                block,
                reason: "fewer than two targets hold its last generation".to_owned(),
            });
        }
        self.flush_once()?;
        target.mark(self.epoch, true)?;
        self.seats.completed(&target);
        Ok(rebuilt)
    }

    fn rebuild_block(
        &self,
        block: u64,
        state: BlockState,
        role: Role,
        target: &Arc<dyn Target>,
    ) -> Result<()> {
        let mut halves = Halves::default();
        for other in Role::ALL.into_iter().filter(|other| *other != role) {
            self.get(block, state, other, &mut halves);
        }
        let half = halves
            .restored(role)
            .map_err(|error| halves.lost(block, error))?;
        if self.put(block, state, (role, target), &half) {
            Ok(())
        } else {
            Err(BlkError::Offline(role))
        }
    }

    /// Completes one block at all targets. The caller holds its lock.
    pub(super) fn repair_block(&self, block: u64) -> Result<()> {
        let state = self.state(block);
        for role in Role::ALL
            .into_iter()
            .filter(|role| !state.is_held_by(*role))
        {
            if state.generation != 0 {
                self.rebuild_block(block, state, role, &self.target(role)?)?;
            }
        }
        Ok(())
    }

    /// Reads everything, parity included, compares it, and writes again what is absent or wrong.
    ///
    /// # Errors
    /// Fewer than two targets are present.
    pub fn scrub(&self) -> Result<ScrubReport> {
        let mut report = ScrubReport::default();
        let mut content = vec![0; self.geometry.block_len()];
        for block in 0..self.geometry.blocks() {
            let _lock = self.lock(block);
            let state = self.state(block);
            if state.generation == 0 && !state.lost {
                continue;
            }
            report.blocks += 1;
            if state.lost {
                report.lost_blocks += 1;
                continue;
            }
            let mut halves = Halves::default();
            for role in Role::ALL {
                self.get(block, state, role, &mut halves);
            }
            let bad = halves.found.iter().flatten().filter(|found| match found {
                Err(error) => error.is_repairable(),
                Ok(_) => false,
            });
            report.bad_halves += bad.count() as u64;
            if halves.decode(&mut content).is_err() {
                report.lost_blocks += 1;
                continue;
            }
            report.repaired_halves += self.write_again(block, state, &halves);
            report.bad_halves += u64::from(self.correct_parity(block, state, &halves, &mut report));
        }
        self.flush_once()?;
        Ok(report)
    }

    /// Writes the parity again if it has the right checksum and is still not that of the two halves.
    fn correct_parity(
        &self,
        block: u64,
        state: BlockState,
        halves: &Halves,
        report: &mut ScrubReport,
    ) -> bool {
        let [Some(Ok(first)), Some(Ok(second)), Some(Ok(parity))] = &halves.found else {
            return false;
        };
        let data = block::xor(&first.data, &second.data);
        if data == parity.data {
            return false;
        }
        say(format_args!(
            "block {block}: the parity is not that of its halves"
        ));
        let right = crate::record::Half {
            data,
            ..parity.clone()
        };
        if let Ok(target) = self.target(Role::Parity) {
            let done = self.put(block, state, (Role::Parity, &target), &right);
            report.repaired_halves += u64::from(done);
        }
        true
    }
}
