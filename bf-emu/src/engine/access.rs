//! Resolves a key and an address to memory, with every check that a work request must pass.

use mlx5_prm::mkey::{Klm, QPN_ANY};
use mlx5_prm::umr::access;

use crate::fabric::Locked;
use crate::fabric::numbers::slot_of;
use crate::fabric::objects::{Mkey, MkeyKind};
use crate::memory::Space;

/// Longest chain of keys: an alias, a window or UMR key, a KSM key, and the memory.
pub(crate) const DEPTH_MAX: usize = 4;

/// The use that a request makes of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// The poster's own key, read.
    LocalRead,
    /// The poster's own key, written.
    LocalWrite,
    /// The other side's key, read.
    RemoteRead,
    /// The other side's key, written.
    RemoteWrite,
    /// The other side's key, changed atomically.
    RemoteAtomic,
}

impl Need {
    fn flag(self) -> u8 {
        match self {
            // Every key permits local reads.
            Self::LocalRead => 0,
            Self::LocalWrite => access::LOCAL_WRITE,
            Self::RemoteRead => access::REMOTE_READ,
            Self::RemoteWrite => access::REMOTE_WRITE,
            Self::RemoteAtomic => access::ATOMIC,
        }
    }

    /// The use that inner keys must grant. The outer key grants remote rights. The memory behind it
    /// must permit local writes if the request writes to it.
    fn behind(self) -> Self {
        match self {
            Self::LocalRead | Self::RemoteRead => Self::LocalRead,
            Self::LocalWrite | Self::RemoteWrite | Self::RemoteAtomic => Self::LocalWrite,
        }
    }
}

/// The user of a key: the queue pair whose protection domain is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Side {
    /// Its function.
    pub function: usize,
    /// Its protection domain.
    pub pd: u32,
    /// Its number.
    pub qpn: u32,
}

/// Reason why a key gives no access to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    /// No such key exists, or its variant differs.
    NoKey,
    /// The key is free: not bound, or invalidated.
    Free,
    /// The key belongs to another protection domain or queue pair.
    Foreign,
    /// The key does not grant this use.
    Rights,
    /// The range exceeds the key's range.
    Bounds,
    /// The chain of keys is too long, or contains an alias behind another key.
    Depth,
    /// The key is an alias, and its target no longer exists.
    Stale,
}

/// A range of one process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The process, by its number on the device.
    pub process: u32,
    /// Its memory.
    pub space: Space,
    /// Start address.
    pub address: u64,
    /// Length in bytes.
    pub length: u64,
    /// The pages may be absent until the access.
    pub on_demand: bool,
}

/// Resolves `length` bytes at `address` of `key` to the first contiguous piece of memory, of 1 to
/// `length` bytes. The whole range is checked against the key itself. Inner keys are checked for
/// the piece only.
pub(crate) fn resolve(
    locked: &Locked<'_>,
    side: Side,
    key: u32,
    address: u64,
    length: u64,
    need: Need,
) -> Result<Piece, Denied> {
    let mut function = side.function;
    let mut slot = slot_of(key).ok_or(Denied::NoKey)?;
    let (mut address, mut length, mut need) = (address, length, need);
    let mut mkey = locked.peek(function).mkeys.get(slot).ok_or(Denied::NoKey)?;
    let mut pd = side.pd;
    if mkey.kind == MkeyKind::Alias {
        if mkey.pd != pd {
            return Err(Denied::Foreign);
        }
        let target = mkey.target;
        function = target.function as usize;
        slot = target.index;
        let mkeys = &locked.peek(function).mkeys;
        if mkeys.generation(slot) != Some(target.generation) {
            return Err(Denied::Stale);
        }
        // The creator of an alias chooses its variant, so the variant is not checked. Protection
        // domains belong to one function: inner keys must be in the target's domain.
        mkey = mkeys.get(slot).ok_or(Denied::Stale)?;
        if mkey.kind == MkeyKind::Alias {
            return Err(Denied::Depth);
        }
        pd = mkey.pd;
    } else {
        check_variant(mkey, key)?;
    }
    for _ in 0..DEPTH_MAX {
        check_use(mkey, pd, side, need)?;
        let offset = check_bounds(mkey, address, length)?;
        match mkey.kind {
            MkeyKind::Alias => return Err(Denied::Depth),
            MkeyKind::Direct => {
                let process = locked
                    .peek(function)
                    .mkeys
                    .owner(slot)
                    .map(|owner| owner.process)
                    .ok_or(Denied::NoKey)?;
                let pid = locked.pid(process).ok_or(Denied::NoKey)?;
                // Cannot overflow: registration refuses a range that wraps, and the offset is
                // within the length.
                let host = mkey.host.wrapping_add(offset);
                return Ok(Piece {
                    process,
                    space: Space::registered(pid, mkey.pin),
                    address: host,
                    length,
                    on_demand: mkey.on_demand,
                });
            }
            MkeyKind::Klm | MkeyKind::Ksm => {
                let (behind, at, left) = entry(locked, function, mkey, offset)?;
                address = at;
                length = length.min(left);
                need = need.behind();
                slot = slot_of(behind).ok_or(Denied::NoKey)?;
                mkey = locked.peek(function).mkeys.get(slot).ok_or(Denied::NoKey)?;
                check_variant(mkey, behind)?;
            }
        }
    }
    Err(Denied::Depth)
}

