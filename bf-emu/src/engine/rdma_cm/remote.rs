//! Requests to other machines: the process that carries them gets an identifier for the other side, and its event.

use super::ids::get;
use crate::fabric::rdma_cm::{Awaits, CmId, EventParam, Exchange, Port, Side, Stage};
use crate::fabric::{Fabric, Locked};
use crate::model::address::GidType;

/// Hands a request over. It waits while no process carries, and if an end of its way has no address of RoCE v2.
pub(super) fn deliver(locked: &mut Locked<'_>, id: u32, known: &CmId) {
    let fabric = locked.fabric();
    if !fabric.is_carried() || !is_routed(fabric, known.local) || !is_routed(fabric, known.remote) {
        return;
    }
    let Some(generation) = locked.common().rdma_cm.ids.generation(id) else {
        return;
    };
    let other = CmId {
        port_space: known.port_space,
        qp_type: known.qp_type,
        stage: Stage::Connect,
        exchange: match known.exchange {
            Exchange::LookupSent => Exchange::LookupReceived,
            _ => Exchange::RequestReceived,
        },
        source: known.target,
        target: known.source,
        local: known.remote,
        remote: known.local,
        there: Side {
            qp_num: known.request.qp_num,
            psn: known.here.psn,
        },
        peer: id + 1,
        peer_generation: generation,
        ..CmId::default()
    };
    let Some(slot) = locked.cm_insert_carried(other) else {
        // There is no room. It waits.
        return;
    };
    let generation = locked.common().rdma_cm.ids.generation(slot).unwrap_or(0);
    if let Ok(active) = get(locked, id) {
        active.peer = slot + 1;
        active.peer_generation = generation;
        active.awaits = Awaits::Answer;
    }
    if !locked.cm_post_request(slot, slot, &EventParam::default()) {
        locked.cm_remove_carried(slot);
        if let Ok(active) = get(locked, id) {
            active.awaits = Awaits::Delivery;
        }
    }
}

/// True if messages of a port have an address of RoCE v2.
fn is_routed(fabric: &Fabric, port: Port) -> bool {
    let entry = port
        .place()
        .and_then(|place| fabric.gid_entry(place, port.sgid_index));
    entry.is_some_and(|own| own.kind == GidType::RoceV2)
}
