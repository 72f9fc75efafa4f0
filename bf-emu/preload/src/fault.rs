//! The handler of SIGSEGV and SIGBUS. It serves guarded copies that met an absent page, and
//! doorbells, and passes all other faults to the program. It runs in the faulting thread, between
//! two of its instructions: it does not allocate, take a lock of the C library, or panic.
//!
//! It runs on the thread's own stack, not on an alternate one (`SA_ONSTACK`). The work of a
//! doorbell needs the stack of a function call at this point, and alternate stacks can be as small
//! as 8 KiB. As a consequence, a stack overflow ends the process without the message of its
//! language runtime.

use std::ffi::{c_int, c_void};
use std::mem;
use std::ptr;

use bf_emu::sys::once::Once;
use bf_emu::{guard, process};
use libc::{sigaction as Action, siginfo_t, ucontext_t};

use crate::masks;
use crate::next::{next, of_libc};
use crate::records::{self, Recorded};
#[cfg(target_arch = "x86_64")]
use crate::resume::resume;
use crate::store;

/// Installs the trap's handler for `signal`. Returns the replaced action, unless the trap's handler
/// was already installed; None if the installation is not possible.
pub(crate) fn take(signal: c_int) -> Option<Option<Recorded>> {
    // SAFETY: an action is plain data.
    let mut ours: Action = unsafe { mem::zeroed() };
    ours.sa_sigaction = handler_address();
    // A guarded copy inside the handler may fault again. All other signals are blocked.
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
    // SAFETY: a local set; both signals exist.
    unsafe {
        libc::sigfillset(&raw mut ours.sa_mask);
        libc::sigdelset(&raw mut ours.sa_mask, libc::SIGSEGV);
        libc::sigdelset(&raw mut ours.sa_mask, libc::SIGBUS);
    }
    // SAFETY: as above.
    let mut old: Action = unsafe { mem::zeroed() };
    let set = set_action()?;
    // SAFETY: both actions are local and the signal number is valid, so the call cannot fail.
    unsafe { set(signal, &raw const ours, &raw mut old) };
    let foreign = old.sa_sigaction != handler_address();
    Some(foreign.then(|| Recorded::from(&old)))
}

type SetAction = unsafe extern "C" fn(c_int, *const Action, *mut Action) -> c_int;

/// The C library's sigaction, looked up once before the handler needs it.
fn set_action() -> Option<SetAction> {
    static FOUND: Once<Option<SetAction>> = Once::new();
    *FOUND.get_or_make(|| {
        let own = of_libc(c"sigaction").map(|address| {
            // SAFETY: the C library's function of this name and type.
            unsafe { mem::transmute::<ptr::NonNull<c_void>, SetAction>(address) }
        });
        own.or_else(|| next!(fn sigaction(c_int, *const Action, *mut Action) -> c_int))
    })
}

fn handler_address() -> usize {
    let handler: unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = on_fault;
    handler as usize
}

/// # Safety
/// Only the kernel may call it, as a handler with `SA_SIGINFO`: `info` and `context` are those of the interrupted thread and
/// live until the return.
unsafe extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the location of the calling thread's errno is always valid.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the kernel passes both to a handler with SA_SIGINFO, valid while it runs.
    let served = unsafe { serve(signal, &*info, &mut *context.cast::<ucontext_t>()) };
    if !served {
        // SAFETY: the kernel's own arguments.
        unsafe { pass_on(signal, info, context) };
    }
    // The interrupted code may be between a call and its read of errno.
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    #[cfg(target_arch = "x86_64")]
    if served {
        // SAFETY: the kernel's context of this handler, which runs on the thread's own stack and
        // has finished.
        unsafe { resume(&*context.cast::<ucontext_t>()) };
    }
}

/// Serves the fault if it concerns the device. Returns whether it did.
fn serve(signal: c_int, info: &siginfo_t, thread: &mut ucontext_t) -> bool {
    // A sent signal is unrelated to the interrupted instruction.
    if info.si_code <= 0 {
        return false;
    }
    let Some(at) = store::instruction(thread) else {
        return false;
    };
    if let Some(resume) = guard::fixup(at) {
        store::go_on_at(thread, resume);
        return true;
    }
    if signal != libc::SIGSEGV {
        return false;
    }
    let Some(process) = process::attached() else {
        return false;
    };
    // SAFETY: a memory fault (si_code above 0) has an address.
    let address = unsafe { info.si_addr() }.addr();
    store::serve(process, address, at, thread)
}

/// Performs the program's action for the signal.
///
/// # Safety
/// The arguments are the kernel's arguments of a handler with `SA_SIGINFO`.
unsafe fn pass_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let action = records::recorded(signal);
    // SAFETY: the kernel's own argument.
    let sent = unsafe { (*info).si_code } <= 0;
    match action.handler {
        libc::SIG_IGN if sent => return,
        libc::SIG_DFL | libc::SIG_IGN => return end(signal, sent),
        _ => {}
    }
    if action.flags & libc::SA_RESETHAND != 0 {
        records::record_default(signal);
    }
    // Blocks the signals of the program's action. The kernel restores the mask when the handler
    // returns.
    // SAFETY: the kernel's own argument.
    let before = masks::bits(unsafe { &(*context.cast::<ucontext_t>()).uc_sigmask });
    let own = if action.flags & libc::SA_NODEFER == 0 {
        masks::bit(signal)
    } else {
        0
    };
    let _ = masks::change_mask(libc::SIG_SETMASK, Some(before | action.mask | own));
    if action.flags & libc::SA_SIGINFO != 0 {
        type Handler = unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void);
        // SAFETY: the program's flags declare this type.
        let handler = unsafe { mem::transmute::<usize, Handler>(action.handler) };
        // SAFETY: the kernel's own arguments.
        unsafe { handler(signal, info, context) };
    } else {
        // SAFETY: the program's flags declare this type.
        let handler =
            unsafe { mem::transmute::<usize, unsafe extern "C" fn(c_int)>(action.handler) };
        // SAFETY: the kernel's own argument.
        unsafe { handler(signal) };
    }
}

/// Ends the process with the signal's default action. The instruction faults again; a sent signal
/// is sent again.
fn end(signal: c_int, sent: bool) {
    // SAFETY: an action is plain data, for which zero is the default action.
    let default: Action = unsafe { mem::zeroed() };
    if let Some(set) = set_action() {
        // SAFETY: a valid signal and an action of ours.
        unsafe { set(signal, &raw const default, ptr::null_mut()) };
    }
    if sent {
        // SAFETY: no preconditions.
        unsafe { libc::raise(signal) };
    }
}
