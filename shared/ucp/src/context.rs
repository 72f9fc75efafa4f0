//! A UCP context: one UCX instance with its devices, registrations and caches.

use super::Result;
use super::error::check;
use std::ffi::CString;
use std::rc::Rc;
use ucx_sys::{
    UCP_FEATURE_AM, UCP_FEATURE_EXPORTED_MEMH, UCP_FEATURE_RMA, UCP_FEATURE_WAKEUP,
    UCP_PARAM_FIELD_FEATURES, UCP_PARAM_FIELD_NAME, UCP_PARAM_FIELD_REQUEST_SIZE,
    UCS_ERR_INVALID_PARAM, Ucp, ucp_config_t, ucp_context_h, ucp_params_t,
};

/// A UCP context with the features of an offloaded transfer: RMA, active messages, exported memory
/// handles, wake-up.
///
/// Clones share the context. The last object that uses it cleans it up.
#[derive(Debug, Clone)]
pub struct Context {
    inner: Rc<Inner>,
}

#[derive(Debug)]
struct Inner {
    ucp: &'static Ucp,
    handle: ucp_context_h,
    access_min: usize,
}

/// Bytes of a request of UCX that belong to this crate: the tag of a get.
pub(super) const REQUEST_BYTES: usize = size_of::<u64>();

/// UCX settings with which the CPU never executes a get into imported memory, whatever its length.
///
/// UCX chooses a protocol for each length. For an imported memory handle only `get/zcopy` is right: `get/bcopy` would
/// copy to the exporter's address in this process. With all others out of the choice, a get that zero-copy cannot do
/// fails. Needs UCX's protocol selection of 1.18 or later, which is its default; `PROTOS` has been there as long.
/// Eager messages are kept from zero-copy as well: their buffers are short-lived, and each would be registered.
const BY_DEVICE_ALONE: [(&str, &str); 2] = [
    ("PROTO_ENABLE", "y"),
    ("PROTOS", "^get/[!z]*,am/egr/*zcopy*"),
];

impl Context {
    /// The shortest access to imported memory, in bytes: 16 KiB, well above the sizes at which UCX copies with the CPU.
    ///
    /// UCX 1.20 and 1.23 copy a put of up to 9939 bytes and a get of up to 624 with the CPU even when the memory
    /// handle is imported (`UCX_PROTO_INFO=y` shows the ranges), which would touch this process's own memory at the
    /// exporter's address.
    pub const ACCESS_MIN: usize = 16 << 10;

    /// The same limit in a context from [`Context::with_settings`], where only the device executes accesses.
    ///
    /// The device itself needs more bytes than a completion carries: 64 with UCX's default
    /// (`UCX_RC_MLX5_TX_INLINE_RESP`), at most 128.
    pub const DEVICE_ACCESS_MIN: usize = 256;

    /// Opens the devices that UCX's configuration (its environment) selects.
    ///
    /// `name` appears in UCX's logs and tools.
    ///
    /// # Errors
    /// UCX's error, for example if no device matches `UCX_TLS`.
    pub fn new(ucp: &'static Ucp, name: &str) -> Result<Self> {
        Self::open(ucp, name, std::ptr::null(), Self::ACCESS_MIN)
    }

    /// Like [`Context::new`], with additional settings: names without `UCX_`, and values. They
    /// override the environment.
    ///
    /// In such a context only the device accesses imported memory, from
    /// [`Context::DEVICE_ACCESS_MIN`] bytes on. Shorter accesses are refused.
    ///
    /// # Errors
    /// UCX's error, for example for an unknown setting.
    pub fn with_settings(ucp: &'static Ucp, name: &str, settings: &[(&str, &str)]) -> Result<Self> {
        Self::with_hints(ucp, name, settings, &[])
    }

    /// Like [`Context::with_settings`], with hints: settings that a UCX may not have, such as those of a transport that it was
    /// built without. UCX ignores the unknown ones.
    ///
    /// # Errors
    /// UCX's error, for example for an unknown setting that is no hint.
    pub fn with_hints(
        ucp: &'static Ucp,
        name: &str,
        settings: &[(&str, &str)],
        hints: &[(&str, &str)],
    ) -> Result<Self> {
        let config = Config::read(ucp)?;
        for (hint, value) in hints {
            // The wheel of UCX 1.23.0 has no DC.
            let _ = config.modify(hint, value);
        }
        for (setting, value) in BY_DEVICE_ALONE.iter().chain(settings) {
            config.modify(setting, value)?;
        }
        Self::open(ucp, name, config.handle, Self::DEVICE_ACCESS_MIN)
    }

    fn open(
        ucp: &'static Ucp,
        name: &str,
        config: *const ucp_config_t,
        access_min: usize,
    ) -> Result<Self> {
        // A name with a NUL cannot be passed. UCX then generates a name.
        let c_name = CString::new(name).unwrap_or_default();
        let params = ucp_params_t {
            field_mask: u64::from(
                UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME | UCP_PARAM_FIELD_REQUEST_SIZE,
            ),
            request_size: REQUEST_BYTES,
            features: u64::from(
                UCP_FEATURE_RMA | UCP_FEATURE_AM | UCP_FEATURE_EXPORTED_MEMH | UCP_FEATURE_WAKEUP,
            ),
            name: c_name.as_ptr(),
            ..Default::default()
        };
        let mut handle = std::ptr::null_mut();
        // SAFETY: `params` lives through the call, its three fields are valid and named in the mask (UCX copies the
        // name), `config` is null, which means the environment's, or was read above, and `handle` can be written.
        let status = unsafe { ucp.ucp_init(&raw const params, config, &raw mut handle) };
        check(ucp, "ucp_init", status, || name.to_owned())?;
        Ok(Self {
            inner: Rc::new(Inner {
                ucp,
                handle,
                access_min,
            }),
        })
    }

    /// UCX's version.
    #[must_use]
    pub fn version(&self) -> &'static str {
        self.inner.ucp.version()
    }

    /// The shortest permitted access to imported memory, in bytes.
    #[inline]
    #[must_use]
    pub fn access_min(&self) -> usize {
        self.inner.access_min
    }

    #[inline]
    pub(super) fn ucp(&self) -> &'static Ucp {
        self.inner.ucp
    }

    #[inline]
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

/// UCX's configuration: the environment's settings with later changes.
#[derive(Debug)]
struct Config {
    ucp: &'static Ucp,
    handle: *mut ucp_config_t,
}

impl Config {
    fn read(ucp: &'static Ucp) -> Result<Self> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: null twice means the default prefix and no file, and `handle` can be written.
        let status =
            unsafe { ucp.ucp_config_read(std::ptr::null(), std::ptr::null(), &raw mut handle) };
        check(ucp, "ucp_config_read", status, String::new)?;
        Ok(Self { ucp, handle })
    }

    fn modify(&self, name: &str, value: &str) -> Result<()> {
        let object = || format!("{name}, {value}");
        let (Ok(c_name), Ok(c_value)) = (CString::new(name), CString::new(value)) else {
            return check(self.ucp, "ucp_config_modify", UCS_ERR_INVALID_PARAM, object);
        };
        // SAFETY: the configuration was read and not released, and both texts live through the call, which copies.
        let status = unsafe {
            self.ucp
                .ucp_config_modify(self.handle, c_name.as_ptr(), c_value.as_ptr())
        };
        check(self.ucp, "ucp_config_modify", status, object)
    }
}

impl Drop for Config {
    fn drop(&mut self) {
        // SAFETY: the configuration came from ucp_config_read and is released once; ucp_init copied what it needs.
        unsafe { self.ucp.ucp_config_release(self.handle) };
    }
}
