//! Requests of a guest: their form, and what they do. Knows no queue.

use crate::disk::Disk;
use crate::error::Result as DiskResult;
use crate::geometry::SECTOR;
use std::io::{self, Read, Write};

/// Longest READ and WRITE in bytes.
pub(super) const LENGTH_MAX: usize = 32 << 20;
/// Most ranges of a DISCARD or WRITE_ZEROES.
pub(super) const RANGES_MAX: u32 = 16;
/// Most sectors of such a range.
pub(super) const RANGE_SECTORS_MAX: u32 = 1 << 22;
/// Bytes of such a range.
const RANGE: usize = 16;
/// Bytes of the identifier.
const ID: usize = 20;
/// Longer buffers are given back after a request.
const KEPT: usize = 1 << 20;

/// Types of requests.
mod kind {
    pub(super) const IN: u32 = 0;
    pub(super) const OUT: u32 = 1;
    pub(super) const FLUSH: u32 = 4;
    pub(super) const GET_ID: u32 = 8;
    pub(super) const DISCARD: u32 = 11;
    pub(super) const WRITE_ZEROES: u32 = 13;
}

/// A range of a WRITE_ZEROES may become a hole.
const UNMAP: u32 = 1;

/// Results of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Status {
    Ok = 0,
    IoError = 1,
    Unsupported = 2,
}

/// What the volume allows and the guest has chosen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    pub(super) read_only: bool,
    /// The guest does not know FLUSH: each write is durable before its end.
    pub(super) write_through: bool,
}

/// The parts of a request in the guest's memory.
#[derive(Debug)]
pub(super) struct Parts<R, W> {
    pub(super) from: R,
    /// Bytes of `from`.
    pub(super) from_length: usize,
    pub(super) to: W,
    /// Bytes of `to`, without that of the status.
    pub(super) to_length: usize,
}

/// Carries out a request. Returns its status, and how many bytes it has written to the guest. A FLUSH waits by `earlier` for
/// the requests before it.
pub(super) fn carry_out<R: Read, W: Write>(
    disk: &dyn Disk,
    terms: Terms,
    parts: &mut Parts<R, W>,
    (buffer, earlier): (&mut Vec<u8>, &dyn Fn()),
) -> (Status, usize) {
    let done = parse_and_do(disk, terms, parts, (buffer, earlier));
    buffer.truncate(KEPT);
    buffer.shrink_to(KEPT);
    match done {
        Ok(written) => (Status::Ok, written),
        Err(status) => (status, 0),
    }
}

fn of_disk<T>(result: DiskResult<T>) -> Result<T, Status> {
    // The volume has logged what is wrong.
    result.map_err(|_| Status::IoError)
}

fn of_memory<T>(result: io::Result<T>) -> Result<T, Status> {
    result.map_err(|_| Status::IoError)
}

fn parse_and_do<R: Read, W: Write>(
    disk: &dyn Disk,
    terms: Terms,
    parts: &mut Parts<R, W>,
    (buffer, earlier): (&mut Vec<u8>, &dyn Fn()),
) -> Result<usize, Status> {
    let mut header = [0; 16];
    of_memory(parts.from.read_exact(&mut header))?;
    let [a, b, c, d, _, _, _, _, sector @ ..] = header;
    let (kind, sector) = (u32::from_le_bytes([a, b, c, d]), u64::from_le_bytes(sector));
    // Cannot be negative: the header was read.
    let sent = parts.from_length.saturating_sub(header.len());
    if terms.read_only && matches!(kind, kind::OUT | kind::DISCARD | kind::WRITE_ZEROES) {
        return Err(Status::IoError);
    }
    let written = match kind {
        kind::IN => {
            let offset = place(disk, sector, parts.to_length)?;
            buffer.resize(parts.to_length, 0);
            of_disk(disk.read(offset, buffer))?;
            of_memory(parts.to.write_all(buffer))?;
            return Ok(parts.to_length);
        }
        kind::OUT => {
            let offset = place(disk, sector, sent)?;
            buffer.resize(sent, 0);
            of_memory(parts.from.read_exact(buffer))?;
            of_disk(disk.write(offset, buffer))
        }
        kind::FLUSH => {
            earlier();
            return of_disk(disk.flush()).map(|()| 0);
        }
        kind::GET_ID => {
            let id = disk.id().to_string();
            let mut bytes = [0; ID];
            let length = id.len().min(ID);
            bytes[..length].copy_from_slice(&id.as_bytes()[..length]);
            let length = parts.to_length.min(ID);
            of_memory(parts.to.write_all(&bytes[..length]))?;
            return Ok(length);
        }
        kind::DISCARD | kind::WRITE_ZEROES => ranges(disk, kind, sent, &mut parts.from),
        _ => return Err(Status::Unsupported),
    };
    written?;
    if terms.write_through {
        of_disk(disk.flush())?;
    }
    Ok(0)
}

/// The offset of a range of whole sectors in the volume.
fn place(disk: &dyn Disk, sector: u64, length: usize) -> Result<u64, Status> {
    let offset = sector.checked_mul(SECTOR.into());
    let end = offset.and_then(|offset| offset.checked_add(length as u64));
    let is_fine = length != 0
        && length <= LENGTH_MAX
        && length.is_multiple_of(SECTOR as usize)
        && end.is_some_and(|end| end <= disk.geometry().size());
    offset.filter(|_| is_fine).ok_or(Status::IoError)
}

/// DISCARD and WRITE_ZEROES. All ranges are checked before the first one changes.
fn ranges(disk: &dyn Disk, kind: u32, bytes: usize, from: &mut impl Read) -> Result<(), Status> {
    let most = RANGES_MAX as usize * RANGE;
    if bytes == 0 || bytes > most || !bytes.is_multiple_of(RANGE) {
        return Err(Status::IoError);
    }
    let mut all = [0; RANGES_MAX as usize * RANGE];
    let all = &mut all[..bytes];
    of_memory(from.read_exact(all))?;
    let mut checked = Vec::new();
    for range in all.as_chunks::<RANGE>().0 {
        let [a, b, c, d, e, f, g, h, i, j, k, l, flags @ ..] = *range;
        let sector = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        let sectors = u32::from_le_bytes([i, j, k, l]);
        let flags = u32::from_le_bytes(flags);
        let allowed = if kind == kind::DISCARD { 0 } else { UNMAP };
        if flags & !allowed != 0 {
            return Err(Status::Unsupported);
        }
        let length = u64::from(sectors) * u64::from(SECTOR);
        let offset = sector.checked_mul(SECTOR.into());
        let end = offset.and_then(|offset| offset.checked_add(length));
        let (Some(offset), Some(end)) = (offset, end) else {
            return Err(Status::IoError);
        };
        if sectors == 0 || sectors > RANGE_SECTORS_MAX || end > disk.geometry().size() {
            return Err(Status::IoError);
        }
        checked.push((offset, length, flags & UNMAP == 0));
    }
    for (offset, length, allocate) in checked {
        of_disk(match kind {
            kind::DISCARD => disk.trim(offset, length),
            _ => disk.write_zeroes(offset, length, allocate),
        })?;
    }
    Ok(())
}
