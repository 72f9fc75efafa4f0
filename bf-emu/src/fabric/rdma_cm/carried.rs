//! The identifiers of sides on other machines. They belong to the process that carries requests there, which turns their
//! events into messages, and messages into changes of them.

use super::super::device::Locked;
use super::super::table::Owner;
use super::state::{CmFile, CmId, Event, Exchange};

/// Owner of the identifiers. No process of the table has this number, so the death of a process does not release them:
/// the next one that carries does.
pub(crate) const CARRIER: Owner = Owner {
    process: 0,
    context: 0,
};
/// Name of the identifiers in events.
pub(crate) const CARRIER_UID: u64 = u64::MAX;

impl Locked<'_> {
    /// The file of the carrying process.
    pub(crate) fn cm_carrier_file(&mut self) -> Option<u32> {
        let files = &self.common().rdma_cm.files;
        files.next(0, |owner, _| owner == CARRIER)
    }

    /// Ends the connections of an earlier carrying process, and opens the file of a new one. None if there is no room.
    pub(crate) fn cm_carry(&mut self) -> Option<u32> {
        while let Some(file) = self.cm_carrier_file() {
            self.cm_close(file);
        }
        let new = CmFile {
            pipe: -1,
            ..CmFile::default()
        };
        self.common().rdma_cm.files.insert(CARRIER, new)
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
