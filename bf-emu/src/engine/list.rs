//! Gather and scatter lists, and the transfer of bytes between two of them.

use std::mem::MaybeUninit;

use mlx5_prm::wqe::{Data, INVALID_LKEY, OCTOWORD_BYTES};

use super::access::{Denied, Need, Piece, Side, resolve};
use crate::fabric::Locked;
use crate::memory::{CHUNK_BYTES, CopyError, MemoryError, Space, copy};
use crate::sys;

/// Segments of one list: a work queue entry has at most 63 octowords.
pub(crate) const SEGMENTS_MAX: usize = 64;
/// Bytes that a zero length in a gather entry means on this device.
const ZERO_LENGTH_BYTES: u64 = 1 << 31;

/// One range of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Segment {
    /// The key; None if the bytes are in this process at `address`, in the entry itself.
    pub key: Option<u32>,
    /// Address in the key's address space.
    pub address: u64,
    /// Bytes.
    pub length: u64,
}

/// A list of ranges with one user and one use.
#[derive(Clone, Debug)]
pub(crate) struct List {
    side: Side,
    need: Need,
    /// The first `count` segments are initialised. Most lists have one segment, and clearing the
    /// others would dominate the cost.
    segments: [MaybeUninit<Segment>; SEGMENTS_MAX],
    count: usize,
}

/// The list of an entry is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

impl List {
    /// An empty list.
    pub(crate) fn new(side: Side, need: Need) -> Self {
        Self {
            side,
            need,
            segments: [MaybeUninit::uninit(); SEGMENTS_MAX],
            count: 0,
        }
    }

    fn segments(&self) -> &[Segment] {
        let set = &self.segments[..self.count];
        // SAFETY: `push` has initialised the first `count`, and a segment has the layout of its
        // cell.
        unsafe { std::slice::from_raw_parts(set.as_ptr().cast(), set.len()) }
    }

    /// A list of one range of a key.
    pub(crate) fn of_key(side: Side, need: Need, key: u32, address: u64, length: u64) -> Self {
        let mut list = Self::new(side, need);
        // Cannot fail: the list is empty.
        let _ = list.push(Segment {
            key: Some(key),
            address,
            length,
        });
        list
    }

    /// A list of bytes of this process, as a source.
    pub(crate) fn of_bytes(side: Side, bytes: &[u8]) -> Self {
        let mut list = Self::new(side, Need::LocalRead);
        let address = bytes.as_ptr().addr() as u64;
        // Cannot fail: the list is empty.
        let _ = list.push(Segment {
            key: None,
            address,
            length: bytes.len() as u64,
        });
        list
    }

    /// A list of bytes of this process, as a target.
    pub(crate) fn into_bytes(side: Side, bytes: &mut [u8]) -> Self {
        Self {
            need: Need::LocalWrite,
            ..Self::of_bytes(side, bytes)
        }
    }

    /// The user of the list.
    pub(crate) fn side(&self) -> Side {
        self.side
    }

    fn push(&mut self, segment: Segment) -> Result<(), Malformed> {
        self.segments
            .get_mut(self.count)
            .ok_or(Malformed)?
            .write(segment);
        self.count += 1;
        Ok(())
    }

    /// Adds the data segments of a send entry. Inline data is referenced in `bytes`, which must
    /// outlive the use of the list.
    pub(crate) fn gather(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        let mut at = 0;
        while let Some(octoword) = octoword(bytes, at) {
            match Data::parse(octoword) {
                Data::Memory {
                    length,
                    lkey,
                    address,
                } => {
                    let length = match length {
                        0 => ZERO_LENGTH_BYTES,
                        length => u64::from(length),
                    };
                    self.push(Segment {
                        key: Some(lkey),
                        address,
                        length,
                    })?;
                    at += OCTOWORD_BYTES;
                }
                Data::Inline { length } => {
                    let start = at + Data::INLINE_HEADER_BYTES;
                    let end = start.checked_add(length as usize).ok_or(Malformed)?;
                    let inline = bytes.get(start..end).ok_or(Malformed)?;
                    self.push(Segment {
                        key: None,
                        address: inline.as_ptr().addr() as u64,
                        length: inline.len() as u64,
                    })?;
                    at = end.next_multiple_of(OCTOWORD_BYTES);
                }
            }
        }
        Ok(())
    }

