//! Answers to requests, and the end of connections.

use super::super::adversary::message_delay_ns;
use super::ids::get;
use super::request::datagrams;
use super::route::Route;
use crate::fabric::rdma_cm::{
    Awaits, CARRIER_UID, CmId, EventKind, EventParam, Exchange, LOOKUP_REPLY_ROOM, Params,
    REJECT_ROOM, REPLY_ROOM, Stage, lookup, reason,
};
use crate::fabric::{Fabric, Locked};
use crate::model::multicast;
use crate::sys::{self, Errno};

/// Queue key of datagram services (`rdma/rdma_cm.h`, `RDMA_UDP_QKEY`).
const QKEY_UDP: u32 = 0x0123_4567;
/// Port space of IP over InfiniBand (`enum rdma_ucm_port_space`).
const PORT_SPACE_IPOIB: u16 = 0x0002;
/// Reason of a rejection: the other side does not know the connection.
const INVALID_CONNECTION: i32 = 6;
/// Largest number of retries when the receiver is not ready.
const RETRIES_MAX: u8 = 7;

/// The queue key of an identifier: the one that it has, or the default of its port space
/// (core/cma.c, `cma_set_default_qkey`).
pub(crate) fn qkey(fabric: &Fabric, id: &CmId) -> u32 {
    let ethernet = |place| fabric.link_of(place).is_ethernet();
    match id.qkey {
        0 if id.port_space == PORT_SPACE_IPOIB && !id.local.place().is_some_and(ethernet) => {
            multicast::QKEY_IPOIB
        }
        0 => QKEY_UDP,
        known => known,
    }
}

/// Accepts a request (core/cma.c, `rdma_accept` with parameters). The other side gets the reply.
///
/// # Errors
/// EINVAL: no request waits, or the private data is too long. The request is then rejected.
pub(crate) fn accept(
    locked: &mut Locked<'_>,
    id: u32,
    uid: u64,
    params: &Params,
    patience_ns: u64,
) -> Result<(), Errno> {
    let known = get(locked, id)?;
    if known.stage != Stage::Connect {
        return Err(Errno(libc::EINVAL));
    }
    let result = match datagrams(known) {
        true => reply_lookup(locked, id, params),
        false => reply(locked, id, uid, params, patience_ns),
    };
    match result {
        Ok(()) => {
            get(locked, id)?.uid = uid;
            Ok(())
        }
        Err(errno) => {
            let _ = reject(locked, id, reason::CONSUMER, &Params::default());
            Err(errno)
        }
    }
}

fn reply(
    locked: &mut Locked<'_>,
    id: u32,
    uid: u64,
    params: &Params,
    patience_ns: u64,
) -> Result<(), Errno> {
    let known = get(locked, id)?;
    if known.exchange != Exchange::RequestReceived || params.data_len > REPLY_ROOM {
        return Err(Errno(libc::EINVAL));
    }
    let params = Params {
        rnr_retry_count: params.rnr_retry_count.min(RETRIES_MAX),
        retry_count: 0,
        qkey: 0,
        ..*params
    };
    known.here.qp_num = params.qp_num;
    known.responder_resources = params.responder_resources;
    known.initiator_depth = params.initiator_depth;
    known.exchange = Exchange::ReplySent;
    known.awaits = Awaits::Answer;
    known.deadline_ns = sys::now_ns().saturating_add(patience_ns);
    known.uid = uid;
    let (here, place) = (known.here, known.local.place());
    locked.bind_flow(place, here.qp_num);
    let waiting = locked.cm_peer(id).filter(|peer| {
        get(locked, *peer).is_ok_and(|active| active.exchange == Exchange::RequestSent)
    });
    let Some(peer) = waiting else {
        // The requester has given up.
        locked.cm_rejected(id, INVALID_CONNECTION, &Params::default());
        return Ok(());
    };
    let active = get(locked, peer)?;
    active.there = here;
    active.responder_resources = params.initiator_depth;
    active.initiator_depth = params.responder_resources;
    active.rnr_retry_count = params.rnr_retry_count;
    active.exchange = Exchange::ReplyReceived;
    active.awaits = Awaits::Nothing;
    let event = Params {
        responder_resources: params.initiator_depth,
        initiator_depth: params.responder_resources,
        ..params
    };
    let param = EventParam::of_connection(&event, REPLY_ROOM);
    locked.cm_post(peer, EventKind::ConnectResponse, 0, &param);
    Ok(())
}

