//! What may be read: the versions of each sector. As long as no power is lost, an acknowledged write stays, and a write that
//! was not answered is there as a whole block or not at all. What was read stays. A power loss brings back any version since
//! the last flush.

use super::client::SECTOR;
use anyhow::{Result, bail};
use std::collections::HashMap;

/// Sectors of a block of the volume.
pub(crate) const BLOCK: usize = 8;

/// Versions that each sector may have. 0 is zeros.
#[derive(Clone)]
pub(crate) struct Ledger {
    sectors: Vec<Vec<u32>>,
    /// Versions since the last flush, and those that it made durable, of sectors written since.
    unflushed: HashMap<usize, Vec<u32>>,
    version: u32,
}

/// What was read wrongly.
#[derive(Debug, Default)]
pub(crate) struct Wrong {
    pub(crate) bytes: u64,
    /// Sectors with a version that a later one, which was flushed, has replaced.
    pub(crate) lost: u64,
    /// The first of them.
    pub(crate) first: Option<String>,
}

/// A write: its first sector, its number of sectors, its version.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Write {
    pub(crate) first: usize,
    pub(crate) count: usize,
    version: u32,
}

/// Bytes of a sector that name it and its version. Each third version does not compress.
fn put(sector: usize, version: u32, bytes: &mut [u8]) {
    bytes.fill(0);
    if version == 0 {
        return;
    }
    let mark = (sector as u64) << 32 | u64::from(version);
    let mut random = fastrand::Rng::with_seed(mark);
    for word in bytes.chunks_mut(16) {
        let noise = if version.is_multiple_of(3) {
            random.u64(..)
        } else {
            5
        };
        word[..8].copy_from_slice(&mark.to_le_bytes());
        word[8..].copy_from_slice(&noise.to_le_bytes());
    }
}

impl Write {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.count * SECTOR];
        for (sector, bytes) in (self.first..).zip(bytes.chunks_mut(SECTOR)) {
            put(sector, self.version, bytes);
        }
        bytes
    }
}

impl Ledger {
    pub(crate) fn new(sectors: usize) -> Self {
        Self {
            sectors: vec![vec![0]; sectors],
            unflushed: HashMap::new(),
            version: 0,
        }
    }

    pub(crate) fn sectors(&self) -> usize {
        self.sectors.len()
    }

    /// Writes to different blocks: whole ones, parts of them, and some longer ones.
    pub(crate) fn batch(&mut self, count: usize, random: &mut fastrand::Rng) -> Vec<Write> {
        let groups = self.sectors.len() / (BLOCK * 4);
        let mut places: Vec<usize> = (0..groups).collect();
        random.shuffle(&mut places);
        let mut write = |group: usize| {
            let (from, count) = match random.u32(..8) {
                0 => (0, BLOCK * 4),
                1..3 => {
                    let from = random.usize(..BLOCK);
                    (from, random.usize(1..=BLOCK - from))
                }
                _ => (BLOCK * random.usize(..4), BLOCK),
            };
            self.version += 1;
            let write = Write {
                first: group * BLOCK * 4 + from,
                count,
                version: self.version,
            };
            for sector in write.first..write.first + count {
                let versions = &mut self.sectors[sector];
                let unflushed = self.unflushed.entry(sector);
                unflushed
                    .or_insert_with(|| versions.clone())
                    .push(self.version);
                versions.push(self.version);
            }
            write
        };
        places
            .iter()
            .take(count)
            .map(|group| write(*group))
            .collect()
    }

    /// The write was acknowledged.
    pub(crate) fn done(&mut self, write: &Write) {
        for sector in &mut self.sectors[write.first..write.first + write.count] {
            *sector = vec![write.version];
        }
    }

    /// The write was never sent.
    pub(crate) fn unsent(&mut self, write: &Write) {
        for sector in write.first..write.first + write.count {
            let unflushed = self.unflushed.get_mut(&sector);
            for versions in unflushed.into_iter().chain([&mut self.sectors[sector]]) {
                versions.retain(|version| *version != write.version);
            }
        }
    }

