//! The aliases of a map, each in one cache line. A lookup finds and pins an alias without a lock: it reads that line, beside a
//! directory of 2 KiB at the default size, and executes one locked instruction. The map's index, under locks, says which
//! aliases exist; this table only finds them faster.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool as PlainBool, AtomicU64 as Plain64};

use crate::device::Alias;
use crate::key::{Gvmi, Lkey, Mkey, MkeyIndex, OwnerUuid, RemoteKey};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Slots of a block, a power of two. A block is allocated at its first use.
const BLOCK: usize = if cfg!(loom) { 2 } else { 1024 };
/// Bits of the numbers of a block's slots.
const BLOCK_BITS: u32 = BLOCK.trailing_zeros();
/// Slots in which a lookup searches a key, each in another block. An alias in any other slot is found by the index.
const WINDOW: usize = if cfg!(loom) { 2 } else { 8 };

/// Bits of a state. Above the kind and the pins it counts the uses of the slot, so that a slot never has the
/// same state with two aliases. 2^43 hits of one alias take days.
const KIND: u64 = 0b111;
const PIN: u64 = 1 << 3;
const USE: u64 = 1 << 21;
const PINS: u64 = USE - PIN;
/// Lookups do not pin an alias that has this many pins. Clones of references still may.
const PINS_MANY: u64 = USE >> 1;

/// No alias.
const FREE: u64 = 0;
/// One thread creates or destroys the alias.
const CLAIMED: u64 = 1;
/// An alias of the map.
const READY: u64 = 2;
/// An alias outside the map. The last unpin destroys it.
const DOOMED: u64 = 3;
/// An alias that was destroyed while it was pinned. The last unpin frees the slot.
const DEAD: u64 = 4;

/// Number of a slot.
pub(crate) type Place = u32;

/// A slot. The loom tests leave out the fields that a lookup does not read.
#[derive(Debug)]
#[repr(C, align(64))]
struct Slot {
    state: AtomicU64,
    /// [`RemoteKey::map_key`].
    key: AtomicU64,
    /// Owner of the key. If a prepared key names none, the owner in the first lookup that names one.
    owner: AtomicU64,
    lkey: AtomicU32,
    index: AtomicU32,
    /// Time of the alias's creation or last unpin.
    used: Plain64,
    /// The state's count of uses at the alias's creation.
    first_use: Plain64,
    /// Created ahead of the first import, for an exporter that announced the key.
    is_prepared: PlainBool,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Slot>() == 64);

type Block = Box<[Slot; BLOCK]>;

/// All slots.
#[derive(Debug)]
pub(crate) struct Table {
    blocks: Box<[OnceLock<Block>]>,
}

/// Result of the removal of an alias from the map.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Removed {
    /// No pin exists: the caller destroys the alias and frees the slot.
    pub(crate) is_unpinned: bool,
    /// Lookups that the alias served.
    pub(crate) hits: u64,
}

/// Result of an unpin.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unpinned {
    /// The alias stays. Its map key.
    Stays(u64),
    /// It was the last pin of an alias outside the map: the caller destroys it and frees the slot.
    Last,
    /// The same, and the alias is already destroyed.
    LastOfDead,
}

impl Table {
    /// Slots for twice this number of aliases: some of them are outside the map. `None` without memory.
    pub(crate) fn new(aliases_max: u32) -> Option<Self> {
        let slots = (2 * aliases_max as usize).next_power_of_two();
        let count = (slots / BLOCK).max(2);
        let mut blocks = Vec::new();
        blocks.try_reserve_exact(count).ok()?;
        blocks.resize_with(count, OnceLock::new);
        let table = Self {
            blocks: blocks.into_boxed_slice(),
        };
        // Loom does not know that a thread that finds a block sees its content.
        if cfg!(loom) {
            for number in 0..count {
                table.block(number)?;
            }
        }
        Some(table)
    }

