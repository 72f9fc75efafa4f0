//! The registrations that the library follows: those that UCX uses, and those that it has released and that are
//! kept. This module does no I/O and allocates nothing.
//!
//! A change of the mapping marks every registration that it touches, also one that UCX still uses or is about to
//! make. A marked registration is not kept, and a kept one that is marked is not used again.

use super::pages::PAGE;

/// Places of the table. Further registrations are not followed.
pub(super) const PLACES: usize = 1024;

/// A registration of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Memory {
    /// Address of the memory domain.
    pub(super) md: usize,
    pub(super) address: usize,
    pub(super) length: usize,
    /// The rights, and other flags of UCX.
    pub(super) access: u64,
    pub(super) others: u64,
}

impl Memory {
    /// True if a registration of this memory can answer a request for the other one: the same bytes with the
    /// same or fewer rights.
    fn answers(&self, wanted: &Self) -> bool {
        let same = Self {
            access: self.access,
            ..*wanted
        };
        *self == same && self.access & wanted.access == wanted.access
    }
}

/// State of a place. Zeroed memory has the first value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
enum State {
    #[default]
    Free = 0,
    /// UCX registers the memory.
    Making,
    /// UCX uses the registration.
    Used,
    /// UCX has released it.
    Kept,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    state: State,
    /// The registration must not be kept, or not be used again.
    is_spoilt: bool,
    /// Address of UCX's memory handle.
    memh: usize,
    memory: Memory,
    /// Number of the release.
    released: u64,
}

/// Limits of the kept registrations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) count: usize,
    pub(super) bytes: usize,
}

/// Answer to a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begun {
    /// The memory handle of a kept registration, which UCX uses from now on.
    Kept(usize),
    /// UCX must register. The caller reports the result with [`Table::made`].
    New(usize),
    /// UCX must register, and the registration is not followed.
    Full,
}

/// The table.
#[derive(Debug)]
pub(super) struct Table {
    places: [Place; PLACES],
    /// Places that were ever in use are before this one.
    end: usize,
    releases: u64,
    kept_count: usize,
    kept_bytes: usize,
}

impl Table {
    /// The empty table, of zeros.
    pub(super) const EMPTY: Self = Self {
        places: [Place {
            state: State::Free,
            is_spoilt: false,
            memh: 0,
            memory: Memory {
                md: 0,
                address: 0,
                length: 0,
                access: 0,
                others: 0,
            },
            released: 0,
        }; PLACES],
        end: 0,
        releases: 0,
        kept_count: 0,
        kept_bytes: 0,
    };

    /// Number and bytes of the kept registrations.
    pub(super) const fn kept(&self) -> (usize, usize) {
        (self.kept_count, self.kept_bytes)
    }

    fn used(&mut self) -> &mut [Place] {
        &mut self.places[..self.end]
    }

    /// Begins a registration.
    pub(super) fn begin(&mut self, wanted: Memory) -> Begun {
        let fits = |place: &&mut Place| {
            place.state == State::Kept && !place.is_spoilt && place.memory.answers(&wanted)
        };
        if let Some(place) = self.used().iter_mut().find(fits) {
            place.state = State::Used;
            let (memh, length) = (place.memh, place.memory.length);
            self.count_out(length);
            return Begun::Kept(memh);
        }
        let free = self
            .places
            .iter()
            .position(|place| place.state == State::Free);
        let Some(at) = free else {
            return Begun::Full;
        };
        self.end = self.end.max(at + 1);
        self.places[at] = Place {
            state: State::Making,
            is_spoilt: false,
            memh: 0,
            memory: wanted,
            released: 0,
        };
        Begun::New(at)
    }

    /// Ends a [`Begun::New`]: the memory handle, or zero after a failure.
    pub(super) fn made(&mut self, at: usize, memh: usize) {
        // UCX has freed an older handle at this address without a release.
        let md = self.places[at].memory.md;
        let is_older = |place: &&mut Place| {
            place.state == State::Used && (place.memh, place.memory.md) == (memh, md)
        };
        if let Some(older) = self.used().iter_mut().find(is_older) {
            older.state = State::Free;
        }
        let place = &mut self.places[at];
        place.memh = memh;
        place.state = match memh {
            0 => State::Free,
            _ => State::Used,
        };
    }

