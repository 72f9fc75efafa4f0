//! Registrations that stay: after UCX has released memory, the library keeps the last registrations and answers a
//! later one of the same memory with them. Off unless `UCX_XGVMI_KEEP` gives their number.
//!
//! It serves programs whose buffers stay mapped, and where UCX's own cache of registrations is off or too small. A
//! registration is kept only while the mapping of its memory stays as it was: UCX's memory events report every
//! change, from before the registration on, and a fork ends all of them. UCX deregisters a kept one later, in a call
//! for the same memory domain. An export of its memory ends with UCX's release, as always. Only the registration
//! stays, so a peer with a remote key of UCX can use it as long as with UCX's own cache.

mod pages;
mod table;

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use once_cell::race::OnceBox;

use crate::abi::{MdHandle, MemDeregParams, MemHandle, MemRegParams, UcsStatus};
use crate::event_lock::Lock;
use crate::first::{First, Start};
use crate::numbers::Numbers;
use crate::original::{self, Object, Originals};
use crate::panic::guard;
use crate::ucm::{self, Madvise, Mmap, Mremap, Shmat, Ucm, Unmapped};
use crate::{config, forked, log, system_pages};
use table::{Begun, Limits, Memory, Table};

static TABLE: Lock<Table> = Lock::new(Table::EMPTY);
/// Set if registrations are kept.
static IS_ON: AtomicBool = AtomicBool::new(false);
/// Set if a change of a mapping could not be recorded.
static HAS_MISSED: AtomicBool = AtomicBool::new(false);
/// Limits of the kept registrations.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);
/// Registrations answered with a kept one.
static HITS: AtomicU64 = AtomicU64::new(0);

/// Calls a function for each served memory domain, none of which closes meanwhile.
type EachDomain = fn(&mut dyn FnMut(MdHandle));
static EACH_DOMAIN: OnceBox<EachDomain> = OnceBox::new();

/// Registrations that one call ends at most: each takes some microseconds.
const ENDED_MAX: usize = 8;

/// The events that the library follows: those that change mappings, and those to which UCX's aggregate event
/// does not belong.
const EVENTS: c_int = ucm::MMAP | ucm::MREMAP | ucm::MADVISE | ucm::SHMAT | ucm::VM_UNMAPPED;

/// True if registrations of served memory domains are kept.
pub(crate) fn is_on() -> bool {
    IS_ON.load(Ordering::Acquire)
}

/// Reports once that the way in which UCX calls the library permits none.
pub(crate) fn cannot_start() {
    static ONCE: First = First::new();
    if config::get().keep().0 > 0 && ONCE.is_this() {
        log::warning!("UCX_XGVMI_KEEP is off: UCX calls the library by its table of operations");
    }
}

/// Starts at the first memory domain that may be served, if the options ask for it.
pub(crate) fn start(object: &Object, each_domain: EachDomain) {
    static START: Start = Start::new();
    let (count, bytes) = config::get().keep();
    if count == 0 {
        return;
    }
    START.once(|| match follow(object) {
        Ok(()) => {
            let _first = EACH_DOMAIN.set(Box::new(each_domain));
            COUNT.store(count, Ordering::Relaxed);
            BYTES.store(bytes, Ordering::Relaxed);
            IS_ON.store(true, Ordering::Release);
        }
        Err(why) => log::warning!("UCX_XGVMI_KEEP is off: {why}"),
    });
}

fn follow(object: &Object) -> Result<(), &'static str> {
    system_pages::check()?;
    if !ucm::is_allocator_known() {
        return Err("the program's allocator is not that of the C library");
    }
    if !forked::is_safe(|name| object.symbol(name)) {
        return Err("a forked child would lose memory (see UCX_IB_FORK_INIT)");
    }
    if !forked::watch(|| {}) || !forked::watch_parent(lose_all) {
        return Err("the system reports no forks");
    }
    let ucm = Ucm::find(|name| object.symbol(name)).ok_or("this UCX has no memory events")?;
    // SAFETY: the handler accepts every event.
    if !unsafe { ucm.add(EVENTS, handler) }.is_ok() {
        return Err("UCX has no memory events (UCX_MEM_EVENTS)");
    }
    if !ucm.test(EVENTS).is_ok() {
        ucm.remove(EVENTS, handler);
        return Err("UCX's memory events do not arrive");
    }
    Ok(())
}

/// Before and after a fork: a write of the parent may move a page away from its registration.
extern "C" fn lose_all() {
    changed(0, usize::MAX);
}

/// The mapping of these bytes changes.
fn changed(address: usize, end: usize) {
    match TABLE.take() {
        Some(mut table) => table.changed(address, end),
        // A signal handler of the lock's holder.
        None => HAS_MISSED.store(true, Ordering::Release),
    }
}

