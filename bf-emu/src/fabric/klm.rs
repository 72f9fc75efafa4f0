//! Space for the translation lists of indirect mkeys: runs of entries in one array per function.

use mlx5_prm::mkey::Klm;

/// Entries of one function: 256 Ki, 4 MiB when all are in use.
pub const ENTRIES_MAX: usize = 256 * 1024;
/// Entries are allocated in blocks of four, the granularity of the PRM's lists.
pub const BLOCK: usize = 4;
const BLOCKS: usize = ENTRIES_MAX / BLOCK;
const WORDS: usize = BLOCKS / 64;

/// A run of entries. The empty run is the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Run {
    first_block: u32,
    blocks: u32,
}

impl Run {
    /// Entries that the run holds.
    #[must_use]
    pub fn capacity(self) -> usize {
        self.blocks as usize * BLOCK
    }
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Entry {
    byte_count: u32,
    mkey: u32,
    address: u64,
}

/// The entries of one function and their allocation bitmap. All zeroes means all free.
#[derive(Debug)]
#[repr(C)]
pub struct Klms {
    used: [u64; WORDS],
    entries: [Entry; ENTRIES_MAX],
}

impl Klms {
    /// Allocates a run of at least `entries`; None if no free run is long enough.
    pub fn take(&mut self, entries: usize) -> Option<Run> {
        let blocks = entries.div_ceil(BLOCK).max(1);
        let mut start = 0;
        let mut length = 0;
        let mut block = 0;
        while block < BLOCKS {
            // A full word is skipped whole: the search is linear in words, not in blocks.
            if block % 64 == 0 && self.used[block / 64] == u64::MAX {
                block += 64;
                length = 0;
                continue;
            }
            if self.used[block / 64] >> (block % 64) & 1 == 1 {
                length = 0;
            } else {
                if length == 0 {
                    start = block;
                }
                length += 1;
                if length == blocks {
                    let run = Run {
                        first_block: u32::try_from(start).ok()?,
                        blocks: u32::try_from(blocks).ok()?,
                    };
                    self.mark(run, true);
                    return Some(run);
                }
            }
            block += 1;
        }
        None
    }

    /// Frees a run.
    pub fn give_back(&mut self, run: Run) {
        self.mark(run, false);
    }

    fn mark(&mut self, run: Run, used: bool) {
        let first = run.first_block as usize;
        for block in first..first.saturating_add(run.blocks as usize).min(BLOCKS) {
            let bit = 1 << (block % 64);
            if used {
                self.used[block / 64] |= bit;
            } else {
                self.used[block / 64] &= !bit;
            }
        }
    }

    /// Clears the allocation bitmap. [`Klms::keep`] must follow for every run in use.
    pub(super) fn forget_all(&mut self) {
        self.used.fill(0);
    }

    /// Marks a run as in use again.
    pub(super) fn keep(&mut self, run: Run) {
        self.mark(run, true);
    }

    /// The entry `index` of a run.
    #[must_use]
    pub fn get(&self, run: Run, index: usize) -> Option<Klm> {
        if index >= run.capacity() {
            return None;
        }
        let entry = self.entries.get(run.first_block as usize * BLOCK + index)?;
        Some(Klm {
            byte_count: entry.byte_count,
            mkey: entry.mkey,
            address: entry.address,
        })
    }

    /// Writes the entry `index` of a run. Returns false if the run is shorter.
    pub fn set(&mut self, run: Run, index: usize, klm: Klm) -> bool {
        if index >= run.capacity() {
            return false;
        }
        match self
            .entries
            .get_mut(run.first_block as usize * BLOCK + index)
        {
            Some(entry) => {
                *entry = Entry {
                    byte_count: klm.byte_count,
                    mkey: klm.mkey,
                    address: klm.address,
                };
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> Box<Klms> {
        // SAFETY: all zeroes is a valid `Klms`; it is too large for the stack.
        unsafe { crate::fabric::zeroed() }
    }

    #[test]
    fn runs_do_not_overlap_and_come_back() {
        let mut klms = empty();
        let runs: Vec<_> = [1, 4, 5, 400, 64]
            .iter()
            .map(|n| klms.take(*n).unwrap())
            .collect();
        assert_eq!(
            runs.iter().map(|run| run.capacity()).collect::<Vec<_>>(),
            [4, 4, 8, 400, 64]
        );
        let mut blocks: Vec<_> = runs
            .iter()
            .flat_map(|run| run.first_block..run.first_block + run.blocks)
            .collect();
        blocks.sort_unstable();
        assert!(blocks.windows(2).all(|pair| pair[0] != pair[1]));
        klms.give_back(runs[3]);
        assert_eq!(klms.take(400), Some(runs[3]));
        assert_eq!(klms.take(ENTRIES_MAX), None);
    }

    #[test]
    fn entries_outside_of_a_run_are_not_there() {
        let mut klms = empty();
        let run = klms.take(4).unwrap();
        let klm = Klm {
            byte_count: 1,
            mkey: 2,
            address: 3,
        };
        assert!(klms.set(run, 3, klm) && !klms.set(run, 4, klm));
        assert_eq!((klms.get(run, 3), klms.get(run, 4)), (Some(klm), None));
        assert!(!klms.set(Run::default(), 0, klm));
    }
}
