//! Tests of index entries that cannot be read, of smaller limits of space, and of blocks that are lost for good.

use super::*;

/// Where the first entry of the first group is, and the bytes of an entry.
const INDEX_AT: u64 = 2 * 4096 + 8;
const ENTRY: usize = 63;
const BLOCK_AT: usize = 6;

/// A way to spoil the entry of a block.
#[derive(Debug, Clone, Copy)]
enum Damage {
    Bit(usize),
    Zeros,
    /// The same with its whole group.
    Sector,
    /// The file ends before the entry.
    Truncated,
    /// A write of 4 KiB of which the second half has arrived as zeros.
    Torn,
}

impl World {
    fn damage(&mut self, role: Role, damage: Damage) {
        let disk = &mut self.disks[role.index()];
        let entry = INDEX_AT + (BLOCK_AT * ENTRY) as u64;
        match damage {
            Damage::Bit(bit) => {
                let at = entry + bit as u64 / 8;
                let mut byte = [0];
                disk.bytes.read(at, &mut byte).unwrap();
                disk.bytes.write(at, &[byte[0] ^ 1 << (bit % 8)]).unwrap();
            }
            Damage::Zeros => disk.bytes.write(entry, &[0; ENTRY]).unwrap(),
            Damage::Sector => disk.bytes.write(INDEX_AT - 8, &[0; 512]).unwrap(),
            Damage::Truncated => {
                let mut start = vec![0; usize::try_from(entry).unwrap()];
                disk.bytes.read(0, &mut start).unwrap();
                let bytes = MemoryMedium::default();
                bytes.write(0, &start).unwrap();
                disk.bytes = Arc::new(bytes);
            }
            Damage::Torn => disk.bytes.write(entry, &[0; 2048]).unwrap(),
        }
    }
}

/// Reads all blocks that are not damaged; they are right. Returns the errors of the others.
#[track_caller]
fn read_others(volume: &Volume, shadow: &[u64], what: &str) -> usize {
    let mut errors = 0;
    for (block, version) in (0..).zip(shadow) {
        let mut bytes = vec![0xaa; BLOCK];
        match volume.read(offset(block), &mut bytes) {
            Ok(()) => assert!(
                bytes == content(block, *version),
                "{what}: block {block} has other data"
            ),
            Err(error) => {
                assert!(matches!(error, BlkError::Lost { .. }), "{what}: {error}");
                errors += 1;
            }
        }
    }
    errors
}

/// With the third target absent, a block whose entry is damaged at one of the two others is an error and never zeros or
/// other data. With all three it is there, and whole at each of them afterwards.
#[test]
fn a_damaged_entry_is_never_read_as_zeros() {
    let world = World::new();
    let volume = world.open();
    let mut shadow = fill(&volume, 3);
    // One that was never written, behind the damaged one.
    volume.trim(offset(20), BLOCK as u64).unwrap();
    shadow[20] = 0;
    volume.flush().unwrap();
    drop(volume);
    let bits = (0..63 * 8).step_by(83).map(Damage::Bit);
    let damages = bits.chain([
        Damage::Zeros,
        Damage::Sector,
        Damage::Truncated,
        Damage::Torn,
    ]);
    for damage in damages {
        for (role, absent) in Role::HALVES
            .into_iter()
            .flat_map(|role| Role::HALVES.map(|absent| (role, absent)))
            .filter(|(role, absent)| role != absent)
        {
            let what = format!("{damage:?} at {role} without {absent}");
            let mut world = world.copy();
            world.damage(role, damage);
            let entries = match damage {
                Damage::Bit(_) | Damage::Zeros => 1,
                Damage::Sector => 8,
                Damage::Truncated | Damage::Torn => shadow.len() - BLOCK_AT,
            };
            let volume = world.open_without(Some(absent));
            assert_eq!(volume.status().damaged_entries, entries as u64, "{what}");
            assert_eq!(volume.status().lost_blocks, entries as u64, "{what}");
            // A file that was cut has no records either.
            let errors = match damage {
                Damage::Truncated => shadow.len(),
                _ => entries,
            };
            assert_eq!(read_others(&volume, &shadow, &what), errors, "{what}");
            let report = volume.scrub().unwrap();
            assert_eq!(report.damaged_entries, entries as u64, "{what}");
            // The third one returns to the running volume.
            volume.attach(world.store(absent)).unwrap();
            assert_eq!(read_others(&volume, &shadow, &what), 0, "{what}");
            volume.rebuild(role).unwrap();
            assert_eq!(volume.scrub().unwrap().lost_blocks, 0, "{what}");
            drop(volume);
            expect_each(&world, &shadow);
        }
    }
}

/// A block that was never written and whose entry is damaged is an error until the third target returns, also if the damaged
/// target has left then, and after a rebuild.
#[test]
fn a_returned_target_decides_about_damage_that_has_left() {
    for leaves in [false, true] {
        let mut world = World::new();
        drop(world.open());
        world.damage(Role::FIRST, Damage::Sector);
        let volume = world.open_without(Some(Role::SECOND));
        let shadow = vec![0; usize::try_from(BLOCKS).unwrap()];
        assert_eq!(read_others(&volume, &shadow, "two"), 8);
        volume.rebuild(Role::FIRST).unwrap();
        volume.rebuild(Role::PARITY).unwrap();
        assert_eq!(read_others(&volume, &shadow, "rebuilt"), 8);
        if leaves {
            volume.detach(Role::FIRST, "it was stopped");
        }
        volume.attach(world.store(Role::SECOND)).unwrap();
        expect(&volume, &shadow);
        drop(volume);
        // Repairs the one that has left.
        expect(&world.open(), &shadow);
        expect_each(&world, &shadow);
    }
}

