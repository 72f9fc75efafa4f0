//! Connections of queue pairs on an InfiniBand port.

pub(crate) use crate::description::End;

use crate::dev::Dev;
use crate::dpa::failed;
use crate::error::{Result, fail};
use flexio::{Qp, Remote, Retries};
use mlx5dv_sys::{IBV_LINK_LAYER_ETHERNET, ibv_gid, ibv_port_attr};
use std::sync::Arc;

/// The port of all connections.
const PORT: u8 = 1;
/// Reads and atomic operations of a connection at a time, as a logarithm.
const LOG_READS: u8 = 4;
/// Wait of a sender whose receiver was not ready: 0.64 ms (IBTA 9.7.5.2.8).
const RNR_TIMER: u8 = 12;

/// Settings of a connection.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Settings {
    pub(crate) has_global_header: bool,
    pub(crate) gid_index: u8,
}

impl End {
    /// The own end of a connection.
    pub(crate) fn of(dev: &Arc<Dev>, qpn: u32, gid_index: u8) -> Result<Self> {
        let port = port_of(dev)?;
        if u32::from(port.link_layer) == IBV_LINK_LAYER_ETHERNET {
            fail!(
                NotSupported,
                "{} is an Ethernet device: connections of the DPA need InfiniBand",
                dev.name()
            );
        }
        let mut gid = ibv_gid::default();
        // SAFETY: the context is open.
        let status = unsafe {
            dev.lib()
                .ibv_query_gid(dev.context(), PORT, i32::from(gid_index), &raw mut gid)
        };
        if status != 0 {
            fail!(
                InvalidValue,
                "{} has no global address with index {gid_index}",
                dev.name()
            );
        }
        Ok(Self {
            qpn,
            psn: 0,
            lid: port.lid,
            is_ethernet: false,
            mtu: u8::try_from(port.active_mtu).unwrap_or(1),
            // SAFETY: all bytes of the union are initialized.
            gid: unsafe { gid.raw },
        })
    }
}

/// The port of a device.
pub(crate) fn port_of(dev: &Arc<Dev>) -> Result<ibv_port_attr> {
    let mut port = ibv_port_attr::default();
    // SAFETY: the context is open. The library writes the older, shorter structure, as the header's own wrapper lets it.
    let status = unsafe {
        dev.lib()
            .ibv_query_port(dev.context(), PORT, (&raw mut port).cast())
    };
    if status != 0 {
        fail!(
            Driver,
            "{} does not state its port: {}",
            dev.name(),
            std::io::Error::from_raw_os_error(status)
        );
    }
    Ok(port)
}

/// The MAC of the node with a GID, on Ethernet. A link-local GID contains it (RFC 4291, appendix A).
pub(crate) fn mac_of(dev: &Arc<Dev>, gid: &[u8; 16]) -> Result<[u8; 6]> {
    if u32::from(port_of(dev)?.link_layer) != IBV_LINK_LAYER_ETHERNET {
        return Ok([0; 6]);
    }
    match *gid {
        [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a, b, c, 0xff, 0xfe, d, e, f] => Ok([a ^ 2, b, c, d, e, f]),
        _ => fail!(
            NotSupported,
            "the GID is not link-local, so that its MAC is unknown: use the GID with index 0 of both ports"
        ),
    }
}

/// Lets a queue pair receive, with these rights of the other node.
pub(crate) fn prepare(qp: &Qp, access: u32) -> Result<()> {
    qp.to_init(access, PORT, 0).map_err(failed)
}

/// Connects a queue pair.
pub(crate) fn connect(qp: &Qp, dev: &Arc<Dev>, other: &End, settings: Settings) -> Result<()> {
    let own = End::of(dev, qp.number(), settings.gid_index)?;
    if other.is_ethernet {
        fail!(NotSupported, "the other node has an Ethernet device");
    }
    let remote = Remote {
        qpn: other.qpn,
        lid: other.lid,
        gid: settings.has_global_header.then_some(other.gid),
        gid_index: settings.gid_index,
        mtu: own.mtu.min(other.mtu),
        psn: other.psn,
        log_reads: LOG_READS,
        rnr_timer: RNR_TIMER,
        hop_limit: 64,
        ..Remote::default()
    };
    qp.to_rtr(&remote).map_err(failed)?;
    let retries = Retries {
        psn: own.psn,
        log_reads: LOG_READS,
        ..Retries::default()
    };
    qp.to_rts(&retries).map_err(failed)
}
