//! The locks of the cards. The lock of a card protects the objects of its functions; all locks together protect the state
//! that is common to all functions.
//!
//! A request of a connection takes the locks of its two cards, so connections between different cards never wait for each
//! other. Locks are taken in ascending order, or tried without waiting, so no two threads wait for each other.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::device::{Fabric, Locked};
use super::lock::{SharedMutex, Taken};
use super::port::Identity;
use crate::model::topology::FUNCTIONS_MAX;
use crate::sys::{self, Errno};

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

    fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// True if all cards of another set are in this one.
    pub(super) fn contains(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }

    fn is_behind(self, other: Self) -> bool {
        self.0.trailing_zeros() >= 64 - other.0.leading_zeros()
    }

    /// The first functions of the cards, in ascending order.
    fn iter(self) -> impl Iterator<Item = usize> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let next = left.trailing_zeros();
            left &= left.wrapping_sub(1);
            (next < 64).then_some(next as usize)
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

    /// Takes a lock.
    fn take(&self, card: usize) {
        let Some(lock) = self.locks.get(card) else {
            return;
        };
        let taken = lock.mutex.try_lock().unwrap_or_else(|| {
            lock.waits.fetch_add(1, Ordering::Relaxed);
            lock.mutex.lock()
        });
        self.note(taken);
    }

    /// Takes a lock if that needs no wait.
    fn try_take(&self, card: usize) -> bool {
        let taken = self.locks.get(card).and_then(|lock| lock.mutex.try_lock());
        taken.map(|taken| self.note(taken)).is_some()
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
    unsafe fn release(&self, cards: Cards) {
        for lock in cards.iter().filter_map(|card| self.locks.get(card)) {
            // SAFETY: the caller's promise.
            unsafe { lock.mutex.unlock() };
        }
    }

    /// True if a holder has died, as far as the locks of the calling thread tell.
    fn are_damaged(&self) -> bool {
        self.damaged.load(Ordering::Relaxed) != 0
    }

    /// Number of the thread that holds a lock.
    pub(super) fn thread(&self, card: usize) -> u32 {
        self.locks.get(card).map_or(0, |lock| lock.mutex.thread())
    }
}

impl Fabric {
    /// The card of a function.
    pub(crate) fn card_of(&self, function: usize) -> Cards {
        self.cards()
            .of
            .get(function)
            .copied()
            .unwrap_or(Cards::NONE)
    }

    /// All cards.
    pub(crate) fn all_cards(&self) -> Cards {
        self.cards().all
    }

    /// How often a thread had to wait for the lock of a function's card.
    #[must_use]
    pub fn lock_waits(&self, function: usize) -> u64 {
        let card = self.card_of(function).first();
        let lock = card.and_then(|card| self.locks().locks.get(card));
        lock.map_or(0, |lock| lock.waits.load(Ordering::Relaxed))
    }

    /// Takes the locks of all cards. The calling thread must not hold any. Its signals must be blocked: a signal handler
    /// that posts would otherwise wait for its own thread.
    #[must_use]
    pub fn lock(&self) -> Locked<'_> {
        Locked::new(self, self.all_cards())
    }

    /// Takes the locks of some cards, as in [`Fabric::lock`].
    #[must_use]
    pub(crate) fn lock_cards(&self, cards: Cards) -> Locked<'_> {
        Locked::new(self, cards)
    }

    /// Takes the lock of a function's card, as in [`Fabric::lock`].
    #[must_use]
    pub fn lock_function(&self, function: usize) -> Locked<'_> {
        Locked::new(self, self.card_of(function))
    }
}

impl<'a> Locked<'a> {
    fn new(fabric: &'a Fabric, wanted: Cards) -> Self {
        let mut locked = Self {
            fabric,
            held: Cards::NONE,
            sweeps: false,
            not_send: PhantomData,
        };
        locked.take(wanted);
        locked
    }

    /// True if the thread holds the lock of a function's card.
    #[must_use]
    pub(crate) fn holds(&self, function: usize) -> bool {
        let card = self.fabric.card_of(function);
        card != Cards::NONE && self.held.contains(card)
    }

    /// True if the thread holds all locks.
    #[must_use]
    pub(crate) fn is_whole(&self) -> bool {
        self.held == self.fabric.all_cards()
    }

    /// Releases the locks for a moment. Values read before may have changed.
    pub fn pause(&mut self) {
        let wanted = self.release_all();
        self.take(wanted);
    }

    /// Like [`Locked::pause`], until a given time.
    pub(crate) fn pause_until(&mut self, until_ns: u64) {
        let wanted = self.release_all();
        sys::wait_until(until_ns);
        self.take(wanted);
    }

    /// Takes more locks. Returns false if the thread released its own meanwhile, so that values read before may have
    /// changed.
    pub(crate) fn extend(&mut self, wanted: Cards) -> bool {
        let missing = wanted.without(self.held);
        if missing == Cards::NONE {
            return true;
        }
        let waits = missing.is_behind(self.held);
        let all = self.held.and(wanted);
        let mut complete = true;
        for card in missing.iter() {
            if waits {
                self.fabric.locks().take(card);
            } else if !self.fabric.locks().try_take(card) {
                complete = false;
                break;
            }
            self.held = self.held.and(Cards(1 << card));
        }
        if complete && !self.fabric.locks().are_damaged() {
            return true;
        }
        self.release_all();
        self.take(all);
        false
    }

    /// Takes locks. The thread holds none. If a holder has died, repairs the state first, which needs all locks.
    fn take(&mut self, wanted: Cards) {
        self.acquire(wanted);
        let locks = self.fabric.locks();
        if !locks.are_damaged() {
            return;
        }
        self.release_all();
        let all = self.fabric.all_cards();
        self.acquire(all);
        if locks.are_damaged() {
            self.recover();
            locks.damaged.store(0, Ordering::Relaxed);
        }
        let spare = all.without(wanted);
        self.held = wanted;
        // SAFETY: the thread took all locks above.
        unsafe { locks.release(spare) };
    }

    fn acquire(&mut self, wanted: Cards) {
        for card in wanted.iter() {
            self.fabric.locks().take(card);
            self.held = self.held.and(Cards(1 << card));
        }
    }

    /// Releases all locks of the thread and returns their cards.
    pub(super) fn release_all(&mut self) -> Cards {
        let held = std::mem::take(&mut self.held);
        // SAFETY: the thread held them until this call.
        unsafe { self.fabric.locks().release(held) };
        held
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
