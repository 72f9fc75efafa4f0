//! Copies within this process that survive an absent page.
//!
//! The device reads rings and buffers that an application may have unmapped. A copy that faults
//! ends early and reports it: the signal handler asks [`fixup`] for the address at which to resume.
//! The data path itself has no extra cost. A system call would cost half a microsecond.

use crate::sys::{self, Errno};

#[cfg(target_arch = "x86_64")]
mod arch {
    std::arch::global_asm!(
        ".balign 16",
        ".globl __bfemu_guard_copy",
        ".hidden __bfemu_guard_copy",
        ".type __bfemu_guard_copy, @function",
        "__bfemu_guard_copy:", // rdi to, rsi from, rdx length; returns the bytes not copied
        "mov rcx, rdx",
        ".globl __bfemu_guard_begin",
        ".hidden __bfemu_guard_begin",
        "__bfemu_guard_begin:",
        "rep movsb",
        ".globl __bfemu_guard_end",
        ".hidden __bfemu_guard_end",
        "__bfemu_guard_end:",
        "mov rax, rcx",
        "ret",
        ".size __bfemu_guard_copy, . - __bfemu_guard_copy",
        // One instruction copies each word, so a reader on another core never sees a partial word.
        ".globl __bfemu_guard_load64",
        ".hidden __bfemu_guard_load64",
        ".type __bfemu_guard_load64, @function",
        "__bfemu_guard_load64:", // rdi to, rsi from, aligned; returns 0, or 8 on a fault
        "mov rcx, 8",
        ".globl __bfemu_guard_load_begin",
        ".hidden __bfemu_guard_load_begin",
        "__bfemu_guard_load_begin:",
        "mov rax, [rsi]",
        "mov [rdi], rax",
        "xor ecx, ecx",
        ".globl __bfemu_guard_load_end",
        ".hidden __bfemu_guard_load_end",
        "__bfemu_guard_load_end:",
        "mov rax, rcx",
        "ret",
        ".size __bfemu_guard_load64, . - __bfemu_guard_load64",
    );
}

#[cfg(target_arch = "aarch64")]
mod arch {
    std::arch::global_asm!(
        ".balign 16",
        ".globl __bfemu_guard_copy",
        ".hidden __bfemu_guard_copy",
        ".type __bfemu_guard_copy, @function",
        "__bfemu_guard_copy:", // x0 to, x1 from, x2 length; returns the bytes not copied
        ".globl __bfemu_guard_begin",
        ".hidden __bfemu_guard_begin",
        "__bfemu_guard_begin:",
        "1: cmp x2, #16",
        "b.lo 2f",
        "ldp x3, x4, [x1], #16",
        "stp x3, x4, [x0], #16",
        "sub x2, x2, #16",
        "b 1b",
        "2: cbz x2, 3f",
        "ldrb w3, [x1], #1",
        "strb w3, [x0], #1",
        "sub x2, x2, #1",
        "b 2b",
        "3:",
        ".globl __bfemu_guard_end",
        ".hidden __bfemu_guard_end",
        "__bfemu_guard_end:",
        "mov x0, x2",
        "ret",
        ".size __bfemu_guard_copy, . - __bfemu_guard_copy",
        // One instruction copies each word, so a reader on another core never sees a partial word.
        ".globl __bfemu_guard_load64",
        ".hidden __bfemu_guard_load64",
        ".type __bfemu_guard_load64, @function",
        "__bfemu_guard_load64:", // x0 to, x1 from, aligned; returns 0, or 8 on a fault
        "mov x2, #8",
        ".globl __bfemu_guard_load_begin",
        ".hidden __bfemu_guard_load_begin",
        "__bfemu_guard_load_begin:",
        "ldr x3, [x1]",
        "str x3, [x0]",
        "mov x2, #0",
        ".globl __bfemu_guard_load_end",
        ".hidden __bfemu_guard_load_end",
        "__bfemu_guard_load_end:",
        "mov x0, x2",
        "ret",
        ".size __bfemu_guard_load64, . - __bfemu_guard_load64",
    );
}

