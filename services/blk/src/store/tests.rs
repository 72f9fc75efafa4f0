//! Tests of one store: what it keeps, gives back and refuses.

use super::index::{AT_ONCE, Entry, MADE};
use super::*;
use crate::block::{encode, part_length};
use crate::record::HEADER;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

mod calls;
mod durable;

const BLOCKS: u64 = 16;

/// A medium that outlives its store, and fails from the n-th write on, as if the process had been killed.
#[derive(Clone, Default)]
struct Shared {
    bytes: Arc<MemoryMedium>,
    writes_left: Arc<AtomicU64>,
}

impl Shared {
    fn new() -> Self {
        let shared = Self::default();
        shared.writes_left.store(u64::MAX, Ordering::Relaxed);
        shared
    }
}

impl Medium for Shared {
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

    fn release(&self, offset: u64, length: u64) {
        self.bytes.release(offset, length);
    }
}

/// A half block of zeros.
fn zero(generation: u64) -> Half {
    Half {
        generation,
        kind: Kind::Zero,
        stored: 0,
        data: Vec::new().into(),
    }
}

fn new_target() -> NewTarget {
    NewTarget {
        geometry: Geometry::new(4096, BLOCKS).unwrap(),
        role: Role::FIRST,
        volume: Id([1; 16]),
        complete: true,
    }
}

fn shape() -> Shape {
    Shape::with_room(BLOCKS)
}

fn store(medium: &Shared, capacity: Option<u64>) -> Store {
    Store::create("t", Box::new(medium.clone()), new_target(), capacity).unwrap()
}

fn half(generation: u64, byte: u8) -> Half {
    let block: Vec<u8> = (0..4096u32)
        .map(|n| (n / 4).to_le_bytes()[0] ^ byte)
        .collect();
    let encoded = encode(crate::Layout::HALVES, &block);
    let data = encoded.parts[0].clone();
    Half {
        generation,
        kind: encoded.kind,
        stored: encoded.stored,
        data,
    }
}

#[test]
fn a_generation_stays_until_the_next_one_is_settled() {
    let medium = Shared::new();
    let store = store(&medium, None);
    store.prepare(3, &half(1, 1), 0).unwrap();
    store.commit(3, 1).unwrap();
    store.prepare(3, &half(2, 2), 1).unwrap();
    drop(store);
    let store = Store::open("t", Box::new(medium.clone()), None).unwrap();
    assert_eq!(store.fetch(3, 1).unwrap(), half(1, 1));
    assert_eq!(store.fetch(3, 2).unwrap(), half(2, 2));
    let settled: Vec<_> = store
        .held()
        .unwrap()
        .iter()
        .map(|held| (held.generation, held.settled))
        .collect();
    assert_eq!(
        settled,
        [(2, false), (1, true), (0, true)],
        "1 was not durable"
    );
    store.commit(3, 2).unwrap();
    assert!(matches!(store.fetch(3, 1), Err(BlkError::Absent { .. })));
    assert_eq!(store.fetch(3, 2).unwrap(), half(2, 2));
    assert!(matches!(store.commit(3, 1), Err(BlkError::Absent { .. })));
    assert!(matches!(store.fetch(BLOCKS, 1), Err(BlkError::Geometry(_))));
}

/// The process dies before each of the writes of five rounds. What was settled is there afterwards.
#[test]
fn a_store_that_is_killed_keeps_the_old_generation_or_both() {
    for writes in 0.. {
        let medium = Shared::new();
        let target = store(&medium, None);
        medium.writes_left.store(writes, Ordering::Relaxed);
        let mut settled = 0;
        let mut prepared = 0;
        for generation in 1..=5u8 {
            let number = u64::from(generation);
            if target
                .prepare(0, &half(number, generation), settled)
                .is_err()
            {
                break;
            }
            prepared = number;
            if target.commit(0, number).is_err() {
                break;
            }
            settled = number;
        }
        medium.writes_left.store(u64::MAX, Ordering::Relaxed);
        let again = Store::open("t", Box::new(medium.clone()), None).unwrap();
        for generation in [settled, prepared]
            .into_iter()
            .filter(|generation| *generation != 0)
        {
            let byte = u8::try_from(generation).unwrap();
            assert_eq!(
                again.fetch(0, generation).unwrap(),
                half(generation, byte),
                "{writes}"
            );
        }
        let held = again.held().unwrap();
        assert!(
            held.iter().all(|held| held.generation <= settled + 1),
            "{writes}: {held:?}"
        );
        if settled == 5 {
            assert_eq!(
                writes, 15,
                "a round has three writes: record, entry, settled entry"
            );
            return;
        }
    }
}

