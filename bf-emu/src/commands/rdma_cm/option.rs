//! SET_OPTION: options of an identifier, and a path that the program has found itself.

use super::caller::Caller;
use super::query::PATH_FLAGS;
use crate::fabric::rdma_cm::{EventKind, EventParam, Stage};
use crate::guard;
use crate::sys::Errno;

/// Levels of options.
const LEVEL_ID: u32 = 0;
const LEVEL_IB: u32 = 1;
/// Options of an identifier.
const TYPE_OF_SERVICE: u32 = 0;
const REUSE_ADDRESS: u32 = 1;
const FAMILY_ONLY: u32 = 2;
const ACK_TIMEOUT: u32 = 3;
/// The option of level IB: paths.
const PATH: u32 = 1;
/// Bytes of `struct ib_path_rec_data`.
const PATH_BYTES: usize = 72;
/// Longest value (`KMALLOC_MAX_SIZE` on most kernels).
const VALUE_BYTES_MAX: u32 = 4 << 20;
/// Longest acknowledgement timeout: five bits.
const ACK_TIMEOUT_MAX: u8 = 31;

pub(super) fn set(
    caller: &Caller<'_>,
    id: u32,
    (level, name): (u32, u32),
    (value, length): (u64, u32),
) -> Result<(), Errno> {
    if length > VALUE_BYTES_MAX {
        return Err(Errno(libc::EINVAL));
    }
    caller.id(&mut caller.lock(), id)?;
    match (level, name) {
        (LEVEL_ID, TYPE_OF_SERVICE | ACK_TIMEOUT) => {
            let [byte] = copied::<1>(value, length)?;
            set_byte(caller, id, name, byte)
        }
        (LEVEL_ID, REUSE_ADDRESS | FAMILY_ONLY) => {
            let wanted = copied::<4>(value, length)? != [0; 4];
            set_flag(caller, id, name, wanted)
        }
        (LEVEL_IB, PATH) => set_path(caller, id, value, length),
        _ => Err(Errno(libc::ENOSYS)),
    }
}

/// A value of exactly `N` bytes.
fn copied<const N: usize>(at: u64, length: u32) -> Result<[u8; N], Errno> {
    if length as usize != N {
        return Err(Errno(libc::EINVAL));
    }
    let mut bytes = [0; N];
    guard::read(at, &mut bytes)?;
    Ok(bytes)
}

fn set_byte(caller: &Caller<'_>, id: u32, name: u32, value: u8) -> Result<(), Errno> {
    let mut locked = caller.lock();
    let known = caller.id(&mut locked, id)?;
    if name == TYPE_OF_SERVICE {
        known.service_type = value;
        return Ok(());
    }
    if value > ACK_TIMEOUT_MAX {
        return Err(Errno(libc::EINVAL));
    }
    known.ack_timeout = u16::from(value) + 1;
    Ok(())
}

/// Permits to share an address, which is only possible before it is bound, or restricts a listener
/// to its family (core/cma.c, `rdma_set_reuseaddr`, `rdma_set_afonly`).
fn set_flag(caller: &Caller<'_>, id: u32, name: u32, wanted: bool) -> Result<(), Errno> {
    let mut locked = caller.lock();
    let known = caller.id(&mut locked, id)?;
    let early = match name {
        REUSE_ADDRESS => known.stage == Stage::Idle || wanted && known.stage != Stage::Listen,
        _ => matches!(known.stage, Stage::Idle | Stage::Bound),
    };
    if !early {
        return Err(Errno(libc::EINVAL));
    }
    match name {
        REUSE_ADDRESS => known.reuse = wanted,
        _ => known.family_only = wanted,
    }
    Ok(())
}

/// Sets the path: the first record that is marked for it (`ucma_set_ib_path`).
fn set_path(caller: &Caller<'_>, id: u32, value: u64, length: u32) -> Result<(), Errno> {
    let length = length as usize;
    if !length.is_multiple_of(PATH_BYTES) {
        return Err(Errno(libc::EINVAL));
    }
    let mut record = [0; PATH_BYTES];
    let mut found = false;
    for at in (0..length).step_by(PATH_BYTES) {
        guard::read(value.wrapping_add(at as u64), &mut record)?;
        let [a, b, c, d, ..] = record;
        if u32::from_ne_bytes([a, b, c, d]) == PATH_FLAGS {
            found = true;
            break;
        }
    }
    if !found {
        return Err(Errno(libc::EINVAL));
    }
    let mut locked = caller.lock();
    let known = caller.attached(&mut locked, id)?;
    if known.stage != Stage::AddressResolved {
        return Err(Errno(libc::EINVAL));
    }
    for (to, from) in known.path.iter_mut().zip(record[8..].chunks_exact(4)) {
        let mut word = [0; 4];
        word.copy_from_slice(from);
        *to = u32::from_ne_bytes(word);
    }
    known.has_path = true;
    known.paths = 1;
    known.stage = Stage::RouteResolved;
    locked.cm_post(id, EventKind::RouteResolved, 0, &EventParam::default());
    Ok(())
}
