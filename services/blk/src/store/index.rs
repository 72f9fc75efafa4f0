//! Index entries of a store: which generations of a block it holds, and where. Does no I/O.
//!
//! ```text
//! group in change: number of the group (4), CRC32C of slot and number (4), entries of its eight blocks: three slots each
//! settled index: one slot per block
//! 0 generation (8)   8 offset in units of 64 bytes (5), bytes of the record (3)   16 form (1)   17 CRC32C (4)
//! ```
//!
//! The form is 0x80, with 0x40 for a settled generation, and the block's form; none for an empty slot. The CRC covers the
//! block's number and the first 17 bytes of the slot. A slot of zeros is damaged. Numbers are big endian.
//!
//! An entry keeps the newest generation that is known to be durable until a newer one is: of some layouts
//! ([`Layout::keeps_flushed`](crate::Layout::keeps_flushed)) the newest one that is durable at all targets. A slot of generation 0 says that
//! the durable state is "never written", or, with the form of a lost block, that it is unknown: the entry was damaged.

use super::space::{Extent, UNIT};
use crate::block::Kind;
use crate::crc32c::crc32c;
use crate::record::Half;
use smallvec::SmallVec;

/// In place of a generation: what an entry holds stays beside a new one. None of it may be dropped while the block is lost.
pub const KEEP_ALL: u64 = u64::MAX;

/// In place of a generation up to which all targets have what counts: each durable one may count alone.
pub(super) const AT_ONCE: u64 = u64::MAX;

/// Bytes of a block's entry.
pub(super) const ENTRY: usize = SLOTS * SLOT;
/// Generations that an entry can hold.
const SLOTS: usize = 3;
/// Bytes of a generation.
pub(super) const SLOT: usize = 21;
const CRC_AT: usize = 17;
const FORM_AT: usize = 16;
const PRESENT: u8 = 0x80;
const SETTLED: u8 = 0x40;
const KIND: u8 = 0x0f;
/// Bits of a record's length beside its offset.
const LENGTH_BITS: u32 = 24;

/// Whether a slot is on the medium for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Age {
    /// Written since the last sync began.
    Fresh,
    /// The sync under way began after it was written.
    Syncing,
    Durable,
    /// A sync has failed since it was written: the medium may never get it.
    Doubtful,
}

/// A generation of a block that a store holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) generation: u64,
    /// Offset in units and length of the record, as in the entry. 0: none.
    place: u64,
    pub(super) kind: Kind,
    /// The generation is committed.
    pub(super) settled: bool,
    pub(super) age: Age,
}

impl Slot {
    /// A slot that is not settled and not durable. Without a record the half block has no bytes.
    pub(super) fn new(generation: u64, extent: Option<Extent>, kind: Kind) -> Self {
        let place = extent.map_or(0, |extent| {
            (extent.offset / UNIT) << LENGTH_BITS | extent.length
        });
        Self {
            generation,
            place,
            kind,
            settled: false,
            age: Age::Fresh,
        }
    }

    /// The durable state of a block that was never written.
    const ORIGIN: Self = Self {
        generation: 0,
        place: 0,
        kind: Kind::Zero,
        settled: true,
        age: Age::Durable,
    };

    /// The durable state of a block whose entry was damaged: it says nothing.
    const UNKNOWN: Self = Self {
        kind: Kind::Lost,
        ..Self::ORIGIN
    };

    /// The slot with another age, which its bytes do not say.
    const fn age(self, age: Age) -> Self {
        Self { age, ..self }
    }

    /// True if its record is that of another slot.
    pub(super) fn shares_record(&self, other: &Self) -> bool {
        self.place == other.place
    }

    /// Where its record is. None if the half block has no bytes.
    pub(super) fn extent(&self) -> Option<Extent> {
        (self.place != 0).then(|| Extent {
            offset: (self.place >> LENGTH_BITS) * UNIT,
            length: self.place & ((1 << LENGTH_BITS) - 1),
        })
    }
}

/// True if a loss of power must leave a slot behind one of `generation`.
fn is_base(slot: &Slot, (generation, durable): (u64, Option<Slot>)) -> bool {
    slot.settled
        && slot.generation < generation
        && (slot.age == Age::Syncing || Some(*slot) == durable)
}

