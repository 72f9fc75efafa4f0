//! Connecting a queue pair to itself, on a port that is up.

use std::ffi::c_int;
use std::ptr::{self, NonNull};

use mlx5dv_sys::{
    IBV_LINK_LAYER_ETHERNET, IBV_MTU_512, IBV_PORT_ACTIVE, IBV_QP_ACCESS_FLAGS, IBV_QP_AV,
    IBV_QP_DEST_QPN, IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER,
    IBV_QP_PATH_MTU, IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY,
    IBV_QP_RQ_PSN, IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QP_TIMEOUT, IBV_QPS_INIT, IBV_QPS_RTR,
    IBV_QPS_RTS, Mlx5Lib, ibv_ah_attr, ibv_context, ibv_gid, ibv_port_attr, ibv_qp, ibv_qp_attr,
};

use crate::error::DeviceError;

/// Where a queue pair finds itself.
#[derive(Clone, Copy)]
pub(super) struct Loopback {
    port: u8,
    lid: u16,
    /// Index and value of the address to use, where local identifiers do not do.
    gid: Option<(u8, ibv_gid)>,
}

impl std::fmt::Debug for Loopback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loopback")
            .field("port", &self.port)
            .field("lid", &self.lid)
            .field("gid_index", &self.gid.map(|gid| gid.0))
            .finish_non_exhaustive()
    }
}

impl Loopback {
    /// The way over the port and the entry of its GID table that are asked for, or over the first
    /// ones that are in use. InfiniBand needs no GID, so an empty table there does no harm.
    ///
    /// # Errors
    /// If the port is not active, or no GID can be had where one is needed.
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
            let by_gid = u32::from(attr.link_layer) == IBV_LINK_LAYER_ETHERNET || attr.lid == 0;
            if !by_gid {
                return Ok(Self {
                    port,
                    lid: attr.lid,
                    gid: None,
                });
            }
            // SAFETY: the caller's promise.
            let gid = unsafe { find_gid(lib, context, port, attr.gid_tbl_len, gid_index) }?;
            return Ok(Self {
                port,
                lid: attr.lid,
                gid: Some(gid),
            });
        }
        Err(down(match port {
            Some(port) => format!("port {port} is not active"),
            None => format!("none of {ports} ports is active"),
        }))
    }

    /// Takes a new queue pair through its states until it carries requests.
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
        let mut init = ibv_qp_attr {
            qp_state: IBV_QPS_INIT,
            port_num: self.port,
            ..ibv_qp_attr::default()
        };
        let init_mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        // The request never leaves the adapter, so what serves the wire is set to what every port
        // takes.
        let mut rtr = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            path_mtu: IBV_MTU_512,
            dest_qp_num: qpn,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            ah_attr: self.address(),
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
        let steps = [
            ("RESET to INIT", &mut init, init_mask),
            ("INIT to RTR", &mut rtr, rtr_mask),
            ("RTR to RTS", &mut rts, rts_mask),
        ];
        for (step, attr, mask) in steps {
            // Cannot be lost: the mask has 27 bits.
            let mask = c_int::try_from(mask).unwrap_or(0);
            // SAFETY: the queue pair is live, the attributes are those that the mask names.
            let errno = unsafe { lib.ibv_modify_qp(qp.as_ptr(), ptr::from_mut(attr), mask) };
            if errno != 0 {
                return Err(down(format!(
                    "queue pair {qpn:#x}, {step} over {self:?}: errno {errno}"
                )));
            }
        }
        Ok(())
    }

    fn address(&self) -> ibv_ah_attr {
        let mut address = ibv_ah_attr {
            dlid: self.lid,
            port_num: self.port,
            ..ibv_ah_attr::default()
        };
        if let Some((index, gid)) = self.gid {
            address.is_global = 1;
            address.grh.dgid = gid;
            address.grh.sgid_index = index;
            address.grh.hop_limit = 1;
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
    // The exported function fills in all but the youngest fields of the structure, and verbs.h
    // passes its own structure to it in just this way (`___ibv_query_port`).
    let out = ptr::from_mut(&mut attr).cast();
    // SAFETY: the context is live by the caller's promise, the structure is the one asked for.
    let errno = unsafe { lib.ibv_query_port(context.as_ptr(), port, out) };
    if errno == 0 {
        Ok(attr)
    } else {
        Err(down(format!("query of port {port}: errno {errno}")))
    }
}

/// # Safety
/// `context` is a live context made by `lib`.
unsafe fn find_gid(
    lib: &Mlx5Lib,
    context: NonNull<ibv_context>,
    port: u8,
    table_len: c_int,
    index: Option<u8>,
) -> Result<(u8, ibv_gid), DeviceError> {
    let table_len = u8::try_from(table_len.clamp(0, 255)).unwrap_or(0);
    let candidates = match index {
        Some(index) => index..index.saturating_add(1),
        None => 0..table_len,
    };
    for index in candidates {
        let mut gid = ibv_gid::default();
        // SAFETY: the context is live by the caller's promise.
        let failed =
            unsafe { lib.ibv_query_gid(context.as_ptr(), port, c_int::from(index), &raw mut gid) };
        // SAFETY: the union is sixteen plain bytes, whatever was written.
        let raw = unsafe { gid.raw };
        // The last half of an address in use is never zero; an entry that is not in use is.
        if failed == 0 && raw[8..] != [0; 8] {
            return Ok((index, gid));
        }
    }
    Err(down(match index {
        Some(index) => format!("GID {index} of port {port} is empty"),
        None => format!("all {table_len} GIDs of port {port} are empty"),
    }))
}

fn down(reason: String) -> DeviceError {
    DeviceError::QueueDown { reason }
}
