//! Snapshots against shadow copies, through kills, absent and new targets, growth and deletion.

use super::super::Merge;
use super::*;
use crate::disk::Disk as _;
use crate::layers::Layers;

/// Three disks for a volume with an index of this shape.
fn world(shape: Shape) -> World {
    let world = World::new();
    for role in Role::HALVES {
        let disk = world.disks[role.index()].clone();
        world.disks[role.index()]
            .bytes
            .write(0, &vec![0; COPY])
            .unwrap();
        let new = new_target(role, true);
        Store::create_with(&role.to_string(), Box::new(disk), new, shape, None).unwrap();
    }
    world
}

/// Each group can be in change, or most of the index is settled.
const SHAPES: [Shape; 2] = [
    Shape {
        room: 640,
        slots: 80,
    },
    Shape {
        room: 640,
        slots: 16,
    },
];

/// A copy of the volume's bytes, a number for each block.
type Shadow = Vec<u64>;

fn check(read: impl Fn(u64, &mut [u8]) -> Result<()>, shadow: &Shadow, what: &str) {
    let mut bytes = vec![0; BLOCK];
    for (block, number) in shadow.iter().enumerate() {
        read(offset(block as u64), &mut bytes).unwrap_or_else(|error| panic!("{what}: {error}"));
        let right = match number {
            0 => vec![0; BLOCK],
            number => content(block as u64, *number),
        };
        let is = (0..600).find(|is| bytes == content(block as u64, *is));
        assert!(
            bytes == right,
            "{what}: block {block} is {is:?} and not {number}"
        );
    }
}

fn check_all(volume: &Arc<Volume>, live: &Shadow, snapshots: &[(String, Shadow)], what: &str) {
    check(|at, bytes| volume.read(at, bytes), live, what);
    for (name, shadow) in snapshots {
        let snapshot = volume.snapshot(name).unwrap();
        assert_eq!(snapshot.geometry().blocks(), shadow.len() as u64);
        let what = format!("{what}: snapshot {name}");
        check(|at, bytes| snapshot.read(at, bytes), shadow, &what);
    }
    let named = volume.snapshots().into_iter().map(|one| one.name);
    let named: Vec<String> = named.filter(|name| !name.is_empty()).collect();
    let known: Vec<String> = snapshots.iter().map(|(name, _)| name.clone()).collect();
    assert_eq!(named, known, "{what}");
}

fn merge_all(volume: &Volume) {
    for _ in 0..10_000 {
        if volume.merge().unwrap() == Merge::Done {
            return;
        }
    }
    panic!("the merge has no end");
}

fn run(seed: u64, shape: Shape) {
    let mut dice = fastrand::Rng::with_seed(seed);
    let world = world(shape);
    let mut volume = Arc::new(world.open());
    let mut live: Shadow = vec![0; usize::try_from(BLOCKS).unwrap()];
    let mut snapshots: Vec<(String, Shadow)> = Vec::new();
    let mut number = 0;
    for step in 0..120 {
        number += 1;
        let at = dice.usize(..live.len());
        let what = format!("seed {seed}, step {step}");
        match dice.u8(..20) {
            0..8 => {
                volume
                    .write(offset(at as u64), &content(at as u64, number))
                    .unwrap();
                live[at] = number;
            }
            8 => {
                volume.trim(offset(at as u64), BLOCK as u64).unwrap();
                live[at] = 0;
            }
            9 | 10 if snapshots.len() < 6 => {
                let name = format!("s{number}");
                volume.create_snapshot(&name, false).unwrap();
                snapshots.push((name, live.clone()));
            }
            11 if !snapshots.is_empty() => {
                let (name, _) = snapshots.remove(dice.usize(..snapshots.len()));
                volume.delete_snapshot(&name).unwrap();
            }
            12 | 13 => {
                let done = volume.merge().unwrap();
                assert!(!matches!(done, Merge::Stuck(_)));
            }
            14 => merge_all(&volume),
            15 => {
                // Killed.
                volume = Arc::new(world.open());
            }
            16 => {
                let absent = Role::HALVES[dice.usize(..3)];
                volume = Arc::new(world.open_without(Some(absent)));
                check_all(&volume, &live, &snapshots, &what);
                volume
                    .write(offset(at as u64), &content(at as u64, number))
                    .unwrap();
                live[at] = number;
                assert!(volume.create_snapshot("refused", false).is_err());
                if dice.bool() && snapshots.len() < 6 {
                    let name = format!("f{number}");
                    volume.create_snapshot(&name, true).unwrap();
                    snapshots.push((name, live.clone()));
                    volume
                        .write(offset(at as u64), &content(at as u64, number + 500))
                        .unwrap();
                    live[at] = number + 500;
                }
                volume.attach(world.store(absent)).unwrap();
                volume.rebuild(absent).unwrap();
            }
            17 => {
                volume.close().unwrap();
                volume = Arc::new(world.open());
            }
            18 if live.len() < 40 => {
                let blocks = live.len() as u64 + 4;
                volume.grow(offset(blocks)).unwrap();
                live.resize(live.len() + 4, 0);
            }
            19 => {
                volume.scrub().unwrap();
            }
            _ => volume.flush().unwrap(),
        }
        check_all(&volume, &live, &snapshots, &what);
    }
    for (name, _) in snapshots.drain(..) {
        volume.delete_snapshot(&name).unwrap();
    }
    merge_all(&volume);
    check_all(&volume, &live, &snapshots, "the end");
    let report = volume.scrub().unwrap();
    assert_eq!((report.lost_blocks, report.bad_halves), (0, 0));
    for absent in Role::HALVES {
        let volume = Arc::new(world.open_without(Some(absent)));
        check_all(&volume, &live, &[], "two targets");
    }
}

