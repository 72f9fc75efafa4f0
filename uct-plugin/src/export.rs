//! `mkey_pack`: packs a key of the pool instead of one that UCX would create or bind.

use std::ffi::c_void;

use xgvmi_pool::mlx5::Mlx5Device;
use xgvmi_pool::{BoundKey, Gvmi, HostHooks, Mkey, OwnerUuid, PoolError, Region, Span, VirtAddr};

use crate::abi::{
    INVALID_MKEY, MdHandle, MemHandle, MemhHead, MkeyPackParams, UcsStatus, memh_flags,
};
use crate::check::KeyForm;
use crate::chunks::Wanted;
use crate::counter_file::Event;
use crate::first::First;
use crate::md::Md;
use crate::memh::IMPORTS;
use crate::original::Object;
use crate::registrations::{Export, Exported, REGISTRATIONS, Registration};
use crate::release::{self, Back};
use crate::rkey::Memory;
use crate::{allocator, check, hot, log, panic, rkey, serve};

/// The data that an importer needs, as UCX packs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PackedKey {
    mkey: Mkey,
    gvmi: Gvmi,
    owner: OwnerUuid,
}

impl PackedKey {
    /// Writes the key in UCX's format (`uct_ib_md_packed_mkey_t`, `src/uct/ib/base/ib_md.h:181`),
    /// which is packed and in machine byte order.
    ///
    /// # Safety
    /// `buffer` must have space for the bytes of the form.
    unsafe fn write(self, form: KeyForm, buffer: *mut c_void) {
        // SAFETY: both forms start with the key, and the buffer has enough space by the contract.
        unsafe { buffer.cast::<u32>().write_unaligned(self.mkey.raw()) };
        // SAFETY: as above; the function follows.
        let gvmi = unsafe { buffer.byte_add(4).cast::<u16>() };
        // SAFETY: as above.
        unsafe { gvmi.write_unaligned(self.gvmi.get()) };
        if form == KeyForm::Long {
            // SAFETY: the exporter's number follows in this form.
            let owner = unsafe { buffer.byte_add(6).cast::<u64>() };
            // SAFETY: as above.
            unsafe { owner.write_unaligned(self.owner.get()) };
        }
    }
}

/// A memory handle to pack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packed {
    pub(crate) md: MdHandle,
    pub(crate) memh: MemHandle,
    /// Address and length that UCX names, if it names them.
    pub(crate) range: Option<(usize, usize)>,
}

/// Packs the handle if it is ours. `None` if UCX's own operation must do it.
///
/// # Safety
/// The arguments must be those of `mkey_pack` on a live memory handle of the object.
pub(crate) unsafe fn pack(
    object: &'static Object,
    packed: Packed,
    params: *const MkeyPackParams,
    buffer: *mut c_void,
) -> Option<UcsStatus> {
    let Packed { md, memh, .. } = packed;
    // SAFETY: UCX passes parameters.
    let flags = unsafe { MkeyPackParams::flags_of(params) };
    // SAFETY: every memory handle starts with these fields.
    let is_imported = unsafe { (*memh.cast::<MemhHead>()).flags } & memh_flags::IMPORTED != 0;
    if is_imported {
        // SAFETY: by the contract of this function.
        return unsafe { pack_imported(object, md, memh, flags, buffer) };
    }
    if flags & MkeyPackParams::FLAGS_INVALIDATE != 0 {
        return None;
    }
    if flags & MkeyPackParams::FLAG_EXPORT == 0 {
        // SAFETY: by the contract of this function.
        return unsafe { pack_remote(object, md, memh, buffer) };
    }
    // SAFETY: by the contract of this function.
    unsafe { export(serve::get(object, md)?, packed, buffer) }
}

/// Packs imported memory. `None` if it is not ours.
///
/// # Safety
/// See [`pack`].
#[inline(never)]
unsafe fn pack_imported(
    object: &'static Object,
    md: MdHandle,
    memh: MemHandle,
    flags: u32,
    buffer: *mut c_void,
) -> Option<UcsStatus> {
    let import = IMPORTS.with(memh, |import| (import.alias.lkey(), import.remote));
    let (lkey, remote) = import?;
    if flags & MkeyPackParams::FLAGS_INVALIDATE != 0 {
        // As in UCX: the exporter owns the key, so it cannot be invalidated here.
        return Some(UcsStatus::ERR_INVALID_PARAM);
    }
    if flags & MkeyPackParams::FLAG_EXPORT != 0 {
        // The original key of the alias. Any other function may alias it as this one did. UCX itself
        // refuses this, or ends by a fault if it was built without checks of parameters. So it does
        // for every rkey of an imported handle on a memory domain of its GGA transport, which packs
        // rkeys as exported keys.
        let key = PackedKey {
            mkey: remote.mkey,
            gvmi: remote.gvmi,
            owner: remote.owner,
        };
        // SAFETY: by the contract of this function.
        let form = unsafe { serve::get(object, md) }?.key_form();
        // SAFETY: UCX passes a buffer of the size that `md_query` reported, which is the size
        // of the form.
        unsafe { key.write(form, buffer) };
        return Some(UcsStatus::OK);
    }
    // An imported key has none for atomics.
    let rkey = rkey::packed(lkey.raw(), INVALID_MKEY);
    // SAFETY: a packed rkey has eight bytes, and the buffer has space for one.
    unsafe { buffer.cast::<u64>().write_unaligned(rkey) };
    Some(UcsStatus::OK)
}

