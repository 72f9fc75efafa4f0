//! Mirrors and other layouts: losses, and who may serve alone.

use super::faults::Faulty;
use super::keys::key;
use crate::error::BlkError;
use crate::geometry::{Geometry, Id, Layout, Role};
use crate::store::{Mark, MemoryMedium, NewTarget, Store, Target};
use crate::volume::Volume;
use std::path::PathBuf;
use std::sync::Arc;

const LAYOUTS: [&str; 6] = ["2+1", "mirror-2", "mirror-3", "2+2", "4+2", "8+3"];

/// What a flush makes needless is given back by the next one, and what waits for one does not fill the index.
#[test]
fn what_was_flushed_before_stays_only_until_all_targets_have_the_newer() {
    let dir = tempfile::tempdir().unwrap();
    let layout: Layout = "4+2".parse().unwrap();
    let create = |role: Role| -> Arc<dyn Target> {
        let new = NewTarget {
            geometry: Geometry::of_size(512, 8 << 20).unwrap(),
            role,
            volume: Id([7; 16]),
            complete: true,
        };
        let path = dir.path().join(role.to_string());
        Arc::new(Store::create_file(&path, new, None).unwrap())
    };
    let volume = Volume::open(layout.roles().map(create).collect()).unwrap();
    let noise = |seed: u64| content(seed)[..512].to_vec();
    let used = || layout.map(|role| volume.used(role).unwrap());
    volume.write(0, &noise(1)).unwrap();
    volume.flush().unwrap();
    let one = used();
    for seed in 2..9 {
        volume.write(0, &noise(seed)).unwrap();
        let now = used();
        assert!(now.iter().zip(&one).all(|(now, one)| *now == 2 * one));
        volume.flush().unwrap();
        assert_eq!(used(), one, "{seed}");
    }
    // More groups than can be in change at once.
    for block in 0..2048u64 {
        volume.write(block * 8 * 512, &noise(block)).unwrap();
    }
    for role in layout.roles() {
        assert_eq!(volume.missing_blocks(role), 0, "{role}");
        assert!(volume.is_complete(role), "{role}");
    }
    for block in 0..2048u64 {
        let mut back = vec![0; 512];
        volume.read(block * 8 * 512, &mut back).unwrap();
        assert!(back == noise(block), "{block}");
    }
}

/// Blocks whose memory the volume may keep are those that were written: noise, and noise among what takes less. Memory that a few
/// blocks use is not kept.
#[test]
fn owned_bytes_are_kept_only_if_all_of_them_are_stored() {
    const BLOCKS: usize = 64;
    const BLOCK: usize = 4096;
    let mut chance = fastrand::Rng::with_seed(5);
    for layout in LAYOUTS {
        let layout: Layout = layout.parse().unwrap();
        let volume = Volume::open(in_memory(layout)).unwrap();
        for zeros in [0, 1, BLOCKS - 1] {
            let mut bytes = vec![0; BLOCKS * BLOCK];
            chance.fill(&mut bytes[zeros * BLOCK..]);
            let (wanted, place) = (bytes.clone(), bytes.as_ptr());
            volume.write_owned(BLOCK as u64, bytes).unwrap();
            let last = BLOCKS as u64;
            let state = volume.state(last);
            let parts = volume.pending.parts(last, state.generation).unwrap();
            let at = place.wrapping_add((BLOCKS - 1) * BLOCK);
            assert_eq!(parts[0].data.as_ptr() == at, zeros == 0, "{layout}");
            let again = volume.memory(BLOCKS * BLOCK);
            assert_eq!(again.as_ptr() == place, zeros != 0, "{layout}");
            drop((again, parts));
            let mut back = vec![0; BLOCKS * BLOCK];
            volume.read(BLOCK as u64, &mut back).unwrap();
            assert!(back == wanted, "{layout}");
            volume.flush().unwrap();
            volume.read(BLOCK as u64, &mut back).unwrap();
            assert!(back == wanted, "{layout}");
        }
        // Not whole blocks, and more than a group.
        for (offset, length) in [(9, BLOCKS * BLOCK), (0, 3 * BLOCKS * BLOCK), (0, BLOCK)] {
            let mut bytes = vec![0; length];
            chance.fill(&mut bytes);
            volume.write_owned(offset, bytes.clone()).unwrap();
            let mut back = vec![0; length];
            volume.read(offset, &mut back).unwrap();
            assert!(back == bytes, "{layout}: {length} bytes at {offset}");
        }
        assert!(volume.scrub().unwrap().bad_halves == 0, "{layout}");
    }
}

