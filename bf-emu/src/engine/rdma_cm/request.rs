//! Requests: of a connection, and for a datagram service.

use super::super::adversary::message_delay_ns;
use super::ids::get;
use super::remote;
use super::route::Route;
use crate::fabric::rdma_cm::{
    Awaits, CmId, EventParam, Exchange, IP_HEADER, LOOKUP_ROOM, Params, REQUEST_ROOM, Side, Stage,
    lookup, reason,
};
use crate::fabric::{Fabric, Locked};
use crate::model::sockaddr::{Family, SocketAddress};
use crate::sys::{self, Errno};

/// Type of a queue pair of datagrams (`enum ib_qp_type`).
const QP_UD: u8 = 4;
/// Initiator and target of an extended reliable connection.
const QP_XRC_INI: u8 = 9;
const QP_XRC_TGT: u8 = 10;
/// Time for which a request waits for its listener. On hardware, both sides of a program that
/// connects more than once take the same time between its connections. Here messages need none, and
/// processes wait for each other's processor instead.
pub(crate) const REFUSAL_NS: u64 = 500_000_000;
/// Largest number of transport retries.
const RETRIES_MAX: u8 = 7;

/// True for an identifier of a datagram service.
pub(crate) fn datagrams(id: &CmId) -> bool {
    id.qp_type == QP_UD
}

/// Sends the request of an identifier (core/cma.c, `rdma_connect`). `patience_ns` limits the wait
/// for the answer.
///
/// # Errors
/// EINVAL: its path is not resolved, or the private data is too long.
pub(crate) fn connect(
    locked: &mut Locked<'_>,
    id: u32,
    params: &Params,
    patience_ns: u64,
) -> Result<(), Errno> {
    let fabric = locked.fabric();
    let known = get(locked, id)?;
    if known.stage != Stage::RouteResolved || Route::of(fabric, known).is_none() {
        return Err(Errno(libc::EINVAL));
    }
    if params.data_len > room(known) {
        return Err(Errno(libc::EINVAL));
    }
    known.request = Params {
        retry_count: params.retry_count.min(RETRIES_MAX),
        rnr_retry_count: params.rnr_retry_count.min(RETRIES_MAX),
        ..*params
    };
    known.here.qp_num = params.qp_num;
    known.responder_resources = params.responder_resources;
    known.initiator_depth = params.initiator_depth;
    known.retry_count = known.request.retry_count;
    known.patience_ns = patience_ns;
    let now_ns = sys::now_ns();
    known.deadline_ns = now_ns.saturating_add(patience_ns);
    known.refused_at_ns = now_ns.saturating_add(REFUSAL_NS);
    known.late_until_ns = now_ns.saturating_add(message_delay_ns(id, params.qp_num));
    known.awaits = Awaits::Delivery;
    known.exchange = match datagrams(known) {
        true => Exchange::LookupSent,
        false => Exchange::RequestSent,
    };
    known.stage = Stage::Connect;
    let place = known.local.place();
    locked.bind_flow(place, params.qp_num);
    deliver(locked, id);
    Ok(())
}

/// Room for private data in a request of this identifier.
fn room(id: &CmId) -> u8 {
    let message = match datagrams(id) {
        true => LOOKUP_ROOM,
        false => REQUEST_ROOM,
    };
    match id.source.family() {
        Some(Family::Ib) => message,
        _ => message - IP_HEADER,
    }
}

/// Delivers the requests that have waited for a new listener.
pub(crate) fn deliver_waiting(locked: &mut Locked<'_>) {
    let mut from = 0;
    loop {
        let ids = &locked.common().rdma_cm.ids;
        let Some(id) = ids.next(from, |_, id| id.awaits == Awaits::Delivery) else {
            return;
        };
        from = id + 1;
        deliver(locked, id);
    }
}

/// Delivers a request, unless it is late, a port on its way is down, or a listener may still start.
pub(crate) fn deliver(locked: &mut Locked<'_>, id: u32) {
    let fabric = locked.fabric();
    let Ok(known) = get(locked, id).copied() else {
        return;
    };
    let Some((from, to)) = known.local.place().zip(known.remote.place()) else {
        return;
    };
    if !fabric.connects(from, to) || sys::now_ns() < known.late_until_ns {
        return;
    }
    if fabric.is_remote(to.function) {
        remote::deliver(locked, id, &known);
        return;
    }
    let refused = match find_listener(locked, &known) {
        None if sys::now_ns() < known.refused_at_ns => return,
        None if datagrams(&known) => Some(lookup::UNSUPPORTED),
        None => Some(reason::INVALID_SERVICE),
        Some(listener) => arrive(locked, (id, &known), listener),
    };
    match refused {
        Some(status) if datagrams(&known) => locked.cm_unreachable(id, status),
        Some(reason) => locked.cm_rejected(id, reason, &Params::default()),
        None => {}
    }
}

/// The listener for a request. A listener whose process has ended is removed.
fn find_listener(locked: &mut Locked<'_>, request: &CmId) -> Option<u32> {
    loop {
        let ids = &locked.common().rdma_cm.ids;
        let mut found: Option<(u32, bool)> = None;
        for (slot, _, id) in ids.iter() {
            if let Some(exact) = listens(id, request)
                && found.is_none_or(|(_, best)| exact && !best)
            {
                found = Some((slot, exact));
            }
        }
        let (slot, _) = found?;
        let process = ids.owner(slot)?.process;
        locked.release_if_gone(process);
        if get(locked, slot).is_ok() {
            return Some(slot);
        }
    }
}

