//! The begin of steps of several blocks at all targets, and what became of them.

use crate::error::{BlkError, Result};
use crate::geometry::{Layout, PerTarget, Role};
use crate::store::{Begun, Step, Target};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// Steps that have begun at a target, and the places of their blocks. That of one block needs no memory.
#[derive(Default)]
pub(super) struct OfRole {
    pub(super) places: SmallVec<[usize; 1]>,
    pub(super) steps: SmallVec<[Begun; 1]>,
}

/// Begins a step for each block at each target, first at those elsewhere: they work while those of this process do. `step`
/// returns nothing for those that are left out.
pub(super) fn begin_each<'a, T>(
    layout: Layout,
    targets: &[Option<Arc<dyn Target>>],
    blocks: &'a [T],
    step: impl Fn(usize, &'a T, Role) -> Option<Step<'a>>,
) -> PerTarget<OfRole> {
    let mut begun = layout.map(|_| OfRole::default());
    let is_elsewhere = |role: &Role| {
        let target = targets[role.index()].as_ref();
        target.is_some_and(|target| target.is_elsewhere())
    };
    let mut roles: PerTarget<Role> = layout.roles().collect();
    roles.sort_by_key(|role| !is_elsewhere(role));
    let mut steps: SmallVec<[Step<'_>; 1]> = SmallVec::with_capacity(blocks.len());
    for role in roles {
        let Some(target) = &targets[role.index()] else {
            continue;
        };
        let mut places = SmallVec::with_capacity(blocks.len());
        steps.clear();
        for (at, block) in blocks.iter().enumerate() {
            if let Some(step) = step(at, block, role) {
                places.push(at);
                steps.push(step);
            }
        }
        let steps = match &steps[..] {
            [step] => smallvec![target.begin(*step)],
            steps => target.begin_all(steps).into(),
        };
        begun[role.index()] = OfRole { places, steps };
    }
    begun
}

/// What became of steps of blocks at the targets: most are done, and there are no more than bits of them.
pub(super) struct Outcome {
    layout: Layout,
    /// For each block the targets that are done with it.
    done: Vec<u16>,
    /// Those that have failed, by block and role.
    failed: Vec<(usize, Role, BlkError)>,
}

impl Outcome {
    /// Of so many blocks, none of which is done.
    pub(super) fn new(layout: Layout, blocks: usize) -> Self {
        Self {
            layout,
            done: vec![0; blocks],
            failed: Vec::new(),
        }
    }

    pub(super) fn put<T>(&mut self, at: usize, role: Role, ended: Result<T>) {
        match ended {
            Ok(_) => self.done[at] |= role.bit(),
            Err(error) => self.failed.push((at, role, error)),
        }
    }

    /// The targets that are done with a block.
    pub(super) fn done(&self, at: usize) -> u16 {
        self.done[at]
    }

    /// True if so many are done with a block that they restore it.
    pub(super) fn is_enough(&self, at: usize) -> bool {
        self.done[at].count_ones() as usize >= self.layout.needed()
    }

    /// True if all targets are done with all blocks.
    pub(super) fn is_whole(&self) -> bool {
        let all = self.layout.mask(|_| true);
        self.done.iter().all(|done| *done == all)
    }

    /// The targets that are done with a block, or have no space for more than its record.
    pub(super) fn done_or_full(&self, at: usize) -> u16 {
        let full = |failed: &&(usize, Role, BlkError)| failed.0 == at && failed.2.is_full();
        let full = self.failed.iter().filter(full);
        full.fold(self.done[at], |done, (_, role, _)| done | role.bit())
    }

    /// The results of a block. Its errors are not here any more.
    pub(super) fn take(&mut self, at: usize) -> PerTarget<Result<()>> {
        let done = self.done[at];
        let mut results: PerTarget<Result<()>> = self.layout.map(|role| match done & role.bit() {
            0 => Err(BlkError::Offline(role)),
            _ => Ok(()),
        });
        for (_, role, error) in self.failed.extract_if(.., |failed| failed.0 == at) {
            results[role.index()] = Err(error);
        }
        results
    }
}
