//! The C interface, `include/libflexio/flexio.h`: programs, processes, memory.

mod commands;
mod objects;
mod queues;
mod stream;

use crate::app::{App, Function, Pack};
use crate::error::{Error, Result, Status};
use crate::process::Process;
use crate::queue::Outbox;
use mlx5dv_sys::{ibv_context, ibv_pd};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use stream::Stream;

/// `FLEXIO_STATUS_SUCCESS`.
const SUCCESS: u32 = 0;

/// A process for C, with its own page of doorbells and its streams.
pub(crate) struct CProcess {
    process: Process,
    outbox: Outbox,
    streams: Mutex<Vec<Arc<Stream>>>,
}

/// Carries out a function of the interface. An error becomes a line on stderr, and a panic an error.
pub(crate) fn guard(name: &str, act: impl FnOnce() -> Result<()>) -> u32 {
    let done = catch_unwind(AssertUnwindSafe(act))
        .unwrap_or_else(|_| Err(Error::failed("an internal error of the library")));
    match done {
        Ok(()) => SUCCESS,
        Err(error) => {
            complain(name, &error);
            error.status as u32
        }
    }
}

fn complain(name: &str, error: &Error) {
    use std::io::Write as _;
    // A closed stderr leaves no way to report it.
    let _ = writeln!(std::io::stderr(), "libflexio: {name}: {error}");
}

/// The value behind a pointer of the caller.
///
/// # Safety
/// The pointer is null, or one that this library gave and that was not destroyed.
unsafe fn given<'a, T>(pointer: *const T, what: &str) -> Result<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| Error::failed(format!("{what} is NULL")))
}

/// Puts a result in its place.
///
/// # Safety
/// The place is null or writable.
unsafe fn put<T>(place: *mut T, value: T) -> Result<()> {
    if place.is_null() {
        return Err(Error::failed("the place of the result is NULL"));
    }
    // SAFETY: the caller's promise.
    unsafe { place.write(value) };
    Ok(())
}

/// Destroys what a pointer of this library names. NULL is nothing.
///
/// # Safety
/// The pointer is null, or was made by `Box::into_raw`, and is used no more.
unsafe fn destroy<T>(name: &str, pointer: *mut T) -> u32 {
    guard(name, || {
        if !pointer.is_null() {
            // SAFETY: the caller's promise.
            drop(unsafe { Box::from_raw(pointer) });
        }
        Ok(())
    })
}

/// Bytes of the caller.
///
/// # Safety
/// `length` bytes at the pointer are readable as long as the slice is used.
unsafe fn bytes<'a>(pointer: *const c_void, length: usize) -> Result<&'a [u8]> {
    match (pointer.is_null(), length) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Error::failed("the buffer is NULL")),
        // SAFETY: the caller's promise.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(pointer.cast(), length) }),
    }
}

/// A text of the caller.
///
/// # Safety
/// The pointer is null or names a text that ends with a zero byte.
unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str> {
    if pointer.is_null() {
        return Err(Error::failed(format!("{what} is NULL")));
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str()
        .map_err(|_| Error::failed(format!("{what} is not UTF-8")))
}

/// `struct flexio_app_attr`.
#[repr(C)]
pub(crate) struct AppAttr {
    name: *const c_char,
    image: *const c_void,
    bytes: usize,
    signature: *const c_char,
}

impl App {
    /// The program behind a `struct flexio_app *`.
    ///
    /// # Safety
    /// The pointer is null or from `flexio_app_create`, and its program was not destroyed.
    #[must_use]
    pub unsafe fn from_raw(app: *const c_void) -> Option<Arc<Self>> {
        // SAFETY: the caller's promise: the pointer is one of `Box<Arc<App>>`.
        unsafe { app.cast::<Arc<Self>>().as_ref() }.cloned()
    }
}

/// Makes a program.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_app_create(attr: *const AppAttr, app: *mut *mut Arc<App>) -> u32 {
    guard("flexio_app_create", || {
        // SAFETY: the caller's attributes, as the header says.
        let attr = unsafe { given(attr, "the attributes") }?;
        // SAFETY: as above.
        let name = unsafe { text(attr.name, "the program's name") }?;
        // SAFETY: as above.
        let image = unsafe { bytes(attr.image, attr.bytes) }?;
        let made = Box::new(Arc::new(App::new(name, image)?));
        // SAFETY: the caller's place.
        unsafe { put(app, Box::into_raw(made)) }
    })
}

/// Ends a program. Its processes keep what they need.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_app_destroy(app: *mut Arc<App>) -> u32 {
    // SAFETY: from `flexio_app_create`.
    unsafe { destroy("flexio_app_destroy", app) }
}

/// Bytes of the ELF file.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_app_get_elf_size(app: *const Arc<App>) -> usize {
    // SAFETY: from `flexio_app_create`.
    unsafe { app.as_ref() }.map_or(0, |app| app.elf().len())
}

