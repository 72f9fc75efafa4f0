//! A simulated disk with a volatile cache. It writes sectors as a whole. What was written since its last sync can be lost.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use xgvmi_blk::store::Medium;

/// Bytes that a disk writes as a whole or not at all.
const SECTOR: usize = 512;
/// Bytes at the start that hold the superblocks. Damage spares them: a target without them cannot be opened.
const SUPERBLOCKS: usize = 8192;

type Sector = Arc<[u8; SECTOR]>;

/// Sectors by number, in order. Those that are absent are zero.
type Sectors = Vec<(usize, Sector)>;

/// What a loss of power leaves of the writes since the last sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Keep {
    /// Nothing.
    None,
    /// Everything.
    All,
    /// The first ones, in the order in which they were written.
    First(u8),
    /// Of each sector any state since the last sync, chosen by this number.
    Any(u8),
}

/// How a sector is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Damage {
    /// It is zero.
    Zero,
    /// One of its bytes that are not zero is changed, chosen by this number.
    Byte(u8),
    /// Everything from here on is cut off.
    Cut,
}

/// Operations that a process can still carry out before it is killed. All disks of a process share it.
#[derive(Debug, Clone)]
pub(crate) struct Fuse(Arc<AtomicU32>);

impl Fuse {
    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicU32::new(u32::MAX)))
    }

    pub(crate) fn set(&self, steps: u32) {
        self.0.store(steps, Ordering::Relaxed);
    }

    pub(crate) fn is_burnt(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// False if this operation does not take place any more.
    pub(crate) fn burn(&self) -> bool {
        match self.0.load(Ordering::Relaxed) {
            0 => false,
            u32::MAX => true,
            left => {
                self.0.store(left - 1, Ordering::Relaxed);
                left > 1
            }
        }
    }
}

/// Why a disk refuses what the next operations ask.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Faults {
    /// The next sync fails with this error.
    pub(crate) sync: Option<i32>,
    /// No sector can be added.
    pub(crate) full: bool,
    /// Syncs have no effect.
    pub(crate) lies: bool,
    /// Some operation failed since this was last reset.
    pub(crate) met: bool,
    /// A sync failed since this was last reset.
    pub(crate) unsynced: bool,
    /// One was successful, and none failed.
    pub(crate) synced: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Content {
    durable: Sectors,
    /// As the process sees it.
    seen: Sectors,
    /// Sectors since the last sync, in the order in which they were written.
    log: Sectors,
    pub(crate) faults: Faults,
}

/// The disk. Its clones are the same disk.
#[derive(Debug, Clone)]
pub(crate) struct Disk {
    content: Arc<Mutex<Content>>,
    /// The fuse of the process that uses it.
    fuse: Fuse,
    /// The fuse of the disk itself.
    own: Fuse,
}

fn put(sectors: &mut Sectors, number: usize, sector: Sector) {
    match sectors.binary_search_by_key(&number, |(number, _)| *number) {
        Ok(at) => sectors[at].1 = sector,
        Err(at) => sectors.insert(at, (number, sector)),
    }
}

fn get(sectors: &Sectors, number: usize) -> Option<&Sector> {
    let at = sectors.binary_search_by_key(&number, |(number, _)| *number);
    Some(&sectors[at.ok()?].1)
}

/// The next of a row of numbers that look random.
pub(crate) fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A number below `end`.
pub(crate) fn below(state: &mut u64, end: usize) -> usize {
    // Cannot be cut: less than `end`.
    usize::try_from(random(state) % end as u64).unwrap_or(0)
}

impl Content {
    fn sync(&mut self) {
        for (number, sector) in std::mem::take(&mut self.log) {
            put(&mut self.durable, number, sector);
        }
    }

    /// After a loss of power.
    pub(crate) fn lose_power(&mut self, keep: Keep) {
        let log = std::mem::take(&mut self.log);
        match keep {
            Keep::None => {}
            Keep::All => {
                for (number, sector) in log {
                    put(&mut self.durable, number, sector);
                }
            }
            Keep::First(count) => {
                for (number, sector) in log.into_iter().take(usize::from(count)) {
                    put(&mut self.durable, number, sector);
                }
            }
            Keep::Any(choice) => {
                let mut choice = u64::from(choice) + 1;
                let mut numbers: Vec<usize> = log.iter().map(|(number, _)| *number).collect();
                numbers.sort_unstable();
                numbers.dedup();
                for number in numbers {
                    let states = log.iter().filter(|(other, _)| *other == number);
                    let chosen = below(&mut choice, states.clone().count() + 1);
                    if let Some((_, sector)) = chosen
                        .checked_sub(1)
                        .and_then(|nth| states.clone().nth(nth))
                    {
                        put(&mut self.durable, number, Arc::clone(sector));
                    }
                }
            }
        }
        self.seen = self.durable.clone();
        self.faults.sync = None;
    }

    /// Damages a sector behind the superblocks, chosen by a number. False if there is none.
    pub(crate) fn damage(&mut self, nth: u8, damage: Damage) -> bool {
        self.sync();
        // What no sync has covered is gone, but only if there is something to damage.
        let mut left = self.durable.clone();
        let start = left.partition_point(|(number, _)| number * SECTOR < SUPERBLOCKS);
        let count = left.len() - start;
        if count == 0 {
            return false;
        }
        let at = start + usize::from(nth) % count;
        match damage {
            Damage::Zero => drop(left.remove(at)),
            Damage::Cut => left.truncate(at),
            Damage::Byte(choice) => {
                let sector = Arc::make_mut(&mut left[at].1);
                let used: Vec<usize> = (0..SECTOR).filter(|at| sector[*at] != 0).collect();
                let Some(byte) = used.get(usize::from(choice) % used.len().max(1)) else {
                    return false;
                };
                sector[*byte] ^= 1 + (choice & 0x7e);
            }
        }
        (self.seen, self.durable) = (left.clone(), left);
        true
    }
}

