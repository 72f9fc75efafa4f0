//! Locks and atomics: those of std, or of loom if the crate is built with `--cfg loom`. Loom tests
//! all interleavings of the crate's own protocols.
//!
//! On aarch64 the compiler's target calls helpers for locked instructions. They use those of Armv8.1
//! (LSE) where the processor has them, as BlueField-3, and exclusive loads and stores elsewhere, as on
//! BlueField-2.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, fence};
#[cfg(loom)]
pub(crate) use loom::sync::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

pub(crate) use std::sync::atomic::Ordering;
#[cfg(not(loom))]
pub(crate) use std::thread::yield_now;

#[cfg(loom)]
pub(crate) use loom::thread::yield_now;

/// Distance in bytes between the data of different threads: a cache line. On aarch64 two lines,
/// because some of its systems transfer 128 bytes at once (`crossbeam_utils::CachePadded` does
/// likewise). Structures aligned to 64 bytes are one line of BlueField's cores (Cortex-A72 and A78); longer
/// lines cost time there and nothing else.
#[cfg(target_arch = "aarch64")]
pub(crate) const LINE_BYTES: usize = 128;
/// See above.
#[cfg(not(target_arch = "aarch64"))]
pub(crate) const LINE_BYTES: usize = 64;

/// Takes a lock and ignores poison. The critical sections are short and call no foreign code, so
/// the data stays intact if another thread panics. The plugin runs in a foreign process and must
/// not fail because of its own locks.
#[inline]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Takes a read lock. Ignores poison, like [`lock`].
#[inline]
pub(crate) fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Takes a write lock. Ignores poison, like [`lock`].
#[inline]
pub(crate) fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Numbers threads in the order of their first call, so the first threads get a cache each.
///
/// In a library that a program loads at run time, an access to a thread-local variable is a call of
/// some twenty instructions that touches four cache lines. With a mark, a small table holds the
/// numbers of the first threads. `mark` is the same in every call of a thread, is not zero, and no
/// other living thread has it.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn thread_number(mark: Option<usize>) -> usize {
    let Some(mark) = mark else {
        return numbers::number();
    };
    let entry = numbers::entry(mark);
    match entry.mark.load(Ordering::Relaxed) == mark {
        true => entry.number.load(Ordering::Relaxed),
        false => numbers::assign(mark, entry),
    }
}

#[cfg(not(loom))]
mod numbers {
    use super::{AtomicUsize, Ordering};
    use std::cell::Cell;

    /// Entries of the table, a power of two. Threads that share an entry with an earlier thread use
    /// the thread-local variable.
    const ENTRIES: usize = 64;

    /// The number of a thread. Only this thread uses the number.
    #[derive(Debug)]
    pub(super) struct Entry {
        /// Zero if the entry is empty. A thread with the mark of a thread that ended inherits its
        /// number.
        pub(super) mark: AtomicUsize,
        pub(super) number: AtomicUsize,
    }

    static TABLE: [Entry; ENTRIES] = [const {
        Entry {
            mark: AtomicUsize::new(0),
            number: AtomicUsize::new(0),
        }
    }; ENTRIES];

    /// The entry of a mark.
    #[inline(always)]
    pub(super) fn entry(mark: usize) -> &'static Entry {
        // Thread pointers differ in the number of their page. The upper half of the product depends
        // on all bits of it.
        let mixed = (mark as u64 >> 12).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &TABLE[mixed as usize % ENTRIES]
    }

    /// The number of the calling thread.
    pub(super) fn number() -> usize {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
        }
        if NUMBER.get() == usize::MAX {
            NUMBER.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        NUMBER.get()
    }

    /// The number of a thread that is not in its entry. Enters it, if the entry is empty.
    #[cold]
    pub(super) fn assign(mark: usize, entry: &Entry) -> usize {
        let number = number();
        let order = Ordering::Relaxed;
        let entered = entry.mark.compare_exchange(0, mark, order, order);
        if entered.is_ok() {
            entry.number.store(number, order);
        }
        number
    }
}

