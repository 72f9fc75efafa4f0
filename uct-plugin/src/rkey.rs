//! `mkey_pack` without the export flag: remote keys of memory that has a key of the pool.
//!
//! For memory with atomic access, UCX creates a second key at the first remote key and destroys it
//! with the registration. Requesters use it for atomics only, with an offset that differs from
//! process to process (<https://github.com/openucx/ucx/pull/954>): it is an optimisation of the
//! atomics of many requesters at equal addresses. Each such key takes two device commands per
//! buffer, which is what the pool avoids for the export of the same buffer. The library therefore
//! packs the remote key without the second one, as UCX does with `UCX_IB_INDIRECT_ATOMIC=n`.
//! Requesters then use the registration's own key for atomics, without the offset
//! (`src/uct/ib/base/ib_md.h`, `uct_ib_resolve_atomic_rkey`).
//!
//! UCX packs the key itself if the memory was not exported with a key of the pool, if it has a
//! second key already (a remote key was packed before the export; or a registration with strict
//! order, which relaxed ordering of PCI needs), and if it was registered in chunks. UCX 1.22 and
//! later chooses relaxed ordering for each handle, by the type of its memory, and sets a flag of the
//! handle. Earlier versions choose it for the memory domain.

use std::mem::offset_of;
use std::ptr::with_exposed_provenance;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicUsize, Ordering};

use xgvmi_pool::mlx5::ibv_mr;

use crate::abi::{
    ATOMIC_RKEY_BEFORE_MRS, EXPORTED_LKEY_BEFORE_MRS, INVALID_MKEY, MRS_PLACES, MemHandle,
    MemhHead, memh_flags,
};
use crate::check::{MdFacts, read_word};
use crate::hot::hot;

/// True if [`pack`] may serve a remote key of memory with these flags. In a process that exports
/// nothing, this is all that the library adds to such a key.
#[inline(always)]
pub(crate) fn may_serve(flags: u32) -> bool {
    const OTHERS: u32 = memh_flags::MULTITHREADED | memh_flags::RELAXED_ORDERING;
    flags & (memh_flags::ATOMIC | OTHERS) == memh_flags::ATOMIC
        && hot().has_exported.load(Ordering::Relaxed)
}

/// Remembers that this process exports memory with keys of a pool.
pub(crate) fn exported() {
    // Only the first export writes the line, which every call reads.
    if !hot().has_exported.load(Ordering::Relaxed) {
        hot().has_exported.store(true, Ordering::Relaxed);
    }
}

/// The packed form: the key for atomics is the upper half.
pub(crate) const fn packed(rkey: u32, atomic_rkey: u32) -> u64 {
    (atomic_rkey as u64) << 32 | rkey as u64
}

/// Registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) address: usize,
    pub(crate) length: usize,
    pub(crate) lkey: u32,
}

impl Memory {
    /// True if it contains the range: an address and a length.
    #[inline(always)]
    pub(crate) fn has(self, (address, length): (usize, usize)) -> bool {
        let before = address.wrapping_sub(self.address);
        before <= self.length && length <= self.length - before
    }
}

/// Offset of the registration in the memory handles of one memory domain, for handles whose registration shows
/// their memory.
///
/// libibverbs' registration contains address, length and key of the memory. Once its offset in the handles
/// is known, the library need not record memory when UCX registers it: it compares the registration with the
/// memory, and records only memory that differs, such as that of a device's buffer, whose registration
/// contains an offset.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    at: AtomicU16,
    /// Number of searches.
    tries: AtomicU16,
}

/// Searches per memory domain: the first registrations may be of an unusual kind.
const TRIES_MAX: u16 = 8;

impl Shown {
    /// The memory that the handle shows. `None` if it shows none here.
    ///
    /// # Safety
    /// The handle is live and belongs to the memory domain of this value.
    #[inline(always)]
    pub(crate) unsafe fn memory(&self, memh: MemHandle) -> Option<Memory> {
        let at = usize::from(self.at.load(Ordering::Relaxed));
        // SAFETY: every memory handle starts with these fields.
        let head = unsafe { &*memh.cast::<MemhHead>() };
        if at == UNKNOWN || head.flags & memh_flags::MULTITHREADED != 0 {
            return None;
        }
        // SAFETY: the registrations of the domain's handles are at this offset.
        let mr = unsafe { memh.byte_add(at).cast::<*const ibv_mr>().read() };
        // SAFETY: a registration of libibverbs, or null.
        let mr = unsafe { mr.as_ref() }?;
        (mr.lkey == head.lkey).then(|| Memory {
            address: mr.addr.addr(),
            length: mr.length,
            lkey: mr.lkey,
        })
    }

