//! Local and remote addresses, paths, and listeners (core/cma.c).

use super::caller::Caller;
use super::service;
use crate::engine::rdma_cm::{Route, deliver_waiting, get};
use crate::fabric::Locked;
use crate::fabric::rdma_cm::{Awaits, EventKind, EventParam, Port, Stage};
use crate::model::sockaddr::{Family, SocketAddress};
use crate::sys::interface::has_address;
use crate::sys::{self, Errno};

/// Largest and default number of waiting requests of a listener (`net.rdma_ucm.max_backlog`).
const BACKLOG_MAX: u32 = 1024;

/// BIND_IP and BIND.
pub(super) fn bind(caller: &Caller<'_>, id: u32, address: &SocketAddress) -> Result<(), Errno> {
    let place = local(caller, address);
    let mut locked = caller.lock();
    caller.id(&mut locked, id)?;
    bind_locked(&mut locked, id, address, place)
}

/// The port with a local address, and the functions on which it is bound.
type Local = (Port, u64);

/// Binds an identifier to a local address (`rdma_bind_addr`), of which `place` is the port.
///
/// # Errors
/// EINVAL: it is bound already. Also those of [`local`] and [`service::take`].
fn bind_locked(
    locked: &mut Locked<'_>,
    id: u32,
    address: &SocketAddress,
    place: Result<Local, Errno>,
) -> Result<(), Errno> {
    let before = *get(locked, id)?;
    if before.stage != Stage::Idle {
        return Err(Errno(libc::EINVAL));
    }
    let (port, functions) = place?;
    let known = get(locked, id)?;
    known.local = port;
    known.functions = functions;
    known.source = *address;
    known.family_only |= address.family() == Some(Family::Inet);
    known.stage = Stage::Bound;
    let taken = service::take(locked, id);
    if taken.is_err() {
        *get(locked, id)? = before;
    }
    taken
}

/// Finds the port of a local address. The unspecified address and the loopback address mean all
/// functions, and no port (core/cma.c, `cma_any_addr`). Needs no lock.
///
/// # Errors
/// EADDRNOTAVAIL: this machine does not have the address. ENODEV: the machine has it, and none of
/// the program's ports has it; or the ports do not have the GID.
fn local(caller: &Caller<'_>, address: &SocketAddress) -> Result<Local, Errno> {
    let fabric = caller.process.fabric();
    let functions = caller.process.functions();
    let port = fabric.cm_port(address);
    if let Some(port) = port
        && let Some(place) = port.place()
        && functions.contains(&place.function)
    {
        return Ok((port, 1 << place.function));
    }
    if address.is_zero() || is_loopback(caller, address) {
        let all = functions.iter().fold(0, |mask, index| mask | 1 << index);
        return Ok((Port::default(), all));
    }
    // The addresses of other functions, and their networks, are those of other machines.
    let foreign = port.is_some() || fabric.cm_is_neighbour(functions, address);
    let no_device = match address.family() {
        Some(Family::Ib) => true,
        _ => !foreign && has_address(address.as_slice()),
    };
    Err(Errno(match no_device {
        true => libc::ENODEV,
        false => libc::EADDRNOTAVAIL,
    }))
}

/// True for an address of the machine itself. The networks of ports may be part of the network of
/// the loopback device.
fn is_loopback(caller: &Caller<'_>, address: &SocketAddress) -> bool {
    let fabric = caller.process.fabric();
    address.is_loopback()
        && fabric.cm_port(address).is_none()
        && !fabric.cm_is_neighbour(caller.process.functions(), address)
}

/// RESOLVE_IP and RESOLVE_ADDR.
///
/// # Errors
/// EINVAL: the identifier is not new or bound, or the addresses have different families. Also those
/// of [`bind_locked`].
pub(super) fn resolve_address(
    caller: &Caller<'_>,
    id: u32,
    timeout_ms: u32,
    (source, target): (Option<SocketAddress>, SocketAddress),
) -> Result<(), Errno> {
    let source = source.unwrap_or(SocketAddress::unspecified(&target));
    let place = local(caller, &source);
    let mut locked = caller.lock();
    if caller.id(&mut locked, id)?.stage == Stage::Idle {
        bind_locked(&mut locked, id, &source, place)?;
    }
    let known = get(&mut locked, id)?;
    if known.stage != Stage::Bound || known.source.family() != target.family() {
        return Err(Errno(libc::EINVAL));
    }
    known.target = target;
    match find(caller, (known.local, known.source), &target) {
        Found::Ways(local, source, remote) => {
            let bound = known.source;
            known.source = source;
            match bound.family() {
                Some(Family::Ib) => known.source.put_service(bound.service().0),
                _ => known.source.put_port(bound.port()),
            }
            known.local = local;
            known.remote = remote;
            known.stage = Stage::AddressResolved;
            report(&mut locked, id, EventKind::AddressResolved, 0);
        }
        Found::Silence => {
            known.stage = Stage::AddressQuery;
            wait(&mut locked, id, Awaits::Address, timeout_ms)?;
        }
        Found::NoDevice => report(&mut locked, id, EventKind::AddressError, -libc::ENODEV),
    }
    Ok(())
}

