//! The parts of a block that an operation has, and what they restore.

use crate::block;
use crate::encryption::Seal;
use crate::error::{BlkError, Result};
use crate::geometry::{Layout, PerTarget, Role};
use crate::record::Half;
use std::borrow::Cow;

/// The parts of a block that were fetched. None: not asked for.
#[derive(Debug)]
pub(super) struct Halves {
    layout: Layout,
    pub(super) found: PerTarget<Option<Result<Half>>>,
}

impl Halves {
    pub(super) fn new(layout: Layout) -> Self {
        Self {
            layout,
            found: layout.map(|_| None),
        }
    }

    pub(super) fn get(&self, role: Role) -> Option<&Half> {
        self.found[role.index()].as_ref()?.as_ref().ok()
    }

    /// The part of a role, or another one that is the same: of a mirror each is the block.
    fn get_same(&self, role: Role) -> Option<&Half> {
        let any = || match self.layout.is_mirror() {
            true => self.layout.roles().find_map(|role| self.get(role)),
            false => None,
        };
        self.get(role).or_else(any)
    }

    /// True if there are so many that they restore the block.
    pub(super) fn are_enough(&self) -> bool {
        let there = self.layout.mask(|role| self.get(role).is_some());
        !self.layout.is_short(there)
    }

    /// Form and stored length, as all parts agree on.
    fn agreed(&self) -> Option<&Half> {
        let mut halves = self.layout.roles().filter_map(|role| self.get(role));
        let first = halves.next()?;
        let same = |other: &Half| (other.kind, other.stored) == (first.kind, first.stored);
        (self.are_enough() && halves.all(same)).then_some(first)
    }

    /// Decodes the block from its parts, some of which may have to be restored.
    pub(super) fn decode(
        &self,
        seal: Option<Seal<'_>>,
        into: &mut [u8],
    ) -> Result<(), block::BadBlock> {
        let agreed = self.agreed().ok_or(block::BadBlock::Halves)?;
        let mut data: PerTarget<Cow<'_, [u8]>> = PerTarget::new();
        for role in self.layout.roles().filter(|role| role.is_data()) {
            data.push(match self.get_same(role) {
                Some(half) => Cow::Borrowed(&half.data),
                None => Cow::Owned(self.restored(role)?.data.into()),
            });
        }
        let data: PerTarget<&[u8]> = data.iter().map(|part| &part[..]).collect();
        block::decode_with(agreed.kind, &data, seal, into)
    }

    /// Why the block cannot be decoded.
    pub(super) fn lost(&self, block: u64, error: block::BadBlock) -> BlkError {
        let reasons = self
            .found
            .iter()
            .flatten()
            .filter_map(|found| found.as_ref().err());
        let mut reasons: Vec<String> = reasons.map(ToString::to_string).collect();
        if self.are_enough() {
            reasons.push(error.to_string());
        }
        BlkError::Lost {
            block,
            reason: reasons.join(", "),
        }
    }

    /// The part of a role, restored from others.
    pub(super) fn restored(&self, role: Role) -> Result<Half, block::BadBlock> {
        let agreed = self.agreed().ok_or(block::BadBlock::Halves)?;
        let part = |role| Some(&self.get(role)?.data[..]);
        let data = match self.get_same(role) {
            Some(half) => half.data.clone(),
            None => block::restore(role, agreed.stored, &self.layout.map(part))?.into(),
        };
        Ok(Half {
            data,
            ..agreed.clone()
        })
    }
}