    /// Ends the use of a registration. True if it is kept: UCX must not deregister it.
    pub(super) fn release(
        &mut self,
        md: usize,
        memh: usize,
        may_stay: bool,
        limits: Limits,
    ) -> bool {
        let is_it = |place: &&mut Place| {
            place.state == State::Used && (place.memh, place.memory.md) == (memh, md)
        };
        let number = self.releases + 1;
        let Some(place) = self.used().iter_mut().find(is_it) else {
            return false;
        };
        let length = place.memory.length;
        if !may_stay || place.is_spoilt || length > limits.bytes || limits.count == 0 {
            place.state = State::Free;
            return false;
        }
        (place.state, place.released) = (State::Kept, number);
        self.releases = number;
        self.kept_count += 1;
        self.kept_bytes += length;
        true
    }

    /// Takes a registration of the domain that must end: a spoilt one, or the oldest one beyond the limits. The
    /// caller deregisters the memory handle.
    pub(super) fn surplus(&mut self, md: usize, limits: Limits) -> Option<usize> {
        let is_over = self.kept_count > limits.count || self.kept_bytes > limits.bytes;
        let mut oldest: Option<usize> = None;
        for at in 0..self.end {
            let place = &self.places[at];
            if place.state != State::Kept || place.memory.md != md {
                continue;
            }
            if place.is_spoilt {
                return Some(self.take(at));
            }
            if oldest.is_none_or(|oldest| place.released < self.places[oldest].released) {
                oldest = Some(at);
            }
        }
        oldest.filter(|_| is_over).map(|at| self.take(at))
    }

    /// Takes any kept registration of the domain.
    pub(super) fn any_of(&mut self, md: usize) -> Option<usize> {
        let is_it = |place: &Place| place.state == State::Kept && place.memory.md == md;
        let at = self.places[..self.end].iter().position(is_it)?;
        Some(self.take(at))
    }

    /// Forgets the registrations that UCX did not release before it closes the domain.
    pub(super) fn forget(&mut self, md: usize) {
        for place in self.used() {
            if place.memory.md == md && place.state != State::Kept {
                place.state = State::Free;
            }
        }
    }

    /// The mapping of these bytes changes. Without an end, that of all bytes.
    pub(super) fn changed(&mut self, address: usize, end: usize) {
        let from = address & !(PAGE - 1);
        for place in self.used() {
            let Memory {
                address, length, ..
            } = place.memory;
            let last = address.saturating_add(length).next_multiple_of(PAGE);
            place.is_spoilt |= (address & !(PAGE - 1)) < end && from < last;
        }
    }

    /// UCX's registration has another key beside its own, which would remain.
    pub(super) fn spoil(&mut self, memh: usize) {
        for place in self.used() {
            place.is_spoilt |= place.state == State::Used && place.memh == memh;
        }
    }

    fn take(&mut self, at: usize) -> usize {
        let place = &mut self.places[at];
        place.state = State::Free;
        let (memh, length) = (place.memh, place.memory.length);
        self.count_out(length);
        memh
    }

    fn count_out(&mut self, length: usize) {
        self.kept_count -= 1;
        self.kept_bytes -= length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        count: 2,
        bytes: 0x10000,
    };
    const MEMORY: Memory = Memory {
        md: 1,
        address: 0x10_0800,
        length: 0x1000,
        access: 0b11,
        others: 0,
    };

    fn table() -> Box<Table> {
        Box::new(Table::EMPTY)
    }

    /// Registers memory, and releases it at once.
    fn keep(table: &mut Table, memory: Memory, memh: usize) -> bool {
        let Begun::New(at) = table.begin(memory) else {
            panic!("kept before: {memory:?}");
        };
        table.made(at, memh);
        table.release(memory.md, memh, true, LIMITS)
    }

    #[test]
    fn the_same_memory_with_the_same_or_fewer_rights_is_found() {
        let mut table = table();
        assert!(keep(&mut table, MEMORY, 64));
        for other in [
            Memory { md: 2, ..MEMORY },
            Memory {
                address: 0x10_0801,
                ..MEMORY
            },
            Memory {
                length: 0xfff,
                ..MEMORY
            },
            Memory {
                access: 0b111,
                ..MEMORY
            },
            Memory {
                others: 4,
                ..MEMORY
            },
        ] {
            let Begun::New(at) = table.begin(other) else {
                panic!("{other:?}");
            };
            table.made(at, 0);
        }
        let fewer = Memory {
            access: 0b10,
            ..MEMORY
        };
        assert_eq!(table.begin(fewer), Begun::Kept(64));
        assert_eq!(table.kept(), (0, 0));
        assert!(matches!(table.begin(MEMORY), Begun::New(_)), "it is in use");
    }

