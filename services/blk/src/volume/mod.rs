//! A volume: blocks in two halves and their parity on three targets, two of which are enough.
//!
//! This describes that layout. Of others [`Layout::needed`](crate::Layout::needed) targets are enough, and the trusted ones
//! take the place of two (`trust`).
//!
//! # Writes
//! Each write of a block has a generation, a number that no other write of the volume has. All targets first store their
//! part beside the generation before it, and then settle it. A write is acknowledged when two targets have settled it.
//!
//! # Which generation counts
//! When a volume is opened, the newest generation counts that two targets hold (`decide`). A newer one that one target has
//! settled was acknowledged once: unless all three are there and the two others overrule it, the block is lost, and an older
//! generation is not shown instead. A newer one that one target holds unsettled was never acknowledged, and disappears.
//! Opening settles everything and makes that durable, so the same data counts from then on, whichever target is lost next.
//! An index entry that cannot be read never counts as a block that was never written.
//!
//! Before a decision makes a target drop a generation, two whole halves of the one that counts have been read (`evidence`).
//! A write over a lost block drops nothing before it is settled: an absent target may have the other half.
//!
//! # Flushes
//! The data of what was written since the last flush stays in memory, up to a limit at which a write flushes. A target that
//! leaves may have lost it: what it had not made durable is written to it again when it returns. A flush is successful when
//! two targets have made each block durable.
//!
//! With more parts, some targets can have made a newer generation durable in a flush that a loss of power ends, and too few of
//! them for it or for the one before. So each target keeps what the last flush was about until it is told that all have made
//! something newer durable (`Target::begin_release`). A write that would need a fourth place for a block waits for the end of the
//! flush under way, and a flush begins between writes.
//!
//! # Several processes
//! A target has one owner at a time. Each opening raises the epoch on at least two targets, and generations start with
//! the epoch: two openings never use the same one.
//!
//! A process that another one has superseded learns that from the first of its calls that reaches a target of the other
//! one. All its requests fail from then on. A read of zeros needs no target's data: it asks whether two targets still
//! have this owner before it returns.
//!
//! # Replacement
//! A target that was replaced while the volume served does not count any more, and is refused (`replace`).
//!
//! # Targets that do not answer
//! A target that does not answer within its limit is given up if the two others hold everything. Otherwise requests need
//! it and wait longer for it. A request that fails because a target is absent waits for its return, up to the limit of
//! [`Volume::set_outage_limit`], and is then carried out again. No lock of a block is held during that wait.

mod apart;
mod decide;
mod evidence;
mod flush;
mod groups;
mod io;
mod keys;
mod know;
mod layering;
mod memory;
mod merge;
mod open;
mod parts;
mod pending;
mod rebuild;
mod repair;
mod replace;
mod scrub;
mod searching;
mod seats;
mod snapshots;
mod stack;
mod state;
mod steps;
#[cfg(test)]
mod tests;
mod trust;
mod trustees;
mod turns;

pub use io::Extent;
pub use merge::Merge;
pub use repair::ScrubReport;
pub use scrub::{Pace, ScrubTurn};
pub use snapshots::{Snapshot, SnapshotStatus};
pub use state::{TargetStatus, Volume, VolumeStatus};
