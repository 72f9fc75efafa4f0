//! Registrations of a memory domain: address, length and kind of export.
//!
//! A registration is one cache line. Its address is stable during the life of its memory handle, so
//! an export looks it up once and then uses it without a lock. The table reuses lines for other
//! registrations and never frees them: it keeps its maximum size.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crossbeam_utils::CachePadded;
use xgvmi_pool::BoundKey;

use crate::abi::{MdHandle, MemHandle};
use crate::memh::{SHARDS, mix, shard_of};

/// Number of registrations per allocation in one shard: a page.
const CHUNK: usize = 64;

/// Registered memory of a domain. The fields are atomics: a concurrent use of a reused line, which
/// UCX's interface forbids, gives wrong values but no undefined behaviour.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Registration {
    md: AtomicUsize,
    address: AtomicUsize,
    length: AtomicUsize,
    /// [`UNDECIDED`], [`NATIVELY`], or the bits of a bound key.
    exported: AtomicU64,
}

const _: () = assert!(size_of::<Registration>() == 64);

/// No key has these bits: they are above 2^32.
const UNDECIDED: u64 = 0;
const NATIVELY: u64 = 1;

/// Kind of export of a memory handle. The first export decides, and all importers of the handle
/// then get one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exported {
    /// Not exported.
    No,
    /// By UCX's own operation.
    Natively,
    /// With a key of the pool.
    FromPool(BoundKey),
}

impl Exported {
    const fn of(bits: u64) -> Self {
        match bits {
            UNDECIDED => Self::No,
            NATIVELY => Self::Natively,
            bits => Self::FromPool(BoundKey::from_bits(bits)),
        }
    }

    const fn bits(self) -> u64 {
        match self {
            Self::No => UNDECIDED,
            Self::Natively => NATIVELY,
            Self::FromPool(key) => key.to_bits(),
        }
    }
}

impl Registration {
    /// First byte.
    #[inline]
    pub(crate) fn address(&self) -> usize {
        self.address.load(Ordering::Relaxed)
    }

    /// Length in bytes.
    #[inline]
    pub(crate) fn length(&self) -> usize {
        self.length.load(Ordering::Relaxed)
    }

    /// The kind of export.
    #[inline]
    pub(crate) fn exported(&self) -> Exported {
        Exported::of(self.exported.load(Ordering::Acquire))
    }

    /// Decides the kind of export, unless it was decided before.
    ///
    /// # Errors
    /// The earlier decision.
    #[inline]
    pub(crate) fn decide(&self, exported: Exported) -> Result<(), Exported> {
        let order = (Ordering::AcqRel, Ordering::Acquire);
        self.exported
            .compare_exchange(UNDECIDED, exported.bits(), order.0, order.1)
            .map(drop)
            .map_err(Exported::of)
    }
}

/// Registered memory of all served domains.
pub(crate) static REGISTRATIONS: Registrations = Registrations::new();

/// The registrations by memory handle.
#[derive(Debug)]
pub(crate) struct Registrations {
    shards: [CachePadded<Mutex<Shard>>; SHARDS],
}

/// A hash table with linear probing, at most half full: a lookup touches one line of it.
#[derive(Debug)]
struct Shard {
    /// A power of two of entries, or none.
    places: Vec<Place>,
    /// Unused registrations. The list has capacity for all registrations of the shard.
    spare: Vec<&'static Registration>,
    /// Number of registrations in the shard.
    made: usize,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    /// Zero in an empty entry: no handle has this address.
    memh: usize,
    registration: Option<&'static Registration>,
}

impl Place {
    const EMPTY: Self = Self {
        memh: 0,
        registration: None,
    };
}

impl Shard {
    const NONE: Self = Self {
        places: Vec::new(),
        spare: Vec::new(),
        made: 0,
    };

    /// Index of the handle, or of the empty entry for it; `None` if the table has no entries.
    #[inline]
    fn place(&self, memh: usize, hash: u64) -> Option<usize> {
        let mask = self.places.len().checked_sub(1)?;
        let mut at = index(hash) & mask;
        loop {
            let found = self.places[at].memh;
            // Empty entries exist because the table is at most half full.
            if found == memh || found == Place::EMPTY.memh {
                return Some(at);
            }
            at = (at + 1) & mask;
        }
    }

