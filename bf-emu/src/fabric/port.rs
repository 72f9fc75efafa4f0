//! The ports of functions: what they are called, who is behind an address, and whether they are up.

use std::sync::atomic::{AtomicU32, Ordering};

use super::link::Port;
use super::objects::Path;
use super::{Fabric, Locked};
use crate::model::adapter::GID_PREFIX;
use crate::model::topology::{FUNCTIONS_MAX, FunctionSpec, NAME_MAX, PORTS_MAX};

/// What identifies a function to its users.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Identity {
    /// The node's name, a dot, the function's.
    name: [u8; 2 * NAME_MAX + 1],
    /// gvmi.
    pub vhca_id: u16,
    /// PCI device id.
    pub pci_device: u16,
    /// How many ports it has.
    ports: u8,
    lids: [u16; PORTS_MAX],
    /// Shared by the functions of one adapter.
    pub sys_image_guid: u64,
    /// Its own.
    pub node_guid: u64,
    guids: [u64; PORTS_MAX],
}

impl Identity {
    pub(super) fn new(spec: &FunctionSpec) -> Self {
        let (mut lids, mut guids) = ([0; PORTS_MAX], [0; PORTS_MAX]);
        for (index, port) in spec.ports.iter().enumerate().take(PORTS_MAX) {
            (lids[index], guids[index]) = (port.lid, port.guid);
        }
        Self {
            name: super::text_bytes(&spec.name),
            vhca_id: spec.vhca_id,
            pci_device: spec.pci_device,
            ports: u8::try_from(spec.ports.len()).unwrap_or(1),
            lids,
            sys_image_guid: spec.sys_image_guid,
            node_guid: spec.node_guid,
            guids,
        }
    }

    /// Its name in the topology.
    #[must_use]
    pub fn name(&self) -> &str {
        super::text(&self.name)
    }

    /// The numbers of its ports.
    #[must_use]
    pub fn ports(&self) -> std::ops::RangeInclusive<u8> {
        1..=self.ports
    }

    /// Local identifier of a port; 0, which is nobody's, of one that it does not have.
    #[must_use]
    pub fn lid(&self, port: u8) -> u16 {
        at(&self.lids, port)
    }

    /// GUID of a port.
    #[must_use]
    pub fn port_guid(&self, port: u8) -> u64 {
        at(&self.guids, port)
    }

    /// GID 0 of a port: the default subnet prefix and the port's GUID.
    #[must_use]
    pub fn gid(&self, port: u8) -> [u8; 16] {
        let mut gid = [0; 16];
        gid[..8].copy_from_slice(&GID_PREFIX.to_be_bytes());
        gid[8..].copy_from_slice(&self.port_guid(port).to_be_bytes());
        gid
    }
}

fn at<T: Copy + Default>(values: &[T; PORTS_MAX], port: u8) -> T {
    let index = usize::from(port).checked_sub(1);
    let value = index.and_then(|index| values.get(index));
    value.copied().unwrap_or_default()
}

/// A port of the fabric: a function and the number of its port, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of the function.
    pub function: usize,
    /// Number of the port.
    pub port: u8,
}

/// Whether a port carries messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum PortState {
    /// It does.
    #[default]
    Active,
    /// There is no link.
    Down,
    /// There is a link, and no subnet manager has set it up.
    Initializing,
}

impl PortState {
    /// Its number in `PortInfo` and in verbs (`enum ibv_port_state`).
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Down => 1,
            Self::Initializing => 2,
            Self::Active => 4,
        }
    }

    /// Number of the physical state that belongs to it: polling, or link up.
    #[must_use]
    pub fn physical_code(self) -> u8 {
        match self {
            Self::Down => 2,
            Self::Initializing | Self::Active => 5,
        }
    }

    /// Its name and that of the physical state, as sysfs has them.
    #[must_use]
    pub fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Down => ("DOWN", "Polling"),
            Self::Initializing => ("INIT", "LinkUp"),
            Self::Active => ("ACTIVE", "LinkUp"),
        }
    }

    fn of(value: u32) -> Self {
        [Self::Down, Self::Initializing]
            .into_iter()
            .find(|state| *state as u32 == value)
            .unwrap_or_default()
    }
}

