//! A few free keys at hand, in one thread's hands at a time. Claiming a tray costs one exchange and
//! giving it back a store, half of what a lock takes, because nobody sleeps until it is free.

use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::policy::ReuseOrder;
use crate::slots::SlotId;
use crate::sync::{AtomicBool, Ordering};

/// Most keys on one side of a tray.
pub(crate) const TRAY_KEYS_MAX: u32 = 16;

const KEYS_MAX: usize = TRAY_KEYS_MAX as usize;

/// The tray. All but the claim is read and written by whoever holds it, so loads and stores need no
/// order of their own; they are atomic because safe code has no other memory that two threads share.
#[derive(Debug, Default)]
pub(crate) struct Tray {
    claimed: AtomicBool,
    /// Of the keys that are out: the next one, and how many there were.
    next: AtomicU32,
    out_len: AtomicU32,
    back_len: AtomicU32,
    out: [AtomicU32; KEYS_MAX],
    back: [AtomicU32; KEYS_MAX],
    taken: AtomicU64,
    returned: AtomicU64,
}

/// A tray in the calling thread's hands, until dropped.
#[derive(Debug)]
pub(crate) struct Claimed<'a>(&'a Tray);

/// A handful of keys on their way.
#[derive(Debug, Default)]
pub(crate) struct Few {
    slots: [u32; KEYS_MAX],
    len: u32,
}

impl Tray {
    /// Takes the tray, if nobody has it.
    #[inline]
    pub(crate) fn claim(&self) -> Option<Claimed<'_>> {
        let was_claimed = self.claimed.swap(true, Ordering::Acquire);
        // Made only if it is ours: dropping it gives the tray back.
        (!was_claimed).then(|| Claimed(self))
    }

    /// Keys taken and returned so far; of one moment only for who holds the tray.
    pub(crate) fn traffic(&self) -> (u64, u64) {
        (
            self.taken.load(Ordering::Relaxed),
            self.returned.load(Ordering::Relaxed),
        )
    }
}

impl Drop for Claimed<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.claimed.store(false, Ordering::Release);
    }
}