/// The generations of one block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) slots: [Option<Slot>; SLOTS],
    /// Other generations may have been there: a slot could not be read.
    pub(super) damaged: bool,
}

impl Entry {
    pub(super) fn get(&self, generation: u64) -> Option<Slot> {
        let mut slots = self.slots.iter().flatten();
        slots.find(|slot| slot.generation == generation).copied()
    }

    fn of(slots: impl Iterator<Item = Slot>, damaged: bool) -> Self {
        let mut entry = Self {
            damaged,
            ..Self::default()
        };
        for (place, slot) in entry.slots.iter_mut().zip(slots) {
            *place = Some(slot);
        }
        entry
    }

    /// The newest generation that is durable and settled, among those up to `released`. If there is none, the oldest one.
    fn durable(&self, released: u64) -> Option<Slot> {
        let (mut known, mut oldest) = (None::<Slot>, None::<Slot>);
        for slot in self.slots.iter().flatten() {
            if !slot.settled || slot.age != Age::Durable {
                continue;
            }
            let is_newer = |than: Slot| than.generation < slot.generation;
            if slot.generation <= released && known.is_none_or(is_newer) {
                known = Some(*slot);
            }
            if oldest.is_none_or(|than| than.generation > slot.generation) {
                oldest = Some(*slot);
            }
        }
        known.or(oldest)
    }

    /// The slots below `generation` that a loss of power must leave.
    fn base(&self, generation: u64, released: u64) -> impl Iterator<Item = Slot> + use<> {
        let durable = self.durable(released);
        let slots = self.slots.into_iter().flatten();
        slots.filter(move |slot| is_base(slot, (generation, durable)))
    }

    /// The entry with a further generation beside `keep` and what is durable. For [`KEEP_ALL`] the newest one that is settled
    /// stays, and the others, the newest first, as far as there is space. None if that is too much before the end of a
    /// sync under way, or before a sync. All targets have made durable what counts up to generation `released`.
    pub(super) fn prepare(&self, slot: Slot, keep: u64, released: u64) -> Option<Self> {
        match (self.slots, self.damaged) {
            // Most have one generation, which stays.
            ([Some(only), None, None], false)
                if only.generation == keep && keep != slot.generation =>
            {
                let slot = Slot {
                    settled: false,
                    ..slot
                };
                let slots = [Some(slot), Some(only), None];
                Some(Self {
                    slots,
                    damaged: false,
                })
            }
            _ => self.prepare_any(slot, keep, released),
        }
    }

    /// As [`Entry::prepare`], of any entry.
    fn prepare_any(&self, slot: Slot, keep: u64, released: u64) -> Option<Self> {
        let (mut settled, mut kept, mut is_empty) = (false, None::<Slot>, !self.damaged);
        for other in self.slots.iter().flatten() {
            is_empty = false;
            if other.generation == slot.generation {
                // A half block that is written again stays settled.
                settled = other.settled;
                continue;
            }
            let is_kept = match keep {
                KEEP_ALL => {
                    other.settled && kept.is_none_or(|kept| kept.generation <= other.generation)
                }
                keep => kept.is_none() && other.generation == keep,
            };
            if is_kept {
                kept = Some(*other);
            }
        }
        let slot = Slot { settled, ..slot };
        let mut slots: SmallVec<[Slot; 2 * SLOTS]> = SmallVec::new();
        slots.push(slot);
        if let Some(kept) = kept {
            slots.push(kept);
        }
        let durable = self.durable(released);
        for base in self.slots.iter().flatten() {
            if is_base(base, (slot.generation, durable)) && Some(*base) != kept {
                slots.push(*base);
            }
        }
        if is_empty {
            slots.push(Slot::ORIGIN);
        }
        // One place says that it is damaged.
        let room = SLOTS - usize::from(self.damaged);
        if keep == KEEP_ALL {
            let others = self.slots.into_iter().flatten();
            let others = others.filter(|other| other.generation != slot.generation);
            let mut more: Vec<Slot> = others.filter(|other| !slots.contains(other)).collect();
            more.sort_unstable_by_key(|other| std::cmp::Reverse(other.generation));
            more.truncate(room.saturating_sub(slots.len()));
            slots.extend(more);
        }
        if self.damaged {
            slots.truncate(room);
        }
        (slots.len() <= SLOTS).then(|| Self::of(slots.into_iter(), self.damaged))
    }

