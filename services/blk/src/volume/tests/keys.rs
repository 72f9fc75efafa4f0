//! Tests of encrypted volumes: what the targets hold, which key file opens them, rotation, and what takes no harm from it.

use super::*;
use crate::encryption::{KeyFile, Wrapping};
use std::io::Write as _;

pub(super) fn key(text: &str) -> KeyFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    KeyFile::read(file.path()).unwrap()
}

fn old() -> KeyFile {
    key("the key of the creation")
}

fn new() -> KeyFile {
    key("the key that replaces it")
}

impl World {
    /// Three targets of an encrypted volume.
    fn encrypted() -> Self {
        let world = Self::new();
        let wrapping = old().new_wrapping(Id([5; 16])).unwrap();
        for role in Role::HALVES {
            let store = world.store(role);
            store.mark(0, Mark::Wrapping(wrapping)).unwrap();
        }
        world
    }

    fn open_by(&self, key: &KeyFile, absent: Option<Role>) -> Result<Volume> {
        let present = Role::HALVES
            .into_iter()
            .filter(|role| Some(*role) != absent);
        Volume::open_with(present.map(|role| self.store(role)).collect(), Some(key))
    }

    fn wrappings(&self) -> [Option<Wrapping>; 3] {
        Role::HALVES.map(|role| self.store(role).identity().wrapping)
    }

    /// Puts an empty disk in the place of a target.
    fn renew(&self, role: Role, wrapping: Option<Wrapping>) -> Arc<dyn Target> {
        let disk = &self.disks[role.index()];
        disk.bytes.write(0, &vec![0; COPY]).unwrap();
        let new = new_target(role, false);
        let store = Store::create(&role.to_string(), Box::new(disk.clone()), new, None).unwrap();
        if let Some(wrapping) = wrapping {
            store.mark(0, Mark::Wrapping(wrapping)).unwrap();
        }
        Arc::new(store)
    }

    /// True if a disk has these bytes somewhere.
    fn shows(&self, pattern: &[u8]) -> bool {
        self.disks.iter().any(|disk| {
            let mut bytes = vec![0; COPY];
            disk.bytes.read(0, &mut bytes).unwrap();
            bytes.windows(pattern.len()).any(|found| found == pattern)
        })
    }
}

fn error(opened: Result<Volume>) -> String {
    opened.expect_err("it is refused").to_string()
}

#[test]
fn targets_of_an_encrypted_volume_show_nothing_and_give_everything_back() {
    let pattern: Vec<u8> = (0..32u8).map(|at| at.wrapping_mul(37) ^ 0x5a).collect();
    let block: Vec<u8> = pattern.iter().copied().cycle().take(BLOCK).collect();
    // Versions 1 and 3: one that compresses, one that does not.
    for version in [1, 3] {
        let (plain, world) = (World::new(), World::encrypted());
        let volume = plain.open();
        fill(&volume, version);
        volume.write(offset(9), &block).unwrap();
        let noise = &content(4, 3)[8..16];
        assert!(plain.shows(&pattern[..12]), "the pattern can be found");
        assert!(version == 1 || plain.shows(noise));
        let volume = world.open_by(&old(), None).unwrap();
        let mut shadow = fill(&volume, version);
        assert!(volume.status().encrypted);
        volume.write(offset(9), &block).unwrap();
        let mut bytes = vec![0; BLOCK];
        volume.read(offset(9), &mut bytes).unwrap();
        assert!(bytes == block);
        assert!(!world.shows(&pattern[..12]) && !world.shows(noise));
        volume.write(offset(9), &content(9, version + 3)).unwrap();
        shadow[9] = version + 3;
        expect(&volume, &shadow);
        drop(volume);
        for absent in Role::HALVES {
            let world = world.copy();
            let volume = world.open_by(&old(), Some(absent)).unwrap();
            expect(&volume, &shadow);
            volume.attach(world.store(absent)).unwrap();
            let report = volume.scrub().unwrap();
            assert_eq!((report.bad_halves, report.lost_blocks), (0, 0));
        }
        let seen = Volume::inspect(Role::HALVES.map(|role| world.store(role)).to_vec());
        assert!(seen.unwrap().encrypted, "without the key");
    }
}

/// The same bytes at another block, or in another version of one, are stored as other bytes.
#[test]
fn equal_blocks_and_versions_are_stored_as_other_bytes() {
    let world = World::encrypted();
    let volume = world.open_by(&old(), None).unwrap();
    let bytes = content(1, 3);
    let mut seen = Vec::new();
    for block in [1, 2, 1] {
        volume.write(offset(block), &bytes).unwrap();
        let state = volume.state(block);
        let target = volume.target(Role::FIRST).unwrap();
        seen.push(target.fetch(block, state.generation).unwrap().data);
    }
    seen.push(bytes[..BLOCK / 2].to_vec().into());
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 4);
}

