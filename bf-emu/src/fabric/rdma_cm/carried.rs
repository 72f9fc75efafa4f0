//! The identifiers of sides on other machines. They belong to the process that carries requests there, which turns their
//! events into messages, and messages into changes of them.

use super::super::device::Locked;
use super::super::table::Owner;
use super::state::{Awaits, CmFile, CmId, Event, Exchange};

/// Owner of the identifiers. No process of the table has this number, so the death of a process does not release them:
/// the next one that carries does.
pub(crate) const CARRIER: Owner = Owner {
    process: 0,
    context: 0,
};
/// Name of the identifiers in events.
pub(crate) const CARRIER_UID: u64 = u64::MAX;

impl CmId {
    /// True if the other side has a connection that only a message ends.
    pub(crate) fn must_be_told(&self) -> bool {
        let connects = matches!(
            self.exchange,
            Exchange::ReplySent
                | Exchange::ReplyReceived
                | Exchange::Established
                | Exchange::DisconnectSent
                | Exchange::DisconnectReceived
        );
        connects && !self.carried.contains(&0)
    }
}

impl Locked<'_> {
    /// The file of the carrying process.
    pub(crate) fn cm_carrier_file(&mut self) -> Option<u32> {
        let files = &self.common().rdma_cm.files;
        files.next(0, |owner, _| owner == CARRIER)
    }

    /// The identifiers that an earlier carrying process has left.
    pub(crate) fn cm_left(&mut self) -> Vec<(u32, CmId)> {
        let ids = self.common().rdma_cm.ids.iter();
        let left = ids.filter(|(_, owner, _)| *owner == CARRIER);
        left.map(|(slot, _, id)| (slot, *id)).collect()
    }

    /// Ends the connections of an earlier carrying process for the programs of this machine, and opens the file of a new
    /// one. None if there is no room. Identifiers whose other side must be told stay.
    pub(crate) fn cm_carry(&mut self) -> Option<u32> {
        if let Some(file) = self.cm_carrier_file() {
            for (slot, id) in self.cm_left() {
                match id.must_be_told() {
                    true => self.cm_end_here(slot),
                    false => _ = self.cm_destroy(slot),
                }
            }
            while self.cm_take_carried(file).is_some() {}
            return Some(file);
        }
        let new = CmFile {
            pipe: -1,
            ..CmFile::default()
        };
        self.common().rdma_cm.files.insert(CARRIER, new)
    }

    /// Ends a connection for the program of this machine. Its identifier no longer has a peer.
    fn cm_end_here(&mut self, id: u32) {
        let ids = &self.common().rdma_cm.ids;
        let (Some(exchange), peer) = (ids.get(id).map(|id| id.exchange), self.cm_peer(id)) else {
            return;
        };
        self.cm_leave(id, exchange);
        for end in [Some(id), peer].into_iter().flatten() {
            if let Some(known) = self.common().rdma_cm.ids.get_mut(end) {
                known.peer = 0;
            }
        }
        if let Some(known) = self.common().rdma_cm.ids.get_mut(id) {
            known.exchange = Exchange::DisconnectSent;
            known.awaits = Awaits::Nothing;
        }
    }

    /// Adds the identifier of a side on another machine. None if there is no room.
    pub(crate) fn cm_insert_carried(&mut self, id: CmId) -> Option<u32> {
        let file = self.cm_carrier_file()?;
        let id = CmId {
            file,
            uid: CARRIER_UID,
            reported: true,
            ..id
        };
        self.common().rdma_cm.ids.insert(CARRIER, id)
    }

    /// Takes the first event of the carrying process.
    pub(crate) fn cm_take_carried(&mut self, file: u32) -> Option<Event> {
        let (slot, _) = self.cm_first_event(file)?;
        self.common().rdma_cm.events.remove(slot)
    }

    /// Removes the identifier of a side on another machine, whose messages have been exchanged.
    pub(crate) fn cm_remove_carried(&mut self, id: u32) {
        if let Some(known) = self.common().rdma_cm.ids.get_mut(id) {
            known.exchange = Exchange::Idle;
            self.cm_destroy(id);
        }
    }
}
