//! Tables of device objects in shared memory: numbered slots of fixed size. A process and one of
//! its contexts own each slot.
//!
//! A process can be killed at any instruction. An insertion therefore writes the contents of a slot
//! before its state, and a removal clears the state first. The free list is only a shortcut:
//! [`Table::repair`] rebuilds it from the states.

use crate::bits::constant;

use std::sync::atomic::{Ordering, fence};

/// Owner of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Owner {
    /// Number of the process in the process table, counted from 1; 0 is the device itself.
    pub process: u32,
    /// Number of the uverbs context, unique for the life of the device.
    pub context: u32,
}

const FREE: u32 = 0;
const LIVE: u32 = 1;

/// A slot of a table.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Slot<T> {
    state: u32,
    /// Next slot on the free list, counted from 1; 0 ends it.
    next_free: u32,
    /// Number of objects that this slot has held. It detects stale references.
    generation: u32,
    owner: Owner,
    value: T,
}

/// A table of at most `N` objects. All zeroes is an empty table.
#[derive(Debug)]
#[repr(C)]
pub struct Table<T, const N: usize> {
    live: u32,
    live_max: u32,
    /// Number of slots that were ever in use. Slots above have never been touched.
    high: u32,
    /// First and last free slot below `high`, counted from 1. The oldest is used first, so a number
    /// stays unused as long as possible.
    free_first: u32,
    free_last: u32,
    slots: [Slot<T>; N],
}

impl<T: Copy, const N: usize> Table<T, N> {
    /// Largest number of objects.
    pub const CAPACITY: usize = N;

    /// Number of live objects.
    #[must_use]
    pub fn live(&self) -> u32 {
        self.live
    }

    /// Largest number of live objects so far.
    #[must_use]
    pub fn live_max(&self) -> u32 {
        self.live_max
    }

    /// Inserts an object into a free slot and returns its number; None if the table is full.
    pub fn insert(&mut self, owner: Owner, value: T) -> Option<u32> {
        let index = match self.free_first {
            0 if (self.high as usize) < N => {
                self.high += 1;
                self.high - 1
            }
            0 => return None,
            first => {
                let index = first - 1;
                self.free_first = self.slots.get(index as usize)?.next_free;
                if self.free_first == 0 {
                    self.free_last = 0;
                }
                index
            }
        };
        self.fill(index, owner, value)
    }

    /// Like [`Table::insert`], but gives a number again only after `rest` others of its table have become free, as long as
    /// there are numbers that were never used.
    pub fn insert_rested(&mut self, owner: Owner, value: T, rest: u32) -> Option<u32> {
        let free = self.high.saturating_sub(self.live);
        if free > rest || self.high as usize >= N {
            return self.insert(owner, value);
        }
        self.high += 1;
        self.fill(self.high - 1, owner, value)
    }

    /// Like [`Table::insert`], but uses the lowest free number. Numbers are reused as early as
    /// possible.
    pub fn insert_lowest(&mut self, owner: Owner, value: T) -> Option<u32> {
        let used = (self.high as usize).min(N);
        let free = self.slots[..used]
            .iter()
            .position(|slot| slot.state == FREE);
        let Some(index) = free.and_then(|index| u32::try_from(index).ok()) else {
            return self.insert(owner, value);
        };
        self.unlink_free(index);
        self.fill(index, owner, value)
    }

    /// Removes a slot from the free list.
    fn unlink_free(&mut self, index: u32) {
        let wanted = index + 1;
        let next = self
            .slots
            .get(index as usize)
            .map_or(0, |slot| slot.next_free);
        let (mut before, mut at) = (0, self.free_first);
        // Bounded by the number of slots: a dead process may leave a cycle in the list.
        for _ in 0..N {
            if at == wanted || at == 0 {
                break;
            }
            before = at;
            at = self
                .slots
                .get(at as usize - 1)
                .map_or(0, |slot| slot.next_free);
        }
        if at != wanted {
            return;
        }
        match before.checked_sub(1) {
            None => self.free_first = next,
            Some(before) => {
                if let Some(slot) = self.slots.get_mut(before as usize) {
                    slot.next_free = next;
                }
            }
        }
        if self.free_last == wanted {
            self.free_last = before;
        }
    }

    fn fill(&mut self, index: u32, owner: Owner, value: T) -> Option<u32> {
        let slot = self.slots.get_mut(index as usize)?;
        slot.value = value;
        slot.owner = owner;
        slot.generation = slot.generation.wrapping_add(1);
        slot.next_free = 0;
        fence(Ordering::Release);
        slot.state = LIVE;
        self.live += 1;
        self.live_max = self.live_max.max(self.live);
        Some(index)
    }

    /// Removes an object; None if the number is not in use.
    pub fn remove(&mut self, index: u32) -> Option<T> {
        let slot = self
            .slots
            .get_mut(index as usize)
            .filter(|slot| slot.state == LIVE)?;
        slot.state = FREE;
        fence(Ordering::Release);
        let value = slot.value;
        self.live = self.live.saturating_sub(1);
        self.append_free(index);
        Some(value)
    }

    fn append_free(&mut self, index: u32) {
        let link = index + 1;
        if let Some(slot) = self.slots.get_mut(index as usize) {
            slot.next_free = 0;
        }
        match self
            .free_last
            .checked_sub(1)
            .and_then(|last| self.slots.get_mut(last as usize))
        {
            Some(last) => last.next_free = link,
            None => self.free_first = link,
        }
        self.free_last = link;
    }

    /// The object with this number.
    #[must_use]
    pub fn get(&self, index: u32) -> Option<&T> {
        self.slot(index).map(|slot| &slot.value)
    }

