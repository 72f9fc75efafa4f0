//! One slot per key of the pool's maximum: the key and its state.
//!
//! The thread that moved a slot into its present state owns it. Every transition names the expected
//! state. Another state means that two owners have one key. The program must then stop before the
//! device exposes another buffer's memory.

use crate::key::Mkey;
use crate::sync::{AtomicU32, LINE_BYTES, Ordering};

/// Number of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotId(pub(crate) u32);

/// State of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// No key.
    Vacant = 0,
    /// A free key in the free list.
    Free = 1,
    /// A free key under a lease.
    Leased = 2,
    /// A key that is bound to a region.
    Bound = 3,
    /// A released key that is bound to its region until its invalidation.
    Pending = 4,
    /// A key of unknown state during its invalidation or destruction. No lease or export holds it.
    Unsure = 5,
    /// A key that the device could neither invalidate nor destroy. It never leaves this state.
    Lost = 6,
}

impl State {
    #[inline]
    const fn of(word: u32) -> Self {
        match word & !LONG {
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

/// One cache line, so threads with neighbouring keys do not share a line. Plain words whose zero
/// value is valid: the system then allocates the memory of a slot at its first use, and most slots
/// are never used.
type Slot = [AtomicU32; LINE_BYTES / size_of::<u32>()];
/// Word of the key.
const MKEY: usize = 0;
/// Word of the state.
const STATE: usize = 1;
/// Bit of the state's word of a long key, see [`crate::long_keys`].
const LONG: u32 = 1 << 8;

// A slot of zeros is vacant.
const _: () = assert!(State::Vacant as u32 == 0);
// loom's atomics are larger.
#[cfg(not(loom))]
const _: () = assert!(size_of::<Slot>() == LINE_BYTES);

/// Number of translation entries of a key, see [`crate::long_keys`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    Short,
    Long,
}

/// The next word of a long key's slot.
///
/// # Panics
/// If the slot is not in the expected state.
#[cold]
fn of_long((id, found): (SlotId, u32), from: State, to: State) -> u32 {
    if found != from as u32 | LONG {
        two_owners(id, State::of(found), from);
    }
    match to {
        State::Vacant => to as u32,
        to => to as u32 | LONG,
    }
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
    /// `count` vacant slots; `None` if there is no memory for them.
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
        let count = u32::try_from(self.slots.len()).expect("`new` got a u32");
        (0..count).map(SlotId)
    }

    pub(crate) fn state(&self, id: SlotId) -> State {
        State::of(self.slot(id)[STATE].load(Ordering::Acquire))
    }

    /// The key in the slot. Valid only for the slot's owner, and not in a vacant slot.
    #[inline]
    pub(crate) fn mkey(&self, id: SlotId) -> Mkey {
        Mkey::from_raw(self.slot(id)[MKEY].load(Ordering::Relaxed))
    }

    /// Stores a new key in a vacant slot.
    pub(crate) fn fill(&self, id: SlotId, mkey: Mkey, (state, size): (State, Size)) {
        self.slot(id)[MKEY].store(mkey.raw(), Ordering::Relaxed);
        self.advance(id, State::Vacant, state);
        if size == Size::Long {
            self.slot(id)[STATE].store(state as u32 | LONG, Ordering::Release);
        }
    }

    /// The size of the key in the slot. Valid only for the slot's owner, and not in a vacant slot.
    #[inline(always)]
    pub(crate) fn size(&self, id: SlotId) -> Size {
        match self.slot(id)[STATE].load(Ordering::Relaxed) & LONG {
            0 => Size::Short,
            _ => Size::Long,
        }
    }

    /// Moves the slot of a short key like [`Slots::advance`]. False if it is not in the expected state, or if its
    /// key is long.
    #[inline(always)]
    pub(crate) fn try_advance(&self, id: SlotId, from: State, to: State) -> bool {
        let slot = self.slot(id);
        let is_there = slot[STATE].load(Ordering::Relaxed) == from as u32;
        if is_there {
            slot[STATE].store(to as u32, Ordering::Release);
        }
        is_there
    }

    /// Moves the slot from one state to another.
    ///
    /// # Panics
    /// If the slot is not in the expected state.
    #[inline]
    pub(crate) fn advance(&self, id: SlotId, from: State, to: State) {
        let _mkey = self.advance_mkey(id, from, to);
    }

    /// Moves the slot like [`Slots::advance`], and returns its key.
    ///
    /// # Panics
    /// If the slot is not in the expected state.
    #[inline(always)]
    pub(crate) fn advance_mkey(&self, id: SlotId, from: State, to: State) -> Mkey {
        let slot = self.slot(id);
        // Only the owner writes, so load and store need not be atomic together.
        let found = slot[STATE].load(Ordering::Relaxed);
        let to = match found == from as u32 {
            true => to as u32,
            false => of_long((id, found), from, to),
        };
        slot[STATE].store(to, Ordering::Release);
        Mkey::from_raw(slot[MKEY].load(Ordering::Relaxed))
    }

    #[inline(always)]
    fn slot(&self, id: SlotId) -> &Slot {
        &self.slots[id.0 as usize]
    }
}
