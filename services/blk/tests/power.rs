//! Loss of power: of what was written since the last flush, each disk keeps any part. What was flushed and not written
//! since is there, also with each target absent. What was written since is the old or the new data, or an error.

mod common;

use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::sync::{Arc, Mutex};
use xgvmi_blk::store::{Mark, Medium, NewTarget, WholeSectors};
use xgvmi_blk::{Geometry, Id, KeyFile, Role, Store, Target, Volume};

const SEEDS: u64 = 120;
const BLOCK: usize = 1024;
const BLOCKS: usize = 24;
/// A disk writes a sector as a whole or not at all.
const SECTOR: usize = 512;

/// What a disk takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Takes {
    /// Any bytes: the system's cache is before it.
    Bytes,
    /// Whole sectors of this size, as with O_DIRECT.
    Sectors(usize),
}

impl Takes {
    /// Bytes that are written as a whole.
    fn whole(self) -> usize {
        match self {
            Self::Bytes => SECTOR,
            Self::Sectors(sector) => sector,
        }
    }

    fn check(self, offset: u64, bytes: &[u8]) {
        if let Self::Sectors(sector) = self {
            assert!(offset.is_multiple_of(sector as u64), "{offset}");
            assert!(bytes.len().is_multiple_of(sector), "{}", bytes.len());
        }
    }
}

#[derive(Default)]
struct State {
    durable: Vec<u8>,
    /// Bytes as the process sees them.
    seen: Vec<u8>,
    /// Writes since the last sync.
    pending: Vec<(usize, Vec<u8>)>,
}

/// A disk with a volatile cache. Its writes fail when a number that all disks share is used up.
#[derive(Clone)]
struct Disk {
    takes: Takes,
    state: Arc<Mutex<State>>,
    writes_left: Arc<Mutex<u64>>,
}

fn put(into: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    if into.len() < end {
        into.resize(end, 0);
    }
    into[offset..end].copy_from_slice(bytes);
}

impl Medium for Disk {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.takes.check(offset, bytes);
        let state = self.state.lock().unwrap();
        let at = usize::try_from(offset).unwrap().min(state.seen.len());
        let end = (at + bytes.len()).min(state.seen.len());
        bytes.fill(0);
        bytes[..end - at].copy_from_slice(&state.seen[at..end]);
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.takes.check(offset, bytes);
        let mut left = self.writes_left.lock().unwrap();
        if *left == 0 {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        *left -= 1;
        let offset = usize::try_from(offset).unwrap();
        let mut state = self.state.lock().unwrap();
        put(&mut state.seen, offset, bytes);
        state.pending.push((offset, bytes.to_vec()));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        if *self.writes_left.lock().unwrap() == 0 {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut state = self.state.lock().unwrap();
        state.pending.clear();
        state.durable = state.seen.clone();
        Ok(())
    }

    fn release(&self, _: u64, _: u64) {}
}

impl Disk {
    fn new(takes: Takes, durable: Vec<u8>) -> Self {
        let state = State {
            seen: durable.clone(),
            durable,
            pending: Vec::new(),
        };
        Self {
            takes,
            state: Arc::new(Mutex::new(state)),
            writes_left: Arc::new(Mutex::new(u64::MAX)),
        }
    }

    /// The bytes after a loss of power: each sector of each pending write is there or not.
    fn after_loss(&self, random: &mut fastrand::Rng) -> Vec<u8> {
        let state = self.state.lock().unwrap();
        let mut bytes = state.durable.clone();
        for (offset, written) in &state.pending {
            let mut done = 0;
            while done < written.len() {
                let at = offset + done;
                let sector = self.takes.whole();
                let count = (sector - at % sector).min(written.len() - done);
                if random.bool() {
                    put(&mut bytes, at, &written[done..done + count]);
                }
                done += count;
            }
        }
        bytes
    }

    fn medium(&self) -> Box<dyn Medium> {
        match self.takes {
            Takes::Bytes => Box::new(self.clone()),
            Takes::Sectors(sector) => Box::new(WholeSectors::new(self.clone(), sector)),
        }
    }

    fn open(&self, role: Role) -> Arc<dyn Target> {
        Arc::new(Store::open(&role.to_string(), self.medium(), None).unwrap())
    }
}

/// Bytes of a block that name it and its version. Each third version does not compress.
fn content(block: usize, version: u64) -> Vec<u8> {
    if version == 0 {
        return vec![0; BLOCK];
    }
    let mark = (block as u64) << 40 | version;
    let mut random = fastrand::Rng::with_seed(mark);
    let mut word = |index: usize| match (index % 2, version.is_multiple_of(3)) {
        (0, _) => mark,
        (_, true) => random.u64(..),
        (_, false) => 5,
    };
    (0..BLOCK / 8)
        .flat_map(|index| word(index).to_le_bytes())
        .collect()
}

fn key() -> KeyFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"the key of this volume").unwrap();
    KeyFile::read(file.path()).unwrap()
}

