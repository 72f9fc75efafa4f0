//! Return from the doorbell handler without `rt_sigreturn`. It restores the thread's state itself, which makes a
//! doorbell an eighth faster. In all cases that are not known to be simple, the kernel restores the state.

use std::arch::asm;
use std::mem::offset_of;

use libc::{c_int, greg_t, mcontext_t, ucontext_t};

use crate::context;
use crate::masks;

/// Somebody is single-stepping.
const TRAP: u64 = 1 << 8;
/// The alternate stack was taken away for as long as the handler runs, and the kernel gives it back
/// (`linux/signal.h`).
const SS_AUTODISARM: c_int = i32::MIN;

/// Place of a register in the saved context.
const fn place(register: c_int) -> usize {
    let registers = offset_of!(ucontext_t, uc_mcontext) + offset_of!(mcontext_t, gregs);
    registers + register.unsigned_abs() as usize * size_of::<greg_t>()
}

/// Lets the interrupted thread go on as its saved context says. Returns, and has done nothing, if that is better
/// left to the kernel.
///
/// # Safety
/// `saved` must be the kernel's context of the handler that runs in this thread, on the interrupted stack and not
/// on one of its own; the handler must hold nothing that its callers would give back.
pub(crate) unsafe fn resume(saved: &ucontext_t) {
    let Some((state, components)) = context::saved_state(saved) else {
        return;
    };
    let stepped = context::flags(saved) & TRAP != 0;
    if stepped || saved.uc_stack.ss_flags & SS_AUTODISARM != 0 || has_shadow_stack() {
        return;
    }
    // From here on, signals that have waited run their handlers, on top of this one, which holds nothing.
    if masks::change_mask(libc::SIG_SETMASK, Some(masks::bits(&saved.uc_sigmask))).is_err() {
        return;
    }
    let [low, high] = [components, components >> 32].map(|half| half & u64::from(u32::MAX));
    // SAFETY: the state is the one that the kernel saved for this thread, of the components that it names, at an
    // address that is a multiple of 64. The last three words go below the 128 bytes that the interrupted function may
    // use beneath its stack pointer; the kernel's frame lies below these 128, so there is memory, and what of the
    // frame is overwritten is the end of the state, which is loaded by then. Until the stack pointer moves, it is
    // below the frame, and after that nothing below it is read: a signal in between does no harm.
    unsafe {
        asm!(
            "xrstor64 [rsi]",
            "mov rcx, [rdi + {rsp}]",
            "mov rax, [rdi + {rip}]",
            "mov [rcx - 136], rax",
            "mov rax, [rdi + {flags}]",
            "mov [rcx - 144], rax",
            "mov rax, [rdi + {rdi}]",
            "mov [rcx - 152], rax",
            "mov r8, [rdi + {r8}]",
            "mov r9, [rdi + {r9}]",
            "mov r10, [rdi + {r10}]",
            "mov r11, [rdi + {r11}]",
            "mov r12, [rdi + {r12}]",
            "mov r13, [rdi + {r13}]",
            "mov r14, [rdi + {r14}]",
            "mov r15, [rdi + {r15}]",
            "mov rbx, [rdi + {rbx}]",
            "mov rbp, [rdi + {rbp}]",
            "mov rsi, [rdi + {rsi}]",
            "mov rdx, [rdi + {rdx}]",
            "mov rcx, [rdi + {rcx}]",
            "mov rax, [rdi + {rax}]",
            "mov rdi, [rdi + {rsp}]",
            "lea rsp, [rdi - 152]",
            "pop rdi",
            "popfq",
            "ret 128",
            rsp = const place(libc::REG_RSP),
            rip = const place(libc::REG_RIP),
            flags = const place(libc::REG_EFL),
            rdi = const place(libc::REG_RDI),
            r8 = const place(libc::REG_R8),
            r9 = const place(libc::REG_R9),
            r10 = const place(libc::REG_R10),
            r11 = const place(libc::REG_R11),
            r12 = const place(libc::REG_R12),
            r13 = const place(libc::REG_R13),
            r14 = const place(libc::REG_R14),
            r15 = const place(libc::REG_R15),
            rbx = const place(libc::REG_RBX),
            rbp = const place(libc::REG_RBP),
            rsi = const place(libc::REG_RSI),
            rdx = const place(libc::REG_RDX),
            rcx = const place(libc::REG_RCX),
            rax = const place(libc::REG_RAX),
            in("rdi") std::ptr::from_ref(saved),
            in("rsi") state,
            in("rax") low,
            in("rdx") high,
            options(noreturn),
        );
    }
}

/// True if the thread's returns are checked against a second stack, which the kernel moves as well.
fn has_shadow_stack() -> bool {
    let pointer: u64;
    // SAFETY: RDSSPQ, which leaves its register alone where there is no such stack (Intel SDM volume 2).
    unsafe {
        asm!(
            "xor eax, eax",
            ".byte 0xf3, 0x48, 0x0f, 0x1e, 0xc8",
            out("rax") pointer,
            options(nomem, nostack),
        );
    }
    pointer != 0
}
