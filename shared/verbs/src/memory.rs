//! Memory of this process that the adapter may read and write.

use crate::adapter::Adapter;
use crate::error::{Result, last};
use mlx5dv_sys::{IBV_ACCESS_LOCAL_WRITE, ibv_mr};
use std::ptr::NonNull;
use std::sync::Arc;

/// A registration of memory that it does not own. Only the own function's queues have access, no peer.
#[derive(Debug)]
pub struct Registered {
    adapter: Arc<Adapter>,
    mr: NonNull<ibv_mr>,
}

// SAFETY: libibverbs' objects may be used from any thread.
unsafe impl Send for Registered {}
// SAFETY: as above; nothing changes after the registration.
unsafe impl Sync for Registered {}

impl Registered {
    /// Registers `len` bytes at `addr`.
    ///
    /// # Safety
    /// The memory stays mapped as long as the result lives.
    ///
    /// # Errors
    /// The kernel refuses, for instance because of the limit of locked memory.
    pub unsafe fn new(adapter: &Arc<Adapter>, addr: *mut u8, len: usize) -> Result<Self> {
        // SAFETY: the caller's promise.
        unsafe { Self::with_access(adapter, addr, len, IBV_ACCESS_LOCAL_WRITE) }
    }

    /// As [`Registered::new`], with these rights.
    ///
    /// # Safety
    /// As for [`Registered::new`].
    pub(crate) unsafe fn with_access(
        adapter: &Arc<Adapter>,
        addr: *mut u8,
        len: usize,
        access: u32,
    ) -> Result<Self> {
        let lib = adapter.lib();
        // SAFETY: the caller's promise.
        let mr =
            unsafe { lib.ibv_reg_mr_iova2(adapter.pd(), addr.cast(), len, addr as u64, access) };
        Ok(Self {
            adapter: Arc::clone(adapter),
            mr: NonNull::new(mr).ok_or_else(|| last("ibv_reg_mr"))?,
        })
    }

    pub(crate) fn lkey(&self) -> u32 {
        // SAFETY: live as long as this value.
        unsafe { self.mr.as_ref() }.lkey
    }

    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.mr.as_ref() }.rkey
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: registered by `new`; transfers are synchronous, so none uses it.
        unsafe { self.adapter.lib().ibv_dereg_mr(self.mr.as_ptr()) };
    }
}

/// Registered memory that it owns. The fields end in their order: the registration before the memory.
#[derive(Debug)]
pub struct Buffer {
    registered: Registered,
    bytes: Box<[u8]>,
}

impl Buffer {
    /// `len` zeros.
    ///
    /// # Errors
    /// As [`Registered::new`].
    pub fn new(adapter: &Arc<Adapter>, len: usize) -> Result<Self> {
        let mut bytes = vec![0; len].into_boxed_slice();
        // SAFETY: the memory lives in the same value, whose drop ends the registration first.
        let registered = unsafe { Registered::new(adapter, bytes.as_mut_ptr(), len) }?;
        Ok(Self { registered, bytes })
    }

    /// The bytes. No copy is under way: copies are synchronous.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Address of the first byte.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.bytes.as_ptr() as u64
    }

    /// The local key.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.registered.lkey()
    }

    /// Address, length and local key.
    pub(crate) fn parts(&self) -> (u64, usize, u32) {
        (self.address(), self.bytes.len(), self.lkey())
    }
}
