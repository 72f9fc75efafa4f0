//! Remote keys that a peer has packed.

use super::error::check;
use super::{Endpoint, Result};
use std::any::Any;
use std::rc::Rc;
use ucx_sys::{Ucp, ucp_request_param_t, ucp_rkey_h, ucs_status_ptr_t};

/// A peer's memory, accessible over one endpoint. Clones share the key.
#[derive(Debug, Clone)]
pub struct RemoteKey {
    inner: Rc<Inner>,
}

#[derive(Debug)]
struct Inner {
    endpoint: Endpoint,
    handle: ucp_rkey_h,
    /// That of the endpoint, which each get would look up otherwise.
    ucp: &'static Ucp,
}

impl RemoteKey {
    /// Unpacks a peer's key for use over `endpoint`.
    ///
    /// # Errors
    /// UCX's error, for example if no transport of the endpoint can use the key; the connection's
    /// error.
    ///
    /// # Safety
    /// `packed` holds the bytes of a [`PackedRkey`](super::PackedRkey), unchanged: UCX reads them without knowing their
    /// length.
    pub unsafe fn unpack(endpoint: &Endpoint, packed: &[u8]) -> Result<Self> {
        endpoint.check_alive()?;
        let ucp = endpoint.worker().ucp();
        let mut handle = std::ptr::null_mut();
        // SAFETY: the endpoint is alive, the caller vouches for the bytes, and `handle` can be written.
        let status = unsafe {
            ucp.ucp_ep_rkey_unpack(endpoint.handle(), packed.as_ptr().cast(), &raw mut handle)
        };
        check(ucp, "ucp_ep_rkey_unpack", status, || {
            format!("{}, {} bytes", endpoint.peer(), packed.len())
        })?;
        Ok(Self {
            inner: Rc::new(Inner {
                endpoint: endpoint.clone(),
                handle,
                ucp,
            }),
        })
    }

    /// Starts a get, see [`Endpoint::post_get`].
    #[inline(always)]
    pub(super) fn get(
        &self,
        remote_address: u64,
        address: u64,
        length: usize,
        param: &ucp_request_param_t,
    ) -> Result<ucs_status_ptr_t> {
        let Inner {
            endpoint,
            handle,
            ucp,
        } = &*self.inner;
        endpoint.post_get((ucp, *handle), remote_address, address, length, param)
    }

    /// What owns the key.
    #[inline]
    pub(super) fn owner(&self) -> &Rc<impl Any + use<>> {
        &self.inner
    }

    #[inline]
    pub(super) fn ucp(&self) -> &'static Ucp {
        self.inner.ucp
    }

    #[inline]
    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.inner.endpoint
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let ucp = self.ucp;
        // SAFETY: the key came from ucp_ep_rkey_unpack and is destroyed once, before its endpoint, which it holds;
        // no operation uses it, since each holds a clone.
        unsafe { ucp.ucp_rkey_destroy(self.handle) };
    }
}
