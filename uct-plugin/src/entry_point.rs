//! Two ways of redirecting UCX's calls, preload and plugin, and the constructor's part in them.
//!
//! Preload: the library defines UCX's names, so the loader fills UCX's operations table
//! with the functions of this library. In a UCX that was linked with `-Bsymbolic-functions` the
//! table holds UCX's own functions. The library then writes its functions into the table when UCX
//! opens a memory domain ([`crate::md_open`]). Plugin: the library is loaded after UCX's mlx5
//! module and writes its functions into the table. If that UCX has a registration table for them,
//! see [`crate::key_provider`].

use std::ffi::{CStr, CString, c_int, c_void};

use crate::abi::slot::{self, Functions};
use crate::calls;
use crate::check::{self, Refusal, Table};
use crate::first::First;
use crate::key_provider::{self, Registration};
use crate::module::{self, Module};
use crate::original::{self, Originals};
use crate::{arena, config, log, panic};

/// Prefix of the file name of UCX's mlx5 module in all known packagings.
const MODULE_FILE: &[u8] = b"libuct_ib_mlx5.so";

/// Prefix of the file names of UCX's InfiniBand modules.
const INFINIBAND_FILE: &[u8] = b"libuct_ib";

/// UCX's function that opens a memory domain. libucp calls it through a slot.
const MD_OPEN: &CStr = c"uct_md_open";

/// Prefix of this library's file name.
const OWN_FILE: &[u8] = b"libuct_ib_mlx5_xgvmi.so";

/// Maximum number of UCX copies that the constructor handles. Known processes have at most a few.
const MODULES_MAX: usize = 8;

/// Redirects UCX's calls to this library, if they are not redirected yet and all checks pass.
/// Returns whether they are redirected; `None` if the module's functions are those of this library
/// itself, which would lead to infinite recursion. `ours` are this library's functions.
pub(crate) fn open(
    module: &Module,
    originals: &Originals,
    path: &CStr,
    ours: &Functions,
) -> Option<bool> {
    if originals.addresses().iter().any(|one| ours.contains(one)) {
        return None;
    }
    Some(redirect(module, originals, path, ours))
}

fn redirect(module: &Module, originals: &Originals, path: &CStr, ours: &Functions) -> bool {
    panic::silence();
    log::set_destination(module);
    let path = path.to_string_lossy();
    config::load(module);
    if !config::get().enable {
        log::debug!("disabled, {path} is unchanged");
        return false;
    }
    match check::table(module, originals, ours) {
        Ok(Table::Ours) => {
            log::debug!("{path} calls this library by name");
            true
        }
        // That copy gets UCX's call to open the memory domain, and programs find its functions.
        Ok(Table::Untouched(_)) if is_another_copy_preloaded() => {
            log::debug!("{path} is served by another copy of this library");
            false
        }
        Ok(Table::Untouched(ops)) => match key_provider::register(module) {
            Registration::Done => {
                log::debug!("{path} calls this library through its key-provider table");
                true
            }
            Registration::Taken => {
                log::debug!("{path} already has another key provider");
                false
            }
            Registration::Unknown => match patch(ops, originals, ours) {
                Ok(()) => {
                    arena::table_is_patched();
                    log::debug!("{path} calls this library through its patched operations table");
                    true
                }
                Err(refusal) => {
                    log::warning!("not used with {path}: {refusal}");
                    false
                }
            },
        },
        Err(Refusal::Slot { found, .. }) if is_other_copy(found) => {
            log::debug!("{path} is served by another copy of this library");
            false
        }
        Err(refusal) => {
            log::warning!("not used with {path}: {refusal}");
            false
        }
    }
}

/// True if the address is in another file that contains this library, for example if one file is
/// preloaded and another one is in UCX's plugin directory.
fn is_other_copy(address: usize) -> bool {
    module::file_of(std::ptr::without_provenance(address))
        .is_some_and(|(_base, path)| file_name(&path).starts_with(OWN_FILE))
}

/// True if the loader finds the functions of another file that contains this library.
fn is_another_copy_preloaded() -> bool {
    let base = |address: *const c_void| module::file_of(address).map(|(base, _path)| base);
    let own = base(is_another_copy_preloaded as *const c_void);
    module::global(MD_OPEN)
        .is_some_and(|found| base(found.as_ptr()) != own && is_other_copy(found.as_ptr().addr()))
}

/// Writes this library's functions into the table. Each store is atomic. A concurrent call uses
/// either function, and both are correct: the new function passes on objects that the old one
/// created.
fn patch(ops: *mut *mut c_void, originals: &Originals, ours: &Functions) -> Result<(), Refusal> {
    let object = calls::object_at(ops.cast()).ok_or(Refusal::ReadOnly)?;
    let place = |slot: &slot::Slot| object.place(ops.wrapping_add(slot.index));
    let places: Option<Vec<_>> = slot::ALL.iter().map(place).collect();
    let places = places.ok_or(Refusal::ReadOnly)?;
    for (at, (place, entry)) in places.iter().zip(ours).enumerate() {
        if !place.set(*entry) {
            let written = places.iter().zip(originals.addresses()).take(at);
            // A slot that was writable a moment ago stays writable.
            let _all = written.fold(true, |all, (place, original)| place.set(original) && all);
            return Err(Refusal::ReadOnly);
        }
    }
    Ok(())
}