    /// The entry with `generation` settled. Newer ones disappear, and older ones as far as they are not needed. One that was
    /// damaged says so until that is durable. None if it does not hold the generation. Settled ones stay as long as a flush
    /// under way may be about them.
    pub(super) fn commit(&self, generation: u64, released: u64) -> Option<Self> {
        match (self.slots, self.damaged) {
            // Most have it and the one before.
            ([Some(slot), Some(before), None], false)
                if slot.generation == generation
                    && before.generation < generation
                    && generation <= released =>
            {
                let is_kept = before.settled
                    && matches!(before.age, Age::Syncing | Age::Durable)
                    && slot.age != Age::Durable;
                let slot = Slot {
                    settled: true,
                    ..slot
                };
                let slots = [Some(slot), is_kept.then_some(before), None];
                Some(Self {
                    slots,
                    damaged: false,
                })
            }
            _ => self.commit_any(generation, released),
        }
    }

    /// As [`Entry::commit`], of any entry.
    fn commit_any(&self, generation: u64, released: u64) -> Option<Self> {
        if generation == 0 {
            return Some(Self::default());
        }
        let slot = Slot {
            settled: true,
            ..self.get(generation)?
        };
        let base = self.base(generation, released);
        let mut base: SmallVec<[Slot; SLOTS]> = match generation <= released {
            true => base.filter(|_| slot.age != Age::Durable).collect(),
            false => {
                let others = self.slots.into_iter().flatten();
                others
                    .filter(|other| other.settled && other.generation < generation)
                    .collect()
            }
        };
        base.retain(|base| !(self.damaged && base.generation == 0));
        let unknown = self.damaged.then_some(Slot::UNKNOWN);
        let slots = std::iter::once(slot).chain(base).chain(unknown);
        Some(Self::of(slots, false))
    }

    /// The entry without what is older than its newest durable generation, among those up to `released`.
    pub(super) fn aged(&self, released: u64) -> Self {
        if released != AT_ONCE && self.slots.iter().flatten().any(|slot| !slot.settled) {
            // Of a lost block nothing is known to count. Others are settled soon.
            return *self;
        }
        let oldest = self.durable(released).map_or(0, |slot| slot.generation);
        let slots = self.slots.into_iter().flatten();
        Self::of(slots.filter(|slot| slot.generation >= oldest), self.damaged)
    }

    /// True if there is more than one generation.
    pub(super) fn has_more(&self) -> bool {
        self.slots.iter().flatten().nth(1).is_some()
    }

    /// What the settled index can hold of it: one generation that is durable, or nothing. None if it says more.
    pub(super) fn settled(&self) -> Option<Option<Slot>> {
        let mut slots = self.slots.iter().flatten();
        let (first, second) = (slots.next(), slots.next());
        let is_plain =
            |slot: &Slot| slot.settled && slot.age == Age::Durable && slot.generation != 0;
        let is_settled = !self.damaged && second.is_none() && first.is_none_or(is_plain);
        is_settled.then(|| first.copied())
    }

    /// The entry of a block in the settled index.
    pub(super) fn parse_settled(
        block: u64,
        bytes: &[u8; SLOT],
        fits: impl Fn(Extent) -> bool,
    ) -> Self {
        let mut entry = Self::default();
        match parse_slot(block, bytes) {
            Ok(slot) if slot.and_then(|slot| slot.extent()).is_none_or(fits) => {
                entry.slots[0] = slot;
            }
            _ => entry.damaged = true,
        }
        entry
    }

    /// Changes the age of its slots.
    pub(super) fn change_age(&mut self, from: Age, to: Age) {
        let slots = self.slots.iter_mut().flatten();
        for slot in slots.filter(|slot| slot.age == from) {
            slot.age = to;
        }
    }

    pub(super) fn to_bytes(self, block: u64) -> [u8; ENTRY] {
        self.to_bytes_by(|slot| slot_bytes(slot, block))
    }

