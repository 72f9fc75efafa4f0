//! Requests: what they may be, what they do, and their replies.

use super::answer::Answer;
use super::export::Export;
use super::handshake::{CONTEXT, Chosen, broken};
use super::wire::{
    CHUNK_MAGIC, Command, LENGTH_MAX, Request, SIMPLE_REPLY_MAGIC, STATE_HOLE_ZERO, chunk, errno,
    request_flag,
};
use crate::error::BlkError;
use crate::geometry::SECTOR;
use crate::say::say;
use std::io::{self, Read};
use std::ops::Range;

/// Most extents of a reply to BLOCK_STATUS.
const EXTENTS_MAX: usize = 1024;
/// Reads of at least this length send holes as such, in units of this length.
const HOLES_FROM: u32 = 4096;
/// Most chunks of a read but for the last one.
const RUNS_MAX: usize = 1024;
/// A unit without data.
const ZEROS: [u8; HOLES_FROM as usize] = [0; HOLES_FROM as usize];

/// Why a request fails: the error, and a text for the client.
type Refusal = (u32, String);

/// Writes of such lengths get their memory from the volume, which may keep it. It keeps none of longer ones.
const LONG: std::ops::RangeInclusive<u32> = 64 << 10..=1 << 20;

/// True for a write whose memory the volume takes.
pub(super) fn is_long(request: &Request) -> bool {
    request.command == Command::Write && LONG.contains(&request.length)
}

