//! The doorbell pages of a process: allocated pages, and the address of each mapping.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use super::contexts::Context;
use crate::sys::Errno;

/// Largest number of doorbell pages (UARs) of one process.
pub const UARS_MAX: usize = 16 * 1024;

/// Address of no page: the slot is free.
const FREE: usize = usize::MAX;

/// A mapped page, unless `start` is [`FREE`].
#[derive(Debug)]
struct Slot {
    start: AtomicUsize,
    context: AtomicU32,
    function: AtomicUsize,
    /// Number of the page on the device.
    number: AtomicU32,
}

/// An allocated page.
#[derive(Clone, Copy, Debug)]
struct Given {
    context: u32,
    /// Page number in the context's file.
    page: u64,
    /// Number on the device.
    number: u32,
}

/// A page whose stores are doorbells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Uar {
    pub(super) context: u32,
    pub(super) function: usize,
    /// Number on the device.
    pub(super) number: u32,
}

/// The pages of a process. Lookups take no lock and are async-signal-safe.
#[derive(Debug)]
pub(super) struct Uars {
    slots: Box<[Slot]>,
    /// Slots from this one on were never used.
    high: AtomicUsize,
    /// True if the mapping of an allocated page is not found yet.
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

    /// Allocates a page of a context's file under a number of the device.
    ///
    /// # Errors
    /// ENOMEM: the process has [`UARS_MAX`] pages.
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

    /// Frees a page.
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

    /// Frees all pages of a context.
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

    /// True if a page was allocated since the last call. Its mapping must then be found.
    pub(super) fn take_unseen(&self) -> bool {
        self.unseen.swap(false, Ordering::AcqRel)
    }

    /// Records the mapping of a page of a context's file. A page that is not allocated has no
    /// effect.
    ///
    /// # Errors
    /// ENOMEM: the process has [`UARS_MAX`] mappings.
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

    /// The doorbell page at an address.
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
        // No page is at the address of a free slot, or at 0.
        assert_eq!((uars.at(0x2000), uars.at(0)), (None, None));
    }
}
