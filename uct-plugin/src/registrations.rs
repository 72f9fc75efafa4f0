//! Registrations of memory domains: address, length and kind of export, by memory handle.
//!
//! A registration is one cache line, and the address of its memory handle selects it. An export
//! therefore finds it with one load and without a lock. A handle whose line another live handle
//! occupies uses the [`overflow`].
//!
//! Protocol of a line: [`Registration::memh`] changes from [`NO_MEMH`] to a handle by compare and
//! exchange, and only the thread that did so writes the line, until it stores the domain. From then
//! on the line belongs to the handle. The thread that swaps the domain for [`NO_MD`] releases the
//! line: that is the handle's deregistration, or the closing of its domain.

mod overflow;
mod registration;

use std::sync::atomic::Ordering;

use xgvmi_pool::BoundKey;

use crate::abi::{MdHandle, MemHandle};
use crate::memh::mix;
use overflow::Overflow;
pub(crate) use registration::{Exported, Registration};
use registration::{NO_MD, NO_MEMH};

/// Number of lines, a power of two: a rank has some dozens of temporary buffers at a time. They are
/// part of the library's zeroed data, so unused pages take no memory.
const LINES: usize = 4096;

type Lines = [Registration; LINES];

/// The lines of a table. Those of [`REGISTRATIONS`] have a fixed address, which needs no load.
pub(crate) trait Source {
    fn lines(&self) -> &Lines;
}

/// The lines of [`REGISTRATIONS`].
#[derive(Debug)]
pub(crate) struct Global;

impl Source for Global {
    #[inline(always)]
    fn lines(&self) -> &Lines {
        &ALL_LINES
    }
}

/// Apart from the rest, so that it is all zero.
static ALL_LINES: Lines = [const { Registration::NONE }; LINES];

/// Registered memory of all served domains.
pub(crate) static REGISTRATIONS: Registrations = Registrations::new(Global);

/// The registrations by memory handle.
#[derive(Debug)]
pub(crate) struct Registrations<S = Global> {
    source: S,
    overflow: Overflow,
}

impl<S: Source> Registrations<S> {
    const fn new(source: S) -> Self {
        Self {
            source,
            overflow: Overflow::new(),
        }
    }

    /// Records memory that a domain has just registered. Returns the key of an older handle at the
    /// same address and of the same domain, which UCX freed without this library's knowledge. A key
    /// of another domain stays bound until that domain closes: only its own pool can release it, and
    /// nothing holds that pool open here. Without memory it records nothing, and UCX handles the
    /// registration.
    #[inline]
    pub(crate) fn note(
        &self,
        md: MdHandle,
        memh: MemHandle,
        address: usize,
        length: usize,
    ) -> Option<BoundKey> {
        let line = self.line(memh);
        let claimed =
            line.memh
                .compare_exchange(NO_MEMH, memh.addr(), Ordering::Acquire, Ordering::Relaxed);
        if claimed.is_err() || !self.overflow.is_empty() {
            return self.note_slowly(md, memh, (address, length), claimed.err());
        }
        line.fill(md, address, length);
        None
    }

    /// Records memory if the handle's line is occupied by the handle in `occupant`, or if an older
    /// handle at the same address may be in the overflow.
    #[cold]
    fn note_slowly(
        &self,
        md: MdHandle,
        memh: MemHandle,
        (address, length): (usize, usize),
        occupant: Option<usize>,
    ) -> Option<BoundKey> {
        let line = self.line(memh);
        let before = match occupant {
            None => {
                let before = self.overflow.forget_of(memh, Some(md.addr()));
                line.fill(md, address, length);
                before
            }
            Some(occupant) if occupant == memh.addr() => match line.take() {
                Some((of, before)) => {
                    line.fill(md, address, length);
                    (of == md.addr()).then_some(before)
                }
                // The closing of the older handle's domain is releasing the line.
                None => return self.overflow.note(md, memh, address, length),
            },
            Some(_) => return self.overflow.note(md, memh, address, length),
        };
        match before {
            Some(Exported::FromPool(key)) => Some(key),
            Some(Exported::No | Exported::Natively) | None => None,
        }
    }