struct Outcome {
    lost: usize,
    new: usize,
    old: usize,
}

/// One run to a loss of power after `writes` writes of the disks, and all that may be read afterwards.
fn run(takes: Takes, seed: u64, writes: u64) -> Outcome {
    let mut random = fastrand::Rng::with_seed(seed);
    let writes_left = Arc::new(Mutex::new(u64::MAX));
    let disks = Role::HALVES.map(|role| {
        let disk = Disk {
            writes_left: Arc::clone(&writes_left),
            ..Disk::new(takes, Vec::new())
        };
        let new = NewTarget {
            geometry: Geometry::new(u32::try_from(BLOCK).unwrap(), BLOCKS as u64).unwrap(),
            role,
            volume: Id([8; 16]),
            complete: true,
        };
        drop(Store::create("disk", disk.medium(), new, None).unwrap());
        disk
    });
    let targets = Role::HALVES.map(|role| disks[role.index()].open(role));
    // Every second volume is encrypted.
    let key = seed.is_multiple_of(2).then(key);
    if let Some(key) = &key {
        let wrapping = key.new_wrapping(Id([8; 16])).unwrap();
        for target in &targets {
            target.mark(0, Mark::Wrapping(wrapping)).unwrap();
        }
    }
    let volume = Volume::open_with(targets.to_vec(), key.as_ref()).unwrap();
    *writes_left.lock().unwrap() = writes;
    // Versions that each block may have: the flushed one alone, or also those since.
    let mut flushed = [0; BLOCKS];
    let mut since: [BTreeSet<u64>; BLOCKS] = Default::default();
    for version in 1.. {
        let block = random.usize(..BLOCKS);
        since[block].insert(version);
        let zero = version % 7 == 0;
        let bytes = content(block, if zero { 0 } else { version });
        if zero {
            since[block].insert(0);
        }
        if volume.write((block * BLOCK) as u64, &bytes).is_err() {
            break;
        }
        if random.u8(..6) == 0 {
            // What was there before the flush started is durable if it succeeds.
            // Two targets are enough for a flush. Below, another one than the third is absent.
            if volume.flush().is_err() || volume.present().len() < 3 {
                break;
            }
            for (block, since) in since.iter_mut().enumerate() {
                if let Some(last) = since.iter().next_back() {
                    flushed[block] = if last % 7 == 0 { 0 } else { *last };
                }
                since.clear();
            }
        }
    }
    drop((volume, targets));
    let after = disks.each_ref().map(|disk| disk.after_loss(&mut random));
    let mut outcome = Outcome {
        lost: 0,
        new: 0,
        old: 0,
    };
    for absent in [
        None,
        Some(Role::FIRST),
        Some(Role::SECOND),
        Some(Role::PARITY),
    ] {
        let present = Role::HALVES
            .into_iter()
            .filter(|role| Some(*role) != absent);
        let targets = present.map(|role| Disk::new(takes, after[role.index()].clone()).open(role));
        let volume = Volume::open_with(targets.collect(), key.as_ref()).unwrap();
        for block in 0..BLOCKS {
            let mut bytes = vec![0xaa; BLOCK];
            let read = volume.read((block * BLOCK) as u64, &mut bytes);
            let what = format!("{takes:?}, seed {seed}, block {block}, without {absent:?}");
            if read.is_err() {
                assert!(!since[block].is_empty(), "{what}: flushed data is lost");
                outcome.lost += 1;
            } else if bytes == content(block, flushed[block]) {
                outcome.old += usize::from(!since[block].is_empty());
            } else {
                let known = since[block]
                    .iter()
                    .any(|version| bytes == content(block, *version));
                assert!(known, "{what}: other data than the flushed and later ones");
                outcome.new += 1;
            }
        }
    }
    outcome
}

#[test]
fn what_was_flushed_is_there_after_a_loss_of_power() {
    all_seeds(Takes::Bytes);
}

/// Records share sectors, which are read and written as a whole: what was flushed is not lost with what is written beside it.
#[test]
fn what_was_flushed_beside_other_writes_of_whole_sectors_is_there_after_a_loss_of_power() {
    for sector in [512, 4096] {
        all_seeds(Takes::Sectors(sector));
    }
}

fn all_seeds(takes: Takes) {
    let mut all = Outcome {
        lost: 0,
        new: 0,
        old: 0,
    };
    for seed in 0..SEEDS {
        let outcome = run(takes, seed, 30 + seed * 7);
        all.lost += outcome.lost;
        all.new += outcome.new;
        all.old += outcome.old;
    }
    // Each of the allowed ends has been seen.
    assert!(
        all.lost > 0 && all.new > 0 && all.old > 0,
        "{} {} {}",
        all.lost,
        all.new,
        all.old
    );
}
