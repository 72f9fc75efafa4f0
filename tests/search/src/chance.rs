//! Random sequences, each of which follows from its seed, and the search for a shorter one that fails in the same way.

use crate::disk::{Damage, Keep, below, random};
use crate::model::Shape;
use crate::report::Report;
use crate::step::Step;
use crate::world::{Fresh, Setting, Violation, World};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use xgvmi_blk::Layout;

/// Most steps of a sequence before its end.
const LONGEST: usize = 22;

/// All settings of random sequences, by the low bits of a number.
fn setting(choice: u64) -> Setting {
    Setting {
        blocks: [1, 1, 2, 3][below(&mut (choice >> 4).clone(), 4)],
        layout: Default::default(),
        block_len: if choice & 0xe == 0 { 1024 } else { 128 },
        elsewhere: choice & 1 == 1,
        settles: choice >> 8 & 1 == 1,
        lies: false,
        forgets: false,
    }
}

/// Numbers for one sequence.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u8) -> u8 {
        // Cannot be cut: less than `end`.
        u8::try_from(random(&mut self.0) % u64::from(end)).unwrap_or(0)
    }

    fn mask(&mut self) -> u16 {
        1 + u16::from(self.below(7))
    }

    fn opening(&mut self) -> Step {
        Step::Open([0b111, 0b111, 0b011, 0b101, 0b110][usize::from(self.below(5))])
    }

    fn keep(&mut self) -> Keep {
        match self.below(6) {
            0 | 1 => Keep::None,
            2 => Keep::All,
            3 => Keep::First(self.below(12)),
            _ => Keep::Any(self.below(255)),
        }
    }

    fn damage(&mut self, target: u8) -> Step {
        let damage = match self.below(4) {
            0 => Damage::Cut,
            1 => Damage::Byte(self.below(255)),
            _ => Damage::Zero,
        };
        Step::Damage(target, self.below(6), damage)
    }

    fn write(&mut self) -> Step {
        match self.below(8) {
            0 => Step::Zero(self.below(3)),
            1 | 2 => Step::Part(self.below(3), self.below(2)),
            3 => Step::All,
            _ => Step::Write(self.below(3)),
        }
    }

    fn request(&mut self) -> Step {
        match self.below(23) {
            0..8 => self.write(),
            8..11 => Step::Flush,
            11..13 => Step::Read,
            13..15 => Step::Keep,
            15..18 => Step::Attach(self.below(3)),
            18 => Step::Rebuild,
            19 => Step::Grow,
            20 | 21 => Step::Replace(self.below(3)),
            _ => Step::Scrub,
        }
    }

    /// A request, or one for snapshots.
    fn any_request(&mut self, with_snapshots: bool) -> Step {
        if !with_snapshots || self.below(5) > 1 {
            return self.request();
        }
        match self.below(7) {
            0..3 => Step::Snap,
            3 | 4 => Step::Unsnap(self.below(3)),
            _ => Step::Merge,
        }
    }
}

