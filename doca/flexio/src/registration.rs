//! Registration of programs by the archives that `dpacc` makes: C functions that their constructors call.

use crate::app::{App, Function, Pack};
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most bytes of a program.
const PROGRAM_MAX: usize = 256 << 20;

/// `struct flexio_app_attr`.
#[repr(C)]
#[derive(Debug)]
pub struct AppAttributes {
    name: *const c_char,
    program: *const c_void,
    bytes: usize,
    signature_section: *const c_char,
}

/// Programs of C, by the pointer that it has.
static APPS: Mutex<Option<HashMap<usize, Arc<App>>>> = Mutex::new(None);

fn apps() -> MutexGuard<'static, Option<HashMap<usize, Arc<App>>>> {
    APPS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl App {
    /// The program behind a `struct flexio_app *`, or `None` if the pointer is that of no live program.
    #[must_use]
    pub fn from_raw(app: *const c_void) -> Option<Arc<Self>> {
        apps().as_ref()?.get(&app.addr()).map(Arc::clone)
    }
}

/// Runs the body of a C function. Returns its status, and writes an error to standard error.
pub(crate) fn status(name: &str, body: impl FnOnce() -> Result<()>) -> c_int {
    let error = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return 0,
        Ok(Err(error)) => error,
        Err(_) => Error::failed("internal error of the library; please report it"),
    };
    use std::io::Write as _;
    // Without standard error, the program still gets the status.
    let _ = writeln!(std::io::stderr(), "flexio: {name}: {error}");
    error.status as c_int
}

/// The text behind a pointer of C.
///
/// # Safety
/// NULL, or a string.
unsafe fn text(pointer: *const c_char, what: &str) -> Result<String> {
    if pointer.is_null() {
        return Err(Error::failed(format!("{what} is NULL")));
    }
    // SAFETY: as the caller promises.
    Ok(unsafe { CStr::from_ptr(pointer) }
        .to_string_lossy()
        .into_owned())
}

/// `flexio_app_create`: checks and keeps a program. 0, or a status.
///
/// # Safety
/// The attributes are those of the header, and `app` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexio_app_create(
    attributes: *const AppAttributes,
    app: *mut *const c_void,
) -> c_int {
    status("flexio_app_create", || {
        if attributes.is_null() || app.is_null() {
            return Err(Error::failed(
                "the attributes or the place for the result is NULL",
            ));
        }
        // SAFETY: checked, and valid by contract.
        let attributes = unsafe { &*attributes };
        // SAFETY: a string by contract.
        let name = unsafe { text(attributes.name, "the name of the program") }?;
        if attributes.program.is_null() || attributes.bytes > PROGRAM_MAX {
            return Err(Error::failed(format!(
                "the program {name} is NULL, or has more than {PROGRAM_MAX} bytes"
            )));
        }
        // SAFETY: the program has this many bytes by contract.
        let elf =
            unsafe { std::slice::from_raw_parts(attributes.program.cast(), attributes.bytes) };
        let created = Arc::new(App::new(&name, elf)?);
        let pointer = Arc::as_ptr(&created);
        apps()
            .get_or_insert_default()
            .insert(pointer.addr(), created);
        // SAFETY: checked above.
        unsafe { app.write(pointer.cast()) };
        Ok(())
    })
}

/// `flexio_app_destroy`. Processes of the program go on.
#[unsafe(no_mangle)]
pub extern "C" fn flexio_app_destroy(app: *const c_void) -> c_int {
    status("flexio_app_destroy", || {
        let taken = apps().as_mut().and_then(|apps| apps.remove(&app.addr()));
        taken.map(drop).ok_or_else(|| unknown(app))
    })
}

fn unknown(app: *const c_void) -> Error {
    Error::failed(format!("{app:p} is no live program"))
}

/// `flexio_func_pup_register`: adds a function, which the host names by the address of its stub.
///
/// # Safety
/// The names are NULL or strings, and `pack` writes at most `argument_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexio_func_pup_register(
    app: *const c_void,
    name: *const c_char,
    unpack: *const c_char,
    stub: *const c_void,
    argument_bytes: usize,
    pack: Option<Pack>,
) -> c_int {
    status("flexio_func_pup_register", || {
        let app = App::from_raw(app).ok_or_else(|| unknown(app))?;
        app.register(Function {
            // SAFETY: as the caller promises.
            name: unsafe { text(name, "the name of the function") }?,
            // SAFETY: as the caller promises.
            unpack: unsafe { text(unpack, "the name of the unpack function") }?,
            stub: stub.expose_provenance(),
            argument_bytes,
            pack,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_program_is_refused() {
        let mut app = std::ptr::null();
        let attributes = AppAttributes {
            name: c"wrong".as_ptr(),
            program: c"no ELF file".as_ptr().cast(),
            bytes: 11,
            signature_section: std::ptr::null(),
        };
        for attributes in [&raw const attributes, std::ptr::null()] {
            // SAFETY: NULL, or valid.
            let created = unsafe { flexio_app_create(attributes, &raw mut app) };
            assert_eq!((created, app), (1, std::ptr::null()));
        }
        let foreign = (&raw const attributes).cast();
        assert!(App::from_raw(foreign).is_none());
        assert_eq!(flexio_app_destroy(foreign), 1);
        // SAFETY: strings.
        let registered = unsafe {
            flexio_func_pup_register(foreign, c"f".as_ptr(), c"u".as_ptr(), foreign, 8, None)
        };
        assert_eq!(registered, 1);
    }
}
