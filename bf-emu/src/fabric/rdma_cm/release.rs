//! The end of identifiers and files, by their owner or by its death, and the repair of the tables.

use super::super::device::Locked;
use super::super::table::Owner;
use super::state::{
    Awaits, EventKind, EventParam, Exchange, Params, REJECT_ROOM, Stage, lookup, reason,
};

/// Time for which the numbers of a connection rest after its end: the packet lifetime of the paths,
/// 4.096 us << 18.
const TIME_WAIT_NS: u64 = 4_096 << 18;

impl Locked<'_> {
    /// Destroys an identifier and tells its peer. Returns the number of events that its owner has
    /// read; None if it does not exist.
    pub(crate) fn cm_destroy(&mut self, id: u32) -> Option<u32> {
        let known = self.common().rdma_cm.ids.get(id).copied()?;
        self.cm_leave(id, known.exchange);
        self.cm_leave_groups(id);
        self.cm_forget_events(id);
        let gone = self.common().rdma_cm.ids.remove(id)?;
        Some(gone.events_reported)
    }

    /// Ends the exchange of an identifier that is about to go (cm.c, `cm_destroy_id`).
    pub(super) fn cm_leave(&mut self, id: u32, exchange: Exchange) {
        let Some(peer) = self.cm_peer(id) else {
            return;
        };
        match exchange {
            Exchange::RequestSent => {
                self.cm_rejected(peer, reason::TIMEOUT, &Params::default());
            }
            Exchange::RequestReceived | Exchange::ReplySent | Exchange::ReplyReceived => {
                self.cm_rejected(peer, reason::CONSUMER, &Params::default());
            }
            Exchange::Established => self.cm_disconnected(peer, Exchange::DisconnectReceived),
            Exchange::DisconnectReceived => {
                self.cm_disconnected(peer, Exchange::TimeWait);
                self.cm_rest(peer);
            }
            Exchange::LookupReceived => {
                self.cm_unreachable(peer, lookup::REJECTED);
            }
            Exchange::Idle
            | Exchange::DisconnectSent
            | Exchange::TimeWait
            | Exchange::LookupSent => {}
        }
    }

    /// Tells an identifier that its peer has refused.
    pub(crate) fn cm_rejected(&mut self, id: u32, reason: i32, params: &Params) {
        let param = EventParam::of_connection(params, REJECT_ROOM);
        self.cm_post(id, EventKind::Rejected, reason, &param);
        self.cm_idle(id);
    }

    /// Tells an identifier that its lookup or its request failed: a negative error, or the status
    /// of the answer.
    pub(crate) fn cm_unreachable(&mut self, id: u32, status: i32) {
        self.cm_post(id, EventKind::Unreachable, status, &EventParam::default());
        self.cm_idle(id);
    }

    fn cm_idle(&mut self, id: u32) {
        if let Some(known) = self.common().rdma_cm.ids.get_mut(id) {
            known.exchange = Exchange::Idle;
            known.awaits = Awaits::Nothing;
        }
    }

    /// Starts the rest of the numbers of a connection.
    pub(crate) fn cm_rest(&mut self, id: u32) {
        if let Some(known) = self.common().rdma_cm.ids.get_mut(id) {
            known.exchange = Exchange::TimeWait;
            known.awaits = Awaits::TimeWaitExit;
            known.deadline_ns = crate::sys::now_ns().saturating_add(TIME_WAIT_NS);
        }
    }

    /// Removes the unread events of an identifier. Requests that nobody has read are refused.
    fn cm_forget_events(&mut self, id: u32) {
        loop {
            let events = &self.common().rdma_cm.events;
            let Some(slot) = events.next(0, |_, event| event.counted_by == id) else {
                return;
            };
            let event = self.common().rdma_cm.events.remove(slot);
            let new = event.filter(|event| event.kind == EventKind::ConnectRequest);
            if let Some(event) = new {
                // A new connection has no unread events: it reports none before its acceptance.
                self.cm_leave_new(event.id);
            }
        }
    }

    fn cm_leave_new(&mut self, id: u32) {
        if let Some(known) = self.common().rdma_cm.ids.get(id).copied() {
            self.cm_leave(id, known.exchange);
            self.common().rdma_cm.ids.remove(id);
        }
    }

    /// Closes a file with its identifiers. Returns the descriptor of its pipe.
    pub(crate) fn cm_close(&mut self, file: u32) -> Option<i32> {
        while let Some(id) = self.common().rdma_cm.ids.next(0, |_, id| id.file == file) {
            self.cm_destroy(id);
        }
        let manager = &mut self.common().rdma_cm;
        while let Some(event) = manager.events.next(0, |_, event| event.file == file) {
            manager.events.remove(event);
        }
        let gone = manager.files.remove(file)?;
        Some(gone.pipe)
    }

    /// Closes the files of owners that are gone.
    pub(in super::super) fn cm_release(&mut self, gone: impl Fn(Owner) -> bool) {
        let mut from = 0;
        while let Some(file) = self
            .common()
            .rdma_cm
            .files
            .next(from, |owner, _| gone(owner))
        {
            self.cm_close(file);
            from = file + 1;
        }
    }

    /// Repairs the tables after a holder of the lock died.
    pub(in super::super) fn cm_repair(&mut self) {
        let manager = &mut self.common().rdma_cm;
        manager.files.repair();
        manager.ids.repair();
        manager.memberships.repair();
        manager.events.repair();
        // A new connection whose request was not posted: its requester has died.
        let mut from = 0;
        while let Some(id) = self.common().rdma_cm.ids.next(from, |_, id| {
            id.stage == Stage::Connect && id.uid == 0 && !id.reported
        }) {
            from = id + 1;
            let events = &self.common().rdma_cm.events;
            let names = |kind: EventKind| !kind.is_of_membership();
            if events
                .next(0, |_, event| names(event.kind) && event.id == id)
                .is_none()
            {
                self.cm_leave_new(id);
            }
        }
        // A file whose event was kept may lack its wake-up.
        let mut from = 0;
        while let Some(file) = self.common().rdma_cm.files.next(from, |_, _| true) {
            from = file + 1;
            if self.cm_first_event(file).is_some() {
                self.cm_wake(file);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::device::Fabric;
    use super::super::state::{CmFile, CmId};
    use super::*;
    use crate::model::profile::ProfileTable;
    use crate::model::topology::Topology;

    const OWNER: Owner = Owner {
        process: 0,
        context: 0,
    };

    fn id(file: u32, uid: u64, stage: Stage) -> CmId {
        CmId {
            uid,
            file,
            stage,
            ..CmId::default()
        }
    }

    /// A requester that dies leaves a new connection without its event, or an event twice.
    #[test]
    fn a_death_during_a_request_is_repaired() {
        let dir = tempfile::tempdir().unwrap();
        let topology = Topology::with_nodes(1).unwrap();
        let none = (&ProfileTable::NONE, "none");
        let fabric = Fabric::create(dir.path(), &topology, none, |_| {}).unwrap();
        let mut locked = fabric.lock();
        let manager = &mut locked.common().rdma_cm;
        let file = manager.files.insert(OWNER, CmFile::default()).unwrap();
        let mut insert = |id| manager.ids.insert(OWNER, id).unwrap();
        let listener = insert(id(file, 7, Stage::Listen));
        let (lost, kept) = (
            insert(id(file, 0, Stage::Connect)),
            insert(id(file, 0, Stage::Connect)),
        );
        let nothing = EventParam::default();
        for _ in 0..2 {
            assert!(locked.cm_post_request(listener, kept, &nothing));
        }
        assert_eq!(locked.cm_waiting(file), 1);
        locked.cm_repair();
        let ids = &locked.common().rdma_cm.ids;
        assert!(ids.get(lost).is_none() && ids.get(kept).is_some());
        // A new connection reports nothing before its acceptance.
        locked.cm_post(kept, EventKind::Rejected, 0, &nothing);
        assert_eq!(locked.cm_waiting(file), 1);
        // The listener's end takes the waiting request along.
        assert_eq!(locked.cm_destroy(listener), Some(0));
        let manager = &locked.common().rdma_cm;
        assert_eq!((manager.ids.live(), manager.events.live()), (0, 0));
        assert_eq!(locked.cm_close(file), Some(0));
    }
}
