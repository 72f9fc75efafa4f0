//! Checks of the running process before the library relies on UCX's structures. A failed check
//! costs one log line and leaves UCX unchanged.

use std::ffi::c_void;
use std::mem::offset_of;
use std::ptr::NonNull;

use xgvmi_pool::Lkey;

use crate::abi::{INVALID_MKEY, MdHandle, MdHead, MdOpsEntry, md_attr, slot};
use crate::module::Module;
use crate::original::Originals;

/// Reason why the library is inactive.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Refusal {
    /// The module has no visible operations table.
    #[error("the mlx5 module has no operations table named uct_ib_md_ops_devx_entry")]
    NoTable,
    /// A slot contains neither UCX's function nor ours.
    #[error("slot {index} of the operations table holds {found:#x}, not {name}")]
    Slot {
        /// Index of the slot.
        index: usize,
        /// UCX's function for that slot.
        name: &'static str,
        /// The address in the slot.
        found: usize,
    },
    /// Some slots point to this library and some to UCX.
    #[error("only {ours} of {all} slots of the operations table point to this library")]
    Mixed {
        /// Slots that point to this library.
        ours: usize,
        /// Total number of slots.
        all: usize,
    },
    /// The table cannot be changed.
    #[error("the operations table is in memory that cannot be written")]
    ReadOnly,
    /// The fields of the memory domain are not at their expected offsets.
    #[error("the protection domain of memory domain {md:#x} is not of its context")]
    Md {
        /// The memory domain.
        md: usize,
    },
    /// Exported keys have an unknown format.
    #[error("exported keys have {bytes} bytes instead of 6 or 14")]
    KeySize {
        /// Size that UCX reports.
        bytes: usize,
    },
    /// The fields of a memory handle are not at their expected offsets.
    #[error("a memory handle seems to have lkey {lkey:#x} and rkey {rkey:#x}")]
    Memh {
        /// The value read for the local key.
        lkey: u32,
        /// The value read for the remote key.
        rkey: u32,
    },
}

/// Target of mlx5's operations table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Table {
    /// The functions of this library, because the loader found them first.
    Ours,
    /// UCX's own functions.
    Untouched(*mut *mut c_void),
}

/// The operations table of the module, if it passes the checks.
pub(crate) fn table(
    module: &Module,
    originals: &Originals,
    ours: &[*mut c_void; 6],
) -> Result<Table, Refusal> {
    let entry = module
        .symbol(c"uct_ib_md_ops_devx_entry")
        .ok_or(Refusal::NoTable)?;
    let entry = entry.as_ptr().cast::<MdOpsEntry>();
    // Before 1.18 the object of that name had two words instead of four, so the bytes read here may
    // be anything. They are read through the kernel, and so is the memory that they point to.
    let place = entry.wrapping_byte_add(offset_of!(MdOpsEntry, ops));
    let ops = read_word(place.cast()).ok_or(Refusal::NoTable)?;
    let ops = std::ptr::with_exposed_provenance_mut::<*mut c_void>(ops);
    if ops.is_null() || !ops.is_aligned() {
        return Err(Refusal::NoTable);
    }
    let mut slots = [std::ptr::null_mut(); 6];
    for (found, slot) in slots.iter_mut().zip(slot::ALL) {
        let word = read_word(ops.wrapping_add(slot.index).cast()).ok_or(Refusal::NoTable)?;
        *found = std::ptr::with_exposed_provenance_mut(word);
    }
    match judge(&slots, &originals.addresses(), ours)? {
        Slots::Ours => Ok(Table::Ours),
        Slots::Untouched => Ok(Table::Untouched(ops)),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Slots {
    Ours,
    Untouched,
}

fn judge(
    slots: &[*mut c_void; 6],
    originals: &[*mut c_void; 6],
    ours: &[*mut c_void; 6],
) -> Result<Slots, Refusal> {
    let mut lead_here = 0;
    for (at, slot) in slot::ALL.iter().enumerate() {
        if slots[at] == ours[at] {
            lead_here += 1;
        } else if slots[at] != originals[at] {
            return Err(Refusal::Slot {
                index: slot.index,
                name: slot.name.to_str().unwrap_or("?"),
                found: slots[at].addr(),
            });
        }
    }
    match lead_here {
        0 => Ok(Slots::Untouched),
        6 => Ok(Slots::Ours),
        ours => Err(Refusal::Mixed {
            ours,
            all: slot::ALL.len(),
        }),
    }
}

/// Format of an exported key, equal for all memory domains of one UCX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyForm {
    /// Key and function: UCX 1.18.
    Short,
    /// Key, function and number of the exporter: UCX 1.19 and later.
    Long,
}

impl KeyForm {
    /// Bytes of a key.
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Self::Short => 6,
            Self::Long => 14,
        }
    }
}

