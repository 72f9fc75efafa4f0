//! The doorbell pages of a process: allocated pages, and the address of each mapping.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use super::contexts::Context;
use crate::sys::Errno;

/// Doorbell pages (UARs) that one process may have.
pub const UARS_MAX: usize = 16 * 1024;

/// Where no page begins: the slot is free.
const FREE: usize = usize::MAX;

/// A mapped page, unless `start` is [`FREE`].
#[derive(Debug)]
struct Slot {
    start: AtomicUsize,
    context: AtomicU32,
    function: AtomicUsize,
    /// The page's number on the device.
    number: AtomicU32,
}

/// A page that was given out.
#[derive(Clone, Copy, Debug)]
struct Given {
    context: u32,
    /// Which page of the context's file.
    page: u64,
    /// Its number on the device.
    number: u32,
}

/// A page in which a store is a doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Uar {
    pub(super) context: u32,
    pub(super) function: usize,
    /// Its number on the device.
    pub(super) number: u32,
}

/// The pages of a process. Lookups take no lock and are async-signal-safe.
#[derive(Debug)]
pub(super) struct Uars {
    slots: Box<[Slot]>,
    /// No slot from this one on was ever used.
    high: AtomicUsize,
    /// A page was given out whose mapping was not found yet.
    unseen: AtomicBool,
    given: Mutex<Vec<Given>>,
}

impl Uars {
    pub(super) fn new() -> Self {
        let slot = || Slot {
            start: AtomicUsize::new(FREE),
            context: AtomicU32::new(0),
            function: AtomicUsize::new(0),
            number: AtomicU32::new(0),
        };
        Self {
            slots: (0..UARS_MAX).map(|_| slot()).collect(),
            high: AtomicUsize::new(0),
            unseen: AtomicBool::new(false),
            given: Mutex::default(),
        }
    }

    /// Gives a page of a context's file the number of a page of the device.
    ///
    /// # Errors
    /// ENOMEM: there are [`UARS_MAX`].
    pub(super) fn give(&self, context: Context, page: u64, number: u32) -> Result<(), Errno> {
        let mut given = self.given.lock().map_err(|_| Errno(libc::ENOMEM))?;
        if given.len() >= UARS_MAX {
            return Err(Errno(libc::ENOMEM));
        }
        given.push(Given {
            context: context.number,
            page,
            number,
        });
        self.unseen.store(true, Ordering::Release);
        Ok(())
    }

    /// Takes a page back.
    ///
    /// # Errors
    /// ENOENT: the context has no such page.
    pub(super) fn take_back(&self, context: Context, number: u32) -> Result<(), Errno> {
        let is_it = |given: &Given| (given.context, given.number) == (context.number, number);
        let mut given = self.given.lock().map_err(|_| Errno(libc::ENOMEM))?;
        let before = given.len();
        given.retain(|given| !is_it(given));
        if given.len() == before {
            return Err(Errno(libc::ENOENT));
        }
        self.close(|slot| slot.number.load(Ordering::Relaxed) == number);
        Ok(())
    }

    /// Takes all pages of a context back.
    pub(super) fn take_back_all(&self, context: Context) {
        self.close(|slot| slot.context.load(Ordering::Relaxed) == context.number);
        if let Ok(mut given) = self.given.lock() {
            given.retain(|given| given.context != context.number);
        }
    }

    fn close(&self, wanted: impl Fn(&Slot) -> bool) {
        let used = &self.slots[..self.high.load(Ordering::Acquire)];
        for slot in used.iter().filter(|slot| wanted(slot)) {
            slot.start.store(FREE, Ordering::Release);
        }
    }

    /// True if a page was given out since the last call, so that its mapping is to be looked for.
    pub(super) fn take_unseen(&self) -> bool {
        self.unseen.swap(false, Ordering::AcqRel)
    }

    /// Notes where a page of a context's file is mapped. A page that was not given out rings nothing.
    ///
    /// # Errors
    /// ENOMEM: there are [`UARS_MAX`] mappings.
    pub(super) fn mapped(&self, start: usize, context: Context, page: u64) -> Result<(), Errno> {
        let is_it = |given: &&Given| (given.context, given.page) == (context.number, page);
        let number = {
            let given = self.given.lock().map_err(|_| Errno(libc::EIO))?;
            given.iter().find(is_it).map(|given| given.number)
        };
        let Some(number) = number else { return Ok(()) };
        let is_free = |slot: &Slot| slot.start.load(Ordering::Acquire) == FREE;
        let index = self.slots.iter().position(is_free);
        let index = index.ok_or(Errno(libc::ENOMEM))?;
        let slot = &self.slots[index];
        slot.context.store(context.number, Ordering::Relaxed);
        slot.function.store(context.function, Ordering::Relaxed);
        slot.number.store(number, Ordering::Relaxed);
        slot.start.store(start, Ordering::Release);
        self.high.fetch_max(index + 1, Ordering::AcqRel);
        Ok(())
    }

    /// The doorbell page that begins at an address.
    pub(super) fn at(&self, start: usize) -> Option<Uar> {
        let high = self.high.load(Ordering::Acquire).min(self.slots.len());
        let slot = self.slots[..high]
            .iter()
            .find(|slot| slot.start.load(Ordering::Acquire) == start)?;
        Some(Uar {
            context: slot.context.load(Ordering::Relaxed),
            function: slot.function.load(Ordering::Relaxed),
            number: slot.number.load(Ordering::Relaxed),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXT: Context = Context {
        number: 4,
        function: 2,
        slot: 0,
    };

    #[test]
    fn a_page_rings_while_its_context_is_open() {
        let uars = Uars::new();
        assert!(!uars.take_unseen());
        uars.give(CONTEXT, 1, 77).unwrap();
        uars.give(CONTEXT, 2, 78).unwrap();
        assert!(uars.take_unseen() && !uars.take_unseen());
        for (start, page) in [(0x1000, 1), (0x2000, 2), (0x3000, 3)] {
            uars.mapped(start, CONTEXT, page).unwrap();
        }
        let uar = |number| Uar {
            context: 4,
            function: 2,
            number,
        };
        let found = [0, 0x1000, 0x2000, 0x3000].map(|start| uars.at(start));
        assert_eq!(found, [None, Some(uar(77)), Some(uar(78)), None]);
        uars.take_back(CONTEXT, 77).unwrap();
        assert_eq!(uars.take_back(CONTEXT, 77), Err(Errno(libc::ENOENT)));
        assert_eq!((uars.at(0x1000), uars.at(0)), (None, None));
        uars.take_back_all(CONTEXT);
        // No page begins at the address of a free slot, nor at 0.
        assert_eq!((uars.at(0x2000), uars.at(0)), (None, None));
    }
}
