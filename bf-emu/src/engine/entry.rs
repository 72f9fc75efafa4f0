//! The entries of a send queue, as they are read from its ring.

use mlx5_prm::qp::state;
use mlx5_prm::wqe::{Ctrl, WQEBB_BYTES};

use super::adversary::Which;
use super::complete::space_of_qp;
use super::peer::Poster;
use super::work::WORK_BYTES_MAX;
use crate::bits::low16;
use crate::fabric::Locked;
use crate::fabric::numbers::qp_slot;
use crate::fabric::objects::{Qp, Ring};
use crate::memory::{MemoryError, Space};

/// True if the queue of a request still executes requests.
pub(super) fn is_running(locked: &Locked<'_>, which: Which) -> bool {
    let qp = locked.peek(which.function).qps.get(qp_slot(which.queue));
    qp.is_some_and(executes)
}

pub(super) fn executes(qp: &Qp) -> bool {
    matches!(qp.state, state::RTS | state::SQD | state::SQER)
}

/// Reads the entry that a copy of a queue pair stands at, and returns its control segment. None if
/// no entry is posted, or if it is malformed.
pub(super) fn sound(
    locked: &Locked<'_>,
    poster: &Poster,
    bytes: &mut [u8; WORK_BYTES_MAX],
) -> Option<Ctrl> {
    let fetched = fetch(locked, (poster.function, poster.qpn), &poster.qp, bytes)?;
    fetched.sound.then_some(fetched.ctrl)
}

/// An entry that was read from its ring.
#[derive(Clone, Copy)]
pub(super) struct Fetched {
    pub(super) ctrl: Ctrl,
    /// False if the poster made an error: the doorbell record claims more entries than the ring
    /// holds, the entry is not readable, or it names another queue.
    pub(super) sound: bool,
    /// The memory of the poster's process.
    pub(super) space: Space,
}

/// Reads the next posted entry of a queue pair; None if there is none.
pub(super) fn fetch(
    locked: &Locked<'_>,
    (function, qpn): (usize, u32),
    qp: &Qp,
    bytes: &mut [u8; WORK_BYTES_MAX],
) -> Option<Fetched> {
    let space = space_of_qp(locked, function, qpn)?;
    let record = space.read_be32(qp.dbrec.wrapping_add(4)).ok()?;
    let posted = low16(record).wrapping_sub(low16(qp.sq_done));
    if posted == 0 || qp.sq.count == 0 {
        return None;
    }
    let read = read_entry(space, &qp.sq, qp.sq_done, bytes);
    let ctrl = control(bytes);
    let sound = u32::from(posted) <= qp.sq.count && read.is_ok() && ctrl.qpn == qpn;
    Some(Fetched { ctrl, sound, space })
}

/// The control segment, the first segment of each entry.
fn control(bytes: &[u8; WORK_BYTES_MAX]) -> Ctrl {
    Ctrl::parse(bytes.first_chunk().unwrap_or(&[0; Ctrl::BYTES]))
}

/// Copies an entry from its ring. The entry may wrap around the end.
fn read_entry(
    space: Space,
    sq: &Ring,
    done: u32,
    bytes: &mut [u8; WORK_BYTES_MAX],
) -> Result<(), MemoryError> {
    space.read(sq.entry(done), &mut bytes[..WQEBB_BYTES])?;
    let blocks = u32::from(control(bytes).wqebbs());
    if blocks == 1 {
        return Ok(());
    }
    let before_end = sq.count - (done & sq.count.wrapping_sub(1));
    let first = blocks.min(before_end) as usize * WQEBB_BYTES;
    let whole = blocks as usize * WQEBB_BYTES;
    if first > WQEBB_BYTES {
        let next = sq.entry(done).wrapping_add(WQEBB_BYTES as u64);
        space.read(next, &mut bytes[WQEBB_BYTES..first])?;
    }
    if whole > first {
        space.read(sq.base, &mut bytes[first..whole])?;
    }
    Ok(())
}