    #[test]
    fn a_change_of_the_mapping_ends_it_at_any_time() {
        // Beside it, then each kind of overlap.
        for (address, end, spoils) in [
            (0x0f_f000, 0x10_0000, false),
            (0x10_2000, 0x10_3000, false),
            (0x10_0000, 0x10_0001, true),
            (0x10_1fff, 0x10_2000, true),
            (0, usize::MAX, true),
        ] {
            // While UCX registers, while it uses the registration, and afterwards.
            for step in 0..3 {
                let mut table = table();
                let Begun::New(at) = table.begin(MEMORY) else {
                    panic!("nothing is kept");
                };
                let change = |table: &mut Table, now| {
                    if step == now {
                        table.changed(address, end);
                    }
                };
                change(&mut table, 0);
                table.made(at, 64);
                change(&mut table, 1);
                let is_kept = table.release(1, 64, true, LIMITS);
                assert_eq!(is_kept, !spoils || step == 2);
                change(&mut table, 2);
                let found = table.begin(MEMORY);
                assert_eq!(found == Begun::Kept(64), !spoils, "{address:#x} {step}");
                let surplus = (spoils && step == 2).then_some(64);
                assert_eq!(table.surplus(1, LIMITS), surplus);
                assert_eq!(table.kept(), (0, 0));
            }
        }
    }

    #[test]
    fn count_and_bytes_are_limited_and_the_oldest_goes() {
        let at = |number: usize| Memory {
            address: 0x20_0000 + 0x10_0000 * number,
            ..MEMORY
        };
        let mut table = table();
        for number in 1..=3 {
            assert!(keep(&mut table, at(number), 64 * number));
        }
        assert_eq!(table.surplus(2, LIMITS), None, "of another domain");
        assert_eq!(table.surplus(1, LIMITS), Some(64));
        assert_eq!(table.surplus(1, LIMITS), None);
        let large = Memory {
            length: 0xf800,
            ..at(9)
        };
        assert!(keep(&mut table, large, 640));
        assert_eq!(table.surplus(1, LIMITS), Some(128));
        assert_eq!(table.surplus(1, LIMITS), Some(192), "too many bytes");
        assert_eq!(table.kept(), (1, 0xf800));
        let larger = Memory {
            length: 0x10001,
            ..at(8)
        };
        assert!(!keep(&mut table, larger, 704));
        assert_eq!((table.any_of(1), table.any_of(1)), (Some(640), None));
    }

    #[test]
    fn a_registration_with_another_key_or_of_a_closed_domain_is_not_kept() {
        let mut table = table();
        let Begun::New(at) = table.begin(MEMORY) else {
            panic!("nothing is kept");
        };
        table.made(at, 64);
        table.spoil(64);
        assert!(!table.release(1, 64, true, LIMITS));
        let Begun::New(at) = table.begin(MEMORY) else {
            panic!("nothing is kept");
        };
        table.made(at, 64);
        table.forget(1);
        assert!(!table.release(1, 64, true, LIMITS));
        assert!(!table.release(1, 64, true, LIMITS), "twice");
    }

    #[test]
    fn a_full_table_follows_no_further_registration() {
        let mut table = table();
        for number in 0..PLACES {
            let memory = Memory {
                address: number << 16,
                ..MEMORY
            };
            let Begun::New(at) = table.begin(memory) else {
                panic!("place {number}");
            };
            table.made(at, 64 + number);
        }
        assert_eq!(table.begin(MEMORY), Begun::Full);
        assert!(!table.release(1, 7, true, LIMITS), "not followed");
        assert!(table.release(1, 64, true, LIMITS));
        assert_eq!(table.surplus(1, Limits { count: 0, ..LIMITS }), Some(64));
        assert!(matches!(table.begin(MEMORY), Begun::New(0)));
    }
}
