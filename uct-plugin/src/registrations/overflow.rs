//! Registrations whose line another memory handle occupies: hash tables with linear probing.
//!
//! The address of a registration is stable during the life of its memory handle. The tables reuse
//! registrations and never free them: they keep their maximum size.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use crossbeam_utils::CachePadded;
use xgvmi_pool::BoundKey;

use super::registration::{Exported, Registration};
use crate::abi::{MdHandle, MemHandle};
use crate::forked;
use crate::memh::{SHARDS, mix, shard_of};

/// Number of registrations per allocation in one shard: a page.
const CHUNK: usize = 64;

/// Registrations by memory handle, in hash tables with a lock each.
#[derive(Debug)]
pub(super) struct Overflow {
    shards: [CachePadded<Mutex<Shard>>; SHARDS],
    /// Number of registrations here. Zero while every registration has its own line.
    count: AtomicUsize,
}

/// A hash table with linear probing, at most half full: a lookup touches one line of it.
#[derive(Debug)]
struct Shard {
    /// A power of two of entries, or none.
    entries: Vec<Entry>,
    /// Unused registrations. The list has capacity for all registrations of the shard.
    spare: Vec<&'static Registration>,
    /// Number of registrations in the shard.
    made: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Zero in an empty entry: no handle has this address.
    memh: usize,
    registration: Option<&'static Registration>,
}

impl Entry {
    const EMPTY: Self = Self {
        memh: 0,
        registration: None,
    };
}

impl Shard {
    const NONE: Self = Self {
        entries: Vec::new(),
        spare: Vec::new(),
        made: 0,
    };

    /// Index of the handle, or of the empty entry for it; `None` if the table has no entries.
    fn entry_at(&self, memh: usize, hash: u64) -> Option<usize> {
        let mask = self.entries.len().checked_sub(1)?;
        let mut at = index(hash) & mask;
        loop {
            let found = self.entries[at].memh;
            // Empty entries exist because the table is at most half full.
            if found == memh || found == Entry::EMPTY.memh {
                return Some(at);
            }
            at = (at + 1) & mask;
        }
    }

    fn find(&self, memh: usize, hash: u64) -> Option<&'static Registration> {
        self.entries[self.entry_at(memh, hash)?].registration
    }

    /// Removes a handle from the table.
    fn remove(&mut self, memh: usize, hash: u64) -> Option<&'static Registration> {
        let mut hole = self.entry_at(memh, hash)?;
        let removed = self.entries[hole].registration?;
        let mask = self.entries.len() - 1;
        let mut at = hole;
        // Moves up entries that a lookup would not find behind the hole.
        loop {
            at = (at + 1) & mask;
            let next = self.entries[at];
            if next.memh == Entry::EMPTY.memh {
                break;
            }
            let home = index(mix(next.memh));
            let is_displaced = at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask;
            if is_displaced {
                self.entries[hole] = next;
                hole = at;
            }
        }
        self.entries[hole] = Entry::EMPTY;
        Some(removed)
    }

    /// An unused registration, and space for it in the table; `None` if there is no memory for
    /// them.
    fn spare(&mut self) -> Option<&'static Registration> {
        match self.spare.pop() {
            Some(spare) => Some(spare),
            None => self.make_more(),
        }
    }

    #[cold]
    fn make_more(&mut self) -> Option<&'static Registration> {
        let made = self.made + CHUNK;
        let mut chunk = Vec::new();
        chunk.try_reserve_exact(CHUNK).ok()?;
        self.spare.try_reserve_exact(made).ok()?;
        let wanted = (2 * made).next_power_of_two();
        if wanted > self.entries.len() {
            let mut entries = Vec::new();
            entries.try_reserve_exact(wanted).ok()?;
            entries.resize(wanted, Entry::EMPTY);
            for old in std::mem::replace(&mut self.entries, entries) {
                if old.registration.is_some()
                    && let Some(at) = self.entry_at(old.memh, mix(old.memh))
                {
                    self.entries[at] = old;
                }
            }
        }
        chunk.resize_with(CHUNK, Registration::default);
        self.made = made;
        // Within the reserved capacity, so nothing moves.
        self.spare
            .extend(Box::leak(chunk.into_boxed_slice()).iter());
        self.spare.pop()
    }
}

