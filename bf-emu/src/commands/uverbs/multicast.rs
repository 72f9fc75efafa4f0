//! `ATTACH_MCAST` and `DETACH_MCAST`: the multicast groups of a queue pair of datagrams.

use mlx5_prm::qp::{service, state};

use super::ioctl::Fields;
use crate::commands::call::{Call, Full, Kind};
use crate::fabric::counters::Command;
use crate::fabric::multicast::NoSpace;
use crate::fabric::objects::Qp;
use crate::fabric::{Identity, Locked};
use crate::model::address::Gid;
use crate::model::multicast;
use crate::sys::Errno;

/// `struct ib_uverbs_attach_mcast`, and the same for the other call.
struct Asked {
    gid: Gid,
    /// Slot of the queue pair.
    qp: u32,
    lid: u16,
}

impl Asked {
    fn read(input: Fields<'_>) -> Result<Self, Errno> {
        Ok(Self {
            gid: input.bytes16(0),
            qp: Kind::Qp.slot(input.u32(16))?,
            lid: input.u16(20),
        })
    }

    /// The queue pair, if it belongs to the caller and was made by verbs.
    fn queue_pair(&self, call: &Call<'_>, locked: &Locked<'_>) -> Result<Qp, Errno> {
        let qps = &locked.peek(call.function()).qps;
        let qp = qps.owned(self.qp, call.context.number);
        let qp = qp.filter(|qp| !qp.by_command);
        qp.copied().ok_or(Errno(libc::ENOENT))
    }

    /// Checks the group (core/verbs.c, `ib_attach_mcast`).
    fn check(&self, call: &Call<'_>, qp: &Qp) -> Result<(), Errno> {
        let fits = multicast::is_group(&self.gid)
            && qp.service == service::UD
            && is_valid_lid(call.identity()?, qp, self.lid);
        match fits {
            true => Ok(()),
            false => Err(Errno(libc::EINVAL)),
        }
    }
}

/// True if a LID may be that of a group. Ethernet ignores it (core/verbs.c, `is_valid_mcast_lid`).
fn is_valid_lid(identity: &Identity, qp: &Qp, lid: u16) -> bool {
    let on_ethernet = |port| identity.link(port).is_ethernet();
    let ignored = match qp.state {
        // It has no port yet.
        state::RST => identity.ports().any(on_ethernet),
        _ => on_ethernet(qp.port()),
    };
    ignored || multicast::LIDS.contains(&lid)
}

/// `ATTACH_MCAST`. A second attachment with the same LID changes nothing (uverbs_cmd.c,
/// `ib_uverbs_attach_mcast`).
pub(super) fn attach(call: &Call<'_>, input: Fields<'_>) -> Result<(), Errno> {
    call.count(Command::Other);
    let asked = Asked::read(input)?;
    let owner = call.owner()?;
    let mut locked = call.lock();
    let qp = asked.queue_pair(call, &locked)?;
    let function = locked.function(call.function());
    let known = function.attachment(asked.qp, &asked.gid, asked.lid);
    if known.is_some() {
        return Ok(());
    }
    asked.check(call, &qp)?;
    let attached = function.attach(owner, asked.qp, &asked.gid, asked.lid);
    drop(locked);
    attached.map_err(|full| {
        call.full(match full {
            NoSpace::Groups => Full::Groups,
            NoSpace::GroupQps => Full::GroupQps,
        })
    })
}

/// `DETACH_MCAST`. An attachment that does not exist is an error (uverbs_cmd.c,
/// `ib_uverbs_detach_mcast`).
pub(super) fn detach(call: &Call<'_>, input: Fields<'_>) -> Result<(), Errno> {
    call.count(Command::Other);
    let asked = Asked::read(input)?;
    let mut locked = call.lock();
    asked.queue_pair(call, &locked)?;
    let function = locked.function(call.function());
    let slot = function.attachment(asked.qp, &asked.gid, asked.lid);
    let slot = slot.ok_or(Errno(libc::EINVAL))?;
    function.detach(slot);
    Ok(())
}
