//! UCX's function that opens a memory domain, under UCX's own name. A preloaded library gets its
//! calls also if UCX was linked with `-Bsymbolic-functions`: libucp calls libuct, so the linker
//! cannot bind the call inside one library. The mlx5 module is loaded at that time, and UCX queries
//! the new memory domain next.

use std::ffi::{CStr, c_char, c_void};

use crate::abi::{MdHandle, UcsStatus};
use crate::module::{Module, file_of};
use crate::operations::{entries, lost};
use crate::panic::guard;
use crate::{allocator, entry_point, panic};

const NAME: &CStr = c"uct_md_open";

/// `uct_md_open` (`src/uct/base/uct_md.c:42`): component, name of the resource, configuration, and
/// target of the memory domain.
type MdOpenFn =
    unsafe extern "C" fn(*const c_void, *const c_char, *const c_void, *mut MdHandle) -> UcsStatus;

/// `uct_md_open` of UCX's libuct.
///
/// # Safety
/// The preconditions of UCX's function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uct_md_open(
    component: *const c_void,
    name: *const c_char,
    config: *const c_void,
    md: *mut MdHandle,
) -> UcsStatus {
    let Some(original) = original(component) else {
        return lost("uct_md_open");
    };
    // SAFETY: the arguments are UCX's.
    let status = unsafe { original(component, name, config, md) };
    if status.is_ok() && !allocator::is_short() && !panic::is_broken() {
        let _adopted = guard("uct_md_open", || entry_point::opened(component, &entries()));
    }
    status
}

/// The function of the copy of UCX that the component belongs to. A component is static data of
/// libuct or of one of its modules, which depend on libuct.
fn original(component: *const c_void) -> Option<MdOpenFn> {
    let of_component = || {
        let (_base, path) = file_of(component)?;
        Some(Module::loaded(&path)?.symbol(NAME)?.as_ptr())
    };
    let is_other = |found: &*mut c_void| !found.is_null() && *found != address();
    let found = of_component().filter(is_other).or_else(|| {
        // SAFETY: the name ends in a zero byte.
        let next = unsafe { libc::dlsym(libc::RTLD_NEXT, NAME.as_ptr()) };
        Some(next).filter(is_other)
    })?;
    // SAFETY: UCX's function of that name has this type.
    Some(unsafe { std::mem::transmute::<*mut c_void, MdOpenFn>(found) })
}

/// Address of the function of this library.
pub(crate) fn address() -> *mut c_void {
    uct_md_open as *mut c_void
}