    /// The object with this number, mutable.
    #[must_use]
    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        let slot = self
            .slots
            .get_mut(index as usize)
            .filter(|slot| slot.state == LIVE)?;
        Some(&mut slot.value)
    }

    /// Owner of the object with this number.
    #[must_use]
    pub fn owner(&self, index: u32) -> Option<Owner> {
        self.slot(index).map(|slot| slot.owner)
    }

    /// Number of objects that had this number, including the current one.
    #[must_use]
    pub fn generation(&self, index: u32) -> Option<u32> {
        self.slot(index).map(|slot| slot.generation)
    }

    /// The object with this number, if it belongs to `context`.
    #[must_use]
    pub fn owned(&self, index: u32, context: u32) -> Option<&T> {
        self.slot(index)
            .filter(|slot| slot.owner.context == context)
            .map(|slot| &slot.value)
    }

    fn slot(&self, index: u32) -> Option<&Slot<T>> {
        // Slots above `high` are not read, because a read would allocate their pages.
        let used = index < self.high;
        self.slots
            .get(index as usize)
            .filter(|slot| used && slot.state == LIVE)
    }

    /// Numbers, owners and contents of all live objects.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Owner, &T)> {
        let used = (self.high as usize).min(N);
        self.slots[..used]
            .iter()
            .zip(0u32..)
            .filter(|(slot, _)| slot.state == LIVE)
            .map(|(slot, index)| (index, slot.owner, &slot.value))
    }

    /// The first object at or above `from` that `wanted` accepts.
    pub fn next(&self, from: u32, wanted: impl Fn(Owner, &T) -> bool) -> Option<u32> {
        let used = (self.high as usize).min(N);
        let start = (from as usize).min(used);
        self.slots[start..used]
            .iter()
            .zip(from..)
            .find(|(slot, _)| slot.state == LIVE && wanted(slot.owner, &slot.value))
            .map(|(_, index)| index)
    }

    /// Rebuilds counts and the free list after a process died while it changed the table.
    pub fn repair(&mut self) {
        self.high = self.high.min(const { constant(N) });
        self.live = 0;
        self.free_first = 0;
        self.free_last = 0;
        for index in 0..self.high {
            match self.slots.get(index as usize) {
                Some(slot) if slot.state == LIVE => self.live += 1,
                Some(_) => self.append_free(index),
                None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty<const N: usize>() -> Table<u64, N> {
        Table {
            live: 0,
            live_max: 0,
            high: 0,
            free_first: 0,
            free_last: 0,
            slots: [Slot {
                state: FREE,
                next_free: 0,
                generation: 0,
                owner: Owner::default(),
                value: 0,
            }; N],
        }
    }

    const OWNER: Owner = Owner {
        process: 1,
        context: 7,
    };

    #[test]
    fn numbers_rest_as_long_as_can_be() {
        let mut table = empty::<3>();
        let numbers: Vec<_> = (0..4).map(|value| table.insert(OWNER, value)).collect();
        assert_eq!(numbers, [Some(0), Some(1), Some(2), None]);
        assert_eq!(
            (table.remove(1), table.remove(0), table.remove(1)),
            (Some(1), Some(0), None)
        );
        assert_eq!(
            (table.insert(OWNER, 10), table.insert(OWNER, 11)),
            (Some(1), Some(0))
        );
        assert_eq!(table.generation(1), Some(2));
        assert_eq!((table.live(), table.live_max()), (3, 3));
        assert_eq!(table.owned(0, 7), Some(&11));
        assert_eq!(table.owned(0, 8), None);
    }

    #[test]
    fn a_number_rests_until_others_are_free() {
        let mut table = empty::<6>();
        let mut next = || {
            let number = table.insert_rested(OWNER, 0, 2);
            number.inspect(|&number| assert!(table.remove(number).is_some()))
        };
        let numbers: Vec<_> = (0..7).map(|_| next()).collect();
        assert_eq!(numbers, [0, 1, 2, 0, 1, 2, 0].map(Some));
        // A full table gives what is free.
        for _ in 0..6 {
            assert!(table.insert_rested(OWNER, 0, 2).is_some());
        }
        assert_eq!(table.insert_rested(OWNER, 0, 2), None);
        table.remove(4);
        assert_eq!(table.insert_rested(OWNER, 0, 2), Some(4));
    }

    #[test]
    fn the_lowest_number_comes_again_at_once() {
        let mut table = empty::<4>();
        for value in 0..4 {
            table.insert(OWNER, value);
        }
        assert_eq!(table.insert_lowest(OWNER, 9), None);
        for index in [3, 0, 2] {
            table.remove(index);
        }
        let lowest: Vec<_> = (0..2)
            .map(|value| table.insert_lowest(OWNER, value))
            .collect();
        assert_eq!(lowest, [Some(0), Some(2)]);
        // The list is complete: the longest free slot is next, and no slot occurs twice.
        table.remove(1);
        let oldest: Vec<_> = (0..3).map(|value| table.insert(OWNER, value)).collect();
        assert_eq!(oldest, [Some(3), Some(1), None]);
    }

    #[test]
    fn a_table_is_repaired_from_its_states() {
        let mut table = empty::<4>();
        for value in 0..4 {
            table.insert(OWNER, value);
        }
        table.remove(2);
        // State left by a process that dies during a change.
        (table.free_first, table.free_last, table.live) = (99, 98, 77);
        table.repair();
        assert_eq!(table.live(), 3);
        assert_eq!(
            (table.insert(OWNER, 5), table.insert(OWNER, 6)),
            (Some(2), None)
        );
        assert_eq!(
            table.iter().map(|(_, _, value)| *value).collect::<Vec<_>>(),
            [0, 1, 5, 3]
        );
    }
}