/// Facts about a memory domain that passed its checks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MdFacts {
    /// libibverbs' protection domain.
    pub(crate) pd: NonNull<c_void>,
    /// libibverbs' context.
    pub(crate) context: NonNull<c_void>,
    /// Format of its exported keys.
    pub(crate) key_form: KeyForm,
    /// Its adapter.
    pub(crate) adapter: Adapter,
}

/// UCX's criterion for two memory domains of the same adapter and kind: the name of the component
/// and the adapter's number. The buffer is longer than both in any version, and padded with zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Adapter(pub(crate) [u8; Self::BYTES]);

impl Adapter {
    /// Number of compared bytes. Of UCX's 256 bytes, a dozen are in use.
    pub(crate) const BYTES: usize = 32;
}

const _: () = assert!(Adapter::BYTES <= md_attr::GLOBAL_ID_BYTES);

/// The memory domain's facts. `None` if its device cannot export keys, which is not an error.
///
/// # Safety
/// `md` must be an open memory domain of mlx5, and `attr` the attributes that its `md_query` has
/// just filled.
pub(crate) unsafe fn md(md: MdHandle, attr: *const c_void) -> Result<Option<MdFacts>, Refusal> {
    // SAFETY: the attributes extend beyond the offset, and contain a u64 there.
    let flags = unsafe { attr.byte_add(md_attr::FLAGS_OFFSET).cast::<u64>().read() };
    if flags & md_attr::FLAG_EXPORTED_MKEY == 0 {
        return Ok(None);
    }
    let size = md_attr::EXPORTED_MKEY_PACKED_SIZE_OFFSET;
    // SAFETY: the attributes extend beyond the offset, and contain a size_t there.
    let bytes = unsafe { attr.byte_add(size).cast::<usize>().read() };
    let key_form = match bytes {
        6 => KeyForm::Short,
        14 => KeyForm::Long,
        bytes => return Err(Refusal::KeySize { bytes }),
    };
    let id = md_attr::GLOBAL_ID_OFFSET;
    // SAFETY: the attributes extend beyond the offset, and contain at least this number of bytes
    // there.
    let id = unsafe { attr.byte_add(id).cast::<[u8; Adapter::BYTES]>().read() };
    let head = md.cast::<MdHead>();
    // SAFETY: a memory domain is far larger than its head.
    let (pd, context) = unsafe { ((*head).pd, (*head).context) };
    // The field is read through the kernel, which returns an error where a load would be fatal,
    // because `pd` may not be a pointer.
    match (NonNull::new(pd.cast()), NonNull::new(context)) {
        (Some(pd), Some(context)) if read_word(pd.as_ptr()) == Some(context.addr().get()) => {
            Ok(Some(MdFacts {
                pd,
                context,
                key_form,
                adapter: Adapter(id),
            }))
        }
        _ => Err(Refusal::Md { md: md.addr() }),
    }
}

