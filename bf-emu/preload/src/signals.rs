//! Coexistence with the program's own signal handlers. The doorbell trap needs SIGSEGV and SIGBUS.
//! A program may install handlers for them and block them, and sees the values that it set.
//! `records` stores its handlers, and `fault` calls them for faults that do not concern the device.
//!
//! Not covered, because the C library's internal calls cannot be interposed: a thread that waits
//! with another mask in `sigsuspend` or `ppoll`, and a handler that writes a doorbell during that
//! wait.

use std::ffi::c_int;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicU8, Ordering};

use bf_emu::sys::Errno;
use libc::{sigaction as Action, sighandler_t, sigset_t};

use crate::call::{answer, enabled};
use crate::install::{install, installed};
use crate::masks::{TRAP_BITS, bit, bits, change_mask, set_bits};
use crate::next::{next, next_or};
use crate::records::{ASKED, Recorded, record_of};

/// Number of signals plus one: Linux numbers them 1..=64.
const SIGNALS: usize = 65;
/// The trap signals (1 for the first, 2 for the second) that the program requested to block in its
/// handler of each signal.
static ASKED_IN_HANDLER: [AtomicU8; SIGNALS] = [const { AtomicU8::new(0) }; SIGNALS];

/// # Safety
/// The preconditions of sigaction(2): `new` and `old` are NULL or valid, and the new handler may run in any thread from now on.
#[unsafe(no_mangle)]
unsafe extern "C" fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    // SAFETY: the caller's own arguments.
    unsafe { interposed_sigaction(signal, new, old) }
}

/// # Safety
/// As for `sigaction`, of which it is another name.
#[unsafe(no_mangle)]
unsafe extern "C" fn __sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    // SAFETY: the caller's own arguments.
    unsafe { interposed_sigaction(signal, new, old) }
}

/// Defines interposers of `signal` and similar functions with the flags of their handlers.
macro_rules! signal_calls {
    ($(fn $name:ident = $flags:expr;)*) => {$(
        /// # Safety
        /// The preconditions of signal(2): the handler may run in any thread from now on.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(signal: c_int, handler: sighandler_t) -> sighandler_t {
            if let Some(record) = record_of(signal).filter(|_| installed()) {
                let flags = $flags;
                return record.exchange(Some(Recorded { handler, flags, mask: 0 })).handler;
            }
            let next = next_or!(libc::SIG_ERR, fn $name(c_int, sighandler_t) -> sighandler_t);
            // SAFETY: the caller's own arguments.
            unsafe { next(signal, handler) }
        }
    )*};
}

signal_calls! {
    fn signal = libc::SA_RESTART;
    fn bsd_signal = libc::SA_RESTART;
    fn sysv_signal = libc::SA_RESETHAND | libc::SA_NODEFER;
    fn __sysv_signal = libc::SA_RESETHAND | libc::SA_NODEFER;
}

/// # Safety
/// The preconditions of sigprocmask(2): `new` is NULL or readable, `old` is NULL or writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn sigprocmask(how: c_int, new: *const sigset_t, old: *mut sigset_t) -> c_int {
    if enabled() {
        // SAFETY: the caller's own arguments.
        return answer(unsafe { mask(how, new, old) }.map(|()| 0));
    }
    let next = next_or!(-1, fn sigprocmask(c_int, *const sigset_t, *mut sigset_t) -> c_int);
    // SAFETY: the caller's own arguments.
    unsafe { next(how, new, old) }
}

/// # Safety
/// The preconditions of pthread_sigmask(3): `new` is NULL or readable, `old` is NULL or writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_sigmask(
    how: c_int,
    new: *const sigset_t,
    old: *mut sigset_t,
) -> c_int {
    if enabled() {
        // SAFETY: the caller's own arguments.
        return match unsafe { mask(how, new, old) } {
            Ok(()) => 0,
            Err(errno) => errno.0,
        };
    }
    match next!(fn pthread_sigmask(c_int, *const sigset_t, *mut sigset_t) -> c_int) {
        // SAFETY: the caller's own arguments.
        Some(next) => unsafe { next(how, new, old) },
        None => libc::ENOSYS,
    }
}