    /// Searches the offset, with memory that UCX has just registered.
    ///
    /// # Safety
    /// The handle is live and belongs to the memory domain of this value, with these facts.
    #[cold]
    pub(crate) unsafe fn search(
        &self,
        facts: &MdFacts,
        memh: MemHandle,
        (address, length): (usize, usize),
    ) {
        // SAFETY: every memory handle starts with these fields.
        let head = unsafe { memh.cast::<MemhHead>().read() };
        if usize::from(self.at.load(Ordering::Relaxed)) != UNKNOWN
            || head.flags & memh_flags::MULTITHREADED != 0
            || self.tries.fetch_add(1, Ordering::Relaxed) >= TRIES_MAX
        {
            return;
        }
        let wanted = Wanted {
            memh: memh.addr(),
            address,
            length,
            head,
        };
        let through_kernel = |address| read_word(std::ptr::without_provenance(address));
        if let Some((at, _)) = find(facts_of(facts), &wanted, through_kernel)
            && let Ok(at) = u16::try_from(at)
        {
            self.at.store(at, Ordering::Relaxed);
        }
    }
}

/// Offset of the registrations in the memory handles of one memory domain. The keys precede them.
#[derive(Debug, Default)]
pub(crate) struct Place(AtomicUsize);

/// Not found yet. No registration is at the start of a memory handle.
const UNKNOWN: usize = 0;
/// Found with a second registration behind it, for strict order: UCX packs the domain's keys. From
/// 1.19 on, the key for atomics shows this as well.
const STRICT: usize = usize::MAX;

/// A memory handle with one registration of the whole memory.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    memh: usize,
    address: usize,
    length: usize,
    head: MemhHead,
}

impl Place {
    /// The remote key of memory that has a key of the pool and for which [`may_serve`] is true, as
    /// UCX packs it (`uct_ib_md_pack_rkey`, `src/uct/ib/base/ib_md.h`). `None` if UCX's own operation
    /// must pack it.
    ///
    /// # Safety
    /// `memh` must be a live memory handle of the domain of this place, with these facts, registered
    /// with this address and length.
    pub(crate) unsafe fn pack(
        &self,
        facts: &MdFacts,
        memh: MemHandle,
        (address, length): (usize, usize),
    ) -> Option<u64> {
        // SAFETY: every memory handle starts with these fields.
        let head = unsafe { memh.cast::<MemhHead>().read() };
        let wanted = Wanted {
            memh: memh.addr(),
            address,
            length,
            head,
        };
        // SAFETY: by the contract of this function.
        let atomic = unsafe { self.atomic_rkey(facts, &wanted) }?;
        (atomic == INVALID_MKEY).then(|| packed(head.rkey, INVALID_MKEY))
    }

    /// The key for atomics of a memory handle. `None` if its place is not found.
    ///
    /// # Safety
    /// The handle is live and belongs to the memory domain of this place.
    unsafe fn atomic_rkey(&self, facts: &MdFacts, wanted: &Wanted) -> Option<u32> {
        let at = match self.0.load(Ordering::Relaxed) {
            STRICT => return None,
            UNKNOWN => {
                let through_kernel = |address| read_word(std::ptr::without_provenance(address));
                // Threads that search at the same time find the same offset. A handle of another
                // kind of memory leads to no offset; the next handle is searched again.
                let at = look(facts_of(facts), wanted, through_kernel)?;
                self.0.store(at, Ordering::Relaxed);
                if at == STRICT {
                    return None;
                }
                at
            }
            at => at,
        };
        let key = with_exposed_provenance::<AtomicU32>(wanted.memh + at - ATOMIC_RKEY_BEFORE_MRS);
        // SAFETY: the registrations of the domain's handles are at this offset, and the key is
        // before them in each. It is aligned. UCX may write it in another thread.
        Some(unsafe { (*key).load(Ordering::Relaxed) })
    }
}

/// Addresses of libibverbs' context and protection domain.
fn facts_of(facts: &MdFacts) -> (usize, usize) {
    (facts.context.addr().get(), facts.pd.addr().get())
}

