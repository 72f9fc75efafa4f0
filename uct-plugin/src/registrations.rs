//! Registrations of memory domains: address, length and kind of export, by memory handle.
//!
//! A registration is one cache line. The number of the registering thread selects a table, and the
//! address of the memory handle a line of it. An export by the same thread therefore finds it with one
//! load and without a lock. Other threads look in all tables in use. A handle whose line another live
//! handle or another thread occupies uses the [`overflow`].
//!
//! Protocol of a line: its first user becomes its home, and no other thread claims the line afterwards.
//! The home changes [`Registration::memh`] from [`NO_MEMH`] to a handle, without a locked instruction,
//! and only it writes the line, until it stores the domain. From then on the line belongs to the
//! handle. The thread that replaces the domain by [`NO_MD`] releases the line: that is the handle's
//! deregistration, or the closing of its domain. UCX never does both at once.

mod overflow;
mod registration;

use std::sync::atomic::{AtomicU32, Ordering};

use xgvmi_pool::BoundKey;

use crate::abi::{MdHandle, MemHandle};
use crate::hot::{self, HOT};
use crate::memh::mix;
use overflow::Overflow;
pub(crate) use registration::{Exported, Registration};

/// Number of tables. More threads share them.
const TABLES: usize = 8;
/// Number of lines of a table, a power of two: a rank has some dozens of temporary buffers at a time.
/// They are part of the library's zeroed data, so unused pages take no memory.
const LINES: usize = 4096;

type Table = [Registration; LINES];
/// The lines of all tables.
pub(crate) type Lines = [Table; TABLES];

/// Bit of the overflow among the places of registrations. The lower bits are those of the tables.
const OVERFLOW: u32 = 1 << TABLES;

/// The lines of all tables, the places that have been used, and the number of the calling thread.
pub(crate) trait Source {
    fn lines(&self) -> &Lines;
    fn places(&self) -> &AtomicU32;
    fn thread(&self) -> usize {
        hot::thread()
    }
}

/// Those of [`REGISTRATIONS`].
#[derive(Debug)]
pub(crate) struct Global;

impl Source for Global {
    #[inline(always)]
    fn lines(&self) -> &Lines {
        &ALL_LINES
    }

    #[inline(always)]
    fn places(&self) -> &AtomicU32 {
        &HOT.places
    }

    #[inline(always)]
    fn thread(&self) -> usize {
        hot::thread()
    }
}