    /// All that was answered before is durable.
    pub(crate) fn flushed(&mut self) {
        self.unflushed.clear();
    }

    /// The power was lost: what no flush covered may have gone.
    pub(crate) fn lost_power(&mut self) {
        for (sector, versions) in &self.unflushed {
            self.sectors[*sector].clone_from(versions);
        }
    }

    /// True if each of these sectors has one version only.
    pub(crate) fn is_settled(&self, first: usize, count: usize) -> bool {
        let mut sectors = self.sectors[first..first + count].iter();
        sectors.all(|versions| versions.len() == 1)
    }

    /// A write of these sectors, which cannot be read.
    pub(crate) fn again(&mut self, first: usize, count: usize) -> Write {
        self.version += 1;
        for sector in first..first + count {
            let unflushed = self.unflushed.entry(sector);
            unflushed
                .or_insert_with(|| self.sectors[sector].clone())
                .push(self.version);
        }
        Write {
            first,
            count,
            version: self.version,
        }
    }

    /// Compares what was read from a sector on. It stays.
    pub(crate) fn check(&mut self, first: usize, bytes: &[u8]) -> Result<()> {
        let wrong = self.compare(first, bytes);
        wrong.first.map_or(Ok(()), |first| bail!(first))
    }

    /// As [`Ledger::check`], of all sectors.
    pub(crate) fn compare(&mut self, first: usize, bytes: &[u8]) -> Wrong {
        let mut wrong = Wrong::default();
        let mut expect = [0; SECTOR];
        for (sector, bytes) in (first..).zip(bytes.chunks(SECTOR)) {
            let versions = &mut self.sectors[sector];
            let found = versions.iter().copied().find(|version| {
                put(sector, *version, &mut expect);
                expect == *bytes
            });
            if let Some(found) = found {
                *versions = vec![found];
                continue;
            }
            let word = |at: usize| {
                bytes[at..at + 4]
                    .iter()
                    .rev()
                    .fold(0u32, |word, byte| word << 8 | u32::from(*byte))
            };
            let (of, version) = (word(4), word(0));
            let differ = expect.iter().zip(bytes).filter(|(a, b)| a != b);
            wrong.bytes += differ.count() as u64;
            let is_older = versions.iter().all(|may| version < *may);
            wrong.lost += u64::from(is_older && (version == 0 || of as usize == sector));
            wrong.first.get_or_insert_with(|| {
                format!(
                    "sector {sector} may have the versions {versions:?}, and its bytes are those of sector {of}, version {version}"
                )
            });
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::{BLOCK, Ledger};
    use crate::loops::client::SECTOR;

    #[test]
    fn a_power_loss_brings_back_what_no_flush_covered() {
        let mut ledger = Ledger::new(BLOCK * 4);
        let write = |ledger: &mut Ledger| {
            let write = ledger.again(0, BLOCK);
            ledger.done(&write);
            write.bytes()
        };
        let zeros = vec![0; BLOCK * SECTOR];
        let first = write(&mut ledger);
        assert_eq!(ledger.clone().compare(0, &zeros).lost, BLOCK as u64);
        ledger.lost_power();
        assert!(!ledger.is_settled(0, BLOCK));
        for may in [&zeros, &first] {
            assert_eq!(ledger.clone().compare(0, may).bytes, 0);
        }
        ledger.flushed();
        let second = write(&mut ledger);
        ledger.flushed();
        ledger.lost_power();
        assert_eq!(ledger.clone().compare(0, &first).lost, BLOCK as u64);
        assert_eq!(ledger.compare(0, &second).bytes, 0);
    }

    #[test]
    fn a_batch_without_a_flush_may_be_lost() {
        let mut ledger = Ledger::new(BLOCK * 4);
        let write = ledger.batch(1, &mut fastrand::Rng::with_seed(1))[0];
        ledger.done(&write);
        let zeros = vec![0; write.count * SECTOR];
        assert_ne!(ledger.clone().compare(write.first, &zeros).bytes, 0);
        ledger.lost_power();
        assert_eq!(ledger.compare(write.first, &zeros).bytes, 0);
    }
}