/// Targets of a new volume of blocks of 4 KiB.
fn in_memory(layout: Layout) -> Vec<Arc<dyn Target>> {
    let create = |role: Role| -> Arc<dyn Target> {
        let new = NewTarget {
            geometry: Geometry::of_size(4096, 8 << 20).unwrap(),
            role,
            volume: Id([7; 16]),
            complete: true,
        };
        let medium = Box::new(MemoryMedium::default());
        Arc::new(Store::create(&role.to_string(), medium, new, None).unwrap())
    };
    layout.roles().map(create).collect()
}

/// The files of a volume.
struct Files {
    dir: tempfile::TempDir,
    layout: Layout,
}

impl Files {
    fn new(layout: &str) -> Self {
        let files = Self {
            dir: tempfile::tempdir().unwrap(),
            layout: layout.parse().unwrap(),
        };
        for role in files.layout.roles() {
            drop(files.create(role, &role.to_string(), true));
        }
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn create(&self, role: Role, name: &str, complete: bool) -> Arc<dyn Target> {
        let new = NewTarget {
            geometry: Geometry::of_size(1024, 64 << 10).unwrap(),
            role,
            volume: Id([7; 16]),
            complete,
        };
        Arc::new(Store::create_file(&self.path(name), new, None).unwrap())
    }

    fn role(&self, index: usize) -> Role {
        self.layout.role(index).unwrap()
    }

    fn target(&self, index: usize) -> Arc<dyn Target> {
        let path = self.path(&self.role(index).to_string());
        Arc::new(Store::open_file(&path, None).unwrap())
    }

    fn targets(&self, wanted: impl Fn(usize) -> bool) -> Vec<Arc<dyn Target>> {
        let all = (0..self.layout.targets()).filter(|index| wanted(*index));
        all.map(|index| self.target(index)).collect()
    }
}

fn content(seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..5000).map(|_| random.u8(..)).collect()
}

#[track_caller]
fn check(volume: &Volume, seed: u64) {
    let mut back = vec![0; 5000];
    volume.read(300, &mut back).unwrap();
    assert!(back == content(seed));
}

/// As many targets as there are parities leave one after the other, and come back; writes go on.
#[test]
fn each_layout_survives_the_loss_of_as_many_targets_as_it_says() {
    for layout in LAYOUTS {
        let files = Files::new(layout);
        let spare = files.layout.spare();
        let volume = Volume::open(files.targets(|_| true)).unwrap();
        volume.write(300, &content(1)).unwrap();
        volume.flush().unwrap();
        for lost in 0..spare {
            volume.detach(files.role(lost), "it is lost");
            check(&volume, 1 + lost as u64);
            volume.write(300, &content(2 + lost as u64)).unwrap();
            check(&volume, 2 + lost as u64);
            volume.flush().unwrap();
        }
        let last = 1 + spare as u64;
        for back in 0..spare {
            volume.attach(files.target(back)).unwrap();
            volume.rebuild(files.role(back)).unwrap();
            assert!(volume.is_complete(files.role(back)), "{layout}");
        }
        for lost in files.layout.roles().rev().take(spare) {
            volume.detach(lost, "it is lost");
        }
        check(&volume, last);
        volume.detach(files.role(0), "one too many");
        assert!(volume.write(300, &content(9)).is_err(), "{layout}");
        drop(volume);
        let volume = Volume::open(files.targets(|_| true)).unwrap();
        for role in files.layout.roles() {
            volume.rebuild(role).unwrap();
        }
        let report = volume.scrub().unwrap();
        assert_eq!((report.lost_blocks, report.bad_halves), (0, 0), "{layout}");
    }
}

