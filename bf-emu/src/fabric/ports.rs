//! Lookups of ports, and changes of their states.

use std::sync::atomic::Ordering;

use super::device::{Fabric, Locked};
use super::link::Port;
use super::port::{Identity, Place, PortState};
use crate::model::address::{Gid, GidEntry, GidType, Link, Mac};

impl Fabric {
    /// The InfiniBand port with this LID.
    #[must_use]
    pub fn port_of_lid(&self, lid: u16) -> Option<Place> {
        self.find_port(|identity, port| lid != 0 && identity.lid(port) == lid)
    }

    /// The InfiniBand port with this GID.
    #[must_use]
    pub fn port_of_gid(&self, gid: &Gid) -> Option<Place> {
        let entry = GidEntry {
            gid: *gid,
            kind: GidType::Infiniband,
        };
        self.find_port(|identity, port| identity.gid_entry(port, 0) == Some(entry))
    }

    /// The Ethernet port that has this GID.
    #[must_use]
    pub fn port_of_roce(&self, gid: &Gid) -> Option<Place> {
        self.find_port(|identity, port| identity.has_roce(port, gid))
    }

    /// The port with this IP address in the form of a GID. An Ethernet port also has the link-local
    /// address of its MAC.
    #[must_use]
    pub fn port_of_address(&self, address: &Gid) -> Option<Place> {
        let has = |identity: &Identity, port| identity.addresses(port).contains(address);
        self.find_port(has).or_else(|| self.port_of_roce(address))
    }

    /// MAC of an Ethernet port.
    #[must_use]
    pub fn mac_of(&self, place: Place) -> Option<Mac> {
        self.identity(place.function)?.mac(place.port)
    }

    /// The kind of a port's link.
    #[must_use]
    pub fn link_of(&self, place: Place) -> Link {
        let identity = self.identity(place.function);
        identity.map_or(Link::default(), |identity| identity.link(place.port))
    }

    /// An entry of a port's GID table.
    #[must_use]
    pub fn gid_entry(&self, place: Place, index: u8) -> Option<GidEntry> {
        let identity = self.identity(place.function)?;
        identity.gid_entry(place.port, usize::from(index))
    }

    fn find_port(&self, is_it: impl Fn(&Identity, u8) -> bool) -> Option<Place> {
        let mut functions = self.identities().iter().enumerate();
        functions.find_map(|(function, identity)| {
            let port = identity.ports().find(|port| is_it(identity, *port))?;
            Some(Place { function, port })
        })
    }

    /// The adapter's port behind a function's port, whose link all functions share; None if the
    /// port does not exist. The system image GUID identifies the adapter.
    #[must_use]
    pub(crate) fn link(&self, place: Place) -> Option<&Port> {
        let image = self.identity(place.function)?.sys_image_guid;
        let mut identities = self.identities().iter();
        let first = identities.position(|other| other.sys_image_guid == image)?;
        let port = usize::from(place.port).checked_sub(1)?;
        self.links().get(first)?.get(port)
    }

    /// State of a port.
    #[must_use]
    pub fn port_state(&self, place: Place) -> PortState {
        let state = self.port_states().state(place);
        state.map_or(PortState::Active, |state| {
            PortState::of(state.load(Ordering::Relaxed))
        })
    }

    /// True if a function has failed. It executes no command but releases.
    #[must_use]
    pub(crate) fn has_failed(&self, function: usize) -> bool {
        let failed = self.port_states().failed.get(function);
        failed.is_some_and(|failed| failed.load(Ordering::Relaxed) != 0)
    }

    /// True if one port can send messages to another.
    #[must_use]
    pub(crate) fn connects(&self, from: Place, to: Place) -> bool {
        let up = |place| self.port_state(place) == PortState::Active;
        self.port_states().away.load(Ordering::Relaxed) == 0 || up(from) && up(to)
    }
}

impl Locked<'_> {
    /// Makes a function fail. Returns whether it worked until now.
    pub(crate) fn fail_function(&mut self, function: usize) -> bool {
        let failed = self.fabric().port_states().failed.get(function);
        failed.is_some_and(|failed| failed.swap(1, Ordering::Relaxed) == 0)
    }

    /// Changes the state of a port. Returns whether the state changed.
    pub(crate) fn put_port_state(&mut self, place: Place, state: PortState) -> bool {
        let before = self.fabric().port_state(place);
        let states = self.fabric().port_states();
        let Some(slot) = states.state(place) else {
            return false;
        };
        slot.store(state as u32, Ordering::Relaxed);
        let all = states.states.iter().flatten();
        let away = all.filter(|state| state.load(Ordering::Relaxed) != PortState::Active as u32);
        let away = away.fold(0, |count, _| count + 1);
        states.away.store(away, Ordering::Relaxed);
        state != before
    }
}