    /// The registration of a live memory handle.
    #[inline(always)]
    pub(crate) fn find(&self, memh: MemHandle) -> Option<&Registration> {
        let line = self.line(memh);
        // Without a domain, the closing of an older handle's domain is still releasing the line, and
        // this handle is in the overflow.
        if line.memh.load(Ordering::Acquire) == memh.addr()
            && line.md.load(Ordering::Acquire) != NO_MD
        {
            return Some(line);
        }
        match self.overflow.is_empty() {
            true => None,
            false => self.overflow.find(memh),
        }
    }

    /// Removes a memory handle. Returns its kind of export.
    #[inline]
    pub(crate) fn forget(&self, memh: MemHandle) -> Option<Exported> {
        let line = self.line(memh);
        if line.memh.load(Ordering::Acquire) == memh.addr()
            && let Some((_, exported)) = line.take()
        {
            line.free();
            return Some(exported);
        }
        match self.overflow.is_empty() {
            true => None,
            false => self.overflow.forget_of(memh, None),
        }
    }

    /// Removes all memory of a domain, and passes each exported key of it to `each`, which runs
    /// without a lock.
    pub(crate) fn forget_all(&self, md: usize, mut each: impl FnMut(BoundKey)) {
        for line in self.source.lines() {
            if line.md.load(Ordering::Acquire) == md
                && let Some(exported) = line.take_of(md)
            {
                line.free();
                if let Exported::FromPool(key) = exported {
                    each(key);
                }
            }
        }
        self.overflow.forget_all(md, each);
    }

