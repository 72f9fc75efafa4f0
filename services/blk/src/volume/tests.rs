//! Tests of a volume against a shadow copy: absent, wrong, full, old and killed targets.

use super::*;
use crate::error::{BlkError, Result};
use crate::geometry::{Geometry, Id, Role};
use crate::record::Half;
use crate::store::Target;
use crate::store::{
    Changed, Identity, Mark, Medium, MemoryMedium, NewTarget, Part, Shape, Store, Usage,
};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::{AtomicU64, Ordering};

mod damage;
mod faults;
mod history;
mod keys;
mod layouts;
mod outage;
mod rebuild;
mod snapshots;

const BLOCK: usize = 512;
const BLOCKS: u64 = 24;
/// Bytes of a disk that a copy takes.
const COPY: usize = 1 << 18;

/// A medium that outlives its store, and whose writes fail once a number that all targets share is used up: the process
/// is dead from there on.
#[derive(Clone, Default)]
struct Disk {
    bytes: Arc<MemoryMedium>,
    writes_left: Arc<AtomicU64>,
}

impl Medium for Disk {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.bytes.read(offset, bytes)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let left = self.writes_left.load(Ordering::Relaxed);
        if left == 0 {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.writes_left.store(left - 1, Ordering::Relaxed);
        self.bytes.write(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn release(&self, _: u64, _: u64) {}
}

/// Three targets of one volume.
struct World {
    disks: [Disk; 3],
    writes_left: Arc<AtomicU64>,
    capacity: Option<u64>,
}

impl World {
    fn new() -> Self {
        Self::with_capacity(None)
    }

    fn with_capacity(capacity: Option<u64>) -> Self {
        let writes_left = Arc::new(AtomicU64::new(u64::MAX));
        let disks = Role::HALVES.map(|role| {
            let disk = Disk {
                bytes: Arc::default(),
                writes_left: Arc::clone(&writes_left),
            };
            let new = new_target(role, true);
            Store::create(&role.to_string(), Box::new(disk.clone()), new, capacity).unwrap();
            disk
        });
        Self {
            disks,
            writes_left,
            capacity,
        }
    }

    fn store(&self, role: Role) -> Arc<dyn Target> {
        let disk = self.disks[role.index()].clone();
        Arc::new(Store::open(&role.to_string(), Box::new(disk), self.capacity).unwrap())
    }

    fn open_without(&self, absent: Option<Role>) -> Volume {
        let present = Role::HALVES
            .into_iter()
            .filter(|role| Some(*role) != absent);
        Volume::open(present.map(|role| self.store(role)).collect()).unwrap()
    }

    fn open(&self) -> Volume {
        self.open_without(None)
    }

    /// Copies of the disks, to return to them.
    fn copy(&self) -> Self {
        let disks = self.disks.each_ref().map(|disk| {
            let copy = Disk {
                bytes: Arc::default(),
                writes_left: Arc::new(AtomicU64::new(u64::MAX)),
            };
            let mut bytes = vec![0; COPY];
            disk.bytes.read(0, &mut bytes).unwrap();
            copy.bytes.write(0, &bytes).unwrap();
            copy
        });
        Self {
            disks,
            writes_left: Arc::new(AtomicU64::new(u64::MAX)),
            capacity: self.capacity,
        }
    }

    /// Changes a byte of the first record of a target.
    fn flip(&self, role: Role) {
        let at = first_record();
        let mut byte = [0];
        self.disks[role.index()].bytes.read(at, &mut byte).unwrap();
        self.disks[role.index()]
            .bytes
            .write(at, &[byte[0] ^ 0x40])
            .unwrap();
    }
}

fn new_target(role: Role, complete: bool) -> NewTarget {
    NewTarget {
        geometry: Geometry::new(u32::try_from(BLOCK).unwrap(), BLOCKS).unwrap(),
        role,
        volume: Id([5; 16]),
        complete,
    }
}

/// Offset of the bytes of the first record: two superblocks, the index, the header.
fn first_record() -> u64 {
    Shape::with_room(BLOCKS).data_at() + 64
}

/// Bytes of a block that name it and its version. Some compress, some do not, version 0 is zeros.
fn content(block: u64, version: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    if version == 0 {
        return bytes;
    }
    let mut state = block << 32 | version;
    for (index, word) in bytes.chunks_mut(8).enumerate() {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let noise = if version.is_multiple_of(3) { state } else { 7 };
        let mark = block << 20 | version;
        word.copy_from_slice(&if index % 2 == 0 { mark } else { noise }.to_le_bytes());
    }
    bytes
}

fn offset(block: u64) -> u64 {
    block * BLOCK as u64
}

#[track_caller]
fn expect(volume: &Volume, shadow: &[u64]) {
    for (block, version) in (0..).zip(shadow) {
        let mut bytes = vec![0xaa; BLOCK];
        volume.read(offset(block), &mut bytes).unwrap();
        assert!(
            bytes == content(block, *version),
            "block {block} is not version {version}"
        );
    }
}

/// Reads everything, also with each target absent in turn.
#[track_caller]
fn expect_each(world: &World, shadow: &[u64]) {
    for absent in [
        None,
        Some(Role::FIRST),
        Some(Role::SECOND),
        Some(Role::PARITY),
    ] {
        expect(&world.copy().open_without(absent), shadow);
    }
}

fn fill(volume: &Volume, version: u64) -> Vec<u64> {
    for block in 0..BLOCKS {
        volume
            .write(offset(block), &content(block, version))
            .unwrap();
    }
    volume.flush().unwrap();
    vec![version; usize::try_from(BLOCKS).unwrap()]
}

#[test]
fn everything_comes_back_with_each_target_absent() {
    let world = World::new();
    let volume = world.open();
    expect(&volume, &vec![0; usize::try_from(BLOCKS).unwrap()]);
    let mut shadow = fill(&volume, 1);
    for block in (0..BLOCKS).step_by(3) {
        volume.write(offset(block), &content(block, 3)).unwrap();
        shadow[usize::try_from(block).unwrap()] = 3;
    }
    volume.flush().unwrap();
    expect(&volume, &shadow);
    drop(volume);
    expect_each(&world, &shadow);
}

#[test]
fn parts_of_blocks_are_read_and_written() {
    let world = World::new();
    let volume = world.open();
    let mut shadow = vec![0u8; BLOCK * 6];
    let mut seed = 1u64;
    for round in 0..200u8 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let at = usize::try_from(seed >> 40).unwrap() % (shadow.len() - 1);
        let length = (1 + usize::try_from(seed >> 20 & 0x7ff).unwrap()).min(shadow.len() - at);
        if round % 5 == 0 {
            volume
                .write_zeroes(at as u64, length as u64, round % 2 == 0)
                .unwrap();
            shadow[at..at + length].fill(0);
        } else {
            let bytes = vec![round; length];
            volume.write(at as u64, &bytes).unwrap();
            shadow[at..at + length].copy_from_slice(&bytes);
        }
        let mut back = vec![0xaa; shadow.len()];
        volume.read(0, &mut back).unwrap();
        assert!(back == shadow, "round {round}: {length} bytes at {at}");
    }
    drop(volume);
    let mut back = vec![0xaa; shadow.len()];
    world
        .open_without(Some(Role::FIRST))
        .read(0, &mut back)
        .unwrap();
    assert!(back == shadow);
}

/// The process dies before each single write to any target. Each block is then the old or the new one, it stays so
/// whichever target is lost next, and what was acknowledged is there.
#[test]
fn a_process_killed_between_any_two_writes_leaves_old_or_new() {
    let world = World::new();
    let mut before = fill(&world.open(), 1);
    before[2] = 0;
    world.open().trim(offset(2), BLOCK as u64).unwrap();
    for writes in 0.. {
        let world = world.copy_with_limit();
        let volume = world.open();
        world.writes_left.store(writes, Ordering::Relaxed);
        let mut acknowledged = 0;
        for block in 0..3u64 {
            if volume.write(offset(block), &content(block, 3)).is_err() {
                break;
            }
            acknowledged = block + 1;
        }
        drop(volume);
        world.writes_left.store(u64::MAX, Ordering::Relaxed);
        for absent in [
            None,
            Some(Role::FIRST),
            Some(Role::SECOND),
            Some(Role::PARITY),
        ] {
            let world = world.copy();
            let volume = world.open_without(absent);
            let mut shadow = before.clone();
            let mut bytes = vec![0; BLOCK];
            for block in 0..3u64 {
                let at = usize::try_from(block).unwrap();
                let read = volume.read(offset(block), &mut bytes);
                read.unwrap_or_else(|error| panic!("{writes}, {absent:?}: {error}"));
                if bytes == content(block, 3) {
                    shadow[at] = 3;
                } else {
                    assert!(
                        block >= acknowledged,
                        "an acknowledged write is gone: {writes}, {absent:?}"
                    );
                    assert!(
                        bytes == content(block, before[at]),
                        "a mixture: {writes}, {absent:?}"
                    );
                }
            }
            expect(&volume, &shadow);
            drop(volume);
            // The targets that were there have decided. Any two of them show the same.
            if absent.is_none() {
                expect_each(&world, &shadow);
            }
            // The absent one comes back, and the decision stays.
            let volume = world.open();
            expect(&volume, &shadow);
            assert_eq!(volume.scrub().unwrap().lost_blocks, 0);
            drop(volume);
            expect_each(&world, &shadow);
        }
        if acknowledged == 3 {
            return;
        }
    }
}

impl World {
    /// As [`World::copy`], with one limit for all targets.
    fn copy_with_limit(&self) -> Self {
        let mut copy = self.copy();
        for disk in &mut copy.disks {
            disk.writes_left = Arc::clone(&copy.writes_left);
        }
        copy
    }
}

#[test]
fn wrong_bytes_are_found_and_repaired() {
    for role in Role::HALVES {
        let world = World::new();
        let shadow = fill(&world.open(), 3);
        world.flip(role);
        let volume = world.open();
        expect(&volume, &shadow);
        let status = volume.status();
        if role == Role::PARITY {
            // Nothing reads parity before a scrub.
            assert_eq!((status.corrupt_halves, status.repaired_halves), (0, 0));
            let report = volume.scrub().unwrap();
            assert_eq!(
                (
                    report.bad_halves,
                    report.repaired_halves,
                    report.lost_blocks
                ),
                (1, 1, 0)
            );
        } else {
            assert_eq!(
                (status.corrupt_halves, status.repaired_halves),
                (1, 1),
                "{role}"
            );
            assert_eq!(status.degraded_reads, 1);
        }
        assert_eq!(volume.scrub().unwrap().bad_halves, 0, "{role}");
        drop(volume);
        expect_each(&world, &shadow);
    }
}

#[test]
fn two_wrong_halves_are_an_error_and_never_other_data() {
    let world = World::new();
    fill(&world.open(), 3);
    world.flip(Role::FIRST);
    world.flip(Role::PARITY);
    let volume = world.open();
    let mut bytes = vec![0; BLOCK];
    let error = volume.read(0, &mut bytes).unwrap_err();
    assert!(matches!(error, BlkError::Lost { block: 0, .. }), "{error}");
    assert!(
        volume.write(8, &[1]).is_err(),
        "a part of a lost block was written"
    );
    volume.read(offset(1), &mut bytes).unwrap();
    // A whole write makes it readable again.
    volume.write(0, &content(0, 4)).unwrap();
    volume.read(0, &mut bytes).unwrap();
    assert!(bytes == content(0, 4));
}

#[test]
fn a_target_that_returns_with_old_data_is_completed() {
    let world = World::new();
    let filled = fill(&world.open(), 1);
    for absent in Role::HALVES {
        let (world, mut shadow) = (world.copy(), filled.clone());
        let volume = world.open_without(Some(absent));
        for block in 0..7 {
            volume.write(offset(block), &content(block, 6)).unwrap();
            shadow[usize::try_from(block).unwrap()] = 6;
        }
        volume.trim(offset(9), BLOCK as u64).unwrap();
        shadow[9] = 0;
        // What waits for a flush would be there at once.
        volume.flush().unwrap();
        expect(&volume, &shadow);
        let missing = |volume: &Volume| volume.status().targets[absent.index()].missing_blocks;
        assert_eq!(missing(&volume), BLOCKS);
        volume.attach(world.store(absent)).unwrap();
        assert_eq!(missing(&volume), 8);
        // A read completes the halves of its block, the rebuild everything.
        volume.read(offset(3), &mut vec![0; BLOCK]).unwrap();
        let left = if absent == Role::PARITY { 8 } else { 7 };
        assert_eq!(missing(&volume), left);
        assert_eq!(volume.rebuild(absent).unwrap(), left);
        assert_eq!(volume.rebuild(absent).unwrap(), 0);
        drop(volume);
        expect_each(&world, &shadow);
    }
}

#[test]
fn a_new_target_is_built_while_the_volume_serves() {
    for role in Role::HALVES {
        let world = World::new();
        let mut shadow = fill(&world.open(), 3);
        let volume = world.open_without(Some(role));
        let disk = Disk {
            bytes: Arc::default(),
            writes_left: Arc::new(AtomicU64::new(u64::MAX)),
        };
        let fresh =
            Store::create("new", Box::new(disk.clone()), new_target(role, false), None).unwrap();
        volume.attach(Arc::new(fresh)).unwrap();
        volume.write(offset(5), &content(5, 4)).unwrap();
        shadow[5] = 4;
        expect(&volume, &shadow);
        let stop = AtomicBool::new(false);
        let last = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut version = 0;
                while !stop.load(Ordering::Relaxed) || version < 10 {
                    version += 1;
                    volume.write(offset(7), &content(7, version)).unwrap();
                }
                version
            });
            volume.rebuild(role).unwrap();
            stop.store(true, Ordering::Relaxed);
            writer.join().unwrap()
        });
        shadow[7] = last;
        expect(&volume, &shadow);
        assert_eq!(volume.status().targets[role.index()].missing_blocks, 0);
        drop(volume);
        let mut world = world;
        world.disks[role.index()] = disk;
        expect_each(&world, &shadow);
    }
}

