//! Tests of sequences of openings, returns and losses of power.

use super::*;
use std::time::Duration;

impl World {
    /// The state of a target before a loss of power: what a copy had, which was made at the last flush.
    fn lose_power(&self, role: Role, durable: &Self) {
        let mut bytes = vec![0; COPY];
        durable.disks[role.index()]
            .bytes
            .read(0, &mut bytes)
            .unwrap();
        self.disks[role.index()].bytes.write(0, &bytes).unwrap();
    }
}

/// Targets that have returned and are not complete again do not keep a volume from opening: two of them have each
/// acknowledged write.
#[test]
fn targets_that_have_returned_open() {
    let world = World::new();
    let volume = world.open();
    let mut shadow = fill(&volume, 1);
    for role in Role::HALVES {
        volume.detach(role, "it was restarted");
        volume.attach(world.store(role)).unwrap();
        volume.write(offset(4), &content(4, 3)).unwrap();
    }
    shadow[4] = 3;
    drop(volume);
    for role in Role::HALVES {
        // As an export does that is killed before the target is complete.
        world.store(role).mark(9, Mark::Owned).unwrap();
    }
    expect_each(&world, &shadow);
    let volume = world.open();
    expect(&volume, &shadow);
    assert!(Role::HALVES.iter().all(|role| volume.is_complete(*role)));
}

/// One that lacks nothing is complete as soon as it has returned.
#[test]
fn a_target_that_lacks_nothing_is_complete_at_once() {
    let world = World::new();
    let volume = world.open();
    fill(&volume, 1);
    for role in Role::HALVES {
        volume.detach(role, "it was restarted");
        let store = world.store(role);
        volume.attach(Arc::clone(&store)).unwrap();
        assert!(volume.is_complete(role));
        assert!(store.identity().is_complete());
    }
}

/// Two targets lose what was written since the last flush, while the volume lives. A flush then makes it durable again at
/// two targets, or fails.
#[test]
fn a_flush_counts_the_holders_of_each_block() {
    for kept in Role::HALVES {
        let world = World::new();
        let volume = world.open();
        let mut shadow = fill(&volume, 1);
        let durable = world.copy();
        volume.write(offset(7), &content(7, 3)).unwrap();
        volume.trim(offset(8), BLOCK as u64).unwrap();
        (shadow[7], shadow[8]) = (3, 0);
        let lost = Role::HALVES.into_iter().filter(|role| *role != kept);
        for role in lost.clone() {
            volume.detach(role, "it has lost power");
            world.lose_power(role, &durable);
        }
        assert!(volume.flush().is_err(), "one target has the blocks");
        for role in lost {
            volume.attach(world.store(role)).unwrap();
        }
        assert_eq!(volume.status().lost_blocks, 0);
        expect(&volume, &shadow);
        volume.flush().unwrap();
        drop(volume);
        expect_each(&world, &shadow);
    }
}

