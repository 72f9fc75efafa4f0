//! The thread pointer: a mark of the calling thread at the cost of one instruction.

/// The thread pointer. On x86-64 the ABI keeps it at offset zero of its segment. `None` on other
/// systems.
#[inline(always)]
pub(super) fn pointer() -> Option<usize> {
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
    #[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(miri))))]
    None
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
