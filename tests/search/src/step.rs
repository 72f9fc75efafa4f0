//! Steps of a sequence, and their text: `open 012; write 0; power 0 none; kill`.

use crate::disk::{Damage, Keep};
use std::fmt;
use std::str::FromStr;

/// One step. Targets are 0 to 9 and a; several are a mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// An export opens the volume with these targets.
    Open(u16),
    /// The same; if absent ones may have newer data, they count as gone.
    Alone(u16),
    /// The export is killed.
    Kill,
    /// The export gets SIGTERM: it flushes, records that the targets are equal if they are, and ends.
    Term,
    /// Writes a block.
    Write(u8),
    /// Writes one sector of a block.
    Part(u8, u8),
    /// Writes zeros over a block.
    Zero(u8),
    /// Writes all blocks by one request.
    All,
    /// Flushes.
    Flush,
    /// Reads all blocks.
    Read,
    /// Takes a target back.
    Attach(u8),
    /// Completes the targets in use.
    Rebuild,
    /// Takes all absent targets back and completes them, as the export does each second.
    Keep,
    /// Scrubs.
    Scrub,
    /// The volume grows by a block.
    Grow,
    /// Makes a snapshot, also of a degraded volume.
    Snap,
    /// Deletes the snapshot with this number, the oldest first.
    Unsnap(u8),
    /// The space of deleted snapshots comes back.
    Merge,
    /// A new target takes the place of this one, while the volume serves. Each place has one new target.
    Replace(u8),
    /// The target that was replaced is named again in place of the new one, or the new one in place of that.
    Swap(u8),
    /// The processes of these targets end and start again.
    Restart(u16),
    /// These targets lose power and start again.
    Power(u16, Keep),
    /// The machine of everything loses power.
    Machine(Keep),
    /// The export is killed before this operation of the next step.
    KillAt(u8),
    /// A target fails at this operation of its own of the next step, and stays so until it is started again.
    DieAt(u8, u8),
    /// The next sync of a target fails with EIO.
    SyncFails(u8),
    /// The next sync of a target fails with ENOSPC.
    SyncFull(u8),
    /// The disk of a target is full.
    Full(u8),
    /// It has space again.
    Space(u8),
    /// A sector of a target is damaged while no export runs.
    Damage(u8, u8, Damage),
}

/// Most targets. Their names are digits of this base.
const TARGETS: u32 = 11;

/// The targets of a mask.
pub(crate) fn targets(mask: u16) -> impl Iterator<Item = u8> {
    (0..16u8).filter(move |target| mask & 1 << target != 0)
}

/// The digit of a target.
fn name(target: u8) -> char {
    char::from_digit(target.into(), TARGETS).unwrap_or('?')
}

fn names(mask: u16) -> String {
    targets(mask).map(name).collect()
}

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::All => f.write_str("all"),
            Self::First(count) => write!(f, "first {count}"),
            Self::Any(choice) => write!(f, "any {choice}"),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(mask) => write!(f, "open {}", names(*mask)),
            Self::Alone(mask) => write!(f, "alone {}", names(*mask)),
            Self::Kill => f.write_str("kill"),
            Self::Term => f.write_str("term"),
            Self::Write(block) => write!(f, "write {block}"),
            Self::Part(block, sector) => write!(f, "part {block} {sector}"),
            Self::Zero(block) => write!(f, "zero {block}"),
            Self::All => f.write_str("all"),
            Self::Flush => f.write_str("flush"),
            Self::Read => f.write_str("read"),
            Self::Attach(target) => write!(f, "attach {}", name(*target)),
            Self::Rebuild => f.write_str("rebuild"),
            Self::Keep => f.write_str("keep"),
            Self::Scrub => f.write_str("scrub"),
            Self::Grow => f.write_str("grow"),
            Self::Snap => f.write_str("snap"),
            Self::Unsnap(nth) => write!(f, "unsnap {nth}"),
            Self::Merge => f.write_str("merge"),
            Self::Replace(target) => write!(f, "replace {}", name(*target)),
            Self::Swap(target) => write!(f, "swap {}", name(*target)),
            Self::Restart(mask) => write!(f, "restart {}", names(*mask)),
            Self::Power(mask, keep) => write!(f, "power {} {keep}", names(*mask)),
            Self::Machine(keep) => write!(f, "machine {keep}"),
            Self::KillAt(at) => write!(f, "kill-at {at}"),
            Self::DieAt(target, at) => write!(f, "die-at {} {at}", name(*target)),
            Self::SyncFails(target) => write!(f, "sync-fails {}", name(*target)),
            Self::SyncFull(target) => write!(f, "sync-full {}", name(*target)),
            Self::Full(target) => write!(f, "full {}", name(*target)),
            Self::Space(target) => write!(f, "space {}", name(*target)),
            Self::Damage(target, nth, damage) => {
                write!(f, "damage {} {nth} ", name(*target))?;
                match damage {
                    Damage::Zero => f.write_str("zero"),
                    Damage::Cut => f.write_str("cut"),
                    Damage::Byte(choice) => write!(f, "byte {choice}"),
                }
            }
        }
    }
}

