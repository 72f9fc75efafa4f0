//! Layout and checks of UCX's registration cache. UCP creates one such cache for each exporter that
//! it imports from.
//!
//! Line numbers are of UCX v1.20.1; structures and functions are the same in v1.18.1, v1.19.0,
//! v1.20.1, v1.21.0 and the sources of 1.23.

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::abi::UcsStatus;

/// `ucs_rcache_create` (`src/ucs/memory/rcache.h:218`).
pub(super) type CreateFn =
    unsafe extern "C" fn(*const Params, *const c_char, *mut c_void, *mut *mut c_void) -> UcsStatus;
/// `ucs_rcache_destroy` (`src/ucs/memory/rcache.h:227`).
pub(super) type DestroyFn = unsafe extern "C" fn(*mut c_void);
/// `ucs_rcache_set_default_params` (`src/ucs/memory/rcache.h:281`).
pub(super) type DefaultsFn = unsafe extern "C" fn(*mut c_void);
/// `ucs_rcache_get` (`src/ucs/memory/rcache.h:245`).
pub(super) type GetFn = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    usize,
    usize,
    c_int,
    *mut c_void,
    *mut *mut Region,
) -> UcsStatus;
/// `ucs_rcache_region_invalidate` (`src/ucs/memory/rcache.h:273`).
pub(super) type InvalidateFn =
    unsafe extern "C" fn(*mut c_void, *mut Region, Option<ReleasedFn>, *mut c_void);
/// `ucs_rcache_invalidate_comp_func_t` (`src/ucs/memory/rcache.h:76`).
pub(super) type ReleasedFn = unsafe extern "C" fn(*mut c_void);
/// `ucs_pgtable_lookup` (`src/ucs/datastruct/pgtable.h:196`). The table of a cache contains its
/// regions.
pub(super) type LookupFn = unsafe extern "C" fn(*const c_void, usize) -> *mut Region;

/// `UCS_MEMUNITS_INF` (`src/ucs/sys/string.h:26`).
const NO_LIMIT: usize = usize::MAX;
/// Default priority of memory events of a cache.
const EVENT_PRIORITY: c_int = 1000;
/// Size of the largest region of any cache: UCP's has a word for each of 64 memory domains.
const REGION_BYTES_MAX: usize = 4096;

/// `struct ucs_rcache_params` (`src/ucs/memory/rcache.h:139`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Params {
    region_struct_size: usize,
    ucm_events: c_int,
    ucm_event_priority: c_int,
    ops: *const c_void,
    /// UCP's context.
    pub(super) context: *mut c_void,
    flags: c_int,
    max_regions: usize,
    max_size: usize,
    max_unreleased: usize,
}

impl Params {
    /// True if the cache's own function writes its defaults exactly as this structure expects:
    /// every field at its offset, and no byte more.
    pub(super) fn is_as_expected(defaults: DefaultsFn) -> bool {
        const MARK: u8 = 0xa5;
        const WORDS: usize = 64;
        const BYTES: usize = size_of::<Params>();
        let mut buffer = [u64::from_ne_bytes([MARK; 8]); WORDS];
        // SAFETY: the buffer is several times as long as the structure in any version.
        unsafe { defaults(buffer.as_mut_ptr().cast()) };
        // SAFETY: the buffer is aligned and longer, and any bytes are valid for these fields.
        let found = unsafe { buffer.as_ptr().cast::<Self>().read() };
        let rest_is_untouched = buffer[BYTES / 8..]
            .iter()
            .all(|word| word.to_ne_bytes() == [MARK; 8]);
        rest_is_untouched
            && (size_of::<Region>()..=REGION_BYTES_MAX).contains(&found.region_struct_size)
            && (found.ucm_events, found.ucm_event_priority) == (0, EVENT_PRIORITY)
            && found.ops.is_null()
            && found.context.is_null()
            && found.flags == 0
            && [found.max_regions, found.max_size, found.max_unreleased] == [NO_LIMIT; 3]
    }

    /// The same parameters with a limit for the regions, if they belong to an import cache, which
    /// has none.
    pub(super) fn limited(&self, regions_max: usize) -> Option<Self> {
        let is_of_imports = (size_of::<Region>()..=REGION_BYTES_MAX)
            .contains(&self.region_struct_size)
            && self.ucm_events == 0
            && !self.ops.is_null()
            && !self.context.is_null()
            && [self.max_regions, self.max_size, self.max_unreleased] == [NO_LIMIT; 3];
        is_of_imports.then_some(Self {
            max_regions: regions_max,
            ..*self
        })
    }
}

