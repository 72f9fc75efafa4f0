//! Multicast groups of a function: the queue pairs that are attached to a GID.
//!
//! A group exists while a queue pair is attached to it. Its number of queue pairs is a shortcut: a
//! repair counts the attachments.

use super::limits::MCAST_GROUP_QPS_MAX;
use super::objects::{Attachment, Group};
use super::table::Owner;
use super::tables::Function;
use crate::bits::constant;
use crate::model::address::Gid;

/// A table that has no space for an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSpace {
    /// There are too many groups.
    Groups,
    /// The group has too many queue pairs.
    GroupQps,
}

impl Function {
    /// Slot of the group with this GID.
    #[must_use]
    pub fn group(&self, gid: &Gid) -> Option<u32> {
        self.groups.next(0, |_, group| group.gid == *gid)
    }

    /// Slot of the attachment of a queue pair to a GID with this LID.
    #[must_use]
    pub fn attachment(&self, qp: u32, gid: &Gid, lid: u16) -> Option<u32> {
        let group = self.group(gid)?;
        let wanted = Attachment { group, qp, lid };
        self.attachments.next(0, |_, known| *known == wanted)
    }

    /// True if a queue pair is attached to any group.
    #[must_use]
    pub fn is_attached(&self, qp: u32) -> bool {
        self.attachments
            .next(0, |_, known| known.qp == qp)
            .is_some()
    }

    /// Attaches a queue pair.
    ///
    /// # Errors
    /// There are too many groups, or too many queue pairs in the group.
    pub fn attach(&mut self, owner: Owner, qp: u32, gid: &Gid, lid: u16) -> Result<(), NoSpace> {
        let slot = match self.group(gid) {
            Some(slot) => slot,
            None => {
                let new = Group {
                    gid: *gid,
                    attached: 0,
                };
                let slot = self.groups.insert(owner, new);
                slot.ok_or(NoSpace::Groups)?
            }
        };
        let group = self.groups.get_mut(slot).ok_or(NoSpace::Groups)?;
        if group.attached >= const { constant(MCAST_GROUP_QPS_MAX) } {
            return Err(NoSpace::GroupQps);
        }
        group.attached += 1;
        let new = Attachment {
            group: slot,
            qp,
            lid,
        };
        match self.attachments.insert(owner, new) {
            Some(_) => Ok(()),
            None => {
                self.leave(slot);
                Err(NoSpace::GroupQps)
            }
        }
    }

    /// Removes an attachment.
    pub fn detach(&mut self, slot: u32) {
        if let Some(gone) = self.attachments.remove(slot) {
            self.leave(gone.group);
        }
    }

    fn leave(&mut self, slot: u32) {
        if let Some(group) = self.groups.get_mut(slot) {
            group.attached = group.attached.saturating_sub(1);
            if group.attached == 0 {
                self.groups.remove(slot);
            }
        }
    }

    /// Removes the attachments of owners that are gone.
    pub(super) fn detach_all(&mut self, gone: impl Fn(Owner) -> bool) {
        let mut from = 0;
        while let Some(slot) = self.attachments.next(from, |owner, _| gone(owner)) {
            self.detach(slot);
            from = slot + 1;
        }
    }

    /// Repairs the groups after a process died while it attached or detached a queue pair.
    pub(super) fn repair_groups(&mut self) {
        self.groups.repair();
        self.attachments.repair();
        let mut from = 0;
        while let Some(slot) = self.groups.next(from, |_, _| true) {
            from = slot + 1;
            if let Some(group) = self.groups.get_mut(slot) {
                group.attached = 0;
            }
        }
        for (_, _, attachment) in self.attachments.iter() {
            if let Some(group) = self.groups.get_mut(attachment.group) {
                group.attached += 1;
            }
        }
        while let Some(slot) = self.groups.next(0, |_, group| group.attached == 0) {
            self.groups.remove(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::limits::MCAST_GROUPS_MAX;
    use super::super::zeroed;
    use super::*;

    const OWNER: Owner = Owner {
        process: 1,
        context: 7,
    };
    const OTHER: Owner = Owner {
        process: 2,
        context: 8,
    };

    fn function() -> Box<Function> {
        // SAFETY: all zeroes are a function without objects.
        unsafe { zeroed::<Function>() }
    }

    fn gid(number: usize) -> Gid {
        let mut gid = [0; 16];
        gid[0] = 0xff;
        gid[8..].copy_from_slice(&(number as u64).to_be_bytes());
        gid
    }

    #[test]
    fn a_group_lasts_as_long_as_its_last_queue_pair() {
        let mut function = function();
        for (owner, qp, lid) in [(OWNER, 1, 0xc001), (OWNER, 2, 0xc001), (OTHER, 2, 0xc002)] {
            function.attach(owner, qp, &gid(5), lid).unwrap();
        }
        assert_eq!((function.groups.live(), function.is_attached(2)), (1, true));
        assert_eq!(function.attachment(1, &gid(5), 0xc002), None);
        assert_eq!(function.attachment(1, &gid(6), 0xc001), None);
        let first = function.attachment(1, &gid(5), 0xc001).unwrap();
        function.detach(first);
        function.detach(first);
        assert!(!function.is_attached(1));
        function.detach_all(|owner| owner == OWNER);
        assert_eq!(
            (function.groups.live(), function.attachments.live()),
            (1, 1)
        );
        function.detach_all(|owner| owner == OTHER);
        assert_eq!(
            (function.groups.live(), function.attachments.live()),
            (0, 0)
        );
        assert_eq!(function.group(&gid(5)), None);
    }

    #[test]
    fn limits() {
        let mut function = function();
        for qp in 0..constant(MCAST_GROUP_QPS_MAX) {
            function.attach(OWNER, qp, &gid(0), 0).unwrap();
        }
        let full = function.attach(OWNER, 999, &gid(0), 0);
        assert_eq!(full, Err(NoSpace::GroupQps));
        for number in 1..MCAST_GROUPS_MAX {
            function.attach(OWNER, 1, &gid(number), 0).unwrap();
        }
        let full = function.attach(OWNER, 1, &gid(MCAST_GROUPS_MAX), 0);
        assert_eq!(full, Err(NoSpace::Groups));
        // A group that ends frees its place.
        let slot = function.attachment(1, &gid(1), 0).unwrap();
        function.detach(slot);
        function
            .attach(OWNER, 1, &gid(MCAST_GROUPS_MAX), 0)
            .unwrap();
    }

    /// A process dies between the changes of the two tables.
    #[test]
    fn groups_are_repaired_from_their_attachments() {
        let mut function = function();
        function.attach(OWNER, 1, &gid(1), 0).unwrap();
        function.attach(OWNER, 2, &gid(1), 0).unwrap();
        // A new group without its queue pair, and a queue pair that is gone but counted.
        let lone = Group {
            gid: gid(2),
            attached: 1,
        };
        function.groups.insert(OWNER, lone).unwrap();
        function.attachments.remove(0).unwrap();
        function.repair_groups();
        let groups: Vec<_> = function.groups.iter().map(|(_, _, group)| *group).collect();
        let left = Group {
            gid: gid(1),
            attached: 1,
        };
        assert_eq!(groups, [left]);
    }
}