/// The same with one target absent all the time: the one that loses power gets the blocks again.
#[test]
fn a_flush_counts_the_holders_with_a_target_absent() {
    for absent in Role::HALVES {
        let world = World::new();
        let mut shadow = fill(&world.open(), 1);
        let volume = world.open_without(Some(absent));
        let durable = world.copy();
        volume.write(offset(7), &content(7, 3)).unwrap();
        shadow[7] = 3;
        let role = Role::HALVES
            .into_iter()
            .find(|role| *role != absent)
            .unwrap();
        volume.detach(role, "it has lost power");
        world.lose_power(role, &durable);
        let mut bytes = vec![0; BLOCK];
        volume.read(offset(7), &mut bytes).unwrap();
        assert!(bytes == content(7, 3), "its data waits for the flush");
        volume.attach(world.store(role)).unwrap();
        volume.flush().unwrap();
        drop(volume);
        expect(&world.copy().open_without(Some(absent)), &shadow);
        expect_each_after_rebuild(&world, &shadow);
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

/// After a loss of power one target alone has a newer block that was never flushed. Two others open without it and show the
/// older one. With all three it stays so, in the same process and in later ones, also for a block that was never written.
#[test]
fn a_later_opening_does_not_reverse_a_decision() {
    for newer in Role::HALVES {
        for attach in [false, true] {
            let world = World::new();
            let volume = world.open();
            volume.write(offset(1), &content(1, 3)).unwrap();
            volume.flush().unwrap();
            let mut shadow = vec![0; usize::try_from(BLOCKS).unwrap()];
            shadow[1] = 3;
            let durable = world.copy();
            for block in [1, 2] {
                volume.write(offset(block), &content(block, 4)).unwrap();
            }
            drop(volume);
            for role in Role::HALVES.into_iter().filter(|role| *role != newer) {
                world.lose_power(role, &durable);
            }
            let volume = world.open_without(Some(newer));
            expect(&volume, &shadow);
            if attach {
                volume.attach(world.store(newer)).unwrap();
                expect(&volume, &shadow);
            }
            drop(volume);
            let volume = world.open();
            expect(&volume, &shadow);
            drop(volume);
            expect_each_after_rebuild(&world, &shadow);
        }
    }
}

/// A first write that one target alone has prepared was never written, and does not come back later.
#[test]
fn a_first_write_that_was_not_acknowledged_does_not_come_back() {
    for writes in 0..6 {
        let world = World::new();
        let volume = world.open();
        world.writes_left.store(writes, Ordering::Relaxed);
        let done = volume.write(offset(3), &content(3, 3));
        drop(volume);
        world.writes_left.store(u64::MAX, Ordering::Relaxed);
        for absent in Role::HALVES {
            let world = world.copy();
            let volume = world.open_without(Some(absent));
            let mut bytes = vec![0; BLOCK];
            let first = volume.read(offset(3), &mut bytes).map(|()| bytes.clone());
            drop(volume);
            let Ok(first) = first else {
                assert!(done.is_err(), "{writes}, {absent}");
                continue;
            };
            let volume = world.open();
            volume.read(offset(3), &mut bytes).unwrap();
            assert!(bytes == first, "{writes}, {absent}");
        }
    }
}

/// Prepares a first write of a block at a target, as a process does that is killed then.
fn prepare(world: &World, role: Role, generation: u64) -> Arc<dyn Target> {
    let encoded = crate::block::encode(crate::Layout::HALVES, &content(3, 3));
    let half = Half {
        generation,
        kind: encoded.kind,
        stored: encoded.stored,
        data: encoded.parts[role.index()].clone(),
    };
    let target = world.store(role);
    let held = target.held().unwrap();
    let old = held.iter().find(|held| held.block == 3);
    let keep = old.map_or(0, |old| old.generation);
    target.prepare(3, &half, keep).unwrap();
    target
}

/// A write that two targets have prepared is killed, and so is the opening after it, at any step. Whichever target is absent
/// then, what was flushed or that write is there.
#[test]
fn an_opening_that_is_killed_loses_nothing() {
    for cut in 0..18 {
        let world = World::new();
        fill(&world.open(), 1);
        for role in [Role::FIRST, Role::SECOND] {
            prepare(&world, role, 7 << 40);
        }
        let killed: Vec<_> = Role::HALVES.map(|role| world.store(role)).to_vec();
        world.writes_left.store(cut, Ordering::Relaxed);
        let _ = Volume::open(killed);
        world.writes_left.store(u64::MAX, Ordering::Relaxed);
        for absent in Role::HALVES {
            let volume = world.copy().open_without(Some(absent));
            let mut bytes = vec![0; BLOCK];
            volume
                .read(offset(3), &mut bytes)
                .unwrap_or_else(|error| panic!("{cut}, without {absent}: {error}"));
            assert!(bytes == content(3, 1) || bytes == content(3, 3));
        }
    }
}

/// A first write is killed after one target has settled it. The opening without this target is killed at any step. With all
/// three the block can be read.
#[test]
fn an_opening_that_is_killed_leaves_its_decisions() {
    for cut in 0..18 {
        let world = World::new();
        drop(world.open_without(Some(Role::PARITY)));
        let generation = 1 << 40 | 9;
        let first = prepare(&world, Role::FIRST, generation);
        first.commit(3, generation).unwrap();
        prepare(&world, Role::SECOND, generation);
        let killed = [Role::SECOND, Role::PARITY].map(|role| world.store(role));
        world.writes_left.store(cut, Ordering::Relaxed);
        let _ = Volume::open(killed.to_vec());
        world.writes_left.store(u64::MAX, Ordering::Relaxed);
        let mut bytes = vec![0xaa; BLOCK];
        let done = world.open().read(offset(3), &mut bytes);
        done.unwrap_or_else(|error| panic!("{cut}: {error}"));
        assert!(bytes == vec![0; BLOCK] || bytes == content(3, 3), "{cut}");
    }
}

/// A block is lost when the volume is opened, because a target is absent. A read waits for its return.
#[test]
fn a_read_waits_for_a_target_that_was_absent_at_the_opening() {
    let world = World::new();
    let mut shadow = fill(&world.open(), 1);
    let volume = world.open_without(Some(Role::FIRST));
    volume.write(offset(2), &content(2, 3)).unwrap();
    volume.flush().unwrap();
    shadow[2] = 3;
    drop(volume);
    let volume = world.open_without(Some(Role::SECOND));
    volume.set_outage_limit(Duration::from_secs(60));
    let before = volume.seats.attempts();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let mut bytes = vec![0; BLOCK];
            volume.read(offset(2), &mut bytes).map(|()| bytes)
        });
        while volume.seats.attempts() == before && !waits.is_finished() {
            std::thread::yield_now();
        }
        assert!(!waits.is_finished(), "it does not wait");
        volume.attach(world.store(Role::SECOND)).unwrap();
        assert!(waits.join().unwrap().unwrap() == content(2, 3));
    });
    expect(&volume, &shadow);
}

