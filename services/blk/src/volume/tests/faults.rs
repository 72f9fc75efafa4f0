//! Tests of targets that fail at one step, are full, or cannot make data durable.

use super::*;
use std::sync::Mutex;

/// A target one of whose calls fails some times.
pub(super) struct Faulty {
    target: Arc<dyn Target>,
    /// Name of the call, the error, and how often.
    fault: Mutex<(&'static str, i32, u64)>,
    commits: AtomicU64,
}

impl Faulty {
    pub(super) fn new(
        target: Arc<dyn Target>,
        call: &'static str,
        errno: i32,
        times: u64,
    ) -> Arc<Self> {
        Arc::new(Self {
            target,
            fault: Mutex::new((call, errno, times)),
            commits: AtomicU64::new(0),
        })
    }

    fn at(&self, call: &str) -> Result<&dyn Target> {
        let mut fault = self.fault.lock().unwrap();
        let (name, errno, left) = *fault;
        if name == call && left > 0 {
            fault.2 = left - 1;
            let error = io::Error::from_raw_os_error(errno);
            return Err(BlkError::io("faulty", error));
        }
        Ok(self.target.as_ref())
    }
}

impl Target for Faulty {
    fn name(&self) -> &str {
        self.target.name()
    }

    fn identity(&self) -> Identity {
        self.target.identity()
    }

    fn part(&self, blocks: Range<u64>) -> Result<Part> {
        self.at("held")?.part(blocks)
    }

    fn changed(&self, from: u64) -> Result<Changed> {
        self.at("held")?.changed(from)
    }

    fn grow(&self, blocks: u64) -> Result<()> {
        self.at("grow")?.grow(blocks)
    }

    fn prepare(&self, block: u64, half: &Half, keep: u64) -> Result<()> {
        self.at("prepare")?.prepare(block, half, keep)
    }

    fn commit(&self, block: u64, generation: u64) -> Result<()> {
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.at("commit")?.commit(block, generation)
    }

    fn fetch(&self, block: u64, generation: u64) -> Result<Half> {
        self.at("fetch")?.fetch(block, generation)
    }

    fn flush(&self) -> Result<()> {
        self.at("flush")?.flush()
    }

    fn mark(&self, epoch: u64, mark: Mark) -> Result<()> {
        self.at("mark")?.mark(epoch, mark)
    }