/// Packs the remote key of memory that has a key of the pool. `None` if UCX's own operation must do
/// it.
///
/// # Safety
/// `memh` must be a live memory handle that `md` of the object registered, and `buffer` for a
/// remote key.
#[inline(never)]
unsafe fn pack_remote(
    object: &'static Object,
    md: MdHandle,
    memh: MemHandle,
    buffer: *mut c_void,
) -> Option<UcsStatus> {
    // SAFETY: every memory handle starts with these fields.
    if !rkey::may_serve(unsafe { (*memh.cast::<MemhHead>()).flags }) {
        return None;
    }
    let registration = REGISTRATIONS.known(memh)?;
    let Exported::FromPool(_) = registration.exported() else {
        return None;
    };
    // SAFETY: by the contract of this function.
    let served = unsafe { serve::get(object, md) }?;
    let memory = registration.memory();
    let memory = (memory.address, memory.length);
    // SAFETY: as above; the registration is that of the handle.
    let packed = unsafe { served.keys().pack(served.facts(), memh, memory) }?;
    // SAFETY: a packed rkey has eight bytes, and the buffer has space for one.
    unsafe { buffer.cast::<u64>().write_unaligned(packed) };
    Some(UcsStatus::OK)
}

/// Packs the usual handle: its memory is plain, and the handle shows it. False if [`pack`] must do it.
///
/// # Safety
/// `memh` must be a live memory handle that `md` registered, `md` must be `served`, and `buffer` must be for an
/// exported key.
#[inline(always)]
pub(crate) unsafe fn usual(
    served: &Md,
    (md, memh): (MdHandle, MemHandle),
    address: usize,
    buffer: *mut c_void,
) -> bool {
    // SAFETY: every memory handle starts with these fields.
    let head = unsafe { &*memh.cast::<MemhHead>() };
    if !is_plain(head.flags) || !hot::is_sound() {
        return false;
    }
    // SAFETY: by the contract of this function.
    let Some(memory) = (unsafe { served.shown().memory(memh) }) else {
        return false;
    };
    // UCX names the registered memory.
    if memory.address != address {
        return false;
    }
    let Some(host) = served.host() else {
        return false;
    };
    let Some(registration) = REGISTRATIONS.begin(md, memh, memory) else {
        // SAFETY: by the contract of this function.
        return unsafe { again(served, md, memh, buffer) };
    };
    let thread = hot::thread();
    let undecided = Undecided(registration);
    let keys = (memory.lkey, head.rkey);
    let bound = match bind(host, thread, memory.address, memory.length, keys.0, keys.1) {
        Ok(bound) => bound,
        Err(error) => return not_bound(served, undecided, error),
    };
    decided(served, undecided, bound, thread);
    // SAFETY: by the contract of this function.
    unsafe { write((served, host.gvmi()), bound, buffer) };
    true
}

/// Packs a handle that was exported before. False if [`pack`] must do it.
///
/// # Safety
/// As [`usual`].
#[inline(never)]
unsafe fn again(served: &Md, md: MdHandle, memh: MemHandle, buffer: *mut c_void) -> bool {
    // SAFETY: by the contract of this function.
    let memory = unsafe { served.shown().memory(memh) };
    let exported = memory.and_then(|memory| REGISTRATIONS.exported(memh, memory));
    let (Some(exported), Some(host)) = (exported, served.host()) else {
        let range = None;
        let packed = Packed { md, memh, range };
        // SAFETY: by the contract of this function.
        return unsafe { export(served, packed, buffer) }.is_some();
    };
    // SAFETY: by the contract of this function.
    unsafe { write((served, host.gvmi()), exported, buffer) };
    true
}

/// Binds a key of the pool to plain memory. One frame for the whole work of the pool.
///
/// # Errors
/// The pool's. `None` if the memory is none that a key can be bound to.
#[inline(never)]
fn bind(
    host: &HostHooks<Mlx5Device>,
    thread: usize,
    address: usize,
    length: usize,
    lkey: u32,
    rkey: u32,
) -> Result<BoundKey, Option<Box<PoolError>>> {
    let Ok(region) = region((lkey, rkey), (address, length)) else {
        return Err(None);
    };
    host.pool().bind_region_in(thread, region).map_err(Some)
}

