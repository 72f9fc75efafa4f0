//! Steps with snapshots.

use crate::world::{Outcome, World, violation};
use xgvmi_blk::Volume;
use xgvmi_blk::volume::Merge;

/// Most steps of a merge.
const MERGES: usize = 40;

impl World {
    pub(crate) fn snapshot(&mut self, volume: &Volume) -> Outcome {
        if volume.snapshots().len() > 2 {
            return Ok(());
        }
        self.version += 1;
        let name = format!("s{}", self.version);
        let part = self.part(volume);
        self.model.layered();
        let result = volume.create_snapshot(&name, true);
        let part = self.ended(part);
        match &result {
            _ if self.is_killed() => {}
            Ok(()) => self.model.snapshot(&name, part),
            // The layers that are left lie apart in the index.
            Err(error) if error.to_string().contains("free together") => {}
            Err(error) => self.refused(volume, part, self.are_readable(part), error)?,
        }
        Ok(())
    }

    pub(crate) fn unsnapshot(&mut self, volume: &Volume, nth: u8) -> Outcome {
        let named = volume.snapshots().into_iter().map(|one| one.name);
        let mut named = named.filter(|name| !name.is_empty());
        let Some(name) = named.nth(nth.into()) else {
            return Ok(());
        };
        let part = self.part(volume);
        let result = volume.delete_snapshot(&name);
        let part = self.ended(part);
        self.model.unsnapshot(&name, self.end(&result));
        match result {
            Err(error) => self.refused(volume, part, true, &error),
            Ok(()) => Ok(()),
        }
    }

    pub(crate) fn merge(&mut self, volume: &Volume) -> Outcome {
        let part = self.part(volume);
        let mut result = Ok(Merge::Going);
        for _ in 0..MERGES {
            if !matches!(result, Ok(Merge::Going)) {
                break;
            }
            result = volume.merge();
        }
        let part = self.ended(part);
        self.model.merged(part);
        let is_sound = self.damaged.is_none()
            && part.healthy() == self.counts().all()
            && self.are_readable(part);
        match result {
            _ if self.is_killed() || !is_sound => Ok(()),
            Ok(Merge::Done | Merge::Stuck(_)) => Ok(()),
            Ok(Merge::Going) => violation("no merge", "it has no end"),
            Err(error) => violation("no merge", error.to_string()),
        }
    }
}