    /// Finds and pins the alias of a key. May miss an alias that the index has.
    #[inline]
    pub(crate) fn find(&self, key: &RemoteKey) -> Option<(Place, Lkey)> {
        let (home, offset) = self.home(key.map_key());
        match self.blocks[home].get()?[offset].pin(key) {
            Some(lkey) => Some((place(home, offset), lkey)),
            None => self.find_further(key, home, offset),
        }
    }

    /// Searches the slots behind the first one.
    #[inline(never)]
    fn find_further(&self, key: &RemoteKey, home: usize, offset: usize) -> Option<(Place, Lkey)> {
        for step in 1..WINDOW {
            let number = (home + step) & (self.blocks.len() - 1);
            // Nothing lies behind a block that does not exist.
            if let Some(lkey) = self.blocks[number].get()?[offset].pin(key) {
                return Some((place(number, offset), lkey));
            }
        }
        None
    }

    /// Pins the alias of the key in this slot. The caller holds the lock of the key's part of the index, which names the
    /// slot. `None` if the alias is another owner's, or has too many pins.
    pub(crate) fn pin(&self, at: Place, key: &RemoteKey) -> Option<Lkey> {
        let owner = self.slot(at).owner.load(Ordering::Relaxed);
        let known = RemoteKey {
            owner: OwnerUuid::new(owner),
            ..*key
        };
        self.slot(at).pin(&known)
    }

    /// Claims a free slot for a key, as near to its home as possible. `None` without memory, or if all slots have aliases.
    pub(crate) fn claim(&self, key: &RemoteKey) -> Option<Place> {
        let (home, offset) = self.home(key.map_key());
        for step in 0..WINDOW {
            let number = (home + step) & (self.blocks.len() - 1);
            if self.block(number)?[offset].claim() {
                return Some(place(number, offset));
            }
        }
        // Beyond the window, the distance from home does not matter.
        for number in 0..self.blocks.len() {
            let mut slots = self.block(number)?.iter();
            if let Some(offset) = slots.position(Slot::claim) {
                return Some(place(number, offset));
            }
        }
        None
    }

    /// Fills a claimed slot. It is pinned once.
    pub(crate) fn fill(&self, at: Place, key: &RemoteKey, alias: Alias, used: u64, kind: Kind) {
        let slot = self.slot(at);
        slot.key.store(key.map_key(), Ordering::Relaxed);
        slot.owner.store(key.owner.get(), Ordering::Relaxed);
        slot.lkey.store(alias.lkey.raw(), Ordering::Relaxed);
        slot.index.store(alias.index.get(), Ordering::Relaxed);
        slot.used.store(used, Ordering::Relaxed);
        let (bits, is_prepared) = match kind {
            Kind::InMap { is_prepared } => (READY, is_prepared),
            Kind::Alone => (DOOMED, false),
        };
        slot.is_prepared.store(is_prepared, Ordering::Relaxed);
        let uses = slot.state.load(Ordering::Relaxed) / USE;
        slot.first_use.store(uses, Ordering::Relaxed);
        slot.state.store(uses * USE + PIN + bits, Ordering::Release);
    }

    /// Frees a slot that the caller claimed, or of which it removed the last pin.
    pub(crate) fn free(&self, at: Place) {
        let slot = self.slot(at);
        let uses = slot.state.load(Ordering::Relaxed) / USE;
        slot.state.store(uses * USE + FREE, Ordering::Release);
    }

    /// One more pin of a pinned alias.
    pub(crate) fn pin_again(&self, at: Place) {
        let before = self.slot(at).state.fetch_add(PIN, Ordering::Relaxed);
        assert!(before & PINS != PINS, "more references than a slot counts");
    }