#[test]
fn space_is_taken_by_need_and_comes_back() {
    let medium = Shared::new();
    let record = HEADER as u64 + half(1, 1).data.len() as u64;
    let room = 3 * Space::rounded(record);
    let store = store(&medium, Some(room));
    assert_eq!(store.usage().used, 0);
    for block in 0..3 {
        store.prepare(block, &half(1, 1), 0).unwrap();
        store.commit(block, 1).unwrap();
    }
    assert_eq!(store.usage().used, room);
    let full = store.prepare(3, &half(1, 1), 0).unwrap_err();
    assert!(full.is_full(), "{full}");
    assert!(full.to_string().contains("is full"), "{full}");
    // Zeros take no space, and what they replace is used again.
    let zeros = Half {
        generation: 2,
        kind: Kind::Zero,
        stored: 0,
        data: Vec::new().into(),
    };
    store.prepare(0, &zeros, 1).unwrap();
    assert!(
        store.prepare(3, &half(1, 1), 0).is_err(),
        "generation 1 is still kept"
    );
    store.commit(0, 2).unwrap();
    store.prepare(3, &half(1, 1), 0).unwrap();
    assert_eq!(store.fetch(0, 2).unwrap(), zeros);
    assert_eq!(store.fetch(3, 1).unwrap(), half(1, 1));
    drop(store);
    let again = Store::open("t", Box::new(medium), Some(room)).unwrap();
    assert_eq!(again.usage().used, room);
    assert_eq!(again.fetch(0, 2).unwrap(), zeros);
}

/// A medium whose first sync lets another thread go on, and waits for that thread for some time.
struct SlowSync {
    bytes: MemoryMedium,
    began: Arc<Mutex<Option<Sender<()>>>>,
    other: Mutex<Receiver<()>>,
}

impl Medium for SlowSync {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.bytes.read(offset, bytes)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.bytes.write(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        if let Some(began) = self.began.lock().unwrap().take() {
            began.send(()).unwrap();
            // The other thread ends only if it does not wait for this sync.
            let _ = self
                .other
                .lock()
                .unwrap()
                .recv_timeout(Duration::from_millis(100));
        }
        Ok(())
    }

    fn release(&self, _: u64, _: u64) {}
}

#[test]
fn a_full_target_waits_for_the_space_that_the_sync_of_another_thread_frees() {
    let (began, has_begun) = channel();
    let (has_ended, other) = channel();
    let at_sync = Arc::new(Mutex::new(None));
    let medium = SlowSync {
        bytes: MemoryMedium::default(),
        began: Arc::clone(&at_sync),
        other: Mutex::new(other),
    };
    let record = Space::rounded(HEADER as u64 + half(1, 1).data.len() as u64);
    let store = Store::create("t", Box::new(medium), new_target(), Some(3 * record)).unwrap();
    for generation in 1..4 {
        // One record is current, and the two before it were freed.
        store
            .prepare(0, &half(generation, 1), generation - 1)
            .unwrap();
        store.commit(0, generation).unwrap();
    }
    *at_sync.lock().unwrap() = Some(began);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| store.prepare(1, &half(1, 1), 0));
        has_begun.recv().unwrap();
        store.prepare(2, &half(1, 1), 0).unwrap();
        // The sync may have ended.
        let _ = has_ended.send(());
        first.join().unwrap().unwrap();
    });
    assert!(store.prepare(3, &half(1, 1), 0).unwrap_err().is_full());
}

#[test]
fn a_flipped_bit_is_found() {
    let medium = Shared::new();
    let store = store(&medium, None);
    store.prepare(0, &half(1, 1), 0).unwrap();
    let at = shape().data_at() + HEADER as u64;
    let mut byte = [0];
    medium.bytes.read(at, &mut byte).unwrap();
    medium.bytes.write(at, &[byte[0] ^ 4]).unwrap();
    let error = store.fetch(0, 1).unwrap_err();
    assert!(error.is_repairable(), "{error}");
    store.prepare(0, &half(1, 1), 0).unwrap();
    assert_eq!(store.fetch(0, 1).unwrap(), half(1, 1));
}