/// The local key of registered memory. mlx5 uses one key for local and remote access, which
/// identifies the fields. Symmetric registrations have different keys and are not served.
#[inline(always)]
pub(crate) const fn lkey(lkey: u32, rkey: u32) -> Result<Lkey, Refusal> {
    let key = Lkey::from_raw(lkey);
    // Index 0 is the reserved key, and the key of all ones does not exist.
    if lkey == rkey && lkey >> 8 != 0 && lkey != INVALID_MKEY {
        Ok(key)
    } else {
        Err(Refusal::Memh { lkey, rkey })
    }
}

/// A word of this process's memory, or `None` if it is not mapped.
pub(crate) fn read_word(address: *const c_void) -> Option<usize> {
    let mut ends = [-1; 2];
    // SAFETY: the array has space for the two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return None;
    }
    let mut word = [0_u8; size_of::<usize>()];
    // SAFETY: the kernel reads the address and returns EFAULT if it cannot.
    let written = unsafe { libc::write(ends[1], address, word.len()) };
    // The pipe contains the written bytes and is private, so the read cannot block.
    let read = if usize::try_from(written) == Ok(word.len()) {
        // SAFETY: the array has the given length.
        unsafe { libc::read(ends[0], word.as_mut_ptr().cast(), word.len()) }
    } else {
        -1
    };
    for end in ends {
        // SAFETY: both descriptors are this function's own.
        unsafe { libc::close(end) };
    }
    (usize::try_from(read) == Ok(word.len())).then(|| usize::from_ne_bytes(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UCX: [usize; 6] = [1, 2, 3, 4, 5, 6];
    const OURS: [usize; 6] = [11, 12, 13, 14, 15, 16];

    fn pointers(addresses: [usize; 6]) -> [*mut c_void; 6] {
        addresses.map(std::ptr::without_provenance_mut)
    }

    #[track_caller]
    fn check(slots: [usize; 6], expect: Result<Slots, Refusal>) {
        assert_eq!(
            judge(&pointers(slots), &pointers(UCX), &pointers(OURS)),
            expect
        );
    }

    #[test]
    fn slots_lead_all_to_one_place() {
        check(UCX, Ok(Slots::Untouched));
        check(OURS, Ok(Slots::Ours));
    }

    #[test]
    fn slots_that_lead_elsewhere_are_refused() {
        let name = "uct_ib_mlx5_devx_mkey_pack";
        check(
            [1, 2, 3, 4, 99, 6],
            Err(Refusal::Slot {
                index: 8,
                name,
                found: 99,
            }),
        );
        check(
            [11, 12, 13, 14, 99, 16],
            Err(Refusal::Slot {
                index: 8,
                name,
                found: 99,
            }),
        );
        check([11, 2, 3, 4, 5, 6], Err(Refusal::Mixed { ours: 1, all: 6 }));
        // The right functions in the wrong order.
        let name = "uct_ib_mlx5_devx_md_close";
        check(
            [2, 1, 3, 4, 5, 6],
            Err(Refusal::Slot {
                index: 0,
                name,
                found: 2,
            }),
        );
    }

    #[test]
    fn a_key_of_memory_is_told_from_other_words() {
        for (lkey, rkey, expect) in [
            (0x4100, 0x4100, true),
            (0xffff_ff00, 0xffff_ff00, true),
            (0x4100, 0x4200, false),
            // An address, split in two; flags; zero; UCX's "no key".
            (0xf7fe_1000, 0x7fff, false),
            (0x13, 0x13, false),
            (0, 0, false),
            (u32::MAX, u32::MAX, false),
        ] {
            let found = super::lkey(lkey, rkey);
            assert_eq!(found.is_ok(), expect, "{lkey:#x} {rkey:#x}");
        }
    }

    #[test]
    fn a_word_is_read_only_where_there_is_one() {
        let word = 0x1234_5678_usize;
        assert_eq!(read_word((&raw const word).cast()), Some(word));
        assert_eq!(read_word(std::ptr::without_provenance(16)), None);
    }
}
