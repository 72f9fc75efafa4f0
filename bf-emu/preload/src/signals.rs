//! Living beside the program's own signal handlers. The doorbell trap needs SIGSEGV and SIGBUS; a
//! program may install handlers for them and block them as ever, and is told back what it asked
//! for. Its handlers are kept here, and [`crate::fault`] calls them for what is not the device's.
//!
//! Not covered, because the C library's own calls cannot be interposed: threads that wait with
//! another mask in `sigsuspend` or `ppoll` and ring a doorbell from a handler that runs meanwhile.

use std::cell::Cell;
use std::ffi::c_int;
use std::mem;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};

use bf_emu::process;
use bf_emu::sys::Errno;
use libc::{sigaction as Action, sighandler_t, sigset_t};

use crate::next::{next, next_or};
use crate::{answer, enabled, files, guarded};

/// Whether doorbells are traps. Other architectures ring them to a thread that polls.
const TRAPS: bool = cfg!(target_arch = "x86_64");
/// The signals of the trap: a store to a page that is read-only, and to one that has no file left.
const TRAP_SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];
/// The same as bits of a signal set.
const TRAP_BITS: u64 = bit(libc::SIGSEGV) | bit(libc::SIGBUS);
/// Signals of Linux are numbered 1..=64.
const SIGNALS: usize = 65;

/// A signal's bit in a set.
pub(crate) const fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// A program's action for a signal.
#[derive(Clone, Copy)]
pub(crate) struct Recorded {
    /// `SIG_DFL`, `SIG_IGN` or the address of a handler.
    pub(crate) handler: usize,
    /// `SA_*`.
    pub(crate) flags: c_int,
    /// The signals to block meanwhile.
    pub(crate) mask: u64,
}

/// Whether the trap's handler is in place, and the program's actions are the recorded ones.
static INSTALLED: AtomicBool = AtomicBool::new(false);
static RECORDS: [Record; TRAP_SIGNALS.len()] = [Record::new(), Record::new()];
/// The trap signals (1 for the first, 2 for the second) that the program asked to be blocked in its
/// handler of each signal.
static ASKED_IN_HANDLER: [AtomicU8; SIGNALS] = [const { AtomicU8::new(0) }; SIGNALS];

thread_local! {
    /// The trap signals that this thread asked to be blocked.
    static ASKED: Cell<u64> = const { Cell::new(0) };
}

/// Prepares the process for doorbells: called before a context of the device is used, every time,
/// because a program may have got past the interposers and replaced the handler.
pub(crate) fn before_first_doorbell() {
    static FORK: Once = Once::new();
    FORK.call_once(|| {
        // SAFETY: the function may run in a child made by fork, and lives as long as the process.
        // Without memory for it (its only failure) such children keep their parent's contexts.
        unsafe { libc::pthread_atfork(None, None, Some(after_fork_in_child)) };
    });
    install();
}

/// The program's action for one of the trap's signals. Async-signal-safe.
#[cfg(target_arch = "x86_64")]
pub(crate) fn recorded(signal: c_int) -> Recorded {
    record_of(signal).map_or(Recorded::DEFAULT, Record::load)
}