    fn usage(&self) -> Usage {
        self.target.usage()
    }
}

/// The volume on the targets of `world`, one of which fails.
fn open_with(world: &World, role: Role, faulty: &Arc<Faulty>) -> Result<Volume> {
    Volume::open(
        Role::HALVES
            .map(|each| -> Arc<dyn Target> {
                match each == role {
                    true => Arc::clone(faulty) as Arc<dyn Target>,
                    false => world.store(each),
                }
            })
            .to_vec(),
    )
}

/// A target that answers and fails at any step of the opening does not keep the two others from it.
#[test]
fn a_volume_opens_beside_a_target_that_fails_at_any_step() {
    for role in Role::HALVES {
        for (call, errno) in [
            ("mark", libc::EROFS),
            ("mark", libc::EIO),
            ("held", libc::EIO),
            ("fetch", libc::EIO),
            ("commit", libc::EROFS),
            ("commit", libc::ENOSPC),
            ("flush", libc::EIO),
            ("flush", libc::ENOSPC),
        ] {
            let world = World::new();
            let volume = world.open();
            let mut shadow = fill(&volume, 1);
            // What the opening has to read and to settle.
            volume.write(offset(3), &content(3, 3)).unwrap();
            shadow[3] = 3;
            drop(volume);
            let faulty = Faulty::new(world.store(role), call, errno, u64::MAX);
            let volume = open_with(&world, role, &faulty).unwrap();
            expect(&volume, &shadow);
            volume.write(offset(4), &content(4, 3)).unwrap();
            shadow[4] = 3;
            volume.flush().unwrap();
            expect(&volume, &shadow);
            drop((volume, faulty));
            expect_each_after_rebuild(&world, &shadow);
        }
    }
}

fn expect_each_after_rebuild(world: &World, shadow: &[u64]) {
    let volume = world.open();
    for role in Role::HALVES {
        volume.rebuild(role).unwrap();
    }
    drop(volume);
    expect_each(world, shadow);
}

/// A flush that a target cannot carry out, for lack of space or otherwise, ends its use. When it returns, what it had not
/// made durable is written again: the system may have dropped it, and shows it from its cache.
#[test]
fn a_target_whose_flush_fails_gets_the_blocks_again() {
    for role in Role::HALVES {
        for errno in [libc::EIO, libc::ENOSPC] {
            let world = World::new();
            let shadow = fill(&world.open(), 1);
            let faulty = Faulty::new(world.store(role), "", 0, 0);
            let volume = open_with(&world, role, &faulty).unwrap();
            for block in 0..5 {
                volume.write(offset(block), &content(block, 3)).unwrap();
            }
            *faulty.fault.lock().unwrap() = ("flush", errno, 1);
            volume.flush().unwrap();
            let absent = volume.status().targets[role.index()].absent.clone();
            assert!(!absent.is_empty(), "{role} is still used");
            volume
                .attach(Arc::clone(&faulty) as Arc<dyn Target>)
                .unwrap();
            assert_eq!(volume.missing_blocks(role), 5, "its cache is believed");
            assert_eq!(volume.rebuild(role).unwrap(), 5);
            assert!(volume.is_complete(role));
            drop((volume, faulty));
            let mut shadow = shadow;
            shadow[..5].fill(3);
            expect_each(&world, &shadow);
        }
    }
}

/// A rebuilt target is complete after a flush of its own, not after those of the two others.
#[test]
fn a_rebuild_needs_the_flush_of_the_rebuilt_target() {
    for role in Role::HALVES {
        let world = World::new();
        let volume = world.open_without(Some(role));
        fill(&volume, 3);
        let faulty = Faulty::new(world.store(role), "flush", libc::ENOSPC, 1);
        volume
            .attach(Arc::clone(&faulty) as Arc<dyn Target>)
            .unwrap();
        assert!(volume.rebuild(role).is_err());
        assert!(!volume.is_complete(role));
        assert!(!faulty.identity().is_complete());
        volume
            .attach(Arc::clone(&faulty) as Arc<dyn Target>)
            .unwrap();
        assert_eq!(volume.rebuild(role).unwrap(), BLOCKS);
        assert!(faulty.identity().is_complete());
    }
}

/// A return asks a target for what it holds, and commits nothing that is settled.
#[test]
fn a_return_costs_no_call_per_block() {
    let world = World::new();
    let volume = world.open();
    let shadow = fill(&volume, 3);
    for role in Role::HALVES {
        volume.detach(role, "it was restarted");
        let target = Faulty::new(world.store(role), "", 0, 0);
        volume
            .attach(Arc::clone(&target) as Arc<dyn Target>)
            .unwrap();
        assert_eq!(target.commits.load(Ordering::Relaxed), 0);
        assert_eq!(volume.missing_blocks(role), 0);
    }
    expect(&volume, &shadow);
}

/// A target is full and everything is killed within a write. The volume opens, with the target still full.
#[test]
fn a_volume_with_a_full_target_opens_after_a_kill() {
    for role in Role::HALVES {
        for writes in 0..14 {
            let world = World::new();
            let mut shadow = fill(&world.open(), 1);
            let full = |world: &World| -> Arc<dyn Target> {
                let disk = Box::new(world.disks[role.index()].clone());
                Arc::new(Store::open(&role.to_string(), disk, Some(64)).unwrap())
            };
            let open = || {
                let target = |each| match each == role {
                    true => full(&world),
                    false => world.store(each),
                };
                Volume::open(Role::HALVES.map(target).to_vec())
            };
            let volume = open().unwrap();
            world.writes_left.store(writes, Ordering::Relaxed);
            for block in 0..2 {
                if volume.write(offset(block), &content(block, 3)).is_err() {
                    break;
                }
            }
            drop(volume);
            world.writes_left.store(u64::MAX, Ordering::Relaxed);
            let volume = open().unwrap_or_else(|error| panic!("{role}, {writes}: {error}"));
            for block in 0..2 {
                let mut bytes = vec![0; BLOCK];
                volume.read(offset(block), &mut bytes).unwrap();
                if bytes == content(block, 3) {
                    shadow[usize::try_from(block).unwrap()] = 3;
                }
            }
            expect(&volume, &shadow);
            drop(volume);
            expect_each_after_rebuild(&world, &shadow);
        }
    }
}

/// A disk that cannot read some sectors until they are written.
struct BadSectors {
    disk: Disk,
    bad: Mutex<Vec<u64>>,
}

impl BadSectors {
    /// A store on it, which is open.
    fn open(world: &World, role: Role) -> (Arc<Self>, Arc<dyn Target>) {
        let medium = Arc::new(Self {
            disk: world.disks[role.index()].clone(),
            bad: Mutex::default(),
        });
        let shared = Box::new(Sectors(Arc::clone(&medium)));
        let store = Store::open(&role.to_string(), shared, None).unwrap();
        (medium, Arc::new(store))
    }

