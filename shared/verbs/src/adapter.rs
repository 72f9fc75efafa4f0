//! An open function of the DPU.

use crate::error::{Result, VerbsError, check};
use mlx5dv_sys::{IBV_LINK_LAYER_ETHERNET, Mlx5Lib, ibv_context, ibv_gid, ibv_pd, ibv_port_attr};
use std::sync::Arc;
use xgvmi_pool::mlx5::{Function, Mlx5Device, Mlx5Options};

/// The port of all connections.
pub(crate) const PORT: u8 = 1;

/// Each address on this port needs a global route (`verbs.h`, an unnamed enumeration).
const IBV_QPF_GRH_REQUIRED: u8 = 1 << 0;

/// Address of the port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Port {
    /// Its LID; 0 on Ethernet.
    pub lid: u16,
    /// `IBV_MTU_*`.
    pub mtu: u8,
    /// It is an Ethernet port.
    pub is_ethernet: bool,
    /// Each address needs a global route: that of an Ethernet port, or of an InfiniBand port that says so.
    pub is_global: bool,
}

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

    /// The port.
    ///
    /// # Errors
    /// The adapter does not answer.
    pub fn port(&self) -> Result<Port> {
        let mut port = ibv_port_attr::default();
        // SAFETY: the context is open; the library fills in the older part of the structure.
        let errno = unsafe {
            let attr = std::ptr::from_mut(&mut port).cast();
            self.lib().ibv_query_port(self.context(), PORT, attr)
        };
        check("ibv_query_port", errno)?;
        let is_ethernet = u32::from(port.link_layer) == IBV_LINK_LAYER_ETHERNET;
        Ok(Port {
            lid: port.lid,
            // Codes are 1 to 5.
            mtu: port.active_mtu.to_le_bytes()[0],
            is_ethernet,
            is_global: is_ethernet || port.flags & IBV_QPF_GRH_REQUIRED != 0,
        })
    }

    /// The entry of the GID table that connections to other machines use: its index, and the address.
    pub(crate) fn first_gid(&self, port: Port) -> Result<(u8, [u8; 16])> {
        if port.is_ethernet {
            let none = || VerbsError::Call {
                call: "a GID of the port",
                source: std::io::ErrorKind::AddrNotAvailable.into(),
            };
            return self.function.gids(PORT).first().copied().ok_or_else(none);
        }
        let mut gid = ibv_gid::default();
        // SAFETY: the context is open.
        let errno = unsafe {
            self.lib()
                .ibv_query_gid(self.context(), PORT, 0, &raw mut gid)
        };
        check("ibv_query_gid", errno)?;
        // SAFETY: all fields of the union are sixteen plain bytes.
        Ok((0, unsafe { gid.raw }))
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