/// A target whose place is taken is not marked.
#[test]
fn a_target_without_a_place_stays_as_it_is() {
    let world = World::new();
    fill(&world.open(), 1);
    let before = world.store(Role::FIRST).identity();
    let volume = Volume::open(vec![
        world.copy().store(Role::FIRST),
        world.store(Role::SECOND),
    ])
    .unwrap();
    let other = world.store(Role::FIRST);
    assert!(volume.attach(Arc::clone(&other)).is_err());
    assert_eq!(other.identity(), before);
}

/// Bytes that went to a target count, and no others.
#[test]
fn only_bytes_that_reach_a_target_count_as_moved() {
    let moved = |volume: &Volume| {
        fill(volume, 3);
        volume.status().moved_bytes
    };
    let all = moved(&World::new().open());
    let world = World::new();
    drop(world.open());
    let two = moved(&world.open_without(Some(Role::PARITY)));
    // The halves of a block may differ by a byte.
    assert!((two * 3).abs_diff(all * 2) <= 3 * BLOCKS, "{two} of {all}");
}

/// A target that returns has the entry of a block and, after a loss of power, not its record. It gets the block again.
#[test]
fn a_returned_entry_without_its_record_does_not_count() {
    for role in Role::HALVES {
        let world = World::new();
        let mut shadow = fill(&world.open(), 1);
        let volume = world.open();
        volume.write(offset(2), &content(2, 3)).unwrap();
        shadow[2] = 3;
        drop(volume);
        // Behind the first records, in the order of the blocks.
        let held = world.store(role).held().unwrap();
        let newest = held.iter().map(|held| held.generation).max().unwrap();
        let mut bytes = vec![0; COPY];
        world.disks[role.index()].bytes.read(0, &mut bytes).unwrap();
        let header = newest.to_be_bytes();
        let at = bytes.windows(8).rposition(|bytes| bytes == header).unwrap();
        world.disks[role.index()]
            .bytes
            .write(at as u64, &[0; 8])
            .unwrap();
        let volume = world.open_without(Some(role));
        volume.flush().unwrap();
        volume.attach(world.store(role)).unwrap();
        assert_eq!(volume.missing_blocks(role), 1);
        volume.rebuild(role).unwrap();
        drop(volume);
        expect_each(&world, &shadow);
    }
}

/// After a clean close the volume is opened without a look at all blocks. A target that has taken a place since then, and is
/// complete, tells together with one of the two others what nobody has looked up. Alone it is refused.
#[test]
fn a_complete_target_that_took_a_place_returns_beside_one_other() {
    let mut world = World::new();
    let shadow = fill(&world.open(), 3);
    world.open().close().unwrap();
    let volume = world.open();
    let disk = Disk {
        bytes: Arc::default(),
        writes_left: Arc::clone(&world.writes_left),
    };
    let new = new_target(Role::FIRST, false);
    let new = Store::create("new", Box::new(disk.clone()), new, None).unwrap();
    world.disks[0] = disk;
    volume.replace(Arc::new(new)).unwrap();
    assert_eq!(volume.rebuild(Role::FIRST).unwrap(), BLOCKS);
    drop(volume);
    let others = [Role::SECOND, Role::PARITY];
    for stopped in [&others[1..], &others] {
        let world = world.copy();
        let volume = world.open_without(Some(Role::FIRST));
        for role in stopped {
            volume.detach(*role, "it was stopped");
        }
        if stopped.len() == others.len() {
            let refused = volume.attach(world.store(Role::FIRST)).unwrap_err();
            assert!(refused.to_string().contains("needs 2"), "{refused}");
            volume.attach(world.store(Role::PARITY)).unwrap();
        }
        volume.attach(world.store(Role::FIRST)).unwrap();
        assert!(volume.is_complete(Role::FIRST));
        expect(&volume, &shadow);
        drop(volume);
        expect_each(&world, &shadow);
    }
}

/// As above, but the one that has taken the place lacks a block that nobody has looked up.
#[test]
fn a_block_that_nobody_has_looked_up_is_given_to_a_target_that_returns() {
    let mut world = World::new();
    let shadow = fill(&world.open(), 3);
    let older = world.copy();
    let mut later = shadow;
    let volume = world.open();
    volume.write(offset(7), &content(7, 6)).unwrap();
    later[7] = 6;
    volume.close().unwrap();
    drop(volume);
    // It is a disk of before the last close: it has not agreed with the others then.
    world.disks[0] = older.disks[0].clone();
    let volume = world.open_without(Some(Role::FIRST));
    volume.detach(Role::SECOND, "it was stopped");
    volume.attach(world.store(Role::FIRST)).unwrap();
    // Which of the two generations counts is not known without the third one.
    let mut bytes = vec![0; BLOCK];
    assert!(volume.read(offset(7), &mut bytes).is_err());
    volume.attach(world.store(Role::SECOND)).unwrap();
    assert_eq!(volume.rebuild(Role::FIRST).unwrap(), 1);
    expect(&volume, &later);
    drop(volume);
    expect_each(&world, &later);
}