#[test]
fn an_index_that_points_elsewhere_is_damaged() {
    let medium = Shared::new();
    let store = store(&medium, Some(1 << 20));
    store.prepare(0, &half(1, 1), 0).unwrap();
    drop(store);
    for extent in [
        Extent {
            offset: 0,
            length: 64,
        },
        Extent {
            offset: shape().data_at(),
            length: 63,
        },
        Extent {
            offset: shape().data_at(),
            length: 1 << 30,
        },
    ] {
        let entry = Entry::default();
        let entry = entry.prepare(Slot::new(1, Some(extent), Kind::Raw), 0, AT_ONCE);
        let entry = entry.unwrap().commit(1, AT_ONCE).unwrap();
        let at = shape().slot_at(0) + 8;
        medium.bytes.write(at, &entry.to_bytes(0)).unwrap();
        let store = Store::open("t", Box::new(medium.clone()), Some(1 << 20)).unwrap();
        let held = store.held().unwrap();
        assert_eq!(store.usage().damaged, 1, "{extent:?}");
        assert!(held.iter().any(|held| held.damaged), "{extent:?}");
        assert!(held.iter().all(|held| held.generation == 0), "{extent:?}");
    }
}

#[test]
fn the_epoch_is_kept() {
    let medium = Shared::new();
    let target = store(&medium, None);
    assert_eq!(target.identity().epoch, 0);
    for epoch in 1..5 {
        let (mark, standing, agreed) = match epoch {
            1 | 2 => (Mark::Owned, Standing::Returned, 0),
            3 => (Mark::Agreed, Standing::Returned, 3),
            _ => (Mark::Complete, Standing::Complete, 4),
        };
        target.mark(epoch, mark).unwrap();
        let again = Store::open("t", Box::new(medium.clone()), None).unwrap();
        let identity = again.identity();
        assert_eq!(
            (identity.epoch, identity.standing, identity.agreed),
            (epoch, standing, agreed)
        );
        assert_eq!(again.identity(), target.identity());
    }
    let beyond = target.mark(EPOCH_MAX + 1, Mark::Owned).unwrap_err();
    assert!(beyond.to_string().contains("the highest"), "{beyond}");
    assert_eq!(target.identity().epoch, 4);
}

#[test]
fn a_medium_without_target_is_refused() {
    for bytes in [&b""[..], b"XGVMIBLK", &[7; 9000]] {
        let medium = Shared::new();
        medium.bytes.write(0, bytes).unwrap();
        let error = Store::open("t", Box::new(medium), None).unwrap_err();
        assert!(matches!(error, BlkError::NotATarget { .. }), "{error}");
    }
}

#[test]
fn a_file_keeps_everything_and_has_one_owner() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t");
    let store = Store::create_file(&path, new_target(), None).unwrap();
    store.prepare(1, &half(1, 9), 0).unwrap();
    store.commit(1, 1).unwrap();
    store.flush().unwrap();
    let error = Store::open_file(&path, None).unwrap_err();
    assert!(matches!(error, BlkError::InUse { .. }), "{error}");
    drop(store);
    let store = Store::open_file(&path, None).unwrap();
    assert_eq!(store.fetch(1, 1).unwrap(), half(1, 9));
    assert_eq!(
        half(1, 9).data.len(),
        part_length(half(1, 9).stored, Role::FIRST)
    );
    assert!(Store::create_file(&path, new_target(), None).is_err());
}

/// Blocks in an order that is not that of the index.
fn shuffled() -> impl Iterator<Item = u64> {
    let even = (0..BLOCKS).filter(|block| block % 2 == 0);
    even.chain((0..BLOCKS).filter(|block| block % 2 == 1))
}

/// The generation of a block's half, and its contents.
fn half_of(block: u64, generation: u64) -> Half {
    match block % 5 {
        0 => zero(generation),
        other => half(generation, other.to_le_bytes()[0] * 17),
    }
}

/// Prepares and settles a generation of all blocks at once.
fn write_all(store: &Store, generation: u64) -> Vec<Result<Option<Half>>> {
    let halves: Vec<(u64, Half)> = shuffled()
        .map(|block| (block, half_of(block, generation)))
        .collect();
    let prepare: Vec<Step<'_>> = halves
        .iter()
        .map(|(block, half)| Step::Prepare {
            block: *block,
            half,
            keep: generation - 1,
        })
        .collect();
    let prepared = store.run(&prepare);
    let commit: Vec<Step<'_>> = shuffled()
        .map(|block| Step::Commit { block, generation })
        .collect();
    let settled = store.run(&commit);
    let both = prepared.into_iter().zip(settled);
    both.map(|(prepared, settled)| prepared.and(settled))
        .collect()
}

fn fetch_all(store: &Store, generation: u64) -> Vec<Result<Option<Half>>> {
    let fetch: Vec<Step<'_>> = shuffled()
        .map(|block| Step::Fetch { block, generation })
        .collect();
    store.run(&fetch)
}