#[test]
fn one_of_a_mirror_serves_alone_only_if_it_knows_that_the_other_is_old() {
    let files = Files::new("mirror-2");
    let volume = Volume::open(files.targets(|_| true)).unwrap();
    volume.write(300, &content(1)).unwrap();
    volume.detach(files.role(1), "it is lost");
    volume.write(300, &content(2)).unwrap();
    drop(volume);
    // It does not know of the second write, and says so.
    let error = Volume::open(files.targets(|index| index == 1)).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("copy_1 may hold newer data") && error.contains("--without-absent"),
        "{error}"
    );
    check(&Volume::open(files.targets(|index| index == 0)).unwrap(), 2);
    let volume = Volume::open(files.targets(|_| true)).unwrap();
    check(&volume, 2);
    volume.rebuild(files.role(1)).unwrap();
    assert!(volume.is_complete(files.role(1)));
    drop(volume);
    // Now both may be ahead. An operator says that one is gone; when it returns, the other one counts.
    assert!(Volume::open(files.targets(|index| index == 1)).is_err());
    let alone = Volume::open_without_absent(files.targets(|index| index == 1), None).unwrap();
    alone.write(300, &content(3)).unwrap();
    drop(alone);
    let volume = Volume::open(files.targets(|_| true)).unwrap();
    check(&volume, 3);
    drop(volume);
    assert!(Volume::open(files.targets(|index| index == 0)).is_err());
}

/// Data, a loss, a rotation and the return of a target that has missed it.
#[test]
fn each_layout_can_be_encrypted() {
    let (old, new) = (key("the key of the creation"), key("the key behind it"));
    for layout in LAYOUTS {
        let files = Files::new(layout);
        let wrapping = old.new_wrapping(Id([7; 16])).unwrap();
        for target in files.targets(|_| true) {
            target.mark(0, Mark::Wrapping(wrapping)).unwrap();
        }
        let open = |key| Volume::open_with(files.targets(|_| true), Some(key));
        let volume = open(&old).unwrap();
        volume.write(300, &content(1)).unwrap();
        volume.create_snapshot("before", false).unwrap();
        volume.detach(files.role(0), "it is lost");
        check(&volume, 1);
        volume.write(300, &content(2)).unwrap();
        volume.rotate_key(&new).unwrap();
        volume.attach(files.target(0)).unwrap();
        volume.rebuild(files.role(0)).unwrap();
        drop(volume);
        assert!(open(&old).is_err(), "{layout}");
        let volume = open(&new).unwrap();
        // The target that was away serves now.
        for role in files.layout.roles().rev().take(files.layout.spare()) {
            volume.detach(role, "it is lost");
        }
        check(&volume, 2);
        let stored = (0..files.layout.targets())
            .map(|index| std::fs::read(files.path(&files.role(index).to_string())).unwrap());
        let plain = &content(2)[1000..1032];
        for bytes in stored {
            assert!(
                !bytes.windows(plain.len()).any(|part| part == plain),
                "{layout}"
            );
        }
    }
}

/// Nobody knows which of them counts: neither is given up silently.
#[test]
fn two_copies_that_were_used_without_each_other_are_refused_together() {
    let files = Files::new("mirror-2");
    for (alone, seed) in [(0, 4), (1, 5)] {
        let volume =
            Volume::open_without_absent(files.targets(|index| index == alone), None).unwrap();
        volume.write(300, &content(seed)).unwrap();
        volume.flush().unwrap();
    }
    let error = Volume::open(files.targets(|_| true))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("each may have been used without the other"),
        "{error}"
    );
    let mut targets = files.targets(|index| index == 0);
    targets.push(files.create(files.role(1), "new", false));
    let volume = Volume::open(targets).unwrap();
    volume.rebuild(files.role(1)).unwrap();
    check(&volume, 4);
    assert_eq!(volume.scrub().unwrap().bad_halves, 0);
}

