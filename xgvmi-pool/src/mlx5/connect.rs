//! Connection of a queue pair to itself, through an active port.

use std::ffi::c_int;
use std::ptr::{self, NonNull};

use mlx5dv_sys::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE, IBV_LINK_LAYER_ETHERNET, IBV_MTU_512, IBV_PORT_ACTIVE,
    IBV_QP_ACCESS_FLAGS, IBV_QP_AV, IBV_QP_DEST_QPN, IBV_QP_MAX_DEST_RD_ATOMIC,
    IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER, IBV_QP_PATH_MTU, IBV_QP_PKEY_INDEX, IBV_QP_PORT,
    IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN, IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QP_TIMEOUT,
    IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, Mlx5Lib, ibv_ah_attr, ibv_context, ibv_gid,
    ibv_port_attr, ibv_qp, ibv_qp_attr,
};

use super::gid;
use crate::error::DeviceError;

/// Every address on this port needs a global route (`verbs.h`, an unnamed enumeration).
const IBV_QPF_GRH_REQUIRED: u8 = 1 << 0;

/// Maximum number of routes to try. Each failed attempt costs one system call.
const ROUTES_MAX: usize = 8;

/// The routes of a queue pair to itself.
#[derive(Clone)]
pub(super) struct Loopback {
    port: u8,
    lid: u16,
    /// At least one route, in the order of the attempts.
    routes: Vec<Route>,
}

/// One route to the own port.
#[derive(Clone, Copy)]
enum Route {
    /// With a global route to the address at this index of the port's table.
    Global(u8, ibv_gid),
    /// With the local identifier alone.
    Local,
}

