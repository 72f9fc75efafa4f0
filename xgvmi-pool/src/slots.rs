//! One slot for each key that the pool may have: which key it is and what state it is in.
//!
//! A slot belongs to whoever moved it into its present state; every move names the state it expects,
//! and another one found there means that two owners have one key, which must stop the program
//! before the device hands a stranger's memory out.

use crate::key::Mkey;
use crate::sync::{AtomicU8, AtomicU32, Ordering};

/// Number of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotId(pub(crate) u32);

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// No key.
    Vacant = 0,
    /// A key in the free state, on the shelf.
    Free = 1,
    /// A key in the free state, in somebody's hands.
    Leased = 2,
    /// A key that stands for a region.
    Bound = 3,
    /// A key that was released and still stands for its region, until its invalidation.
    Pending = 4,
    /// A key of unknown state, being invalidated or destroyed. It is in nobody's hands.
    Unsure = 5,
    /// A key that could be neither invalidated nor destroyed. Never leaves this state.
    Lost = 6,
}

impl State {
    #[inline]
    const fn of(byte: u8) -> Self {
        match byte {
            0 => Self::Vacant,
            1 => Self::Free,
            2 => Self::Leased,
            3 => Self::Bound,
            4 => Self::Pending,
            5 => Self::Unsure,
            _ => Self::Lost,
        }
    }
}

/// A cache line of its own, so that two threads with neighbouring keys do not meet.
#[derive(Debug)]
#[repr(align(64))]
struct Slot {
    mkey: AtomicU32,
    state: AtomicU8,
}

#[cold]
fn two_owners(id: SlotId, found: State, left: State) -> ! {
    panic!("slot {} is {found:?}, its owner left it {left:?}", id.0);
}

/// All slots of a pool.
#[derive(Debug)]
pub(crate) struct Slots {
    slots: Box<[Slot]>,
}

impl Slots {
    pub(crate) fn new(count: u32) -> Self {
        let slot = |_| Slot {
            mkey: AtomicU32::new(0),
            state: AtomicU8::new(State::Vacant as u8),
        };
        Self {
            slots: (0..count).map(slot).collect(),
        }
    }

    /// All slot numbers.
    pub(crate) fn ids(&self) -> impl DoubleEndedIterator<Item = SlotId> + use<> {
        // Cannot be lost: `new` counted in u32.
        (0..u32::try_from(self.slots.len()).unwrap_or(u32::MAX)).map(SlotId)
    }

    pub(crate) fn state(&self, id: SlotId) -> State {
        State::of(self.slot(id).state.load(Ordering::Acquire))
    }

    /// The key in the slot. Meaningful to the slot's owner, and not in a vacant slot.
    pub(crate) fn mkey(&self, id: SlotId) -> Mkey {
        Mkey::from_raw(self.slot(id).mkey.load(Ordering::Relaxed))
    }

    /// Puts a new key into a vacant slot.
    pub(crate) fn fill(&self, id: SlotId, mkey: Mkey, state: State) {
        self.slot(id).mkey.store(mkey.raw(), Ordering::Relaxed);
        self.advance(id, State::Vacant, state);
    }

    /// Moves the slot on.
    ///
    /// # Panics
    /// If it is not in the state that its owner left it in.
    #[inline]
    pub(crate) fn advance(&self, id: SlotId, from: State, to: State) {
        let slot = self.slot(id);
        // The owner alone writes, so load and store need not be one step.
        let found = slot.state.load(Ordering::Relaxed);
        if found != from as u8 {
            two_owners(id, State::of(found), from);
        }
        slot.state.store(to as u8, Ordering::Release);
    }

    #[inline]
    fn slot(&self, id: SlotId) -> &Slot {
        &self.slots[id.0 as usize]
    }
}
