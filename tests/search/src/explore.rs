//! All sequences up to a depth. A state that was reached before is not continued.

use crate::disk::{Damage, Keep};
use crate::model::Shape;
use crate::report::Report;
use crate::step::Step;
use crate::world::{Fresh, Setting, World};
use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Most operations of one step between which it is cut.
const CUTS: u8 = 40;

/// A set of steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alphabet {
    /// Whole steps, and losses of power that keep nothing.
    Core,
    /// Also steps that are cut at each operation, failed syncs, full disks, damage, and losses of power that keep a part.
    Full,
}

/// One step of the search: faults that are prepared, and a step.
type Move = Vec<Step>;

/// A step with a fault before each of its operations. The first one that is not cut ends the row.
struct Row(Vec<Move>);

/// All targets, and all but one.
fn openings(counts: Shape) -> Vec<u16> {
    let all = counts.all();
    let but_one = (0..counts.targets).rev().map(|target| all & !(1 << target));
    std::iter::once(all).chain(but_one).collect()
}

/// The first ones that are enough, and the last ones, without the others. Of two halves two are always enough.
fn alone(counts: Shape) -> Vec<Step> {
    let few = (1 << counts.needed) - 1;
    let last = few << (u32::from(counts.targets) - counts.needed);
    let votes = counts.targets == 3 && counts.needed == 2;
    [few, last]
        .map(Step::Alone)
        .into_iter()
        .filter(|_| !votes)
        .collect()
}

fn whole_steps(counts: Shape) -> Vec<Step> {
    let mut steps = vec![
        Step::Write(0),
        Step::Part(0, 1),
        Step::Flush,
        Step::Read,
        Step::Rebuild,
        Step::Term,
        Step::Kill,
        Step::Machine(Keep::None),
        Step::Replace(1),
        Step::Swap(1),
        Step::Snap,
        Step::Unsnap(0),
        Step::Merge,
    ];
    steps.extend(openings(counts).into_iter().map(Step::Open));
    steps.extend((0..counts.targets).map(Step::Attach));
    steps.extend(alone(counts));
    let each = (0..counts.targets).map(|target| 1 << target);
    steps.push(Step::Restart(counts.all()));
    steps.extend(each.map(Step::Restart));
    // Of many targets one, or each second one.
    let most = if counts.targets > 5 { 2 } else { 3 };
    let few = (1..counts.all()).filter(|mask: &u16| mask.count_ones() < most);
    steps.extend(few.map(|mask| Step::Power(mask, Keep::None)));
    if counts.targets > 3 {
        let halves = [0x5555, 0xaaaa].map(|half| Step::Power(half & counts.all(), Keep::None));
        steps.extend(halves);
    }
    steps
}

/// Steps that are cut.
fn cut_steps(counts: Shape) -> Vec<Step> {
    let mut steps = vec![
        Step::Write(0),
        Step::Part(0, 1),
        Step::Flush,
        Step::Term,
        Step::Grow,
        Step::Keep,
        Step::Rebuild,
        Step::Scrub,
        Step::Replace(0),
        Step::Replace(1),
        Step::Snap,
        Step::Unsnap(0),
        Step::Merge,
    ];
    steps.extend(openings(counts).into_iter().map(Step::Open));
    steps.extend((0..counts.targets).map(Step::Attach));
    steps.extend(alone(counts));
    steps
}

fn rows(alphabet: Alphabet, counts: Shape) -> Vec<Row> {
    let mut rows: Vec<Row> = whole_steps(counts)
        .into_iter()
        .map(|step| Row(vec![vec![step]]))
        .collect();
    if alphabet == Alphabet::Core {
        return rows;
    }
    let mut more = vec![Step::Zero(0), Step::Grow, Step::Scrub, Step::Keep];
    more.extend([0, 2].map(Step::Replace));
    for target in 0..counts.targets {
        more.extend([Step::Full(target), Step::Space(target)]);
        for nth in 0..2 {
            let kinds = [Damage::Zero, Damage::Byte(9), Damage::Cut];
            more.extend(kinds.map(|damage| Step::Damage(target, nth, damage)));
        }
        more.extend((1..6).map(|count| Step::Power(1 << target, Keep::First(count))));
    }
    more.extend([Keep::First(1), Keep::First(2), Keep::Any(0), Keep::Any(1)].map(Step::Machine));
    rows.extend(more.into_iter().map(|step| Row(vec![vec![step]])));
    for step in cut_steps(counts) {
        rows.push(Row((0..CUTS)
            .map(|at| vec![Step::KillAt(at), step])
            .collect()));
        for target in 0..counts.targets {
            let dies = |at| vec![Step::DieAt(target, at), step];
            rows.push(Row((0..CUTS).map(dies).collect()));
            rows.push(Row(vec![vec![Step::SyncFails(target), step]]));
            rows.push(Row(vec![vec![Step::SyncFull(target), step]]));
        }
    }
    rows
}