/// `struct ucs_rcache_region` (`src/ucs/memory/rcache.h:166`): the head of UCP's own handle.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Region {
    start: usize,
    end: usize,
    lists: [[usize; 2]; 3],
    alignment: usize,
    refcount: u32,
    status: i8,
    prot: u8,
    flags: u8,
    lru_flags: u8,
    private: u64,
}

/// `UCS_RCACHE_REGION_FLAG_REGISTERED` and `UCS_RCACHE_REGION_FLAG_PGTABLE`.
const LIVE: u8 = 0b11;

impl Region {
    /// True if it has the form of a region that a cache has just returned for the memory.
    pub(super) fn is_of(&self, address: usize, length: usize) -> bool {
        self.start <= address
            && address
                .checked_add(length)
                .is_some_and(|end| end <= self.end)
            && self.refcount >= 2
            && self.status == 0
            && c_int::from(self.prot) == libc::PROT_READ | libc::PROT_WRITE
            && self.flags == LIVE
            && self.lru_flags & !1 == 0
    }

    /// True if there is a holder other than the cache itself.
    pub(super) fn is_held(&self) -> bool {
        self.flags == LIVE && self.refcount > 1
    }
}

/// The exporter of the cache with this name, `ucp_import_rcache[0x...]`
/// (`src/ucp/core/ucp_mm.c:1908`).
pub(super) fn exporter_of(name: &CStr) -> Option<u64> {
    let name = name.to_str().ok()?;
    let number = name
        .strip_prefix("ucp_import_rcache[0x")?
        .strip_suffix(']')?;
    u64::from_str_radix(number, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: Params = Params {
        region_struct_size: size_of::<Region>(),
        ucm_events: 0,
        ucm_event_priority: EVENT_PRIORITY,
        ops: std::ptr::null(),
        context: std::ptr::null_mut(),
        flags: 0,
        max_regions: NO_LIMIT,
        max_size: NO_LIMIT,
        max_unreleased: NO_LIMIT,
    };

    /// # Safety
    /// `params` is writable for [`Params`].
    unsafe extern "C" fn as_known(params: *mut c_void) {
        // SAFETY: the test provides enough space.
        unsafe { params.cast::<Params>().write(DEFAULT) };
    }

    /// # Safety
    /// `params` is writable for [`Params`] and a 32-bit number.
    unsafe extern "C" fn with_a_field_more(params: *mut c_void) {
        // SAFETY: the test provides enough space.
        unsafe { params.cast::<(Params, u32)>().write((DEFAULT, 0)) };
    }

    /// # Safety
    /// `params` is writable for [`Params`].
    unsafe extern "C" fn with_another_order(params: *mut c_void) {
        let other = Params {
            ucm_event_priority: 0,
            ucm_events: EVENT_PRIORITY,
            ..DEFAULT
        };
        // SAFETY: the test provides enough space.
        unsafe { params.cast::<Params>().write(other) };
    }

    #[test]
    fn parameters_are_known_by_their_defaults() {
        assert!(Params::is_as_expected(as_known));
        assert!(!Params::is_as_expected(with_a_field_more));
        assert!(!Params::is_as_expected(with_another_order));
    }

    #[test]
    fn only_a_cache_without_limits_gets_one() {
        let mut word = 0_u64;
        let imports = Params {
            ops: (&raw const word).cast(),
            context: (&raw mut word).cast(),
            ..DEFAULT
        };
        let limited = imports.limited(7).map(|params| params.max_regions);
        assert_eq!(limited, Some(7));
        for other in [
            DEFAULT,
            Params {
                max_size: 1 << 30,
                ..imports
            },
            Params {
                ucm_events: 1,
                ..imports
            },
            Params {
                region_struct_size: 1,
                ..imports
            },
        ] {
            assert!(other.limited(7).is_none(), "{other:?}");
        }
    }

    #[test]
    fn a_cache_is_known_by_its_name() {
        for (name, expect) in [
            (
                c"ucp_import_rcache[0xdead00000000beef]",
                Some(0xdead_0000_0000_beef),
            ),
            (c"ucp_import_rcache[0x0]", Some(0)),
            (c"ucp_import_rcache[0x]", None),
            (c"ucp_import_rcache[0x1", None),
            (c"ucp_import_rcache", None),
            (c"ucp_rcache", None),
        ] {
            assert_eq!(exporter_of(name), expect, "{name:?}");
        }
    }
}