mod entry {
    unsafe extern "C" {
        fn __bfemu_guard_copy(to: usize, from: usize, length: usize) -> usize;
        fn __bfemu_guard_load64(to: usize, from: usize) -> usize;
        static __bfemu_guard_begin: u8;
        static __bfemu_guard_end: u8;
        static __bfemu_guard_load_begin: u8;
        static __bfemu_guard_load_end: u8;
    }

    /// # Safety
    /// As for [`super::copy`].
    pub(super) unsafe fn copy(to: usize, from: usize, length: usize) -> usize {
        // SAFETY: the caller's promise. After a fault, `fixup` resumes at the end label, where a
        // register has the number of bytes not copied.
        unsafe { __bfemu_guard_copy(to, from, length) }
    }

    /// # Safety
    /// `to` is writable for 8 bytes, which no other thread accesses, and `from` is aligned to 8 bytes. `from` may be unmapped.
    pub(super) unsafe fn load64(to: usize, from: usize) -> usize {
        // SAFETY: as above.
        unsafe { __bfemu_guard_load64(to, from) }
    }

    pub(super) fn fixup(at: usize) -> Option<usize> {
        let within = |begin: *const u8, end: *const u8| {
            (begin.addr()..end.addr()).contains(&at).then(|| end.addr())
        };
        within(&raw const __bfemu_guard_begin, &raw const __bfemu_guard_end).or_else(|| {
            within(
                &raw const __bfemu_guard_load_begin,
                &raw const __bfemu_guard_load_end,
            )
        })
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the copies are written for x86_64 and aarch64");

/// The address at which a thread resumes after a fault at `at` in a guarded copy; None for any
/// other code. For the handler of SIGSEGV and SIGBUS.
#[must_use]
pub fn fixup(at: usize) -> Option<usize> {
    entry::fixup(at)
}

/// Copies `length` bytes within this process.
///
/// # Errors
/// EFAULT: a page of either side is not accessible. Bytes before it may have been copied.
///
/// # Safety
/// `to` must be memory that the caller may change, or unmapped. The ranges must not overlap.
/// The handler of SIGSEGV and SIGBUS must call [`fixup`], or a fault ends the process.
pub unsafe fn copy(to: usize, from: usize, length: usize) -> sys::Result<()> {
    // SAFETY: the caller's promise.
    match unsafe { entry::copy(to, from, length) } {
        0 => Ok(()),
        _ => Err(Errno(libc::EFAULT)),
    }
}

/// Copies from an address of this process into `bytes`. No other thread may access `bytes`. A
/// concurrent writer of the source causes a mix of old and new bytes and no other harm.
///
/// # Errors
/// EFAULT: a page is missing.
pub fn read(from: u64, bytes: &mut [u8]) -> sys::Result<()> {
    let from = usize::try_from(from).map_err(|_| Errno(libc::EFAULT))?;
    // SAFETY: the target is an exclusive slice. The source is only read, and a fault is reported.
    unsafe { copy(bytes.as_mut_ptr().addr(), from, bytes.len()) }
}

/// Reads one aligned 64-bit word of this process atomically.
///
/// # Errors
/// EFAULT: the page is missing.
pub fn read_word(from: u64) -> sys::Result<[u8; 8]> {
    let mut word = [0; 8];
    let from = usize::try_from(from).map_err(|_| Errno(libc::EFAULT))?;
    // SAFETY: the target is a local array of eight bytes. The source is only read, and a fault is
    // reported.
    match unsafe { entry::load64(word.as_mut_ptr().addr(), from) } {
        0 => Ok(word),
        _ => Err(Errno(libc::EFAULT)),
    }
}

/// Copies `bytes` to an address of this process.
///
/// # Errors
/// EFAULT: a page is missing or read-only.
///
/// # Safety
/// The application must have named the memory to the kernel as a buffer that may be changed.
pub unsafe fn write(to: u64, bytes: &[u8]) -> sys::Result<()> {
    let to = usize::try_from(to).map_err(|_| Errno(libc::EFAULT))?;
    // SAFETY: the source is a slice. The caller promises that the target may be changed.
    unsafe { copy(to, bytes.as_ptr().addr(), bytes.len()) }
}