    #[inline]
    fn find(&self, memh: usize, hash: u64) -> Option<&'static Registration> {
        self.places[self.place(memh, hash)?].registration
    }

    /// Removes a handle from the table.
    #[inline]
    fn remove(&mut self, memh: usize, hash: u64) -> Option<&'static Registration> {
        let mut hole = self.place(memh, hash)?;
        let removed = self.places[hole].registration?;
        let mask = self.places.len() - 1;
        let mut at = hole;
        // Moves up entries that a lookup would not find behind the hole.
        loop {
            at = (at + 1) & mask;
            let next = self.places[at];
            if next.memh == Place::EMPTY.memh {
                break;
            }
            let home = index(mix(next.memh));
            let is_displaced = at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask;
            if is_displaced {
                self.places[hole] = next;
                hole = at;
            }
        }
        self.places[hole] = Place::EMPTY;
        Some(removed)
    }

    /// An unused registration, and space for it in the table; `None` if there is no memory for
    /// them.
    #[inline]
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
        if wanted > self.places.len() {
            let mut places = Vec::new();
            places.try_reserve_exact(wanted).ok()?;
            places.resize(wanted, Place::EMPTY);
            for place in std::mem::replace(&mut self.places, places) {
                if place.registration.is_some()
                    && let Some(at) = self.place(place.memh, mix(place.memh))
                {
                    self.places[at] = place;
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

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "any of its bits will do")]
const fn index(hash: u64) -> usize {
    hash as usize
}

impl Registrations {
    const fn new() -> Self {
        Self {
            shards: [const { CachePadded::new(Mutex::new(Shard::NONE)) }; SHARDS],
        }
    }

    /// Records memory that a domain has just registered. Returns the key of an older handle at the
    /// same address, which UCX freed without this library's knowledge. Without memory it records
    /// nothing, and UCX handles the registration.
    #[inline]
    pub(crate) fn note(
        &self,
        md: MdHandle,
        memh: MemHandle,
        address: usize,
        length: usize,
    ) -> Option<BoundKey> {
        let (memh, hash) = (memh.addr(), mix(memh.addr()));
        let mut shard = self.shard(hash);
        let spare = shard.spare()?;
        let at = shard.place(memh, hash)?;
        let (registration, before) = match shard.places[at].registration {
            None => {
                shard.places[at] = Place {
                    memh,
                    registration: Some(spare),
                };
                (spare, Exported::No)
            }
            Some(found) => {
                shard.spare.push(spare);
                (found, found.exported())
            }
        };
        registration.md.store(md.addr(), Ordering::Relaxed);
        registration.address.store(address, Ordering::Relaxed);
        registration.length.store(length, Ordering::Relaxed);
        registration.exported.store(UNDECIDED, Ordering::Release);
        match before {
            Exported::FromPool(key) => Some(key),
            Exported::No | Exported::Natively => None,
        }
    }

    /// The registration of a live memory handle.
    #[inline]
    pub(crate) fn find(&self, memh: MemHandle) -> Option<&'static Registration> {
        let (memh, hash) = (memh.addr(), mix(memh.addr()));
        self.shard(hash).find(memh, hash)
    }

    /// Removes a memory handle. Returns its kind of export.
    #[inline]
    pub(crate) fn forget(&self, memh: MemHandle) -> Option<Exported> {
        let (memh, hash) = (memh.addr(), mix(memh.addr()));
        let mut shard = self.shard(hash);
        let registration = shard.remove(memh, hash)?;
        let exported = registration.exported();
        shard.spare.push(registration);
        Some(exported)
    }

    /// Removes all memory of a domain, and passes each exported key of it to `each`, which runs
    /// without a lock.
    pub(crate) fn forget_all(&self, md: usize, mut each: impl FnMut(BoundKey)) {
        /// Number of keys per batch, to limit memory use.
        const AT_ONCE: usize = 32;
        for shard in &self.shards {
            loop {
                let mut keys = [None; AT_ONCE];
                let mut taken = 0;
                {
                    let mut shard = lock(shard);
                    let of_domain = |place: &&Place| {
                        let registration = place.registration.as_ref();
                        registration.is_some_and(|known| known.md.load(Ordering::Relaxed) == md)
                    };
                    let mut gone = [0; AT_ONCE];
                    for (gone, place) in gone.iter_mut().zip(shard.places.iter().filter(of_domain))
                    {
                        *gone = place.memh;
                        taken += 1;
                    }
                    for (key, memh) in keys.iter_mut().zip(gone.into_iter().take(taken)) {
                        if let Some(registration) = shard.remove(memh, mix(memh)) {
                            if let Exported::FromPool(bound) = registration.exported() {
                                *key = Some(bound);
                            }
                            shard.spare.push(registration);
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

    #[inline]
    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        lock(&self.shards[shard_of(hash)])
    }
}

#[inline]
fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
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
        let table = Registrations::new();
        let md = without_provenance_mut(0x1000);
        for at in 0..1000 {
            assert_eq!(table.note(md, handle(at), at, 2 * at), None);
        }
        let found = table.find(handle(7)).expect("noted");
        assert_eq!((found.address(), found.length()), (7, 14));
        assert!(table.find(handle(1000)).is_none());
        assert_eq!(table.forget(handle(7)), Some(Exported::No));
        assert_eq!(table.forget(handle(7)), None);
        assert!(table.find(handle(7)).is_none());
    }

    #[test]
    fn the_first_decision_holds() {
        let table = Registrations::new();
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
        assert_eq!(table.forget(handle(1)), Some(Exported::Natively));
    }

    #[test]
    fn lines_are_used_again() {
        let table = Registrations::new();
        let md = without_provenance_mut(0x1000);
        let made = || {
            table
                .shards
                .iter()
                .map(|shard| lock(shard).made)
                .sum::<usize>()
        };
        for round in 0..100 {
            for at in 0..500 {
                table.note(md, handle(1000 * round + at), at, 1);
            }
            for at in 0..500 {
                assert!(table.forget(handle(1000 * round + at)).is_some());
            }
        }
        assert!(made() <= 500 + SHARDS * 2 * CHUNK, "{}", made());
    }

    #[test]
    fn a_domain_is_forgotten_and_others_stay() {
        let table = Registrations::new();
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
