//! GET_EVENT and MIGRATE_ID, and the bytes in the pipe of a file.

use std::os::fd::RawFd;

use super::caller::Caller;
use crate::fabric::Locked;
use crate::fabric::rdma_cm::{Event, EventKind, Manager};
use crate::sys::{self, Errno};

/// Bytes of `struct rdma_ucm_event_resp`.
const EVENT_BYTES: usize = 336;
/// Bytes without the options of enhanced connection establishment, which older programs lack.
const EVENT_BYTES_MIN: usize = 324;

/// GET_EVENT: gives the first event to the caller. Returns false if none waits and the file blocks.
///
/// # Errors
/// EAGAIN: no event waits, and the file does not block.
pub(super) fn get(caller: &Caller<'_>, response: u64) -> Result<bool, Errno> {
    caller.needs_room(EVENT_BYTES_MIN)?;
    let mut locked = caller.lock();
    let Some((slot, event)) = locked.cm_first_event(caller.file) else {
        settle(&mut locked, caller.file, caller.fd);
        return match sys::is_nonblocking(caller.fd)? {
            true => Err(Errno(libc::EAGAIN)),
            false => Ok(false),
        };
    };
    let manager = &mut locked.common().rdma_cm;
    if event.kind == EventKind::ConnectRequest
        && let Some(new) = manager.ids.get_mut(event.id)
    {
        new.reported = true;
    }
    let bytes = encode(&event);
    let room = caller.room.min(EVENT_BYTES);
    caller.answer(response, bytes.get(..room).unwrap_or(&bytes))?;
    manager.events.remove(slot);
    if event.kind.is_of_membership()
        && let Some(known) = manager.memberships.get_mut(event.id)
    {
        known.events_reported = known.events_reported.wrapping_add(1);
    }
    if let Some(known) = manager.ids.get_mut(event.counted_by) {
        known.events_reported = known.events_reported.wrapping_add(1);
        if event.kind == EventKind::ConnectRequest {
            known.backlog = known.backlog.saturating_add(1);
        }
    }
    settle(&mut locked, caller.file, caller.fd);
    Ok(true)
}

fn encode(event: &Event) -> [u8; EVENT_BYTES] {
    let mut bytes = [0; EVENT_BYTES];
    let mut put = |at: usize, value: &[u8]| {
        bytes[at..at + value.len()].copy_from_slice(value);
    };
    put(0, &event.uid.to_ne_bytes());
    put(8, &event.id.to_ne_bytes());
    put(12, &(event.kind as u32).to_ne_bytes());
    put(16, &event.status.to_ne_bytes());
    put(20, event.param.as_bytes());
    let [vendor, options] = event.param.ece;
    put(328, &vendor.to_ne_bytes());
    put(332, &options.to_ne_bytes());
    bytes
}

/// Makes a file readable if events wait in it, and not readable otherwise. `fd` is a descriptor of
/// it in this process.
pub(super) fn settle(locked: &mut Locked<'_>, file: u32, fd: RawFd) {
    let waiting = locked.cm_waiting(file);
    let bytes = sys::waiting_bytes(fd).unwrap_or(0);
    if waiting > 0 && bytes == 0 {
        locked.cm_wake(file);
    }
    if waiting > 0 && bytes <= waiting || bytes == 0 {
        return;
    }
    // A separate open file: the caller's may block, and another thread may read it meanwhile.
    let mut path = crate::sys::path::PathBuffer::new();
    path.text("/proc/self/fd/").number(fd);
    let Ok(pipe) = sys::open(path.as_cstr(), libc::O_RDONLY | libc::O_NONBLOCK) else {
        return;
    };
    let mut surplus = bytes - waiting.min(bytes);
    let mut buffer = [0; 64];
    while surplus > 0 {
        let part = surplus.min(buffer.len());
        match sys::read(pipe, buffer.get_mut(..part).unwrap_or(&mut [])) {
            Ok(read @ 1..) => surplus -= read,
            _ => break,
        }
    }
    sys::close(pipe);
}

/// MIGRATE_ID: moves an identifier of the file `fd` to the file that the call was written to. The
/// answer is the number of events that its owner has read.
pub(super) fn migrate(caller: &Caller<'_>, response: u64, id: u32, fd: RawFd) -> Result<(), Errno> {
    caller.needs_room(4)?;
    // An unknown descriptor: no file. Another file: none of the connection manager.
    sys::file_id(fd).map_err(|_| Errno(libc::ENOENT))?;
    let from = caller.process.cm_file(fd).ok_or(Errno(libc::EINVAL))?;
    let mut locked = caller.lock();
    let source = Caller {
        file: from,
        fd,
        ..*caller
    };
    let known = source.id(&mut locked, id)?;
    known.file = caller.file;
    let reported = known.events_reported;
    if from != caller.file {
        move_events(&mut locked, id, caller.file);
        settle(&mut locked, from, fd);
    }
    drop(locked);
    caller.answer(response, &reported.to_ne_bytes())
}

/// Moves the unread events of an identifier, and the new connections that they report.
fn move_events(locked: &mut Locked<'_>, id: u32, file: u32) {
    let mut from = 0;
    loop {
        let Manager { events, ids, .. } = &mut locked.common().rdma_cm;
        let Some(slot) = events.next(from, |_, event| event.counted_by == id) else {
            return;
        };
        from = slot + 1;
        if let Some(event) = events.get_mut(slot) {
            event.file = file;
            if !event.kind.is_of_membership()
                && let Some(new) = ids.get_mut(event.id)
            {
                new.file = file;
            }
        }
        locked.cm_wake(file);
    }
}