impl std::fmt::Debug for Loopback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let indices = self.routes.iter().map(|route| match route {
            Route::Global(index, _) => Some(*index),
            Route::Local => None,
        });
        f.debug_struct("Loopback")
            .field("port", &self.port)
            .field("lid", &self.lid)
            .field("gid_indices", &indices.collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

impl Loopback {
    /// Finds the routes of the requested port, or of the first active one.
    ///
    /// A global route is always present, as in stock UCX for this queue pair. On InfiniBand it
    /// leads to the requested entry of the GID table, or to the first one. The local identifier is
    /// the fallback if the port does not require a global route. On Ethernet the route leads to the
    /// requested entry, or to the first entry in UCX's order (RoCE v2 before v1, IPv4 before IPv6)
    /// that the kernel resolves.
    ///
    /// # Errors
    /// If the port is not active, or a required GID is not available.
    ///
    /// # Safety
    /// `context` is a live context made by `lib`.
    pub(super) unsafe fn find(
        lib: &Mlx5Lib,
        context: NonNull<ibv_context>,
        ports: u8,
        port: Option<u8>,
        gid_index: Option<u8>,
    ) -> Result<Self, DeviceError> {
        let candidates = match port {
            Some(port) => port..=port,
            None => 1..=ports,
        };
        for port in candidates {
            // SAFETY: the caller's promise.
            let attr = unsafe { query_port(lib, context, port) }?;
            if attr.state != IBV_PORT_ACTIVE {
                continue;
            }
            let is_ethernet = u32::from(attr.link_layer) == IBV_LINK_LAYER_ETHERNET;
            let gids = match (is_ethernet, gid_index) {
                // SAFETY: the caller's promise.
                (true, None) => unsafe { gid::in_order_of_ucx(lib, context, port) },
                // SAFETY: the caller's promise.
                (_, index) => unsafe { gid::at(lib, context, port, index.unwrap_or(0)) }
                    .into_iter()
                    .collect(),
            };
            let mut routes: Vec<_> = gids
                .into_iter()
                .map(|(index, gid)| Route::Global(index, gid))
                .take(ROUTES_MAX)
                .collect();
            if !is_ethernet && attr.flags & IBV_QPF_GRH_REQUIRED == 0 && attr.lid != 0 {
                routes.push(Route::Local);
            }
            if routes.is_empty() {
                return Err(down(match gid_index {
                    Some(index) => format!("GID {index} of port {port} is empty"),
                    None => format!("no GID of port {port} can be had"),
                }));
            }
            return Ok(Self {
                port,
                lid: attr.lid,
                routes,
            });
        }
        Err(down(match port {
            Some(port) => format!("port {port} is not active"),
            None => format!("none of {ports} ports is active"),
        }))
    }

    /// Moves a new queue pair through its states until it accepts requests.
    ///
    /// # Errors
    /// If a transition is refused.
    ///
    /// # Safety
    /// `qp` is a live queue pair in the state RESET, made by `lib` on the context of this loopback.
    pub(super) unsafe fn connect(
        &self,
        lib: &Mlx5Lib,
        qp: NonNull<ibv_qp>,
    ) -> Result<(), DeviceError> {
        // SAFETY: live by the caller's promise.
        let qpn = unsafe { (*qp.as_ptr()).qp_num };
        // The access flags of stock UCX for this queue pair. The proofs read through it.
        let access = IBV_ACCESS_LOCAL_WRITE
            | IBV_ACCESS_REMOTE_WRITE
            | IBV_ACCESS_REMOTE_READ
            | IBV_ACCESS_REMOTE_ATOMIC;
        let mut init = ibv_qp_attr {
            qp_state: IBV_QPS_INIT,
            port_num: self.port,
            qp_access_flags: access,
            ..ibv_qp_attr::default()
        };
        let init_mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        // Requests never leave the adapter, so the attributes for the wire have values that every
        // port accepts.
        let mut rtr = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            path_mtu: IBV_MTU_512,
            dest_qp_num: qpn,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            ..ibv_qp_attr::default()
        };
        let rtr_mask = IBV_QP_STATE
            | IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        let mut rts = ibv_qp_attr {
            qp_state: IBV_QPS_RTS,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 1,
            ..ibv_qp_attr::default()
        };
        let rts_mask = IBV_QP_STATE
            | IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_SQ_PSN
            | IBV_QP_MAX_QP_RD_ATOMIC;
        let modify = |attr: &mut ibv_qp_attr, mask: u32| {
            // The conversion cannot fail: the mask has 27 bits.
            let mask = c_int::try_from(mask).unwrap_or(c_int::MAX);
            // SAFETY: the queue pair is live, the attributes are those that the mask names.
            match unsafe { lib.ibv_modify_qp(qp.as_ptr(), ptr::from_mut(attr), mask) } {
                0 => Ok(()),
                errno => Err(errno),
            }
        };
        let refused = |step: &str, errno: i32| {
            down(format!(
                "queue pair {qpn:#x}, {step} over {self:?}: errno {errno}"
            ))
        };
        modify(&mut init, init_mask).map_err(|errno| refused("RESET to INIT", errno))?;
        // A queue pair whose route is refused is still in INIT, so another route may be tried.
        let mut connected = Err(0);
        for route in &self.routes {
            rtr.ah_attr = self.address(*route);
            connected = modify(&mut rtr, rtr_mask);
            if connected.is_ok() {
                break;
            }
        }
        connected.map_err(|errno| refused("INIT to RTR", errno))?;
        modify(&mut rts, rts_mask).map_err(|errno| refused("RTR to RTS", errno))
    }

    fn address(&self, route: Route) -> ibv_ah_attr {
        let mut address = ibv_ah_attr {
            // Zero on Ethernet.
            dlid: self.lid,
            port_num: self.port,
            ..ibv_ah_attr::default()
        };
        if let Route::Global(index, gid) = route {
            // The hop limit stays zero, as in stock UCX: the kernel sets its own if packets could
            // leave the subnet.
            address.is_global = 1;
            address.grh.dgid = gid;
            address.grh.sgid_index = index;
        }
        address
    }
}

/// # Safety
/// `context` is a live context made by `lib`.
unsafe fn query_port(
    lib: &Mlx5Lib,
    context: NonNull<ibv_context>,
    port: u8,
) -> Result<ibv_port_attr, DeviceError> {
    let mut attr = ibv_port_attr::default();
    // The exported function fills in all but the newest fields of the structure. verbs.h passes its
    // own structure to it in the same way (`___ibv_query_port`).
    let out = ptr::from_mut(&mut attr).cast();
    // SAFETY: the context is live by the caller's promise, and the structure has the expected type.
    let errno = unsafe { lib.ibv_query_port(context.as_ptr(), port, out) };
    if errno == 0 {
        Ok(attr)
    } else {
        Err(down(format!("query of port {port}: errno {errno}")))
    }
}

fn down(reason: String) -> DeviceError {
    DeviceError::QueueDown { reason }
}