    /// Ends a use at the time `used`.
    #[inline]
    pub(crate) fn unpin(&self, at: Place, used: u64) -> Unpinned {
        let slot = self.slot(at);
        // Before the decrement: an eviction that finds the alias unpinned must read this time.
        slot.used.store(used, Ordering::Relaxed);
        // After the decrement another alias may be in the slot.
        let map_key = slot.key.load(Ordering::Relaxed);
        let before = slot.state.fetch_sub(PIN, Ordering::AcqRel);
        if before & KIND == READY || before & PINS != PIN {
            return Unpinned::Stays(map_key);
        }
        match before & KIND {
            DEAD => Unpinned::LastOfDead,
            _ => Unpinned::Last,
        }
    }

    /// Removes an alias from the map, if it is unpinned and was not used after `used`. The caller holds the lock of
    /// the index.
    pub(crate) fn remove_unused(&self, at: Place, used: u64) -> Option<Removed> {
        let slot = self.slot(at);
        let state = slot.state.load(Ordering::Acquire);
        if state & (KIND | PINS) != READY || slot.used.load(Ordering::Relaxed) != used {
            return None;
        }
        // A use since then has changed the state.
        slot.change(state, state - READY + CLAIMED).ok()?;
        Some(slot.removed(state))
    }

    /// Removes an alias from the map, also a pinned one. The caller holds the lock of the index. If `is_dead`, the
    /// caller destroys the alias.
    pub(crate) fn remove(&self, at: Place, is_dead: bool) -> Removed {
        let slot = self.slot(at);
        let mut state = slot.state.load(Ordering::Acquire);
        loop {
            let kind = match (state & PINS, is_dead) {
                (0, _) => CLAIMED,
                (_, true) => DEAD,
                (_, false) => DOOMED,
            };
            match slot.change(state, state - READY + kind) {
                Ok(()) => return slot.removed(state),
                Err(now) => state = now,
            }
        }
    }

    /// Time of the last use, if the alias is unpinned.
    pub(crate) fn unpinned_since(&self, at: Place) -> Option<u64> {
        let slot = self.slot(at);
        let is_unpinned = slot.state.load(Ordering::Acquire) & (KIND | PINS) == READY;
        is_unpinned.then(|| slot.used.load(Ordering::Relaxed))
    }

    /// Lookups that an alias of the map has served.
    pub(crate) fn hits(&self, at: Place) -> u64 {
        let slot = self.slot(at);
        slot.hits(slot.state.load(Ordering::Relaxed))
    }

    /// True if the alias belongs to the owner, or if the owner is not known. An alias that was
    /// prepared for an unknown owner then becomes an alias of this owner. Another alias without an
    /// owner does not: its key may be that of an exporter that has ended.
    pub(crate) fn is_of(&self, at: Place, owner: OwnerUuid) -> bool {
        let slot = self.slot(at);
        let unknown = OwnerUuid::UNKNOWN.get();
        let (found, owner) = (slot.owner.load(Ordering::Relaxed), owner.get());
        if found == owner || owner == unknown {
            return true;
        }
        let take = |owner| {
            let (from, to) = (Ordering::Relaxed, Ordering::Relaxed);
            slot.owner.compare_exchange(unknown, owner, from, to)
        };
        // Another thread may have set the same owner first.
        found == unknown
            && slot.is_prepared.load(Ordering::Relaxed)
            && take(owner).map_or_else(|now| now == owner, |_unknown| true)
    }

    /// The alias in a slot that is pinned, or that the caller has claimed.
    pub(crate) fn alias(&self, at: Place) -> Alias {
        let slot = self.slot(at);
        Alias {
            index: MkeyIndex::new(slot.index.load(Ordering::Relaxed)).unwrap_or(MkeyIndex::MAX),
            lkey: Lkey::from_raw(slot.lkey.load(Ordering::Relaxed)),
        }
    }

    /// The remote key of such an alias.
    pub(crate) fn remote(&self, at: Place) -> RemoteKey {
        let [m0, m1, m2, m3, g0, g1, _, _] =
            self.slot(at).key.load(Ordering::Relaxed).to_le_bytes();
        RemoteKey {
            gvmi: Gvmi::new(u16::from_le_bytes([g0, g1])),
            mkey: Mkey::from_raw(u32::from_le_bytes([m0, m1, m2, m3])),
            owner: OwnerUuid::new(self.slot(at).owner.load(Ordering::Relaxed)),
        }
    }