#[test]
fn a_snapshot_is_the_volume_as_it_was() {
    for shape in SHAPES {
        for seed in 0..5 {
            run(seed, shape);
        }
    }
}

/// A process that is killed at any write of a snapshot, a deletion or a merge leaves the volume and the other snapshots.
#[test]
fn a_kill_between_any_two_writes_changes_no_snapshot() {
    for shape in SHAPES {
        let prepared = world(shape);
        let volume = Arc::new(prepared.open());
        let mut live: Shadow = vec![0; usize::try_from(BLOCKS).unwrap()];
        let mut snapshots = Vec::new();
        for round in 0..3u64 {
            for block in 0..10 {
                let at = block * (round + 1) % BLOCKS;
                volume.write(offset(at), &content(at, 10 + round)).unwrap();
                live[usize::try_from(at).unwrap()] = 10 + round;
            }
            let name = format!("s{round}");
            volume.create_snapshot(&name, false).unwrap();
            snapshots.push((name, live.clone()));
        }
        volume.write(offset(3), &content(3, 77)).unwrap();
        live[3] = 77;
        volume.flush().unwrap();
        drop(volume);
        let (deleted, kept) = (1, [snapshots[0].clone(), snapshots[2].clone()]);
        let mut was_whole = false;
        // An odd number: all kinds of writes are met.
        for writes in (0..4000).step_by(5) {
            let world = prepared.copy();
            for disk in &world.disks {
                // All share one number.
                disk.writes_left.store(u64::MAX, Ordering::Relaxed);
            }
            let shared = Arc::new(AtomicU64::new(u64::MAX));
            let world = World {
                disks: world.disks.map(|disk| Disk {
                    writes_left: Arc::clone(&shared),
                    ..disk
                }),
                writes_left: Arc::clone(&shared),
                capacity: None,
            };
            let volume = Arc::new(world.open());
            shared.store(writes, Ordering::Relaxed);
            let name = &snapshots[deleted].0;
            let done = volume.create_snapshot("new", false);
            let made = done.is_ok();
            let done = done.and_then(|()| volume.delete_snapshot(name));
            let done = done.and_then(|()| {
                while volume.merge()? != Merge::Done {}
                Ok(())
            });
            was_whole = done.is_ok();
            drop(volume);
            shared.store(u64::MAX, Ordering::Relaxed);
            for absent in [
                None,
                Some(Role::FIRST),
                Some(Role::SECOND),
                Some(Role::PARITY),
            ] {
                let volume = Arc::new(world.open_without(absent));
                let what = format!("{writes} writes, without {absent:?}");
                check(|at, bytes| volume.read(at, bytes), &live, &what);
                for (name, shadow) in &kept {
                    let snapshot = volume.snapshot(name).unwrap();
                    check(|at, bytes| snapshot.read(at, bytes), shadow, &what);
                }
                let new = volume.snapshot("new");
                assert!(new.is_some() || !made, "{what}: it was answered");
                if let Some(new) = new {
                    check(|at, bytes| new.read(at, bytes), &live, &what);
                }
            }
            if was_whole {
                break;
            }
        }
        assert!(was_whole, "no run came to its end");
    }
}

/// A target that replaces another one gets the snapshots.
#[test]
fn a_new_target_gets_the_snapshots() {
    for (shape, role) in SHAPES.into_iter().zip([Role::FIRST, Role::PARITY]) {
        let world = world(shape);
        let volume = Arc::new(world.open());
        volume.write(offset(1), &content(1, 1)).unwrap();
        volume.create_snapshot("one", false).unwrap();
        volume.write(offset(1), &content(1, 2)).unwrap();
        let disk = Disk {
            bytes: Arc::default(),
            writes_left: Arc::clone(&world.writes_left),
        };
        let new = new_target(role, false);
        let small = Shape { room: 24, slots: 3 };
        let medium = || {
            Box::new(Disk {
                bytes: Arc::default(),
                ..disk.clone()
            })
        };
        let small = Store::create_with("small", medium(), new, small, None).unwrap();
        let error = volume.replace(Arc::new(small)).unwrap_err().to_string();
        assert!(error.contains("room for 24"), "{error}");
        let large = Store::create_with("new", Box::new(disk.clone()), new, shape, None).unwrap();
        volume.replace(Arc::new(large)).unwrap();
        volume.rebuild(role).unwrap();
        for other in Role::HALVES.into_iter().filter(|other| *other != role) {
            drop(volume.target(role).unwrap());
            volume.detach(other, "the test says so");
            let snapshot = volume.snapshot("one").unwrap();
            let mut bytes = vec![0; BLOCK];
            snapshot.read(offset(1), &mut bytes).unwrap();
            assert!(bytes == content(1, 1));
            volume.attach(world.store(other)).unwrap();
            volume.rebuild(other).unwrap();
        }
    }
}

