//! The targets that hold everything that was acknowledged, of layouts other than two halves and their parity.
//!
//! Any two openings of a volume of two halves have a target in common, because each needs two of three: that one tells of each
//! write. Of a mirror one target is enough to serve, and two that served one after another need not know of each other. So
//! the targets themselves record which of them are trusted: each of those has settled each acknowledged write, and has made
//! durable each flushed one.
//!
//! - A write, a flush and a change of the volume are acknowledged when all trusted targets took part. If some did not, the
//!   others first record, durably, that those are not trusted any more. They must be so many that they restore each block:
//!   `needed` of them. So an acknowledged write is at all trusted targets, and the loss of any others leaves it readable; in
//!   a volume without absent targets it survives the loss of any `spare` ones.
//! - An opening takes the newest record that it finds. It needs so many of those targets that the others cannot have gone on
//!   without them: the absent ones must be fewer than `needed`. Then one that is there has the newest record, because each
//!   later set is part of an earlier one, but for targets that all of them have admitted. What was acknowledged is at those
//!   that are there. Otherwise an operator must say that the absent ones are gone.
//! - Only trusted targets say which generation of a block counts; others can hold it. What an opening decides it decides for
//!   those that were absent, too: before it changes anything, it records that they are not trusted.
//! - A target is trusted again when it has been completed: from before the last look at what it lacks on each write waits for
//!   it, and only then all record it.

use super::decide::Rule;
use super::seats::Seat;
use super::state::Volume;
use super::trustees::{Recorded, is_used};
use crate::error::{BlkError, Result};
use crate::geometry::Role;
use crate::store::{Mark, Target, Trusted};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Volume {
    /// The targets that must take part before anything is acknowledged. Of two halves and parity: none, beside those that are
    /// enough.
    pub(super) fn required(&self) -> u16 {
        match is_used(self.layout) {
            true => self.trust.required.load(Ordering::SeqCst),
            false => 0,
        }
    }

    /// Which targets decide about blocks.
    pub(super) fn rule(&self) -> Rule {
        let layout = self.layout;
        Rule {
            layout,
            trusted: is_used(layout).then(|| self.required()),
        }
    }

    /// Before something is acknowledged that `took_part` have done: makes it so that they are all trusted ones.
    ///
    /// # Errors
    /// They are too few.
    pub(super) fn acknowledge(&self, took_part: u16) -> Result<()> {
        if !is_used(self.layout) {
            return Ok(());
        }
        let in_use = self.seats.look(|seats| {
            self.layout.mask(
                |role| matches!(&seats[role.index()], Seat::Present(occupant) if occupant.trusted),
            )
        });
        if self.required() & !(in_use & took_part) == 0 {
            return Ok(());
        }
        self.distrust(!(in_use & took_part))
    }

    /// Lets the trusted targets record that some are not trusted any more.
    ///
    /// # Errors
    /// Those that are left are too few.
    pub(super) fn distrust(&self, without: u16) -> Result<()> {
        self.trust_only(!without, false)
    }

    /// Lets the trusted targets among these record that they alone are, also if they know it: an opening `renews` that.
    ///
    /// # Errors
    /// They are too few.
    pub(super) fn trust_only(&self, these: u16, renews: bool) -> Result<()> {
        let mut recorded = self.trust.recorded();
        let mut is_due = renews;
        let mut keep = recorded.last.roles & these;
        loop {
            let missing = self.layout.roles().filter(|role| keep & role.bit() == 0);
            // Those of before must see it, too.
            if self.layout.is_short(keep & recorded.sure) {
                let missing: Vec<String> = missing.map(|role| role.to_string()).collect();
                return Err(BlkError::TooFewTargets {
                    layout: self.layout,
                    usable: (keep & recorded.sure).count_ones() as usize,
                    reasons: format!("{} lack what was written", missing.join(", ")),
                });
            }
            if recorded.last.roles == keep && recorded.sure == keep && !is_due {
                self.trust.required.store(keep, Ordering::SeqCst);
                self.seats.distrusted(!keep);
                return Ok(());
            }
            let failed = self.record_trust(&mut recorded, keep);
            if failed == 0 {
                (recorded.last.roles, recorded.sure) = (keep, keep);
                is_due = false;
            } else {
                // One that has failed may have recorded it all the same: an opening may believe this set or the one before.
                recorded.sure &= keep;
            }
            keep &= !failed;
        }
    }

    /// Tells trusted targets who is one. Returns those that have failed. A later record counts in any case.
    fn record_trust(&self, recorded: &mut Recorded, roles: u16) -> u16 {
        recorded.last.epoch = self.epoch;
        recorded.last.revision += 1;
        let wanted = Trusted {
            roles,
            ..recorded.last
        };
        self.layout.mask(|role| {
            if roles & role.bit() == 0 {
                return false;
            }
            let told = self.target(role).and_then(|target| {
                let told = target.mark(self.epoch, Mark::Trusted(wanted));
                told.inspect_err(|error| self.fail(&target, error))
            });
            told.is_err()
        })
    }

    /// Trusts a target that has been completed. False if it lacks something again.
    pub(super) fn admit(&self, role: Role, target: &Arc<dyn Target>) -> Result<bool> {
        if !is_used(self.layout) {
            return Ok(true);
        }
        let mut recorded = self.trust.recorded();
        // From here on each write waits for it, or for this.
        self.trust.required.fetch_or(role.bit(), Ordering::SeqCst);
        let done = self
            .tell_released(target)
            .inspect_err(|error| self.fail(target, error))
            .and_then(|()| self.flush_target(role, target));
        if done.is_err() || self.missing_blocks(role) != 0 {
            self.trust
                .required
                .store(recorded.last.roles, Ordering::SeqCst);
            return done.map(|()| false);
        }
        let wanted = recorded.last.roles | role.bit();
        if recorded.last.roles != wanted || recorded.sure != wanted {
            // If one fails, an opening may believe it of this target or not: those of before stay necessary.
            if self.record_trust(&mut recorded, wanted) == 0 {
                recorded.sure = wanted;
            }
            recorded.last.roles = wanted;
        }
        self.seats.trusted(target);
        Ok(true)
    }

    /// True if the target of a role is trusted.
    pub(super) fn is_trusted(&self, role: Role) -> bool {
        self.required() & role.bit() != 0
    }
}