/// Some if an identifier listens for a request; true for one that is bound to the request's own
/// address (core/cma.c, `cma_match_private_data`).
fn listens(id: &CmId, request: &CmId) -> Option<bool> {
    let function = request.remote.place()?.function;
    let there = id.stage == Stage::Listen
        && id.service == service_of(request)
        && id.functions >> function & 1 != 0;
    if !there {
        return None;
    }
    let (own, asked) = (id.source.family(), request.target.family());
    if id.local.place().is_none() {
        // It listens on all addresses.
        return (own == asked || !id.family_only).then_some(false);
    }
    let same = own == asked && id.source.gid() == request.target.gid();
    same.then_some(true)
}

/// Identifier of the service that a request names (`rdma_get_service_id`).
pub(crate) fn service_of(request: &CmId) -> u64 {
    match request.target.family() {
        Some(Family::Ib) => request.target.service().0,
        _ => service_id(request.port_space, request.target.port()),
    }
}

/// Identifier of the service at a port (`rdma/rdma_cm_ib.h`).
pub(crate) fn service_id(port_space: u16, port: u16) -> u64 {
    u64::from(port_space) << 16 | u64::from(port)
}

/// A request at its listener: a new connection and an event. Returns the reason of a refusal.
fn arrive(locked: &mut Locked<'_>, (id, request): (u32, &CmId), listener: u32) -> Option<i32> {
    let refused = match datagrams(request) {
        true => lookup::REJECTED,
        false => reason::CONSUMER,
    };
    let ids = &locked.common().rdma_cm.ids;
    let (Some(known), Some(owner)) = (ids.get(listener).copied(), ids.owner(listener)) else {
        return Some(refused);
    };
    let generation = ids.generation(id).unwrap_or(0);
    let qp_type = match request.qp_type {
        QP_XRC_INI => QP_XRC_TGT,
        same => same,
    };
    if known.backlog == 0 || known.qp_type != qp_type {
        return Some(refused);
    }
    let fabric = locked.fabric();
    let mut new = accepted(fabric, request, &known, qp_type);
    new.peer = id + 1;
    new.peer_generation = generation;
    new.here.psn = number(locked);
    let ids = &mut locked.common().rdma_cm.ids;
    let Some(slot) = ids.insert(owner, new) else {
        return Some(refused);
    };
    let generation = ids.generation(slot).unwrap_or(0);
    if let Some(known) = ids.get_mut(listener) {
        known.backlog = known.backlog.saturating_sub(1);
    }
    if let Some(active) = ids.get_mut(id) {
        active.peer = slot + 1;
        active.peer_generation = generation;
        active.awaits = Awaits::Answer;
    }
    let param = event(fabric, request, &new);
    if locked.cm_post_request(listener, slot, &param) {
        return None;
    }
    locked.common().rdma_cm.ids.remove(slot);
    Some(refused)
}

/// The listener's side of a new connection.
fn accepted(fabric: &Fabric, request: &CmId, listener: &CmId, qp_type: u8) -> CmId {
    let asked = &request.request;
    let mut source = request.target;
    if source.is_zero() {
        // The request went to the machine itself.
        source = SocketAddress::loopback(source.family().unwrap_or(Family::Inet));
        source.put_port(request.target.port());
    }
    let local = match fabric.cm_port(&source) {
        Some(port) => port,
        None => request.remote,
    };
    CmId {
        file: listener.file,
        port_space: listener.port_space,
        qp_type,
        stage: Stage::Connect,
        exchange: match datagrams(request) {
            true => Exchange::LookupReceived,
            false => Exchange::RequestReceived,
        },
        source,
        target: request.source,
        local,
        remote: request.local,
        paths: 1,
        service_type: listener.service_type,
        ack_timeout: listener.ack_timeout,
        there: Side {
            qp_num: asked.qp_num,
            psn: request.here.psn,
        },
        responder_resources: asked.initiator_depth,
        initiator_depth: asked.responder_resources,
        retry_count: asked.retry_count,
        rnr_retry_count: asked.rnr_retry_count,
        ..CmId::default()
    }
}

/// The event of a request. Both sides see the numbers of outstanding requests as their own.
fn event(fabric: &Fabric, request: &CmId, new: &CmId) -> EventParam {
    let asked = &request.request;
    let room = room(request);
    if datagrams(request) {
        let address = Route::of(fabric, new).map(|route| route.address());
        let params = Params {
            qp_num: 0,
            qkey: 0,
            ..*asked
        };
        return EventParam::of_datagrams(&params, room, &address.unwrap_or_default());
    }
    let params = Params {
        qkey: 0,
        responder_resources: asked.initiator_depth,
        initiator_depth: asked.responder_resources,
        ..*asked
    };
    EventParam::of_connection(&params, room)
}

/// A packet sequence number, or another number without order.
pub(crate) fn number(locked: &mut Locked<'_>) -> u32 {
    let manager = &mut locked.common().rdma_cm;
    manager.next_number = manager.next_number.wrapping_add(1);
    // The multiplier is that of Knuth's multiplicative hash.
    manager.next_number.wrapping_mul(2_654_435_761) >> 8
}
