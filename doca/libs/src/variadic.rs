//! C functions with a variable list of arguments. Rust cannot define them: a short entry in assembly saves the registers of
//! arguments as the platform's `va_start` does, and passes what it saved to a Rust function.

use std::ffi::c_void;

/// The platform's `va_list`.
#[cfg(target_arch = "x86_64")]
#[repr(C)]
#[derive(Debug)]
pub(crate) struct List {
    general: u32,
    vector: u32,
    stack: *mut c_void,
    saved: *mut c_void,
}

/// The platform's `va_list`.
#[cfg(target_arch = "aarch64")]
#[repr(C)]
#[derive(Debug)]
pub(crate) struct List {
    stack: *mut c_void,
    general_end: *mut c_void,
    vector_end: *mut c_void,
    general: i32,
    vector: i32,
}

/// Registers of arguments for integers.
#[cfg(target_arch = "x86_64")]
pub(crate) const REGISTERS: usize = 6;
/// Registers of arguments for integers.
#[cfg(target_arch = "aarch64")]
pub(crate) const REGISTERS: usize = 8;

/// What the entry has saved.
#[repr(C, align(16))]
#[derive(Debug)]
pub(crate) struct Frame {
    general: [u64; REGISTERS],
    vector: [u128; 8],
    list: List,
}

impl Frame {
    /// A named argument: an integer or a pointer, by its index below the number of the entry.
    ///
    /// # Safety
    /// The frame is from an entry with more than `index` named arguments.
    pub(crate) unsafe fn named(&self, index: usize, count: usize) -> u64 {
        match self.general.get(index) {
            Some(value) => *value,
            None => {
                // The list begins after the named arguments, so the ones on the stack are before it.
                // SAFETY: the caller passed `count` named arguments, and those above the registers are on the stack.
                unsafe { self.list.stack.cast::<u64>().sub(count - index).read() }
            }
        }
    }

    /// The list, as C functions take it.
    pub(crate) fn list(&mut self) -> *mut c_void {
        (&raw mut self.list).cast()
    }
}

/// Defines the C function `$name` with `$count` named arguments, all integers or pointers: it calls `$target` with the frame.
macro_rules! variadic {
    ($(#[$doc:meta])* $name:ident, $count:literal, $target:path) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        #[cfg(target_arch = "x86_64")]
        pub extern "C" fn $name() {
            std::arch::naked_asm!(
                "push rbp",
                "mov rbp, rsp",
                "sub rsp, 208",
                "mov [rsp], rdi",
                "mov [rsp + 8], rsi",
                "mov [rsp + 16], rdx",
                "mov [rsp + 24], rcx",
                "mov [rsp + 32], r8",
                "mov [rsp + 40], r9",
                "test al, al",
                "je 2f",
                "movaps [rsp + 48], xmm0",
                "movaps [rsp + 64], xmm1",
                "movaps [rsp + 80], xmm2",
                "movaps [rsp + 96], xmm3",
                "movaps [rsp + 112], xmm4",
                "movaps [rsp + 128], xmm5",
                "movaps [rsp + 144], xmm6",
                "movaps [rsp + 160], xmm7",
                "2:",
                "mov dword ptr [rsp + 176], {general}",
                "mov dword ptr [rsp + 180], 48",
                "lea rax, [rbp + 16 + {stack}]",
                "mov [rsp + 184], rax",
                "mov [rsp + 192], rsp",
                "mov rdi, rsp",
                "call {target}",
                "leave",
                "ret",
                general = const 8 * if $count < 6 { $count } else { 6 },
                stack = const 8 * if $count < 6 { 0 } else { $count - 6 },
                target = sym $target,
            )
        }

        $(#[$doc])*
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        #[cfg(target_arch = "aarch64")]
        pub extern "C" fn $name() {
            std::arch::naked_asm!(
                "stp x29, x30, [sp, -16]!",
                "mov x29, sp",
                "sub sp, sp, 224",
                "stp x0, x1, [sp]",
                "stp x2, x3, [sp, 16]",
                "stp x4, x5, [sp, 32]",
                "stp x6, x7, [sp, 48]",
                "stp q0, q1, [sp, 64]",
                "stp q2, q3, [sp, 96]",
                "stp q4, q5, [sp, 128]",
                "stp q6, q7, [sp, 160]",
                "add x9, x29, 16",
                "str x9, [sp, 192]",
                "add x9, sp, 64",
                "str x9, [sp, 200]",
                "add x9, sp, 192",
                "str x9, [sp, 208]",
                "mov w9, {general}",
                "str w9, [sp, 216]",
                "mov w9, -128",
                "str w9, [sp, 220]",
                "mov x0, sp",
                "bl {target}",
                "mov sp, x29",
                "ldp x29, x30, [sp], 16",
                "ret",
                general = const 8 * ($count - 8),
                target = sym $target,
            )
        }
    };
}
pub(crate) use variadic;
