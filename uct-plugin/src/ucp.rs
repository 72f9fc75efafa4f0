//! UCP's import cache, which is above the memory-domain operations. The library gives it a limit
//! and identifies the exporter of keys that do not name it.
//!
//! UCP caches imports in one registration cache per exporter, without a limit, until its context
//! ends. It therefore never releases an import, and every alias stays in use. UCP calls the
//! functions of that cache, and a function that parses an exported handle, through slots that the
//! loader fills by name. This module writes functions of this library into the slots. Each copy of
//! UCX gets its own set of functions, which call that copy's own functions:
//!
//! | slot | action |
//! |---|---|
//! | `ucs_rcache_create` | limits an import cache: UCX itself then releases idle imports |
//! | `ucs_rcache_destroy` | removes the record of the cache |
//! | `ucp_memh_exported_unpack` | records exporter and export of the thread's current import |
//!
//! In a UCX with assertions, two more slots prevent the failure of an assertion about imports:
//!
//! | slot | action |
//! |---|---|
//! | `ucs_rcache_get` | records the export of a region in an import cache |
//! | `ucs_pgtable_lookup` | hides a region of an older export that is still in use |
//!
//! `ucp_memh_exported_unpack` is a function of libucp itself. A libucp that was linked with
//! `-Bsymbolic-functions` has no slot for it. `ucs_rcache_get` then records the exporter of the
//! import cache, which UCP calls before it attaches the keys, and `ucs_pgtable_lookup` hides each
//! region that is still in use.
//!
//! If a check fails, UCX keeps its behaviour and one line describes the consequence.

mod caches;
mod copies;
mod hooks;
mod rcache;
mod wire;

use std::ffi::{CStr, c_uint, c_void};
use std::ops::RangeInclusive;
use std::sync::Mutex;

use crate::calls::{self, Slot};
use crate::config::{self, UcpHooks};
use crate::module::Module;
use crate::original::Object;
use crate::{forked, log};
pub(crate) use caches::{exporter_of, exporters};
use hooks::{COPIES_MAX, Originals, UnpackFn};
use rcache::Params;

/// The text of UCP's assertion about imports, in a UCX with assertions.
const ASSERTION: &[u8] = b"This may indicate that exported memory handle was destroyed";