    /// The line of a memory handle.
    #[inline]
    fn line(&self, memh: MemHandle) -> &Registration {
        // The bits above the lowest 32 are the best mixed ones.
        let [.., b4, b5, b6, b7] = mix(memh.addr()).to_le_bytes();
        &self.source.lines()[u32::from_le_bytes([b4, b5, b6, b7]) as usize % LINES]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::{self, without_provenance_mut};

    struct Own(Box<Lines>);

    impl Source for Own {
        fn lines(&self) -> &Lines {
            &self.0
        }
    }

    fn table() -> Registrations<Own> {
        Registrations::new(Own(Box::new([const { Registration::NONE }; LINES])))
    }

    const KEY: BoundKey = BoundKey::from_bits(0x1234_56fb_0000_0007);

    fn handle(at: usize) -> MemHandle {
        without_provenance_mut(0x7f00_0000_0000 + 64 * at)
    }

    #[test]
    fn a_registration_is_found_until_it_is_forgotten() {
        let table = table();
        let md = without_provenance_mut(0x1000);
        for at in 0..1000 {
            assert_eq!(table.note(md, handle(at), at, 2 * at), None);
        }
        let found = table.find(handle(7)).expect("noted");
        assert_eq!((found.address(), found.length()), (7, 14));
        assert!(table.find(handle(1000)).is_none());
        assert_eq!(table.forget(handle(7)), Some(Exported::No));
        assert_eq!(table.forget(handle(7)), None);
        assert!(table.find(handle(7)).is_none());
    }

    #[test]
    fn the_first_decision_holds() {
        let table = table();
        let md = without_provenance_mut(0x1000);
        table.note(md, handle(1), 1, 1);
        let found = table.find(handle(1)).expect("noted");
        assert_eq!(found.exported(), Exported::No);
        assert_eq!(found.decide(Exported::FromPool(KEY)), Ok(()));
        let before = Exported::FromPool(KEY);
        assert_eq!(found.decide(Exported::Natively), Err(before));
        assert_eq!(found.exported(), before);
        // A second record of a handle means that it was freed without this library's knowledge.
        assert_eq!(table.note(md, handle(1), 2, 2), Some(KEY));
        assert_eq!(found.exported(), Exported::No);
        assert_eq!(found.decide(Exported::Natively), Ok(()));
        assert_eq!(table.forget(handle(1)), Some(Exported::Natively));
    }

    #[test]
    fn the_key_of_another_domain_is_not_returned() {
        let table = table();
        let [old, new] = [0x1000, 0x2000].map(without_provenance_mut);
        // Twice as many handles as lines: half of them are in the overflow.
        for at in 0..2 * LINES {
            table.note(old, handle(at), at, 1);
            let found = table.find(handle(at)).expect("noted");
            found.decide(Exported::FromPool(KEY)).expect("the first");
        }
        for at in 0..2 * LINES {
            assert_eq!(table.note(new, handle(at), at, 2), None);
            assert_eq!(table.forget(handle(at)), Some(Exported::No));
        }
        // The handle is in the overflow, and its line is free by the time of the second record.
        let occupied =
            |at: &usize| *at != 0 && ptr::eq(table.line(handle(*at)), table.line(handle(0)));
        let second = (1..).find(occupied).expect("a handle of the same line");
        table.note(old, handle(0), 0, 1);
        table.note(old, handle(second), second, 1);
        let found = table.find(handle(second)).expect("noted");
        found.decide(Exported::FromPool(KEY)).expect("the first");
        assert_eq!(table.forget(handle(0)), Some(Exported::No));
        assert_eq!(table.note(new, handle(second), second, 2), None);
        assert_eq!(table.forget(handle(second)), Some(Exported::No));
    }

    #[test]
    fn a_handle_whose_line_is_occupied_is_recorded_as_well() {
        let table = table();
        let md = without_provenance_mut(0x1000);
        // More handles than lines.
        for at in 0..2 * LINES {
            assert_eq!(table.note(md, handle(at), at, 1), None);
        }
        assert!(!table.overflow.is_empty());
        for at in 0..2 * LINES {
            let found = table.find(handle(at)).expect("noted");
            assert_eq!(found.address(), at);
            found.decide(Exported::FromPool(KEY)).expect("the first");
        }
        // A handle that leaves its line moves no other: those in the overflow are still found.
        for at in (0..2 * LINES).step_by(2) {
            assert_eq!(table.forget(handle(at)), Some(Exported::FromPool(KEY)));
        }
        // A second record finds the first one wherever it is.
        for at in (1..2 * LINES).step_by(2) {
            assert_eq!(table.note(md, handle(at), at, 2), Some(KEY));
            assert_eq!(table.find(handle(at)).map(Registration::length), Some(2));
            assert_eq!(table.forget(handle(at)), Some(Exported::No));
            assert!(table.find(handle(at)).is_none());
        }
        assert!(table.overflow.is_empty());
    }

    #[test]
    fn threads_with_handles_of_one_line_do_not_meet() {
        let table = table();
        let line = |at: usize| std::ptr::from_ref(table.line(handle(at)));
        let of_one_line: Vec<usize> = (0..).filter(|at| line(*at) == line(0)).take(4).collect();
        std::thread::scope(|scope| {
            for at in &of_one_line {
                let table = &table;
                scope.spawn(move || {
                    let md = without_provenance_mut(0x1000 * (at + 1));
                    for round in 0..20_000 {
                        assert_eq!(table.note(md, handle(*at), *at, round), None);
                        let found = table.find(handle(*at)).expect("noted");
                        assert_eq!((found.address(), found.length()), (*at, round));
                        found.decide(Exported::Natively).expect("the first");
                        assert_eq!(table.forget(handle(*at)), Some(Exported::Natively));
                    }
                });
            }
        });
        assert!(table.overflow.is_empty());
    }

    #[test]
    fn a_domain_is_forgotten_and_others_stay() {
        let table = table();
        let mds = [0x1000, 0x2000].map(without_provenance_mut);
        for at in 0..1000 {
            table.note(mds[at % 2], handle(at), at, 1);
            if at % 4 == 0 {
                let found = table.find(handle(at)).expect("noted");
                found.decide(Exported::FromPool(KEY)).expect("the first");
            }
        }
        let mut keys = 0;
        table.forget_all(0x1000, |_key| keys += 1);
        assert_eq!(keys, 250);
        let left = (0..1000).filter(|at| table.find(handle(*at)).is_some());
        assert!(left.eq((0..1000).filter(|at| at % 2 == 1)));
    }
}