#[test]
fn two_new_targets_are_no_volume() {
    let world = World::new();
    fill(&world.open(), 1);
    let fresh = |role| {
        let disk = Box::new(MemoryMedium::default());
        let store = Store::create("new", disk, new_target(role, false), None).unwrap();
        Arc::new(store) as Arc<dyn Target>
    };
    let targets = vec![
        world.store(Role::FIRST),
        fresh(Role::SECOND),
        fresh(Role::PARITY),
    ];
    let error = Volume::open(targets).unwrap_err().to_string();
    assert!(
        error.contains("1 of 3 targets") && error.contains("hold everything yet"),
        "{error}"
    );
}

#[test]
fn targets_that_do_not_belong_together_are_refused() {
    let world = World::new();
    let other = |change: fn(&mut NewTarget)| {
        let mut new = new_target(Role::SECOND, true);
        change(&mut new);
        let store = Store::create("other", Box::new(MemoryMedium::default()), new, None).unwrap();
        Arc::new(store) as Arc<dyn Target>
    };
    for (target, fault) in [
        (other(|new| new.volume = Id([6; 16])), "volume 0505"),
        (
            other(|new| new.geometry = Geometry::new(512, 25).unwrap()),
            "room for 24 blocks, and 25 are wanted",
        ),
        (
            other(|new| new.geometry = Geometry::new(1024, 24).unwrap()),
            "24 blocks of 1024",
        ),
        (other(|new| new.role = Role::FIRST), "both are data_1"),
        (world.store(Role::FIRST), "the same target"),
    ] {
        let targets = vec![world.store(Role::FIRST), target];
        let error = Volume::open(targets).unwrap_err().to_string();
        assert!(error.contains(fault), "{error}");
    }
    let error = Volume::open(vec![world.store(Role::FIRST)])
        .unwrap_err()
        .to_string();
    assert!(error.contains("data_2 is absent"), "{error}");
    assert!(Volume::open(Vec::new()).is_err());
    let volume = world.open_without(Some(Role::SECOND));
    assert!(
        volume
            .attach(other(|new| new.volume = Id([6; 16])))
            .is_err()
    );
    assert!(
        volume.attach(world.store(Role::FIRST)).is_err(),
        "its place is taken"
    );
    let later = world.store(Role::SECOND);
    later.mark(99, Mark::Complete).unwrap();
    let error = volume.attach(later).unwrap_err().to_string();
    assert!(
        error.contains("another process has opened the volume"),
        "{error}"
    );
}