#[expect(clippy::cast_possible_truncation, reason = "any of its bits will do")]
const fn index(hash: u64) -> usize {
    hash as usize
}

impl Overflow {
    pub(super) const fn new() -> Self {
        Self {
            shards: [const { CachePadded::new(Mutex::new(Shard::NONE)) }; SHARDS],
            count: AtomicUsize::new(0),
        }
    }

    /// True if it holds no registration. Exact for a handle whose registration was recorded before
    /// the call.
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Records memory that a domain has just registered. Returns the key of an older handle at the
    /// same address and of the same domain, which UCX freed without this library's knowledge. Without
    /// memory it records nothing, and UCX handles the registration.
    pub(super) fn note(
        &self,
        md: MdHandle,
        memh: MemHandle,
        address: usize,
        length: usize,
    ) -> Option<BoundKey> {
        let (memh, hash) = (memh.addr(), mix(memh.addr()));
        let mut shard = self.shard(hash)?;
        let spare = shard.spare()?;
        let at = shard.entry_at(memh, hash)?;
        let (registration, before) = match shard.entries[at].registration {
            None => {
                shard.entries[at] = Entry {
                    memh,
                    registration: Some(spare),
                };
                self.count.fetch_add(1, Ordering::Relaxed);
                (spare, Exported::No)
            }
            Some(found) => {
                shard.spare.push(spare);
                match found.md.load(Ordering::Relaxed) == md.addr() {
                    true => (found, found.exported()),
                    false => (found, Exported::No),
                }
            }
        };
        registration.fill(md, address, length);
        match before {
            Exported::FromPool(key) => Some(key),
            Exported::No | Exported::Natively => None,
        }
    }

    /// The registration of a live memory handle.
    pub(super) fn find(&self, memh: MemHandle) -> Option<&'static Registration> {
        let (memh, hash) = (memh.addr(), mix(memh.addr()));
        self.shard(hash)?.find(memh, hash)
    }

    /// Removes a memory handle. Returns its kind of export; `None` if `md` names another domain than
    /// the handle's.
    pub(super) fn forget_of(&self, memh: MemHandle, md: Option<usize>) -> Option<Exported> {
        let (memh, hash) = (memh.addr(), mix(memh.addr()));
        let mut shard = self.shard(hash)?;
        let registration = shard.remove(memh, hash)?;
        let exported = registration.exported();
        let of = registration.md.load(Ordering::Relaxed);
        shard.spare.push(registration);
        self.count.fetch_sub(1, Ordering::Relaxed);
        md.is_none_or(|md| md == of).then_some(exported)
    }

    /// Removes all memory of a domain, and passes each exported key of it to `each`, which runs
    /// without a lock.
    pub(super) fn forget_all(&self, md: usize, mut each: impl FnMut(BoundKey)) {
        /// Number of keys per batch, to limit memory use.
        const AT_ONCE: usize = 32;
        for shard in &self.shards {
            loop {
                let mut keys = [None; AT_ONCE];
                let mut taken = 0;
                {
                    let Some(mut shard) = forked::lock(shard) else {
                        break;
                    };
                    let of_domain = |entry: &&Entry| {
                        let registration = entry.registration.as_ref();
                        registration.is_some_and(|known| known.md.load(Ordering::Relaxed) == md)
                    };
                    let mut gone = [0; AT_ONCE];
                    for (gone, entry) in gone.iter_mut().zip(shard.entries.iter().filter(of_domain))
                    {
                        *gone = entry.memh;
                        taken += 1;
                    }
                    for (key, memh) in keys.iter_mut().zip(gone.into_iter().take(taken)) {
                        if let Some(registration) = shard.remove(memh, mix(memh)) {
                            if let Exported::FromPool(bound) = registration.exported() {
                                *key = Some(bound);
                            }
                            shard.spare.push(registration);
                            self.count.fetch_sub(1, Ordering::Relaxed);
                        }
                    }
                }
                keys.into_iter().flatten().for_each(&mut each);
                if taken < AT_ONCE {
                    break;
                }
            }
        }
    }

    fn shard(&self, hash: u64) -> Option<MutexGuard<'_, Shard>> {
        forked::lock(&self.shards[shard_of(hash)])
    }
}

