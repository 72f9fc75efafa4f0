//! The doorbell pages of a process: allocated pages, and the address of each mapping.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::contexts::Context;
use crate::sys::Errno;
use crate::sys::fork_lock::{Fork, ForkLock, Held};

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
    /// True once a mapping of the page is recorded.
    is_mapped: bool,
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
    /// The lock is held while mappings are searched, so that a thread waits until another thread has recorded its pages.
    given: ForkLock<Vec<Given>>,
}

/// Longest wait of a fork for a thread that changes the pages. A child of a fork that waited in vain has no pages without a
/// mapping.
const FORK_WAIT_NS: u64 = 10_000_000_000;

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
            given: ForkLock::new(Vec::new()),
        }
    }

    /// Before a fork: waits until no other thread changes the pages. The forking thread may be a signal handler within a call
    /// here.
    pub(super) fn before_fork(&self) -> Fork {
        self.given.before_fork(FORK_WAIT_NS)
    }

    /// After [`Uars::before_fork`], in the same thread of the parent.
    pub(super) fn after_fork_in_parent(&self, fork: Fork) {
        self.given.after_fork_in_parent(fork);
    }

    /// After [`Uars::before_fork`], in the child.
    pub(super) fn after_fork_in_child(&self, fork: Fork) {
        self.given.after_fork_in_child(fork, Vec::new);
    }

    /// The pages.
    ///
    /// # Errors
    /// EDEADLK: the caller is a signal handler that interrupted a call here.
    fn given(&self) -> Result<Held<'_, Vec<Given>>, Errno> {
        self.given.lock().ok_or(Errno(libc::EDEADLK))
    }

    /// Allocates a page of a context's file under a number of the device.
    ///
    /// # Errors
    /// ENOMEM: the process has [`UARS_MAX`] pages. Or those of [`Uars::given`].
    pub(super) fn give(&self, context: Context, page: u64, number: u32) -> Result<(), Errno> {
        let mut given = self.given()?;
        if given.len() >= UARS_MAX {
            return Err(Errno(libc::ENOMEM));
        }
        given.push(Given {
            context: context.number,
            page,
            number,
            is_mapped: false,
        });
        Ok(())
    }

    /// Frees a page.
    ///
    /// # Errors
    /// ENOENT: the context has no such page. Or those of [`Uars::given`].
    pub(super) fn take_back(&self, context: Context, number: u32) -> Result<(), Errno> {
        let is_it = |given: &Given| (given.context, given.number) == (context.number, number);
        let mut given = self.given()?;
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
        // With the lock: a freed slot keeps its context's number until another thread records a page there.
        // A signal handler of its holder frees the slots only: no other context gets the number.
        let given = self.given();
        self.close(|slot| slot.context.load(Ordering::Relaxed) == context.number);
        if let Ok(mut given) = given {
            given.retain(|given| given.context != context.number);
        }
    }

    fn close(&self, wanted: impl Fn(&Slot) -> bool) {
        let used = &self.slots[..self.high.load(Ordering::Acquire)];
        for slot in used.iter().filter(|slot| wanted(slot)) {
            slot.start.store(FREE, Ordering::Release);
        }
    }

    /// Records the mappings of a context's allocated pages, if one of these is not recorded yet.
    ///
    /// `mappings` gives the address and the page number of each writable page of the context's file. `close` makes a page
    /// read-only. Both run under this table's lock, so that a thread waits until another one has recorded the pages of a
    /// context that they share.
    ///
    /// Pages of other contexts are not touched: another thread can unmap them, and map something else at their address,
    /// between `mappings` and `close`.
    ///
    /// # Errors
    /// ENOMEM: the process has [`UARS_MAX`] mappings. Or the errors of `mappings`, `close` and [`Uars::given`].
    pub(super) fn close_new<M: IntoIterator<Item = (usize, u64)>>(
        &self,
        context: Context,
        mappings: impl FnOnce() -> Result<M, Errno>,
        close: impl Fn(usize) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut given = self.given()?;
        let is_new = |given: &Given| given.context == context.number && !given.is_mapped;
        if !given.iter().any(is_new) {
            return Ok(());
        }
        for (start, page) in mappings()? {
            let is_it = |given: &&mut Given| (given.context, given.page) == (context.number, page);
            let Some(given) = given.iter_mut().find(is_it) else {
                continue;
            };
            close(start)?;
            self.record(start, context, given.number)?;
            given.is_mapped = true;
        }
        Ok(())
    }

    fn record(&self, start: usize, context: Context, number: u32) -> Result<(), Errno> {
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
    use std::cell::Cell;
    use std::sync::atomic::AtomicBool;

    const CONTEXT: Context = Context {
        number: 4,
        function: 2,
        slot: 0,
    };

    const OTHER: Context = Context {
        number: 5,
        function: 2,
        slot: 1,
    };
    const ALL: [(usize, u64); 3] = [(0x1000, 1), (0x2000, 2), (0x3000, 3)];

    fn uar(number: u32) -> Uar {
        Uar {
            context: 4,
            function: 2,
            number,
        }
    }

    /// Closes the pages of a context that are in `mappings`. The result tells whether a search was necessary.
    fn search(uars: &Uars, context: Context, mappings: &[(usize, u64)]) -> bool {
        let searched = Cell::new(false);
        let mappings = || {
            searched.set(true);
            Ok(mappings.iter().copied())
        };
        uars.close_new(context, mappings, |_| Ok(())).unwrap();
        searched.get()
    }

    /// Forks, and returns the status of the child, which tries the pages, and then ends.
    fn fork(uars: &Uars, child: impl FnOnce() -> bool) -> i32 {
        let fork = uars.before_fork();
        // SAFETY: the child may call any function: the C library's locks are free in it.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            uars.after_fork_in_child(fork);
            // SAFETY: the alarm ends a child that waits, and `_exit` runs no destructor of its parent.
            unsafe {
                libc::alarm(30);
                libc::_exit(i32::from(!child()));
            }
        }
        uars.after_fork_in_parent(fork);
        let mut status = -1;
        // SAFETY: the child is this process's own, and the status is of this frame.
        unsafe { libc::waitpid(pid, &raw mut status, 0) };
        status
    }

    /// A signal handler forks in the middle of a search. Parent and child end the search.
    #[test]
    fn a_fork_within_a_search_does_not_wait_for_it() {
        let uars = Uars::new();
        uars.give(CONTEXT, 1, 77).unwrap();
        let mut status = -1;
        let mappings = || {
            let refused = || uars.give(CONTEXT, 2, 78) == Err(Errno(libc::EDEADLK));
            status = fork(&uars, refused);
            assert!(refused());
            Ok(ALL)
        };
        uars.close_new(CONTEXT, mappings, |_| Ok(())).unwrap();
        assert_eq!((status, uars.at(0x1000)), (0, Some(uar(77))));
        // A context that the handler closes rings no more.
        uars.give(OTHER, 1, 78).unwrap();
        let mappings = || {
            uars.take_back_all(CONTEXT);
            Ok(ALL)
        };
        uars.close_new(OTHER, mappings, |_| Ok(())).unwrap();
        assert_eq!(uars.at(0x1000).map(|uar| uar.number), Some(78));
    }

    /// Forks while a thread of the parent changes pages without a pause.
    #[test]
    fn a_child_finds_the_pages_whole_and_free() {
        let uars = &Uars::new();
        let over = AtomicBool::new(false);
        let rounds = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Acquire) {
                    (0..40).for_each(|number| uars.give(OTHER, number.into(), number).unwrap());
                    uars.take_back_all(OTHER);
                    rounds.fetch_add(1, Ordering::Release);
                }
            });
            while rounds.load(Ordering::Acquire) == 0 {
                std::thread::yield_now();
            }
            for _ in 0..200 {
                let status = fork(uars, || {
                    let given = uars.give(CONTEXT, 1, 7);
                    let back = uars.take_back(CONTEXT, 7);
                    (given, back) == (Ok(()), Ok(()))
                });
                if status != 0 {
                    over.store(true, Ordering::Release);
                }
                assert_eq!(status, 0);
            }
            over.store(true, Ordering::Release);
        });
    }

    #[test]
    fn a_page_rings_while_its_context_is_open() {
        let uars = Uars::new();
        assert!(!search(&uars, CONTEXT, &ALL));
        uars.give(CONTEXT, 1, 77).unwrap();
        uars.give(CONTEXT, 2, 78).unwrap();
        assert!(search(&uars, CONTEXT, &ALL) && !search(&uars, CONTEXT, &ALL));
        let found = [0, 0x1000, 0x2000, 0x3000].map(|start| uars.at(start));
        assert_eq!(found, [None, Some(uar(77)), Some(uar(78)), None]);
        uars.take_back(CONTEXT, 77).unwrap();
        assert_eq!(uars.take_back(CONTEXT, 77), Err(Errno(libc::ENOENT)));
        assert_eq!((uars.at(0x1000), uars.at(0)), (None, None));
        uars.take_back_all(CONTEXT);
        // No page is at the address of a free slot, or at 0.
        assert_eq!((uars.at(0x2000), uars.at(0)), (None, None));
    }

    /// A thread maps a page some time after its allocation. Calls of other threads in between change nothing.
    #[test]
    fn a_page_waits_for_a_call_of_its_own_context() {
        let uars = Uars::new();
        uars.give(CONTEXT, 1, 77).unwrap();
        uars.give(OTHER, 1, 79).unwrap();
        assert!(search(&uars, OTHER, &[(0x9000, 1)]));
        assert_eq!(uars.at(0x9000).map(|uar| uar.number), Some(79));
        assert!(!search(&uars, OTHER, &ALL));
        assert!(search(&uars, CONTEXT, &ALL));
        assert_eq!(uars.at(0x1000), Some(uar(77)));
    }

    #[test]
    fn a_page_that_cannot_be_closed_is_searched_again() {
        let uars = Uars::new();
        uars.give(CONTEXT, 1, 77).unwrap();
        let failed = uars.close_new(CONTEXT, || Ok(ALL), |_| Err(Errno(libc::EIO)));
        assert_eq!((failed, uars.at(0x1000)), (Err(Errno(libc::EIO)), None));
        assert!(search(&uars, CONTEXT, &ALL));
        assert_eq!(uars.at(0x1000), Some(uar(77)));
    }
}