/// Leaves a handle to UCX. Always false.
#[cold]
fn not_bound(served: &Md, undecided: Undecided<'_>, error: Option<Box<PoolError>>) -> bool {
    if let Some(error) = error {
        let _none = left(&error);
    }
    drop(undecided);
    served.count(Event::ExportLeft);
    false
}

/// Records the key of a handle.
#[inline(always)]
fn decided(served: &Md, undecided: Undecided<'_>, key: BoundKey, thread: usize) {
    // A key that is not recorded at the end is released.
    let surplus = Back { served, key };
    panic::here("a key is bound");
    std::mem::forget(surplus);
    undecided.0.decide(Exported::FromPool(key));
    std::mem::forget(undecided);
    served.count_in(Event::Export, thread);
}

/// The memory as a region, with the handle's local and remote key.
#[inline(always)]
fn region(
    (lkey, rkey): (u32, u32),
    (address, length): (usize, usize),
) -> Result<Region, Option<check::Refusal>> {
    let lkey = check::lkey(lkey, rkey).map_err(Some)?;
    Region::new(VirtAddr::new(address as u64), length as u64, lkey).map_err(|_| None)
}

/// Packs a registration as a key of the pool. `None` if UCX's own operation must do it.
///
/// # Safety
/// The handle must be live and not imported, its domain must be `served`, and `buffer` must be for an exported
/// key.
unsafe fn export(served: &Md, packed: Packed, buffer: *mut c_void) -> Option<UcsStatus> {
    let Packed { md, memh, range } = packed;
    // SAFETY: by the contract of this function.
    let memory = unsafe { served.shown().memory(memh) };
    let memory = memory.filter(|memory| range.is_none_or(|range| memory.has(range)));
    let bound = match REGISTRATIONS.export(md, memh, memory) {
        // SAFETY: by the contract of this function.
        Export::Deciding(registration) => unsafe { first(served, memh, registration) }?,
        Export::Decided(registration, exported) => {
            let is_older = memory.is_some_and(|memory| memory != registration.memory());
            if is_older {
                // SAFETY: by the contract of this function.
                return unsafe { export_anew(served, packed, buffer) };
            }
            match exported {
                Exported::FromPool(bound) => bound,
                Exported::No | Exported::Natively => return None,
            }
        }
        Export::Unknown => return None,
        Export::Full => {
            tell_full();
            served.count(Event::ExportLeft);
            return None;
        }
    };
    let gvmi = served.host()?.gvmi();
    // SAFETY: by the contract of this function.
    unsafe { write((served, gvmi), bound, buffer) };
    Some(UcsStatus::OK)
}

/// Reports once that an export has no line of the table.
#[cold]
fn tell_full() {
    static ONCE: First = First::new();
    if ONCE.is_this() {
        log::warning!(
            "export left to UCX: the table of exported handles is full, as many thousand buffers are \
             exported at a time"
        );
    }
}

/// Exports a handle at the address of an older one, which UCX freed without this library's knowledge.
///
/// # Safety
/// As [`export`].
#[cold]
unsafe fn export_anew(served: &Md, packed: Packed, buffer: *mut c_void) -> Option<UcsStatus> {
    release::dereg(served, packed.memh);
    // SAFETY: by the contract of this function.
    unsafe { export(served, packed, buffer) }
}

/// Packs a bound key.
///
/// # Safety
/// `buffer` must be for an exported key of this memory domain.
#[inline(always)]
pub(crate) unsafe fn write((served, gvmi): (&Md, Gvmi), bound: BoundKey, buffer: *mut c_void) {
    let key = PackedKey {
        mkey: bound.mkey(),
        gvmi,
        owner: served.owner(),
    };
    // SAFETY: UCX passes a buffer of the size that `md_query` reported, which is the size of the
    // form.
    unsafe { key.write(served.key_form(), buffer) };
}

/// Leaves a handle to UCX when dropped, so that other threads do not wait for a thread that panicked.
struct Undecided<'a>(&'a Registration);

impl Drop for Undecided<'_> {
    fn drop(&mut self) {
        self.0.decide(Exported::Natively);
    }
}

/// Exports a registration for the first time and decides how.
///
/// # Safety
/// `memh` must be a live memory handle of `served`.
unsafe fn first(served: &Md, memh: MemHandle, registration: &Registration) -> Option<BoundKey> {
    let undecided = Undecided(registration);
    let drawn = match allocator::is_short() {
        true => None,
        // SAFETY: by the contract of this function.
        false => unsafe { draw(served, memh, registration) },
    };
    match drawn {
        Some(key) => decided(served, undecided, key, hot::thread()),
        None => {
            drop(undecided);
            served.count(Event::ExportLeft);
        }
    }
    drawn
}