/// The handler of all events. It runs inside the program's calls, allocates nothing and calls nothing.
///
/// # Safety
/// `event` must be UCX's event of that kind.
unsafe extern "C" fn handler(kind: c_int, event: *mut c_void, _argument: *mut c_void) {
    if forked::generation() > 0 {
        return;
    }
    let range = match kind {
        ucm::MMAP => {
            // SAFETY: by the contract of this function; each event belongs to this call alone.
            let event = unsafe { &*event.cast::<Mmap>() };
            let replaces = event.flags & libc::MAP_FIXED != 0;
            replaces.then_some((event.address, event.size))
        }
        ucm::MREMAP => {
            // SAFETY: as above. UCX's aggregate event covers the old address.
            let event = unsafe { &*event.cast::<Mremap>() };
            let is_fixed = event.flags & libc::MREMAP_FIXED != 0;
            is_fixed.then_some((event.new_address, event.new_size))
        }
        ucm::MADVISE => {
            // SAFETY: as above.
            let event = unsafe { &*event.cast::<Madvise>() };
            let is_harmless = ucm::HARMLESS_ADVICE.contains(&event.advice);
            (!is_harmless).then_some((event.address, event.length))
        }
        ucm::SHMAT => {
            // SAFETY: as above. The length is not known.
            let event = unsafe { &*event.cast::<Shmat>() };
            let replaces = event.flags & libc::SHM_REMAP != 0;
            replaces.then_some((null_mut(), usize::MAX))
        }
        ucm::VM_UNMAPPED => {
            // SAFETY: as above.
            let event = unsafe { &*event.cast::<Unmapped>() };
            match event.size {
                // Memory of another allocator, of unknown length.
                0 => Some((null_mut(), usize::MAX)),
                size => Some((event.address, size)),
            }
        }
        _ => None,
    };
    if let Some((address, size)) = range {
        changed(address.addr(), address.addr().saturating_add(size));
    }
}

/// A registration that may be kept, and its parameters without error messages. `None` for any other.
///
/// # Safety
/// `params` are those of `mem_reg`.
unsafe fn followed(
    md: MdHandle,
    address: *mut c_void,
    length: usize,
    params: *const c_void,
) -> Option<(Memory, MemRegParams)> {
    // SAFETY: by the contract of this function.
    let (field_mask, flags) = unsafe { MemRegParams::plain(params.cast()) }?;
    // Without write access the kernel may give the program another page at its next write.
    let is_writable = flags & MemRegParams::WRITE_ACCESS != 0;
    if !is_writable || length == 0 || !is_on() || forked::generation() > 0 {
        return None;
    }
    let memory = Memory {
        md: md.addr(),
        address: address.addr(),
        length,
        access: flags & MemRegParams::ACCESS,
        others: flags & !(MemRegParams::ACCESS | MemRegParams::HIDE_ERRORS),
    };
    let quiet = MemRegParams::of(field_mask, flags | MemRegParams::HIDE_ERRORS);
    Some((memory, quiet))
}

fn limits() -> Limits {
    Limits {
        count: COUNT.load(Ordering::Relaxed),
        bytes: BYTES.load(Ordering::Relaxed),
    }
}

/// Works on the table. `None` in a signal handler of the lock's holder.
fn with<T>(work: impl FnOnce(&mut Table) -> T) -> Option<T> {
    let mut table = TABLE.take()?;
    if HAS_MISSED.swap(false, Ordering::AcqRel) {
        table.changed(0, usize::MAX);
    }
    Some(work(&mut table))
}

/// UCX's own operations of the memory domain.
///
/// # Safety
/// `md` is an open memory domain of UCX's mlx5 module.
unsafe fn originals(md: MdHandle) -> Option<&'static Originals> {
    // SAFETY: by the contract of this function.
    unsafe { original::known(md) }.map(Object::originals)
}

/// `mem_reg` of a served memory domain.
///
/// # Safety
/// The preconditions of UCX's operation.
pub(crate) unsafe extern "C" fn mem_reg(
    md: MdHandle,
    address: *mut c_void,
    length: usize,
    params: *const c_void,
    memh_p: *mut MemHandle,
) -> UcsStatus {
    // SAFETY: UCX passes an open memory domain.
    let Some(originals) = (unsafe { originals(md) }) else {
        return UcsStatus::ERR_UNSUPPORTED;
    };
    let begin = || {
        // SAFETY: the arguments are UCX's.
        let (memory, quiet) = unsafe { followed(md, address, length, params) }?;
        let (begun, kept) = with(|table| (table.begin(memory), table.kept()))?;
        Some((begun, (kept.0 > 0).then_some(quiet)))
    };
    let (at, quiet) = match guard("mem_reg", begin).flatten() {
        Some((Begun::Kept(memh), _)) => {
            HITS.fetch_add(1, Ordering::Relaxed);
            // SAFETY: UCX passes the target for the handle.
            unsafe { memh_p.write(std::ptr::with_exposed_provenance_mut(memh)) };
            return UcsStatus::OK;
        }
        Some((Begun::New(at), quiet)) => (Some(at), quiet),
        Some((Begun::Full, quiet)) => (None, quiet),
        None => (None, None),
    };
    // The kept registrations may have taken the memory that the system permits: without them, a second attempt.
    let first = quiet
        .as_ref()
        .map_or(params, |quiet| std::ptr::from_ref(quiet).cast());
    // SAFETY: the arguments are UCX's, or equal to them but for a flag.
    let mut status = unsafe { (originals.mem_reg)(md, address, length, first, memh_p) };
    if !status.is_ok() && quiet.is_some() {
        let _ended = end_all();
        // SAFETY: the arguments are UCX's.
        status = unsafe { (originals.mem_reg)(md, address, length, params, memh_p) };
    }
    if let Some(at) = at {
        let memh = match status.is_ok() {
            // SAFETY: the operation succeeded, so it has written the handle.
            true => unsafe { memh_p.read() }.expose_provenance(),
            false => 0,
        };
        let is_private = memh != 0 && pages::are_private(address.addr(), length);
        let made = |table: &mut Table| {
            table.made(at, memh);
            if !is_private {
                table.spoil(memh);
            }
        };
        let _made = guard("mem_reg", || with(made));
    }
    status
}

