//! Events of the connection manager: the files in which they wait, and the wake-up of readers.

use super::super::device::Locked;
use super::super::table::Owner;
use super::carried::CARRIER;
use super::state::{Event, EventKind, EventParam, Exchange, Stage};
use crate::sys::{self, path::PathBuffer};

impl Locked<'_> {
    /// Reports an event of an identifier to its owner. An identifier without a name, which is a new
    /// connection before its acceptance, reports nothing (ucma.c, `ucma_event_handler`).
    pub(crate) fn cm_post(&mut self, id: u32, kind: EventKind, status: i32, param: &EventParam) {
        let Some(known) = self.common().rdma_cm.ids.get(id).copied() else {
            return;
        };
        if known.uid == 0 {
            return;
        }
        self.cm_put(Event {
            counted_by: id,
            file: known.file,
            id,
            kind,
            status,
            uid: known.uid,
            param: *param,
            number: 0,
        });
    }

    /// Reports a request to a listener. Returns false if there is no room for the event.
    pub(crate) fn cm_post_request(&mut self, listener: u32, new: u32, param: &EventParam) -> bool {
        let Some(known) = self.common().rdma_cm.ids.get(listener).copied() else {
            return false;
        };
        self.cm_put(Event {
            counted_by: listener,
            file: known.file,
            id: new,
            kind: EventKind::ConnectRequest,
            status: 0,
            uid: known.uid,
            param: *param,
            number: 0,
        })
    }

    pub(super) fn cm_put(&mut self, event: Event) -> bool {
        let manager = &mut self.common().rdma_cm;
        // A sender that died after this event is repeated by the repair.
        let same = |_: Owner, other: &Event| {
            (other.counted_by, other.id, other.kind) == (event.counted_by, event.id, event.kind)
        };
        if manager.events.next(0, same).is_some() {
            return true;
        }
        let Some(owner) = manager.files.owner(event.file) else {
            return false;
        };
        let number = manager.next_event;
        manager.next_event = number.wrapping_add(1);
        let kept = manager.events.insert(owner, Event { number, ..event });
        if kept.is_some() {
            self.cm_wake(event.file);
        }
        kept.is_some()
    }

    /// Makes a file readable.
    pub(crate) fn cm_wake(&mut self, file: u32) {
        let files = &self.common().rdma_cm.files;
        let Some((pipe, owner)) = files.get(file).map(|file| file.pipe).zip(files.owner(file))
        else {
            return;
        };
        if owner == CARRIER {
            self.fabric().tell_carrier();
            return;
        }
        let Some(pid) = self.pid(owner.process) else {
            return;
        };
        // A full pipe is readable already.
        if pid == sys::pid() {
            let _ = sys::write_pipe(pipe, &[0]);
            return;
        }
        let mut path = PathBuffer::new();
        path.text("/proc/").number(pid).text("/fd/").number(pipe);
        if let Ok(opened) = sys::open(path.as_cstr(), libc::O_WRONLY | libc::O_NONBLOCK) {
            let _ = sys::write_pipe(opened, &[0]);
            sys::close(opened);
        }
    }

    /// The first event that waits in a file.
    pub(crate) fn cm_first_event(&mut self, file: u32) -> Option<(u32, Event)> {
        let events = self.common().rdma_cm.events.iter();
        let waiting = events.filter(|(_, _, event)| event.file == file);
        let first = waiting.min_by_key(|(_, _, event)| event.number);
        first.map(|(slot, _, event)| (slot, *event))
    }

    /// Number of events that wait in a file.
    pub(crate) fn cm_waiting(&mut self, file: u32) -> usize {
        let events = self.common().rdma_cm.events.iter();
        events.filter(|(_, _, event)| event.file == file).count()
    }

    /// The peer of an identifier, if it still exists.
    pub(crate) fn cm_peer(&mut self, id: u32) -> Option<u32> {
        let ids = &self.common().rdma_cm.ids;
        let known = ids.get(id)?;
        let peer = known.peer.checked_sub(1)?;
        let same = ids.generation(peer) == Some(known.peer_generation);
        (same && ids.get(peer).is_some()).then_some(peer)
    }

    /// Tells an identifier that its peer has ended the connection. Only the first end is an event.
    pub(crate) fn cm_disconnected(&mut self, id: u32, exchange: Exchange) {
        let ids = &mut self.common().rdma_cm.ids;
        let Some(known) = ids.get_mut(id) else {
            return;
        };
        let first = known.stage == Stage::Connect;
        known.exchange = exchange;
        if first {
            self.cm_post(id, EventKind::Disconnected, 0, &EventParam::default());
            if let Some(known) = self.common().rdma_cm.ids.get_mut(id) {
                known.stage = Stage::Disconnect;
            }
        }
    }
}
