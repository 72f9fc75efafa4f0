//! An open function of the DPU.

use crate::error::Result;
use mlx5dv_sys::{Mlx5Lib, ibv_context, ibv_pd};
use std::sync::Arc;
use xgvmi_pool::mlx5::{Function, Mlx5Device, Mlx5Options};

/// An open function with its protection domain, and the device that creates aliases.
///
/// Memory and queues hold an `Arc` of it, so it closes after them. If an alias remains by then, context and domain stay
/// open until the process ends.
#[derive(Debug)]
pub struct Adapter {
    device: Arc<Mlx5Device>,
    function: Function,
}

impl Adapter {
    /// Opens the mlx5 device with this name, or the first one.
    ///
    /// # Errors
    /// The libraries do not load; there is no such device (the error lists those that exist); or it has no DEVX.
    pub fn open(name: Option<&str>) -> Result<Arc<Self>> {
        let lib = Arc::new(Mlx5Lib::open()?);
        let function = Function::open(&lib, name)?;
        Ok(Arc::new(Self {
            device: function.device(Mlx5Options::default())?,
            function,
        }))
    }

    /// The device for aliases, always the same one.
    #[must_use]
    pub fn device(&self) -> Arc<Mlx5Device> {
        Arc::clone(&self.device)
    }

    /// Open context and protection domain, for queues that another library creates. They close with this value.
    #[must_use]
    pub fn raw(&self) -> (*mut ibv_context, *mut ibv_pd) {
        (self.context(), self.pd())
    }

    pub(crate) fn lib(&self) -> &Mlx5Lib {
        self.function.parts().0
    }

    pub(crate) fn context(&self) -> *mut ibv_context {
        self.function.parts().1.as_ptr()
    }

    pub(crate) fn pd(&self) -> *mut ibv_pd {
        self.function.parts().2.as_ptr()
    }
}