#[test]
fn what_a_snapshot_must_not_be_is_refused() {
    let world = world(SHAPES[0]);
    let volume = Arc::new(world.open());
    volume.create_snapshot("one", false).unwrap();
    for name in ["one", "", "a b"] {
        assert!(volume.create_snapshot(name, true).is_err(), "{name}");
    }
    assert!(volume.delete_snapshot("two").is_err());
    let snapshot = volume.snapshot("one").unwrap();
    assert!(volume.snapshot("two").is_none());
    for refused in [
        snapshot.write(0, &[1; 512]),
        snapshot.trim(0, 512),
        snapshot.write_zeroes(0, 512, true),
        snapshot.read(offset(BLOCKS), &mut [0; 512]),
    ] {
        assert!(refused.is_err());
    }
    volume.delete_snapshot("one").unwrap();
    assert!(snapshot.read(0, &mut [0; 512]).is_err(), "it was deleted");
    // Without room there is a message that says what to do, and nothing changes.
    let world = World::new();
    let volume = Arc::new(world.open());
    let error = volume
        .create_snapshot("one", false)
        .unwrap_err()
        .to_string();
    assert!(error.contains("room for 24"), "{error}");
    assert!(volume.snapshots().is_empty());
}

/// A program that knows no snapshots refuses the targets of a volume that has, or had, some. Others it opens.
#[test]
fn the_format_says_that_there_are_layers() {
    let world = world(SHAPES[1]);
    let version = |role: Role| {
        let mut newest = (0, 0);
        for copy in 0..2 {
            let mut bytes = [0; 72];
            world.disks[role.index()]
                .bytes
                .read(copy * 4096, &mut bytes)
                .unwrap();
            let sequence = u64::from_be_bytes(*bytes.last_chunk().unwrap());
            newest = newest.max((sequence, bytes[11]));
        }
        newest.1
    };
    let volume = world.open();
    assert_eq!(Role::HALVES.map(version), [4; 3]);
    volume.create_snapshot("one", false).unwrap();
    assert_eq!(Role::HALVES.map(version), [5; 3]);
    // One of the two tables is damaged: the other one counts at this target, and the newest of all.
    for copy in 0..2 {
        world.disks[0]
            .bytes
            .write(copy * 4096 + 520, &[0xff; 8])
            .unwrap();
        let opened = world.open();
        assert_eq!(opened.snapshots().len(), 1);
    }
    for copy in 0..2 {
        world.disks[0]
            .bytes
            .write(copy * 4096 + 520, &[0xff; 8])
            .unwrap();
    }
    let disk = world.disks[0].clone();
    let error = Store::open("damaged", Box::new(disk), None).unwrap_err();
    assert!(error.to_string().contains("table of snapshots"), "{error}");
    assert_eq!(world.open_without(Some(Role::FIRST)).snapshots().len(), 1);
    assert!(Layers::default().is_empty());
}

/// Space comes back after a deletion, also on targets that are full.
#[test]
fn a_deleted_snapshot_gives_its_space_back() {
    let world = world(SHAPES[1]);
    let world = World {
        capacity: Some(24 * 1024),
        ..world
    };
    let volume = Arc::new(world.open());
    let noise = |seed: u64| {
        let mut dice = fastrand::Rng::with_seed(seed);
        let mut bytes = vec![0; BLOCK];
        dice.fill(&mut bytes);
        bytes
    };
    for block in 0..BLOCKS {
        volume.write(offset(block), &noise(block)).unwrap();
    }
    volume.create_snapshot("one", false).unwrap();
    let mut written = 0;
    let error = loop {
        match volume.write(offset(written), &noise(100 + written)) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 1000, "it is never full");
        if written == BLOCKS {
            let name = format!("s{}", volume.snapshots().len());
            volume.create_snapshot(&name, false).unwrap();
            written = 0;
        }
    };
    assert!(error.is_full(), "{error}");
    let names = volume.snapshots().into_iter().map(|one| one.name);
    for name in names.collect::<Vec<_>>() {
        volume.delete_snapshot(&name).unwrap();
    }
    merge_all(&volume);
    volume.flush().unwrap();
    volume.flush().unwrap();
    for block in 0..BLOCKS {
        volume.write(offset(block), &noise(200 + block)).unwrap();
        volume.flush().unwrap();
    }
    assert_eq!(volume.scrub().unwrap().lost_blocks, 0);
}
