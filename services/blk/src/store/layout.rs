//! Where the parts of a store are on its medium. Does no I/O.
//!
//! ```text
//! two superblocks | map of units | groups in change | settled index | data
//! ```
//!
//! Eight blocks are a group. A group that has changed has a sector of its own with all that its entries say. When only one
//! durable generation of each block is left, the settled index gets it: 21 bytes per block, three groups per sector. The map
//! says which units of 24 groups the settled index has, and which may have changed since the three targets were last known
//! to be equal. What it does not have was never written to the medium. All parts are as long as the room of the index asks
//! for, so that a volume can grow, and a file has holes there.

use super::index::SLOT;
use crate::error::{BlkError, Result};
use crate::geometry::{BLOCKS_MAX, Geometry};

/// Bytes of a copy of the superblock on the medium, and of a unit of the settled index.
pub(super) const PAGE: usize = 4096;
/// Bytes that a medium writes as a whole.
pub(super) const SECTOR: usize = 512;
/// Blocks of a group.
pub(crate) const GROUP: u64 = GROUP_LEN as u64;
/// The same as a length in memory.
pub(super) const GROUP_LEN: usize = 8;
/// Groups of a unit.
pub(super) const UNIT: u64 = 24;
/// Bytes of a unit of the settled index.
pub(super) const UNIT_BYTES: usize = PAGE;
/// Groups in a sector of it.
const GROUPS_PER_SECTOR: u64 = 3;
/// Bytes of a group in it.
pub(super) const GROUP_BYTES: usize = SLOT * GROUP_LEN;
/// Units of a sector of the map: two bits each, behind a checksum.
pub(super) const MAP_UNITS: u64 = (SECTOR as u64 - 4) * 4;
/// Bytes of the medium that entries can name.
const OFFSETS: u64 = 1 << 46;
/// Offset of the map, behind both superblocks.
const MAP_AT: u64 = 2 * PAGE as u64;

/// Sizes of the parts of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Blocks for which it has room.
    pub room: u64,
    /// Most groups in change.
    pub slots: u64,
}

impl Shape {
    /// An index with room for this number of blocks.
    #[must_use]
    pub fn with_room(room: u64) -> Self {
        let groups = room.div_ceil(GROUP);
        let slots = (groups / 32).clamp(1024, 1 << 17).min(groups);
        Self { room, slots }
    }

    /// An index in which a volume can grow to the sixteenfold.
    #[must_use]
    pub fn that_grows(geometry: Geometry) -> Self {
        let room = geometry.blocks().saturating_mul(16).max(1 << 16);
        Self::with_room(room.min(BLOCKS_MAX))
    }

    /// Groups of blocks that may wait for a flush of all targets.
    pub(crate) fn groups_that_wait(self) -> u64 {
        match self.has_settled() {
            true => self.slots / 2,
            false => u64::MAX,
        }
    }

    pub(super) fn groups(self) -> u64 {
        self.room.div_ceil(GROUP)
    }

    /// False if all groups can be in change at once: then there is no settled index.
    pub(super) fn has_settled(self) -> bool {
        self.slots < self.groups()
    }

    pub(super) fn units(self) -> u64 {
        match self.has_settled() {
            true => self.groups().div_ceil(UNIT),
            false => 0,
        }
    }

    pub(super) fn map_sectors(self) -> u64 {
        self.units().div_ceil(MAP_UNITS)
    }

    pub(super) fn map_at(self, sector: u64) -> u64 {
        MAP_AT + sector * SECTOR as u64
    }

    /// Offset of the sectors of groups in change.
    #[must_use]
    pub fn slots_at(self) -> u64 {
        self.slot_at(0)
    }

    pub(super) fn slot_at(self, slot: u64) -> u64 {
        self.map_at(self.map_sectors())
            .next_multiple_of(PAGE as u64)
            + slot * SECTOR as u64
    }

    pub(super) fn unit_at(self, unit: u64) -> u64 {
        self.slot_at(self.slots).next_multiple_of(PAGE as u64) + unit * UNIT_BYTES as u64
    }

    /// Where a group is within its unit.
    pub(super) fn within_unit(group: u64) -> usize {
        let nth = group % UNIT;
        let at =
            nth / GROUPS_PER_SECTOR * SECTOR as u64 + nth % GROUPS_PER_SECTOR * GROUP_BYTES as u64;
        // Cannot be cut: less than a page.
        usize::try_from(at).unwrap_or(0)
    }

    /// Offset of the first record.
    #[must_use]
    pub fn data_at(self) -> u64 {
        self.unit_at(self.units())
    }

    /// Groups in change for which a new target has sectors.
    pub(super) fn first_slots(self, geometry: Geometry) -> u64 {
        // Without a settled index each group has its own.
        match self.has_settled() {
            true => geometry.blocks().div_ceil(GROUP).min(self.slots).min(1024),
            false => self.slots,
        }
    }

    /// Groups in change above which the clean ones are settled.
    pub(super) fn slots_wanted(self) -> u64 {
        match self.has_settled() {
            true => (self.slots / 2).min(1 << 13),
            false => u64::MAX,
        }
    }
}

/// The end of the space for records on a medium, from where entries can name it.
pub(super) fn last_byte(size: Option<u64>) -> u64 {
    size.unwrap_or(OFFSETS).min(OFFSETS)
}

/// An error if a medium cannot hold the index of a volume.
pub(super) fn check_size(
    name: &str,
    size: Option<u64>,
    (shape, geometry): (Shape, Geometry),
) -> Result<()> {
    let (size, index) = (size.unwrap_or(u64::MAX), shape.data_at());
    if size >= index {
        return Ok(());
    }
    Err(BlkError::NotATarget {
        target: name.to_owned(),
        fault: format!(
            "it has {size} bytes, and the index of a volume with {geometry} takes {index}: give it more"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The index of a large volume takes at most 24 bytes per block, and the parts do not overlap.
    #[test]
    fn an_index_has_24_bytes_per_block() {
        for shift in [20, 24, 28, 32] {
            let room = 1u64 << shift;
            let shape = Shape::with_room(room);
            assert!(shape.has_settled());
            let ends = [
                shape.map_at(0),
                shape.map_at(shape.map_sectors()),
                shape.slot_at(0),
                shape.slot_at(shape.slots),
                shape.unit_at(0),
                shape.data_at(),
            ];
            assert!(ends.is_sorted(), "{ends:?}");
            assert!(
                shape.data_at() <= 24 * room,
                "{} for 2^{shift}",
                shape.data_at()
            );
        }
        assert_eq!(Shape::with_room(BLOCKS_MAX).room, 1 << 32);
        assert!(!Shape::with_room(8000).has_settled());
        let at: Vec<usize> = (0..UNIT).map(Shape::within_unit).collect();
        assert!(at.windows(2).all(|at| at[0] + GROUP_BYTES <= at[1]));
        assert!(at[23] + GROUP_BYTES <= UNIT_BYTES);
    }
}