/// The same while one of them serves, whichever was used last. It goes on alone, and takes a new one.
#[test]
fn a_copy_that_was_used_alone_does_not_return_to_the_one_that_was_too() {
    for served in [0, 1] {
        let files = Files::new("mirror-2");
        let alone = |index| Volume::open_without_absent(files.targets(|at| at == index), None);
        let other = 1 - served;
        let volume = alone(served).unwrap();
        volume.write(300, &content(4)).unwrap();
        let apart = alone(other).unwrap();
        apart.write(300, &content(5)).unwrap();
        drop(apart);
        for _ in 0..2 {
            let error = volume.attach(files.target(other)).unwrap_err().to_string();
            assert!(
                error.contains(
                    "each may have been used without the other: open the volume without one of them"
                ),
                "{error}"
            );
            assert_eq!(error.lines().count(), 1, "{error}");
            // As one that was used before this opening.
            volume.write(400, &content(4)[100..200]).unwrap();
        }
        check(&volume, 4);
        drop(volume);
        let volume = Volume::open(files.targets(|at| at == served)).unwrap();
        let error = volume.attach(files.target(other)).unwrap_err().to_string();
        assert!(
            error.contains("each may have been used without the other"),
            "{error}"
        );
        volume
            .attach(files.create(files.role(other), "new", false))
            .unwrap();
        volume.rebuild(files.role(other)).unwrap();
        volume.detach(files.role(served), "it is lost");
        check(&volume, 4);
    }
}

/// One that this volume itself has left behind returns, although the volume was opened without an absent one before.
#[test]
fn a_copy_that_was_left_behind_returns() {
    let files = Files::new("mirror-3");
    drop(Volume::open_without_absent(files.targets(|index| index < 2), None).unwrap());
    let volume = Volume::open(files.targets(|_| true)).unwrap();
    volume.rebuild(files.role(2)).unwrap();
    // The first one is away while the second one is told, and so on: none of them trusts the one that is left.
    for (lost, seed) in [(0, 1), (1, 2)] {
        volume.detach(files.role(lost), "it is lost");
        volume.write(300, &content(seed)).unwrap();
    }
    volume.attach(files.target(0)).unwrap();
    volume.rebuild(files.role(0)).unwrap();
    volume.detach(files.role(2), "it is lost");
    volume.write(300, &content(3)).unwrap();
    for back in [1, 2] {
        volume.attach(files.target(back)).unwrap();
        volume.rebuild(files.role(back)).unwrap();
    }
    for lost in [0, 1] {
        volume.detach(files.role(lost), "it is lost");
        check(&volume, 3);
    }
}

/// What counts as gone is what is not there when its opening begins: its epoch tells that something was.
#[test]
fn a_copy_that_fails_while_it_is_opened_does_not_count_as_gone() {
    let files = Files::new("mirror-2");
    let faulty = Faulty::new(files.target(1), "mark", libc::EIO, 1);
    let targets: Vec<Arc<dyn Target>> = vec![files.target(0), faulty];
    let error = Volume::open_without_absent(targets, None).unwrap_err();
    assert!(error.to_string().contains("faulty"), "{error}");
    drop(Volume::open(files.targets(|_| true)).unwrap());
}

/// Copies of which neither trusts the other are no reason to refuse them, if a third one tells that it knows of both. Without it
/// nobody tells.
#[test]
fn a_copy_that_is_behind_another_one_was_not_used_without_it() {
    let files = Files::new("mirror-3");
    // From here on an opening cannot exclude that copies were used apart.
    drop(Volume::open_without_absent(files.targets(|index| index < 2), None).unwrap());
    let volume = Volume::open(files.targets(|_| true)).unwrap();
    volume.rebuild(files.role(2)).unwrap();
    for (lost, seed) in [(2, 1), (1, 2)] {
        volume.detach(files.role(lost), "it is lost");
        volume.write(300, &content(seed)).unwrap();
    }
    volume.attach(files.target(2)).unwrap();
    volume.rebuild(files.role(2)).unwrap();
    volume.detach(files.role(0), "it is lost");
    volume.write(300, &content(3)).unwrap();
    drop(volume);
    drop(Volume::open(files.targets(|index| index == 2)).unwrap());
    assert!(Volume::open(files.targets(|index| index != 0)).is_err());
    let volume = Volume::open(files.targets(|_| true)).unwrap();
    check(&volume, 3);
    for role in files.layout.roles() {
        volume.rebuild(role).unwrap();
    }
    volume.detach(files.role(2), "it is lost");
    check(&volume, 3);
}

