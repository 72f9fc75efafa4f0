//! Free keys in the order of their return, each with its last address. A buffer that returns to its
//! address gets its previous key, if that key is free. An importer that caches by address and key then
//! hits; UCX's own cache of imports does not, as it compares the number of the registration. Otherwise the pool takes the longest idle key, as with
//! [`ReuseOrder::Fifo`](crate::ReuseOrder::Fifo).

use crate::key::VirtAddr;
use crate::slots::SlotId;

/// No key.
const NONE: u32 = u32::MAX;

/// Free keys, in a doubly linked list over their slots.
#[derive(Debug)]
pub(crate) struct IdleKeys {
    links: Vec<Link>,
    /// By a hash of the address: the slot that was last bound there.
    last: Vec<u32>,
    first: u32,
    end: u32,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    behind: u32,
    is_free: bool,
    /// Last address of the key.
    address: u64,
}

impl IdleKeys {
    /// An empty list with space for `capacity` slots.
    pub(crate) fn new(capacity: u32) -> Self {
        let link = Link {
            before: NONE,
            behind: NONE,
            is_free: false,
            address: 0,
        };
        Self {
            links: vec![link; capacity as usize],
            // Twice the number of slots, so few addresses share an entry.
            last: vec![NONE; (2 * capacity as usize).next_power_of_two()],
            first: NONE,
            end: NONE,
        }
    }

    /// Takes the key last bound to the address, or else the longest idle key.
    pub(crate) fn take(&mut self, address: Option<VirtAddr>) -> Option<SlotId> {
        let known = address.and_then(|address| self.known(address));
        let taken = known.or((self.first != NONE).then_some(self.first))?;
        self.unlink(taken);
        Some(SlotId(taken))
    }

    /// Records the address of a bound key.
    pub(crate) fn remember(&mut self, id: SlotId, address: VirtAddr) {
        self.links[id.0 as usize].address = address.get();
        let place = self.place(address);
        self.last[place] = id.0;
    }

    /// Appends a key to the list.
    pub(crate) fn put(&mut self, id: SlotId) {
        let link = &mut self.links[id.0 as usize];
        assert!(!link.is_free, "a key came back twice");
        (link.before, link.behind, link.is_free) = (self.end, NONE, true);
        match self.end {
            NONE => self.first = id.0,
            end => self.links[end as usize].behind = id.0,
        }
        self.end = id.0;
    }

    fn known(&self, address: VirtAddr) -> Option<u32> {
        let slot = self.last[self.place(address)];
        let link = self.links.get(slot as usize)?;
        (link.is_free && link.address == address.get()).then_some(slot)
    }

    fn unlink(&mut self, slot: u32) {
        let Link { before, behind, .. } = self.links[slot as usize];
        match before {
            NONE => self.first = behind,
            before => self.links[before as usize].behind = behind,
        }
        match behind {
            NONE => self.end = before,
            behind => self.links[behind as usize].before = before,
        }
        self.links[slot as usize].is_free = false;
    }

    fn place(&self, address: VirtAddr) -> usize {
        // The multiplier of Fibonacci hashing. The upper half depends on all bits of the address.
        let mixed = address.get().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let mixed = mixed as usize;
        mixed & (self.last.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u64) -> VirtAddr {
        VirtAddr::new(0x7f00_0000_0000 + (number << 12))
    }

    fn full(keys: u32) -> IdleKeys {
        let mut idle_keys = IdleKeys::new(keys);
        (0..keys).for_each(|id| idle_keys.put(SlotId(id)));
        idle_keys
    }

    #[test]
    fn an_address_gets_its_key_back() {
        let mut idle_keys = full(16);
        let bind = |idle_keys: &mut IdleKeys, number| {
            let id = idle_keys.take(Some(address(number))).expect("a key");
            idle_keys.remember(id, address(number));
            id
        };
        let first: Vec<_> = (0..8).map(|number| bind(&mut idle_keys, number)).collect();
        // The keys return in another order.
        first.iter().rev().for_each(|id| idle_keys.put(*id));
        let again: Vec<_> = (0..8).map(|number| bind(&mut idle_keys, number)).collect();
        assert_eq!(first, again);
    }

    #[test]
    fn without_a_known_address_the_order_is_that_of_return() {
        let mut idle_keys = full(4);
        for round in 0..20 {
            let id = idle_keys.take(Some(address(round))).expect("a key");
            assert_eq!(u64::from(id.0), round % 4);
            idle_keys.remember(id, address(round));
            idle_keys.put(id);
        }
        assert_eq!(idle_keys.take(None), Some(SlotId(0)));
    }

    #[test]
    fn a_key_in_use_is_not_taken_again() {
        let mut idle_keys = full(2);
        let first = idle_keys.take(Some(address(1))).expect("a key");
        idle_keys.remember(first, address(1));
        let second = idle_keys.take(Some(address(1))).expect("another");
        assert_ne!(first, second);
        assert_eq!(idle_keys.take(Some(address(1))), None);
        idle_keys.put(first);
        idle_keys.put(second);
        assert_eq!(idle_keys.take(Some(address(1))), Some(first));
    }
}
