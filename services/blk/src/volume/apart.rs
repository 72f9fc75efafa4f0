//! Targets that were each used without the others: what each holds alone cannot be brought together.
//!
//! That takes an opening for which absent ones counted as gone. Low epochs tell that there was none, because such an opening
//! leaves many out. After one, a target has nothing of its own if it has trusted one with a newer record that has nothing of its
//! own either, or if such a one trusts it.

use super::state::Volume;
use super::trustees::is_used;
use crate::error::{BlkError, Result};
use crate::geometry::{Layout, PerTarget, Role};
use crate::store::{Identity, Members, Standing, Target, Trusted};
use std::sync::Arc;

/// Fewest epochs that an opening leaves out for those of absent targets that count as gone.
pub(super) const FORGOTTEN_MIN: u64 = 1 << 14;

/// True if targets of this layout may have been used apart until this epoch.
pub(super) fn may_be(layout: Layout, epoch: u64) -> bool {
    is_used(layout) && epoch >= FORGOTTEN_MIN
}

/// True if a target, or an owner, trusts the target of a role. `others` are the members that the other side knows: another target
/// can have taken its place, which need not have what that one had.
fn trusts((trusted, members): (Trusted, &Members), role: Role, others: &Members) -> bool {
    trusted.roles & role.bit() != 0 && members.of(role) == others.of(role)
}

/// An error if targets were each used without the others.
pub(super) fn check<'a>(targets: impl Iterator<Item = &'a Arc<dyn Target>>) -> Result<()> {
    let all = targets.map(|target| (target, target.identity()));
    let mut all: PerTarget<_> = all
        .filter(|(_, identity)| identity.standing != Standing::New)
        .collect();
    all.sort_by_key(|(_, of)| std::cmp::Reverse((of.trusted.epoch, of.trusted.revision)));
    let trusts = |one: &Identity, other: &Identity| {
        trusts((one.trusted, &one.members), other.role, &other.members)
    };
    for (at, (target, older)) in all.iter().enumerate() {
        let mut newer = all[..at].iter();
        let is_behind = newer.any(|(_, newer)| trusts(older, newer) || trusts(newer, older));
        if let Some((first, _)) = all.first()
            && !(at == 0 || is_behind)
        {
            return Err(were(first.name(), target.name()));
        }
    }
    Ok(())
}

fn were(first: &str, second: &str) -> BlkError {
    BlkError::Disagree {
        first: first.to_owned(),
        second: second.to_owned(),
        difference:
            "each may have been used without the other: open the volume without one of them, and give that one back by \
             xgvmi-blk ctl replace, which overwrites it, or a new target in its place"
                .to_owned(),
    }
}

impl Volume {
    /// An error if a target that is to take a place was used without those of this volume, and they without it.
    pub(super) fn check_apart(&self, target: &dyn Target) -> Result<()> {
        let theirs = target.identity();
        let last = theirs.epoch.max(self.epoch);
        if theirs.standing == Standing::New || !may_be(self.layout, last) {
            return Ok(());
        }
        let trusted = self.trust.recorded().last;
        let members = *self.members();
        // What this volume has told it, it has not told another one since.
        if theirs.trusted.epoch == self.epoch {
            return Ok(());
        }
        let ours = self
            .layout
            .roles()
            .filter(|role| trusted.roles & role.bit() != 0);
        let mut ours = ours.filter(|role| *role != theirs.role);
        let is_behind = trusts((trusted, &members), theirs.role, &theirs.members)
            || ours.any(|role| trusts((theirs.trusted, &theirs.members), role, &members));
        match is_behind {
            true => Ok(()),
            false => {
                let other = self.targets().iter().flatten().next().cloned();
                let first =
                    other.map_or_else(|| "the volume".to_owned(), |other| other.name().to_owned());
                Err(were(&first, target.name()))
            }
        }
    }
}