/// A new copy in the place of another one does not tell what that one knew, whichever of the two openings has the later epoch.
#[test]
fn a_copy_that_was_used_with_one_that_was_replaced_is_refused() {
    for _ in 0..8 {
        let files = Files::new("mirror-3");
        let apart = Volume::open_without_absent(files.targets(|index| index < 2), None).unwrap();
        apart.write(300, &content(1)).unwrap();
        drop(apart);
        let mut targets = files.targets(|index| index == 2);
        targets.push(files.create(files.role(1), "new", false));
        let volume = Volume::open_without_absent(targets, None).unwrap();
        volume.write(300, &content(2)).unwrap();
        volume.rebuild(files.role(1)).unwrap();
        drop(volume);
        let mut targets = files.targets(|index| index != 1);
        targets.push(Arc::new(
            Store::open_file(&files.path("new"), None).unwrap(),
        ));
        let error = Volume::open(targets).unwrap_err().to_string();
        assert!(
            error.contains("each may have been used without the other"),
            "{error}"
        );
    }
}

/// A copy that was away when others counted as gone knows none of those that have replaced all that it knew. An operator gives
/// it back as the error says.
#[test]
fn a_copy_that_nobody_knows_any_more_returns_by_a_replacement() {
    let files = Files::new("mirror-3");
    let volume = Volume::open(files.targets(|_| true)).unwrap();
    volume.write(300, &content(1)).unwrap();
    volume.flush().unwrap();
    drop(volume);
    let volume = Volume::open_without_absent(files.targets(|index| index == 0), None).unwrap();
    let replaced = [1, 0].map(|index| {
        let name = format!("new {index}");
        let role = files.role(index);
        volume.replace(files.create(role, &name, false)).unwrap();
        volume.rebuild(role).unwrap();
        name
    });
    volume.write(300, &content(2)).unwrap();
    volume.flush().unwrap();
    drop(volume);
    let new = || {
        let open = |name: &String| -> Arc<dyn Target> {
            Arc::new(Store::open_file(&files.path(name), None).unwrap())
        };
        replaced.iter().map(open).collect::<Vec<_>>()
    };
    let refused = Volume::open([new(), files.targets(|index| index == 2)].concat());
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("xgvmi-blk ctl replace"), "{error}");
    let volume = Volume::open(new()).unwrap();
    let error = volume.attach(files.target(2)).unwrap_err().to_string();
    assert!(error.contains("xgvmi-blk ctl replace"), "{error}");
    volume.replace(files.target(2)).unwrap();
    volume.rebuild(files.role(2)).unwrap();
    for lost in [0, 1] {
        volume.detach(files.role(lost), "it is lost");
        check(&volume, 2);
    }
}

/// What waits for a flush is given to a new target when it takes its place: it lacks nothing, also if the process dies then.
#[test]
fn a_new_target_has_what_waits_for_a_flush() {
    for layout in LAYOUTS {
        let files = Files::new(layout);
        let volume = Volume::open(files.targets(|_| true)).unwrap();
        volume.write(300, &content(1)).unwrap();
        let role = files.role(0);
        volume.replace(files.create(role, "new", false)).unwrap();
        assert_eq!(volume.missing_blocks(role), 0, "{layout}");
        assert!(volume.is_complete(role), "{layout}");
        drop(volume);
        let mut targets = files.targets(|index| index != 0);
        targets.push(Arc::new(
            Store::open_file(&files.path("new"), None).unwrap(),
        ));
        let volume = Volume::open(targets).unwrap();
        for lost in files.layout.roles().rev().take(files.layout.spare()) {
            volume.detach(lost, "it is lost");
        }
        check(&volume, 1);
    }
}

