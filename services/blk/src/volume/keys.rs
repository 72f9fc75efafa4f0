//! The data key of an encrypted volume: who has it in which wrapping, and rotation.
//!
//! Each target has the wrapped key in its superblock. The newest revision counts, as with replaced targets (`replace`): a target
//! that was absent gets it when it returns. Rotation wraps the same key again. Killed at any point it leaves each target with
//! the old wrapping or the new one, and the newest one of those that are there decides which key file opens the volume.

use super::state::{BlockState, Volume};
use crate::encryption::{Cipher, KeyFile, Seal, Wrapping, newest};
use crate::error::{BlkError, Result};
use crate::geometry::PerTarget;
use crate::store::{Identity, Mark, Standing, Target};
use std::sync::{Arc, MutexGuard, PoisonError};

/// The wrapped key that counts.
///
/// # Errors
/// Some targets are encrypted and others are not.
pub(super) fn known<'a>(
    targets: impl Iterator<Item = &'a Arc<dyn Target>>,
) -> Result<Option<Wrapping>> {
    let identity = |target: &'a Arc<dyn Target>| (target.name(), target.identity());
    let known: Vec<(&str, Identity)> = targets.map(identity).collect();
    let has_one = |(_, identity): &&(&str, Identity)| identity.wrapping.is_some();
    let is_plain = |(_, identity): &&(&str, Identity)| {
        identity.wrapping.is_none() && identity.standing != Standing::New
    };
    let both = known.iter().find(has_one).zip(known.iter().find(is_plain));
    if let Some(((encrypted, _), (plain, _))) = both {
        return Err(BlkError::Disagree {
            first: (*encrypted).to_owned(),
            second: (*plain).to_owned(),
            difference: "only the first one is encrypted".to_owned(),
        });
    }
    let wrappings = known.iter();
    Ok(newest(
        wrappings.map(|(_, identity)| (identity.epoch, identity.wrapping)),
    ))
}

/// The difference between the data keys of two targets. A new one may not have any yet.
pub(super) fn difference(ours: &Identity, theirs: &Identity) -> Option<&'static str> {
    let check = |identity: &Identity| identity.wrapping.map(|wrapping| wrapping.check);
    let is_new = |identity: &Identity| identity.standing == Standing::New;
    match (check(ours), check(theirs)) {
        (Some(ours), Some(theirs)) if ours != theirs => Some("each is encrypted by another key"),
        (Some(_), None) if !is_new(theirs) => Some("only the first one is encrypted"),
        (None, Some(_)) if !is_new(ours) => Some("only the second one is encrypted"),
        _ => None,
    }
}

/// What the owner of a volume reads and writes it with.
///
/// # Errors
/// The key file is missing, is another one, or is not needed.
pub(super) fn cipher(
    identity: &Identity,
    wrapping: Option<Wrapping>,
    file: Option<&KeyFile>,
) -> Result<Option<Cipher>> {
    let volume = identity.volume;
    match (wrapping, file) {
        (None, None) => Ok(None),
        (Some(wrapping), Some(file)) => Cipher::open(&wrapping, file, volume).map(Some),
        (Some(_), None) => Err(BlkError::Argument(format!(
            "volume {volume} is encrypted: give --key-file FILE"
        ))),
        (None, Some(_)) => Err(BlkError::Argument(format!(
            "volume {volume} is not encrypted: leave --key-file out"
        ))),
    }
}

impl Volume {
    /// What encrypts and decrypts a generation of a block.
    pub(super) fn seal(&self, place: u64, generation: u64) -> Option<Seal<'_>> {
        self.cipher.as_ref().map(|cipher| Seal {
            cipher,
            place,
            generation,
        })
    }

    /// The same for the generation that counts.
    pub(super) fn seal_of(&self, place: u64, state: BlockState) -> Option<Seal<'_>> {
        self.seal(place, state.generation)
    }

    pub(super) fn wrapping(&self) -> MutexGuard<'_, Option<Wrapping>> {
        // A panic cannot leave it half changed: it is replaced as a whole.
        self.wrapping.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a target that takes its place have the newest wrapping.
    pub(super) fn tell_wrapping(&self, target: &Arc<dyn Target>) -> Result<()> {
        let known = *self.wrapping();
        match known.filter(|_| target.identity().wrapping != known) {
            Some(wrapping) => target.mark(self.epoch, Mark::Wrapping(wrapping)),
            None => Ok(()),
        }
    }

    /// Wraps the data key with another key file, durably. Data is not written again. From then on that file opens the volume, and
    /// the one of before does not. Targets that are absent get the new wrapping when they return.
    ///
    /// # Errors
    /// The volume is not encrypted, or too few targets take the new wrapping: then the file of before still counts.
    pub fn rotate_key(&self, file: &KeyFile) -> Result<()> {
        // A target that takes its place meanwhile would not know it.
        let _turn = self.arrival();
        let before = *self.wrapping();
        let (Some(cipher), Some(before)) = (&self.cipher, before) else {
            return Err(BlkError::Argument(format!(
                "volume {} is not encrypted: it has no key",
                self.id
            )));
        };
        let wrapping = cipher.wrap(file, self.id, before.revision + 1)?;
        let done = self.enough(&self.tell_all(wrapping));
        if done.is_ok() {
            *self.wrapping() = Some(wrapping);
            return done;
        }
        let again = Wrapping {
            revision: wrapping.revision + 1,
            ..before
        };
        *self.wrapping() = Some(again);
        // One that fails learns it when it returns.
        let _ = self.tell_all(again);
        done
    }

    fn tell_all(&self, wrapping: Wrapping) -> PerTarget<Result<()>> {
        self.layout.map(|role| {
            let target = self.target(role)?;
            let told = target.mark(self.epoch, Mark::Wrapping(wrapping));
            told.inspect_err(|error| self.fail(&target, error))
        })
    }
}
