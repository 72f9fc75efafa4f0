//! The table of memory domains, served or not. UCX's operations look their domain up here without a
//! lock.

pub(crate) mod place;

use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use place::{NEVER_USED, Place};

use crate::abi::MdHandle;
use crate::arena::counts;
use crate::hot::hot;
use crate::md::Md;
use crate::numbers::Numbers;
use crate::{forked, kept, panic, ucp};

/// Maximum number of memory domains. UCX opens one or two per device and context, which is enough
/// for 16 devices and 8 contexts. UCX handles further ones itself.
pub(crate) const MDS_MAX: usize = 256;

/// An entry for a known memory domain, served or not. UCX's operations on the first domains touch one
/// cache line.
#[repr(C, align(64))]
struct Entry {
    /// Its address, or [`NEVER_USED`] or [`EMPTY`], and the content of `md`, for UCX's operations on it. That is null if
    /// it is not served, or if this process is a forked child of the process that opened it. Changed only under `CHANGES`,
    /// like the other field.
    place: Place<Md>,
    /// Held by callers outside UCX's operations. Closing waits for them.
    md: RwLock<Option<Arc<Md>>>,
}

/// Empty now.
const EMPTY: usize = 1;

static ENTRIES: [Entry; MDS_MAX] = [const {
    Entry {
        place: Place::new(),
        md: RwLock::new(None),
    }
}; MDS_MAX];

/// True while all entries are in use, to avoid repeated checks of memory domains.
static IS_FULL: AtomicBool = AtomicBool::new(false);

/// Held while a memory domain is added or removed.
static CHANGES: Mutex<()> = Mutex::new(());

/// Counts of closed memory domains.
static CLOSED: Mutex<Numbers> = Mutex::new(Numbers::NONE);

/// State of a memory domain in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// UCX's operations on it are served.
    Served,
    /// It was checked and is not served.
    NotServed,
    /// It is not in the table.
    Unknown,
}

/// Result of adding a memory domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Added {
    /// It is in the table now.
    Done,
    /// Another thread added it first.
    Known,
    /// The table is full.
    Full,
}

/// Calls a function for each served memory domain. None of them can close meanwhile: UCX's call to
/// close it waits.
pub(crate) fn each(mut visit: impl FnMut(&Md)) {
    if panic::is_broken() {
        return;
    }
    for entry in &ENTRIES {
        if entry.place.address() == NEVER_USED {
            return;
        }
        let Some(md) = forked::read(&entry.md) else {
            continue;
        };
        if let Some(md) = md.as_ref() {
            visit(md);
        }
    }
}

/// The counters of the memory domain with this identity. Never waits: returns `None` also while the
/// domain is added or removed.
pub(crate) fn numbers_of(identity: usize) -> Option<Numbers> {
    let used = |entry: &&Entry| entry.place.address() != NEVER_USED;
    ENTRIES.iter().take_while(used).find_map(|entry| {
        let md = entry.md.try_read().ok()?;
        let md = md.as_ref()?;
        (Md::identity(md) == identity).then(|| {
            kept::add_to(counts::add_to(Numbers {
                exporters: ucp::exporters(),
                ..md.numbers()
            }))
        })
    })
}

/// The counters of all memory domains, including closed ones.
pub(crate) fn numbers() -> Numbers {
    let mut numbers = forked::lock(&CLOSED).map_or(Numbers::NONE, |closed| *closed);
    each(|md| numbers = numbers.plus(md.numbers()));
    numbers.exporters = ucp::exporters();
    kept::add_to(counts::add_to(numbers))
}

/// State of a memory domain. Takes no lock.
#[inline]
pub(crate) fn state(md: MdHandle) -> State {
    let first = &hot().first;
    if first.address() == md.addr() && !first.served().is_null() {
        return State::Served;
    }
    match entry_of(md.addr()) {
        Some(entry) if !entry.place.served().is_null() => State::Served,
        Some(_) => State::NotServed,
        None => State::Unknown,
    }
}

