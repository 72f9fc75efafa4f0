//! The names of a rank's exports, under which its SP keeps the imports: see [`Name`].

use crate::wire::Name;

/// The names that this rank has given.
#[derive(Debug)]
pub(super) struct Names {
    slots: Vec<Slot>,
    most: usize,
    /// Number of uses so far.
    uses: u64,
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    /// The exported handle. UCX puts a number into it that differs for each registration.
    packed: Vec<u8>,
    /// Place of the exported memory, as far as calls have used it.
    start: u64,
    end: u64,
    /// Calls under way that use the name.
    calls: u32,
    /// The lanes in which a call that had the handle is complete: their SPs have the import.
    known: u64,
    used: u64,
}

impl Names {
    /// The SP keeps `most` imports of this rank.
    pub(super) fn new(most: usize) -> Self {
        Self {
            slots: Vec::new(),
            most,
            uses: 0,
        }
    }

    /// The name of an export for a call, and the lanes whose SPs have the import. `None` if calls under way use all names: the SP
    /// then imports the buffer for this call alone.
    pub(super) fn take(
        &mut self,
        packed: &[u8],
        (address, length): (u64, u64),
    ) -> Option<(Name, u64)> {
        self.uses += 1;
        let (start, end) = (address, address.saturating_add(length));
        let same = self.slots.iter().position(|slot| slot.packed == packed);
        let at = match same {
            Some(at) => {
                let slot = &mut self.slots[at];
                (slot.start, slot.end) = (slot.start.min(start), slot.end.max(end));
                at
            }
            None => {
                let at = self.free(start, end)?;
                let slot = &mut self.slots[at];
                slot.generation = slot.generation.wrapping_add(1);
                slot.packed.clear();
                slot.packed.extend_from_slice(packed);
                (slot.start, slot.end) = (start, end);
                slot.known = 0;
                at
            }
        };
        let slot = &mut self.slots[at];
        slot.calls += 1;
        slot.used = self.uses;
        let name = Name {
            slot: u32::try_from(at).unwrap_or(u32::MAX),
            generation: slot.generation,
        };
        Some((name, slot.known))
    }

    /// A name that no call uses: that of memory at the same place, which is gone, or else one that was never used, or else
    /// the one whose last use is longest ago.
    fn free(&mut self, start: u64, end: u64) -> Option<usize> {
        let is_gone = |slot: &Slot| slot.calls == 0 && slot.start < end && start < slot.end;
        if let Some(gone) = self.slots.iter().position(is_gone) {
            return Some(gone);
        }
        if self.slots.len() < self.most {
            self.slots.push(Slot {
                generation: 0,
                packed: Vec::new(),
                start: 0,
                end: 0,
                calls: 0,
                known: 0,
                used: 0,
            });
            return Some(self.slots.len() - 1);
        }
        let idle = self.slots.iter().enumerate();
        let idle = idle.filter(|(_, slot)| slot.calls == 0);
        idle.min_by_key(|(_, slot)| slot.used).map(|(at, _)| at)
    }

    /// A call that had the name in these lanes is complete, or has not started after all.
    pub(super) fn put_back(&mut self, name: Name, lanes: u64) {
        if let Some(slot) = self.slots.get_mut(name.slot as usize) {
            slot.calls -= 1;
            slot.known |= lanes;
        }
    }

    /// The registration of an export has ended: its name is the next to be used for another one.
    pub(super) fn forget(&mut self, packed: &[u8]) {
        let slots = self.slots.iter_mut().filter(|slot| slot.calls == 0);
        for slot in slots.filter(|slot| slot.packed == packed) {
            slot.packed.clear();
            (slot.used, slot.known) = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes a name and says its slot, its generation, and the lanes that have the import.
    fn take(names: &mut Names, packed: &[u8], address: u64) -> Option<(Name, (u32, u32, u64))> {
        let (name, known) = names.take(packed, (address, 10))?;
        Some((name, (name.slot, name.generation, known)))
    }

    #[test]
    fn a_handle_is_left_out_when_a_call_with_it_is_complete() {
        let mut names = Names::new(2);
        let (first, found) = take(&mut names, b"a", 0).expect("a name");
        assert_eq!(found, (0, 1, 0));
        let (second, found) = take(&mut names, b"a", 0).expect("a name");
        assert_eq!(found, (0, 1, 0), "the first call may be overtaken");
        names.put_back(first, 1);
        let (third, found) = take(&mut names, b"a", 0).expect("a name");
        assert_eq!(found, (0, 1, 1));
        for name in [second, third] {
            names.put_back(name, 1);
        }
    }

    #[test]
    fn each_lane_gets_the_handle_once() {
        let mut names = Names::new(2);
        for (lanes, known) in [(0b01, 0), (0b10, 0b01), (0b11, 0b11)] {
            let (name, found) = take(&mut names, b"a", 0).expect("a name");
            assert_eq!(found, (0, 1, known));
            names.put_back(name, lanes);
        }
        let (_, found) = take(&mut names, b"b", 5).expect("a name");
        assert_eq!(found, (0, 2, 0), "another registration is known to none");
    }

    #[test]
    fn a_call_that_did_not_start_says_nothing_to_the_service() {
        let mut names = Names::new(2);
        let (name, _) = take(&mut names, b"a", 0).expect("a name");
        names.put_back(name, 0);
        let (_, found) = take(&mut names, b"a", 0).expect("a name");
        assert_eq!(found, (0, 1, 0));
    }

    #[test]
    fn a_new_registration_has_another_generation_at_once() {
        let mut names = Names::new(2);
        for (packed, address) in [(b"a", 0), (b"b", 100)] {
            let (name, _) = take(&mut names, packed, address).expect("a name");
            names.put_back(name, 1);
        }
        // The memory at 100 was unmapped and mapped again: UCX has registered it anew.
        let (name, found) = take(&mut names, b"c", 105).expect("a name");
        assert_eq!(found, (1, 2, 0));
        names.put_back(name, 1);
        let (_, found) = take(&mut names, b"b", 100).expect("a name");
        assert_eq!(found, (1, 3, 0), "the old handle is not known any longer");
    }

    #[test]
    fn names_are_bounded_and_the_oldest_idle_one_is_used_again() {
        let mut names = Names::new(2);
        let (a, _) = take(&mut names, b"a", 0).expect("a name");
        let (b, _) = take(&mut names, b"b", 100).expect("a name");
        assert!(
            take(&mut names, b"c", 200).is_none(),
            "calls use all of them"
        );
        names.put_back(b, 1);
        names.put_back(a, 1);
        // `b` was used last.
        let (c, found) = take(&mut names, b"c", 200).expect("a name");
        assert_eq!(found, (0, 2, 0));
        names.put_back(c, 1);
        names.forget(b"c");
        let (_, found) = take(&mut names, b"d", 300).expect("a name");
        assert_eq!(found, (0, 3, 0), "the released one comes first");
        assert!(Names::new(0).take(b"a", (0, 10)).is_none());
    }
}
