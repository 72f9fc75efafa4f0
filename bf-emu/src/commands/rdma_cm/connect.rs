//! Connections: CONNECT, ACCEPT, REJECT, DISCONNECT and NOTIFY.

use super::caller::Caller;
use super::event::settle;
use crate::engine::rdma_cm::{answer, connect as send_request};
use crate::fabric::rdma_cm::{Exchange, Params, reason};
use crate::sys::Errno;

/// Reason of a rejection: an option of the vendor is not supported.
const VENDOR_OPTION: u8 = 35;
/// Event of a queue pair: data arrived before the connection stood (`enum ib_event_type`).
const COMMUNICATION_ESTABLISHED: u32 = 4;

pub(super) fn connect(caller: &Caller<'_>, id: u32, params: &Params) -> Result<(), Errno> {
    let mut locked = caller.lock();
    let known = caller.attached(&mut locked, id)?;
    let qkey = match known.source.family() {
        Some(crate::model::sockaddr::Family::Ib) => params.qkey,
        _ => 0,
    };
    let params = Params { qkey, ..*params };
    let patience_ns = caller.process.cm_patience_ns();
    send_request(&mut locked, id, &params, patience_ns)
}

/// ACCEPT: with parameters of a request, without them of a reply.
pub(super) fn accept(
    caller: &Caller<'_>,
    uid: u64,
    id: u32,
    params: Option<&Params>,
) -> Result<(), Errno> {
    let mut locked = caller.lock();
    caller.attached(&mut locked, id)?;
    match params {
        Some(params) => {
            let patience_ns = caller.process.cm_patience_ns();
            answer::accept(&mut locked, id, uid, params, patience_ns)
        }
        None => answer::establish(&mut locked, id),
    }
}

pub(super) fn reject(
    caller: &Caller<'_>,
    id: u32,
    given: u8,
    params: &Params,
) -> Result<(), Errno> {
    let reason = match given {
        0 => reason::CONSUMER,
        VENDOR_OPTION => i32::from(VENDOR_OPTION),
        given if i32::from(given) == reason::CONSUMER => reason::CONSUMER,
        _ => return Err(Errno(libc::EINVAL)),
    };
    let mut locked = caller.lock();
    caller.attached(&mut locked, id)?;
    answer::reject(&mut locked, id, reason, params)
}

pub(super) fn disconnect(caller: &Caller<'_>, id: u32) -> Result<(), Errno> {
    let mut locked = caller.lock();
    caller.attached(&mut locked, id)?;
    answer::disconnect(&mut locked, id, caller.process.cm_patience_ns())?;
    settle(&mut locked, caller.file, caller.fd);
    Ok(())
}

pub(super) fn notify(caller: &Caller<'_>, id: u32, event: u32) -> Result<(), Errno> {
    let mut locked = caller.lock();
    let known = caller.id(&mut locked, id)?;
    if known.exchange == Exchange::Idle || event != COMMUNICATION_ESTABLISHED {
        return Err(Errno(libc::EINVAL));
    }
    answer::notify_established(&mut locked, id)
}
