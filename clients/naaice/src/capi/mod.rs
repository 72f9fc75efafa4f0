//! The C interface: translation of the functions of the three headers. No panic leaves it, and a pointer that is no
//! live session is an error.

pub mod low_level;
pub mod middleware;
pub mod newer;
pub mod swnaa;
pub mod swnaa_steps;
mod swnaa_wait;

use crate::abi::CommContext;
use crate::endpoint::Endpoint;
use crate::error::{ArgumentError, NaaError, Result};
use crate::machine::State;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int};
use std::io::Write as _;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{PoisonError, RwLock};

/// Environment variable: `off` stops the lines on standard error.
const LOG: &str = "NAAICE_LOG";

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::new(CString::default());
}

/// Sessions that C programs hold: addresses of their structures and of their endpoints.
static LIVE: RwLock<Option<HashMap<usize, Address>>> = RwLock::new(None);

/// Address of an endpoint that was given to a C program.
#[derive(Clone, Copy)]
struct Address(*mut Endpoint);

// SAFETY: an address; who uses the endpoint behind it promises that no other thread does.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

/// Runs the body of a function. Returns 0, or -1 and records the error.
fn call(name: &'static str, body: impl FnOnce() -> Result<()>) -> c_int {
    let outcome = catch_unwind(AssertUnwindSafe(body));
    let text = match outcome {
        Ok(Ok(())) => return 0,
        Ok(Err(error)) => format!("{name}: {error}"),
        Err(_) => format!("{name}: internal error of the library; please report it"),
    };
    report(&text);
    -1
}

/// Records the thread's last error, and writes it to standard error.
fn report(text: &str) {
    if std::env::var_os(LOG).is_none_or(|level| level != "off") {
        // Without standard error, the program still gets -1 and the text.
        let _ = writeln!(std::io::stderr(), "naaice: {text}");
    }
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    // During the end of the thread there is no storage and nobody to read it.
    let _ = LAST_ERROR.try_with(|last| *last.borrow_mut() = text);
}

/// `naaice_last_error` (`naaice.h`): text of this thread's last error; empty without one. Valid until the thread's
/// next call.
#[unsafe(no_mangle)]
pub extern "C" fn naaice_last_error() -> *const c_char {
    LAST_ERROR
        .try_with(|last| last.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}

/// `get_state_str`: name of a state.
#[unsafe(no_mangle)]
pub extern "C" fn get_state_str(state: c_int) -> *const c_char {
    let name = match State::from_number(state) {
        Some(State::Init) => c"NAAICE_INIT",
        Some(State::Ready) => c"NAAICE_READY",
        Some(State::Connected) => c"NAAICE_CONNECTED",
        Some(State::Disconnected) => c"NAAICE_DISCONNECTED",
        Some(State::AnnouncementSending) => c"NAAICE_MRSP_SENDING",
        Some(State::AnnouncementReceiving) => c"NAAICE_MRSP_RECEIVING",
        Some(State::Announced) => c"NAAICE_MRSP_DONE",
        Some(State::DataSending) => c"NAAICE_DATA_SENDING",
        Some(State::Calculating) => c"NAAICE_CALCULATING",
        Some(State::DataReceiving) => c"NAAICE_DATA_RECEIVING",
        Some(State::Finished) => c"NAAICE_FINISHED",
        Some(State::Error) => c"NAAICE_ERROR",
        None => c"unknown state",
    };
    name.as_ptr()
}

/// Gives a session to a C program.
fn publish(endpoint: Box<Endpoint>) -> *mut CommContext {
    let endpoint = Box::into_raw(endpoint);
    // SAFETY: nobody else has it yet.
    let shown = unsafe { (*endpoint).shown() };
    let mut live = LIVE.write().unwrap_or_else(PoisonError::into_inner);
    live.get_or_insert_default()
        .insert(shown.addr(), Address(endpoint));
    shown
}

/// A session during a call. At the end the program's structure shows what the call has changed.
struct Borrowed<'a>(&'a mut Endpoint);

impl Deref for Borrowed<'_> {
    type Target = Endpoint;

    fn deref(&self) -> &Endpoint {
        self.0
    }
}

impl DerefMut for Borrowed<'_> {
    fn deref_mut(&mut self) -> &mut Endpoint {
        self.0
    }
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        self.0.show_newer();
    }
}

/// The session behind a C program's pointer.
///
/// # Safety
/// No other thread uses the session during the call.
unsafe fn session<'a>(pointer: *mut CommContext) -> Result<Borrowed<'a>> {
    let Address(endpoint) = endpoint_of(pointer)?;
    // SAFETY: the pointer came from `publish` and has not been taken back; the caller excludes other users.
    let endpoint = unsafe { &mut *endpoint };
    endpoint.check_process()?;
    endpoint.read_newer();
    Ok(Borrowed(endpoint))
}

/// The endpoint behind a C program's pointer.
fn endpoint_of(pointer: *mut CommContext) -> Result<Address> {
    let live = LIVE.read().unwrap_or_else(PoisonError::into_inner);
    find_live(live.as_ref(), pointer)
}

/// Takes a session back from a C program.
fn take_back(pointer: *mut CommContext) -> Result<Box<Endpoint>> {
    let mut live = LIVE.write().unwrap_or_else(PoisonError::into_inner);
    let Address(endpoint) = find_live(live.as_ref(), pointer)?;
    // SAFETY: the session is live, and this field does not change after its creation.
    unsafe { &*endpoint }.check_process()?;
    if let Some(live) = live.as_mut() {
        live.remove(&pointer.addr());
    }
    // SAFETY: the pointer came from `publish`, and it was removed from the table: this is its only way back.
    Ok(unsafe { Box::from_raw(endpoint) })
}

fn find_live(live: Option<&HashMap<usize, Address>>, pointer: *mut CommContext) -> Result<Address> {
    if pointer.is_null() {
        return Err(NaaError::State {
            call: "use of a session",
            state: "no session",
            rule: "the pointer is NULL: create the session first, and do not use it after its end",
        });
    }
    match live.and_then(|live| live.get(&pointer.addr())) {
        Some(endpoint) => Ok(*endpoint),
        None => Err(NaaError::State {
            call: "use of a session",
            state: "no session",
            rule: "the pointer is no live session: it has ended, or it is no session's",
        }),
    }
}

/// An error if a pointer is null.
fn not_null<T>(pointer: *const T, name: &'static str) -> Result<()> {
    match pointer.is_null() {
        true => Err(ArgumentError::NullPointer(name).into()),
        false => Ok(()),
    }
}

/// A C array. A null pointer is an empty array if the length is 0.
///
/// # Safety
/// The array has `length` elements, which nobody changes during the call.
unsafe fn array<'a, T>(pointer: *const T, length: usize, name: &'static str) -> Result<&'a [T]> {
    if length == 0 {
        return Ok(&[]);
    }
    not_null(pointer, name)?;
    if length > crate::wire::REGIONS_MAX {
        return Err(ArgumentError::TooManyRegions(length).into());
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(pointer, length) })
}