/// Runs when the library is loaded. Without UCX in the process it does nothing. `ours` are this
/// library's functions.
pub(crate) fn look_around(ours: &Functions) {
    config::announce();
    adopt_all(&loaded_modules(), ours);
}

/// Runs after UCX has opened a memory domain of the component, whose modules are loaded then.
pub(crate) fn opened(component: *const c_void, ours: &Functions) {
    let modules = loaded_modules();
    adopt_all(&modules, ours);
    let is_infiniband = || {
        let (_base, path) = module::file_of(component)?;
        Some(file_name(&path).starts_with(INFINIBAND_FILE))
    };
    if modules.is_empty() && is_infiniband() == Some(true) && !is_switched_off() {
        static ONCE: First = First::new();
        if ONCE.is_this() {
            log::warning!(
                "nothing is served: this UCX has no module libuct_ib_mlx5.so; install UCX's \
                 InfiniBand package with mlx5 support"
            );
        }
    }
}

/// Runs when the process ends. Writes a line if UCX's mlx5 module was loaded and its calls could
/// not reach this library.
pub(crate) fn tell_if_unused(md_open: *mut c_void) {
    if loaded_modules().is_empty() || original::is_any_known() || is_switched_off() {
        return;
    }
    let is_bypassed = |library: &calls::Object| {
        let found = library.slot(MD_OPEN)?.get();
        // Before the first call the slot points to a stub of the library itself.
        Some(found != md_open && !library.contains(found.addr()))
    };
    let libraries = calls::objects("libucp");
    let slots: Vec<bool> = libraries.iter().filter_map(is_bypassed).collect();
    let is_unused = match slots.as_slice() {
        // The program calls libuct itself.
        [] => module::global(MD_OPEN).is_none_or(|found| found.as_ptr() != md_open),
        slots => slots.contains(&true),
    };
    if is_unused {
        log::warning!(
            "nothing was served: UCX's calls do not reach this library; load it by LD_PRELOAD (UCX \
             1.18 and later) or UCX_PLUGIN_PATH (1.22 and later), see `xgvmi doctor`"
        );
    }
}

/// True if the user switched the library off in the environment. UCX's option parser may be
/// missing.
fn is_switched_off() -> bool {
    let value = std::env::var("UCX_XGVMI_ENABLE").unwrap_or_default();
    !config::get().enable || ["n", "no", "off", "0"].contains(&value.to_lowercase().as_str())
}

fn adopt_all(modules: &[CString], ours: &Functions) {
    for path in modules {
        // Known objects are already handled.
        let _known = original::adopt(
            path,
            |module: &Module, originals: &Originals, path: &CStr| {
                open(module, originals, path, ours)
            },
        );
    }
}

/// Paths of the loaded copies of UCX's mlx5 module.
fn loaded_modules() -> Vec<CString> {
    let mut found = Vec::new();
    // SAFETY: the callback gets the vector's address and uses it only during this call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut found).cast()) };
    found
}

/// One loaded object. The loader holds its lock, so nothing is opened here.
///
/// # Safety
/// Only `dl_iterate_phdr` may call it: `info` is valid during the call, and the last argument is the vector that was passed on.
unsafe extern "C" fn visit(
    info: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    found: *mut c_void,
) -> c_int {
    // SAFETY: the loader passes a filled structure.
    let name = unsafe { (*info).dlpi_name };
    if name.is_null() {
        return 0;
    }
    // SAFETY: the name is a string of the loader.
    let name = unsafe { CStr::from_ptr(name) };
    if !is_module(name) {
        return 0;
    }
    // SAFETY: it is the vector of `loaded_modules`, and no other code uses it now.
    let found = unsafe { &mut *found.cast::<Vec<CString>>() };
    found.push(name.to_owned());
    c_int::from(found.len() == MODULES_MAX)
}

fn is_module(path: &CStr) -> bool {
    file_name(path).starts_with(MODULE_FILE)
}

fn file_name(path: &CStr) -> &[u8] {
    let path = path.to_bytes();
    path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_module_is_known_by_its_file_name() {
        for (path, expect) in [
            (c"/usr/lib/ucx/libuct_ib_mlx5.so.0", true),
            (c"libuct_ib_mlx5.so.0.0.0", true),
            (c"/opt/libuct_ib_mlx5.so", true),
            (c"/usr/lib/ucx/libuct_ib_mlx5_xgvmi.so.0", false),
            (c"/libuct_ib_mlx5.so/libuct_ib.so.0", false),
            (c"", false),
        ] {
            assert_eq!(is_module(path), expect, "{path:?}");
        }
    }
}