/// `mem_dereg` of a served memory domain.
///
/// # Safety
/// The preconditions of UCX's operation.
pub(crate) unsafe extern "C" fn mem_dereg(
    md: MdHandle,
    params: *const MemDeregParams,
) -> UcsStatus {
    // SAFETY: UCX passes an open memory domain.
    let Some(originals) = (unsafe { originals(md) }) else {
        return UcsStatus::ERR_UNSUPPORTED;
    };
    let release = || {
        // SAFETY: UCX passes parameters.
        let memh = unsafe { MemDeregParams::memh_of(params) }?;
        // SAFETY: as above.
        let may_stay = forked::generation() == 0 && !unsafe { MemDeregParams::invalidates(params) };
        with(|table| table.release(md.addr(), memh.addr(), may_stay, limits()))
    };
    let status = match guard("mem_dereg", release).flatten() {
        Some(true) => UcsStatus::OK,
        // SAFETY: the arguments are UCX's.
        Some(false) | None => unsafe { (originals.mem_dereg)(md, params) },
    };
    if forked::generation() == 0 {
        let surplus = |table: &mut Table| table.surplus(md.addr(), limits());
        // SAFETY: the domain is open, and these are its operations.
        unsafe { end(originals, md, ENDED_MAX, surplus) };
    }
    status
}

/// Deregisters memory that was kept. Returns its number.
///
/// # Safety
/// The operations are those of `md`, which is open.
unsafe fn end(
    originals: &Originals,
    md: MdHandle,
    most: usize,
    mut next: impl FnMut(&mut Table) -> Option<usize>,
) -> usize {
    let mut ended = 0;
    while ended < most
        && let Some(Some(Some(memh))) = guard("mem_dereg", || with(&mut next))
    {
        let params = MemDeregParams {
            field_mask: MemDeregParams::FIELD_MEMH,
            flags: 0,
            memh: std::ptr::with_exposed_provenance_mut(memh),
            comp: null_mut(),
        };
        // SAFETY: UCX has released the handle, and the table does not have it any more.
        let status = unsafe { (originals.mem_dereg)(md, &raw const params) };
        if !status.is_ok() {
            log::error!("UCX cannot deregister kept memory: status {}", status.0);
        }
        ended += 1;
    }
    ended
}

/// Deregisters everything that is kept for any memory domain. Returns its number.
pub(crate) fn end_all() -> usize {
    let mut ended = 0;
    if let Some(each_domain) = EACH_DOMAIN.get()
        && forked::generation() == 0
    {
        each_domain(&mut |md| {
            // SAFETY: the domain is open as long as the function visits it.
            let Some(originals) = (unsafe { originals(md) }) else {
                return;
            };
            let next = |table: &mut Table| table.any_of(md.addr());
            // SAFETY: as above, and these are its operations. UCX registers and deregisters memory of one domain on
            // several threads.
            ended += unsafe { end(originals, md, usize::MAX, next) };
        });
    }
    ended
}

/// A registration that UCX itself exports: its exported key would stay as well.
pub(crate) fn spoil(memh: MemHandle) {
    if is_on() {
        let _done = with(|table| table.spoil(memh.addr()));
    }
}

/// Ends all registrations of a memory domain that UCX is about to close.
///
/// # Safety
/// `md` must be a memory domain of the object that no other thread uses.
pub(crate) unsafe fn closing(object: &Object, md: MdHandle) {
    if !is_on() || forked::generation() > 0 {
        return;
    }
    // SAFETY: by the contract of this function.
    unsafe {
        end(object.originals(), md, usize::MAX, |table| {
            table.any_of(md.addr())
        })
    };
    let _done = with(|table| table.forget(md.addr()));
}

/// The numbers with those of the kept registrations.
pub(crate) fn add_to(numbers: Numbers) -> Numbers {
    let (count, bytes) = with(|table| table.kept()).unwrap_or_default();
    Numbers {
        kept_hits: HITS.load(Ordering::Relaxed),
        kept_now: count as u64,
        kept_bytes: bytes as u64,
        ..numbers
    }
}
