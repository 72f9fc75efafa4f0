//! The map of units: which the settled index has, and which may have changed since the targets were equal. Does no I/O.
//!
//! ```text
//! sector: CRC32C of its number and of the rest (4)   two bits per unit, the lowest first: it is there, it has changed
//! ```
//!
//! Of a sector that cannot be read all units count as there and as changed.

use super::layout::{MAP_UNITS, SECTOR};
use crate::crc32c::{crc32c, crc32c_append};
use std::collections::{BTreeMap, BTreeSet};

const CRC: usize = 4;
/// Bytes of the bits of a sector.
const BITS: usize = SECTOR - CRC;
const THERE: u8 = 1;
const CHANGED: u8 = 2;

/// The map.
#[derive(Debug, Default)]
pub(super) struct Units {
    /// Sectors of the map. Without any, nothing is recorded.
    count: u64,
    /// Bits of sectors, if some are set.
    sectors: BTreeMap<u64, Box<[u8; BITS]>>,
    /// Sectors that are not on the medium as they are here.
    unwritten: BTreeSet<u64>,
}

impl Units {
    /// A map of so many sectors, in which no unit is there.
    pub(super) fn new(count: u64) -> Self {
        Self {
            count,
            ..Self::default()
        }
    }

    /// The map that these sectors hold.
    pub(super) fn parse(sectors: &[u8]) -> Self {
        let mut units = Self::new((sectors.len() / SECTOR) as u64);
        for (number, sector) in (0..).zip(sectors.as_chunks::<SECTOR>().0) {
            let [crc @ .., _, _, _, _] = sector.first_chunk::<{ 2 * CRC }>().unwrap_or(&[0; 8]);
            let bits = sector.last_chunk::<BITS>().unwrap_or(&[0; BITS]);
            if *crc != checksum(number, bits) {
                units.sectors.insert(number, Box::new([0xff; BITS]));
                units.unwritten.insert(number);
            } else if *bits != [0; BITS] {
                units.sectors.insert(number, Box::new(*bits));
            }
        }
        units
    }

    /// Where the bits of a unit are.
    fn at(unit: u64) -> (u64, usize, u64) {
        // Cannot be cut: less than a sector.
        let byte = usize::try_from(unit % MAP_UNITS / 4).unwrap_or(0);
        (unit / MAP_UNITS, byte, unit % 4 * 2)
    }

    fn get(&self, unit: u64, bit: u8) -> bool {
        let (sector, byte, shift) = Self::at(unit);
        let bits = self.sectors.get(&sector);
        bits.is_some_and(|bits| bits[byte] >> shift & bit != 0)
    }

    fn set(&mut self, unit: u64, bit: u8, value: bool) {
        let (sector, byte, shift) = Self::at(unit);
        if sector < self.count && self.get(unit, bit) != value {
            let bits = self
                .sectors
                .entry(sector)
                .or_insert_with(|| Box::new([0; BITS]));
            bits[byte] ^= bit << shift;
            self.unwritten.insert(sector);
        }
    }

    pub(super) fn is_there(&self, unit: u64) -> bool {
        self.get(unit, THERE)
    }

    pub(super) fn add(&mut self, unit: u64) {
        self.set(unit, THERE, true);
    }

    pub(super) fn change(&mut self, unit: u64) {
        self.set(unit, CHANGED, true);
    }

    /// The targets are equal in all units but those that are `kept`.
    pub(super) fn equal(&mut self, kept: impl Fn(u64) -> bool) {
        let mut from = 0;
        while let Some(unit) = self.next(from, true) {
            if !kept(unit) {
                self.set(unit, CHANGED, false);
            }
            from = unit + 1;
        }
    }

    /// True if no unit is there.
    pub(super) fn is_empty(&self) -> bool {
        self.next(0, false).is_none()
    }

    /// The next unit from `from` on that is there, or that has changed.
    pub(super) fn next(&self, from: u64, changed: bool) -> Option<u64> {
        let wanted = if changed { CHANGED } else { THERE } * 0x55;
        let (first, byte, shift) = Self::at(from);
        self.sectors.range(first..).find_map(|(sector, bits)| {
            // Within the first byte only units from `from` on.
            let (start, mask) = match *sector == first {
                true => (byte, wanted << shift),
                false => (0, wanted),
            };
            let masks = std::iter::once(mask).chain(std::iter::repeat(wanted));
            let mut found = (start..).zip(bits[start..].iter().zip(masks));
            let (at, (byte, mask)) = found.find(|(_, (byte, mask))| **byte & mask != 0)?;
            let bit = (byte & mask).trailing_zeros() / 2;
            Some(sector * MAP_UNITS + at as u64 * 4 + u64::from(bit))
        })
    }

    /// Sectors that must be written, and that are then on the medium after its next sync.
    pub(super) fn take_unwritten(&mut self) -> BTreeSet<u64> {
        std::mem::take(&mut self.unwritten)
    }

    /// These sectors were not written, or not synced.
    pub(super) fn not_written(&mut self, sectors: impl IntoIterator<Item = u64>) {
        self.unwritten.extend(sectors);
    }

    /// Sectors with units.
    pub(super) fn used_sectors(&self) -> Vec<u64> {
        self.sectors.keys().copied().collect()
    }

    pub(super) fn to_bytes(&self, sector: u64) -> [u8; SECTOR] {
        let mut bytes = [0; SECTOR];
        if let Some(bits) = self.sectors.get(&sector) {
            bytes[CRC..].copy_from_slice(&bits[..]);
        }
        let crc = checksum(sector, &bytes[CRC..]);
        bytes[..CRC].copy_from_slice(&crc);
        bytes
    }
}

fn checksum(sector: u64, bits: &[u8]) -> [u8; CRC] {
    let crc = crc32c_append(crc32c(&sector.to_be_bytes()), bits);
    crc.to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_come_back_and_are_found() {
        let mut units = Units::new(2);
        for unit in [3, 9, MAP_UNITS, MAP_UNITS + 7] {
            units.add(unit);
        }
        units.change(9);
        let bytes = [units.to_bytes(0), units.to_bytes(1)].concat();
        let again = Units::parse(&bytes);
        let mut from = 0;
        let mut found = Vec::new();
        while let Some(unit) = again.next(from, false) {
            found.push(unit);
            from = unit + 1;
        }
        assert_eq!(found, [3, 9, MAP_UNITS, MAP_UNITS + 7]);
        assert_eq!(again.next(0, true), Some(9));
        assert_eq!(again.next(10, true), None);
        let mut again = again;
        assert!(again.take_unwritten().is_empty());
        again.equal(|_| false);
        assert_eq!((again.next(0, true), again.next(0, false)), (None, Some(3)));
        assert_eq!(again.take_unwritten().into_iter().collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn of_a_damaged_sector_everything_may_be_there() {
        let bytes = [Units::new(1).to_bytes(0), [0; SECTOR]].concat();
        let units = Units::parse(&bytes);
        assert!(!units.is_there(7) && units.is_there(MAP_UNITS) && units.get(MAP_UNITS, CHANGED));
        assert_eq!(units.next(0, false), Some(MAP_UNITS));
    }
}