/// Blocks of 64 bytes that LZ4 makes shorter than a block of AES are stored as they are.
#[test]
fn short_blocks_come_back() {
    let wrapping = old().new_wrapping(Id([9; 16])).unwrap();
    let targets = Role::HALVES.map(|role| -> Arc<dyn Target> {
        let new = NewTarget {
            geometry: Geometry::new(64, 64).unwrap(),
            role,
            volume: Id([9; 16]),
            complete: true,
        };
        let medium = Box::new(MemoryMedium::default());
        let store = Store::create(&role.to_string(), medium, new, None).unwrap();
        store.mark(0, Mark::Wrapping(wrapping)).unwrap();
        Arc::new(store)
    });
    let volume = Volume::open_with(targets.to_vec(), Some(&old())).unwrap();
    // The more equal bytes, the shorter.
    let block = |at: u8| -> Vec<u8> { (0..64).map(|byte| byte.min(at)).collect() };
    for at in 0..64 {
        volume.write(u64::from(at) * 64, &block(at)).unwrap();
    }
    volume.write_zeroes(64, 64, true).unwrap();
    for at in 0..64 {
        let mut bytes = [1; 64];
        volume.read(u64::from(at) * 64, &mut bytes).unwrap();
        let expect = if at == 1 { vec![0; 64] } else { block(at) };
        assert!(bytes == *expect, "{at}");
    }
    assert_eq!(volume.scrub().unwrap().bad_halves, 0);
}

#[test]
fn another_key_file_none_and_a_needless_one_are_refused() {
    let (plain, world) = (World::new(), World::encrypted());
    let before = world.wrappings();
    for (fault, expect) in [
        (error(world.open_by(&new(), None)), "is not that of volume"),
        (
            error(Volume::open(
                Role::HALVES.map(|role| world.store(role)).to_vec(),
            )),
            "is encrypted: give --key-file FILE",
        ),
        (
            error(plain.open_by(&old(), None)),
            "is not encrypted: leave --key-file out",
        ),
    ] {
        assert!(fault.contains(expect) && !fault.contains('\n'), "{fault}");
    }
    assert_eq!(world.wrappings(), before);
    assert_eq!(
        world.store(Role::FIRST).identity().epoch,
        0,
        "nothing was changed"
    );
    let plain = plain.open();
    let fault = plain.rotate_key(&new()).unwrap_err().to_string();
    assert!(fault.contains("it has no key"), "{fault}");
}

/// Targets with one identifier, of which some are encrypted, or by another key.
#[test]
fn targets_with_other_keys_are_refused() {
    for role in Role::HALVES {
        let (one, other, plain) = (World::encrypted(), World::encrypted(), World::new());
        let volume = one.open_by(&old(), Some(role)).unwrap();
        let fault = volume.attach(other.store(role)).unwrap_err().to_string();
        assert!(
            fault.contains("each is encrypted by another key"),
            "{fault}"
        );
        let fault = volume.attach(plain.store(role)).unwrap_err().to_string();
        assert!(fault.contains("only the first one is encrypted"), "{fault}");
        volume.attach(one.store(role)).unwrap();
        drop(volume);
        for (wrong, expect) in [(&other, "another key"), (&plain, "one is encrypted")] {
            let targets = Role::HALVES.map(|at| match at == role {
                true => wrong.store(at),
                false => one.store(at),
            });
            let fault = error(Volume::open_with(targets.to_vec(), Some(&old())));
            assert!(fault.contains(expect), "{fault}");
        }
        let volume = plain.open_without(Some(role));
        let fault = volume.attach(one.store(role)).unwrap_err().to_string();
        assert!(
            fault.contains("only the second one is encrypted"),
            "{fault}"
        );
        let wrapping = one.wrappings()[0];
        let fault = volume.attach(plain.copy().renew(role, wrapping));
        let fault = fault.unwrap_err().to_string();
        assert!(
            fault.contains("only the second one is encrypted"),
            "{fault}"
        );
    }
}

/// A rotation that is killed at any write leaves a volume that one of both keys opens, and the opening ends it.
#[test]
fn a_rotation_that_is_killed_leaves_the_old_key_or_the_new_one() {
    let first = World::encrypted();
    let shadow = fill(&first.open_by(&old(), None).unwrap(), 3);
    let mut ends = [0; 2];
    for writes in 0..8 {
        for absent in [None, Some(Role::FIRST), Some(Role::PARITY)] {
            let world = first.copy();
            let volume = world.open_by(&old(), None).unwrap();
            // Each copy of the disks has its own count.
            for disk in &world.disks {
                disk.writes_left.store(2, Ordering::Relaxed);
            }
            for (disk, left) in world.disks.iter().zip(kills(writes)) {
                disk.writes_left.store(left, Ordering::Relaxed);
            }
            let done = volume.rotate_key(&new());
            drop(volume);
            for disk in &world.disks {
                disk.writes_left.store(u64::MAX, Ordering::Relaxed);
            }
            let by = [old(), new()].map(|key| world.copy().open_by(&key, absent).is_ok());
            assert!(by[0] != by[1], "{writes}, {absent:?}: {by:?}");
            assert!(
                by[1] || done.is_err(),
                "{writes}: a rotation that was successful"
            );
            ends[usize::from(by[1])] += 1;
            let key = if by[1] { new() } else { old() };
            let volume = world.open_by(&key, absent).unwrap();
            if let Some(absent) = absent {
                volume.attach(world.store(absent)).unwrap();
            }
            expect(&volume, &shadow);
            drop(volume);
            let [one, two, three] = world.wrappings();
            assert!(one == two && two == three, "{writes}, {absent:?}");
            expect(&world.open_by(&key, None).unwrap(), &shadow);
        }
    }
    assert!(ends[0] > 0 && ends[1] > 0, "{ends:?}");
}

