//! The replacement of a target while the volume serves.
//!
//! The two others, which hold everything, record it before the new target has its place. From then on the old one does not
//! count, also for an opening at which those are away that know newer data. Without such a record any target counts: one
//! whose place a new one has taken between two openings may be found again, and hold what is lost otherwise.

use super::state::{Volume, add};
use super::trustees::is_used;
use crate::error::{BlkError, Result};
use crate::geometry::{Layout, Role};
use crate::store::{Identity, Mark, Members, Standing, Target};
use std::sync::{Arc, MutexGuard, PoisonError};

/// The targets that have replaced others, as those tell that know it best: those that a later owner told.
///
/// Each owner tells it before it records who is trusted, and before a target takes over its decisions, also one that is not
/// trusted. The epoch alone does not say so: an opening that was cut off has given it to some before it told them.
pub(super) fn newest(layout: Layout, identities: impl Iterator<Item = Identity>) -> Members {
    let newest = identities.max_by_key(|identity| {
        let told = match is_used(layout) {
            true => identity.trusted.epoch.max(identity.agreed),
            false => identity.epoch,
        };
        (told, identity.members.revision)
    });
    newest.map_or_else(Members::default, |identity| identity.members)
}

/// An error if another target has taken the place of this one. A new one takes a place itself.
pub(super) fn check_member(members: &Members, target: &dyn Target) -> Result<()> {
    let identity = target.identity();
    match members.of(identity.role) {
        Some(by) if by != identity.target && identity.standing != Standing::New => {
            Err(BlkError::Replaced {
                target: target.name().to_owned(),
                role: identity.role,
                by,
            })
        }
        _ => Ok(()),
    }
}

impl Volume {
    pub(super) fn members(&self) -> MutexGuard<'_, Members> {
        // A panic cannot leave them half changed: they are replaced as a whole.
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An error if another target has taken the place of this one.
    pub(super) fn check_member(&self, target: &dyn Target) -> Result<()> {
        check_member(&self.members(), target)
    }

    /// Tells a target that takes its place which ones have replaced others. If it is new and takes the place of such a one, the
    /// others are told, too. One of them that fails is not used any more.
    pub(super) fn tell_members(&self, role: Role, target: &Arc<dyn Target>) -> Result<()> {
        let known = *self.members();
        let id = target.identity().target;
        let takes_place = match known.of(role) {
            Some(of_role) => of_role != id,
            // One that was trusted can still be there.
            None => is_used(self.layout) && target.identity().standing == Standing::New,
        };
        let wanted = match takes_place {
            true => known.with(role, id),
            _ => known,
        };
        if wanted != known {
            *self.members() = wanted;
            for other in self.others(role) {
                if let Ok(other) = self.target(other) {
                    // It learns it when it returns.
                    let told = other.mark(self.epoch, Mark::Members(wanted));
                    told.unwrap_or_else(|error| self.fail(&other, &error));
                }
            }
        }
        match target.identity().members == wanted {
            true => Ok(()),
            false => target.mark(self.epoch, Mark::Members(wanted)),
        }
    }

    /// Uses `target` in place of the one of its role, which can be in use or away. [`Volume::rebuild`] completes it. Requests go
    /// on meanwhile, with the two others.
    ///
    /// # Errors
    /// It belongs to another volume, or is in use; one of the two others is absent or lacks blocks; blocks are lost; or one of
    /// the three fails. Then the target that was in use still is.
    pub fn replace(&self, target: Arc<dyn Target>) -> Result<Role> {
        let identity = self.check_arrival(&target)?;
        let role = identity.role;
        let turn = self.arrival();
        for other in self.targets().iter().flatten() {
            let used = other.identity();
            if used.target == identity.target {
                return Err(BlkError::Argument(format!(
                    "{}: it is in use as {} ({}): give another target",
                    target.name(),
                    used.role,
                    other.name()
                )));
            }
        }
        self.check_needless(role)?;
        self.check_room(role, target.as_ref())?;
        self.know_all()?;
        // With what is known now.
        self.check_needless(role)?;
        target.mark(self.epoch, Mark::Owned)?;
        target.grow(self.geometry().blocks())?;
        self.tell_released(&target)?;
        self.tell_wrapping(&target)?;
        self.tell_layers(&target)?;
        self.tell_replacement(role, &target)?;
        self.seat(&target);
        drop(turn);
        self.arrive(role, &target, Vec::new())?;
        add(&self.counters.replacements, 1);
        Ok(role)
    }

    /// An error unless the two others hold everything.
    fn check_needless(&self, role: Role) -> Result<()> {
        let needed = |reason: String| Err(BlkError::Needed { role, reason });
        let complete = self.layout.mask(|other| {
            other != role && self.is_complete(other) && self.missing_blocks(other) == 0
        });
        for other in self.others(role) {
            if !self.layout.is_short(complete) {
                break;
            }
            let Ok(target) = self.target(other) else {
                return needed(format!(
                    "{other} is absent: wait until it is back and complete"
                ));
            };
            let missing = self.missing_blocks(other);
            if missing != 0 || !self.is_complete(other) {
                return needed(format!(
                    "{other} ({}) lacks {missing} blocks or is not complete yet: wait until it is",
                    target.name()
                ));
            }
        }
        match self.lost_blocks() {
            0 => Ok(()),
            lost => needed(format!(
                "{lost} blocks have fewer than two holders, and this target may be one of them: write them again, or scrub"
            )),
        }
    }

    /// An error unless a new target has space for what the others hold: until it is complete, each block has two holders only.
    fn check_room(&self, role: Role, target: &dyn Target) -> Result<()> {
        let held = self.others(role).filter_map(|other| self.used(other)).max();
        let wanted = held.unwrap_or(0).saturating_sub(target.usage().used);
        match target.free() {
            Some(free) if free < wanted => Err(BlkError::Needed {
                role,
                reason: format!(
                    "{} has space for {free} bytes, and needs {wanted}: free some there, or give another target",
                    target.name()
                ),
            }),
            _ => Ok(()),
        }
    }

    /// Lets both others record the replacement, or none: then the target of before counts.
    fn tell_replacement(&self, role: Role, target: &Arc<dyn Target>) -> Result<()> {
        let before = *self.members();
        let wanted = before.with(role, target.identity().target);
        let mut done = Ok(());
        for other in self.others(role) {
            let told = match self.target(other) {
                Ok(other) => {
                    let told = other.mark(self.epoch, Mark::Members(wanted));
                    told.inspect_err(|error| self.fail(&other, error))
                }
                // It learns it when it returns: those that tell are trusted.
                Err(_) if is_used(self.layout) => Ok(()),
                Err(error) => Err(error),
            };
            done = done.and(told);
        }
        if is_used(self.layout) {
            // Before the new one has its place: the old one does not count from then on.
            done = done.and_then(|()| self.distrust(role.bit()));
        }
        let done = done.and_then(|()| target.mark(self.epoch, Mark::Members(wanted)));
        let Err(error) = done else {
            *self.members() = wanted;
            return Ok(());
        };
        let again = Members {
            revision: wanted.revision + 1,
            ..before
        };
        *self.members() = again;
        for target in self.targets().iter().flatten() {
            let told = target.mark(self.epoch, Mark::Members(again));
            told.unwrap_or_else(|error| self.fail(target, &error));
        }
        Err(error)
    }
}