/// What is known of a remote address.
enum Found {
    /// The local port with its address, and the remote port.
    Ways(Port, SocketAddress, Port),
    /// It is in a network of the program's ports, and nobody answers.
    Silence,
    /// No port of the program leads to it.
    NoDevice,
}

fn find(
    caller: &Caller<'_>,
    (bound, address): (Port, SocketAddress),
    target: &SocketAddress,
) -> Found {
    let fabric = caller.process.fabric();
    let functions = caller.process.functions();
    if target.is_multicast() {
        // It leads to no port. The local one is that of the route (core/addr.c, `addr_resolve`).
        let own = match bound.place() {
            Some(_) => Some((bound, address)),
            None => fabric.cm_first(functions, target),
        };
        return match own {
            Some((port, source)) => Found::Ways(port, source, Port::default()),
            None => Found::NoDevice,
        };
    }
    if target.is_zero() || is_loopback(caller, target) {
        let own = match bound.place() {
            Some(_) => Some(bound),
            None => fabric.cm_loopback(functions),
        };
        let source = SocketAddress::loopback(target.family().unwrap_or(Family::Inet));
        return match own {
            Some(port) => Found::Ways(port, source, port),
            None => Found::NoDevice,
        };
    }
    let Some(remote) = fabric.cm_port(target) else {
        return match fabric.cm_is_neighbour(functions, target) {
            true => Found::Silence,
            false => Found::NoDevice,
        };
    };
    let kind = |place| fabric.link_of(place).is_ethernet();
    let chosen = match bound.place() {
        None => fabric.cm_source(functions, remote, target),
        Some(place) => {
            let same = remote
                .place()
                .is_some_and(|remote| kind(remote) == kind(place));
            same.then_some((bound, address))
        }
    };
    match chosen {
        Some((local, source)) => Found::Ways(local, source, remote),
        None => Found::Silence,
    }
}

/// RESOLVE_ROUTE.
///
/// # Errors
/// EINVAL: the remote address is not resolved.
pub(super) fn resolve_route(caller: &Caller<'_>, id: u32, timeout_ms: u32) -> Result<(), Errno> {
    let fabric = caller.process.fabric();
    let mut locked = caller.lock();
    let known = caller.attached(&mut locked, id)?;
    if known.stage != Stage::AddressResolved {
        return Err(Errno(libc::EINVAL));
    }
    if known.target.is_multicast() {
        report(&mut locked, id, EventKind::RouteError, -libc::EINVAL);
        return Ok(());
    }
    let ways = known.local.place().zip(known.remote.place());
    let (local, remote) = ways.ok_or(Errno(libc::EINVAL))?;
    if !fabric.link_of(local).is_ethernet() {
        // The subnet administrator knows the active ports. A port that is down does not reach it.
        if !fabric.connects(local, local) {
            known.stage = Stage::RouteQuery;
            return wait(&mut locked, id, Awaits::Route, timeout_ms);
        }
        if !fabric.connects(remote, remote) {
            report(&mut locked, id, EventKind::RouteError, -libc::EINVAL);
            return Ok(());
        }
    }
    if Route::of(fabric, known).is_none() {
        return Err(Errno(libc::EINVAL));
    }
    known.paths = 1;
    known.stage = Stage::RouteResolved;
    report(&mut locked, id, EventKind::RouteResolved, 0);
    Ok(())
}

/// LISTEN.
///
/// # Errors
/// EINVAL: the identifier is neither new nor bound. Also those of [`bind_locked`] and, for an
/// address in use, of [`service::check`].
pub(super) fn listen(caller: &Caller<'_>, id: u32, backlog: u32) -> Result<(), Errno> {
    let mut locked = caller.lock();
    if caller.id(&mut locked, id)?.stage == Stage::Idle {
        let any = SocketAddress::any();
        bind_locked(&mut locked, id, &any, local(caller, &any))?;
    }
    let known = *get(&mut locked, id)?;
    if known.stage != Stage::Bound {
        return Err(Errno(libc::EINVAL));
    }
    if known.reuse {
        service::check(&mut locked, id, known.service, false)?;
    }
    let known = get(&mut locked, id)?;
    known.backlog = match backlog {
        1..BACKLOG_MAX => backlog,
        _ => BACKLOG_MAX,
    };
    known.stage = Stage::Listen;
    deliver_waiting(&mut locked);
    Ok(())
}

fn report(locked: &mut Locked<'_>, id: u32, kind: EventKind, status: i32) {
    locked.cm_post(id, kind, status, &EventParam::default());
}

/// Waits for an answer that does not come.
fn wait(locked: &mut Locked<'_>, id: u32, awaits: Awaits, timeout_ms: u32) -> Result<(), Errno> {
    let known = get(locked, id)?;
    known.awaits = awaits;
    let timeout_ns = u64::from(timeout_ms) * 1_000_000;
    known.deadline_ns = sys::now_ns().saturating_add(timeout_ns);
    Ok(())
}
