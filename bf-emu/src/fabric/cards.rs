//! The locks of the cards, and sets of cards.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::lock::{SharedMutex, Taken};
use super::port::Identity;
use crate::model::topology::FUNCTIONS_MAX;
use crate::sys::Errno;

/// A set of cards: a bit for each, at the index of its first function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cards(u64);

const _: () = assert!(FUNCTIONS_MAX <= 64, "a card has one bit of 64");

impl Cards {
    pub(super) const NONE: Self = Self(0);

    /// The cards of this set and of another one.
    pub(crate) fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// True if all cards of another set are in this one.
    pub(super) fn contains(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }

    pub(super) fn is_behind(self, other: Self) -> bool {
        self.0.trailing_zeros() >= 64 - other.0.leading_zeros()
    }

    /// The first functions of the cards, in ascending order.
    pub(super) fn iter(self) -> impl Iterator<Item = usize> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let next = left.trailing_zeros();
            left &= left.wrapping_sub(1);
            (next < 64).then_some(next as usize)
        })
    }

    /// One card, by its first function.
    pub(super) fn one(card: usize) -> Self {
        u32::try_from(card).map_or(Self::NONE, |card| {
            Self(1_u64.checked_shl(card).unwrap_or(0))
        })
    }

    /// The first card.
    pub(super) fn first(self) -> Option<usize> {
        self.iter().next()
    }
}

/// The cards of a topology, in the process's own memory.
#[derive(Debug)]
pub(super) struct CardMap {
    /// By function: its card.
    of: [Cards; FUNCTIONS_MAX],
    all: Cards,
}

impl CardMap {
    /// The card of a function.
    pub(super) fn of(&self, function: usize) -> Cards {
        self.of.get(function).copied().unwrap_or(Cards::NONE)
    }

    pub(super) fn all(&self) -> Cards {
        self.all
    }

    pub(super) fn new(identities: &[Identity]) -> Self {
        let mut map = Self {
            of: [Cards::NONE; FUNCTIONS_MAX],
            all: Cards::NONE,
        };
        for (own, identity) in map.of.iter_mut().zip(identities) {
            let is_same = |other: &Identity| other.sys_image_guid == identity.sys_image_guid;
            *own = Cards(
                identities
                    .iter()
                    .position(is_same)
                    .map_or(0, |first| 1 << first),
            );
            map.all = map.all.and(*own);
        }
        map
    }
}

/// The locks of all cards, by the first function of each.
#[derive(Debug)]
#[repr(C)]
pub(super) struct CardLocks {
    locks: [CardLock; FUNCTIONS_MAX],
    /// Not 0 if a holder of a lock died during a change that is not repaired yet.
    damaged: AtomicU32,
}

#[derive(Debug)]
#[repr(C)]
struct CardLock {
    mutex: SharedMutex,
    /// How often a thread found it taken.
    waits: AtomicU64,
    /// Of these, how often that thread or the holder wanted the locks of all cards.
    waits_of_all: AtomicU64,
    /// The cards whose locks the last holder wanted. For the counters alone.
    wanted: AtomicU64,
}

impl CardLocks {
    /// Initialises the locks.
    ///
    /// # Errors
    /// The C library's error.
    ///
    /// # Safety
    /// No other thread may know them yet.
    pub(super) unsafe fn init(&self) -> Result<(), Errno> {
        for lock in &self.locks {
            // SAFETY: the caller's promise.
            unsafe { lock.mutex.init() }?;
        }
        Ok(())
    }

    /// Takes the lock of a card, for a thread that wants those of `wanted`, which may be `all`.
    pub(super) fn take(&self, card: usize, (wanted, all): (Cards, Cards)) {
        let Some(lock) = self.locks.get(card) else {
            return;
        };
        let taken = lock.mutex.try_lock().unwrap_or_else(|| {
            lock.waits.fetch_add(1, Ordering::Relaxed);
            let holder = Cards(lock.wanted.load(Ordering::Relaxed));
            if wanted == all || holder == all {
                lock.waits_of_all.fetch_add(1, Ordering::Relaxed);
            }
            lock.mutex.lock()
        });
        lock.wanted.store(wanted.0, Ordering::Relaxed);
        self.note(taken);
    }

    /// Takes a lock if that needs no wait.
    pub(super) fn try_take(&self, card: usize, wanted: Cards) -> bool {
        let Some(lock) = self.locks.get(card) else {
            return false;
        };
        let Some(taken) = lock.mutex.try_lock() else {
            return false;
        };
        lock.wanted.store(wanted.0, Ordering::Relaxed);
        self.note(taken);
        true
    }

    fn note(&self, taken: Taken) {
        if taken == Taken::OwnerDied {
            self.damaged.store(1, Ordering::Relaxed);
        }
    }

    /// Releases locks.
    ///
    /// # Safety
    /// The calling thread must hold them.
    pub(super) unsafe fn release(&self, cards: Cards) {
        for lock in cards.iter().filter_map(|card| self.locks.get(card)) {
            // SAFETY: the caller's promise.
            unsafe { lock.mutex.unlock() };
        }
    }

    /// The state is repaired.
    pub(super) fn repaired(&self) {
        self.damaged.store(0, Ordering::Relaxed);
    }

    /// How often a thread found a lock taken.
    pub(super) fn waits(&self, card: usize) -> u64 {
        let lock = self.locks.get(card);
        lock.map_or(0, |lock| lock.waits.load(Ordering::Relaxed))
    }

    /// How often one of two threads that met at a lock wanted all locks.
    pub(super) fn waits_of_all(&self, card: usize) -> u64 {
        let lock = self.locks.get(card);
        lock.map_or(0, |lock| lock.waits_of_all.load(Ordering::Relaxed))
    }

    /// True if a holder has died, as far as the locks of the calling thread tell.
    pub(super) fn are_damaged(&self) -> bool {
        self.damaged.load(Ordering::Relaxed) != 0
    }

    /// Number of the thread that holds a lock.
    pub(super) fn thread(&self, card: usize) -> u32 {
        self.locks.get(card).map_or(0, |lock| lock.mutex.thread())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_in_ascending_order() {
        let cards = Cards(1 << 5 | 1 << 63 | 1);
        assert_eq!(cards.iter().collect::<Vec<_>>(), [0, 5, 63]);
        assert_eq!(cards.first(), Some(0));
        assert_eq!((Cards::NONE.first(), Cards::NONE.iter().count()), (None, 0));
        assert!(cards.contains(Cards(1 << 5)) && !cards.contains(Cards(1 << 4)));
        for (one, other, expect) in [(4, 3, true), (4, 4, false), (3, 4, false), (4, 0, true)] {
            assert_eq!(Cards(one).is_behind(Cards(other)), expect, "{one} {other}");
        }
        assert!(!Cards(0b1010).is_behind(Cards(0b0100)));
        assert!(Cards(1 << 63).is_behind(Cards(1)));
    }
}