    /// Adds the scatter segments of a receive entry, up to the end mark.
    pub(crate) fn scatter(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        let mut at = 0;
        while let Some(octoword) = octoword(bytes, at) {
            at += OCTOWORD_BYTES;
            match Data::parse(octoword) {
                Data::Memory {
                    lkey: INVALID_LKEY, ..
                } => break,
                Data::Memory { length: 0, .. } => {}
                Data::Memory {
                    length,
                    lkey,
                    address,
                } => {
                    self.push(Segment {
                        key: Some(lkey),
                        address,
                        length: u64::from(length),
                    })?;
                }
                Data::Inline { .. } => return Err(Malformed),
            }
        }
        Ok(())
    }

    /// Bytes that the list covers.
    pub(crate) fn length(&self) -> u64 {
        self.segments().iter().map(|segment| segment.length).sum()
    }

    /// The piece of memory that starts `position` bytes into the list.
    fn piece(&self, locked: &Locked<'_>, position: u64) -> Result<Option<Piece>, Denied> {
        let mut left = position;
        for segment in self.segments() {
            if left >= segment.length {
                left -= segment.length;
                continue;
            }
            let length = segment.length - left;
            let Some(key) = segment.key else {
                // Cannot overflow: the range is a slice in this process.
                let address = segment.address + left;
                return Ok(Some(Piece {
                    process: 0,
                    space: own_space(),
                    address,
                    length,
                    on_demand: false,
                }));
            };
            // The whole segment is checked each time, not only its rest: a key that covers a part
            // of a segment gives access to none of it.
            resolve(
                locked,
                self.side,
                key,
                segment.address,
                segment.length,
                self.need,
            )?;
            let address = segment.address.checked_add(left).ok_or(Denied::Bounds)?;
            return resolve(locked, self.side, key, address, length, self.need).map(Some);
        }
        Ok(None)
    }

    /// Reads bytes of the list from `offset` on. The list is checked up to their end.
    pub(super) fn read_at(
        &self,
        locked: &mut Locked<'_>,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), Failure> {
        let mut done = 0;
        while done < into.len() {
            let piece = self.piece(locked, offset + done as u64).ok().flatten();
            let piece = piece.ok_or(Failure::Source)?;
            let rest = into.get_mut(done..).unwrap_or_default();
            let length =
                usize::try_from(piece.length).map_or(rest.len(), |own| own.min(rest.len()));
            let part = rest.get_mut(..length).unwrap_or_default();
            piece
                .space
                .read(piece.address, part)
                .map_err(|error| match error {
                    MemoryError::Gone => {
                        locked.release_if_gone(piece.process);
                        Failure::SourceGone
                    }
                    MemoryError::Fault => Failure::Source,
                })?;
            done += length;
        }
        Ok(())
    }

    /// Writes bytes of the list from `offset` on. The list is checked up to their end.
    pub(super) fn write_at(
        &self,
        locked: &mut Locked<'_>,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), Failure> {
        let mut done = 0;
        while done < bytes.len() {
            let piece = self.piece(locked, offset + done as u64).ok().flatten();
            let piece = piece.ok_or(Failure::Target)?;
            let rest = bytes.get(done..).unwrap_or_default();
            let length =
                usize::try_from(piece.length).map_or(rest.len(), |own| own.min(rest.len()));
            let part = rest.get(..length).unwrap_or_default();
            piece
                .space
                .write(piece.address, part)
                .map_err(|error| match error {
                    MemoryError::Gone => {
                        locked.release_if_gone(piece.process);
                        Failure::TargetGone
                    }
                    MemoryError::Fault => Failure::Target,
                })?;
            done += length;
        }
        Ok(())
    }