#[test]
fn steps_of_adjacent_blocks_are_few_writes_and_keep_what_single_steps_keep() {
    let medium = Shared::new();
    let store = store(&medium, None);
    let before = medium.writes_left.load(Ordering::Relaxed);
    assert!(write_all(&store, 1).iter().all(Result::is_ok));
    let writes = before - medium.writes_left.load(Ordering::Relaxed);
    assert_eq!(writes, 3, "records, prepared entries, settled entries");
    drop(store);
    let store = Store::open("t", Box::new(medium), None).unwrap();
    for (block, found) in shuffled().zip(fetch_all(&store, 1)) {
        assert_eq!(found.unwrap().unwrap(), half_of(block, 1));
        assert_eq!(store.fetch(block, 1).unwrap(), half_of(block, 1));
    }
    let absent = fetch_all(&store, 2);
    assert!(
        absent
            .iter()
            .all(|found| matches!(found, Err(BlkError::Absent { .. })))
    );
}

/// Of an entry with three slots a step makes the one that it changes. What is dropped needs none.
#[test]
fn a_step_makes_one_slot_of_its_entry() {
    let store = store(&Shared::new(), None);
    let made = |work: &dyn Fn()| {
        let before = MADE.get();
        work();
        MADE.get() - before
    };
    let write = |generation| {
        assert!(write_all(&store, generation).iter().all(Result::is_ok));
    };
    let first = made(&|| write(1));
    assert_eq!(
        first,
        16 * 3 + 16,
        "entries of a new group, and settled slots"
    );
    for generation in 2..6 {
        assert_eq!(made(&|| store.flush().unwrap()), 0);
        assert_eq!(
            made(&|| write(generation)),
            2 * 16,
            "generation {generation}"
        );
    }
    for (block, found) in shuffled().zip(fetch_all(&store, 5)) {
        assert_eq!(found.unwrap().unwrap(), half_of(block, 5));
    }
}

#[test]
fn a_process_killed_within_steps_of_many_blocks_leaves_old_or_new() {
    let mut kept_new = false;
    for writes in 0..8 {
        let medium = Shared::new();
        let written = store(&medium, None);
        assert!(write_all(&written, 1).iter().all(Result::is_ok));
        medium.writes_left.store(writes, Ordering::Relaxed);
        let results = write_all(&written, 2);
        drop(written);
        medium.writes_left.store(u64::MAX, Ordering::Relaxed);
        let store = Store::open("t", Box::new(medium.clone()), None).unwrap();
        for ((block, result), new) in shuffled().zip(results).zip(fetch_all(&store, 2)) {
            let old = store.fetch(block, 1);
            assert!(old.is_ok() || new.is_ok(), "{writes}, block {block}");
            assert!(
                result.is_err() || new.is_ok(),
                "{writes}, block {block}: reported and absent"
            );
            kept_new |= result.is_ok();
            for (half, generation) in [(old.ok(), 1), (new.ok().flatten(), 2)] {
                assert!(half.is_none_or(|half| half == half_of(block, generation)));
            }
        }
    }
    assert!(kept_new, "no run has ended");
}

#[test]
fn a_full_target_takes_those_of_many_blocks_that_fit() {
    let medium = Shared::new();
    let store = store(&medium, Some(2048));
    let results = write_all(&store, 1);
    let fit = results.iter().filter(|result| result.is_ok()).count();
    assert!((1..results.len()).contains(&fit), "{fit}");
    for ((block, result), found) in shuffled().zip(results).zip(fetch_all(&store, 1)) {
        match result {
            Ok(_) => assert_eq!(found.unwrap().unwrap(), half_of(block, 1)),
            Err(_) => assert!(matches!(found, Err(BlkError::Absent { .. }))),
        }
    }
}

#[test]
fn a_wrong_record_spoils_only_itself() {
    let medium = Shared::new();
    let store = store(&medium, None);
    assert!(write_all(&store, 1).iter().all(Result::is_ok));
    let extent = store
        .find(7, 1, &mut Looked::new())
        .unwrap()
        .extent()
        .unwrap();
    medium
        .write(extent.offset + extent.length - 1, &[0xff])
        .unwrap();
    for (block, found) in shuffled().zip(fetch_all(&store, 1)) {
        assert_eq!(found.is_err(), block == 7, "{block}");
    }
}

/// Memory that ends, as an export of an NBD server does. A write behind its end is an error of another kind than a lack of
/// space.
struct Fixed {
    bytes: MemoryMedium,
    size: u64,
}