/// True if writes to a key need no order among each other.
pub(super) fn is_relaxed(locked: &Locked<'_>, function: usize, key: u32) -> bool {
    let mkeys = &locked.peek(function).mkeys;
    let mkey = slot_of(key).and_then(|slot| mkeys.get(slot));
    mkey.is_some_and(|mkey| mkey.relaxed)
}

fn check_variant(mkey: &Mkey, key: u32) -> Result<(), Denied> {
    let [.., variant] = key.to_be_bytes();
    if mkey.variant == variant {
        Ok(())
    } else {
        Err(Denied::NoKey)
    }
}

fn check_use(mkey: &Mkey, pd: u32, side: Side, need: Need) -> Result<(), Denied> {
    if mkey.free {
        Err(Denied::Free)
    } else if mkey.pd != pd || (mkey.qpn != QPN_ANY && mkey.qpn != side.qpn) {
        Err(Denied::Foreign)
    } else if mkey.access & need.flag() != need.flag() {
        Err(Denied::Rights)
    } else {
        Ok(())
    }
}

/// Offset of the range in the key.
fn check_bounds(mkey: &Mkey, address: u64, length: u64) -> Result<u64, Denied> {
    let offset = address.checked_sub(mkey.start).ok_or(Denied::Bounds)?;
    let end = offset.checked_add(length).ok_or(Denied::Bounds)?;
    if end <= mkey.len {
        Ok(offset)
    } else {
        Err(Denied::Bounds)
    }
}

/// The inner key, the address and the remaining bytes of an indirect key's entry at `offset`.
fn entry(
    locked: &Locked<'_>,
    function: usize,
    mkey: &Mkey,
    offset: u64,
) -> Result<(u32, u64, u64), Denied> {
    let klms = &locked.peek(function).klms;
    let get = |index: u64| {
        usize::try_from(index)
            .ok()
            .filter(|index| *index < mkey.entries as usize)
            .and_then(|index| klms.get(mkey.list, index))
            .ok_or(Denied::Bounds)
    };
    if mkey.kind == MkeyKind::Ksm {
        let size = 1u64
            .checked_shl(u32::from(mkey.log_entity))
            .ok_or(Denied::Bounds)?;
        let klm = get(offset >> mkey.log_entity)?;
        let within = offset & (size - 1);
        return Ok((klm.mkey, klm.address.wrapping_add(within), size - within));
    }
    let first = get(0)?;
    if first.mkey == REPEAT_BLOCK {
        return strided(Repeat::of(first), offset, get);
    }
    let mut start = 0u64;
    for index in 0..u64::from(mkey.entries) {
        let klm = get(index)?;
        // Cannot overflow: at most 2^32 entries of at most 2^32 bytes.
        let end = start + klm.length();
        if offset < end {
            let within = offset - start;
            return Ok((klm.mkey, klm.address.wrapping_add(within), end - offset));
        }
        start = end;
    }
    Err(Denied::Bounds)
}

/// Marks the head of a strided list, in the field that holds a key in other entries (`mlx5dv.h`,
/// `struct mlx5_wqe_umr_repeat_block_seg`, `op`).
pub(crate) const REPEAT_BLOCK: u32 = 0x400;

/// A strided list: rounds over the same ranges. Each round starts one stride further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Repeat {
    /// Bytes of a round.
    round: u64,
    rounds: u64,
    ranges: u64,
}

impl Repeat {
    fn of(head: Klm) -> Self {
        Self {
            round: u64::from(head.byte_count),
            rounds: head.address >> 32,
            ranges: head.address & 0xffff,
        }
    }
}

/// Like [`entry`], in a strided list.
fn strided(
    repeat: Repeat,
    offset: u64,
    get: impl Fn(u64) -> Result<Klm, Denied>,
) -> Result<(u32, u64, u64), Denied> {
    let round = offset.checked_div(repeat.round).ok_or(Denied::Bounds)?;
    if round >= repeat.rounds {
        return Err(Denied::Bounds);
    }
    let mut within = offset % repeat.round;
    for index in 1..=repeat.ranges {
        let range = get(index)?;
        // The length field of such a range has two halves: the stride and the number of bytes.
        let (stride, bytes) = (
            u64::from(range.byte_count >> 16),
            u64::from(range.byte_count & 0xffff),
        );
        if within < bytes {
            let at = range
                .address
                .wrapping_add(round.wrapping_mul(stride))
                .wrapping_add(within);
            return Ok((range.mkey, at, bytes - within));
        }
        within -= bytes;
    }
    Err(Denied::Bounds)
}
