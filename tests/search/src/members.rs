//! Steps about targets: they return, are replaced and are completed.

use crate::disk::{Disk, Fuse};
use crate::model::Part;
use crate::node::Node;
use crate::world::{Outcome, World, violation};
use xgvmi_blk::{TARGETS_MAX, Volume, operate};

const NEW_NAMES: [&str; TARGETS_MAX] = [
    "new 0", "new 1", "new 2", "new 3", "new 4", "new 5", "new 6", "new 7", "new 8", "new 9",
    "new a",
];

impl World {
    pub(crate) fn attach(&mut self, volume: &Volume, target: u8) -> Outcome {
        let name = self.node(target).name();
        if volume.present().iter().any(|present| present == name) {
            return Ok(());
        }
        let part = self.part(volume);
        let result = self
            .connect(target)
            .and_then(|target| volume.attach(target));
        let mut part = self.ended(part);
        if self.stale & 1 << target != 0 {
            return match result {
                Ok(_) if !self.parted => violation("replaced", "it is used again"),
                _ => Ok(()),
            };
        }
        let may_be_apart = self.may_be_apart(target);
        if result.is_ok() {
            self.apart &= !(1 << target);
        }
        self.model.returns(1 << target);
        // With fewer no request is served, this one either.
        let is_served = part.healthy().count_ones() >= self.counts().needed;
        part.used |= 1 << target;
        // One that has taken a place since the targets were equal does not know alone what nobody has looked up. Until it
        // holds everything, it takes two others.
        let has_place = self.others[usize::from(target)].is_some();
        let others = if self.model.is_whole(target) { 1 } else { 2 };
        let is_alone = has_place && volume.present().len() < others;
        match result {
            Err(error)
                if !self.is_killed()
                    && (is_served && !is_alone && !may_be_apart)
                    && (part.faulty | self.doubted) & 1 << target == 0
                    && self.model.is_return_sure() =>
            {
                violation("no return", error.to_string())
            }
            _ => Ok(()),
        }
    }

    /// Puts a new target in the place of one, as `xgvmi-blk ctl replace` does.
    pub(crate) fn replace(&mut self, volume: &Volume, target: u8) -> Outcome {
        let (at, bit) = (usize::from(target), 1 << target);
        if self.spent & bit != 0 {
            return Ok(());
        }
        self.spent |= bit;
        let part = self.part(volume);
        let of_disk = match self.setting.elsewhere {
            true => Fuse::new(),
            false => self.fuse.clone(),
        };
        let new = Node::new(NEW_NAMES[at], Disk::new(self.spares[at].clone(), &of_disk));
        let fuse = self.setting.elsewhere.then_some(&self.fuse);
        let link = new.connect(fuse, false);
        let result = link.and_then(|link| volume.replace(link));
        if new.has_replaced() {
            self.links[at] = Some(new.boots());
            self.others[at] = Some(std::mem::replace(&mut self.nodes[at], new));
            self.other_kin |= self.kin & bit;
            self.kin &= !bit;
            self.ended(part);
            self.model.replaced(bit);
            return Ok(());
        }
        // The new one, which is told last, does not know that it has the place: it is not used.
        self.ended(part);
        self.model.doubted(bit);
        self.doubted |= bit;
        match result {
            Ok(_) if !self.is_killed() => violation("replaced", "the new target does not know"),
            _ => Ok(()),
        }
    }

    /// Places in which a new target is, or was.
    #[must_use]
    pub fn replaced(&self) -> usize {
        self.others.iter().flatten().count()
    }

    /// An operator names the wrong one of two targets.
    pub(crate) fn swap(&mut self, target: u8) {
        let at = usize::from(target);
        if self.volume.is_some() {
            return;
        }
        if let Some(other) = &mut self.others[at] {
            std::mem::swap(other, &mut self.nodes[at]);
            other.stop();
            self.nodes[at].stop();
            self.stale ^= 1 << target;
            let differs = (self.kin ^ self.other_kin) & 1 << target;
            self.kin ^= differs;
            self.other_kin ^= differs;
        }
    }

    pub(crate) fn rebuild(&mut self, volume: &Volume) -> Outcome {
        let part = self.part(volume);
        // One that has stopped and is still in use is found now.
        let all_answer = volume.present().len() == part.used.count_ones() as usize;
        let result = operate::rebuild(volume);
        let part = self.ended(part);
        // A replacement takes one away of those that say what was never written, and damage another one.
        let tells = self.damaged.is_none() || self.spent == 0;
        let is_sound = all_answer
            && tells
            && self.decide(part)
            && part.faulty == 0
            && part.used.count_ones() >= self.counts().needed;
        // What a snapshot has, the targets of its block may not.
        let is_sound =
            is_sound && (!self.model.has_layers() || part.healthy() == self.counts().all());
        if self.is_killed() {
            return Ok(());
        }
        match result {
            Ok(()) => {
                let used = part.healthy();
                self.model.rebuilt(Part { used, ..part });
                Ok(())
            }
            Err(error) if is_sound && self.are_readable(part) => {
                violation("no rebuild", format!("{error:#}"))
            }
            Err(_) => Ok(()),
        }
    }

    pub(crate) fn scrub(&mut self, volume: &Volume) -> Outcome {
        let part = self.part(volume);
        let result = volume.scrub();
        let part = self.ended(part);
        match result {
            Err(error)
                if !self.is_killed()
                    && self.acknowledging(part).count_ones() >= self.counts().needed
                    && part.faulty == 0 =>
            {
                violation("no scrub", error.to_string())
            }
            Ok(_) if !self.is_killed() => {
                // It ends with a flush.
                self.model.flushed(part);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