/// Apart from the rest, so that it is all zero.
static ALL_LINES: Lines = [const { [const { Registration::NONE }; LINES] }; TABLES];

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
        let thread = self.source.thread();
        let line = self.line(thread, memh);
        let is_ours = line.is_home_of(thread) || self.take_home(line, thread);
        let places = self.source.places().load(Ordering::Relaxed);
        // One place only: that of this line.
        let is_alone = places & places.wrapping_sub(1) == 0;
        if is_ours && is_alone && line.claim(memh.addr()) {
            line.fill(md, address, length);
            return None;
        }
        self.note_slowly(md, memh, (address, length), (thread, line, is_ours))
    }

    /// Gives an unused line to the thread.
    #[inline(always)]
    fn take_home(&self, line: &Registration, thread: usize) -> bool {
        self.use_place(1 << (thread % TABLES));
        line.take_home(thread)
    }

    /// Records memory if the handle's line is occupied, or if an older handle at the same address may
    /// be elsewhere.
    #[cold]
    fn note_slowly(
        &self,
        md: MdHandle,
        memh: MemHandle,
        (address, length): (usize, usize),
        (thread, line, is_ours): (usize, &Registration, bool),
    ) -> Option<BoundKey> {
        let before = self.forget_older(md, memh, (thread, line));
        let later = match is_ours && line.claim(memh.addr()) {
            true => {
                line.fill(md, address, length);
                None
            }
            false => {
                self.use_place(OVERFLOW);
                self.overflow.note(md, memh, address, length)
            }
        };
        before.or(later)
    }

    /// Removes an older handle at the same address. Returns its key, if it is of the same domain.
    #[inline(always)]
    fn forget_older(
        &self,
        md: MdHandle,
        memh: MemHandle,
        (thread, line): (usize, &Registration),
    ) -> Option<BoundKey> {
        let places = self.source.places().load(Ordering::Relaxed);
        let mut before = Self::forget_in(line, md, memh);
        if before.is_none() && places & (OVERFLOW - 1) & !(1 << (thread % TABLES)) != 0 {
            before = self.forget_in_tables(md, memh);
        }
        if before.is_none() && !self.overflow.is_empty() {
            before = self.overflow.forget_of(memh, Some(md.addr()));
        }
        match before {
            Some(Exported::FromPool(key)) => Some(key),
            Some(Exported::No | Exported::Natively) | None => None,
        }
    }

    /// Removes an older handle from the tables of all threads.
    #[inline(never)]
    fn forget_in_tables(&self, md: MdHandle, memh: MemHandle) -> Option<Exported> {
        let mut lines = self.tables().map(|table| self.line(table, memh));
        lines.find_map(|line| Self::forget_in(line, md, memh))
    }

    /// Removes an older handle from its line. `None` also if it is of another domain.
    #[inline(always)]
    fn forget_in(line: &Registration, md: MdHandle, memh: MemHandle) -> Option<Exported> {
        if line.memh.load(Ordering::Acquire) != memh.addr() {
            return None;
        }
        // Otherwise the closing of the older handle's domain is releasing the line.
        let (of, exported) = line.take()?;
        line.free();
        (of == md.addr()).then_some(exported)
    }

    /// The registration of a live memory handle.
    #[inline(always)]
    pub(crate) fn find(&self, memh: MemHandle) -> Option<&Registration> {
        let thread = self.source.thread();
        let line = self.line(thread, memh);
        match line.is_of(memh.addr()) {
            true => Some(line),
            false => self.find_elsewhere(thread, memh),
        }
    }

    /// The registration of a live memory handle that another thread has recorded, or whose line was
    /// occupied.
    #[inline(never)]
    fn find_elsewhere(&self, thread: usize, memh: MemHandle) -> Option<&Registration> {
        if !self.has_others(thread) {
            return None;
        }
        let mut lines = self.tables().map(|table| self.line(table, memh));
        if let Some(line) = lines.find(|line| line.is_of(memh.addr())) {
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
        let thread = self.source.thread();
        let line = self.line(thread, memh);
        match line.forget(memh.addr()) {
            Some(exported) => Some(exported),
            None => self.forget_elsewhere(thread, memh),
        }
    }

    /// Removes a memory handle that another thread has recorded, or whose line was occupied.
    #[inline(never)]
    fn forget_elsewhere(&self, thread: usize, memh: MemHandle) -> Option<Exported> {
        if !self.has_others(thread) {
            return None;
        }
        let mut lines = self.tables().map(|table| self.line(table, memh));
        if let Some(exported) = lines.find_map(|line| line.forget(memh.addr())) {
            return Some(exported);
        }
        match self.overflow.is_empty() {
            true => None,
            false => self.overflow.forget_of(memh, None),
        }
    }

    /// Remembers that a place has registrations.
    #[inline(always)]
    fn use_place(&self, place: u32) {
        // Every call reads the line, and only a new place writes it.
        if self.source.places().load(Ordering::Relaxed) & place == 0 {
            self.add_place(place);
        }
    }

    #[cold]
    fn add_place(&self, place: u32) {
        self.source.places().fetch_or(place, Ordering::Relaxed);
    }

    /// True if there may be registrations outside of the thread's table. Exact for a handle whose
    /// registration was recorded before the call.
    #[inline(always)]
    fn has_others(&self, thread: usize) -> bool {
        self.source.places().load(Ordering::Relaxed) & !(1 << (thread % TABLES)) != 0
    }

    /// The tables in use.
    fn tables(&self) -> impl Iterator<Item = usize> + use<S> {
        let places = self.source.places().load(Ordering::Relaxed);
        (0..TABLES).filter(move |table| places & 1 << table != 0)
    }

    /// Removes all memory of a domain, and passes each exported key of it to `each`, which runs
    /// without a lock.
    pub(crate) fn forget_all(&self, md: usize, mut each: impl FnMut(BoundKey)) {
        let lines = self.tables().flat_map(|table| &self.source.lines()[table]);
        for line in lines {
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

    /// The line of a memory handle in the table of a thread.
    #[inline(always)]
    fn line(&self, thread: usize, memh: MemHandle) -> &Registration {
        // The bits above the lowest 32 are the best mixed ones.
        let [.., b4, b5, b6, b7] = mix(memh.addr()).to_le_bytes();
        let table = &self.source.lines()[thread % TABLES];
        &table[u32::from_le_bytes([b4, b5, b6, b7]) as usize % LINES]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::{self, without_provenance_mut};

    struct Own(Box<[Table]>, AtomicU32);

    impl Source for Own {
        fn lines(&self) -> &Lines {
            (&*self.0).try_into().expect("its length")
        }

        fn places(&self) -> &AtomicU32 {
            &self.1
        }
    }

    fn table() -> Registrations<Own> {
        let tables = (0..TABLES).map(|_| [const { Registration::NONE }; LINES]);
        Registrations::new(Own(tables.collect(), AtomicU32::new(0)))
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
            |at: &usize| *at != 0 && ptr::eq(table.line(0, handle(*at)), table.line(0, handle(0)));
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
        let line = |at: usize| std::ptr::from_ref(table.line(0, handle(at)));
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
    fn a_registration_of_another_thread_is_found() {
        let table = table();
        let md = || without_provenance_mut(0x1000);
        let in_thread = |work: &(dyn Fn() + Sync)| {
            std::thread::scope(|scope| scope.spawn(work).join().expect("no panic"));
        };
        // More threads than tables, so that some meet lines of another one.
        for at in 0..3 * TABLES {
            in_thread(&|| {
                assert_eq!(table.note(md(), handle(at), at, 1), None);
                assert_eq!(table.note(md(), handle(at + 1000), at, 1), None);
            });
        }
        for at in 0..3 * TABLES {
            let found = table.find(handle(at)).expect("noted");
            assert_eq!(found.address(), at);
            found.decide(Exported::FromPool(KEY)).expect("the first");
            // An older handle at the same address is found wherever it is.
            in_thread(&|| assert_eq!(table.note(md(), handle(at), at, 2), Some(KEY)));
            let found = table.find(handle(at)).expect("noted again");
            assert_eq!((found.length(), found.exported()), (2, Exported::No));
            assert_eq!(table.forget(handle(at)), Some(Exported::No));
            assert!(table.find(handle(at)).is_none());
            in_thread(&|| assert_eq!(table.forget(handle(at + 1000)), Some(Exported::No)));
        }
        let all = table.source.lines().iter().flatten();
        assert!(
            all.into_iter()
                .all(|line| !line.is_of(line.memh.load(Ordering::Relaxed)))
        );
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
