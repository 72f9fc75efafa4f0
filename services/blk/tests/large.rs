//! Volumes of 16 TiB in files with holes: what an opening reads and keeps, and growth.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use xgvmi_blk::store::{FileMedium, Medium, NewTarget, Shape};
use xgvmi_blk::{Geometry, Id, Role, Store, Target, Volume};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 1 << 32;
/// Groups in change, so that most of what is written is in the settled index.
const SLOTS: u64 = 64;
/// Blocks between two that are written: each is in a unit of its own.
const APART: u64 = 1_000_003;

/// A file that counts the bytes that are read.
struct Counted {
    file: FileMedium,
    read: Arc<AtomicU64>,
}

impl Medium for Counted {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.file.read(offset, bytes)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        // Nothing loses power here.
        Ok(())
    }

    fn release(&self, offset: u64, length: u64) {
        self.file.release(offset, length);
    }

    fn syncs_at_once(&self) -> bool {
        true
    }
}

fn create(dir: &Path) {
    for role in Role::HALVES {
        create_one(dir, role, true);
    }
}

fn create_one(dir: &Path, role: Role, complete: bool) {
    let new = NewTarget {
        geometry: Geometry::new(u32::try_from(BLOCK).unwrap(), BLOCKS).unwrap(),
        role,
        volume: Id([3; 16]),
        complete,
    };
    let shape = Shape {
        room: BLOCKS,
        slots: SLOTS,
    };
    let file = FileMedium::create(&dir.join(role.to_string()), false).unwrap();
    Store::create_with("large", Box::new(file), new, shape, None).unwrap();
}

/// Opens some targets. Returns the bytes that were read meanwhile.
fn open(dir: &Path, roles: &[Role]) -> (Volume, u64) {
    let read = Arc::new(AtomicU64::new(0));
    let targets = roles.iter().map(|role| target(dir, *role, &read));
    let volume = Volume::open(targets.collect()).unwrap();
    let read = read.load(Ordering::Relaxed);
    (volume, read)
}

fn target(dir: &Path, role: Role, read: &Arc<AtomicU64>) -> Arc<dyn Target> {
    let medium = Counted {
        file: FileMedium::open(&dir.join(role.to_string())).unwrap(),
        read: Arc::clone(read),
    };
    Arc::new(Store::open(&role.to_string(), Box::new(medium), None).unwrap())
}

fn content(block: u64) -> Vec<u8> {
    let words = (0..BLOCK / 8).map(|word| (block << 16 | word).to_le_bytes());
    words.flatten().collect()
}

fn write(volume: &Volume, numbers: impl Iterator<Item = u64>) {
    for number in numbers {
        let block = number * APART % BLOCKS;
        volume.write(block * BLOCK, &content(block)).unwrap();
        if number % 32 == 31 {
            volume.flush().unwrap();
        }
    }
}

#[track_caller]
fn expect(volume: &Volume, numbers: impl Iterator<Item = u64>) {
    let mut bytes = vec![0; usize::try_from(BLOCK).unwrap()];
    for number in numbers {
        let block = number * APART % BLOCKS;
        volume.read(block * BLOCK, &mut bytes).unwrap();
        assert!(bytes == content(block), "block {block}");
    }
}

/// Bytes of memory of this process.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// After a clean end an opening of 2^32 blocks reads the same bytes, however many are stored; after a kill, what has changed
/// since. It never reads the index as a whole, which has 92 GiB.
#[test]
fn an_opening_reads_what_has_changed_since_the_end() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path());
    let (volume, empty) = open(dir.path(), &Role::HALVES);
    assert_eq!(volume.geometry().size(), 16 << 40);
    write(&volume, 0..150);
    volume.close().unwrap();
    drop(volume);
    let (volume, few) = open(dir.path(), &Role::HALVES);
    expect(&volume, 0..150);
    write(&volume, 150..500);
    volume.close().unwrap();
    drop(volume);
    let before = resident();
    let (volume, many) = open(dir.path(), &Role::HALVES);
    let grown = resident().saturating_sub(before);
    assert!(grown < 128 << 20, "{grown} bytes for an opening");
    // Three times map and groups in change. Of those that are still in change the records are read.
    assert!(many < empty + (8 << 20), "{empty}, {few}, {many}");
    assert!(many < 48 << 20, "{many}");
    // A kill.
    write(&volume, 500..510);
    volume.flush().unwrap();
    drop(volume);
    let (volume, killed) = open(dir.path(), &Role::HALVES);
    assert!(killed < many + (16 << 20), "{many}, {killed}");
    expect(&volume, 0..510);
    assert_eq!(volume.status().lost_blocks, 0);
    let report = volume.scrub().unwrap();
    assert_eq!((report.blocks, report.bad_halves), (510, 0), "{report:?}");
}

/// A target that was away is compared only where something has changed, also if the volume was opened without it.
#[test]
fn a_target_that_returns_gets_what_has_changed() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path());
    let (volume, _) = open(dir.path(), &Role::HALVES);
    write(&volume, 0..300);
    volume.close().unwrap();
    drop(volume);
    let (volume, _) = open(dir.path(), &[Role::FIRST, Role::PARITY]);
    write(&volume, 290..320);
    volume.close().unwrap();
    drop(volume);
    let (volume, _) = open(dir.path(), &[Role::FIRST, Role::PARITY]);
    let read = Arc::new(AtomicU64::new(0));
    let returned = target(dir.path(), Role::SECOND, &read);
    volume.attach(returned).unwrap();
    assert_eq!(volume.missing_blocks(Role::SECOND), 30);
    let looked = read.load(Ordering::Relaxed);
    assert!(looked < 32 << 20, "{looked} bytes of the index");
    assert_eq!(volume.rebuild(Role::SECOND).unwrap(), 30);
    volume.close().unwrap();
    drop(volume);
    for absent in Role::HALVES {
        let roles: Vec<Role> = Role::HALVES
            .into_iter()
            .filter(|role| *role != absent)
            .collect();
        let (volume, _) = open(dir.path(), &roles);
        expect(&volume, 0..320);
    }
}