/// The memory domain, if it is known and served. After an internal error its objects are still
/// released. Takes no lock.
///
/// # Safety
/// `md` must be an open memory domain. The caller drops the result before the end of the operation
/// on it: UCX closes no memory domain while an operation on it runs.
#[inline]
pub(crate) unsafe fn known<'a>(md: MdHandle) -> Option<&'a Md> {
    let first = &hot().first;
    let served = match first.address() == md.addr() {
        true => first.served().cast(),
        false => served(md.addr()),
    };
    // SAFETY: `add` published it, and its entry keeps it until UCX closes the memory domain.
    unsafe { served.as_ref() }
}

/// The memory domain, if it is the first served one and works. One cache line.
///
/// # Safety
/// See [`known`].
#[inline(always)]
pub(crate) unsafe fn first<'a>(md: MdHandle) -> Option<&'a Md> {
    let first = &hot().first;
    if first.address() != md.addr() {
        return None;
    }
    let served = first.served().cast::<Md>();
    // SAFETY: while `md` is set, so is this, which the compiler cannot know.
    unsafe { std::hint::assert_unchecked(!served.is_null()) };
    // SAFETY: as in `known`.
    unsafe { served.as_ref() }
}

/// What serves the memory domain at this address; null if nothing does.
#[inline(never)]
fn served(address: usize) -> *mut Md {
    match entry_of(address) {
        Some(entry) => entry.place.served(),
        None => null_mut(),
    }
}

/// True while no further memory domain fits.
pub(crate) fn is_full() -> bool {
    IS_FULL.load(Ordering::Relaxed)
}

/// Adds a memory domain, served or not.
pub(crate) fn add(md: MdHandle, new: Option<Arc<Md>>) -> Added {
    let Some(_changes) = forked::lock(&CHANGES) else {
        return Added::Full;
    };
    if entry_of(md.addr()).is_some() {
        return Added::Known;
    }
    let free = |entry: &&Entry| entry.place.address() <= EMPTY;
    let Some(entry) = ENTRIES.iter().find(free) else {
        IS_FULL.store(true, Ordering::Relaxed);
        return Added::Full;
    };
    // Without the handler, the pool and the map detect a child themselves.
    let _is_watching = forked::watch(in_child);
    let Some(mut place) = forked::write(&entry.md) else {
        return Added::Full;
    };
    let served = new
        .as_ref()
        .map_or(null_mut(), |md| Arc::as_ptr(md).cast_mut());
    *place = new;
    entry.place.set(md.addr(), served);
    let first = &hot().first;
    if first.address() == NEVER_USED && !served.is_null() {
        first.set(md.addr(), served.cast());
    }
    Added::Done
}

/// Removes a memory domain that UCX is about to close. `None` if it is unknown or not served.
pub(crate) fn remove(md: MdHandle) -> Option<Arc<Md>> {
    let _changes = forked::lock(&CHANGES)?;
    let entry = entry_of(md.addr())?;
    let first = &hot().first;
    if first.address() == md.addr() {
        // Read only by operations on this domain, and none of them runs.
        first.clear(NEVER_USED);
    }
    entry.place.clear(EMPTY);
    IS_FULL.store(false, Ordering::Relaxed);
    forked::write(&entry.md)?.take()
}

/// Keeps the counters of a memory domain that UCX closes.
pub(crate) fn keep_numbers(numbers: Numbers) {
    if let Some(mut closed) = forked::lock(&CLOSED) {
        *closed = closed.plus(numbers);
    }
}

/// In a forked child UCX handles everything, because keys, aliases and counters belong to the
/// parent.
fn in_child() {
    hot().first.clear(NEVER_USED);
    for entry in &ENTRIES {
        entry.place.leave();
    }
}

fn entry_of(address: usize) -> Option<&'static Entry> {
    for entry in &ENTRIES {
        match entry.place.address() {
            NEVER_USED => return None,
            found if found == address && address > EMPTY => return Some(entry),
            _ => {}
        }
    }
    None
}