impl Disk {
    pub(crate) fn new(content: Content, fuse: &Fuse) -> Self {
        Self {
            content: Arc::new(Mutex::new(content)),
            fuse: fuse.clone(),
            own: Fuse::new(),
        }
    }

    pub(crate) fn content(&self) -> MutexGuard<'_, Content> {
        // A panic ends the search.
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The disk fails for good after this number of operations.
    pub(crate) fn own(&self) -> &Fuse {
        &self.own
    }

    fn fails(&self, content: &mut Content) -> io::Result<()> {
        if !self.fuse.burn() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if !self.own.burn() {
            content.faults.met = true;
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        Ok(())
    }
}

impl Medium for Disk {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let mut content = self.content();
        if self.fuse.is_burnt() || self.own.is_burnt() {
            content.faults.met |= self.own.is_burnt();
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let offset = usize::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut done = 0;
        bytes.fill(0);
        while done < bytes.len() {
            let (number, within) = ((offset + done) / SECTOR, (offset + done) % SECTOR);
            let count = (SECTOR - within).min(bytes.len() - done);
            if let Some(sector) = get(&content.seen, number) {
                bytes[done..done + count].copy_from_slice(&sector[within..within + count]);
            }
            done += count;
        }
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut content = self.content();
        let offset = usize::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut done = 0;
        // Each sector by itself: a process can be killed between them.
        while done < bytes.len() {
            self.fails(&mut content)?;
            let (number, within) = ((offset + done) / SECTOR, (offset + done) % SECTOR);
            let count = (SECTOR - within).min(bytes.len() - done);
            let old = get(&content.seen, number);
            if old.is_none() && content.faults.full {
                content.faults.met = true;
                return Err(io::Error::from_raw_os_error(libc::ENOSPC));
            }
            let mut sector = old.map_or([0; SECTOR], |old| **old);
            sector[within..within + count].copy_from_slice(&bytes[done..done + count]);
            let sector = Arc::new(sector);
            put(&mut content.seen, number, Arc::clone(&sector));
            content.log.push((number, sector));
            done += count;
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut content = self.content();
        self.fails(&mut content)?;
        if let Some(error) = content.faults.sync.take() {
            // As a kernel does: the pages count as clean, and the next sync succeeds without them.
            content.log.clear();
            content.faults.met = true;
            content.faults.unsynced = true;
            return Err(io::Error::from_raw_os_error(error));
        }
        if !content.faults.lies {
            content.sync();
        }
        content.faults.synced = true;
        Ok(())
    }

    fn syncs_at_once(&self) -> bool {
        true
    }

    fn release(&self, _: u64, _: u64) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(disk: &Disk, at: u64) -> u8 {
        let mut byte = [0];
        disk.read(at, &mut byte).unwrap();
        byte[0]
    }

    /// A disk whose first byte was synced as 1 and then written as 2 and 3, and whose second sector as 4.
    fn written() -> Disk {
        let disk = Disk::new(Content::default(), &Fuse::new());
        disk.write(0, &[1]).unwrap();
        disk.sync().unwrap();
        for (at, value) in [(0, 2), (512, 4), (0, 3)] {
            disk.write(at, &[value]).unwrap();
        }
        disk
    }

    #[test]
    fn a_loss_of_power_keeps_what_it_says() {
        for (keep, first, second) in [
            (Keep::None, 1, 0),
            (Keep::First(1), 2, 0),
            (Keep::First(2), 2, 4),
            (Keep::All, 3, 4),
        ] {
            let disk = written();
            disk.content().lose_power(keep);
            assert_eq!(
                (bytes(&disk, 0), bytes(&disk, 512)),
                (first, second),
                "{keep}"
            );
        }
        let ends: std::collections::BTreeSet<(u8, u8)> = (0..200)
            .map(|choice| {
                let disk = written();
                disk.content().lose_power(Keep::Any(choice));
                (bytes(&disk, 0), bytes(&disk, 512))
            })
            .collect();
        assert_eq!(ends.len(), 6, "each state of each sector: {ends:?}");
    }

    #[test]
    fn what_a_failed_sync_leaves_out_the_next_one_leaves_out_too() {
        let disk = written();
        disk.content().faults.sync = Some(libc::EIO);
        assert!(disk.sync().is_err());
        disk.sync().unwrap();
        assert_eq!(bytes(&disk, 0), 3, "it is in the page cache");
        disk.content().lose_power(Keep::All);
        assert_eq!(bytes(&disk, 0), 1);
    }

    #[test]
    fn a_fuse_ends_at_its_operation() {
        let fuse = Fuse::new();
        let disk = Disk::new(Content::default(), &fuse);
        fuse.set(2);
        disk.write(0, &[1]).unwrap();
        assert!(disk.write(0, &[2]).is_err() && disk.sync().is_err());
        fuse.set(u32::MAX);
        assert_eq!(bytes(&disk, 0), 1);
    }
}