/// What follows each state: the export ends, and two openings read everything.
fn ends(counts: Shape) -> Vec<Move> {
    let all = counts.all();
    let then = |mask| {
        let mut steps = vec![Step::Kill, Step::Open(mask), Step::Read];
        steps.extend([Step::Kill, Step::Open(all), Step::Read]);
        steps
    };
    let mut ends: Vec<Move> = openings(counts).into_iter().skip(1).map(then).collect();
    ends.push(vec![Step::Kill, Step::Open(all), Step::Read]);
    ends.push(vec![Step::Read]);
    ends
}

/// Carries out steps. Returns whether the last one was cut, or None after a violation, which is reported.
fn follow(
    world: &mut World,
    setting: Setting,
    path: &[Step],
    from: usize,
    report: &Report,
) -> Option<bool> {
    for (at, step) in path.iter().enumerate().skip(from) {
        if let Err(violation) = world.step(*step) {
            report.violation(setting, &path[..=at], &violation, None);
            return None;
        }
    }
    Some(world.was_cut())
}

/// Searches to `depth` steps behind the first opening. Returns the number of states.
///
/// # Errors
/// The product creates no volume.
pub fn explore(
    setting: Setting,
    alphabet: Alphabet,
    depth: u32,
    report: &Report,
) -> anyhow::Result<u64> {
    let fresh = Fresh::new(setting)?;
    let counts = setting.counts();
    let all = counts.all();
    let rows = rows(alphabet, counts);
    let ends = ends(counts);
    let seen = Mutex::new(HashSet::new());
    let mut states = 0;
    let mut level: Vec<Vec<Step>> = vec![vec![Step::Open(all)]];
    for depth_left in (0..=depth).rev() {
        states += level.len() as u64;
        let (next, at) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
        let (level_now, next_now) = (&level, &next);
        let work = || {
            while let Some(path) = level_now.get(at.fetch_add(1, Ordering::Relaxed)) {
                let paths = expand(
                    &fresh,
                    setting,
                    path,
                    &ends,
                    report,
                    |world| {
                        let mut seen = seen
                            .lock()
                            .unwrap_or_else(std::sync::PoisonError::into_inner);
                        seen.insert(world.digest())
                    },
                    if depth_left == 0 { &[] } else { &rows },
                );
                let mut next = next_now
                    .lock()
                    .unwrap_or_else(std::sync::PoisonError::into_inner);
                next.extend(paths);
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..crate::threads() {
                scope.spawn(work);
            }
        });
        level = next
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
    }
    Ok(states)
}

/// Judges the state at the end of a path, and returns the paths to new states behind it.
fn expand(
    fresh: &Fresh,
    setting: Setting,
    path: &[Step],
    ends: &[Move],
    report: &Report,
    is_new: impl Fn(&World) -> bool,
    rows: &[Row],
) -> Vec<Vec<Step>> {
    let mut paths = Vec::new();
    let run = |steps: &[Step]| {
        let mut world = World::new(fresh);
        let whole = [path, steps].concat();
        let cut = follow(&mut world, setting, &whole, 0, report)?;
        Some((world, whole, cut))
    };
    for end in ends {
        report.sequence();
        run(end);
    }
    for row in rows {
        for steps in &row.0 {
            report.sequence();
            let Some((world, whole, cut)) = run(steps) else {
                continue;
            };
            // Without an effect, so are the later places of the cut.
            if row.0.len() > 1 && !cut {
                break;
            }
            if is_new(&world) {
                paths.push(whole);
            }
        }
    }
    paths
}