    #[inline]
    fn slot(&self, at: Place) -> &Slot {
        let block = self.blocks[at as usize >> BLOCK_BITS].get();
        // Only slots that were claimed have a place.
        &block.expect("a block with aliases")[at as usize % BLOCK]
    }

    /// A block, which may be new. `None` without memory.
    fn block(&self, number: usize) -> Option<&Block> {
        let place = &self.blocks[number];
        if place.get().is_none() {
            let mut slots = Vec::new();
            slots.try_reserve_exact(BLOCK).ok()?;
            slots.resize_with(BLOCK, Slot::new);
            let new: Block = slots.into_boxed_slice().try_into().ok()?;
            // Another thread may have been first.
            let _is_first = place.set(new);
        }
        place.get()
    }

    /// Block and offset at which a lookup of the key begins. Keys with consecutive indices, as the keys of a pool have, lie in
    /// one block, and so on few pages. The offset of an index differs from block to block, so that keys at equal
    /// distances do not meet.
    #[inline]
    fn home(&self, map_key: u64) -> (usize, usize) {
        const TAG_BITS: u32 = 8;
        let group = (map_key >> (TAG_BITS + BLOCK_BITS)) ^ (map_key & 0xff) << 48;
        // The multiplier of Fibonacci hashing. The upper bits depend on all bits of the group.
        let mixed = group.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // The uppermost bits are spread best.
        let block = ((mixed >> 32) as usize * self.blocks.len()) >> 32;
        let [a, b, ..] = (map_key >> TAG_BITS ^ mixed >> 16).to_le_bytes();
        (block, usize::from(u16::from_le_bytes([a, b])) % BLOCK)
    }
}

/// Use of a new alias.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// Lookups find it.
    InMap { is_prepared: bool },
    /// No lookup finds it, and its last unpin destroys it.
    Alone,
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the map has at most 2^23 slots"
)]
#[inline]
const fn place(block: usize, offset: usize) -> Place {
    (block << BLOCK_BITS | offset) as Place
}

impl Slot {
    fn new() -> Self {
        Self {
            state: AtomicU64::new(FREE),
            key: AtomicU64::new(0),
            owner: AtomicU64::new(0),
            lkey: AtomicU32::new(0),
            index: AtomicU32::new(0),
            used: Plain64::new(0),
            first_use: Plain64::new(0),
            is_prepared: PlainBool::new(false),
        }
    }

    /// Pins the alias if it is in the map and matches the key, and its owner, if one is given.
    #[inline]
    fn pin(&self, key: &RemoteKey) -> Option<Lkey> {
        let mut state = self.state.load(Ordering::Acquire);
        loop {
            if state & (KIND | PINS_MANY) != READY
                || self.key.load(Ordering::Relaxed) != key.map_key()
            {
                return None;
            }
            let owner = self.owner.load(Ordering::Relaxed);
            if owner != key.owner.get() && key.owner != OwnerUuid::UNKNOWN {
                return None;
            }
            let lkey = self.lkey.load(Ordering::Relaxed);
            // If the state is the same, so is the alias: what was read belongs to it.
            match self.change(state, state.wrapping_add(USE + PIN)) {
                Ok(()) => return Some(Lkey::from_raw(lkey)),
                Err(now) => state = now,
            }
        }
    }

    fn claim(&self) -> bool {
        let state = self.state.load(Ordering::Relaxed);
        // The use makes the state differ from all states of the slot's last alias.
        state & KIND == FREE
            && self
                .change(state, state.wrapping_add(USE + CLAIMED))
                .is_ok()
    }

    /// Changes the state, if it is still `from`. Release: what the thread read before stays before a later change by
    /// another thread, which acquires it.
    #[inline]
    fn change(&self, from: u64, to: u64) -> Result<(), u64> {
        let (changed, kept) = (Ordering::AcqRel, Ordering::Acquire);
        self.state
            .compare_exchange(from, to, changed, kept)
            .map(drop)
    }

