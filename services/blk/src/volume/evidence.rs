//! What the targets hold of blocks, and which of their records can be read: from this it is decided which generation counts.
//!
//! A record is read if the entry has an older generation beside it. Before a decision makes any target drop a generation,
//! also the records of the one that counts have been read, so that enough whole ones are left.

use super::decide::{Record, Rule, Unclean, Witness, Witnesses, decide_block, unclean};
use super::io::Targets;
use super::state::{BlockState, PAGE};
use crate::error::{BlkError, Result};
use crate::geometry::{PerTarget, Role};
use crate::store::{Held, Part, Step, Target};
use std::collections::BTreeSet;
use std::ops::Range;

/// Records that are read at once.
const GROUP: usize = 64;

/// Blocks and generations.
pub(super) type Records = BTreeSet<(u64, u64)>;

/// What some targets hold.
pub(super) struct Evidence {
    rule: Rule,
    /// By block, the newest generation first.
    held: Vec<(Held, Role)>,
    witnesses: Witnesses,
    /// Records that cannot be read and have an older generation beside them.
    torn: PerTarget<Records>,
    /// Records that cannot be read and are the oldest of their entries.
    gone: PerTarget<Records>,
}

impl Evidence {
    fn new(rule: Rule) -> Self {
        Self {
            rule,
            held: Vec::new(),
            witnesses: rule.layout.map(|_| None),
            torn: rule.layout.map(|_| Records::new()),
            gone: rule.layout.map(|_| Records::new()),
        }
    }

    /// What one target holds of some blocks.
    ///
    /// # Errors
    /// It does not answer.
    pub(super) fn of_blocks(
        rule: Rule,
        role: Role,
        target: &dyn Target,
        blocks: &BTreeSet<u64>,
    ) -> Result<Self> {
        let mut held = Vec::new();
        let mut left = blocks.iter().copied().peekable();
        while let Some(block) = left.next() {
            let mut end = block + 1;
            while left.next_if_eq(&end).is_some() {
                end += 1;
            }
            each_part(target, block..end, |part| {
                held.extend(part);
                Ok(())
            })?;
        }
        Self::of_held(rule, role, target, held)
    }

    fn of_held(rule: Rule, role: Role, target: &dyn Target, held: Vec<Held>) -> Result<Self> {
        let mut evidence = Self::new(rule);
        evidence.torn[role.index()] = torn(target, &held)?;
        evidence.witnesses[role.index()] = Some(Witness::of(&target.identity()));
        evidence.held = held.into_iter().map(|held| (held, role)).collect();
        Ok(evidence)
    }

    /// What several targets hold.
    pub(super) fn together(rule: Rule, parts: impl IntoIterator<Item = Self>) -> Self {
        let mut all = Self::new(rule);
        for part in parts {
            all.held.extend(part.held);
            for (role, torn) in part.torn.into_iter().enumerate() {
                all.witnesses[role] = all.witnesses[role].or(part.witnesses[role]);
                all.torn[role].extend(torn);
            }
        }
        all.held.sort_unstable_by_key(|(held, role)| {
            (held.block, std::cmp::Reverse(held.generation), *role)
        });
        all
    }

    /// A target has failed: it says nothing.
    pub(super) fn leave_out(&mut self, role: Role) {
        self.held.retain(|(_, of)| *of != role);
        self.witnesses[role.index()] = None;
    }

    /// What is held of each block of which something is.
    pub(super) fn blocks(&self) -> impl Iterator<Item = (u64, &[(Held, Role)])> {
        let blocks = self.held.chunk_by(|(a, _), (b, _)| a.block == b.block);
        blocks.filter_map(|of_block| Some((of_block.first()?.0.block, of_block)))
    }

    /// What is held of a block.
    pub(super) fn block(&self, block: u64) -> &[(Held, Role)] {
        let from = self.held.partition_point(|(held, _)| held.block < block);
        let to = self.held.partition_point(|(held, _)| held.block <= block);
        &self.held[from..to]
    }

    /// Decides about a block.
    pub(super) fn decide(&self, of_block: &[(Held, Role)]) -> BlockState {
        decide_block(of_block, &self.witnesses, self.rule, |held, role| {
            let record = (held.block, held.generation);
            if self.torn[role.index()].contains(&record) {
                Record::Torn
            } else if self.gone[role.index()].contains(&record) {
                Record::Gone
            } else {
                Record::Whole
            }
        })
    }

    /// Reads the records of generations that were decided, as far as they have not been read. True if one cannot be read that
    /// was not known: then the decision changes.
    ///
    /// # Errors
    /// A target does not answer.
    pub(super) fn verify(
        &mut self,
        targets: &Targets,
        decided: impl Iterator<Item = (u64, BlockState)>,
    ) -> Result<bool, (Role, BlkError)> {
        let layout = self.rule.layout;
        let mut unread: PerTarget<Vec<Held>> = layout.map(|_| Vec::new());
        for (block, state) in decided {
            for role in layout.roles() {
                let of_role = self.block(block).iter().filter(|(_, of)| *of == role);
                let oldest = of_role.map(|(held, _)| held).rfind(|held| !held.damaged);
                let is_unread = |held: &&Held| {
                    held.generation == state.generation && state.is_held_by(role) && has_bytes(held)
                };
                unread[role.index()].extend(oldest.filter(is_unread));
            }
        }
        let mut is_new = false;
        for role in layout.roles() {
            let Some(target) = &targets[role.index()] else {
                continue;
            };
            let unread: Vec<&Held> = unread[role.index()].iter().collect();
            let bad = unreadable(target.as_ref(), &unread).map_err(|error| (role, error))?;
            is_new |= !bad.is_empty();
            self.gone[role.index()].extend(bad);
        }
        Ok(is_new)
    }
}

