//! Openings, also without absent targets that may have newer data: what those alone have is given up.

use crate::model::Part;
use crate::step::targets;
use crate::world::{Outcome, World, trusted_by, violation};
use std::sync::Arc;
use xgvmi_blk::error::{BlkError, Result};
use xgvmi_blk::{Target, Volume};

impl World {
    fn connect_all(&mut self, mask: u16) -> Vec<Arc<dyn Target>> {
        targets(mask)
            .filter_map(|target| self.connect(target).ok())
            .collect()
    }

    /// The targets that answer.
    fn connected(&self) -> u16 {
        let answers = |target: &u8| {
            let is_burnt = self.node(*target).disk.own().is_burnt();
            self.links[usize::from(*target)].is_some() && !is_burnt
        };
        let all = targets(self.counts().all()).filter(answers);
        all.fold(0, |all, target| all | 1 << target)
    }

    /// As `operate::Opener` does: targets that cannot be opened are left out.
    pub(crate) fn open(&mut self, mask: u16, alone: bool) -> Outcome {
        // An operator gives up what targets alone have, and then does not open these without one of those that are left: two
        // volumes would result.
        if self.volume.is_some() {
            return Ok(());
        }
        let found = self.connect_all(mask);
        if self.parted && self.connected() & self.kin == 0 {
            self.close();
            return Ok(());
        }
        let mut result = Volume::open(found);
        let is_ahead = matches!(result, Err(BlkError::Ahead { .. }));
        // Of a target that was replaced the others may be those that are given up.
        let parts = is_ahead && alone && mask & (self.stale | self.doubted) == 0;
        if parts {
            self.close();
            let found = self.connect_all(mask);
            let before = (self.apart, self.kin, self.other_kin);
            self.part_with(self.connected());
            result = Volume::open_without_absent(found, None);
            if matches!(result, Err(BlkError::Disagree { .. })) {
                // Refused before anything changed: the same ones are left.
                (self.apart, self.kin, self.other_kin) = before;
            }
        }
        let part = self.ended(Part {
            used: mask & !self.stale,
            faulty: 0,
            trusted: self.trusted,
        });
        self.model.opened(part);
        if parts {
            self.model.parted();
        }
        if self.is_killed() || result.is_err() {
            self.model.opening_ended();
        }
        let left = self.judge(part, mask, result);
        if let Some(volume) = self.volume.as_ref().filter(|_| parts) {
            self.apart = !self.part(volume).used & self.counts().all();
        }
        left
    }

    /// Only these are left.
    fn part_with(&mut self, left: u16) {
        self.apart = !left & self.counts().all();
        self.kin = match self.model.whole(left) {
            0 => left,
            whole => whole,
        };
        self.other_kin = 0;
        self.parted = true;
        self.size = self.setting.blocks.into();
        self.model.parted();
    }

    /// Whether the volume opens as it must.
    fn judge(&mut self, part: Part, mask: u16, result: Result<Volume>) -> Outcome {
        match result {
            Ok(volume) => {
                let size = volume.geometry().blocks();
                let present = volume.present();
                let uses = |target: u8| {
                    let name = self.node(target).name();
                    present.iter().any(|present| present == name)
                };
                let again = targets(self.stale).find(|target| uses(*target));
                let here = targets(mask).filter(|target| uses(*target));
                self.apart &= !here.fold(0, |all, target| all | 1 << target);
                self.trusted = trusted_by(&volume);
                self.follow();
                self.model.trusts(self.trusted);
                if !self.decide(self.part(&volume)) {
                    self.model.undecidable();
                }
                self.volume = Some(volume);
                if size < self.size {
                    return violation("smaller", format!("{size} of {} blocks", self.size));
                }
                match again {
                    Some(target) if !self.parted => {
                        violation("replaced", format!("target {target} is used again"))
                    }
                    _ => Ok(()),
                }
            }
            Err(error) => {
                self.close();
                // One that was used apart is refused, with those that are left.
                let must =
                    !self.is_killed() && !targets(mask).any(|target| self.may_be_apart(target));
                if must && self.model.opens(part.healthy() & !self.doubted) {
                    return violation("no opening", error.to_string());
                }
                Ok(())
            }
        }
    }

    /// Those decide from here on whose data counts.
    pub(crate) fn follow(&mut self) {
        let kin = self.trusted & !self.apart;
        if kin != 0 {
            (self.kin, self.other_kin) = (kin, 0);
        }
    }

    /// True if a target that is to be taken back may have been used without those that are left. One that was not knows only of
    /// those that it was used with: if these were all replaced since, it is refused, too.
    pub(crate) fn may_be_apart(&self, target: u8) -> bool {
        self.apart & 1 << target != 0 || (self.parted && self.replaced() != 0)
    }
}