/// Records the default action, as after a handler that was to be called once.
#[cfg(target_arch = "x86_64")]
pub(crate) fn record_default(signal: c_int) {
    if let Some(record) = record_of(signal) {
        record.exchange(Some(Recorded::DEFAULT));
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn install() {}

#[cfg(target_arch = "x86_64")]
fn install() {
    for (signal, record) in TRAP_SIGNALS.into_iter().zip(&RECORDS) {
        let Some(found) = crate::fault::take(signal) else {
            crate::say("the C library has no sigaction; doorbells will end the process");
            return;
        };
        if let Some(found) = found {
            record.exchange(Some(found));
        }
    }
    INSTALLED.store(true, Ordering::Release);
    // A parent may have left them blocked in this process from its start.
    let asked = change_mask(libc::SIG_UNBLOCK, Some(TRAP_BITS)).unwrap_or(0) & TRAP_BITS;
    ASKED.with(|cell| cell.set(cell.get() | asked));
}

extern "C" fn after_fork_in_child() {
    for record in &RECORDS {
        record.unlock_in_child();
    }
    files::after_fork_in_child();
    guarded((), || {
        if let Some(process) = process::attached() {
            process.after_fork_in_child();
        }
    });
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    // SAFETY: the caller's own arguments.
    unsafe { interposed_sigaction(signal, new, old) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    // SAFETY: the caller's own arguments.
    unsafe { interposed_sigaction(signal, new, old) }
}

/// Defines interposers of `signal` and its kin by the flags their handlers get.
macro_rules! signal_calls {
    ($(fn $name:ident = $flags:expr;)*) => {$(
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

#[unsafe(no_mangle)]
unsafe extern "C" fn sigprocmask(how: c_int, new: *const sigset_t, old: *mut sigset_t) -> c_int {
    if TRAPS && enabled() {
        // SAFETY: the caller's own arguments.
        return answer(unsafe { mask(how, new, old) }.map(|()| 0));
    }
    let next = next_or!(-1, fn sigprocmask(c_int, *const sigset_t, *mut sigset_t) -> c_int);
    // SAFETY: the caller's own arguments.
    unsafe { next(how, new, old) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_sigmask(
    how: c_int,
    new: *const sigset_t,
    old: *mut sigset_t,
) -> c_int {
    if TRAPS && enabled() {
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
        // SAFETY: NULL or room for an action, by the caller's promise.
        if let Some(old) = unsafe { old.as_mut() } {
            *old = previous.into();
        }
        return 0;
    }
    let next = next_or!(-1, fn sigaction(c_int, *const Action, *mut Action) -> c_int);
    if !TRAPS || !enabled() {
        // SAFETY: the caller's own arguments.
        return unsafe { next(signal, new, old) };
    }
    // While any handler runs, the trap's signals stay open: it may post work itself.
    let filtered = asked.map(|asked| {
        let mut filtered = *asked;
        set_bits(&mut filtered.sa_mask, bits(&asked.sa_mask) & !TRAP_BITS);
        filtered
    });
    // SAFETY: NULL or an action of ours, and the caller's own place for the old one.
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
        // SAFETY: NULL or room for an action, by the caller's promise.
        if let Some(old) = unsafe { old.as_mut() } {
            let with_asked = bits(&old.sa_mask) | unpack(before);
            set_bits(&mut old.sa_mask, with_asked);
        }
    }
    // Another thread may have opened the device meanwhile, and this action has replaced the trap's.
    if asked.is_some() && record_of(signal).is_some() && installed() {
        install();
    }
    result
}

/// Changes the mask as asked, but for the trap's signals, which are only remembered.
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
    // SAFETY: NULL or room for a signal set, by the caller's promise.
    if let Some(old) = unsafe { old.as_mut() } {
        // SAFETY: a signal set is plain bits.
        *old = unsafe { mem::zeroed() };
        set_bits(old, before | remembered);
    }
    Ok(())
}

/// Changes this thread's mask by the kernel's own call, and gives the one before.
pub(crate) fn change_mask(how: c_int, new: Option<u64>) -> Result<u64, Errno> {
    let mut before = 0_u64;
    let new = new.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: NULL or a set of the kernel's size, which is 8 bytes, and room for one.
    let result =
        unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, new, &raw mut before, 8_usize) };
    if result == 0 {
        return Ok(before);
    }
    // SAFETY: the location of the calling thread's errno is always valid.
    Err(Errno(unsafe { *libc::__errno_location() }))
}

fn installed() -> bool {
    INSTALLED.load(Ordering::Acquire)
}

fn record_of(signal: c_int) -> Option<&'static Record> {
    let index = TRAP_SIGNALS.iter().position(|trap| *trap == signal)?;
    RECORDS.get(index)
}

/// The kernel's part of a signal set: its first 64 signals, which are all there are.
pub(crate) fn bits(set: &sigset_t) -> u64 {
    // SAFETY: a signal set is plain bits, more than 64 of them, and aligned for longs.
    unsafe { ptr::from_ref(set).cast::<u64>().read() }
}

pub(crate) fn set_bits(set: &mut sigset_t, bits: u64) {
    // SAFETY: as above.
    unsafe { ptr::from_mut(set).cast::<u64>().write(bits) };
}

fn pack(bits: u64) -> u8 {
    let has = |signal, flag| if bits & bit(signal) == 0 { 0 } else { flag };
    has(libc::SIGSEGV, 1) | has(libc::SIGBUS, 2)
}

fn unpack(packed: u8) -> u64 {
    let has = |flag, signal| if packed & flag == 0 { 0 } else { bit(signal) };
    has(1, libc::SIGSEGV) | has(2, libc::SIGBUS)
}

#[cfg(target_arch = "x86_64")]
impl Recorded {
    const DEFAULT: Recorded = Recorded {
        handler: libc::SIG_DFL,
        flags: 0,
        mask: 0,
    };
}

impl From<&Action> for Recorded {
    fn from(action: &Action) -> Self {
        Recorded {
            handler: action.sa_sigaction,
            flags: action.sa_flags,
            mask: bits(&action.sa_mask),
        }
    }
}

impl From<Recorded> for Action {
    fn from(recorded: Recorded) -> Self {
        // SAFETY: an action is plain data, for which zero is the default action.
        let mut action: Action = unsafe { mem::zeroed() };
        action.sa_sigaction = recorded.handler;
        action.sa_flags = recorded.flags;
        set_bits(&mut action.sa_mask, recorded.mask);
        action
    }
}

/// A [`Recorded`] that a signal handler can read while another thread changes it: the version is
/// odd during a change, and a reader starts again if it was or if it moved. A thread cannot meet
/// its own change, because it blocks all signals meanwhile and does not fault in it.
struct Record {
    version: AtomicUsize,
    handler: AtomicUsize,
    flags: AtomicI32,
    mask: AtomicU64,
}

impl Record {
    const fn new() -> Self {
        Record {
            version: AtomicUsize::new(0),
            handler: AtomicUsize::new(libc::SIG_DFL),
            flags: AtomicI32::new(0),
            mask: AtomicU64::new(0),
        }
    }

    /// Puts `new` in place, if given, and gives what was there.
    fn exchange(&self, new: Option<Recorded>) -> Recorded {
        let Some(new) = new else {
            return self.load();
        };
        let before = change_mask(libc::SIG_BLOCK, Some(!TRAP_BITS));
        let version = self.lock();
        let old = self.fields();
        self.handler.store(new.handler, Ordering::Relaxed);
        self.flags.store(new.flags, Ordering::Relaxed);
        self.mask.store(new.mask, Ordering::Relaxed);
        self.version
            .store(version.wrapping_add(2), Ordering::Release);
        // If the mask could not be changed it needs no change back.
        if let Ok(before) = before {
            let _ = change_mask(libc::SIG_SETMASK, Some(before));
        }
        old
    }

    fn load(&self) -> Recorded {
        loop {
            let version = self.version.load(Ordering::Acquire);
            let fields = self.fields();
            fence(Ordering::Acquire);
            if version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version {
                return fields;
            }
            std::hint::spin_loop();
        }
    }

    fn fields(&self) -> Recorded {
        Recorded {
            handler: self.handler.load(Ordering::Relaxed),
            flags: self.flags.load(Ordering::Relaxed),
            mask: self.mask.load(Ordering::Relaxed),
        }
    }

    /// Makes the version odd; gives the even one before.
    fn lock(&self) -> usize {
        loop {
            let version = self.version.load(Ordering::Relaxed);
            let free = version.is_multiple_of(2);
            let odd = version.wrapping_add(1);
            let taken = || {
                self.version
                    .compare_exchange(version, odd, Ordering::Acquire, Ordering::Relaxed)
            };
            if free && taken().is_ok() {
                fence(Ordering::Release);
                return version;
            }
            // The holder blocks signals and does nothing but a few stores.
            std::thread::yield_now();
        }
    }

    /// In a child made by fork, the thread that was changing it does not exist.
    fn unlock_in_child(&self) {
        let version = self.version.load(Ordering::Relaxed);
        if version % 2 == 1 {
            self.version
                .store(version.wrapping_add(1), Ordering::Release);
        }
    }
}