/// Blocks, and what was decided about those of which something was written.
pub(super) struct Examined {
    pub(super) states: Vec<(u64, BlockState)>,
    pub(super) unclean: Vec<Unclean>,
    /// The first block that was not looked at.
    pub(super) next: u64,
}

/// Decides about some blocks: about all of them, or the first pages.
///
/// # Errors
/// A target does not answer.
pub(super) fn examine(
    rule: Rule,
    targets: &Targets,
    blocks: Range<u64>,
) -> Result<Examined, (Role, BlkError)> {
    let layout = rule.layout;
    let mut parts: PerTarget<Option<Part>> = layout.map(|_| None);
    for role in layout.roles() {
        if let Some(target) = &targets[role.index()] {
            let part = target.part(blocks.clone()).map_err(|error| (role, error))?;
            parts[role.index()] = Some(part);
        }
    }
    let next = parts.iter().flatten().map(|part| part.next).min();
    let next = next.unwrap_or(u64::MAX).min(blocks.end);
    // Whole pages: a part has more than one.
    let next = match next < blocks.end {
        true => (next / PAGE * PAGE).max(blocks.start + 1),
        false => next,
    };
    let mut all = Vec::new();
    for (role, part) in layout.roles().zip(parts) {
        let (Some(mut part), Some(target)) = (part, &targets[role.index()]) else {
            continue;
        };
        part.held.retain(|held| held.block < next);
        let evidence = Evidence::of_held(rule, role, target.as_ref(), part.held);
        all.push(evidence.map_err(|error| (role, error))?);
    }
    let mut evidence = Evidence::together(rule, all);
    loop {
        let decided = evidence.blocks();
        let states = decided.map(|(block, of_block)| (block, evidence.decide(of_block)));
        let states: Vec<(u64, BlockState)> = states.collect();
        let decided = evidence.blocks().zip(&states);
        let unclean = decided.filter_map(|((block, of_block), (_, state))| {
            let roles = unclean(of_block, *state, layout);
            (roles != 0).then_some((Unclean { block, roles }, *state))
        });
        let unclean: Vec<(Unclean, BlockState)> = unclean.collect();
        let doubtful = unclean
            .iter()
            .map(|(unclean, state)| (unclean.block, *state));
        if !evidence.verify(targets, doubtful)? {
            return Ok(Examined {
                states,
                unclean: unclean.into_iter().map(|(unclean, _)| unclean).collect(),
                next,
            });
        }
    }
}

/// Shows everything that a target holds of some blocks, in parts.
///
/// # Errors
/// The target does not answer, or those of `show`.
pub(super) fn each_part(
    target: &dyn Target,
    blocks: Range<u64>,
    mut show: impl FnMut(Vec<Held>) -> Result<()>,
) -> Result<()> {
    let mut from = blocks.start;
    while from < blocks.end {
        let part = target.part(from..blocks.end)?;
        from = part.next;
        show(part.held)?;
    }
    Ok(())
}

/// Blocks that may have changed at a target since the targets were equal, as whole pages.
///
/// # Errors
/// The target does not answer.
pub(super) fn changed(target: &dyn Target) -> Result<Vec<Range<u64>>> {
    let mut all = Vec::new();
    let mut from = 0;
    while from != u64::MAX {
        let changed = target.changed(from)?;
        from = changed.next;
        all.extend(changed.ranges);
    }
    Ok(all)
}

/// Ranges as whole pages inside a volume, in order and apart.
pub(super) fn pages(mut ranges: Vec<Range<u64>>, blocks: u64) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut all: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        let from = range.start / PAGE * PAGE;
        let to = range.end.next_multiple_of(PAGE).min(blocks);
        match all.last_mut() {
            _ if from >= to => {}
            Some(last) if last.end >= from => last.end = last.end.max(to),
            _ => all.push(from..to),
        }
    }
    all
}

fn has_bytes(held: &Held) -> bool {
    held.kind.has_bytes()
}

/// Generations whose entry a loss of power has left without its record. An older one beside it shows that it was not durable
/// yet. Others are durable: if their records are wrong, the block is lost and not an older one.
pub(super) fn torn(target: &dyn Target, held: &[Held]) -> Result<Records> {
    // An entry has three generations at most.
    let mut by_age: [Vec<&Held>; 2] = [Vec::new(), Vec::new()];
    for of_block in held.chunk_by(|a, b| a.block == b.block) {
        let mut slots: Vec<&Held> = of_block.iter().filter(|held| !held.damaged).collect();
        slots.sort_unstable_by_key(|held| std::cmp::Reverse(held.generation));
        slots.pop();
        for (held, into) in slots.into_iter().zip(&mut by_age) {
            if has_bytes(held) {
                into.push(held);
            }
        }
    }
    let mut torn = Records::new();
    for held in by_age {
        torn.extend(unreadable(target, &held)?);
    }
    Ok(torn)
}

/// Records that cannot be read. Each is of another block.
fn unreadable(target: &dyn Target, records: &[&Held]) -> Result<Records> {
    let mut bad = Records::new();
    for group in records.chunks(GROUP) {
        let fetch = |held: &&Held| Step::Fetch {
            block: held.block,
            generation: held.generation,
        };
        let steps: Vec<Step<'_>> = group.iter().map(fetch).collect();
        let mut failed = None;
        for (held, begun) in group.iter().zip(target.begin_all(&steps)) {
            match target.finish(begun) {
                Ok(_) => {}
                Err(error) if error.is_repairable() => {
                    bad.insert((held.block, held.generation));
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(()), Err)?;
    }
    Ok(bad)
}
