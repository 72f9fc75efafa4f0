//! Registered memory.

use crate::error::{NaaError, Result};
use rdmacm_sys::{IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, RdmaCmLib, ibv_mr, ibv_pd};
use std::ptr::NonNull;

/// Rights of a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rights {
    /// This process's adapter reads it.
    Read,
    /// The peer writes it as well.
    Write,
}

/// A registration. It does not own the memory.
#[derive(Debug)]
pub(crate) struct Registration {
    lib: &'static RdmaCmLib,
    mr: NonNull<ibv_mr>,
}

// SAFETY: libibverbs' objects may be used from any thread.
unsafe impl Send for Registration {}

impl Registration {
    /// # Safety
    /// The memory stays mapped as long as the registration lives, and the domain is live. Nobody holds a reference to
    /// bytes that the peer writes.
    pub(crate) unsafe fn new(
        lib: &'static RdmaCmLib,
        pd: NonNull<ibv_pd>,
        (addr, size): (u64, usize),
        rights: Rights,
    ) -> Result<Self> {
        let access = match rights {
            Rights::Read => 0,
            Rights::Write => IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
        };
        // SAFETY: the caller's promise. The kernel checks the range.
        let mr = unsafe { lib.ibv_reg_mr_iova2(pd.as_ptr(), addr as *mut _, size, addr, access) };
        let mr = NonNull::new(mr).ok_or_else(|| NaaError::last("ibv_reg_mr"))?;
        Ok(Self { lib, mr })
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_mr {
        self.mr.as_ptr()
    }

    pub(crate) fn lkey(&self) -> u32 {
        // SAFETY: the registration is live.
        unsafe { self.mr.as_ref() }.lkey
    }

    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: the registration is live.
        unsafe { self.mr.as_ref() }.rkey
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: registered in `new`, deregistered once; the queue pair that used it is gone or in error.
        unsafe { self.lib.ibv_dereg_mr(self.mr.as_ptr()) };
    }
}
