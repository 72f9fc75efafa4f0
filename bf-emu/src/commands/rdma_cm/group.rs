//! Memberships in multicast groups: JOIN_IP_MCAST, JOIN_MCAST and LEAVE_MCAST (core/cma.c,
//! `rdma_join_multicast` and `rdma_leave_multicast`; core/ucma.c, `ucma_process_join` and
//! `ucma_leave_multicast`).
//!
//! The device has one subnet administrator, which knows the memberships of all programs. It accepts
//! each new group at once.

use super::caller::Caller;
use super::event;
use crate::engine::rdma_cm::{Route, answer, datagrams, get};
use crate::fabric::counters::Refusal;
use crate::fabric::rdma_cm::{CmId, EventKind, EventParam, Membership, Params, Stage};
use crate::fabric::{Fabric, Locked, Place};
use crate::model::address::GidType;
use crate::model::multicast;
use crate::model::sockaddr::{Family, SocketAddress};
use crate::sys::Errno;

/// Flags of a membership (`rdma/rdma_user_cm.h`, `RDMA_MC_JOIN_FLAG_*`).
mod flag {
    pub(super) const FULL_MEMBER: u16 = 0;
    pub(super) const SEND_ONLY: u16 = 1;
}

/// The kernel's own error for an operation that is not supported. The C library has no name for it.
const ENOTSUPP: i32 = 524;

/// JOIN_IP_MCAST and JOIN_MCAST. The answer is the number of the membership.
///
/// # Errors
/// EINVAL: a malformed address or flag, no device, the wrong state, or no identifier of datagrams.
/// ENOMEM: there are too many memberships. Also those of [`new`].
pub(super) fn join(
    caller: &Caller<'_>,
    (uid, response): (u64, u64),
    id: u32,
    address: Option<&SocketAddress>,
    flags: u16,
) -> Result<(), Errno> {
    caller.needs_room(4)?;
    let address = address.ok_or(Errno(libc::EINVAL))?;
    let receives = match flags {
        flag::FULL_MEMBER => true,
        flag::SEND_ONLY => false,
        _ => return Err(Errno(libc::EINVAL)),
    };
    let fabric = caller.process.fabric();
    let mut locked = caller.lock();
    let known = caller.attached(&mut locked, id)?;
    let ready = matches!(known.stage, Stage::Bound | Stage::AddressResolved);
    if !ready || !datagrams(known) {
        return Err(Errno(libc::EINVAL));
    }
    let known = *known;
    let member = Membership {
        uid,
        id,
        receives,
        ..new(fabric, &mut locked, &known, address)?
    };
    let manager = &mut locked.common().rdma_cm;
    let owner = manager.files.owner(caller.file);
    let owner = owner.ok_or(Errno(libc::EBADF))?;
    let Some(slot) = manager.memberships.insert(owner, member) else {
        fabric.counters(0).refuse(Refusal::TableFull);
        return Err(Errno(libc::ENOMEM));
    };
    if let Err(errno) = caller.answer(response, &slot.to_ne_bytes()) {
        locked.cm_leave_group(slot);
        return Err(errno);
    }
    tell(fabric, &mut locked, slot, &known);
    Ok(())
}

/// A membership of an identifier in the group of an address.
///
/// # Errors
/// EINVAL: Ethernet has no group for the unspecified address. ENOTSUPP: RoCE v2 has groups of IPv4
/// only.
fn new(
    fabric: &Fabric,
    locked: &mut Locked<'_>,
    id: &CmId,
    address: &SocketAddress,
) -> Result<Membership, Errno> {
    let place = id.local.place().ok_or(Errno(libc::EINVAL))?;
    let mut member = Membership {
        qkey: answer::qkey(fabric, id),
        port: id.local,
        ..Membership::default()
    };
    if fabric.link_of(place).is_ethernet() {
        let own = fabric.gid_entry(place, id.local.sgid_index);
        let kind = own.map_or(GidType::RoceV2, |own| own.kind);
        if address.is_zero() {
            return Err(Errno(libc::EINVAL));
        }
        if address.family() != Some(Family::Inet) && kind == GidType::RoceV2 {
            return Err(Errno(ENOTSUPP));
        }
        member.mgid = multicast::roce_gid(address, kind);
        member.joined = true;
        return Ok(member);
    }
    on_infiniband(locked, place, &mut member, (id, address));
    Ok(member)
}

/// Fills the fields that the subnet administrator knows. It does not accept a port that is down, or
/// a queue key that differs from the group's.
fn on_infiniband(
    locked: &mut Locked<'_>,
    place: Place,
    member: &mut Membership,
    (id, address): (&CmId, &SocketAddress),
) {
    let free = locked.cm_free_lid();
    let is_udp = id.port_space == super::id::space::UDP;
    let chosen = || multicast::chosen_gid(free.unwrap_or(0).into());
    member.mgid = multicast::infiniband_gid(address, is_udp).unwrap_or_else(chosen);
    let found = match locked.cm_group(&member.mgid) {
        Some((mlid, qkey)) => (qkey == member.qkey).then_some(mlid),
        None => free,
    };
    if let Some(mlid) = found.filter(|_| locked.fabric().connects(place, place)) {
        member.mlid = mlid;
        member.joined = true;
    }
}

/// Reports the result of joining.
fn tell(fabric: &Fabric, locked: &mut Locked<'_>, slot: u32, id: &CmId) {
    let Some(member) = locked.common().rdma_cm.memberships.get(slot).copied() else {
        return;
    };
    let route = Route::to_group(fabric, id, member.mgid, member.mlid);
    let Some(route) = route.filter(|_| member.joined) else {
        let status = match id.local.place() {
            // The requests to the subnet administrator get no answer.
            Some(place) if !fabric.connects(place, place) => -libc::ETIMEDOUT,
            _ => -libc::EINVAL,
        };
        let nothing = EventParam::default();
        locked.cm_post_group(slot, EventKind::MulticastError, status, &nothing);
        return;
    };
    if let Ok(known) = get(locked, member.id) {
        known.qkey = member.qkey;
    }
    let params = Params {
        qp_num: multicast::QPN,
        qkey: member.qkey,
        ..Params::default()
    };
    let param = EventParam::of_datagrams(&params, 0, &route.address());
    locked.cm_post_group(slot, EventKind::MulticastJoin, 0, &param);
}

/// LEAVE_MCAST. The answer is the number of events that the owner has read.
///
/// # Errors
/// ENOENT: there is no such membership. EINVAL: it belongs to another file.
pub(super) fn leave(caller: &Caller<'_>, response: u64, membership: u32) -> Result<(), Errno> {
    caller.needs_room(4)?;
    let mut locked = caller.lock();
    let known = locked.common().rdma_cm.memberships.get(membership);
    let id = known.ok_or(Errno(libc::ENOENT))?.id;
    caller.id(&mut locked, id)?;
    let reported = locked.cm_leave_group(membership);
    let reported = reported.ok_or(Errno(libc::ENOENT))?;
    event::settle(&mut locked, caller.file, caller.fd);
    drop(locked);
    caller.answer(response, &reported.to_ne_bytes())
}