impl Medium for Fixed {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.bytes.read(offset, bytes)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if offset + bytes.len() as u64 > self.size {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.bytes.write(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn release(&self, _: u64, _: u64) {}

    fn size(&self) -> Option<u64> {
        Some(self.size)
    }
}

#[test]
fn a_medium_that_cannot_grow_is_full_at_its_end() {
    let fixed = |size| {
        let bytes = MemoryMedium::default();
        Box::new(Fixed { bytes, size })
    };
    let start = shape().data_at();
    let refused = Store::create("t", fixed(start - 1), new_target(), None).unwrap_err();
    let refused = refused.to_string();
    assert!(
        refused.contains(&format!("has {} bytes", start - 1))
            && refused.contains(&start.to_string()),
        "{refused}"
    );
    let record = Space::rounded((half(1, 1).data.len() + HEADER) as u64);
    // Room for three records and a part of the fourth. A larger limit of the user does not count.
    for capacity in [None, Some(1 << 20)] {
        let medium = fixed(start + 4 * record - 1);
        let store = Store::create("t", medium, new_target(), capacity).unwrap();
        for block in 0..3 {
            store.prepare(block, &half(1, 1), 0).unwrap();
            store.commit(block, 1).unwrap();
        }
        let full = store.prepare(3, &half(1, 1), 0).unwrap_err();
        assert!(full.is_full(), "{full}");
        // Space that a newer generation frees is used again.
        for generation in 2..9 {
            store.prepare(0, &zero(generation), generation - 1).unwrap();
            store.commit(0, generation).unwrap();
            store.prepare(3, &half(generation, 2), 0).unwrap();
            store.commit(3, generation).unwrap();
            store.prepare(3, &zero(generation + 1), generation).unwrap();
            store.commit(3, generation + 1).unwrap();
        }
        assert_eq!(store.usage().used, 2 * record);
    }
}

/// A process that is killed after its index got more sectors for groups in change leaves what is in them.
#[test]
fn a_kill_after_the_index_has_grown_loses_no_write() {
    let medium = Shared::new();
    let geometry = Geometry::new(4096, 1 << 16).unwrap();
    let new = NewTarget {
        geometry,
        ..new_target()
    };
    let shape = Shape::that_grows(geometry);
    let store = Store::create_with("t", Box::new(medium.clone()), new, shape, None).unwrap();
    let groups = 2 * shape.first_slots(geometry) - 1;
    for group in 0..groups {
        store.prepare(8 * group, &zero(1), 0).unwrap();
        store.commit(8 * group, 1).unwrap();
    }
    drop(store);
    let store = Store::open("t", Box::new(medium.clone()), None).unwrap();
    let held = store.held().unwrap().into_iter();
    let blocks: Vec<u64> = held
        .filter(|held| held.generation == 1)
        .map(|held| held.block)
        .collect();
    let all: Vec<u64> = (0..groups).map(|group| 8 * group).collect();
    assert!(blocks == all, "{} of {groups}", blocks.len());
}

/// A process that is killed at any write while groups of one unit move to the settled index leaves all of them.
#[test]
fn a_kill_while_groups_of_a_unit_settle_loses_none() {
    let geometry = Geometry::new(4096, 40).unwrap();
    let shape = Shape { room: 40, slots: 2 };
    for writes in 0.. {
        let medium = Shared::new();
        let new = NewTarget {
            geometry,
            ..new_target()
        };
        let store = Store::create_with("t", Box::new(medium.clone()), new, shape, None).unwrap();
        for block in [0, 32] {
            let stored = store.prepare(block, &zero(1), 0);
            // The second group may find no sector before a sync.
            if stored.is_err() {
                store.flush().unwrap();
                store.prepare(block, &zero(1), 0).unwrap();
            }
            store.commit(block, 1).unwrap();
        }
        medium.writes_left.store(writes, Ordering::Relaxed);
        for _ in 0..6 {
            let _ = store.flush();
        }
        let settled = medium.writes_left.load(Ordering::Relaxed) > 0;
        drop(store);
        medium.writes_left.store(u64::MAX, Ordering::Relaxed);
        let store = Store::open("t", Box::new(medium.clone()), None).unwrap();
        let held = store.held().unwrap().into_iter();
        let blocks: Vec<u64> = held
            .filter(|held| held.generation == 1)
            .map(|held| held.block)
            .collect();
        assert_eq!(blocks, [0, 32], "killed after {writes} writes");
        if settled {
            assert!(writes > 3, "{writes} writes settle nothing");
            return;
        }
    }
}