/// A new target of such a volume reads, and keeps, what the stored blocks need.
#[test]
fn a_new_target_costs_what_is_stored() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path());
    let mut costs = Vec::new();
    let mut written = 0;
    for number in [100, 400] {
        let (volume, _) = open(dir.path(), &Role::HALVES);
        write(&volume, written..number);
        written = number;
        volume.close().unwrap();
        drop(volume);
        let read = Arc::new(AtomicU64::new(0));
        let others = [Role::FIRST, Role::PARITY].map(|role| target(dir.path(), role, &read));
        let volume = Volume::open(others.into()).unwrap();
        std::fs::remove_file(dir.path().join(Role::SECOND.to_string())).unwrap();
        create_one(dir.path(), Role::SECOND, false);
        let (resident, opened) = (resident(), read.load(Ordering::Relaxed));
        volume
            .attach(target(dir.path(), Role::SECOND, &read))
            .unwrap();
        assert_eq!(volume.missing_blocks(Role::SECOND), number);
        assert_eq!(volume.rebuild(Role::SECOND).unwrap(), number);
        let grown = self::resident().saturating_sub(resident);
        assert!(grown < 128 << 20, "{grown} bytes for {number} blocks");
        costs.push(read.load(Ordering::Relaxed) - opened);
        volume.close().unwrap();
        drop(volume);
        let (volume, _) = open(dir.path(), &[Role::SECOND, Role::PARITY]);
        expect(&volume, 0..number);
    }
    let [few, many] = costs[..] else {
        unreachable!("two numbers")
    };
    // Pages of the index, and records: far less than the index, which has 92 GiB.
    let of_block = (many.saturating_sub(few)) / 300;
    assert!(
        of_block < 64 << 10,
        "{few}, {many}: {of_block} bytes a block"
    );
    assert!(few < 96 << 20, "{few}");
}

/// Space between records of earlier processes is found when there is no other.
#[test]
fn space_of_earlier_processes_is_used_again() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path());
    let (volume, _) = open(dir.path(), &Role::HALVES);
    write(&volume, 0..300);
    for number in 0..150 {
        volume.trim(number * APART % BLOCKS * BLOCK, BLOCK).unwrap();
    }
    volume.flush().unwrap();
    volume.close().unwrap();
    let used = volume.used(Role::FIRST).unwrap();
    drop(volume);
    // As much as the rest needs, and half of what was freed.
    let read = Arc::new(AtomicU64::new(0));
    let limited = Role::HALVES.map(|role| -> Arc<dyn Target> {
        let medium = Counted {
            file: FileMedium::open(&dir.path().join(role.to_string())).unwrap(),
            read: Arc::clone(&read),
        };
        let capacity = Some(used + used / 2);
        Arc::new(Store::open(&role.to_string(), Box::new(medium), capacity).unwrap())
    });
    let volume = Volume::open(limited.to_vec()).unwrap();
    write(&volume, 0..60);
    expect(&volume, (0..60).chain(150..300));
    assert_eq!(volume.status().lost_blocks, 0);
}

/// A volume grows while it is in use. A target that was away grows when it returns. No volume becomes smaller, and none
/// exceeds the room of its index.
#[test]
fn a_volume_grows_and_never_shrinks() {
    let dir = tempfile::tempdir().unwrap();
    for role in Role::HALVES {
        let new = NewTarget {
            geometry: Geometry::new(4096, 100).unwrap(),
            role,
            volume: Id([3; 16]),
            complete: true,
        };
        Store::create_file(&dir.path().join(role.to_string()), new, None).unwrap();
    }
    let (volume, _) = open(dir.path(), &Role::HALVES);
    volume.write(99 * BLOCK, &content(99)).unwrap();
    volume.write(100 * BLOCK, &content(100)).unwrap_err();
    volume.detach(Role::SECOND, "the test says so");
    assert_eq!(volume.grow(200 * BLOCK).unwrap().blocks(), 200);
    volume.write(199 * BLOCK, &content(199)).unwrap();
    let error = volume.grow(199 * BLOCK).unwrap_err().to_string();
    assert!(error.contains("no volume becomes smaller"), "{error}");
    let error = volume.grow(16 << 40).unwrap_err().to_string();
    assert!(
        error.contains("its index has room for 65536 blocks"),
        "{error}"
    );
    assert_eq!(volume.geometry().blocks(), 200, "it stays as it was");
    volume.flush().unwrap();
    drop(volume);
    // Opened by one target that has grown and one that has not.
    let (volume, _) = open(dir.path(), &[Role::FIRST, Role::SECOND]);
    assert_eq!(volume.geometry().blocks(), 200);
    drop(volume);
    let (volume, _) = open(dir.path(), &Role::HALVES);
    for block in [99, 199] {
        let mut bytes = vec![0; usize::try_from(BLOCK).unwrap()];
        volume.read(block * BLOCK, &mut bytes).unwrap();
        assert!(bytes == content(block), "block {block}");
    }
    let mut bytes = vec![7; usize::try_from(BLOCK).unwrap()];
    volume.read(150 * BLOCK, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0));
}