#[test]
fn a_full_target_costs_redundancy_and_no_data() {
    // Each half of an incompressible block takes 256 bytes and a header.
    let world = World::with_capacity(Some(10 * 320));
    let volume = world.open();
    let mut written = 0;
    let error = loop {
        match volume.write(offset(written), &content(written, 3)) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    assert!(error.is_full(), "{error}");
    assert!((10..20).contains(&written), "{written}");
    let mut shadow = vec![0; usize::try_from(BLOCKS).unwrap()];
    shadow[..usize::try_from(written).unwrap()].fill(3);
    expect(&volume, &shadow);
    volume.trim(0, offset(2)).unwrap();
    shadow[..2].fill(0);
    volume.write(offset(20), &content(20, 3)).unwrap();
    shadow[20] = 3;
    drop(volume);
    expect_each(&world, &shadow);
}

#[test]
fn ranges_outside_are_refused() {
    let world = World::new();
    let volume = world.open();
    let end = offset(BLOCKS);
    let mut bytes = [0; 8];
    assert!(volume.read(end - 7, &mut bytes).is_err());
    assert!(volume.read(u64::MAX, &mut bytes).is_err());
    assert!(volume.write(end, &bytes).is_err());
    assert!(volume.trim(end - 512, 513).is_err());
    assert!(volume.write_zeroes(0, end + 1, false).is_err());
    assert!(volume.extents(u64::MAX, u64::MAX, 1).is_err());
    volume.read(end - 8, &mut bytes).unwrap();
}

#[test]
fn holes_are_known() {
    let world = World::new();
    let volume = world.open();
    volume.write(offset(2), &content(2, 1)).unwrap();
    volume.write(offset(3), &content(3, 1)).unwrap();
    volume.write(offset(4), &content(4, 0)).unwrap();
    volume.write_zeroes(offset(6), BLOCK as u64, true).unwrap();
    let runs = |limit| -> Vec<_> {
        let extents = volume.extents(100, offset(BLOCKS) - 100, limit).unwrap();
        extents
            .iter()
            .map(|extent| (extent.length, extent.zero))
            .collect()
    };
    let all = [
        (924, true),
        (1024, false),
        (1024, true),
        (512, false),
        (offset(BLOCKS) - offset(7), true),
    ];
    assert_eq!(runs(9), all);
    assert_eq!(runs(2), all[..2]);
}

/// A target whose calls fail while a switch is set, as one that is gone.
struct Unreliable {
    target: Arc<dyn Target>,
    gone: Arc<AtomicBool>,
}

impl Unreliable {
    fn here(&self) -> Result<&dyn Target> {
        if self.gone.load(Ordering::Relaxed) {
            Err(BlkError::io("gone", io::ErrorKind::ConnectionReset.into()))
        } else {
            Ok(self.target.as_ref())
        }
    }
}

impl Target for Unreliable {
    fn name(&self) -> &str {
        self.target.name()
    }

    fn identity(&self) -> Identity {
        self.target.identity()
    }

    fn part(&self, blocks: Range<u64>) -> Result<Part> {
        self.here()?.part(blocks)
    }

    fn changed(&self, from: u64) -> Result<Changed> {
        self.here()?.changed(from)
    }

    fn grow(&self, blocks: u64) -> Result<()> {
        self.here()?.grow(blocks)
    }

    fn prepare(&self, block: u64, half: &Half, keep: u64) -> Result<()> {
        self.here()?.prepare(block, half, keep)
    }

    fn commit(&self, block: u64, generation: u64) -> Result<()> {
        self.here()?.commit(block, generation)
    }

    fn fetch(&self, block: u64, generation: u64) -> Result<Half> {
        self.here()?.fetch(block, generation)
    }

    fn flush(&self) -> Result<()> {
        self.here()?.flush()
    }

    fn mark(&self, epoch: u64, mark: Mark) -> Result<()> {
        self.here()?.mark(epoch, mark)
    }

    fn usage(&self) -> Usage {
        self.target.usage()
    }
}

#[test]
fn a_target_that_goes_away_is_left_alone_until_it_returns() {
    for role in Role::HALVES {
        let world = World::new();
        let gone = Arc::new(AtomicBool::new(false));
        let targets = Role::HALVES.map(|each| -> Arc<dyn Target> {
            let target = world.store(each);
            if each == role {
                let gone = Arc::clone(&gone);
                Arc::new(Unreliable { target, gone })
            } else {
                target
            }
        });
        let volume = Volume::open(targets.to_vec()).unwrap();
        let mut shadow = fill(&volume, 1);
        gone.store(true, Ordering::Relaxed);
        expect(&volume, &shadow);
        volume.write(offset(3), &content(3, 3)).unwrap();
        shadow[3] = 3;
        volume.flush().unwrap();
        let absent = volume.status().targets[role.index()].absent.clone();
        assert!(absent.contains("reset"), "{absent}");
        gone.store(false, Ordering::Relaxed);
        volume.attach(Arc::clone(&targets[role.index()])).unwrap();
        assert_eq!(volume.rebuild(role).unwrap(), 1);
        expect(&volume, &shadow);
        // With a second target gone there are errors, and no other data.
        let left = Role::HALVES.map(|other| (other != role).then_some(other));
        for other in left.into_iter().flatten() {
            volume.detach(other, "the test says so");
        }
        let mut bytes = vec![0; BLOCK];
        assert!(volume.read(0, &mut bytes).is_err());
        assert!(volume.write(0, &bytes).is_err());
        assert!(volume.flush().is_err());
        drop((volume, targets));
        expect_each(&world, &shadow);
    }
}
