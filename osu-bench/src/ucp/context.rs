//! A UCP context: one UCX instance with its devices, registrations and caches.

use super::error::check;
use super::{Result, Worker};
use std::ffi::CString;
use std::rc::Rc;
use ucx_sys::{
    UCP_FEATURE_AM, UCP_FEATURE_EXPORTED_MEMH, UCP_FEATURE_RMA, UCP_FEATURE_WAKEUP,
    UCP_PARAM_FIELD_FEATURES, UCP_PARAM_FIELD_NAME, Ucp, ucp_context_h, ucp_params_t,
};

/// A UCP context with the features of an offloaded transfer: RMA, active messages, exported memory handles, wake-up.
///
/// Clones share the context; it is cleaned up with the last object that uses it.
#[derive(Debug, Clone)]
pub struct Context {
    inner: Rc<Inner>,
}

#[derive(Debug)]
struct Inner {
    ucp: &'static Ucp,
    handle: ucp_context_h,
}

impl Context {
    /// Opens the devices that UCX's configuration (its environment) selects.
    ///
    /// `name` shows in UCX's logs and tools.
    ///
    /// # Errors
    /// UCX's, for instance when no device fits `UCX_TLS`.
    pub fn new(ucp: &'static Ucp, name: &str) -> Result<Self> {
        // A name with a NUL cannot be passed; UCX then makes up its own.
        let c_name = CString::new(name).unwrap_or_default();
        let params = ucp_params_t {
            field_mask: u64::from(UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME),
            features: u64::from(
                UCP_FEATURE_RMA | UCP_FEATURE_AM | UCP_FEATURE_EXPORTED_MEMH | UCP_FEATURE_WAKEUP,
            ),
            name: c_name.as_ptr(),
            ..Default::default()
        };
        let mut handle = std::ptr::null_mut();
        // SAFETY: `params` lives through the call, its two fields are valid and named in the mask (UCX copies the
        // name), a null configuration means the environment's, and `handle` can be written.
        let status = unsafe { ucp.ucp_init(&raw const params, std::ptr::null(), &raw mut handle) };
        check(ucp, "ucp_init", status, || name.to_owned())?;
        Ok(Self {
            inner: Rc::new(Inner { ucp, handle }),
        })
    }

    /// Makes a worker, with an inbox for active messages of the identifiers `0..message_ids`.
    ///
    /// # Errors
    /// UCX's.
    pub fn worker(&self, message_ids: u16) -> Result<Worker> {
        Worker::new(self, message_ids)
    }

    pub(super) fn ucp(&self) -> &'static Ucp {
        self.inner.ucp
    }

    pub(super) fn handle(&self) -> ucp_context_h {
        self.inner.handle
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: the handle came from ucp_init and is cleaned up once; every object made from it holds this Rc, so
        // none is left.
        unsafe { self.ucp.ucp_cleanup(self.handle) };
    }
}
