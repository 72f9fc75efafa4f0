//! Random writes until the service is gone. Afterwards each block is the old or the new one, and what was acknowledged is
//! there.

use super::done::{Done, note};
use super::pattern::{self, Kind};
use std::ops::Range;
use std::sync::Arc;
use xgvmi_blk::Disk;

const SECTOR: usize = 512;
/// Most sectors of one write.
const WRITE_MAX: usize = 9;

/// What each sector must contain.
#[derive(Debug)]
pub(crate) struct Shadow {
    versions: Vec<u64>,
    /// The write without an answer.
    pending: Option<(Range<usize>, u64)>,
    version: u64,
    random: fastrand::Rng,
}

impl Shadow {
    pub(crate) fn new(disk: &Arc<dyn Disk>, seed: u64) -> Self {
        let sectors = disk.geometry().size() / SECTOR as u64;
        Self {
            versions: vec![0; usize::try_from(sectors).unwrap_or(0)],
            pending: None,
            version: 0,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// Writes and flushes until one of both fails.
    pub(crate) fn write(&mut self, disk: &Arc<dyn Disk>, done: &mut Done) {
        while done.failed == 0 {
            self.version += 1;
            let count = self.random.usize(1..=WRITE_MAX);
            let first = self.random.usize(..self.versions.len() - count);
            let (sectors, version) = (first..first + count, self.version);
            let mut bytes = vec![0; count * SECTOR];
            let offset = (first * SECTOR) as u64;
            pattern::fill(&mut bytes, offset, version, Kind::Half);
            note(disk.write(offset, &bytes), done);
            if done.failed != 0 {
                self.pending = Some((sectors, version));
                return;
            }
            done.verified += bytes.len() as u64;
            self.versions[sectors].fill(version);
            if self.random.usize(..8) == 0 {
                note(disk.flush(), done);
            }
        }
    }

    /// Reads everything. Blocks of the write without an answer become what they are.
    pub(crate) fn check(&mut self, disk: &Arc<dyn Disk>, done: &mut Done) {
        let mut bytes = vec![0; self.versions.len() * SECTOR];
        let read = disk.read(0, &mut bytes);
        let is_read = read.is_ok();
        note(read, done);
        if !is_read {
            return;
        }
        let pending = self.pending.take();
        let block = disk.geometry().block_len();
        let per_block = block / SECTOR;
        for (number, content) in bytes.chunks(block).enumerate() {
            let sectors = number * per_block..(number + 1) * per_block;
            let old = self.versions[sectors.clone()].to_vec();
            let mut new = old.clone();
            if let Some((range, version)) = &pending {
                for (at, sector) in sectors.clone().enumerate() {
                    if range.contains(&sector) {
                        new[at] = *version;
                    }
                }
            }
            if is(content, sectors.start, &old) {
                continue;
            }
            if is(content, sectors.start, &new) {
                self.versions[sectors].copy_from_slice(&new);
            } else {
                done.wrong += block as u64;
            }
        }
        done.verified += bytes.len() as u64;
    }
}

/// True if a block consists of sectors of these versions.
fn is(content: &[u8], first: usize, versions: &[u64]) -> bool {
    let sectors = content.chunks(SECTOR).zip(versions).enumerate();
    sectors.into_iter().all(|(at, (bytes, version))| {
        let offset = ((first + at) * SECTOR) as u64;
        match version {
            0 => bytes.iter().all(|byte| *byte == 0),
            version => pattern::wrong(bytes, offset, *version, Kind::Half) == 0,
        }
    })
}
