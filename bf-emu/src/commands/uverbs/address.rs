//! Addresses in calls: the kernel's checks before a queue pair or an address handle gets one.

use super::abi::UHW_OUT;
use super::ioctl::{Answer, Fields, Ioctl};
use crate::commands::call::{Call, Kind};
use crate::fabric::{Fabric, Identity};
use crate::model::address::{Gid, GidEntry, GidType, Mac, is_ipv4, is_link_local};
use crate::model::multicast;
use crate::sys::Errno;

/// The address of a path, from `struct ib_uverbs_ah_attr` or `struct ib_uverbs_qp_dest`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attributes {
    pub(super) port: u8,
    pub(super) is_global: bool,
    pub(super) sgid_index: u8,
    pub(super) dgid: Gid,
}

/// An entry of a port's GID table (core/cache.c, `rdma_get_gid_attr`).
pub(super) fn entry(identity: &Identity, port: u8, index: usize) -> Result<GidEntry, Errno> {
    if index >= usize::from(identity.link(port).gid_table_len()) {
        return Err(Errno(libc::EINVAL));
    }
    let entry = identity.gid_entry(port, index);
    entry.ok_or(Errno(libc::ENODATA))
}

/// Checks an address. Returns the sender's GID if the address has a global route (core/verbs.c,
/// `rdma_check_ah_attr` and `rdma_fill_sgid_attr`).
pub(super) fn check(identity: &Identity, to: &Attributes) -> Result<Option<GidEntry>, Errno> {
    if !identity.ports().contains(&to.port) {
        return Err(Errno(libc::EINVAL));
    }
    if !to.is_global {
        return match identity.link(to.port).needs_grh() {
            true => Err(Errno(libc::EINVAL)),
            false => Ok(None),
        };
    }
    entry(identity, to.port, to.sgid_index.into()).map(Some)
}

/// The MAC of a GID on Ethernet (core/verbs.c, `ib_resolve_unicast_gid_dmac`). A link-local GID of
/// RoCE v1 contains the MAC. For other GIDs the kernel asks its routes and neighbours. Here the
/// fabric answers: all Ethernet ports are neighbours.
pub(super) fn resolve(fabric: &Fabric, own: GidEntry, dgid: &Gid) -> Result<Mac, Errno> {
    if multicast::is_group(dgid) {
        return Ok(multicast::mac(dgid));
    }
    if own.kind == GidType::RoceV1 && is_link_local(dgid) {
        return Ok(Mac::of_link_local(dgid));
    }
    if is_ipv4(&own.gid) != is_ipv4(dgid) {
        // core/addr.c, `rdma_resolve_ip`
        return Err(Errno(libc::EINVAL));
    }
    let place = fabric.port_of_roce(dgid);
    // A missing neighbour does not answer.
    place
        .and_then(|place| fabric.mac_of(place))
        .ok_or(Errno(libc::ETIMEDOUT))
}

/// `CREATE_AH`. On Ethernet the driver returns the destination's MAC (mlx5/ah.c,
/// `mlx5_ib_create_ah`). On InfiniBand libmlx5 creates its handles without the kernel.
pub(super) fn create_ah(
    call: &Call<'_>,
    input: Fields<'_>,
    ioctl: &Ioctl,
) -> Result<Answer, Errno> {
    /// `struct mlx5_ib_create_ah_resp` up to the end of its MAC.
    const DRIVER_BYTES: u32 = 10;
    // struct ib_uverbs_create_ah
    let pd = Kind::Pd.slot(input.u32(16))?;
    let to = Attributes {
        dgid: input.bytes16(24),
        sgid_index: input.u8(44),
        is_global: input.u8(53) != 0,
        port: input.u8(54),
    };
    let locked = call.lock();
    let pds = &locked.peek(call.function()).pds;
    pds.owned(pd, call.context.number)
        .ok_or(Errno(libc::ENOENT))?;
    drop(locked);
    let identity = call.identity()?;
    let own = check(identity, &to)?;
    if let Some(own) = own.filter(|_| identity.link(to.port).is_ethernet()) {
        let mac = resolve(call.fabric(), own, &to.dgid)?;
        if ioctl.capacity(UHW_OUT) < DRIVER_BYTES as usize {
            return Err(Errno(libc::EINVAL));
        }
        let mut driver = Answer::new(DRIVER_BYTES as usize);
        driver.u32(0, DRIVER_BYTES).put(4, &mac.0);
        ioctl.answer(UHW_OUT, driver.as_slice())?;
    }
    let mut answer = Answer::new(4);
    answer.u32(0, Kind::Ah.handle(0));
    Ok(answer)
}
