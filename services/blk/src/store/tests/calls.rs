//! Calls of the medium for steps of many blocks.

use super::*;

/// A medium that counts its calls.
#[derive(Clone, Default)]
struct Counted {
    bytes: Arc<MemoryMedium>,
    reads: Arc<AtomicU64>,
    writes: Arc<AtomicU64>,
}

impl Medium for Counted {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.bytes.read(offset, bytes)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.bytes.write(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn release(&self, offset: u64, length: u64) {
        self.bytes.release(offset, length);
    }
}

impl Counted {
    /// Reads and writes since the last look.
    fn calls(&self) -> [u64; 2] {
        [&self.reads, &self.writes].map(|calls| calls.swap(0, Ordering::Relaxed))
    }
}

/// 64 blocks whose entries are in the settled index take one read of it, and one call for the records and each of the two
/// steps. A read of them takes two.
#[test]
fn many_blocks_of_the_settled_index_are_few_calls() {
    const MANY: u64 = 64;
    let medium = Counted::default();
    let geometry = Geometry::new(4096, 4 * MANY).unwrap();
    let shape = Shape {
        room: 4 * MANY,
        slots: 16,
    };
    let new = NewTarget {
        geometry,
        ..new_target()
    };
    let store = Store::create_with("t", Box::new(medium.clone()), new, shape, None).unwrap();
    let write = |blocks: Range<u64>, generation: u64| {
        let made: Vec<Half> = blocks.clone().map(|_| half(generation, 3)).collect();
        let halves = blocks.clone().zip(&made);
        let prepare: Vec<Step<'_>> = halves
            .map(|(block, half)| Step::Prepare {
                block,
                half,
                keep: generation - 1,
            })
            .collect();
        assert!(store.run(&prepare).iter().all(Result::is_ok));
        let commit = blocks.map(|block| Step::Commit { block, generation });
        let commit: Vec<Step<'_>> = commit.collect();
        assert!(store.run(&commit).iter().all(Result::is_ok));
    };
    let settle = || {
        for _ in 0..4 {
            store.flush().unwrap();
        }
        assert!(store.state().table.groups.is_empty(), "nothing is settled");
        medium.calls();
    };
    write(0..2 * MANY, 1);
    settle();
    write(MANY / 2..MANY / 2 + MANY, 2);
    assert_eq!(medium.calls(), [1, 3]);
    write(MANY / 2..MANY / 2 + MANY, 3);
    assert_eq!(medium.calls(), [0, 3], "the groups are in memory");
    write(0..2 * MANY, 4);
    settle();
    let fetch = (MANY / 2..MANY / 2 + MANY).map(|block| Step::Fetch {
        block,
        generation: 4,
    });
    let fetch: Vec<Step<'_>> = fetch.collect();
    for found in store.run(&fetch) {
        assert_eq!(found.unwrap().unwrap(), half(4, 3));
    }
    assert_eq!(medium.calls()[0], 2, "the index and the records");
}

/// Blocks anywhere that change one after the other have adjacent sectors, and the settled index gets its sectors by one call for
/// each unit: few calls settle many groups.
#[test]
fn many_groups_are_settled_by_few_calls() {
    const GROUPS: u64 = 96;
    let medium = Counted::default();
    let geometry = Geometry::new(4096, 32 * GROUPS).unwrap();
    let shape = Shape {
        room: 32 * GROUPS,
        slots: 100,
    };
    let new = NewTarget {
        geometry,
        ..new_target()
    };
    let store = Store::create_with("t", Box::new(medium.clone()), new, shape, None).unwrap();
    for generation in 1..4 {
        // Each group of four units, in another order than that of the index.
        for number in 0..GROUPS {
            let block = number * 35 % GROUPS * GROUP;
            store.prepare(block, &zero(generation), 0).unwrap();
            store.commit(block, generation).unwrap();
        }
        medium.calls();
        for _ in 0..4 {
            store.flush().unwrap();
        }
        assert!(store.state().table.groups.is_empty(), "nothing is settled");
        // Older generations, the units, the map, the sectors, which become empty, and superblocks.
        let [_, writes] = medium.calls();
        assert!(writes <= 12, "{writes} writes for {GROUPS} groups");
    }
}
