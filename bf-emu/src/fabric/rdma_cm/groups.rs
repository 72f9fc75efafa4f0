//! Memberships in multicast groups. On InfiniBand they are those of the subnet administrator, and
//! give each group its LID.

use super::super::device::Locked;
use super::super::port::Place;
use super::state::{Event, EventKind, EventParam, Membership};
use crate::model::address::Gid;
use crate::model::multicast;

/// Words of a set of all multicast LIDs.
const LID_WORDS: usize = 16 * 1024 / 64;

impl Locked<'_> {
    /// True if switches forward messages to a multicast LID to this port.
    pub(crate) fn cm_forwards(&mut self, place: Place, lid: u16) -> bool {
        let forwards = |known: &Membership| {
            known.joined && known.receives && known.mlid == lid && known.port.place() == Some(place)
        };
        let memberships = &self.common().rdma_cm.memberships;
        memberships.next(0, |_, known| forwards(known)).is_some()
    }

    /// LID and queue key of a group that a port of InfiniBand has joined; None for a new group.
    pub(crate) fn cm_group(&mut self, mgid: &Gid) -> Option<(u16, u32)> {
        let memberships = &self.common().rdma_cm.memberships;
        let same = |known: &Membership| known.joined && known.mlid != 0 && known.mgid == *mgid;
        let slot = memberships.next(0, |_, known| same(known))?;
        let known = memberships.get(slot)?;
        Some((known.mlid, known.qkey))
    }

    /// The lowest free LID for a new group.
    pub(crate) fn cm_free_lid(&mut self) -> Option<u16> {
        let mut used = [0_u64; LID_WORDS];
        let base = *multicast::LIDS.start();
        for (_, _, known) in self.common().rdma_cm.memberships.iter() {
            if let Some(index) = known.mlid.checked_sub(base).filter(|_| known.joined)
                && let Some(word) = used.get_mut(usize::from(index) / 64)
            {
                *word |= 1 << (index % 64);
            }
        }
        let is_free = |lid: &u16| {
            let index = lid - base;
            let word = used.get(usize::from(index) / 64);
            word.is_some_and(|word| word >> (index % 64) & 1 == 0)
        };
        multicast::LIDS
            .filter(|lid| *lid != multicast::LID_BROADCAST)
            .find(is_free)
    }

    /// Reports an event of a membership to its owner.
    pub(crate) fn cm_post_group(
        &mut self,
        membership: u32,
        kind: EventKind,
        status: i32,
        param: &EventParam,
    ) {
        let manager = &self.common().rdma_cm;
        let Some(known) = manager.memberships.get(membership).copied() else {
            return;
        };
        let Some(file) = manager.ids.get(known.id).map(|id| id.file) else {
            return;
        };
        self.cm_put(Event {
            counted_by: known.id,
            file,
            id: membership,
            kind,
            status,
            uid: known.uid,
            param: *param,
            number: 0,
        });
    }

    /// Ends a membership. Returns the number of events that its owner has read; None if it does not
    /// exist.
    pub(crate) fn cm_leave_group(&mut self, membership: u32) -> Option<u32> {
        let events = &mut self.common().rdma_cm.events;
        let of_it = |event: &Event| event.kind.is_of_membership() && event.id == membership;
        while let Some(slot) = events.next(0, |_, event| of_it(event)) {
            events.remove(slot);
        }
        let gone = self.common().rdma_cm.memberships.remove(membership)?;
        Some(gone.events_reported)
    }

    /// Ends the memberships of an identifier that is about to go.
    pub(super) fn cm_leave_groups(&mut self, id: u32) {
        let of_it = |known: &Membership| known.id == id;
        while let Some(slot) = {
            let memberships = &self.common().rdma_cm.memberships;
            memberships.next(0, |_, known| of_it(known))
        } {
            self.cm_leave_group(slot);
        }
    }

    /// Tells the members at a port that the subnet manager has forgotten them (core/multicast.c,
    /// `process_group_error`).
    pub(crate) fn cm_lose_groups(&mut self, place: Place) {
        let mut from = 0;
        loop {
            let memberships = &mut self.common().rdma_cm.memberships;
            let of_it = |known: &Membership| known.joined && known.port.place() == Some(place);
            let Some(slot) = memberships.next(from, |_, known| of_it(known)) else {
                return;
            };
            from = slot + 1;
            let nothing = EventParam::default();
            self.cm_post_group(slot, EventKind::MulticastError, -libc::ENETRESET, &nothing);
            if let Some(known) = self.common().rdma_cm.memberships.get_mut(slot) {
                known.joined = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::device::Fabric;
    use super::super::super::table::Owner;
    use super::super::state::{CmFile, CmId, Port};
    use super::*;
    use crate::model::profile::ProfileTable;
    use crate::model::topology::Topology;

    const OWNER: Owner = Owner {
        process: 0,
        context: 0,
    };
    const HERE: Place = Place {
        function: 0,
        port: 1,
    };
    const THERE: Place = Place {
        function: 1,
        port: 1,
    };

    fn member(id: u32, number: u8, place: Place, receives: bool) -> Membership {
        let mut mgid = [0; 16];
        (mgid[0], mgid[15]) = (0xff, number);
        Membership {
            uid: u64::from(number),
            id,
            mgid,
            mlid: 0xc000 + u16::from(number),
            qkey: 5,
            port: Port::new(place, 0),
            receives,
            joined: true,
            ..Membership::default()
        }
    }

    /// Runs `test` with two identifiers of two files.
    fn with_ids(test: impl FnOnce(&mut Locked<'_>, [u32; 2])) {
        let dir = tempfile::tempdir().unwrap();
        let topology = Topology::with_nodes(1).unwrap();
        let none = (&ProfileTable::NONE, "none");
        let fabric = Fabric::create(dir.path(), &topology, none, |_| {}).unwrap();
        let mut locked = fabric.lock();
        let manager = &mut locked.common().rdma_cm;
        let ids = [0, 1].map(|_| {
            let file = manager.files.insert(OWNER, CmFile::default()).unwrap();
            let id = CmId {
                uid: 1,
                file,
                ..CmId::default()
            };
            manager.ids.insert(OWNER, id).unwrap()
        });
        test(&mut locked, ids);
    }

    fn join(locked: &mut Locked<'_>, member: Membership) -> u32 {
        let memberships = &mut locked.common().rdma_cm.memberships;
        memberships.insert(OWNER, member).unwrap()
    }

    #[test]
    fn lids_are_those_of_groups() {
        with_ids(|locked, [first, second]| {
            assert_eq!(locked.cm_free_lid(), Some(0xc001));
            let one = join(locked, member(first, 1, HERE, true));
            join(locked, member(first, 3, HERE, false));
            assert_eq!(locked.cm_free_lid(), Some(0xc002));
            join(locked, member(second, 1, THERE, true));
            let mgid = member(first, 1, HERE, true).mgid;
            assert_eq!(locked.cm_group(&mgid), Some((0xc001, 5)));
            assert_eq!(locked.cm_leave_group(one), Some(0));
            assert_eq!(locked.cm_leave_group(one), None);
            // The other port keeps the group.
            assert_eq!(locked.cm_group(&mgid), Some((0xc001, 5)));
            assert!(locked.cm_forwards(THERE, 0xc001) && !locked.cm_forwards(HERE, 0xc001));
            assert!(
                !locked.cm_forwards(HERE, 0xc003),
                "a member that only sends"
            );
        });
    }

    #[test]
    fn memberships_end_with_their_identifier() {
        with_ids(|locked, [first, second]| {
            for number in 1..4 {
                let slot = join(locked, member(first, number, HERE, true));
                let nothing = EventParam::default();
                locked.cm_post_group(slot, EventKind::MulticastJoin, 0, &nothing);
            }
            let kept = join(locked, member(second, 1, HERE, true));
            assert_eq!(locked.common().rdma_cm.events.live(), 3);
            assert_eq!(locked.cm_destroy(first), Some(0));
            let manager = &locked.common().rdma_cm;
            assert_eq!((manager.memberships.live(), manager.events.live()), (1, 0));
            assert!(manager.memberships.get(kept).is_some());
            let file = manager.ids.get(second).unwrap().file;
            locked.cm_close(file);
            assert_eq!(locked.common().rdma_cm.memberships.live(), 0);
        });
    }

    #[test]
    fn a_port_that_goes_down_loses_its_groups() {
        with_ids(|locked, [first, second]| {
            let lost = join(locked, member(first, 1, HERE, true));
            join(locked, member(second, 1, THERE, true));
            locked.cm_lose_groups(HERE);
            locked.cm_lose_groups(HERE);
            let manager = &locked.common().rdma_cm;
            assert_eq!(manager.events.live(), 1);
            let (_, _, event) = manager.events.iter().next().unwrap();
            let expect = (EventKind::MulticastError, -libc::ENETRESET, lost, first);
            let found = (event.kind, event.status, event.id, event.counted_by);
            assert_eq!(found, expect);
            assert!(!locked.cm_forwards(HERE, 0xc001) && locked.cm_forwards(THERE, 0xc001));
        });
    }
}