/// Tries each known offset. Returns the one where, to the byte, libibverbs' registration of the
/// handle's memory is, with the unused key of an export by UCX before it; [`STRICT`] if a second
/// registration of the memory follows.
fn look(
    domain: (usize, usize),
    wanted: &Wanted,
    read: impl Fn(usize) -> Option<usize>,
) -> Option<usize> {
    let (at, is_strict) = find(domain, wanted, read)?;
    Some(if is_strict { STRICT } else { at })
}

/// As [`look`]: the offset, and whether a second registration follows.
fn find(
    (context, pd): (usize, usize),
    wanted: &Wanted,
    read: impl Fn(usize) -> Option<usize>,
) -> Option<(usize, bool)> {
    let half = |address: usize| {
        let word = read(address - address % size_of::<usize>())?;
        let shift = 8 * (address % size_of::<usize>());
        u32::try_from(word >> shift & 0xffff_ffff).ok()
    };
    // Its keys, if a pointer to a registration of the memory is there.
    let registration = |at: usize| {
        let mr = read(at).filter(|mr| *mr != 0 && mr % align_of::<ibv_mr>() == 0)?;
        let word = |offset: usize| read(mr.wrapping_add(offset));
        let is_it = word(offset_of!(ibv_mr, context))? == context
            && word(offset_of!(ibv_mr, pd))? == pd
            && word(offset_of!(ibv_mr, addr))? == wanted.address
            && word(offset_of!(ibv_mr, length))? == wanted.length;
        let key = |offset: usize| half(mr.wrapping_add(offset));
        let keys = (
            key(offset_of!(ibv_mr, lkey))?,
            key(offset_of!(ibv_mr, rkey))?,
        );
        is_it.then_some(keys)
    };
    let fits = |at: &usize| {
        registration(wanted.memh + at) == Some((wanted.head.lkey, wanted.head.rkey))
            && half(wanted.memh + at - EXPORTED_LKEY_BEFORE_MRS) == Some(INVALID_MKEY)
    };
    let at = MRS_PLACES.into_iter().find(fits)?;
    // The handle may end before; the kernel reads any address.
    let second = registration(wanted.memh + at + size_of::<usize>());
    Some((at, second.is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    const MEMH: usize = 0x1000;
    const MR: usize = 0x3000;
    const CONTEXT: usize = 0x7000;
    const PD: usize = 0x8000;
    const WANTED: Wanted = Wanted {
        memh: MEMH,
        address: 0x5000_1000,
        length: 0x2005,
        head: MemhHead {
            lkey: 0x4100,
            rkey: 0x4101,
            flags: memh_flags::ATOMIC,
        },
    };

    /// Words of a process's memory: a handle with its registration at an offset.
    fn words(at: usize) -> HashMap<usize, usize> {
        HashMap::from([
            // Keys for atomics and for invalidation, then the exported one and padding.
            (MEMH + at - 16, 0x77 << 32 | 0x4300),
            (MEMH + at - 8, 0x55 << 32 | 0xffff_ffff),
            (MEMH + at, MR),
            (MR, CONTEXT),
            (MR + 8, PD),
            (MR + 16, WANTED.address),
            (MR + 24, WANTED.length),
            (MR + 32, 0x4100 << 32 | 0x77),
            (MR + 40, 0x99 << 32 | 0x4101),
        ])
    }

    fn found(words: &HashMap<usize, usize>) -> Option<usize> {
        look((CONTEXT, PD), &WANTED, |address| {
            words.get(&address).copied()
        })
    }

    #[test]
    fn a_handle_with_relaxed_ordering_is_left_to_ucx() {
        let (atomic, relaxed) = (memh_flags::ATOMIC, memh_flags::RELAXED_ORDERING);
        assert!(!may_serve(atomic), "nothing was exported");
        exported();
        // In either order, each handle of a domain is judged by its own flags.
        for (flags, expect) in [
            (atomic | relaxed, false),
            (atomic, true),
            (atomic | relaxed, false),
            (atomic | memh_flags::MULTITHREADED, false),
            (relaxed, false),
            (0, false),
        ] {
            assert_eq!(may_serve(flags), expect, "{flags:#x}");
        }
    }

    #[test]
    fn the_registration_is_found_at_each_known_place() {
        for at in MRS_PLACES {
            assert_eq!(found(&words(at)), Some(at));
        }
        assert_eq!(found(&words(80)), None);
        assert_eq!(found(&HashMap::new()), None);
    }

    #[test]
    fn a_second_registration_is_seen() {
        for at in MRS_PLACES {
            let mut words = words(at);
            words.extend([
                (MEMH + at + 8, 0x4000),
                (0x4000, CONTEXT),
                (0x4008, PD),
                (0x4010, WANTED.address),
                (0x4018, WANTED.length),
                (0x4020, 0x4200 << 32 | 0x78),
                (0x4028, 0x4200),
            ]);
            assert_eq!(found(&words), Some(STRICT));
            // The memory of something else behind the handle.
            words.insert(0x4010, WANTED.address + 1);
            assert_eq!(found(&words), Some(at));
        }
    }

    #[test]
    fn nothing_else_is_taken_for_it() {
        for (address, value) in [
            (MEMH + 96, 0),
            (MEMH + 96, MR + 1),
            // UCX has exported the memory itself, or the field is another one.
            (MEMH + 88, 0x55 << 32 | 0x4300),
            (MR, CONTEXT + 8),
            (MR + 8, 0),
            (MR + 16, WANTED.address + 0x1000),
            (MR + 24, WANTED.length + 1),
            (MR + 32, 0x4200 << 32 | 0x77),
            (MR + 40, 0x99 << 32 | 0x4100),
        ] {
            let mut words = words(96);
            words.insert(address, value);
            assert_eq!(found(&words), None, "{address:#x} {value:#x}");
        }
    }

    /// A memory handle with its registration at an offset.
    #[repr(C)]
    struct Handle {
        head: MemhHead,
        rest: [u8; 84],
        mr: *const ibv_mr,
    }

    #[track_caller]
    fn check_shown(change: impl FnOnce(&mut Handle, &mut ibv_mr), expect: Option<Memory>) {
        // SAFETY: zeros are a valid value of the structure.
        let mut mr: ibv_mr = unsafe { std::mem::zeroed() };
        mr.addr = std::ptr::without_provenance_mut(WANTED.address);
        (mr.length, mr.lkey) = (WANTED.length, WANTED.head.lkey);
        let mut handle = Handle {
            head: WANTED.head,
            rest: [0; 84],
            mr: &raw const mr,
        };
        assert_eq!(offset_of!(Handle, mr), 96);
        change(&mut handle, &mut mr);
        let shown = Shown {
            at: AtomicU16::new(96),
            tries: AtomicU16::new(0),
        };
        let memh: MemHandle = (&raw mut handle).cast();
        // SAFETY: the handle is live, and its registration is at the offset.
        assert_eq!(unsafe { shown.memory(memh) }, expect);
        // SAFETY: the handle is live, and no offset is read.
        assert_eq!(unsafe { Shown::default().memory(memh) }, None);
    }

    #[test]
    fn a_handle_shows_the_memory_of_its_registration() {
        let memory = Memory {
            address: WANTED.address,
            length: WANTED.length,
            lkey: WANTED.head.lkey,
        };
        check_shown(|_, _| (), Some(memory));
        // That of a device's buffer contains an offset in place of the address: it is recorded.
        let offset = Memory {
            address: 0,
            ..memory
        };
        check_shown(|_, mr| mr.addr = std::ptr::null_mut(), Some(offset));
        check_shown(|_, mr| mr.lkey += 1, None);
        check_shown(|handle, _| handle.mr = std::ptr::null(), None);
        check_shown(
            |handle, _| handle.head.flags |= memh_flags::MULTITHREADED,
            None,
        );
    }

    #[test]
    fn memory_contains_its_ranges() {
        let memory = Memory {
            address: 0x1000,
            length: 0x100,
            lkey: 1,
        };
        for (range, expect) in [
            ((0x1000, 0x100), true),
            ((0x1080, 0x80), true),
            ((0x1080, 0x81), false),
            ((0xfff, 1), false),
            ((0x1101, 0), false),
            ((0x1000, usize::MAX), false),
        ] {
            assert_eq!(memory.has(range), expect, "{range:x?}");
        }
    }

    #[test]
    fn a_key_is_packed_as_ucx_packs_it() {
        assert_eq!(packed(0x4101, INVALID_MKEY), 0xffff_ffff_0000_4101);
    }
}
