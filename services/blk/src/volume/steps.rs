//! The begin of steps of several blocks at all targets.

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