    fn removed(&self, state: u64) -> Removed {
        Removed {
            is_unpinned: state & PINS == 0,
            hits: self.hits(state),
        }
    }

    fn hits(&self, state: u64) -> u64 {
        let uses = state / USE;
        uses.wrapping_sub(self.first_use.load(Ordering::Relaxed)) & (u64::MAX / USE)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn key(index: u32) -> RemoteKey {
        RemoteKey {
            gvmi: Gvmi::new(7),
            mkey: Mkey::from_raw(index << 8 | 0xfb),
            owner: OwnerUuid::new(1),
        }
    }

    fn alias(number: u32) -> Alias {
        Alias {
            index: MkeyIndex::new(number).expect("24 bits"),
            lkey: Lkey::from_raw(number << 8),
        }
    }

    fn add(table: &Table, index: u32) -> Place {
        let at = table.claim(&key(index)).expect("a slot");
        let kind = Kind::InMap { is_prepared: false };
        table.fill(at, &key(index), alias(index), 0, kind);
        assert_eq!(table.unpin(at, 1), Unpinned::Stays(key(index).map_key()));
        at
    }

    /// Keys at any distance: almost all are found without the index, and none as another one.
    #[test]
    fn a_half_full_table_finds_keys_at_equal_distances() {
        const ALIASES: u32 = 65_536;
        for distance in [1, 2, 8, 64, 255] {
            let table = Table::new(ALIASES).expect("memory");
            let indices = (0..ALIASES).map(|number| (number * distance) & MkeyIndex::MAX.get());
            let places: Vec<_> = indices.map(|index| (index, add(&table, index))).collect();
            let mut missed = 0;
            for (index, at) in &places {
                match table.find(&key(*index)) {
                    Some((found, lkey)) => {
                        assert_eq!((found, lkey), (*at, alias(*index).lkey));
                        let _stays = table.unpin(found, 2);
                    }
                    None => missed += 1,
                }
            }
            assert!(missed < ALIASES / 100, "{missed} at distance {distance}");
        }
    }

    #[test]
    fn a_slot_never_has_the_same_state_with_two_aliases() {
        let table = Table::new(1).expect("memory");
        let at = add(&table, 5);
        let state = |at| table.slot(at).state.load(Ordering::Relaxed);
        let before = state(at);
        let removed = table.remove_unused(at, 1).expect("unused");
        assert_eq!((removed.is_unpinned, removed.hits), (true, 0));
        table.free(at);
        assert_eq!(add(&table, 5), at);
        assert_ne!(state(at), before);
        assert_eq!(table.slot(at).change(before, 0), Err(state(at)));
    }

    #[test]
    fn pins_end_before_they_reach_the_uses() {
        let table = Table::new(1).expect("memory");
        let at = add(&table, 5);
        let most = PINS_MANY / PIN;
        for _ in 0..most {
            assert!(table.find(&key(5)).is_some());
        }
        assert_eq!(table.find(&key(5)), None);
        assert_eq!(table.pin(at, &key(5)), None);
        assert_eq!(table.hits(at), most);
        table.pin_again(at);
        for _ in 0..=most {
            assert_eq!(table.unpin(at, 3), Unpinned::Stays(key(5).map_key()));
        }
        assert_eq!(table.unpinned_since(at), Some(3));
        assert_eq!(table.hits(at), most);
    }

    #[test]
    fn every_slot_can_be_claimed_once() {
        let table = Table::new(1).expect("memory");
        let mut places: Vec<_> = std::iter::from_fn(|| table.claim(&key(9))).collect();
        assert_eq!(places.len(), 2 * BLOCK);
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), 2 * BLOCK);
        table.free(places[77]);
        assert_eq!(table.claim(&key(9)), Some(places[77]));
    }
}