/// # Safety
/// The arguments are those of `sigaction`.
unsafe fn interposed_sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    // SAFETY: NULL or an action, by the caller's promise.
    let asked = unsafe { new.as_ref() };
    if let Some(record) = record_of(signal).filter(|_| installed()) {
        let previous = record.exchange(asked.map(Recorded::from));
        // SAFETY: NULL or a buffer for an action, by the caller's promise.
        if let Some(old) = unsafe { old.as_mut() } {
            *old = previous.into();
        }
        return 0;
    }
    let next = next_or!(-1, fn sigaction(c_int, *const Action, *mut Action) -> c_int);
    if !enabled() {
        // SAFETY: the caller's own arguments.
        return unsafe { next(signal, new, old) };
    }
    // The trap's signals stay unblocked in every handler, because a handler may post work itself.
    let filtered = asked.map(|asked| {
        let mut filtered = *asked;
        set_bits(&mut filtered.sa_mask, bits(&asked.sa_mask) & !TRAP_BITS);
        filtered
    });
    // SAFETY: NULL or a local action, and the caller's own buffer for the old one.
    let result = unsafe {
        next(
            signal,
            filtered.as_ref().map_or(ptr::null(), ptr::from_ref),
            old,
        )
    };
    if result != 0 {
        return result;
    }
    let remembered = usize::try_from(signal)
        .ok()
        .and_then(|signal| ASKED_IN_HANDLER.get(signal));
    if let Some(remembered) = remembered {
        let before = match asked {
            Some(asked) => remembered.swap(pack(bits(&asked.sa_mask)), Ordering::Relaxed),
            None => remembered.load(Ordering::Relaxed),
        };
        // SAFETY: NULL or a buffer for an action, by the caller's promise.
        if let Some(old) = unsafe { old.as_mut() } {
            let with_asked = bits(&old.sa_mask) | unpack(before);
            set_bits(&mut old.sa_mask, with_asked);
        }
    }
    // Another thread may have opened the device meanwhile, and this action replaced the trap's.
    if asked.is_some() && record_of(signal).is_some() && installed() {
        install();
    }
    result
}

/// Changes the mask as requested except for the trap's signals, which are only recorded.
///
/// # Safety
/// The arguments are those of `sigprocmask`.
unsafe fn mask(how: c_int, new: *const sigset_t, old: *mut sigset_t) -> Result<(), Errno> {
    // SAFETY: NULL or a signal set, by the caller's promise.
    let asked = unsafe { new.as_ref() }.map(bits);
    let before = change_mask(how, asked.map(|asked| asked & !TRAP_BITS))?;
    let remembered = ASKED.with(|cell| {
        let remembered = cell.get();
        if let Some(asked) = asked.map(|asked| asked & TRAP_BITS) {
            cell.set(match how {
                libc::SIG_BLOCK => remembered | asked,
                libc::SIG_UNBLOCK => remembered & !asked,
                _ => asked,
            });
        }
        remembered
    });
    // SAFETY: NULL or a buffer for a signal set, by the caller's promise.
    if let Some(old) = unsafe { old.as_mut() } {
        // SAFETY: a signal set consists of bits.
        *old = unsafe { mem::zeroed() };
        set_bits(old, before | remembered);
    }
    Ok(())
}

fn pack(bits: u64) -> u8 {
    let has = |signal, flag| if bits & bit(signal) == 0 { 0 } else { flag };
    has(libc::SIGSEGV, 1) | has(libc::SIGBUS, 2)
}

fn unpack(packed: u8) -> u64 {
    let has = |flag, signal| if packed & flag == 0 { 0 } else { bit(signal) };
    has(1, libc::SIGSEGV) | has(2, libc::SIGBUS)
}