/// Writes that each disk may still do: a rotation writes two superblocks of each in turn.
fn kills(writes: u64) -> [u64; 3] {
    [0, 2, 4].map(|before| writes.saturating_sub(before).min(2))
}

/// A target that is absent during a rotation gets the wrapping when it returns, or at the next opening. The old key opens the
/// volume on no two targets.
#[test]
fn a_target_that_was_absent_gets_the_new_wrapping() {
    for absent in Role::HALVES {
        for returns in [false, true] {
            let world = World::encrypted();
            let volume = world.open_by(&old(), None).unwrap();
            let shadow = fill(&volume, 1);
            volume.detach(absent, "it was restarted");
            volume.rotate_key(&new()).unwrap();
            let has_old = |one: &&Option<Wrapping>| one.unwrap().revision == 1;
            assert_eq!(world.wrappings().iter().filter(has_old).count(), 1);
            if returns {
                volume.attach(world.store(absent)).unwrap();
            }
            drop(volume);
            for left_out in Role::HALVES {
                let world = world.copy();
                let fault = error(world.open_by(&old(), Some(left_out)));
                assert!(fault.contains("is not that of volume"), "{fault}");
                let volume = world.open_by(&new(), Some(left_out)).unwrap();
                expect(&volume, &shadow);
            }
            drop(world.open_by(&new(), None).unwrap());
            let [one, two, three] = world.wrappings();
            assert!(one == two && two == three);
        }
    }
}

/// Neither copy of a superblock has the wrapping of before.
#[test]
fn a_rotation_leaves_nothing_of_the_old_wrapping() {
    let world = World::encrypted();
    let volume = world.open_by(&old(), None).unwrap();
    let before = world.wrappings()[0].unwrap();
    assert!(world.shows(&before.wrapped));
    volume.rotate_key(&new()).unwrap();
    assert!(!world.shows(&before.wrapped));
}

/// A new target of an encrypted volume is a plain one until it has a place.
#[test]
fn a_new_target_gets_the_wrapped_key() {
    for role in Role::HALVES {
        let world = World::encrypted();
        let volume = world.open_by(&old(), None).unwrap();
        let shadow = fill(&volume, 3);
        volume.detach(role, "its disk is lost");
        volume.replace(world.renew(role, None)).unwrap();
        volume.rebuild(role).unwrap();
        drop(volume);
        let [one, two, three] = world.wrappings();
        assert!(one.is_some() && one == two && two == three);
        for absent in Role::HALVES {
            expect(
                &world.copy().open_by(&old(), Some(absent)).unwrap(),
                &shadow,
            );
        }
    }
}

/// A merge of layers moves blocks to other places, where they are encrypted for these.
#[test]
fn snapshots_of_an_encrypted_volume_are_read_and_merged() {
    let world = World::encrypted();
    let disks = Role::HALVES.map(|role| {
        let disk = &world.disks[role.index()];
        disk.bytes.write(0, &vec![0; COPY]).unwrap();
        let shape = Shape::that_grows(new_target(role, true).geometry);
        let disk: Box<dyn Medium> = Box::new(Disk::clone(disk));
        let store = Store::create_with("disk", disk, new_target(role, true), shape, None);
        store.unwrap()
    });
    let wrapping = old().new_wrapping(Id([5; 16])).unwrap();
    let targets = disks.map(|store| -> Arc<dyn Target> {
        store.mark(0, Mark::Wrapping(wrapping)).unwrap();
        Arc::new(store)
    });
    let volume = Arc::new(Volume::open_with(targets.to_vec(), Some(&old())).unwrap());
    let first = fill(&volume, 3);
    volume.create_snapshot("first", false).unwrap();
    let mut shadow = first.clone();
    for block in [2, 5, 11] {
        volume.write(offset(block), &content(block, 4)).unwrap();
        shadow[usize::try_from(block).unwrap()] = 4;
    }
    let snapshot = volume.snapshot("first").unwrap();
    let mut bytes = vec![0; BLOCK];
    for block in [2, 5, 7] {
        crate::Disk::read(&snapshot, offset(block), &mut bytes).unwrap();
        assert!(bytes == content(block, 3));
    }
    expect(&volume, &shadow);
    drop(snapshot);
    volume.delete_snapshot("first").unwrap();
    while volume.merge().unwrap() == Merge::Going {}
    expect(&volume, &shadow);
    assert_eq!(volume.scrub().unwrap().bad_halves, 0);
    let identity = targets[0].identity();
    drop((volume, targets));
    let again = world.store(Role::FIRST).identity();
    assert_eq!(again.wrapping, identity.wrapping, "with layers, too");
    expect(&world.open_by(&old(), None).unwrap(), &shadow);
}
