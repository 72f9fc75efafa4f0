//! Taking the locks of cards. The lock of a card protects the objects of its functions; all locks together protect the state
//! that is common to all functions.
//!
//! A request of a connection takes the locks of its two cards, so connections between different cards never wait for each
//! other. Locks are taken in ascending order, or tried without waiting, so no two threads wait for each other.

use std::marker::PhantomData;

use super::cards::Cards;
use super::device::{Fabric, Locked};
use crate::sys;

impl Fabric {
    /// The card of a function.
    pub(crate) fn card_of(&self, function: usize) -> Cards {
        self.cards().of(function)
    }

    /// All cards.
    pub(crate) fn all_cards(&self) -> Cards {
        self.cards().all()
    }

    /// How often a thread had to wait for the lock of a function's card.
    #[must_use]
    pub fn lock_waits(&self, function: usize) -> u64 {
        let card = self.card_of(function).first();
        card.map_or(0, |card| self.locks().waits(card))
    }

    /// How many of these waits concerned a thread that takes the locks of all cards, as commands do.
    #[must_use]
    pub fn lock_waits_of_all(&self, function: usize) -> u64 {
        let card = self.card_of(function).first();
        card.map_or(0, |card| self.locks().waits_of_all(card))
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
                let all_cards = self.fabric.all_cards();
                self.fabric.locks().take(card, (all, all_cards));
            } else if !self.fabric.locks().try_take(card, all) {
                complete = false;
                break;
            }
            self.held = self.held.and(Cards::one(card));
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
            locks.repaired();
        }
        let spare = all.without(wanted);
        self.held = wanted;
        // SAFETY: the thread took all locks above.
        unsafe { locks.release(spare) };
    }

    fn acquire(&mut self, wanted: Cards) {
        let all = self.fabric.all_cards();
        for card in wanted.iter() {
            self.fabric.locks().take(card, (wanted, all));
            self.held = self.held.and(Cards::one(card));
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
