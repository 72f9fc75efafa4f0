//! Time limits of the connection manager, and the end of peers whose process has died. The thread of
//! each process looks after the identifiers of that process ([`super::super::tick`]).

use super::answer::{ended, passive_established};
use super::ids::get;
use super::request;
use crate::fabric::rdma_cm::{Awaits, EventKind, EventParam, Exchange, Stage};
use crate::fabric::{Fabric, Locked};
use crate::sys;

/// Handles the identifiers of a process: those whose time has come, and those whose peer's process
/// has ended.
pub(crate) fn expire(fabric: &Fabric, process: u32) {
    let mut locked = fabric.lock();
    if locked.common().rdma_cm.ids.live() == 0 {
        return;
    }
    release_dead_peers(&mut locked, process);
    let now_ns = sys::now_ns();
    let mut from = 0;
    loop {
        let ids = &locked.common().rdma_cm.ids;
        let found = ids.next(from, |owner, id| {
            owner.process == process && id.awaits != Awaits::Nothing
        });
        let Some(id) = found else { return };
        from = id + 1;
        if let Ok(known) = get(&mut locked, id) {
            let (awaits, due) = (known.awaits, known.deadline_ns <= now_ns);
            if due {
                out_of_time(&mut locked, id, awaits);
            } else if awaits == Awaits::Delivery {
                request::deliver(&mut locked, id);
            }
        }
    }
}

/// Releases the processes that own peers of this process's identifiers and have ended. The release
/// tells the identifiers.
fn release_dead_peers(locked: &mut Locked<'_>, process: u32) {
    let mut from = 0;
    while let Some(id) = locked
        .common()
        .rdma_cm
        .ids
        .next(from, |owner, id| owner.process == process && id.peer != 0)
    {
        from = id + 1;
        if let Some(peer) = locked.cm_peer(id)
            && let Some(owner) = locked.common().rdma_cm.ids.owner(peer)
            && owner.process != process
        {
            locked.release_if_gone(owner.process);
        }
    }
}

fn out_of_time(locked: &mut Locked<'_>, id: u32, awaits: Awaits) {
    let Ok(known) = get(locked, id) else { return };
    known.awaits = Awaits::Nothing;
    match awaits {
        Awaits::Nothing => {}
        Awaits::Address => {
            known.stage = Stage::Bound;
            post(locked, id, EventKind::AddressError, -libc::ETIMEDOUT);
        }
        Awaits::Route => {
            known.stage = Stage::AddressResolved;
            post(locked, id, EventKind::RouteError, -libc::ETIMEDOUT);
        }
        Awaits::Delivery | Awaits::Answer => locked.cm_unreachable(id, -libc::ETIMEDOUT),
        Awaits::Confirmation => passive_established(locked, id),
        Awaits::Disconnection => ended(locked, id),
        Awaits::TimeWaitExit => {
            known.exchange = Exchange::Idle;
            post(locked, id, EventKind::TimeWaitExit, 0);
        }
    }
}

fn post(locked: &mut Locked<'_>, id: u32, kind: EventKind, status: i32) {
    locked.cm_post(id, kind, status, &EventParam::default());
}
