//! Tests of what a loss of power leaves, of failed syncs, and of space that waits for a sync.

use super::*;

/// A medium with a volatile cache, a limit of space, and syncs that may fail.
#[derive(Clone, Default)]
struct Cached {
    state: Arc<Mutex<CachedState>>,
}

#[derive(Default)]
struct CachedState {
    seen: Vec<u8>,
    durable: Vec<u8>,
    size_max: usize,
    /// The next sync fails, and drops what it could not write, as Linux does.
    fails: Option<i32>,
    pending: Vec<(usize, Vec<u8>)>,
    syncs: u64,
}

fn put(into: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    into.resize(into.len().max(at + bytes.len()), 0);
    into[at..at + bytes.len()].copy_from_slice(bytes);
}

impl Cached {
    fn new() -> Self {
        let cached = Self::default();
        cached.state.lock().unwrap().size_max = usize::MAX;
        cached
    }

    /// The medium after a loss of power.
    fn after_loss(&self) -> Self {
        let durable = self.state.lock().unwrap().durable.clone();
        let state = CachedState {
            seen: durable.clone(),
            durable,
            size_max: usize::MAX,
            ..CachedState::default()
        };
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }

    fn open(&self) -> Store {
        Store::open("t", Box::new(self.clone()), None).unwrap()
    }
}

impl Medium for Cached {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let state = self.state.lock().unwrap();
        let at = usize::try_from(offset).unwrap();
        for (at, byte) in (at..).zip(bytes) {
            *byte = state.seen.get(at).copied().unwrap_or(0);
        }
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        let at = usize::try_from(offset).unwrap();
        if at + bytes.len() > state.size_max {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        put(&mut state.seen, at, bytes);
        state.pending.push((at, bytes.to_vec()));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        state.syncs += 1;
        let pending = std::mem::take(&mut state.pending);
        if let Some(errno) = state.fails.take() {
            return Err(io::Error::from_raw_os_error(errno));
        }
        for (at, bytes) in pending {
            put(&mut state.durable, at, &bytes);
        }
        Ok(())
    }

    fn release(&self, _: u64, _: u64) {}
}

fn write(store: &Store, block: u64, generation: u64) {
    let byte = generation.to_le_bytes()[0];
    store
        .prepare(block, &half(generation, byte), generation - 1)
        .unwrap();
    store.commit(block, generation).unwrap();
}

fn create(medium: &Cached) -> Store {
    Store::create("t", Box::new(medium.clone()), new_target(), None).unwrap()
}

#[test]
fn a_loss_of_power_leaves_the_last_generation_that_was_flushed() {
    let medium = Cached::new();
    let store = create(&medium);
    write(&store, 0, 1);
    store.flush().unwrap();
    for generation in 2..9 {
        write(&store, 0, generation);
        // Everything reaches the medium but the records, which a new sync would write.
        let after = medium.after_loss();
        let entry = {
            let state = medium.state.lock().unwrap();
            let at = usize::try_from(shape().slot_at(0)).unwrap();
            state.seen[at..at + layout::SECTOR].to_vec()
        };
        after.write(shape().slot_at(0), &entry).unwrap();
        let again = after.open();
        assert_eq!(again.fetch(0, 1).unwrap(), half(1, 1), "{generation}");
        assert!(again.fetch(0, generation).is_err(), "it was not flushed");
    }
    store.flush().unwrap();
    let generations: Vec<u64> = {
        let held = store.held().unwrap();
        held.iter().map(|held| held.generation).collect()
    };
    assert_eq!(generations, [8], "the others are not needed any more");
    // Their space is used again after one more.
    store.flush().unwrap();
    let used = store.usage().used;
    for _ in 0..3 {
        let used = store.usage().used;
        assert!(
            used <= Space::rounded((HEADER + half(8, 8).data.len()) as u64),
            "{used}"
        );
    }
    assert!(used > 0);
}

