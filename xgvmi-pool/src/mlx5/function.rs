//! A function of an adapter, opened by name: verbs context and protection domain, for programs
//! without their own.

use std::ffi::{CStr, c_int};
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use mlx5dv_sys::{MLX5DV_CONTEXT_FLAGS_DEVX, Mlx5Lib, ibv_context, ibv_pd, mlx5dv_context_attr};

use super::device::{Mlx5Device, Mlx5Options};
use super::gid;
use crate::error::DeviceError;

/// An open function. Dropping it closes the device of [`Function::device`], which refuses every
/// call afterwards.
///
/// May be used from any thread.
#[derive(Debug)]
pub struct Function {
    name: String,
    lib: Arc<Mlx5Lib>,
    context: NonNull<ibv_context>,
    pd: NonNull<ibv_pd>,
    device: OnceLock<Arc<Mlx5Device>>,
}

// SAFETY: the pointers are libibverbs' objects, safe to use from any thread; all other fields are
// Send by themselves.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    /// Opens the mlx5 device of that name with DEVX, or the first device if no name is given.
    ///
    /// # Errors
    /// If there is no such device, or it does not open. The error lists the available devices.
    pub fn open(lib: &Arc<Mlx5Lib>, name: Option<&str>) -> Result<Self, DeviceError> {
        let mut count: c_int = 0;
        // SAFETY: the list is freed below, after the device was opened.
        let list = unsafe { lib.ibv_get_device_list(&raw mut count) };
        if list.is_null() {
            return Err(last_error(
                "a list of devices (ibv_get_device_list)",
                "load the kernel modules mlx5_ib and ib_uverbs",
            ));
        }
        let mut names = Vec::new();
        let mut opened = None;
        for index in 0..usize::try_from(count).expect("libibverbs counts devices from 0") {
            // SAFETY: the list has `count` entries.
            let device = unsafe { *list.add(index) };
            // SAFETY: a device of the list.
            if !unsafe { lib.mlx5dv_is_supported(device) } {
                continue;
            }
            // SAFETY: a device of the list has a name for as long as the list lives.
            let found = unsafe { CStr::from_ptr(lib.ibv_get_device_name(device)) };
            let found = found.to_string_lossy().into_owned();
            if name.is_none_or(|name| name == found) {
                let mut attr = mlx5dv_context_attr {
                    flags: MLX5DV_CONTEXT_FLAGS_DEVX,
                    ..mlx5dv_context_attr::default()
                };
                // SAFETY: an mlx5 device of the list.
                let context = unsafe { lib.mlx5dv_open_device(device, &raw mut attr) };
                let context = NonNull::new(context).ok_or_else(|| {
                    last_error(
                        &format!("{found} with DEVX (mlx5dv_open_device)"),
                        "check this user's access to /dev/infiniband, and that the kernel is 5.0 or later",
                    )
                });
                opened = Some((found, context));
                break;
            }
            names.push(found);
        }
        // SAFETY: the list of above; an open device does not need it.
        unsafe { lib.ibv_free_device_list(list) };
        let Some((name, context)) = opened else {
            let what = match name {
                Some(name) => format!("device {name}: there are {names:?}"),
                None => "mlx5: there is no such device".to_owned(),
            };
            return Err(DeviceError::Unsupported { what });
        };
        let context = context?;
        // SAFETY: just opened.
        let pd = unsafe { lib.ibv_alloc_pd(context.as_ptr()) };
        let Some(pd) = NonNull::new(pd) else {
            let error = last_error(
                "a protection domain (ibv_alloc_pd)",
                "check the kernel's log",
            );
            // SAFETY: just opened, and it has no objects.
            unsafe { lib.ibv_close_device(context.as_ptr()) };
            return Err(error);
        };
        Ok(Self {
            name,
            lib: Arc::clone(lib),
            context,
            pd,
            device: OnceLock::new(),
        })
    }

    /// Name of the device, such as `mlx5_0`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The device for the pool and the alias map. The first call opens it with the options; later
    /// calls return the same device.
    ///
    /// # Errors
    /// The errors of [`Mlx5Device::open`].
    pub fn device(&self, options: Mlx5Options) -> Result<Arc<Mlx5Device>, DeviceError> {
        if let Some(device) = self.device.get() {
            return Ok(Arc::clone(device));
        }
        // SAFETY: opened with DEVX by this library; both are closed by the drop, after the device.
        let device =
            unsafe { Mlx5Device::open(Arc::clone(&self.lib), self.context, self.pd, options) }?;
        // Another thread may have been faster. Dropping this thread's device closes it.
        Ok(Arc::clone(self.device.get_or_init(|| device)))
    }

    /// The entries of an Ethernet port's GID table: index and address, in the order in which queues try them.
    #[must_use]
    pub fn gids(&self, port: u8) -> Vec<(u8, [u8; 16])> {
        // SAFETY: the context is open.
        let gids = unsafe { gid::in_order_of_ucx(&self.lib, self.context, port) };
        gids.iter()
            .map(|(index, gid)| (*index, gid::bytes(gid)))
            .collect()
    }

    /// Library, context and protection domain, for a program's own queues and memory. They are valid
    /// as long as the function lives, and the program destroys its objects before.
    #[must_use]
    pub fn parts(&self) -> (&Arc<Mlx5Lib>, NonNull<ibv_context>, NonNull<ibv_pd>) {
        (&self.lib, self.context, self.pd)
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        if self.device.get().is_some_and(|device| !device.close()) {
            // A call is still inside, or an object remains: keep the domain and the context that it
            // uses.
            return;
        }
        // SAFETY: the domain has no objects: the device is closed, and `Steps` borrow the function.
        unsafe { self.lib.ibv_dealloc_pd(self.pd.as_ptr()) };
        // SAFETY: its domain is gone.
        unsafe { self.lib.ibv_close_device(self.context.as_ptr()) };
    }
}

fn last_error(what: &str, advice: &str) -> DeviceError {
    let error = io::Error::last_os_error();
    // Some failures of libibverbs do not set errno.
    let reason = match error.raw_os_error() {
        None | Some(0) => "no reason given".to_owned(),
        Some(_) => error.to_string(),
    };
    DeviceError::Unsupported {
        what: format!("{what}: {reason}; {advice}"),
    }
}