/// Loom runs its threads on one system thread, so their numbers come from loom.
#[cfg(loom)]
pub(crate) fn thread_number(_mark: Option<usize>) -> usize {
    loom::lazy_static! {
        static ref NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    }
    loom::thread_local! {
        static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}

/// A bounded FIFO queue for all threads. Each item is in at most one queue at a time, and the
/// capacity covers all items, so the queue is never full.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    #[cfg(not(loom))]
    first: crossbeam_queue::ArrayQueue<T>,
    /// Space for all items, allocated when there are more than a few. From then on all pushes go
    /// here, and pops empty `first` before it.
    #[cfg(not(loom))]
    rest: std::sync::OnceLock<crossbeam_queue::ArrayQueue<T>>,
    #[cfg(not(loom))]
    capacity: usize,
    /// Crossbeam's queue does not run under loom. The model covers only this crate's use of it.
    #[cfg(loom)]
    items: Mutex<std::collections::VecDeque<T>>,
}

#[cfg(not(loom))]
impl<T> Queue<T> {
    /// A queue touches all of its memory at its creation, and most pools stay far below their
    /// maximum. The first allocation is therefore this small.
    const FEW: usize = 64;

    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            first: crossbeam_queue::ArrayQueue::new(capacity.clamp(1, Self::FEW)),
            rest: std::sync::OnceLock::new(),
            capacity,
        }
    }

    pub(crate) fn push(&self, item: T) {
        let left = match self.rest.get() {
            Some(rest) => rest.push(item),
            // A late thread may push to `first` while another thread allocates `rest`. Its item
            // then leaves early. No item is lost because every pop also reads `first`.
            None => match self.first.push(item) {
                Err(item) if self.capacity > Self::FEW => {
                    let room = || crossbeam_queue::ArrayQueue::new(self.capacity);
                    self.rest.get_or_init(room).push(item)
                }
                pushed => pushed,
            },
        };
        assert!(left.is_ok(), "more in a queue than there is");
    }

    pub(crate) fn pop(&self) -> Option<T> {
        let rest = || self.rest.get()?.pop();
        self.first.pop().or_else(rest)
    }

    pub(crate) fn len(&self) -> usize {
        // A queue without overflow has no second part.
        let rest = self.rest.get().map_or(0, crossbeam_queue::ArrayQueue::len);
        self.first.len() + rest
    }
}

#[cfg(loom)]
impl<T> Queue<T> {
    pub(crate) fn new(_capacity: usize) -> Self {
        Self {
            items: Mutex::new(std::collections::VecDeque::new()),
        }
    }

    pub(crate) fn push(&self, item: T) {
        lock(&self.items).push_back(item);
    }

    pub(crate) fn pop(&self) -> Option<T> {
        lock(&self.items).pop_front()
    }

    pub(crate) fn len(&self) -> usize {
        lock(&self.items).len()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_queue_grows_once_and_keeps_its_order() {
        let queue = Queue::new(1000);
        for round in 0..3 {
            for item in 0..1000 {
                queue.push(1000 * round + item);
            }
            assert_eq!(queue.len(), 1000);
            for item in 0..1000 {
                assert_eq!(queue.pop(), Some(1000 * round + item));
            }
            assert_eq!((queue.pop(), queue.len()), (None, 0));
        }
    }

    #[test]
    fn nothing_is_lost_while_it_grows() {
        const THREADS: usize = 4;
        const ITEMS: usize = 200;
        for _ in 0..50 {
            let queue = Queue::new(THREADS * ITEMS);
            let found = std::thread::scope(|scope| {
                let work = |thread: usize| {
                    let mut found = Vec::new();
                    for item in 0..ITEMS {
                        queue.push(thread * ITEMS + item);
                        if item % 3 == 0 {
                            found.extend(queue.pop());
                        }
                    }
                    found
                };
                let threads: Vec<_> = (0..THREADS)
                    .map(|thread| scope.spawn(move || work(thread)))
                    .collect();
                let joined = threads.into_iter().map(|thread| thread.join());
                let mut found: Vec<_> = joined.flatten().flatten().collect();
                found.extend(std::iter::from_fn(|| queue.pop()));
                found
            });
            let mut found = found;
            found.sort_unstable();
            assert!(found.into_iter().eq(0..THREADS * ITEMS));
        }
    }
}
