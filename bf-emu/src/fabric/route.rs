//! The port that a message reaches, from the address in its path or in the request itself.

use super::objects::Path;
use super::{Fabric, Place};
use crate::model::address::{Gid, GidType, Link, Mac};

/// Address fields of a path or an address vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// LID of the destination; ignored on Ethernet.
    pub lid: u16,
    /// The address has a global route. On Ethernet it always has one, and this flag is reserved.
    pub grh: bool,
    /// GID of the destination.
    pub dgid: Gid,
    /// Index of the sender's GID.
    pub sgid_index: u8,
    /// MAC of the destination, on Ethernet.
    pub mac: Mac,
}

impl Fabric {
    /// The destination port of a message that leaves `from`; None if no port accepts it.
    ///
    /// On Ethernet the frame must have the MAC of the port with the GID. Several functions can
    /// share an InfiniBand port. The LID then does not distinguish them: the message must have the
    /// GID.
    #[must_use]
    pub fn destination(&self, from: Place, route: &Route) -> Option<Place> {
        let link = self.link_of(from);
        if link.is_ethernet() {
            self.gid_entry(from, route.sgid_index)?;
            let place = self.port_of_roce(&route.dgid)?;
            return (self.mac_of(place) == Some(route.mac)).then_some(place);
        }
        if link.needs_grh() && !route.grh {
            return None;
        }
        let place = match route.lid {
            0 if route.grh => self.port_of_gid(&route.dgid)?,
            lid => self.port_of_lid(lid)?,
        };
        let is_own = || {
            self.gid_entry(place, 0)
                .is_some_and(|own| own.gid == route.dgid)
        };
        (self.link_of(place) == Link::Infiniband || route.grh && is_own()).then_some(place)
    }

    /// The destination port of a queue pair's path. Its requests leave `from`.
    #[must_use]
    pub(crate) fn port_of_path(&self, from: Place, path: &Path) -> Option<Place> {
        let route = Route {
            lid: path.dlid,
            grh: path.is_global != 0,
            dgid: path.dgid,
            sgid_index: path.sgid_index,
            mac: path.mac,
        };
        self.destination(from, &route)
    }

    /// Transport of a message that leaves `from` with this source GID.
    #[must_use]
    pub fn gid_type(&self, from: Place, sgid_index: u8) -> GidType {
        let entry = self.gid_entry(from, sgid_index);
        entry.map_or(GidType::Infiniband, |entry| entry.kind)
    }
}
