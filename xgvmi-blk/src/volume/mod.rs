//! A volume: blocks in two halves and their parity on three targets, two of which are enough.
//!
//! # Writes
//! Each write of a block has a generation, a number that no other write of the volume has. All targets first store their
//! part beside the generation before it, and then settle it. A write is acknowledged when two targets have settled it.
//!
//! # Which generation counts
//! When a volume is opened, the newest generation counts that two targets hold. A newer one that one target has settled
//! was acknowledged once: if its second half is absent, the block is lost, and an older generation is not shown instead.
//! A newer one that one target holds unsettled was never acknowledged, and disappears. Opening settles everything, so the
//! same data counts from then on, whichever target is lost next.
//!
//! # Several processes
//! A target has one owner at a time. Each opening raises the epoch on at least two targets, and generations start with
//! the epoch: two openings never use the same one.

mod io;
mod open;
mod repair;
mod state;
#[cfg(test)]
mod tests;

pub use io::Extent;
pub use repair::ScrubReport;
pub use state::{TargetStatus, Volume, VolumeStatus};
