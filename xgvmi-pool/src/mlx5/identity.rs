//! The identity of an adapter: device name, model and firmware, queried on demand.

use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::Arc;

use mlx5dv_sys::{Mlx5Lib, ibv_context, ibv_device_attr};

/// The identity of an adapter, queried on demand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Identity<'d> {
    lib: &'d Arc<Mlx5Lib>,
    context: NonNull<ibv_context>,
}

impl<'d> Identity<'d> {
    /// The adapter of a context that is live while the library is borrowed.
    pub(super) fn lazy(lib: &'d Arc<Mlx5Lib>, context: NonNull<ibv_context>) -> Self {
        Self { lib, context }
    }

    /// Name of the device, such as `mlx5_0`.
    pub(super) fn name(&self) -> String {
        // SAFETY: a live context points to its device, which exists as long as the context.
        let name = unsafe {
            self.lib
                .ibv_get_device_name((*self.context.as_ptr()).device)
        };
        if name.is_null() {
            return "?".to_owned();
        }
        // SAFETY: a device's name is a string.
        let name = unsafe { CStr::from_ptr(name) };
        name.to_string_lossy().into_owned()
    }

    /// Version of the firmware; "?" if the device does not report it.
    pub(super) fn firmware(&self) -> String {
        self.attributes()
            .map_or_else(|| "?".to_owned(), |attr| firmware(&attr))
    }

    /// Model, revision and firmware as a part of a file name.
    pub(super) fn model(&self) -> Option<String> {
        let attr = self.attributes()?;
        let keep = |c: char| match c.is_ascii_alphanumeric() || c == '.' {
            true => c,
            false => '_',
        };
        let firmware: String = firmware(&attr).chars().map(keep).collect();
        let (part, revision) = (attr.vendor_part_id, attr.hw_ver);
        Some(format!("{part:x}-{revision:x}-{firmware}"))
    }

    fn attributes(&self) -> Option<ibv_device_attr> {
        let mut attr = ibv_device_attr::default();
        // SAFETY: the context is live, and the attributes are of the type asked for.
        let failed = unsafe {
            self.lib
                .ibv_query_device(self.context.as_ptr(), &raw mut attr)
        };
        (failed == 0).then_some(attr)
    }
}

fn firmware(attr: &ibv_device_attr) -> String {
    let bytes = attr.fw_ver.map(c_char_byte);
    let end = bytes.iter().position(|&byte| byte == 0);
    let bytes = &bytes[..end.unwrap_or(bytes.len())];
    String::from_utf8_lossy(bytes).into_owned()
}

/// The bits of a C character. The type is signed on some processors.
fn c_char_byte(c: std::ffi::c_char) -> u8 {
    let [byte] = c.to_ne_bytes();
    byte
}