/// Answers a lookup: the other side gets the address of the service.
fn reply_lookup(locked: &mut Locked<'_>, id: u32, params: &Params) -> Result<(), Errno> {
    let fabric = locked.fabric();
    let known = get(locked, id)?;
    if known.exchange != Exchange::LookupReceived || params.data_len > LOOKUP_REPLY_ROOM {
        return Err(Errno(libc::EINVAL));
    }
    if params.qkey != 0 && known.qkey != 0 && params.qkey != known.qkey {
        return Err(Errno(libc::EINVAL));
    }
    if known.qkey == 0 {
        known.qkey = match params.qkey {
            0 => qkey(fabric, known),
            given => given,
        };
    }
    known.exchange = Exchange::Idle;
    known.awaits = Awaits::Nothing;
    let qkey = known.qkey;
    let Some(peer) = locked.cm_peer(id) else {
        return Ok(());
    };
    let active = get(locked, peer)?;
    if active.exchange != Exchange::LookupSent {
        return Ok(());
    }
    active.exchange = Exchange::Idle;
    active.awaits = Awaits::Nothing;
    let address = Route::of(fabric, active).map(|route| route.address());
    let event = Params { qkey, ..*params };
    let param = EventParam::of_datagrams(&event, LOOKUP_REPLY_ROOM, &address.unwrap_or_default());
    locked.cm_post(peer, EventKind::Established, 0, &param);
    Ok(())
}

/// Confirms a reply (core/cma.c, `rdma_accept` without parameters). Both sides are connected.
///
/// # Errors
/// EINVAL: no reply waits. The connection is then rejected.
pub(crate) fn establish(locked: &mut Locked<'_>, id: u32) -> Result<(), Errno> {
    let known = get(locked, id)?;
    if known.stage != Stage::Connect {
        return Err(Errno(libc::EINVAL));
    }
    if datagrams(known) {
        return reply_lookup(locked, id, &Params::default());
    }
    if known.exchange != Exchange::ReplyReceived {
        let _ = reject(locked, id, reason::CONSUMER, &Params::default());
        return Err(Errno(libc::EINVAL));
    }
    known.exchange = Exchange::Established;
    let late_ns = message_delay_ns(id, known.here.qp_num);
    let Some(peer) = locked.cm_peer(id) else {
        // The other side has ended meanwhile.
        locked.cm_disconnected(id, Exchange::DisconnectReceived);
        return Ok(());
    };
    let is_carried = get(locked, peer).is_ok_and(|passive| passive.uid == CARRIER_UID);
    if late_ns == 0 || is_carried {
        passive_established(locked, peer);
    } else if let Ok(passive) = get(locked, peer) {
        // Data may arrive before the confirmation (`IBV_EVENT_COMM_EST`).
        passive.awaits = Awaits::Confirmation;
        passive.deadline_ns = sys::now_ns().saturating_add(late_ns);
    }
    Ok(())
}

/// The confirmation of a connection arrives now, if it is on its way.
fn confirm(locked: &mut Locked<'_>, id: u32) {
    if get(locked, id).is_ok_and(|known| known.awaits == Awaits::Confirmation) {
        passive_established(locked, id);
    }
}

/// Tells the accepting side that the connection stands.
pub(super) fn passive_established(locked: &mut Locked<'_>, id: u32) {
    let Ok(known) = get(locked, id) else { return };
    if known.exchange != Exchange::ReplySent {
        // It knows that already, or has given up.
        return;
    }
    known.exchange = Exchange::Established;
    known.awaits = Awaits::Nothing;
    locked.cm_post(id, EventKind::Established, 0, &EventParam::default());
}