/// A key of the pool, bound to the registration.
///
/// # Safety
/// `memh` must be a live memory handle of `served`.
unsafe fn draw(served: &Md, memh: MemHandle, registration: &Registration) -> Option<BoundKey> {
    // SAFETY: every memory handle starts with these fields.
    let head = unsafe { memh.cast::<MemhHead>().read() };
    if !is_servable(head.flags) {
        return None;
    }
    let Memory {
        address, length, ..
    } = registration.memory();
    let region = match region((head.lkey, head.rkey), (address, length)) {
        Ok(region) => region,
        Err(refusal) => return refused(&refusal?),
    };
    if !is_plain(head.flags) {
        // SAFETY: by the contract of this function; only the flag for chunks makes servable memory not plain.
        return unsafe { draw_parts(served, memh, registration) };
    }
    match served.host()?.pool().bind_region_in(hot::thread(), region) {
        Ok(bound) => Some(bound),
        Err(error) => left(&error),
    }
}

#[cold]
fn refused(refusal: &check::Refusal) -> Option<BoundKey> {
    static ONCE: First = First::new();
    if ONCE.is_this() {
        log::warning!("export left to UCX: {refusal}");
    }
    None
}

/// A key of the pool, bound to memory that was registered in chunks.
///
/// # Safety
/// `memh` must be a live memory handle of `served`, with the flag for chunks.
#[cold]
unsafe fn draw_parts(
    served: &Md,
    memh: MemHandle,
    registration: &Registration,
) -> Option<BoundKey> {
    // SAFETY: by the contract of this function.
    let parts = unsafe { chunks(served, memh, registration) }?;
    match served.host()?.bind(Span::of(&parts).ok()?) {
        Ok(bound) => Some(bound),
        Err(error) => left(&error),
    }
}

/// Logs why the pool bound no key.
#[cold]
pub(crate) fn left(error: &PoolError) -> Option<BoundKey> {
    match error.is_full() {
        true => log::debug!("export left to UCX: {error}"),
        false => log::diag!("export left to UCX: {error}"),
    }
    None
}

/// The regions of memory that was registered in chunks.
///
/// # Safety
/// `memh` must be a live memory handle of `served`, with the flag for chunks.
unsafe fn chunks(served: &Md, memh: MemHandle, registration: &Registration) -> Option<Vec<Region>> {
    let facts = served.facts();
    let wanted = Wanted {
        context: facts.context.addr().get(),
        pd: facts.pd.addr().get(),
        memh,
        address: registration.memory().address,
        length: registration.memory().length,
    };
    // SAFETY: by the contract of this function.
    match unsafe { served.chunks().chunks(&wanted) } {
        Ok(chunks) => Some(chunks),
        Err(refusal) => {
            log::diag!("export left to UCX: {refusal}");
            None
        }
    }
}

/// True for memory of this process with one local key that covers it exactly.
pub(crate) const fn is_plain(flags: u32) -> bool {
    is_servable(flags) && flags & memh_flags::MULTITHREADED == 0
}

/// True for memory of this process whose local keys cover it exactly.
const fn is_servable(flags: u32) -> bool {
    let left_to_ucx =
        memh_flags::IMPORTED | memh_flags::GVA | memh_flags::DIRECT_NIC | !memh_flags::KNOWN;
    flags & left_to_ucx == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_packed_as_ucx_packs_it() {
        let key = PackedKey {
            mkey: Mkey::from_raw(0x1234_56fb),
            gvmi: Gvmi::new(0xabcd),
            owner: OwnerUuid::new(0x1122_3344_5566_7788),
        };
        let mut buffer = [0xee_u8; 16];
        // SAFETY: the buffer has space for the longer form.
        unsafe { key.write(KeyForm::Long, buffer.as_mut_ptr().cast()) };
        let long = [
            0xfb, 0x56, 0x34, 0x12, 0xcd, 0xab, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,
        ];
        assert_eq!(buffer[..14], long);
        assert_eq!(buffer[14..], [0xee; 2]);
        let mut buffer = [0xee_u8; 8];
        // SAFETY: the buffer has space for the shorter form.
        unsafe { key.write(KeyForm::Short, buffer.as_mut_ptr().cast()) };
        assert_eq!(buffer, [0xfb, 0x56, 0x34, 0x12, 0xcd, 0xab, 0xee, 0xee]);
    }

    #[test]
    fn only_plain_registrations_are_served() {
        for (flags, expect) in [
            (0, true),
            (0b1_0011, true),
            (memh_flags::MULTITHREADED, true),
            (memh_flags::IMPORTED, false),
            (memh_flags::GVA, false),
            (memh_flags::DIRECT_NIC, false),
            (1 << 7, true),
            (1 << 8, false),
            (1 << 31, false),
        ] {
            assert_eq!(is_servable(flags), expect, "{flags:#x}");
        }
    }
}
