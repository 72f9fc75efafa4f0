//! Common parts of all interposed functions: the check for devices in the environment, the path or
//! device of a call, and the conversion of results to C.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};

use bf_emu::process;
use bf_emu::sys::once::Once;
use bf_emu::sys::{self, Errno};
use bf_emu::view::diagnostics;
use bf_emu::view::hw_counters::Asked;
use bf_emu::view::interfaces::{self, Interface};
use bf_emu::view::paths::{PathBuffer, Paths, Place};
use bf_emu::view::state;

/// True if the environment requests devices. Evaluated at the first call, which may come from
/// another library's constructor before this library's.
pub(crate) fn enabled() -> bool {
    const UNKNOWN: u8 = 0;
    const NO: u8 = 1;
    const YES: u8 = 2;
    static ENABLED: AtomicU8 = AtomicU8::new(UNKNOWN);

    match ENABLED.load(Ordering::Relaxed) {
        UNKNOWN => {}
        known => return known == YES,
    }
    let asked = is_set(c"BFEMU_STATE") && is_set(c"BFEMU_AS");
    // SAFETY: getauxval has no preconditions.
    let privileged = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    let enabled = asked && !privileged;
    ENABLED.store(if enabled { YES } else { NO }, Ordering::Relaxed);
    enabled
}

fn is_set(name: &CStr) -> bool {
    // SAFETY: the name is a C string. The result is NULL or a C string.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        !value.is_null() && *value != 0
    }
}

/// The device, attached at the first call; None if the environment does not request it.
pub(crate) fn device() -> Option<&'static process::Process> {
    enabled().then(process::current)?
}

/// The target of `path` for this process. `buffer` receives a rewritten path.
///
/// # Safety
/// `path` is NULL or a C string.
pub(crate) unsafe fn place(path: *const c_char, buffer: &mut PathBuffer) -> Place<'_> {
    if path.is_null() || !enabled() {
        return Place::Elsewhere;
    }
    // SAFETY: not NULL, so the caller promises a C string.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    if !Paths::candidate(path) {
        return Place::Elsewhere;
    }
    guarded(Place::Elsewhere, || {
        let Some(paths) = view_paths() else {
            return Place::Elsewhere;
        };
        let place = paths.place(path, buffer);
        if let Place::Tree(path) = &place
            && let Some(asked) = Asked::of(path.to_bytes())
            && let Some(device) = device()
        {
            // Without the count the file has an older one.
            let _ = asked.refresh(device.fabric(), device.functions(), path.to_bytes());
        }
        if let Place::Tree(path) = &place
            && let Some(index) = paths.diagnostics(path.to_bytes())
            && let Some(device) = device()
            && let Some(function) = device.functions().get(index)
        {
            let written = diagnostics::refresh(device.fabric(), *function, path.to_bytes());
            if let Err(error) = written {
                let path = path.to_string_lossy();
                say(&format!("{path} has old counters, or none: {error}"));
            }
        }
        place
    })
}

/// The path mapping of this process's view. A process that only reads names, such as `ibv_devices` or
/// `ls`, never attaches to the device.
pub(crate) fn view_paths() -> Option<&'static Paths> {
    known_view().map(|known| &known.paths)
}

/// The network interfaces of this process's view.
pub(crate) fn view_interfaces() -> Option<&'static [Interface]> {
    known_view().map(|known| &known.interfaces[..])
}

/// The parts of a view that calls use.
struct Known {
    paths: Paths,
    interfaces: Vec<Interface>,
}

/// This process's view, read at the first use.
fn known_view() -> Option<&'static Known> {
    static KNOWN: Once<Option<Known>> = Once::new();
    thread_local! {
        /// True while this thread reads the view. The state's own files are not in the view,
        /// independent of their paths.
        static LOADS: Cell<bool> = const { Cell::new(false) };
    }
    if let Some(known) = KNOWN.get() {
        return known.as_ref();
    }
    if LOADS.replace(true) {
        return None;
    }
    let load = || {
        let state = std::env::var_os(state::ENV_STATE)?;
        let view = std::env::var(state::ENV_AS).ok()?;
        match state::load_view(Path::new(&state), &view) {
            Ok(view) => Some(Known {
                paths: Paths::new(&view),
                interfaces: interfaces::of_view(&view),
            }),
            Err(error) => {
                say(&format!("no device for this process: {error}"));
                None
            }
        }
    };
    let known = KNOWN.get_or_make(load).as_ref();
    LOADS.set(false);
    known
}

/// Runs `act` and returns `fallback` if it panics. A panic is a bug in the device and must not
/// unwind into C.
pub(crate) fn guarded<T>(fallback: T, act: impl FnOnce() -> T) -> T {
    // A panic can leave inconsistent state only in the device, which protects itself.
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(value) => value,
        Err(_) => {
            say("internal error, see the message above; the call fails");
            set_errno(Errno(libc::EIO));
            fallback
        }
    }
}

/// Writes one line to stderr. A closed or full stderr has no effect.
pub(crate) fn say(message: &str) {
    let _ = sys::write(
        libc::STDERR_FILENO,
        format!("bf-emu: {message}\n").as_bytes(),
    );
}

/// Converts a result to C: -1 and errno for an error.
pub(crate) fn answer(result: Result<c_int, Errno>) -> c_int {
    result.unwrap_or_else(|errno| {
        set_errno(errno);
        -1
    })
}

pub(crate) fn set_errno(errno: Errno) {
    // SAFETY: the location of the calling thread's errno is always valid.
    unsafe { *libc::__errno_location() = errno.0 };
}