/// The sequence of a seed.
#[must_use]
pub fn sequence(seed: u64, layout: Layout) -> (Setting, Vec<Step>) {
    let mut dice = Dice(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
    let setting = Setting {
        layout,
        ..setting(random(&mut dice.0))
    };
    // Which faults it has: many need a long row of others that do not disturb.
    let faults = random(&mut dice.0);
    let has = |bit: u32| faults >> bit & 1 == 1;
    // Half of them have these closer together.
    let (of_closed, of_open) = if has(8) { (5, 18) } else { (8, 24) };
    let damaged = dice.below(3);
    let mut steps = Vec::new();
    if has(0) && has(9) {
        steps.push(dice.damage(damaged));
    }
    steps.push(dice.opening());
    let mut open = true;
    let length = 3 + below(&mut dice.0, LONGEST - 2);
    while steps.len() < length {
        if !open {
            match dice.below(of_closed) {
                0 if has(0) => steps.push(dice.damage(damaged)),
                1 if has(1) => steps.push(Step::Power(dice.mask(), dice.keep())),
                2 if has(2) && setting.elsewhere => steps.push(Step::Restart(dice.mask())),
                3 if has(3) => {
                    steps.extend([Step::KillAt(dice.below(20)), dice.opening(), Step::Kill])
                }
                4 if has(10) => steps.push(Step::Swap(dice.below(3))),
                5 | 6 if has(13) && layout != Layout::HALVES => {
                    steps.push(Step::Alone(dice.mask()));
                    open = true;
                }
                _ => {
                    steps.push(dice.opening());
                    open = true;
                }
            }
            continue;
        }
        match dice.below(of_open) {
            0 | 1 if has(1) => steps.push(Step::Power(dice.mask(), dice.keep())),
            2 | 3 if has(2) => steps.push(Step::Restart(dice.mask())),
            4 if has(3) => {
                let request = dice.any_request(has(11));
                steps.extend([Step::KillAt(dice.below(24)), request, Step::Kill]);
                open = false;
            }
            5 if has(4) => {
                let dies = Step::DieAt(dice.below(3), dice.below(10));
                steps.extend([dies, dice.any_request(has(11))]);
            }
            6 if has(5) => steps.push(Step::SyncFails(dice.below(3))),
            7 if has(5) => steps.push(Step::SyncFull(dice.below(3))),
            8 if has(6) => steps.push(Step::Full(dice.below(3))),
            9 if has(6) => steps.push(Step::Space(dice.below(3))),
            10 | 11 => {
                let machine = has(7) && dice.below(2) == 0;
                let end = if machine {
                    Step::Machine(dice.keep())
                } else {
                    Step::Kill
                };
                steps.push(if dice.below(4) == 0 { Step::Term } else { end });
                open = false;
            }
            _ => steps.push(dice.any_request(has(11))),
        }
    }
    for _ in 0..2 {
        steps.extend([Step::Kill, dice.opening(), Step::Read]);
    }
    steps.extend([Step::Kill, Step::Open(0b111), Step::Read]);
    if layout != Layout::HALVES {
        let first = dice.below(setting.counts().targets);
        let is_wide = setting.counts().targets > 3 && has(12);
        for step in &mut steps {
            *step = of_others(*step, setting.counts(), first, is_wide);
        }
    }
    (setting, steps)
}

/// A step on three targets as one on others, which begin with this one. A wide one is about all, each of the three stands for
/// a third of them.
fn of_others(step: Step, counts: Shape, first: u8, is_wide: bool) -> Step {
    let one = |target: u8| (target + first) % counts.targets;
    let last = if is_wide { counts.targets } else { 3 };
    let mask = |mask: u16| {
        let thirds = (0..last).filter(|target| mask & 1 << (target % 3) != 0);
        thirds.fold(0, |all, target| all | 1 << one(target))
    };
    match step {
        // An opening has all others.
        Step::Open(with) => {
            let without = (0..3).filter(|target| with & 1 << target == 0);
            let without = without.fold(0, |all, target| all | 1 << one(target));
            Step::Open(counts.all() & !without)
        }
        Step::Alone(with) if is_wide => Step::Alone(mask(with)),
        // As many as are enough, or one more.
        Step::Alone(with) => {
            let count = counts.needed + u32::from(with > 5);
            let some = (0..counts.targets)
                .map(|target| (target + first + u8::from(with > 3)) % counts.targets);
            let some = some.take(count as usize);
            Step::Alone(some.fold(0, |all, target| all | 1 << target))
        }
        Step::Restart(of) => Step::Restart(mask(of)),
        Step::Power(of, keep) => Step::Power(mask(of), keep),
        Step::Damage(target, nth, damage) => Step::Damage(one(target), nth, damage),
        Step::DieAt(target, at) => Step::DieAt(one(target), at),
        Step::Swap(target) => Step::Swap(one(target)),
        Step::Attach(target) => Step::Attach(one(target)),
        Step::Replace(target) => Step::Replace(one(target)),
        Step::SyncFails(target) => Step::SyncFails(one(target)),
        Step::SyncFull(target) => Step::SyncFull(one(target)),
        Step::Full(target) => Step::Full(one(target)),
        Step::Space(target) => Step::Space(one(target)),
        step => step,
    }
}

/// Fresh disks for each setting.
#[derive(Debug, Default)]
pub struct Stock(HashMap<(u8, Layout, u16, bool, bool), Fresh>);

impl Stock {
    /// Carries out a sequence. Returns the number of the step that broke a promise.
    ///
    /// # Errors
    /// The product creates no volume.
    pub fn run(
        &mut self,
        setting: Setting,
        steps: &[Step],
    ) -> anyhow::Result<Option<(usize, Violation)>> {
        let key = (
            setting.blocks,
            setting.layout,
            setting.block_len,
            setting.elsewhere,
            setting.settles,
        );
        let fresh = match self.0.entry(key) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => entry.insert(Fresh::new(setting)?),
        };
        let mut world = World::new(fresh);
        for (at, step) in steps.iter().enumerate() {
            if let Err(violation) = world.step(*step) {
                return Ok(Some((at, violation)));
            }
        }
        Ok(None)
    }

    /// Leaves out steps, and makes others simpler, as long as the same promise is broken.
    ///
    /// # Errors
    /// The product creates no volume.
    pub fn minimize(
        &mut self,
        setting: Setting,
        steps: &[Step],
        kind: &str,
    ) -> anyhow::Result<(Setting, Vec<Step>)> {
        let (mut setting, mut steps) = (setting, steps.to_vec());
        loop {
            let mut shorter = false;
            for (setting_now, steps_now) in candidates(setting, &steps) {
                if let Some((at, violation)) = self.run(setting_now, &steps_now)?
                    && violation.kind == kind
                {
                    setting = setting_now;
                    steps = steps_now;
                    steps.truncate(at + 1);
                    shorter = true;
                    break;
                }
            }
            if !shorter {
                return Ok((setting, steps));
            }
        }
    }
}