/// The words behind a step's name.
struct Words<'a>(std::str::SplitWhitespace<'a>);

impl<'a> Words<'a> {
    fn word(&mut self) -> Option<&'a str> {
        self.0.next()
    }

    fn number(&mut self, end: u8) -> Option<u8> {
        self.word()?.parse().ok().filter(|number| *number < end)
    }

    fn any(&mut self) -> Option<u8> {
        self.word()?.parse().ok()
    }

    fn target(&mut self) -> Option<u8> {
        let mut digits = self.word()?.chars();
        let target = digits.next()?.to_digit(TARGETS)?;
        u8::try_from(target)
            .ok()
            .filter(|_| digits.next().is_none())
    }

    fn mask(&mut self) -> Option<u16> {
        let digits = self.word()?.chars();
        let bits: Option<Vec<u16>> = digits
            .map(|digit| Some(1 << digit.to_digit(TARGETS)?))
            .collect();
        Some(bits?.into_iter().fold(0, |mask, bit| mask | bit))
    }

    fn keep(&mut self) -> Option<Keep> {
        Some(match self.word()? {
            "none" => Keep::None,
            "all" => Keep::All,
            "first" => Keep::First(self.any()?),
            "any" => Keep::Any(self.any()?),
            _ => return None,
        })
    }

    fn damage(&mut self) -> Option<Damage> {
        Some(match self.word()? {
            "zero" => Damage::Zero,
            "cut" => Damage::Cut,
            "byte" => Damage::Byte(self.any()?),
            _ => return None,
        })
    }

    fn step(&mut self) -> Option<Step> {
        let step = match self.word()? {
            "open" => Step::Open(self.mask()?),
            "alone" => Step::Alone(self.mask()?),
            "kill" => Step::Kill,
            "term" => Step::Term,
            "write" => Step::Write(self.number(3)?),
            "part" => Step::Part(self.number(3)?, self.number(2)?),
            "zero" => Step::Zero(self.number(3)?),
            "all" => Step::All,
            "flush" => Step::Flush,
            "read" => Step::Read,
            "attach" => Step::Attach(self.target()?),
            "rebuild" => Step::Rebuild,
            "keep" => Step::Keep,
            "scrub" => Step::Scrub,
            "grow" => Step::Grow,
            "snap" => Step::Snap,
            "unsnap" => Step::Unsnap(self.number(3)?),
            "merge" => Step::Merge,
            "replace" => Step::Replace(self.target()?),
            "swap" => Step::Swap(self.target()?),
            "restart" => Step::Restart(self.mask()?),
            "power" => Step::Power(self.mask()?, self.keep()?),
            "machine" => Step::Machine(self.keep()?),
            "kill-at" => Step::KillAt(self.any()?),
            "die-at" => Step::DieAt(self.target()?, self.any()?),
            "sync-fails" => Step::SyncFails(self.target()?),
            "sync-full" => Step::SyncFull(self.target()?),
            "full" => Step::Full(self.target()?),
            "space" => Step::Space(self.target()?),
            "damage" => Step::Damage(self.target()?, self.any()?, self.damage()?),
            _ => return None,
        };
        self.word().is_none().then_some(step)
    }
}

impl FromStr for Step {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let step = Words(text.split_whitespace()).step();
        step.ok_or_else(|| anyhow::anyhow!("'{text}' is no step"))
    }
}

/// Steps as text.
#[must_use]
pub fn to_text(steps: &[Step]) -> String {
    let words: Vec<String> = steps.iter().map(ToString::to_string).collect();
    words.join("; ")
}

/// Steps of a text.
///
/// # Errors
/// One of them is none.
pub fn parse(text: &str) -> anyhow::Result<Vec<Step>> {
    text.split(';').map(str::parse).collect()
}