/// The ELF file.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_app_get_elf(
    app: *const Arc<App>,
    buffer: *mut u64,
    length: usize,
) -> u32 {
    guard("flexio_app_get_elf", || {
        // SAFETY: from `flexio_app_create`.
        let elf = unsafe { given(app, "the program") }?.elf();
        if buffer.is_null() || length < elf.len() {
            let text = format!("{length} bytes for a program of {}", elf.len());
            return Err(Error::failed(text));
        }
        // SAFETY: the caller's buffer has at least as many bytes, and is not part of the program.
        unsafe {
            buffer
                .cast::<u8>()
                .copy_from_nonoverlapping(elf.as_ptr(), elf.len())
        };
        Ok(())
    })
}

/// Registers a function: the archive of the compiler driver calls this.
///
/// # Safety
/// The pack function fills as many bytes as it says.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_func_pup_register(
    app: *const Arc<App>,
    name: *const c_char,
    unpack: *const c_char,
    stub: *const c_void,
    argument_bytes: usize,
    pack: Option<Pack>,
) -> u32 {
    guard("flexio_func_pup_register", || {
        // SAFETY: from `flexio_app_create`, and texts of the caller.
        let (app, name, unpack) = unsafe {
            (
                given(app, "the program")?,
                text(name, "the function's name")?,
                text(unpack, "the unpack function's name")?,
            )
        };
        app.register(Function {
            name: name.to_owned(),
            unpack: unpack.to_owned(),
            stub: stub.addr(),
            argument_bytes,
            pack,
        })
    })
}

/// `struct flexio_process_attr`.
#[repr(C)]
pub(crate) struct ProcessAttr {
    pd: *mut ibv_pd,
    en_pcc: c_int,
}

/// Starts a process.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_process_create(
    context: *mut ibv_context,
    app: *const Arc<App>,
    attr: *const ProcessAttr,
    process: *mut *mut CProcess,
) -> u32 {
    guard("flexio_process_create", || {
        // SAFETY: null or the caller's attributes.
        let attr = unsafe { attr.as_ref() };
        if attr.is_some_and(|attr| attr.en_pcc != 0) {
            return Err(Error::failed(
                "en_pcc: programmable congestion control is not available",
            ));
        }
        let pd = attr.map_or(std::ptr::null_mut(), |attr| attr.pd);
        // SAFETY: from `flexio_app_create`.
        let app = unsafe { given(app, "the program") }?;
        // SAFETY: the caller keeps the context and the domain as long as the process.
        let made = unsafe { Process::create(context, pd, app) }?;
        let outbox = Outbox::create(&made)?;
        let made = Box::new(CProcess {
            process: made,
            outbox,
            streams: Mutex::default(),
        });
        // SAFETY: the caller's place.
        unsafe { put(process, Box::into_raw(made)) }
    })
}

/// Ends a process.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_process_destroy(process: *mut CProcess) -> u32 {
    // SAFETY: from `flexio_process_create`.
    unsafe { destroy("flexio_process_destroy", process) }
}

/// Its protection domain.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_process_get_pd(process: *const CProcess) -> *mut ibv_pd {
    // SAFETY: from `flexio_process_create`.
    unsafe { process.as_ref() }.map_or(std::ptr::null_mut(), |own| own.process.pd())
}

/// Its page of doorbells.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_process_get_uar(process: *const CProcess) -> *const Outbox {
    // SAFETY: from `flexio_process_create`.
    unsafe { process.as_ref() }.map_or(std::ptr::null(), |own| &raw const own.outbox)
}

/// Number of a page of doorbells.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_uar_get_id(uar: *const Outbox) -> u32 {
    // SAFETY: from `flexio_process_get_uar` or `flexio_outbox_get_uar`.
    unsafe { uar.as_ref() }.map_or(u32::MAX, Outbox::uar)
}

/// A remote call with a list of arguments.
///
/// # Safety
/// The list has the arguments that the function declares.
unsafe extern "C" fn process_call(
    process: *const CProcess,
    function: *const c_void,
    result: *mut u64,
    list: *mut c_void,
) -> u32 {
    guard("flexio_process_call", || {
        // SAFETY: from `flexio_process_create`.
        let own = unsafe { given(process, "the process") }?;
        let process = &own.process;
        let Some(function) = process.app().find(function.addr()) else {
            let name = process.app().name();
            return Err(Error::failed(format!("no function of the program {name}")));
        };
        // At a multiple of 16, as any C type needs.
        let mut words = vec![0u128; function.argument_bytes.div_ceil(16)];
        if let Some(pack) = function.pack {
            // SAFETY: the caller's list, and a buffer of the function's size.
            unsafe { pack(words.as_mut_ptr().cast(), list) };
        }
        // SAFETY: as many bytes as the buffer has at least.
        let arguments = unsafe { bytes(words.as_ptr().cast(), function.argument_bytes) }?;
        let called = process.call(&function, arguments);
        own.write_messages();
        let value = called?;
        // SAFETY: the caller's place; null asks for no result.
        if let Some(result) = unsafe { result.as_mut() } {
            *result = value;
        }
        Ok(())
    })
}