    /// As [`Entry::to_bytes`], behind `before`, whose bytes are known: what both say is not made again.
    pub(super) fn to_bytes_behind(
        self,
        block: u64,
        (before, known): (&Self, &[u8; ENTRY]),
    ) -> [u8; ENTRY] {
        let known = known.as_chunks::<SLOT>().0;
        self.to_bytes_by(|slot| {
            let is_same = |other: &Option<Slot>| match (slot, other) {
                (Some(slot), Some(other)) => slot.age(other.age) == *other,
                // One of the empty slots of a damaged entry is zeros.
                (None, None) => !before.damaged,
                _ => false,
            };
            let same = before.slots.iter().position(is_same);
            same.map_or_else(|| slot_bytes(slot, block), |at| known[at])
        })
    }

    fn to_bytes_by(self, make: impl Fn(Option<Slot>) -> [u8; SLOT]) -> [u8; ENTRY] {
        let mut bytes = [0; ENTRY];
        let mut damaged = self.damaged;
        // All empty slots of a block are the same.
        let mut empty = None;
        for (slot, part) in self.slots.iter().zip(bytes.as_chunks_mut::<SLOT>().0) {
            *part = match slot {
                Some(_) => make(*slot),
                // A damaged entry stays so: one of its slots is zeros.
                None if std::mem::take(&mut damaged) => [0; SLOT],
                None => *empty.get_or_insert_with(|| make(None)),
            };
        }
        bytes
    }

    /// Parses an entry as it is after a sync. Slots that `fits` refuses, or with the generation of another one, are damaged.
    pub(super) fn parse(block: u64, bytes: &[u8; ENTRY], fits: impl Fn(Extent) -> bool) -> Self {
        let mut entry = Self::default();
        for (place, part) in bytes.as_chunks::<SLOT>().0.iter().enumerate() {
            match parse_slot(block, part) {
                Ok(None) => {}
                Ok(Some(slot))
                    if slot.extent().is_none_or(&fits) && entry.get(slot.generation).is_none() =>
                {
                    entry.slots[place] = Some(slot);
                }
                Ok(_) | Err(Damaged) => entry.damaged = true,
            }
        }
        entry
    }
}

struct Damaged;