/// Reason why UCP's import cache is not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Refusal {
    #[error("{0} is not called through a slot, or was not found")]
    NoSlot(&'static str),
    #[error("the slot of {0} points elsewhere")]
    Taken(&'static str),
    #[error("the parameters of ucs_rcache_create have an unknown layout")]
    Params,
    #[error("the limit of {COPIES_MAX} copies of UCX is reached")]
    TooMany,
}

/// Redirects the slots of the UCP above this module, unless that is done or there is none.
pub(crate) fn look_at(object: &'static Object) {
    static SEEN: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    let Some(mut seen) = forked::lock(&SEEN) else {
        return;
    };
    for library in calls::objects("libucp") {
        if seen.contains(&library.base) {
            continue;
        }
        let Some(module) = Module::loaded(&library.path) else {
            continue;
        };
        // The libucp of another copy of UCX has another cache.
        let create = module.symbol(CREATE);
        if create.is_none() || create != object.symbol(CREATE) {
            continue;
        }
        seen.push(library.base);
        let path = library.path.to_string_lossy();
        if !is_wanted(config::get().ucp_hooks, version_of(&module)) {
            log::debug!("{path} keeps its own import cache without a limit: UCX_XGVMI_UCP_HOOKS");
            continue;
        }
        match stand_in(&library, &module) {
            Ok(done) => log::debug!("{path} calls this library for its import cache{done}"),
            Err(refusal) => {
                log::diag!("{path} keeps its own import cache without a limit: {refusal}")
            }
        }
    }
}

const CREATE: &CStr = c"ucs_rcache_create";

/// Versions of UCX in which every entry of the test matrix passes with the calls redirected.
const TESTED: RangeInclusive<(c_uint, c_uint)> = (1, 18)..=(1, 23);

/// Major and minor number of the version that this copy of UCP reports.
fn version_of(module: &Module) -> Option<(c_uint, c_uint)> {
    type VersionFn = unsafe extern "C" fn(*mut c_uint, *mut c_uint, *mut c_uint);
    let function = module.symbol(c"ucp_get_version")?.as_ptr();
    // SAFETY: UCX's public function of that name has this type.
    let function = unsafe { std::mem::transmute::<*mut c_void, VersionFn>(function) };
    let (mut major, mut minor, mut release) = (0, 0, 0);
    // SAFETY: the function writes its three results.
    unsafe { function(&raw mut major, &raw mut minor, &raw mut release) };
    Some((major, minor))
}

/// True if the library redirects the calls of a UCP of this version.
fn is_wanted(hooks: UcpHooks, version: Option<(c_uint, c_uint)>) -> bool {
    match hooks {
        UcpHooks::Tested => version.is_some_and(|version| TESTED.contains(&version)),
        UcpHooks::Any => true,
        UcpHooks::None => false,
    }
}

/// Writes the functions and returns a description of the additional ones.
fn stand_in(library: &calls::Object, module: &Module) -> Result<&'static str, Refusal> {
    static COPIES: Mutex<usize> = Mutex::new(0);
    let create = CallSlot::find(library, module, CREATE, "ucs_rcache_create")?;
    let destroy = CallSlot::find(library, module, c"ucs_rcache_destroy", "ucs_rcache_destroy")?;
    let unpack = c"ucp_memh_exported_unpack";
    let unpack = match CallSlot::find(library, module, unpack, "ucp_memh_exported_unpack") {
        Ok(slot) => Some(slot),
        Err(Refusal::NoSlot(_)) => None,
        Err(refusal) => return Err(refusal),
    };
    let defaults = c"ucs_rcache_set_default_params";
    let defaults = module.symbol(defaults).ok_or(Refusal::Params)?.as_ptr();
    // SAFETY: UCX's function of that name has this type.
    let defaults = unsafe { std::mem::transmute::<*mut c_void, rcache::DefaultsFn>(defaults) };
    if !Params::is_as_expected(defaults) {
        return Err(Refusal::Params);
    }
    let is_asserting = library.holds(ASSERTION);
    let get = match is_asserting || unpack.is_none() {
        true => Some(CallSlot::find(
            library,
            module,
            c"ucs_rcache_get",
            "ucs_rcache_get",
        )?),
        false => None,
    };
    let mut asserting = None;
    if is_asserting {
        let lookup = c"ucs_pgtable_lookup";
        let lookup = CallSlot::find(library, module, lookup, "ucs_pgtable_lookup")?;
        let invalidate = module.symbol(c"ucs_rcache_region_invalidate");
        let invalidate = invalidate.ok_or(Refusal::NoSlot("ucs_rcache_region_invalidate"))?;
        asserting = Some((lookup, invalidate.as_ptr()));
    }
    let originals = Originals {
        // SAFETY: UCX's function of that name has this type.
        create: unsafe { std::mem::transmute::<*mut c_void, rcache::CreateFn>(create.original) },
        // SAFETY: as above.
        destroy: unsafe { std::mem::transmute::<*mut c_void, rcache::DestroyFn>(destroy.original) },
        unpack: unpack.map(|unpack| {
            // SAFETY: as above.
            unsafe { std::mem::transmute::<*mut c_void, UnpackFn>(unpack.original) }
        }),
        get: get.map(|get| {
            // SAFETY: as above.
            unsafe { std::mem::transmute::<*mut c_void, rcache::GetFn>(get.original) }
        }),
        asserting: asserting.map(|(lookup, invalidate)| hooks::Asserting {
            // SAFETY: as above.
            lookup: unsafe {
                std::mem::transmute::<*mut c_void, rcache::LookupFn>(lookup.original)
            },
            // SAFETY: as above.
            invalidate: unsafe {
                std::mem::transmute::<*mut c_void, rcache::InvalidateFn>(invalidate)
            },
        }),
    };
    let copies = forked::lock(&COPIES);
    let mut copies = copies.ok_or(Refusal::TooMany)?;
    let entries = hooks::take(*copies, originals).ok_or(Refusal::TooMany)?;
    *copies += 1;
    // The release hook comes first, so that nothing is recorded without being released.
    let mut places = vec![
        (destroy.slot, entries.destroy),
        (create.slot, entries.create),
    ];
    places.extend(unpack.map(|unpack| (unpack.slot, entries.unpack)));
    places.extend(get.map(|get| (get.slot, entries.get)));
    places.extend(asserting.map(|(lookup, _)| (lookup.slot, entries.lookup)));
    for (slot, entry) in places {
        if !slot.set(entry) {
            // The functions installed there before are independent.
            return Err(Refusal::Taken("a function of its own"));
        }
    }
    Ok(match (is_asserting, unpack) {
        (false, Some(_)) => "",
        (true, Some(_)) => ", and for its assertion about them",
        (false, None) => "; its parser of exported handles is bound inside",
        (true, None) => {
            ", and for its assertion about them; its parser of exported handles is bound inside"
        }
    })
}

/// A slot and its function.
#[derive(Clone, Copy)]
struct CallSlot {
    slot: Slot,
    original: *mut c_void,
}

impl CallSlot {
    fn find(
        library: &calls::Object,
        module: &Module,
        symbol: &CStr,
        name: &'static str,
    ) -> Result<Self, Refusal> {
        let original = module.symbol(symbol).ok_or(Refusal::NoSlot(name))?.as_ptr();
        let slot = library.slot(symbol).ok_or(Refusal::NoSlot(name))?;
        // Before the first call the slot points to a stub of the library itself.
        let found = slot.get();
        if found != original && !library.contains(found.addr()) {
            return Err(Refusal::Taken(name));
        }
        Ok(Self { slot, original })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_redirected_in_tested_versions_unless_the_option_says_otherwise() {
        for (version, expect) in [
            (Some((1, 17)), false),
            (Some((1, 18)), true),
            (Some((1, 23)), true),
            (Some((1, 24)), false),
            (Some((2, 0)), false),
            (None, false),
        ] {
            assert_eq!(is_wanted(UcpHooks::Tested, version), expect, "{version:?}");
            assert!(is_wanted(UcpHooks::Any, version));
            assert!(!is_wanted(UcpHooks::None, version));
        }
    }
}