    /// True if some of the first `total` bytes are in a region with on-demand paging.
    pub(super) fn may_fault(&self, locked: &Locked<'_>, total: u64) -> bool {
        let mut position = 0;
        while position < total {
            match self.piece(locked, position) {
                Ok(Some(piece)) if !piece.on_demand => position += piece.length.max(1),
                Ok(Some(_)) => return true,
                _ => return false,
            }
        }
        false
    }

    /// Checks that the first `total` bytes are accessible. Moves no data.
    pub(super) fn check(&self, locked: &Locked<'_>, total: u64) -> Result<(), Denied> {
        let mut position = 0;
        while position < total {
            let piece = self.piece(locked, position)?.ok_or(Denied::Bounds)?;
            position += piece.length.max(1);
        }
        Ok(())
    }
}

fn octoword(bytes: &[u8], at: usize) -> Option<&[u8; OCTOWORD_BYTES]> {
    bytes
        .get(at..at.checked_add(OCTOWORD_BYTES)?)?
        .try_into()
        .ok()
}

fn own_space() -> Space {
    Space::of(sys::pid())
}

/// Reason why a transfer failed, perhaps after a part of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The source bytes are not readable.
    Source,
    /// The target bytes are not writable.
    Target,
    /// The source process no longer exists.
    SourceGone,
    /// The target process no longer exists.
    TargetGone,
}

/// Moves `total` bytes from one list to another, where the first `skip` bytes are skipped. Both
/// lists are checked completely before the first byte moves. If a key is invalidated during a long
/// transfer, the transfer stops there, as on hardware.
pub(crate) fn transfer(
    locked: &mut Locked<'_>,
    from: &List,
    to: (&List, u64),
    total: u64,
) -> Result<(), Failure> {
    transfer_pausing(locked, from, to, (total, true))
}

/// Like [`transfer`], but keeps the lock until all data is moved, for any length. Used if another
/// process could otherwise take the target.
pub(crate) fn transfer_at_once(
    locked: &mut Locked<'_>,
    from: &List,
    to: (&List, u64),
    total: u64,
) -> Result<(), Failure> {
    transfer_pausing(locked, from, to, (total, false))
}

fn transfer_pausing(
    locked: &mut Locked<'_>,
    from: &List,
    (to, skip): (&List, u64),
    (total, pauses): (u64, bool),
) -> Result<(), Failure> {
    from.check(locked, total).map_err(|_| Failure::Source)?;
    // Cannot overflow: a list covers less than 2^38 bytes.
    to.check(locked, skip + total)
        .map_err(|_| Failure::Target)?;
    move_range(locked, from, (to, skip), (0, total), pauses)
}

/// Moves the bytes from `start` to `end` of a transfer whose lists are checked.
pub(super) fn move_range(
    locked: &mut Locked<'_>,
    from: &List,
    (to, skip): (&List, u64),
    (start, end): (u64, u64),
    pauses: bool,
) -> Result<(), Failure> {
    let mut position = start;
    let mut since_pause = 0;
    while position < end {
        let source = from
            .piece(locked, position)
            .ok()
            .flatten()
            .ok_or(Failure::Source)?;
        let target = to
            .piece(locked, skip + position)
            .ok()
            .flatten()
            .ok_or(Failure::Target)?;
        let length = source.length.min(target.length).min(end - position);
        let length = usize::try_from(length)
            .unwrap_or(CHUNK_BYTES)
            .min(CHUNK_BYTES);
        let ends = (
            (source.space, source.address),
            (target.space, target.address),
        );
        copy(ends.0, ends.1, length).map_err(|error| match error {
            CopyError::Source(MemoryError::Gone) => {
                locked.release_if_gone(source.process);
                Failure::SourceGone
            }
            CopyError::Target(MemoryError::Gone) => {
                locked.release_if_gone(target.process);
                Failure::TargetGone
            }
            CopyError::Source(MemoryError::Fault) => Failure::Source,
            CopyError::Target(MemoryError::Fault) => Failure::Target,
        })?;
        position += length as u64;
        since_pause += length;
        if pauses && since_pause >= CHUNK_BYTES && position < end {
            locked.pause();
            since_pause = 0;
        }
    }
    Ok(())
}
