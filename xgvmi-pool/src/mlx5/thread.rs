//! The thread pointer: a mark of the calling thread at the cost of one instruction.

/// The thread pointer. On x86-64 the ABI keeps it at offset zero of its segment, on aarch64 in a
/// register. `None` on other systems.
#[must_use]
#[inline(always)]
pub fn pointer() -> Option<usize> {
    #[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
    {
        let pointer: usize;
        // SAFETY: reads one word that the C library set up before the thread started (System V ABI,
        // thread-local storage, variant II).
        unsafe {
            std::arch::asm!(
                "mov {}, qword ptr fs:[0]",
                out(reg) pointer,
                options(pure, readonly, nostack, preserves_flags)
            );
        }
        Some(pointer)
    }
    #[cfg(all(target_arch = "aarch64", target_os = "linux", not(miri)))]
    {
        let pointer: usize;
        // SAFETY: reads a register that the C library set up before the thread started (ELF for the
        // Arm 64-bit architecture, thread-local storage, variant I).
        unsafe {
            std::arch::asm!(
                "mrs {}, tpidr_el0",
                out(reg) pointer,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        Some(pointer)
    }
    #[cfg(any(
        not(any(target_arch = "x86_64", target_arch = "aarch64")),
        not(target_os = "linux"),
        miri
    ))]
    None
}

/// Number of the calling thread, in the order of first calls. No other living thread has it.
#[must_use]
#[inline(always)]
pub fn number() -> usize {
    crate::sync::thread_number(pointer())
}

#[cfg(test)]
mod tests {
    use super::pointer;

    #[test]
    fn threads_have_different_marks() {
        let here = pointer();
        assert_eq!(here, pointer());
        let there = std::thread::spawn(pointer).join().expect("no panic");
        if here.is_some() {
            assert_ne!(here, there);
            assert_ne!(here, Some(0));
        }
    }
}