/// Simpler sequences.
fn candidates(setting: Setting, steps: &[Step]) -> Vec<(Setting, Vec<Step>)> {
    let mut all = Vec::new();
    for at in (0..steps.len()).rev() {
        let mut fewer = steps.to_vec();
        fewer.remove(at);
        all.push((setting, fewer));
    }
    for at in 0..steps.len().saturating_sub(1) {
        let mut fewer = steps.to_vec();
        fewer.drain(at..at + 2);
        all.push((setting, fewer));
    }
    for (at, step) in steps.iter().enumerate() {
        for simpler in simpler(*step) {
            let mut other = steps.to_vec();
            other[at] = simpler;
            all.push((setting, other));
        }
    }
    for blocks in 1..setting.blocks {
        all.push((Setting { blocks, ..setting }, steps.to_vec()));
    }
    if setting.block_len > 128 {
        all.push((
            Setting {
                block_len: 128,
                ..setting
            },
            steps.to_vec(),
        ));
    }
    if setting.elsewhere {
        all.push((
            Setting {
                elsewhere: false,
                ..setting
            },
            steps.to_vec(),
        ));
    }
    all
}

fn simpler(step: Step) -> Vec<Step> {
    match step {
        Step::Power(mask, keep) => {
            let fewer = crate::step::targets(mask).map(|target| mask & !(1 << target));
            let mut all: Vec<Step> = fewer
                .filter(|mask| *mask != 0)
                .map(|mask| Step::Power(mask, keep))
                .collect();
            if keep != Keep::None {
                all.push(Step::Power(mask, Keep::None));
            }
            all
        }
        Step::Restart(mask) => crate::step::targets(mask)
            .map(|target| mask & !(1 << target))
            .filter(|mask| *mask != 0)
            .map(Step::Restart)
            .collect(),
        Step::Machine(keep) if keep != Keep::None => vec![Step::Machine(Keep::None)],
        Step::Term | Step::Machine(Keep::None) => vec![Step::Kill],
        Step::All | Step::Zero(_) | Step::Part(..) => vec![Step::Write(0)],
        Step::Write(block) if block != 0 => vec![Step::Write(0)],
        Step::Keep => vec![
            Step::Attach(0),
            Step::Attach(1),
            Step::Attach(2),
            Step::Rebuild,
        ],
        _ => Vec::new(),
    }
}

/// Runs the sequences of `count` seeds from `first` on.
///
/// # Errors
/// The product creates no volume.
pub fn search(layout: Layout, first: u64, count: u64, report: &Report) -> anyhow::Result<()> {
    let next = AtomicU64::new(first);
    let work = || -> anyhow::Result<()> {
        let mut stock = Stock::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + count {
                return Ok(());
            }
            let (setting, steps) = sequence(seed, layout);
            report.sequence();
            if let Some((at, violation)) = stock.run(setting, &steps)? {
                report.violation(setting, &steps[..=at], &violation, Some(seed));
            }
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..crate::threads()).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok(())
    })
}
