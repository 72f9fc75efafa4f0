//! Memory that the C library keeps after it was freed.

/// Returns free memory to the system. It takes milliseconds, and other threads cannot allocate meanwhile: call it when
/// there is no work.
///
/// The C library returns only the end of a heap. One allocation there keeps all freed memory below it.
pub fn release_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes a plain number and may be called at any time from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}