/// Damage at all opened together: the two intact targets decide, also that a block was never written.
#[test]
fn two_intact_entries_are_enough() {
    for role in Role::HALVES {
        for version in [0, 3] {
            let mut world = World::new();
            let mut shadow = fill(&world.open(), version);
            world.damage(role, Damage::Zeros);
            let volume = world.open();
            expect(&volume, &shadow);
            assert_eq!(volume.scrub().unwrap().damaged_entries, 1);
            volume.write(offset(2), &content(2, 4)).unwrap();
            shadow[2] = 4;
            volume.flush().unwrap();
            drop(volume);
            expect_each(&world, &shadow);
            assert_eq!(world.open().status().damaged_entries, 0, "it was repaired");
        }
    }
}

/// A crash while a block with a damaged entry is written does not hide the damage.
#[test]
fn damage_outlives_a_write_that_did_not_end() {
    for writes in 0..8 {
        let mut world = World::new();
        fill(&world.open(), 3);
        world.damage(Role::FIRST, Damage::Zeros);
        // The second target never had it: an export without it wrote the block.
        let mut old = World::new();
        old.disks[1].bytes = Arc::clone(&World::new().disks[1].bytes);
        world.disks[1].bytes = Arc::clone(&old.disks[1].bytes);
        let volume = world.open_without(Some(Role::PARITY));
        world.writes_left.store(writes, Ordering::Relaxed);
        let at = offset(BLOCK_AT as u64);
        let _ = volume.write(at, &content(BLOCK_AT as u64, 4));
        drop(volume);
        world.writes_left.store(u64::MAX, Ordering::Relaxed);
        let volume = world.open_without(Some(Role::PARITY));
        let mut bytes = vec![0; BLOCK];
        match volume.read(at, &mut bytes) {
            Ok(()) => assert!(bytes == content(BLOCK_AT as u64, 4), "{writes}"),
            Err(error) => assert!(matches!(error, BlkError::Lost { .. }), "{error}"),
        }
    }
}

/// A smaller limit than before allows no further data, and hides none.
#[test]
fn a_smaller_capacity_hides_nothing() {
    let mut world = World::new();
    let mut shadow = fill(&world.open(), 3);
    world.capacity = Some(640);
    let volume = world.open();
    expect(&volume, &shadow);
    let error = volume.write(offset(2), &content(2, 6)).unwrap_err();
    assert!(error.is_full(), "{error}");
    expect(&volume, &shadow);
    // Zeros take no space.
    volume.trim(offset(2), BLOCK as u64).unwrap();
    shadow[2] = 0;
    volume.flush().unwrap();
    drop(volume);
    expect_each(&world, &shadow);
    world.capacity = None;
    expect_each(&world, &shadow);
}

/// A new target is completed although a block is lost. Then two targets are enough, the block is still an error, and the
/// lost target brings it back.
#[test]
fn a_lost_block_does_not_keep_a_new_target_incomplete() {
    for version in [1, 3] {
        let world = World::new();
        let volume = world.open();
        for block in 0..BLOCKS {
            if block != 5 {
                let bytes = content(block, version);
                volume.write(offset(block), &bytes).unwrap();
            }
        }
        volume.flush().unwrap();
        drop(volume);
        // Block 5 is written without the first target. Then the second one is lost.
        let volume = world.open_without(Some(Role::FIRST));
        volume.write(offset(5), &content(5, version)).unwrap();
        volume.flush().unwrap();
        drop(volume);
        let volume = world.open_without(Some(Role::SECOND));
        let fresh = World::new();
        let disk = fresh.disks[1].clone();
        let new = new_target(Role::SECOND, false);
        let store = Store::create("new", Box::new(disk.clone()), new, None).unwrap();
        volume.attach(Arc::new(store)).unwrap();
        let mut bytes = vec![0; BLOCK];
        assert!(volume.read(offset(5), &mut bytes).is_err());
        assert_eq!(volume.rebuild(Role::SECOND).unwrap(), BLOCKS - 1);
        assert!(volume.is_complete(Role::SECOND));
        assert_eq!(volume.missing_blocks(Role::SECOND), 0);
        volume.rebuild(Role::FIRST).unwrap();
        drop(volume);
        let shadow = vec![version; usize::try_from(BLOCKS).unwrap()];
        let mut replaced = world.copy();
        replaced.disks[1] = disk;
        for absent in [None, Some(Role::FIRST), Some(Role::PARITY)] {
            let volume = replaced.copy().open_without(absent);
            assert_eq!(read_others(&volume, &shadow, &format!("{absent:?}")), 1);
        }
        // The target that was lost is found again.
        expect(&world.open(), &shadow);
    }
}