/// The accepting program has received data on the connection, so that it stands, whether or not the
/// confirmation has arrived (core/cm.c, `cm_establish`).
///
/// # Errors
/// EINVAL: it is not about to be connected.
pub(crate) fn notify_established(locked: &mut Locked<'_>, id: u32) -> Result<(), Errno> {
    match get(locked, id)?.exchange {
        Exchange::ReplySent => {
            passive_established(locked, id);
            Ok(())
        }
        Exchange::Established => Ok(()),
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// Refuses a request or a reply (core/cma.c, `rdma_reject`).
///
/// # Errors
/// EINVAL: neither waits, or the private data is too long.
pub(crate) fn reject(
    locked: &mut Locked<'_>,
    id: u32,
    reason: i32,
    params: &Params,
) -> Result<(), Errno> {
    let known = get(locked, id)?;
    let datagrams = datagrams(known);
    let room = if datagrams {
        LOOKUP_REPLY_ROOM
    } else {
        REJECT_ROOM
    };
    let possible = match known.exchange {
        Exchange::LookupReceived => datagrams,
        Exchange::RequestSent
        | Exchange::RequestReceived
        | Exchange::ReplySent
        | Exchange::ReplyReceived => true,
        _ => false,
    };
    if !possible || params.data_len > room {
        return Err(Errno(libc::EINVAL));
    }
    known.exchange = Exchange::Idle;
    known.awaits = Awaits::Nothing;
    let Some(peer) = locked.cm_peer(id) else {
        return Ok(());
    };
    if datagrams {
        locked.cm_unreachable(peer, lookup::REJECTED);
    } else {
        locked.cm_rejected(peer, reason, params);
    }
    Ok(())
}

/// Ends a connection, or answers its end (core/cma.c, `rdma_disconnect`). The side that asks first
/// learns of the end by the other side's answer.
///
/// # Errors
/// EINVAL: the identifier was never connected.
pub(crate) fn disconnect(locked: &mut Locked<'_>, id: u32, patience_ns: u64) -> Result<(), Errno> {
    let fabric = locked.fabric();
    // The confirmation precedes the end of the connection.
    confirm(locked, id);
    if let Some(peer) = locked.cm_peer(id) {
        confirm(locked, peer);
    }
    let known = get(locked, id)?;
    let ways = known.local.place().zip(known.remote.place());
    let (stage, exchange) = (known.stage, known.exchange);
    match exchange {
        Exchange::Established => {
            known.exchange = Exchange::DisconnectSent;
            known.awaits = Awaits::Disconnection;
            known.deadline_ns = sys::now_ns().saturating_add(patience_ns);
            if ways.is_some_and(|(from, to)| !fabric.connects(from, to)) {
                return Ok(());
            }
            match locked.cm_peer(id) {
                Some(peer) => locked.cm_disconnected(peer, Exchange::DisconnectReceived),
                None => ended(locked, id),
            }
            Ok(())
        }
        Exchange::DisconnectReceived => {
            if let Some(peer) = locked.cm_peer(id) {
                ended(locked, peer);
            }
            ended(locked, id);
            Ok(())
        }
        // The kernel's two messages fail, and the call succeeds.
        _ if matches!(stage, Stage::Connect | Stage::Disconnect) => Ok(()),
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// The peer of an identifier has ended the connection, or does not answer.
pub(crate) fn peer_ended(locked: &mut Locked<'_>, id: u32) {
    if let Some(peer) = locked.cm_peer(id) {
        ended(locked, peer);
    }
}

/// The end of a disconnection: the numbers of the connection rest.
pub(super) fn ended(locked: &mut Locked<'_>, id: u32) {
    locked.cm_disconnected(id, Exchange::TimeWait);
    locked.cm_rest(id);
}
