//! How the C library returns memory to the system.

/// Size from which a block is a mapping of its own, which its release unmaps.
const MAPPED: libc::c_int = 512 << 10;

/// Large blocks never lie in the heap. By default the C library raises this limit with each released mapping, up to 32 MiB. UCX's
/// buffers of a job would then lie in the heap, in large pages, and what remains of a page keeps all of it resident.
pub(super) fn map_large_blocks() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt takes plain numbers and may be called at any time.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED);
    }
}
