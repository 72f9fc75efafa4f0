//! Services: the port numbers that identifiers are bound to, and their clashes (core/cma.c,
//! `cma_get_port`).

use super::id::space;
use crate::engine::rdma_cm::{get, number, service_id};
use crate::fabric::Locked;
use crate::fabric::rdma_cm::{CmId, Stage};
use crate::model::sockaddr::{Family, PORT_SPACE_MASK};
use crate::sys::Errno;

/// Port numbers that the kernel chooses itself (`net.ipv4.ip_local_port_range`).
const OWN_PORTS: std::ops::RangeInclusive<u16> = 32_768..=60_999;
/// Ports below this one need a privilege.
const PRIVILEGED_PORTS: u16 = 1024;

/// Binds an identifier, whose local address is set, to its port. Without a port it gets one.
///
/// # Errors
/// EPROTONOSUPPORT: its port space does not fit the address. EACCES: the port is privileged.
/// EADDRNOTAVAIL, EADDRINUSE: the port is in use.
pub(super) fn take(locked: &mut Locked<'_>, id: u32) -> Result<(), Errno> {
    let known = *get(locked, id)?;
    let port_space = port_space(&known).ok_or(Errno(libc::EPROTONOSUPPORT))?;
    let port = match known.source.port() {
        0 => choose(locked, id, port_space)?,
        port => {
            let service = service_id(port_space, port);
            check(locked, id, service, known.reuse)?;
            // SAFETY: geteuid has no preconditions and cannot fail.
            if port < PRIVILEGED_PORTS && unsafe { libc::geteuid() } != 0 {
                return Err(Errno(libc::EACCES));
            }
            port
        }
    };
    let known = get(locked, id)?;
    known.service = service_id(port_space, port);
    if known.source.family() == Some(Family::Ib) {
        let service = known.service;
        known.source.put_service(service);
    } else {
        known.source.put_port(port);
    }
    Ok(())
}

/// The port space of an identifier's service (core/cma.c, `cma_select_inet_ps`, `cma_select_ib_ps`).
fn port_space(id: &CmId) -> Option<u16> {
    let own = id.port_space;
    if id.source.family() != Some(Family::Ib) {
        return matches!(own, space::TCP | space::UDP | space::IPOIB | space::IB).then_some(own);
    }
    let (service, mask) = id.source.service();
    let mask = mask & PORT_SPACE_MASK;
    let is = |port_space: u16| service & mask == u64::from(port_space) << 16 & mask;
    let fits = |port_space: u16| (own == space::IB || own == port_space) && is(port_space);
    [space::IB, space::TCP, space::UDP]
        .into_iter()
        .find(|port_space| fits(*port_space))
}

/// A free port.
fn choose(locked: &mut Locked<'_>, id: u32, port_space: u16) -> Result<u16, Errno> {
    let count = u32::from(OWN_PORTS.end() - OWN_PORTS.start()) + 1;
    let first = number(locked) % count;
    (0..count)
        .filter_map(|step| u16::try_from((first + step) % count).ok())
        .map(|offset| OWN_PORTS.start() + offset)
        .find(|port| check(locked, id, service_id(port_space, *port), false).is_ok())
        .ok_or(Errno(libc::EADDRNOTAVAIL))
}

/// Checks that an identifier may be bound to a service beside those that are. Identifiers of a
/// process that has ended do not count: they are released.
///
/// # Errors
/// EADDRNOTAVAIL: one of the two uses all addresses. EADDRINUSE: both use the same one.
pub(super) fn check(
    locked: &mut Locked<'_>,
    id: u32,
    service: u64,
    reuse: bool,
) -> Result<(), Errno> {
    // Each round but the last releases at least one identifier.
    loop {
        let known = *get(locked, id)?;
        let ids = &locked.common().rdma_cm.ids;
        let found =
            ids.iter()
                .filter(|(slot, _, _)| *slot != id)
                .find_map(|(slot, owner, other)| {
                    Some((slot, owner.process, clash(&known, other, service, reuse)?))
                });
        let Some((slot, process, errno)) = found else {
            return Ok(());
        };
        locked.release_if_gone(process);
        if get(locked, slot).is_ok() {
            return Err(errno);
        }
    }
}

/// The error for an identifier beside another one; None if both may be bound to the service
/// (core/cma.c, `cma_check_port`). Functions are different machines.
fn clash(known: &CmId, other: &CmId, service: u64, reuse: bool) -> Option<Errno> {
    let families = (known.source.family(), other.source.family());
    if other.service != service
        || other.functions & known.functions == 0
        || other.stage != Stage::Listen && reuse && other.reuse
        || known.family_only && other.family_only && families.0 != families.1
    {
        return None;
    }
    if known.local.place().is_none() || other.local.place().is_none() {
        return Some(Errno(libc::EADDRNOTAVAIL));
    }
    (known.source.gid() == other.source.gid()).then_some(Errno(libc::EADDRINUSE))
}