#[test]
fn a_target_of_each_layout_is_replaced_while_it_serves() {
    for layout in LAYOUTS {
        let files = Files::new(layout);
        let volume = Volume::open(files.targets(|_| true)).unwrap();
        volume.write(300, &content(1)).unwrap();
        let role = files.role(files.layout.targets() - 1);
        volume.replace(files.create(role, "new", false)).unwrap();
        volume.rebuild(role).unwrap();
        volume.write(300, &content(2)).unwrap();
        drop(volume);
        // The old one is refused, and the new one holds its part.
        let mut targets = files.targets(|index| index != role.index());
        targets.push(Arc::new(
            Store::open_file(&files.path("new"), None).unwrap(),
        ));
        let volume = Volume::open(targets).unwrap();
        volume.detach(role, "the old one is named");
        let refused = volume.attach(files.target(role.index())).unwrap_err();
        assert!(
            refused.to_string().contains("has taken its place"),
            "{refused}"
        );
        let new = Arc::new(Store::open_file(&files.path("new"), None).unwrap());
        volume.attach(new).unwrap();
        volume.rebuild(role).unwrap();
        for lost in files.layout.roles().take(files.layout.spare()) {
            volume.detach(lost, "it is lost");
        }
        check(&volume, 2);
    }
}

#[test]
fn snapshots_and_growth_work_in_each_layout() {
    for layout in LAYOUTS {
        let files = Files::new(layout);
        let volume = Volume::open(files.targets(|_| true)).unwrap();
        volume.write(300, &content(1)).unwrap();
        volume.create_snapshot("before", false).unwrap();
        volume.write(300, &content(2)).unwrap();
        volume.grow(128 << 10).unwrap();
        volume.close().unwrap();
        drop(volume);
        let volume = Volume::open(files.targets(|_| true)).unwrap();
        assert_eq!(volume.geometry().size(), 128 << 10, "{layout}");
        for lost in files.layout.roles().take(files.layout.spare()) {
            volume.detach(lost, "it is lost");
        }
        check(&volume, 2);
        let mut back = vec![0; 5000];
        volume.read_snapshot("before", 300, &mut back).unwrap();
        assert!(back == content(1), "{layout}");
    }
}

#[test]
fn targets_of_different_layouts_are_refused() {
    let (files, others) = (Files::new("mirror-2"), Files::new("mirror-3"));
    let mut targets = files.targets(|_| true);
    targets.extend(others.targets(|index| index == 2));
    let error = Volume::open(targets).unwrap_err().to_string();
    assert!(error.contains("layout mirror-2 and mirror-3"), "{error}");
}

/// One that has returned does not count until it is completed. A request that needs it waits for that, though it is there.
#[test]
fn a_request_waits_until_one_that_has_returned_is_completed() {
    let files = Files::new("2+2");
    let volume = Volume::open(files.targets(|_| true)).unwrap();
    volume.set_outage_limit(std::time::Duration::from_secs(60));
    let seats = &volume.seats;
    volume.detach(files.role(0), "the test says so");
    let target = files.target(0);
    seats.take(&target, || ());
    seats.arrived(&target);
    let wait = |error| seats.wait_for_return(seats.returns(), std::time::Instant::now(), &error);
    assert!(!wait(BlkError::Offline(files.role(0))), "all are there");
    std::thread::scope(|scope| {
        let before = seats.attempts();
        let waits = scope.spawn(|| {
            wait(BlkError::TooFewTargets {
                layout: files.layout,
                usable: 1,
                reasons: String::new(),
            })
        });
        while seats.attempts() == before {
            std::thread::yield_now();
        }
        seats.trusted(&target);
        assert!(waits.join().unwrap());
    });
}

/// A copy that was full lacks nothing any more: what it lacked was written again. It counts again only when it is completed, which
/// it must therefore not seem to be.
#[test]
fn a_copy_that_was_full_is_completed_before_it_counts() {
    let files = Files::new("mirror-2");
    let path = files.path(&files.role(0).to_string());
    let small = Arc::new(Store::open_file(&path, Some(4 << 10)).unwrap());
    let volume = Volume::open(vec![small, files.target(1)]).unwrap();
    volume.write(0, &content(1)).unwrap();
    assert_ne!(volume.missing_blocks(files.role(0)), 0);
    volume.write_zeroes(0, 64 << 10, false).unwrap();
    assert_eq!(volume.missing_blocks(files.role(0)), 0);
    assert!(!volume.is_complete(files.role(0)));
    volume.rebuild(files.role(0)).unwrap();
    assert!(volume.is_complete(files.role(0)));
    volume.detach(files.role(1), "the test says so");
    volume.write(0, &content(2)[..1024]).unwrap();
}