    /// These sectors, counted from the first record, cannot be read.
    fn spoil(&self, sectors: Range<u64>) {
        let first = Shape::with_room(BLOCKS).data_at() / 512;
        let sectors = sectors.map(|sector| first + sector);
        *self.bad.lock().unwrap() = sectors.collect();
    }
}

struct Sectors(Arc<BadSectors>);

fn sectors(offset: u64, length: usize) -> Range<u64> {
    offset / 512..(offset + length as u64).div_ceil(512)
}

impl Medium for Sectors {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let wanted = sectors(offset, bytes.len());
        let bad = self.0.bad.lock().unwrap();
        if bad.iter().any(|sector| wanted.contains(sector)) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        drop(bad);
        self.0.disk.read(offset, bytes)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let written = sectors(offset, bytes.len());
        let mut bad = self.0.bad.lock().unwrap();
        bad.retain(|sector| !written.contains(sector));
        drop(bad);
        self.0.disk.write(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.disk.sync()
    }

    fn release(&self, offset: u64, length: u64) {
        self.0.disk.release(offset, length);
    }
}

/// A sector that cannot be read costs the records in it, which are written again elsewhere, and not the target.
#[test]
fn a_bad_sector_is_repaired_and_its_target_stays() {
    for role in Role::HALVES {
        let world = World::new();
        let shadow = fill(&world.open(), 3);
        let (disk, store) = BadSectors::open(&world, role);
        let target = |each| match each == role {
            true => Arc::clone(&store),
            false => world.store(each),
        };
        let volume = Volume::open(Role::HALVES.map(target).to_vec()).unwrap();
        disk.spoil(4..5);
        let report = volume.scrub().unwrap();
        let bad = report.bad_halves;
        assert!((1..=3).contains(&bad), "{role}: {bad}");
        assert_eq!(report.repaired_halves, bad, "{role}");
        assert_eq!(report.lost_blocks, 0);
        assert_eq!(volume.scrub().unwrap().bad_halves, 0, "{role}");
        // A read finds another one.
        disk.spoil(1..2);
        expect(&volume, &shadow);
        let status = volume.status();
        assert_eq!(status.targets[role.index()].absent, "", "{role}");
        volume.scrub().unwrap();
        volume.flush().unwrap();
        // Many of them are those of a disk that has failed.
        disk.spoil(0..1 << 16);
        expect(&volume, &shadow);
        let report = volume.scrub().unwrap();
        assert_eq!(report.lost_blocks, 0, "{role}");
        let absent = volume.status().targets[role.index()].absent.clone();
        assert!(absent.contains("Input/output error"), "{role}: '{absent}'");
        expect(&volume, &shadow);
        drop((volume, store));
        expect_each_after_rebuild(&world, &shadow);
    }
}
