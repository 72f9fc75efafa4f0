//! One slot for each key that the pool may have: which key it is and what state it is in.
//!
//! A slot belongs to whoever moved it into its present state; every move names the state it expects,
//! and another one found there means that two owners have one key, which must stop the program
//! before the device hands a stranger's memory out.

use crate::key::Mkey;
use crate::sync::{AtomicU32, Ordering};

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
    const fn of(word: u32) -> Self {
        match word {
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

/// As far from its neighbours as a cache line is long, so that two threads with neighbouring keys do not
/// meet. Plain words, all of which may be zero: then a pool's slots are memory that the system gives when
/// it is used, as most of it never is.
type Slot = [AtomicU32; 16];
/// Which key it is.
const MKEY: usize = 0;
/// What state it is in.
const STATE: usize = 1;

// A slot of zeros is vacant.
const _: () = assert!(State::Vacant as u32 == 0);
// loom's words are larger than they are.
#[cfg(not(loom))]
const _: () = assert!(size_of::<Slot>() == 64);

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
    /// As many vacant slots; `None` if there is no memory for them.
    pub(crate) fn new(count: u32) -> Option<Self> {
        #[cfg(not(loom))]
        let slots = zerocopy::FromZeros::new_box_zeroed_with_elems(count as usize).ok()?;
        #[cfg(loom)]
        let slots = (0..count)
            .map(|_| std::array::from_fn(|_| AtomicU32::new(0)))
            .collect();
        Some(Self { slots })
    }

    /// All slot numbers.
    pub(crate) fn ids(&self) -> impl DoubleEndedIterator<Item = SlotId> + use<> {
        // Cannot be lost: `new` counted in u32.
        (0..u32::try_from(self.slots.len()).unwrap_or(u32::MAX)).map(SlotId)
    }

    pub(crate) fn state(&self, id: SlotId) -> State {
        State::of(self.slot(id)[STATE].load(Ordering::Acquire))
    }

    /// The key in the slot. Meaningful to the slot's owner, and not in a vacant slot.
    #[inline]
    pub(crate) fn mkey(&self, id: SlotId) -> Mkey {
        Mkey::from_raw(self.slot(id)[MKEY].load(Ordering::Relaxed))
    }

    /// Puts a new key into a vacant slot.
    pub(crate) fn fill(&self, id: SlotId, mkey: Mkey, state: State) {
        self.slot(id)[MKEY].store(mkey.raw(), Ordering::Relaxed);
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
        let found = slot[STATE].load(Ordering::Relaxed);
        if found != from as u32 {
            two_owners(id, State::of(found), from);
        }
        slot[STATE].store(to as u32, Ordering::Release);
    }

    #[inline]
    fn slot(&self, id: SlotId) -> &Slot {
        &self.slots[id.0 as usize]
    }
}
