//! Loaded shared objects and their symbols. Nothing here loads or closes an object.

use std::ffi::{CStr, CString, c_void};
use std::ptr::NonNull;

/// A loaded shared object. It is never closed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Module {
    handle: NonNull<c_void>,
}

// SAFETY: the handle is only passed to dlsym, which any thread may call.
unsafe impl Send for Module {}
// SAFETY: as above; nothing is ever written through the handle.
unsafe impl Sync for Module {}

impl Module {
    /// The loaded object of that file or SONAME. Never loads anything.
    pub(crate) fn loaded(name: &CStr) -> Option<Self> {
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
        // SAFETY: the name ends in a zero byte; with RTLD_NOLOAD no code of the object runs.
        let handle = unsafe { libc::dlopen(name.as_ptr(), flags) };
        NonNull::new(handle).map(|handle| Self { handle })
    }

    /// Its handle of the loader.
    pub(crate) fn handle(&self) -> *mut c_void {
        self.handle.as_ptr()
    }

    /// Address of a symbol of the object or of its dependencies.
    pub(crate) fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the handle is open because it is never closed, and the name ends in a zero byte.
        NonNull::new(unsafe { libc::dlsym(self.handle.as_ptr(), name.as_ptr()) })
    }
}

/// Base address and path of the loaded file that contains the address.
pub(crate) fn file_of(address: *const c_void) -> Option<(usize, CString)> {
    // SAFETY: an all-zero Dl_info is a valid one, its pointers are null.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: dladdr takes any address and fills `info`, which outlives the call.
    if unsafe { libc::dladdr(address, &raw mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr succeeded, so the name is a string of the loader, which outlives the object.
    let path = unsafe { CStr::from_ptr(info.dli_fname) };
    Some((info.dli_fbase as usize, path.to_owned()))
}

/// The symbol that the loader finds for references of the program and of its libraries.
pub(crate) fn global(name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: no name stands for the program itself. RTLD_DEFAULT would also search this library.
    let program = unsafe { libc::dlopen(std::ptr::null(), libc::RTLD_LAZY) };
    let program = NonNull::new(program)?;
    // SAFETY: the handle is open, and the name ends in a zero byte.
    NonNull::new(unsafe { libc::dlsym(program.as_ptr(), name.as_ptr()) })
}
