//! Two ways of redirecting UCX's calls, preload and plugin, and the constructor's part in them.
//!
//! Preload: the library defines UCX's names, so the loader fills UCX's operations table
//! with the functions of this library. Plugin: the library is loaded after UCX's mlx5
//! module and writes its functions into the table. If that UCX has a registration table for them,
//! see [`crate::key_provider`].

use std::ffi::{CStr, CString, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::abi::slot::{self, Functions};
use crate::check::{self, Refusal, Table};
use crate::key_provider::{self, Registration};
use crate::module::{self, Module};
use crate::original::{self, Originals};
use crate::{config, log, panic};

/// Prefix of the file name of UCX's mlx5 module in all known packagings.
const MODULE_FILE: &[u8] = b"libuct_ib_mlx5.so";

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
        Ok(Table::Untouched(ops)) => match key_provider::register(module) {
            Registration::Done => {
                log::debug!("{path} calls this library through its key-provider table");
                true
            }
            Registration::Taken => {
                log::debug!("{path} already has another key provider");
                false
            }
            Registration::Unknown => {
                patch(ops, ours);
                log::debug!("{path} calls this library through its patched operations table");
                true
            }
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

/// Writes this library's functions into the table. Each store is atomic. A concurrent call uses
/// either function, and both are correct: the new function passes on objects that the old one
/// created.
fn patch(ops: *mut *mut c_void, ours: &Functions) {
    for (slot, entry) in slot::ALL.iter().zip(ours) {
        // SAFETY: `check::table` has read the same slots of the same table and found them filled;
        // UCX keeps the table in writable memory.
        let slot = unsafe { AtomicPtr::from_ptr(ops.add(slot.index)) };
        slot.store(*entry, Ordering::Release);
    }
}

/// Runs when the library is loaded. Without UCX in the process it does nothing. `ours` are this
/// library's functions.
pub(crate) fn look_around(ours: &Functions) {
    config::announce();
    for path in loaded_modules() {
        // Known objects are already handled.
        let _known = original::adopt(
            &path,
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