#[cfg(test)]
thread_local! {
    /// Slots that were made for the medium.
    pub(super) static MADE: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

pub(super) fn slot_bytes(slot: Option<Slot>, block: u64) -> [u8; SLOT] {
    #[cfg(test)]
    MADE.set(MADE.get() + 1);
    let mut bytes = [0; SLOT];
    bytes[FORM_AT] = PRESENT;
    if let Some(slot) = slot {
        bytes[..8].copy_from_slice(&slot.generation.to_be_bytes());
        bytes[8..16].copy_from_slice(&slot.place.to_be_bytes());
        bytes[FORM_AT] |= slot.kind as u8 | if slot.settled { SETTLED } else { 0 };
    }
    let crc = checksum(block, &bytes);
    bytes[CRC_AT..].copy_from_slice(&crc.to_be_bytes());
    bytes
}

fn parse_slot(block: u64, bytes: &[u8; SLOT]) -> Result<Option<Slot>, Damaged> {
    let be32 =
        |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let be64 = |at: usize| u64::from(be32(at)) << 32 | u64::from(be32(at + 4));
    let form = bytes[FORM_AT];
    if form & PRESENT == 0 || be32(CRC_AT) != checksum(block, bytes) {
        return Err(Damaged);
    }
    if form == PRESENT {
        return Ok(None);
    }
    let slot = Slot {
        generation: be64(0),
        place: be64(8),
        kind: Kind::of(form & KIND).ok_or(Damaged)?,
        settled: form & SETTLED != 0,
        age: Age::Durable,
    };
    if slot.extent().is_some() != slot.kind.has_bytes() {
        return Err(Damaged);
    }
    Ok(Some(slot))
}

fn checksum(block: u64, bytes: &[u8; SLOT]) -> u32 {
    // By one call: both parts are short.
    let mut both = [0; 8 + CRC_AT];
    both[..8].copy_from_slice(&block.to_be_bytes());
    both[8..].copy_from_slice(&bytes[..CRC_AT]);
    crc32c(&both)
}

/// A half block without data.
pub(super) fn without_bytes(slot: &Slot) -> Half {
    Half {
        generation: slot.generation,
        kind: slot.kind,
        stored: 0,
        data: bytes::Bytes::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(generation: u64, age: Age) -> Slot {
        let extent = Extent {
            offset: 4096 * generation,
            length: 100,
        };
        Slot {
            settled: true,
            age,
            ..Slot::new(generation, Some(extent), Kind::Lz4)
        }
    }

    fn entry(slots: &[Slot]) -> Entry {
        Entry::of(slots.iter().copied(), false)
    }

    fn parse(block: u64, bytes: &[u8; ENTRY]) -> Entry {
        Entry::parse(block, bytes, |_| true)
    }

    /// Of a layout whose targets wait for each other.
    #[test]
    fn a_flushed_generation_stays_until_all_targets_have_a_newer_one() {
        let generations = |entry: Entry| -> Vec<u64> {
            let slots = entry.slots.iter().flatten();
            slots.map(|slot| slot.generation).collect()
        };
        let next = |entry: Entry, number: u64, released: u64| {
            let slot = Slot::new(number, None, Kind::Zero);
            let prepared = entry.prepare(slot, number - 1, released).unwrap();
            prepared.commit(number, released).unwrap()
        };
        let second = next(entry(&[slot(1, Age::Durable)]), 2, 1);
        let mut durable = next(second, 3, 1);
        assert_eq!(generations(durable), [3, 2, 1], "a flush may be about 2");
        assert_eq!(generations(next(durable, 4, 1)), [4, 3, 1]);
        durable.change_age(Age::Fresh, Age::Durable);
        assert_eq!(generations(durable.aged(1)), [3, 2, 1]);
        assert_eq!(generations(durable.aged(2)), [3, 2]);
        assert_eq!(generations(durable.aged(3)), [3]);
        // One that nobody has told anything keeps the oldest one.
        assert_eq!(generations(durable.aged(0)), [3, 2, 1]);
        assert!(durable.aged(2).has_more() && !durable.aged(3).has_more());
    }

    /// What most entries become is what any entry becomes.
    #[test]
    fn the_short_ways_to_the_next_entry_end_where_the_long_ones_do() {
        let ages = [Age::Fresh, Age::Syncing, Age::Durable, Age::Doubtful];
        let kinds = ages
            .iter()
            .flat_map(|age| [false, true].map(|settled| (*age, settled)));
        let one = |number: u64| {
            let kinds = kinds.clone();
            kinds.map(move |(age, settled)| {
                Some(Slot {
                    settled,
                    ..slot(number, age)
                })
            })
        };
        let mut entries = Vec::new();
        for first in one(5).chain(one(3)).chain([None]) {
            for second in one(3).chain(one(4)).chain(one(9)).chain([None]) {
                for third in [None, Some(slot(1, Age::Durable))] {
                    let generation = |slot: Option<Slot>| slot.map(|slot| slot.generation);
                    if first.is_none() || generation(first) != generation(second) {
                        let slots = [first, second, third];
                        entries.extend([false, true].map(|damaged| Entry { slots, damaged }));
                    }
                }
            }
        }
        assert!(entries.len() > 1000);
        for entry in entries {
            for released in [0, 3, 5, AT_ONCE] {
                for generation in [0, 1, 3, 4, 5, 9] {
                    let next = |entry: &Entry| entry.commit_any(generation, released);
                    assert_eq!(
                        entry.commit(generation, released),
                        next(&entry),
                        "{entry:?}"
                    );
                    for keep in [0, 3, 5, KEEP_ALL] {
                        let new = slot(generation, Age::Fresh);
                        let next = entry.prepare_any(new, keep, released);
                        assert_eq!(entry.prepare(new, keep, released), next, "{entry:?}");
                    }
                }
            }
        }
    }

    /// The bytes of an entry do not depend on what was there before.
    #[test]
    fn the_bytes_behind_another_entry_are_its_own() {
        let damaged = |entry: Entry| Entry {
            damaged: true,
            ..entry
        };
        let fresh = Slot::new(9, None, Kind::Zero);
        let elsewhere = Slot {
            place: 1 << 30,
            ..slot(7, Age::Durable)
        };
        let entries = [
            Entry::default(),
            entry(&[Slot::ORIGIN]),
            entry(&[Slot::UNKNOWN]),
            entry(&[slot(7, Age::Durable)]),
            entry(&[slot(7, Age::Doubtful)]),
            entry(&[elsewhere]),
            entry(&[fresh, slot(7, Age::Syncing)]),
            entry(&[
                Slot {
                    settled: true,
                    ..fresh
                },
                slot(7, Age::Durable),
                Slot::ORIGIN,
            ]),
        ];
        let all: Vec<Entry> = entries.into_iter().chain(entries.map(damaged)).collect();
        for before in &all {
            for after in &all {
                let bytes = after.to_bytes_behind(5, (before, &before.to_bytes(5)));
                assert_eq!(bytes, after.to_bytes(5), "{after:?} behind {before:?}");
            }
        }
    }

    #[test]
    fn an_entry_comes_back_for_its_own_block() {
        for slots in [
            &[][..],
            &[Slot::ORIGIN],
            &[slot(9, Age::Durable)],
            &[
                Slot {
                    settled: false,
                    ..slot(9, Age::Durable)
                },
                slot(7, Age::Durable),
                Slot {
                    settled: true,
                    age: Age::Durable,
                    ..Slot::new(3, None, Kind::Zero)
                },
            ],
        ] {
            let whole = entry(slots);
            let bytes = whole.to_bytes(7);
            assert_eq!(parse(7, &bytes), whole);
            let elsewhere = parse(8, &bytes);
            assert!(elsewhere.damaged && elsewhere.slots == [None; SLOTS]);
        }
    }

    #[test]
    fn a_damaged_slot_leaves_the_others() {
        let whole = entry(&[9, 5, 3].map(|generation| slot(generation, Age::Durable)));
        for bit in 0..SLOTS * SLOT * 8 {
            let mut bytes = whole.to_bytes(7);
            bytes[bit / 8] ^= 1 << (bit % 8);
            let found = parse(7, &bytes);
            assert_eq!(found.slots.iter().flatten().count(), 2, "{bit}");
            assert!(found.damaged);
        }
    }

    #[test]
    fn zeros_are_damaged_and_a_damaged_entry_stays_so_until_a_commit() {
        let zeros = parse(7, &[0; ENTRY]);
        assert!(zeros.damaged);
        assert!(parse(7, &zeros.to_bytes(7)).damaged);
        for bit in 0..SLOTS * SLOT * 8 {
            let mut bytes = Entry::default().to_bytes(7);
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(parse(7, &bytes).damaged, "{bit}");
        }
        let prepared = zeros
            .prepare(Slot::new(4, None, Kind::Zero), 0, AT_ONCE)
            .unwrap();
        let committed = prepared.commit(4, AT_ONCE).unwrap();
        let prepared = parse(7, &prepared.to_bytes(7));
        assert!(prepared.damaged && prepared.get(4).is_some());
        assert!(!prepared.commit(4, AT_ONCE).unwrap().damaged);
        // Nor is it said twice, when it is damaged again.
        let again = Entry {
            damaged: true,
            ..entry(&[Slot::UNKNOWN])
        };
        let again = again
            .prepare(Slot::new(4, None, Kind::Zero), 0, AT_ONCE)
            .unwrap();
        let again = again.commit(4, AT_ONCE).unwrap();
        assert_eq!(again.slots[1..], [Some(Slot::UNKNOWN), None]);
        let next = again
            .prepare(Slot::new(5, None, Kind::Zero), 4, AT_ONCE)
            .unwrap();
        assert!(next.commit(5, AT_ONCE).is_some());
        // Until generation 4 is durable, a loss of power brings the damage back.
        assert_eq!(committed.slots[1..], [Some(Slot::UNKNOWN), None]);
        let found = parse(7, &committed.to_bytes(7));
        assert_eq!(found.slots[1], Some(Slot::UNKNOWN));
        let mut durable = committed;
        durable.change_age(Age::Fresh, Age::Durable);
        assert_eq!(durable.aged(AT_ONCE).slots[1..], [None; 2]);
    }

    /// Of a lost block.
    #[test]
    fn a_write_that_keeps_all_drops_nothing_that_is_settled_and_the_oldest_of_the_others() {
        let unsettled = |number: u64| Slot {
            settled: false,
            ..slot(number, Age::Durable)
        };
        let next = |slots: &[Slot], number: u64| {
            let found = entry(slots).prepare(unsettled(number), KEEP_ALL, AT_ONCE)?;
            let found = found.slots.into_iter().flatten();
            Some(found.map(|slot| slot.generation).collect::<Vec<u64>>())
        };
        let old = slot(1, Age::Durable);
        assert_eq!(next(&[old], 2), Some(vec![2, 1]));
        assert_eq!(next(&[unsettled(2), old], 3), Some(vec![3, 1, 2]));
        let three = [unsettled(2), unsettled(3), old];
        assert_eq!(next(&three, 4), Some(vec![4, 1, 3]));
        assert_eq!(next(&three, 3), Some(vec![3, 1, 2]), "it is written again");
        let fresh = [unsettled(3), slot(2, Age::Fresh), old];
        assert_eq!(next(&fresh, 4), Some(vec![4, 2, 1]));
        let syncing = [slot(3, Age::Fresh), slot(2, Age::Syncing), old];
        assert_eq!(next(&syncing, 4), None, "the sync must end first");
        let damaged = Entry {
            damaged: true,
            ..entry(&[unsettled(2)])
        };
        let damaged = damaged.prepare(unsettled(3), KEEP_ALL, AT_ONCE).unwrap();
        assert!(damaged.damaged && damaged.get(2).is_some() && damaged.get(3).is_some());
    }

    #[test]
    fn a_generation_that_an_entry_has_twice_is_damaged() {
        let twice = entry(&[Slot::ORIGIN, Slot::ORIGIN]);
        let found = parse(7, &twice.to_bytes(7));
        assert_eq!(found.slots, [Some(Slot::ORIGIN), None, None]);
        assert!(found.damaged);
    }

    #[test]
    fn the_durable_generation_stays_until_a_newer_one_is_durable() {
        let generations = |entry: Entry| -> Vec<u64> {
            let slots = entry.slots.iter().flatten();
            slots.map(|slot| slot.generation).collect()
        };
        let next = |entry: Entry, number: u64, keep: u64| {
            let slot = Slot::new(number, None, Kind::Zero);
            entry.prepare(slot, keep, AT_ONCE)
        };
        let first = next(Entry::default(), 1, 0).unwrap();
        assert_eq!(generations(first), [1, 0], "never written is durable");
        let first = first.commit(1, AT_ONCE).unwrap();
        assert_eq!(generations(first), [1, 0]);
        let second = next(first, 2, 1).unwrap();
        assert_eq!(generations(second), [2, 1, 0]);
        let second = second.commit(2, AT_ONCE).unwrap();
        assert_eq!(generations(second), [2, 0], "1 was never durable");
        let mut syncing = second;
        syncing.change_age(Age::Fresh, Age::Syncing);
        let third = next(syncing, 3, 2).unwrap().commit(3, AT_ONCE).unwrap();
        assert_eq!(generations(third), [3, 2, 0]);
        assert_eq!(next(third, 4, 3), None, "the sync must end first");
        let mut durable = third;
        durable.change_age(Age::Syncing, Age::Durable);
        let durable = durable.aged(AT_ONCE);
        assert_eq!(generations(durable), [3, 2]);
        assert_eq!(generations(next(durable, 4, 3).unwrap()), [4, 3, 2]);
        assert_eq!(
            generations(durable.commit(2, AT_ONCE).unwrap()),
            [2],
            "newer ones go"
        );
        assert_eq!(durable.commit(0, AT_ONCE), Some(Entry::default()));
        assert_eq!(durable.commit(7, AT_ONCE), None);
        let again = next(durable, 3, 0).unwrap();
        assert!(again.get(3).unwrap().settled, "it was settled before");
    }
}