/// After a failed sync, what was written before it counts as durable only when another one has written it again.
#[test]
fn a_failed_sync_makes_nothing_durable() {
    for errno in [libc::EIO, libc::ENOSPC] {
        for marks in [false, true] {
            let medium = Cached::new();
            let store = create(&medium);
            write(&store, 0, 1);
            store.flush().unwrap();
            write(&store, 0, 2);
            medium.state.lock().unwrap().fails = Some(errno);
            let failed = match marks {
                false => store.flush(),
                true => store.mark(1, Mark::Owned),
            };
            failed.unwrap_err();
            // The medium has dropped it. This sync writes other things.
            store.mark(1, Mark::Owned).unwrap();
            let again = medium.after_loss().open();
            assert_eq!(again.fetch(0, 1).unwrap(), half(1, 1));
            again.fetch(0, 2).unwrap_err();
            write(&store, 1, 3);
            store.flush().unwrap();
            let again = medium.after_loss().open();
            assert_eq!(again.fetch(0, 2).unwrap(), half(2, 2));
            assert_eq!(again.fetch(1, 3).unwrap(), half(3, 3));
            write(&store, 0, 4);
            store.flush().unwrap();
            assert_eq!(medium.after_loss().open().fetch(0, 4).unwrap(), half(4, 4));
        }
    }
}

/// The system has also dropped a record from its cache after a failed sync. The next sync says so, and the generation before
/// it stays.
#[test]
fn a_record_that_a_failed_sync_has_dropped_is_an_error_of_the_next_one() {
    let medium = Cached::new();
    let store = create(&medium);
    write(&store, 0, 1);
    store.flush().unwrap();
    write(&store, 0, 2);
    medium.state.lock().unwrap().fails = Some(libc::EIO);
    store.flush().unwrap_err();
    {
        let mut state = medium.state.lock().unwrap();
        state.seen = state.durable.clone();
    }
    let error = store.flush().unwrap_err();
    assert!(
        matches!(error, BlkError::Corrupt { block: 0, .. }),
        "{error}"
    );
    for _ in 0..2 {
        store.flush().unwrap();
        let again = medium.after_loss().open();
        assert_eq!(again.fetch(0, 1).unwrap(), half(1, 1));
    }
    write(&store, 0, 4);
    store.flush().unwrap();
    assert_eq!(medium.after_loss().open().fetch(0, 4).unwrap(), half(4, 4));
}

/// After a failed sync the next process finds in the cache what never reached the medium. Its opening makes that durable.
#[test]
fn an_opening_makes_durable_what_a_failed_sync_has_left_out() {
    let medium = Cached::new();
    let store = create(&medium);
    write(&store, 0, 1);
    store.flush().unwrap();
    for block in [0, 1] {
        write(&store, block, 2);
    }
    medium.state.lock().unwrap().fails = Some(libc::EIO);
    store.flush().unwrap_err();
    drop(store);
    drop(medium.open());
    let store = medium.after_loss().open();
    for block in [0, 1] {
        assert_eq!(store.fetch(block, 2).unwrap(), half(2, 2), "block {block}");
    }
}

/// Overwrites without a flush take a bounded part of the medium.
#[test]
fn overwrites_without_a_flush_do_not_grow_without_limit() {
    let medium = Shared::new();
    let store = store(&medium, None);
    let record = Space::rounded((HEADER + half(1, 1).data.len()) as u64);
    let rounds = 3 * (4 << 20) / record;
    let mut last = 0;
    for generation in 1..=rounds {
        write(&store, 0, generation);
        let extent = store
            .find(0, generation, &mut Looked::new())
            .unwrap()
            .extent()
            .unwrap();
        last = last.max(extent.end());
    }
    let grown = last - shape().data_at();
    assert!(grown < (5 << 20), "{grown} bytes for one block");
    assert!(grown > (3 << 20), "the limit was not reached");
}

/// A medium without space takes overwrites as long as a sync frees some.
#[test]
fn a_full_medium_without_a_limit_of_its_own_uses_its_space_again() {
    let record = Space::rounded((HEADER + half(1, 1).data.len()) as u64);
    let medium = Cached::new();
    let store = create(&medium);
    let start = shape().data_at();
    medium.state.lock().unwrap().size_max = usize::try_from(start + 5 * record).unwrap();
    for generation in 1..40 {
        for block in 0..2 {
            write(&store, block, generation);
        }
    }
    for block in 0..2 {
        assert_eq!(store.fetch(block, 39).unwrap(), half(39, 39));
    }
    // The same for several at once.
    let halves = [half(40, 40), half(40, 40)];
    let steps: Vec<Step<'_>> = (0..)
        .zip(&halves)
        .map(|(block, half)| Step::Prepare {
            block,
            half,
            keep: 39,
        })
        .collect();
    assert!(store.run(&steps).iter().all(Result::is_ok));
    let full = (2..9).find_map(|block| store.prepare(block, &half(1, 1), 0).err());
    assert!(full.is_some_and(|error| error.is_full()));
}