impl Claimed<'_> {
    /// A key: the first one that is out, or by LIFO the last one that came.
    #[inline]
    pub(crate) fn take(&self, order: ReuseOrder) -> Option<SlotId> {
        match order {
            ReuseOrder::Fifo => {
                let next = get(&self.0.next);
                if next == get(&self.0.out_len) {
                    return None;
                }
                set(&self.0.next, next + 1);
                self.count_taken();
                Some(at(&self.0.out, next))
            }
            // What is out came before what is back.
            ReuseOrder::Lifo => self.take_last(),
            // There are no trays then.
            ReuseOrder::Affinity => None,
        }
    }

    #[inline]
    fn take_last(&self) -> Option<SlotId> {
        let back = get(&self.0.back_len);
        if back > 0 {
            set(&self.0.back_len, back - 1);
            self.count_taken();
            return Some(at(&self.0.back, back - 1));
        }
        let len = get(&self.0.out_len);
        if len == get(&self.0.next) {
            return None;
        }
        set(&self.0.out_len, len - 1);
        self.count_taken();
        Some(at(&self.0.out, len - 1))
    }

    /// The first key that came back, before its turn: there is no other.
    pub(crate) fn take_returned(&self) -> Option<SlotId> {
        let mut back = self.clear_returned();
        let found = back.take_first()?;
        for (place, slot) in self.0.back.iter().zip(back.keys()) {
            set(place, *slot);
        }
        set(&self.0.back_len, back.len);
        self.count_taken();
        Some(found)
    }

    /// Puts a key back. False if there is no room for it beside `most` others.
    #[inline]
    pub(crate) fn put(&self, id: SlotId, most: u32) -> bool {
        let len = get(&self.0.back_len);
        if len >= most.min(TRAY_KEYS_MAX) {
            return false;
        }
        set(&self.0.back[len as usize], id.0);
        set(&self.0.back_len, len + 1);
        let returned = &self.0.returned;
        returned.store(returned.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        true
    }

    /// Has a handful out. What was out before must be gone.
    pub(crate) fn refill(&self, few: &Few) {
        assert!(
            get(&self.0.next) == get(&self.0.out_len),
            "keys are still out"
        );
        for (place, slot) in self.0.out.iter().zip(few.keys()) {
            set(place, *slot);
        }
        set(&self.0.next, 0);
        set(&self.0.out_len, few.len);
    }

    /// Takes all keys that came back.
    pub(crate) fn clear_returned(&self) -> Few {
        let few = Few::read(&self.0.back, 0, get(&self.0.back_len));
        set(&self.0.back_len, 0);
        few
    }

    /// Takes all keys that are out.
    pub(crate) fn clear_out(&self) -> Few {
        let few = Few::read(&self.0.out, get(&self.0.next), get(&self.0.out_len));
        set(&self.0.next, 0);
        set(&self.0.out_len, 0);
        few
    }

    #[inline]
    fn count_taken(&self) {
        let taken = &self.0.taken;
        taken.store(taken.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

impl Few {
    /// A handful of one key.
    pub(crate) fn of(id: SlotId) -> Self {
        let mut few = Self::default();
        few.slots[0] = id.0;
        few.len = 1;
        few
    }

    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The keys, the first one first.
    pub(crate) fn ids(&self) -> impl Iterator<Item = SlotId> + '_ {
        self.keys().iter().copied().map(SlotId)
    }

    fn keys(&self) -> &[u32] {
        &self.slots[..self.len()]
    }

    /// Takes the key that came first.
    pub(crate) fn take_first(&mut self) -> Option<SlotId> {
        let first = *self.keys().first()?;
        let len = self.len();
        self.slots.copy_within(1..len, 0);
        self.len -= 1;
        Some(SlotId(first))
    }

    fn read(places: &[AtomicU32; KEYS_MAX], from: u32, to: u32) -> Self {
        let mut few = Self {
            len: to - from,
            ..Self::default()
        };
        let places = &places[from as usize..to as usize];
        for (slot, place) in few.slots.iter_mut().zip(places) {
            *slot = get(place);
        }
        few
    }
}

#[inline]
fn at(places: &[AtomicU32; KEYS_MAX], number: u32) -> SlotId {
    SlotId(get(&places[number as usize % KEYS_MAX]))
}

#[inline]
fn get(place: &AtomicU32) -> u32 {
    place.load(Ordering::Relaxed)
}

#[inline]
fn set(place: &AtomicU32, value: u32) {
    place.store(value, Ordering::Relaxed);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_tray_is_in_one_hand_at_a_time() {
        let tray = Tray::default();
        let claimed = tray.claim().expect("nobody has it");
        for _ in 0..3 {
            assert!(tray.claim().is_none(), "and asking does not free it");
        }
        drop(claimed);
        assert!(tray.claim().is_some());
    }

    #[test]
    fn keys_that_came_back_wait_for_their_turn() {
        let tray = Tray::default();
        let tray = tray.claim().expect("nobody has it");
        for id in 0..3 {
            assert!(tray.put(SlotId(id), 3));
        }
        assert!(!tray.put(SlotId(3), 3), "full");
        assert_eq!(tray.take(ReuseOrder::Fifo), None, "none is out");
        assert_eq!(tray.take_returned(), Some(SlotId(0)));
        let few = tray.clear_returned();
        assert_eq!(few.keys(), [1, 2]);
        tray.refill(&few);
        assert!(tray.put(SlotId(4), 3));
        assert_eq!(tray.take(ReuseOrder::Fifo), Some(SlotId(1)));
        assert_eq!(tray.take(ReuseOrder::Lifo), Some(SlotId(4)));
        assert_eq!(tray.take(ReuseOrder::Lifo), Some(SlotId(2)));
        assert_eq!(tray.take(ReuseOrder::Lifo), None);
        assert_eq!(tray.0.traffic(), (4, 4));
    }

    #[test]
    fn a_handful_is_used_from_the_front() {
        let mut few = Few::of(SlotId(7));
        assert_eq!(
            (few.take_first(), few.take_first()),
            (Some(SlotId(7)), None)
        );
        assert!(few.is_empty());
    }
}