/// The states of all ports. All zeroes: each is active.
#[derive(Debug)]
#[repr(C)]
pub(super) struct PortStates {
    /// Ports that do not carry messages: none is the case that must cost nothing.
    away: AtomicU32,
    states: [[AtomicU32; PORTS_MAX]; FUNCTIONS_MAX],
}

impl PortStates {
    fn state(&self, place: Place) -> Option<&AtomicU32> {
        let ports = self.states.get(place.function)?;
        ports.get(usize::from(place.port).checked_sub(1)?)
    }
}

impl Fabric {
    /// The port with this LID.
    #[must_use]
    pub fn port_of_lid(&self, lid: u16) -> Option<Place> {
        self.find_port(|identity, port| lid != 0 && identity.lid(port) == lid)
    }

    /// The port with this GID.
    #[must_use]
    pub fn port_of_gid(&self, gid: &[u8; 16]) -> Option<Place> {
        self.find_port(|identity, port| identity.gid(port) == *gid)
    }

    /// The port that a queue pair's path leads to.
    #[must_use]
    pub(crate) fn port_of_path(&self, path: &Path) -> Option<Place> {
        if path.is_global != 0 && path.dlid == 0 {
            self.port_of_gid(&path.dgid)
        } else {
            self.port_of_lid(path.dlid)
        }
    }

    fn find_port(&self, is_it: impl Fn(&Identity, u8) -> bool) -> Option<Place> {
        let mut functions = self.identities().iter().enumerate();
        functions.find_map(|(function, identity)| {
            let port = identity.ports().find(|port| is_it(identity, *port))?;
            Some(Place { function, port })
        })
    }

    /// The port of its adapter that a function's port is, whose link all its functions share. An
    /// adapter is known by its image.
    #[must_use]
    pub(crate) fn link(&self, place: Place) -> &Port {
        let image = self.identity(place.function).map(|own| own.sys_image_guid);
        let first = self
            .identities()
            .iter()
            .position(|other| Some(other.sys_image_guid) == image);
        // Cannot be outside: it is the place of an identity, of which there are as many; and a port
        // that is not there is the last.
        let ports = &self.head().links[first.unwrap_or(0)];
        &ports[usize::from(place.port.max(1) - 1).min(PORTS_MAX - 1)]
    }

    /// What a port is in.
    #[must_use]
    pub fn port_state(&self, place: Place) -> PortState {
        let state = self.head().port_states.state(place);
        state.map_or(PortState::Active, |state| {
            PortState::of(state.load(Ordering::Relaxed))
        })
    }

    /// True if messages get from one port to another.
    #[must_use]
    pub(crate) fn connects(&self, from: Place, to: Place) -> bool {
        let up = |place| self.port_state(place) == PortState::Active;
        self.head().port_states.away.load(Ordering::Relaxed) == 0 || up(from) && up(to)
    }
}

impl Locked<'_> {
    /// Changes the state of a port. Returns whether it was in another one.
    pub(crate) fn put_port_state(&mut self, place: Place, state: PortState) -> bool {
        let before = self.fabric().port_state(place);
        let states = &self.fabric().head().port_states;
        let Some(slot) = states.state(place) else {
            return false;
        };
        slot.store(state as u32, Ordering::Relaxed);
        let all = states.states.iter().flatten();
        let away = all.filter(|state| state.load(Ordering::Relaxed) != PortState::Active as u32);
        // Cannot be cut: there are at most 128 ports.
        let away = u32::try_from(away.count()).unwrap_or(u32::MAX);
        states.away.store(away, Ordering::Relaxed);
        state != before
    }
}