crate::variadic!(
    /// `flexio_process_call` of the header.
    ///
    /// # Safety
    /// The header's.
    flexio_process_call,
    3,
    process_call
);

impl CProcess {
    /// Writes the messages of all streams.
    fn write_messages(&self) {
        let streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        for stream in &*streams {
            // The call's own result tells whether the DPA is lost.
            let _ = stream.write(&self.process);
        }
    }
}

/// State of a process.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_err_status_get(process: *const CProcess) -> u32 {
    guard("flexio_err_status_get", || {
        // SAFETY: from `flexio_process_create`.
        match unsafe { given(process, "the process") }?.process.fault()? {
            None => Ok(()),
            Some(fault) => Err(Error {
                status: Status::Fatal,
                ..Error::failed(fault.to_string())
            }),
        }
    })
}

/// Writes a core file.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_coredump_create(
    process: *const CProcess,
    outfile: *const c_char,
) -> u32 {
    guard("flexio_coredump_create", || {
        // SAFETY: from `flexio_process_create`.
        let process = &unsafe { given(process, "the process") }?.process;
        let name = match outfile.is_null() {
            true => "flexio_dev",
            // SAFETY: the caller's text.
            false => unsafe { text(outfile, "the name of the file") }?,
        };
        let path = format!("{name}.{}.core", process.id());
        let failed = |error| Error::failed(format!("{path}: {error}"));
        let file = std::fs::File::create(&path).map_err(failed)?;
        let mut file = std::io::BufWriter::new(file);
        let written = process.write_core(&mut file);
        let written = written.and_then(|()| std::io::Write::flush(&mut file).map_err(failed));
        if written.is_err() {
            // An incomplete file helps nobody.
            let _ = std::fs::remove_file(&path);
        }
        written
    })
}

/// Allocates memory.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_buf_dev_alloc(
    process: *const CProcess,
    length: usize,
    place: *mut u64,
) -> u32 {
    guard("flexio_buf_dev_alloc", || {
        // SAFETY: from `flexio_process_create`.
        let process = &unsafe { given(process, "the process") }?.process;
        let address = process.allocate(length as u64)?;
        // SAFETY: the caller's place.
        unsafe { put(place, address) }
    })
}

/// Returns memory.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_buf_dev_free(process: *const CProcess, address: u64) -> u32 {
    guard("flexio_buf_dev_free", || {
        // SAFETY: from `flexio_process_create`.
        unsafe { given(process, "the process") }?
            .process
            .free(address)
    })
}

/// Fills memory.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_buf_dev_memset(
    process: *const CProcess,
    value: c_int,
    length: usize,
    address: u64,
) -> u32 {
    guard("flexio_buf_dev_memset", || {
        let [byte, ..] = value.to_le_bytes();
        // SAFETY: from `flexio_process_create`.
        let process = &unsafe { given(process, "the process") }?.process;
        process.fill(address, byte, length as u64)
    })
}

/// Copies to memory.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_host2dev_memcpy(
    process: *const CProcess,
    from: *const c_void,
    length: usize,
    address: u64,
) -> u32 {
    guard("flexio_host2dev_memcpy", || {
        // SAFETY: from `flexio_process_create`, and the caller's buffer.
        let (own, from) = unsafe { (given(process, "the process")?, bytes(from, length)?) };
        own.process.copy_in(address, from)
    })
}

/// Copies from memory.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_dev2host_memcpy(
    process: *const CProcess,
    to: *mut c_void,
    length: usize,
    address: u64,
) -> u32 {
    guard("flexio_dev2host_memcpy", || {
        // SAFETY: from `flexio_process_create`.
        let own = unsafe { given(process, "the process") }?;
        if to.is_null() && length != 0 {
            return Err(Error::failed("the buffer is NULL"));
        }
        if length == 0 {
            return Ok(());
        }
        // SAFETY: the caller's buffer of this size, which the caller does not use meanwhile.
        let to = unsafe { std::slice::from_raw_parts_mut(to.cast(), length) };
        own.process.copy_out(address, to)
    })
}

/// Allocates, and copies there.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_copy_from_host(
    process: *const CProcess,
    from: *const c_void,
    length: usize,
    place: *mut u64,
) -> u32 {
    guard("flexio_copy_from_host", || {
        // SAFETY: from `flexio_process_create`, and the caller's buffer.
        let (own, from) = unsafe { (given(process, "the process")?, bytes(from, length)?) };
        let address = own.process.allocate(length as u64)?;
        if let Err(error) = own.process.copy_in(address, from) {
            own.process.free(address)?;
            return Err(error);
        }
        // SAFETY: the caller's place.
        unsafe { put(place, address) }
    })
}