#[cfg(test)]
impl Overflow {
    /// Number of registrations that it ever allocated.
    fn made(&self) -> usize {
        let shards = self.shards.iter();
        shards
            .filter_map(|shard| Some(forked::lock(shard)?.made))
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::without_provenance_mut;

    const KEY: BoundKey = BoundKey::from_bits(0x1234_56fb_0000_0007);

    fn handle(at: usize) -> MemHandle {
        without_provenance_mut(0x7f00_0000_0000 + 64 * at)
    }

    #[test]
    fn a_registration_is_found_until_it_is_forgotten() {
        let table = Overflow::new();
        let md = without_provenance_mut(0x1000);
        for at in 0..1000 {
            assert_eq!(table.note(md, handle(at), at, 2 * at), None);
        }
        let found = table.find(handle(7)).expect("noted");
        assert_eq!((found.address(), found.length()), (7, 14));
        assert!(table.find(handle(1000)).is_none());
        assert_eq!(table.forget_of(handle(7), None), Some(Exported::No));
        assert_eq!(table.forget_of(handle(7), None), None);
        assert!(table.find(handle(7)).is_none());
    }

    #[test]
    fn the_first_decision_holds() {
        let table = Overflow::new();
        let md = without_provenance_mut(0x1000);
        table.note(md, handle(1), 1, 1);
        let found = table.find(handle(1)).expect("noted");
        assert_eq!(found.exported(), Exported::No);
        assert_eq!(found.decide(Exported::FromPool(KEY)), Ok(()));
        let before = Exported::FromPool(KEY);
        assert_eq!(found.decide(Exported::Natively), Err(before));
        assert_eq!(found.exported(), before);
        // A second record of a handle means that it was freed without this library's knowledge.
        assert_eq!(table.note(md, handle(1), 2, 2), Some(KEY));
        assert_eq!(found.exported(), Exported::No);
        assert_eq!(found.decide(Exported::Natively), Ok(()));
        assert_eq!(table.forget_of(handle(1), None), Some(Exported::Natively));
    }

    #[test]
    fn lines_are_used_again() {
        let table = Overflow::new();
        let md = without_provenance_mut(0x1000);
        for round in 0..100 {
            for at in 0..500 {
                table.note(md, handle(1000 * round + at), at, 1);
            }
            for at in 0..500 {
                assert!(table.forget_of(handle(1000 * round + at), None).is_some());
            }
        }
        assert!(table.is_empty());
        let made = table.made();
        assert!(made <= 500 + SHARDS * 2 * CHUNK, "{made}");
    }

    #[test]
    fn a_domain_is_forgotten_and_others_stay() {
        let table = Overflow::new();
        let mds = [0x1000, 0x2000].map(without_provenance_mut);
        for at in 0..1000 {
            table.note(mds[at % 2], handle(at), at, 1);
            if at % 4 == 0 {
                let found = table.find(handle(at)).expect("noted");
                found.decide(Exported::FromPool(KEY)).expect("the first");
            }
        }
        let mut keys = 0;
        table.forget_all(0x1000, |_key| keys += 1);
        assert_eq!(keys, 250);
        let left = (0..1000).filter(|at| table.find(handle(*at)).is_some());
        assert!(left.eq((0..1000).filter(|at| at % 2 == 1)));
    }
}
