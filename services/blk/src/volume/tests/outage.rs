//! Tests of requests that need an absent target, and of targets that fail while they return.

use super::*;
use crate::store::Seating as _;
use std::time::{Duration, Instant};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(60);

/// A target that takes its place and then does not tell what it holds.
struct Mute(Arc<dyn Target>);

impl Target for Mute {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn identity(&self) -> Identity {
        self.0.identity()
    }

    fn part(&self, _: Range<u64>) -> Result<Part> {
        Err(BlkError::io("mute", io::ErrorKind::ConnectionReset.into()))
    }

    fn changed(&self, from: u64) -> Result<Changed> {
        self.0.changed(from)
    }

    fn grow(&self, blocks: u64) -> Result<()> {
        self.0.grow(blocks)
    }

    fn prepare(&self, block: u64, half: &Half, keep: u64) -> Result<()> {
        self.0.prepare(block, half, keep)
    }

    fn commit(&self, block: u64, generation: u64) -> Result<()> {
        self.0.commit(block, generation)
    }

    fn fetch(&self, block: u64, generation: u64) -> Result<Half> {
        self.0.fetch(block, generation)
    }

    fn flush(&self) -> Result<()> {
        self.0.flush()
    }

    fn mark(&self, epoch: u64, mark: Mark) -> Result<()> {
        self.0.mark(epoch, mark)
    }

    fn usage(&self) -> Usage {
        self.0.usage()
    }
}

/// Runs a request while two targets are absent, and takes them back when it has begun.
fn during_an_outage(request: impl FnOnce(&Volume) -> Result<()> + Send) -> (World, Vec<u64>) {
    let world = World::new();
    let volume = world.open();
    let shadow = fill(&volume, 3);
    let lost = [Role::FIRST, Role::PARITY];
    for role in lost {
        volume.detach(role, "the test says so");
    }
    let attempts = || volume.seats.attempts();
    let before = attempts();
    volume.set_outage_limit(LONG);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| request(&volume));
        while attempts() == before {
            std::thread::yield_now();
        }
        for role in lost {
            volume.attach(world.store(role)).unwrap();
        }
        waits.join().unwrap().unwrap();
    });
    for role in lost {
        volume.rebuild(role).unwrap();
    }
    drop(volume);
    (world, shadow)
}

#[test]
fn requests_wait_for_targets_that_return() {
    let (world, mut shadow) = during_an_outage(|volume| volume.write(offset(4), &content(4, 6)));
    shadow[4] = 6;
    expect_each(&world, &shadow);
    let (world, shadow) = during_an_outage(|volume| {
        let mut bytes = vec![0; 3 * BLOCK];
        volume.read(offset(4), &mut bytes)?;
        let expected: Vec<u8> = (4..7).flat_map(|block| content(block, 3)).collect();
        assert!(bytes == expected);
        Ok(())
    });
    expect_each(&world, &shadow);
    let (world, shadow) = during_an_outage(Volume::flush);
    expect_each(&world, &shadow);
    let (world, mut shadow) = during_an_outage(|volume| volume.trim(offset(1), offset(1)));
    shadow[1] = 0;
    expect_each(&world, &shadow);
}

#[test]
fn requests_fail_when_the_limit_has_passed() {
    let world = World::new();
    let volume = world.open();
    let shadow = fill(&volume, 3);
    volume.detach(Role::FIRST, "the test says so");
    volume.detach(Role::SECOND, "the test says so");
    let mut bytes = vec![0; BLOCK];
    for limit in [Duration::ZERO, Duration::from_millis(1)] {
        volume.set_outage_limit(limit);
        assert!(volume.read(0, &mut bytes).is_err());
        assert!(volume.write(0, &bytes).is_err());
        assert!(volume.flush().is_err());
    }
    // What fails for another reason does not wait: this test would not end in time.
    for role in [Role::FIRST, Role::SECOND] {
        volume.attach(world.store(role)).unwrap();
        volume.rebuild(role).unwrap();
    }
    volume.set_outage_limit(LONG * 60);
    world.flip(Role::FIRST);
    world.flip(Role::PARITY);
    assert!(matches!(
        volume.read(0, &mut bytes),
        Err(BlkError::Lost { block: 0, .. })
    ));
    assert!(volume.read(offset(BLOCKS), &mut bytes).is_err());
    volume.write(0, &content(0, 3)).unwrap();
    drop(volume);
    expect_each(&world, &shadow);
}