/// Takes the data of a write. Data that is too long for a write is read and dropped, up to a limit.
pub(super) fn take_data<S: Read>(
    stream: &mut S,
    length: u32,
    buffer: &mut Vec<u8>,
) -> io::Result<()> {
    if length <= LENGTH_MAX {
        buffer.resize(length as usize, 0);
        return stream.read_exact(buffer);
    }
    if length > 2 * LENGTH_MAX {
        return Err(broken("a write is longer than 64 MiB"));
    }
    let dropped = io::copy(&mut stream.take(u64::from(length)), &mut io::sink())?;
    if dropped == u64::from(length) {
        Ok(())
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

/// Carries out a request and adds its reply to `out`.
pub(super) fn answer(
    out: &mut Answer,
    export: &Export,
    chosen: Chosen,
    (request, buffer): (&Request, &mut Vec<u8>),
) {
    let done = check(request, export, chosen).and_then(|()| carry_out(request, export, buffer));
    let done = done.and_then(|()| match request.command {
        Command::BlockStatus => extents(export, request).map(Some),
        _ => Ok(None),
    });
    match (done, request.command) {
        (Err(refusal), _) => refuse(out, request, chosen, &refusal),
        (Ok(Some(data)), _) => out.own(&one_chunk(request, chunk::BLOCK_STATUS, &data)),
        (Ok(None), Command::Read) if chosen.structured => send_data(out, request, buffer),
        (Ok(None), Command::Read) => {
            out.own(&simple(request, 0));
            out.data(0..buffer.len());
        }
        (Ok(None), _) if chosen.structured => out.own(&one_chunk(request, chunk::NONE, &[])),
        (Ok(None), _) => out.own(&simple(request, 0)),
    }
}

/// Checks the flags and the range of a request.
fn check(request: &Request, export: &Export, chosen: Chosen) -> Result<(), Refusal> {
    use request_flag::{DF, FUA, NO_HOLE, REQ_ONE};
    let invalid = |text: String| Err((errno::EINVAL, text));
    let allowed = match request.command {
        Command::Read if chosen.structured => FUA | DF,
        Command::WriteZeroes => FUA | NO_HOLE,
        Command::BlockStatus if chosen.allocation => FUA | REQ_ONE,
        Command::Read | Command::Write | Command::Flush | Command::Trim | Command::Cache => FUA,
        Command::BlockStatus => return invalid("base:allocation was not negotiated".to_owned()),
        Command::Disconnect | Command::Unknown(_) => {
            return invalid("this server does not have the command".to_owned());
        }
    };
    if request.flags & !allowed != 0 {
        return invalid(format!(
            "flags {:#x} do not belong to the command",
            request.flags & !allowed
        ));
    }
    if request.command == Command::Flush {
        return if request.offset == 0 && request.length == 0 {
            Ok(())
        } else {
            invalid("FLUSH has no range".to_owned())
        };
    }
    let changes = matches!(
        request.command,
        Command::Write | Command::WriteZeroes | Command::Trim
    );
    if changes && export.is_read_only() {
        return Err((errno::EPERM, "the export is read-only".to_owned()));
    }
    let (offset, length) = (request.offset, request.length);
    if length == 0 {
        return invalid("the length is 0".to_owned());
    }
    if !offset.is_multiple_of(u64::from(SECTOR)) || !length.is_multiple_of(SECTOR) {
        return invalid(format!(
            "{length} bytes at {offset}: both must be multiples of {SECTOR}"
        ));
    }
    if matches!(request.command, Command::Read | Command::Write) && length > LENGTH_MAX {
        return Err((
            errno::EOVERFLOW,
            format!("{length} bytes at once; the most is {LENGTH_MAX}"),
        ));
    }
    export
        .volume()
        .geometry()
        .check(offset, u64::from(length))
        .map_err(|error| {
            let code = if changes {
                errno::ENOSPC
            } else {
                errno::EINVAL
            };
            (code, error.to_string())
        })
}

fn carry_out(request: &Request, export: &Export, buffer: &mut Vec<u8>) -> Result<(), Refusal> {
    let volume = export.volume();
    let (offset, length) = (request.offset, u64::from(request.length));
    match request.command {
        Command::Read => {
            buffer.resize(request.length as usize, 0);
            volume.read(offset, buffer)
        }
        Command::Write if is_long(request) => volume.write_owned(offset, std::mem::take(buffer)),
        Command::Write => volume.write(offset, buffer),
        Command::Trim => volume.trim(offset, length),
        Command::WriteZeroes => {
            let allocate = request.flags & request_flag::NO_HOLE != 0;
            volume.write_zeroes(offset, length, allocate)
        }
        Command::Flush => volume.flush(),
        Command::Cache | Command::BlockStatus | Command::Disconnect | Command::Unknown(_) => Ok(()),
    }
    .map_err(refusal)?;
    let writes = matches!(
        request.command,
        Command::Write | Command::WriteZeroes | Command::Trim
    );
    if writes && request.flags & request_flag::FUA != 0 {
        volume.flush().map_err(refusal)?;
    }
    Ok(())
}

fn refusal(error: BlkError) -> Refusal {
    let code = match error {
        BlkError::ReadOnly | BlkError::Denied { .. } => errno::EPERM,
        _ if error.is_full() => errno::ENOSPC,
        _ => errno::EIO,
    };
    say(&error);
    (code, error.to_string())
}

/// The data of BLOCK_STATUS.
fn extents(export: &Export, request: &Request) -> Result<Vec<u8>, Refusal> {
    let limit = if request.flags & request_flag::REQ_ONE != 0 {
        1
    } else {
        EXTENTS_MAX
    };
    let length = u64::from(request.length);
    // Extents are multiples of the smallest block of the protocol.
    let whole_sectors = export
        .volume()
        .geometry()
        .block_size()
        .is_multiple_of(SECTOR);
    let mut data = CONTEXT.to_be_bytes().to_vec();
    if !whole_sectors {
        data.extend([request.length.to_be_bytes(), [0; 4]].concat());
        return Ok(data);
    }
    let extents = export
        .volume()
        .extents(request.offset, length, limit)
        .map_err(refusal)?;
    for extent in extents {
        let state = if extent.zero { STATE_HOLE_ZERO } else { 0 };
        // Cannot be cut: not longer than the request.
        let length = u32::try_from(extent.length).unwrap_or(u32::MAX);
        data.extend([length.to_be_bytes(), state.to_be_bytes()].concat());
    }
    Ok(data)
}

/// Answers a read with chunks: data and holes. Holes are what the bytes show: nobody is asked for the states of blocks.
pub(super) fn send_data(out: &mut Answer, request: &Request, bytes: &[u8]) {
    let fragments = request.flags & request_flag::DF == 0 && request.length >= HOLES_FROM;
    let mut start = 0;
    if fragments {
        let mut is_hole = false;
        let mut runs = 0;
        let mut at = 0;
        while at < bytes.len() && runs < RUNS_MAX {
            let end = unit_end(request.offset, at).min(bytes.len());
            let is_zero = bytes[at..end] == ZEROS[..end - at];
            if is_zero != is_hole && at > start {
                push_run(out, request, start..at, (is_hole, false));
                start = at;
                runs += 1;
            }
            is_hole = is_zero;
            at = end;
        }
        if is_hole && at == bytes.len() {
            return push_run(out, request, start..at, (true, true));
        }
    }
    push_run(out, request, start..bytes.len(), (false, true));
}

/// Where the unit of [`HOLES_FROM`] bytes of the volume ends to which byte `at` of a read from `offset` belongs.
fn unit_end(offset: u64, at: usize) -> usize {
    // Cannot be cut: less than a unit.
    let into = usize::try_from((offset + at as u64) % u64::from(HOLES_FROM)).unwrap_or(0);
    at + HOLES_FROM as usize - into
}

/// Adds a chunk of data or a hole.
fn push_run(out: &mut Answer, request: &Request, part: Range<usize>, (hole, last): (bool, bool)) {
    let offset = request.offset + part.start as u64;
    let flags = if last { chunk::DONE } else { 0 };
    // Cannot be cut: a read has at most 32 MiB.
    let length = u32::try_from(part.len()).unwrap_or(u32::MAX);
    if hole {
        out.own(&chunk_header(request, (flags, chunk::OFFSET_HOLE), 12));
        out.own(&offset.to_be_bytes());
        out.own(&length.to_be_bytes());
    } else {
        let header = chunk_header(request, (flags, chunk::OFFSET_DATA), length + 8);
        out.own(&header);
        out.own(&offset.to_be_bytes());
        out.data(part);
    }
}

fn refuse(out: &mut Answer, request: &Request, chosen: Chosen, (code, text): &Refusal) {
    if !chosen.structured {
        out.own(&simple(request, *code));
        return;
    }
    let text = &text.as_bytes()[..text.len().min(usize::from(u16::MAX))];
    // Cannot be cut: shortened above.
    let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
    let data = [&code.to_be_bytes()[..], &length.to_be_bytes(), text].concat();
    out.own(&one_chunk(request, chunk::ERROR, &data));
}

fn simple(request: &Request, error: u32) -> Vec<u8> {
    [
        &SIMPLE_REPLY_MAGIC.to_be_bytes()[..],
        &error.to_be_bytes(),
        &request.cookie.to_be_bytes(),
    ]
    .concat()
}

fn chunk_header(request: &Request, (flags, kind): (u16, u16), length: u32) -> Vec<u8> {
    [
        &CHUNK_MAGIC.to_be_bytes()[..],
        &flags.to_be_bytes(),
        &kind.to_be_bytes(),
        &request.cookie.to_be_bytes(),
        &length.to_be_bytes(),
    ]
    .concat()
}

/// A whole reply in one chunk.
fn one_chunk(request: &Request, kind: u16, data: &[u8]) -> Vec<u8> {
    // Cannot be cut: extents and error texts.
    let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
    [&chunk_header(request, (chunk::DONE, kind), length), data].concat()
}
