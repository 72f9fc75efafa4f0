//! Identifiers: their creation and their end.

use super::caller::Caller;
use super::event;
use crate::engine::rdma_cm::number;
use crate::fabric::counters::Refusal;
use crate::fabric::rdma_cm::{CmId, Side};
use crate::sys::Errno;

/// Port spaces (`enum rdma_ucm_port_space`).
pub(super) mod space {
    pub(in super::super) const IPOIB: u16 = 0x0002;
    pub(in super::super) const TCP: u16 = 0x0106;
    pub(in super::super) const UDP: u16 = 0x0111;
    pub(in super::super) const IB: u16 = 0x013f;
}

/// Types of queue pairs (`enum ib_qp_type`).
const QP_RC: u8 = 2;
const QP_UD: u8 = 4;

/// CREATE_ID.
pub(super) fn create(
    caller: &Caller<'_>,
    uid: u64,
    response: u64,
    (port_space, qp_type): (u16, u8),
) -> Result<(), Errno> {
    caller.needs_room(4)?;
    let qp_type = match port_space {
        space::TCP => QP_RC,
        space::UDP | space::IPOIB => QP_UD,
        space::IB => qp_type,
        _ => return Err(Errno(libc::EINVAL)),
    };
    let mut locked = caller.lock();
    let psn = number(&mut locked);
    let new = CmId {
        uid,
        file: caller.file,
        port_space,
        qp_type,
        reported: true,
        here: Side { qp_num: 0, psn },
        ..CmId::default()
    };
    let manager = &mut locked.common().rdma_cm;
    // The identifier ends with its file, which another process may have opened.
    let owner = manager.files.owner(caller.file);
    let owner = owner.ok_or(Errno(libc::EBADF))?;
    let Some(id) = manager.ids.insert(owner, new) else {
        caller
            .process
            .fabric()
            .counters(0)
            .refuse(Refusal::TableFull);
        return Err(Errno(libc::ENOMEM));
    };
    let answered = caller.answer(response, &id.to_ne_bytes());
    if answered.is_err() {
        locked.cm_destroy(id);
    }
    answered
}

/// DESTROY_ID. The answer is the number of events that the owner has read.
pub(super) fn destroy(caller: &Caller<'_>, response: u64, id: u32) -> Result<(), Errno> {
    caller.needs_room(4)?;
    let mut locked = caller.lock();
    caller.id(&mut locked, id)?;
    let reported = locked.cm_destroy(id).ok_or(Errno(libc::ENOENT))?;
    event::settle(&mut locked, caller.file, caller.fd);
    drop(locked);
    caller.answer(response, &reported.to_ne_bytes())
}
