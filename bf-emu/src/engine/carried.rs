//! Queue pairs that are connected to another machine: a doorbell hands their requests to the process that carries them,
//! because its thread may neither wait nor allocate.

use mlx5_prm::qp::{service, state};
use mlx5_prm::wqe::AddressVector;

use super::complete::space_of_qp;
use super::entry;
use super::peer::{Poster, destination};
use super::work::{self, WORK_BYTES_MAX};
use crate::bits::low16;
use crate::fabric::numbers::qp_slot;
use crate::fabric::objects::{Qp, SERVICE_XRC_TARGET};
use crate::fabric::{Fabric, Locked, Place, QPN_BASE};
use crate::model::address::{GidEntry, mtu_bytes};
use crate::sys;

/// Time after which a waiting queue pair looks whether its requests are still carried.
const WATCH_NS: u64 = 20_000_000;
/// Hands the posted entries of a queue pair to the process that carries them to another machine. Returns false if the
/// queue pair is not connected to one, has posted nothing, or nobody carries. Async-signal-safe.
pub(super) fn hand_over(locked: &mut Locked<'_>, function: usize, qpn: u32) -> bool {
    let slot = qp_slot(qpn);
    let fabric = locked.fabric();
    let Some(qp) = locked.peek(function).qps.get(slot) else {
        return false;
    };
    let running = matches!(qp.state, state::RTS | state::SQD);
    let serves = matches!(
        qp.service,
        service::RC | service::UC | service::UD | service::XRC
    );
    if !running || !serves || !fabric.is_carried() {
        return false;
    }
    if qp.service == service::UD {
        let poster = poster_of(function, slot, qp);
        let leaves = qp.state == state::RTS && leaves(locked, &poster);
        if leaves {
            watch(locked, function, slot);
            fabric.hand_over(function, slot);
        }
        return leaves;
    }
    if !is_carried(fabric, qp) {
        return false;
    }
    let record = qp.dbrec.wrapping_add(4);
    let posted = space_of_qp(locked, function, qpn).and_then(|own| own.read_be32(record).ok());
    let done = low16(qp.sq_done);
    if posted.is_none_or(|posted| low16(posted) == done) {
        return false;
    }
    watch(locked, function, slot);
    fabric.hand_over(function, slot);
    true
}

/// True if the next datagram of a queue pair goes to another machine.
fn leaves(locked: &Locked<'_>, poster: &Poster) -> bool {
    let mut bytes = [0; WORK_BYTES_MAX];
    let next = entry::sound(locked, poster, &mut bytes);
    let work = next.and_then(|_| work::parse(&bytes, service::UD).ok());
    let to = work.and_then(|work| work.address);
    to.is_some_and(|to| way_of(locked.fabric(), poster, &to).is_some())
}

/// Source and destination of a datagram to another machine; None if it stays here.
pub(super) fn way_of(
    fabric: &Fabric,
    poster: &Poster,
    to: &AddressVector,
) -> Option<(GidEntry, Place)> {
    let place = destination(fabric, poster.place(), to)?;
    let own = fabric.gid_entry(poster.place(), to.sgid_index)?;
    fabric.is_remote(place.function).then_some((own, place))
}

/// True if requests of a queue pair go to another machine.
pub(super) fn is_carried(fabric: &Fabric, qp: &Qp) -> bool {
    let remote = qp.remote();
    let connects = matches!(
        qp.service,
        service::RC | service::UC | service::XRC | SERVICE_XRC_TARGET
    );
    connects && remote.is_some_and(|remote| fabric.is_remote(remote.function))
}

/// Makes the thread of a queue pair's owner look after its requests later.
pub(super) fn watch(locked: &mut Locked<'_>, function: usize, slot: u32) {
    if let Some(qp) = locked.function(function).qps.get_mut(slot) {
        qp.pending = true;
        qp.retry_at_ns = sys::now_ns().saturating_add(WATCH_NS);
    }
}

/// A queue pair: its function and its slot.
pub(super) type Key = (usize, u32);

/// Bytes of a packet's data, with the port's.
pub(super) fn mtu_of(fabric: &Fabric, place: Place, qp: &Qp) -> u32 {
    let port = fabric.identity(place.function);
    let code = match qp.path.path_mtu {
        0 => port.map_or(1, |own| own.active_mtu(place.port)),
        code => code,
    };
    mtu_bytes(code).into()
}

pub(super) fn poster_of(function: usize, slot: u32, qp: &Qp) -> Poster {
    Poster {
        function,
        qpn: slot + QPN_BASE,
        qp: *qp,
        address: None,
        xrc_srq: None,
    }
}

/// A copy of a queue pair that receives, and perhaps sends.
pub(super) fn running(locked: &Locked<'_>, (function, slot): Key) -> Option<Poster> {
    let qp = locked.peek(function).qps.get(slot)?;
    let owner = locked.peek(function).qps.owner(slot)?;
    locked.pid(owner.process)?;
    let runs = matches!(qp.state, state::RTR | state::RTS | state::SQD | state::SQER);
    runs.then(|| poster_of(function, slot, qp))
}