/// A silent target has held up a request beyond the limit. Meanwhile the absent one has taken its place, and waits for the
/// lock of the request's block to find out what it holds. The request is carried out again when it knows.
#[test]
fn a_request_that_was_held_up_waits_for_a_target_that_returns() {
    let world = World::new();
    let volume = world.open();
    for role in [Role::FIRST, Role::SECOND] {
        volume.detach(role, "the test says so");
    }
    volume.set_outage_limit(LONG);
    let seats = &volume.seats;
    let begun = Instant::now()
        .checked_sub(LONG + LONG / 2)
        .expect("the machine runs longer");
    let returns = seats.returns();
    let error = BlkError::Offline(Role::FIRST);
    let waits = |returns, begun| seats.wait_for_return(returns, begun, &error);
    assert!(!waits(returns, begun), "nobody returns");
    for fails in [false, true] {
        let returns = seats.returns();
        let target: Arc<dyn Target> = world.store(Role::FIRST);
        seats.take(&target, || ());
        std::thread::scope(|scope| {
            let before = seats.attempts();
            let waits = scope.spawn(|| waits(returns, begun));
            while seats.attempts() == before {
                std::thread::yield_now();
            }
            match fails {
                true => seats.fail(&target, &BlkError::Offline(Role::FIRST)),
                false => seats.arrived(&target),
            }
            assert_eq!(waits.join().unwrap(), !fails);
        });
        seats.free(Role::FIRST, "the test says so");
    }
    // Twice the limit is the end in any case.
    let target: Arc<dyn Target> = world.store(Role::FIRST);
    seats.take(&target, || ());
    let begun = begun.checked_sub(LONG).expect("the machine runs longer");
    assert!(!waits(seats.returns(), begun));
}

#[test]
fn a_late_target_is_given_up_only_if_the_others_hold_everything() {
    let world = World::new();
    let volume = world.open();
    fill(&volume, 3);
    let target = |role| volume.target(role).unwrap();
    let gives_up = |target: &Arc<dyn Target>| volume.seats.gives_up(target.as_ref(), "late");
    let first = target(Role::FIRST);
    assert!(gives_up(&first));
    assert!(gives_up(&first), "it is not in use any more");
    assert!(volume.status().targets[0].absent.contains("late"));
    let (second, parity) = (target(Role::SECOND), target(Role::PARITY));
    assert!(!gives_up(&second) && !gives_up(&parity), "two are left");
    // The first one returns. The others are needed until it is complete.
    volume.write(offset(2), &content(2, 6)).unwrap();
    volume.flush().unwrap();
    volume.attach(world.store(Role::FIRST)).unwrap();
    assert!(!volume.is_complete(Role::FIRST));
    assert!(
        !gives_up(&second) && !gives_up(&parity),
        "one lacks a block"
    );
    assert_eq!(volume.rebuild(Role::FIRST).unwrap(), 1);
    assert!(volume.is_complete(Role::FIRST));
    assert!(gives_up(&parity));
    assert!(!gives_up(&second) && !gives_up(&target(Role::FIRST)));
}

#[test]
fn a_target_that_fails_while_it_returns_leaves_its_place() {
    for role in Role::HALVES {
        let world = World::new();
        let volume = world.open_without(Some(role));
        let shadow = fill(&volume, 3);
        let target: Arc<dyn Target> = Arc::new(Mute(world.store(role)));
        assert!(volume.attach(target).is_err());
        let absent = volume.status().targets[role.index()].absent.clone();
        assert!(absent.contains("reset"), "{absent}");
        volume.attach(world.store(role)).unwrap();
        assert_eq!(volume.rebuild(role).unwrap(), BLOCKS);
        drop(volume);
        expect_each(&world, &shadow);
    }
}

/// A target is completed while another one takes its place again: it is not complete before it has what that one holds.
#[test]
fn a_target_that_takes_its_place_is_not_one_that_has_lost_blocks() {
    for (incomplete, leaves) in [
        (Role::PARITY, Role::SECOND),
        (Role::FIRST, Role::PARITY),
        (Role::SECOND, Role::FIRST),
    ] {
        let world = World::new();
        let mut shadow = fill(&world.open(), 3);
        let volume = world.open_without(Some(incomplete));
        for block in 0..4 {
            volume.write(offset(block), &content(block, 4)).unwrap();
            shadow[usize::try_from(block).unwrap()] = 4;
        }
        // What is not durable would be written again from memory.
        volume.flush().unwrap();
        volume.attach(world.store(incomplete)).unwrap();
        assert_eq!(volume.missing_blocks(incomplete), 4);
        volume.detach(leaves, "the test says so");
        volume.rebuild(incomplete).unwrap_err();
        assert_eq!(volume.missing_blocks(incomplete), 4);
        // It has its place, and nobody has looked at what it holds.
        let back = world.store(leaves);
        back.mark(volume.epoch, Mark::Owned).unwrap();
        volume.seat(&back);
        volume.rebuild(incomplete).unwrap_err();
        assert!(!volume.is_complete(incomplete), "{incomplete}");
        volume.arrive(leaves, &back, Vec::new()).unwrap();
        assert_eq!(volume.missing_blocks(incomplete), 4);
        assert_eq!(volume.rebuild(incomplete).unwrap(), 4);
        expect(&volume, &shadow);
        drop((volume, back));
        expect_each(&world, &shadow);
    }
}
