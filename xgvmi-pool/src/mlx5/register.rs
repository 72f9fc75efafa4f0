//! A doorbell register for one queue pair only, from a thread domain.
//!
//! A context gives its first queue pairs (four by default) one register each. All later queue pairs
//! share some registers, under a lock that only libmlx5 can take (rdma-core 44,
//! `providers/mlx5/verbs.c`, `mlx5_get_qp_uar`). A queue pair of a thread domain has the domain's
//! register, which libmlx5 gives to no other (`mlx5_alloc_td`).

use std::ptr::NonNull;
use std::sync::Arc;

use mlx5dv_sys::{
    Mlx5Lib, ibv_alloc_parent_domain, ibv_alloc_td, ibv_context, ibv_dealloc_td,
    ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr,
};

/// A thread domain, and the parent domain that joins it with the protection domain. The drop frees
/// both. It must follow the destruction of the queue pair.
#[derive(Debug)]
pub(super) struct Register {
    lib: Arc<Mlx5Lib>,
    td: NonNull<ibv_td>,
    pd: NonNull<ibv_pd>,
}

// SAFETY: libibverbs objects belong to the process and are safe to use from any thread.
unsafe impl Send for Register {}
// SAFETY: as above; the value itself never changes.
unsafe impl Sync for Register {}

impl Register {
    /// Allocates a register, or returns the error number.
    ///
    /// # Safety
    /// `context` and `pd` are live, made by `lib`, and outlive the drop.
    pub(super) unsafe fn alloc(
        lib: &Arc<Mlx5Lib>,
        context: NonNull<ibv_context>,
        pd: NonNull<ibv_pd>,
    ) -> Result<Self, i32> {
        let mut attr = ibv_td_init_attr::default();
        // SAFETY: the context is live by the caller's promise.
        let td = unsafe { ibv_alloc_td(context.as_ptr(), &raw mut attr) };
        let td = NonNull::new(td).ok_or_else(errno)?;
        let mut attr = ibv_parent_domain_init_attr {
            pd: pd.as_ptr(),
            td: td.as_ptr(),
            ..ibv_parent_domain_init_attr::default()
        };
        // SAFETY: the attributes name live domains of the context.
        let parent = unsafe { ibv_alloc_parent_domain(context.as_ptr(), &raw mut attr) };
        let Some(parent) = NonNull::new(parent) else {
            let errno = errno();
            // SAFETY: just allocated and unreferenced.
            unsafe { ibv_dealloc_td(td.as_ptr()) };
            return Err(errno);
        };
        Ok(Self {
            lib: Arc::clone(lib),
            td,
            pd: parent,
        })
    }

    /// The domain to create the queue pair in.
    pub(super) fn domain(&self) -> *mut ibv_pd {
        self.pd.as_ptr()
    }
}

impl Drop for Register {
    fn drop(&mut self) {
        // If the kernel refuses, the domains end with the context.
        // SAFETY: live until here, and its
        // queue pair is gone.
        unsafe { self.lib.ibv_dealloc_pd(self.pd.as_ptr()) };
        // SAFETY: as above; the domain that referred to it is gone.
        unsafe { ibv_dealloc_td(self.td.as_ptr()) };
    }
}

fn errno() -> i32 {
    std::io::Error::last_os_error()
        .raw_os_error()
        .unwrap_or(libc::EIO)
}
