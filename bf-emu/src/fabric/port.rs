//! Ports of functions: their identities, addresses and states.

use std::sync::atomic::AtomicU32;

use super::text::{text, text_bytes};
use crate::model::address::{
    self, ADDRESSES_MAX, Gid, GidEntry, GidType, Link, Mac, PKEYS_MAX, infiniband_gid,
};
use crate::model::topology::{
    FUNCTIONS_MAX, FunctionSpec, NAME_MAX, NDEV_NAME_MAX, PORTS_MAX, PortSpec,
};
use crate::sys::interface;

/// The identity of a function.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Identity {
    /// The node's name, a dot, and the function's name.
    name: [u8; 2 * NAME_MAX + 1],
    /// gvmi.
    pub vhca_id: u16,
    /// Its node is on another machine.
    pub is_remote: bool,
    /// PCI device id.
    pub pci_device: u16,
    /// Number of ports.
    ports: u8,
    /// Shared by the functions of one adapter.
    pub sys_image_guid: u64,
    /// The function's own GUID.
    pub node_guid: u64,
    port: [PortIdentity; PORTS_MAX],
}

/// The identity of a port.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct PortIdentity {
    guid: u64,
    lid: u16,
    /// MTU of the network device.
    mtu: u16,
    link: Link,
    mac: Mac,
    addresses: u8,
    address: [Gid; ADDRESSES_MAX],
    pkeys: [u16; PKEYS_MAX],
    ndev: [u8; NDEV_NAME_MAX + 1],
}

impl PortIdentity {
    /// A port that the function does not have.
    const ABSENT: Self = Self {
        guid: 0,
        lid: 0,
        mtu: 0,
        link: Link::Infiniband,
        mac: Mac([0; 6]),
        addresses: 0,
        address: [[0; 16]; ADDRESSES_MAX],
        pkeys: [0; PKEYS_MAX],
        ndev: [0; NDEV_NAME_MAX + 1],
    };

    fn new(spec: &PortSpec) -> Self {
        let mut address = [[0; 16]; ADDRESSES_MAX];
        let mut addresses = 0;
        for (to, from) in address.iter_mut().zip(spec.address_gids()) {
            *to = from;
            addresses += 1;
        }
        let mut pkeys = [0; PKEYS_MAX];
        for (to, from) in pkeys.iter_mut().zip(&spec.pkeys) {
            *to = *from;
        }
        let ethernet = spec.ethernet.as_ref();
        Self {
            guid: spec.guid,
            lid: spec.lid,
            mtu: ethernet.map_or(0, |port| port.mtu),
            link: spec.link,
            mac: ethernet.map(|port| port.mac).unwrap_or_default(),
            addresses,
            address,
            pkeys,
            ndev: text_bytes(ethernet.map_or("", |port| &port.ndev)),
        }
    }

    /// The IP addresses in the form of GIDs. On Ethernet they are GIDs of the port.
    fn addresses(&self) -> &[Gid] {
        self.address.get(..self.addresses.into()).unwrap_or(&[])
    }

    /// True if an Ethernet port has this GID. It has each GID in all versions of RoCE.
    fn has_roce(&self, gid: &Gid) -> bool {
        let own = || self.addresses().contains(gid) || self.mac.link_local() == *gid;
        self.link.is_ethernet() && own()
    }
}

impl Identity {
    pub(super) fn new(spec: &FunctionSpec) -> Self {
        let mut port = [PortIdentity::ABSENT; PORTS_MAX];
        let mut ports = 0;
        for (to, spec) in port.iter_mut().zip(&spec.ports) {
            *to = PortIdentity::new(spec);
            ports += 1;
        }
        Self {
            name: text_bytes(&spec.name),
            vhca_id: spec.vhca_id,
            is_remote: spec.remote,
            pci_device: spec.pci_device,
            ports,
            sys_image_guid: spec.sys_image_guid,
            node_guid: spec.node_guid,
            port,
        }
    }

    /// The function's name in the topology.
    #[must_use]
    pub fn name(&self) -> &str {
        text(&self.name)
    }

    /// The function's port numbers.
    #[must_use]
    pub fn ports(&self) -> std::ops::RangeInclusive<u8> {
        1..=self.ports
    }

    fn port(&self, port: u8) -> &PortIdentity {
        let index = usize::from(port).checked_sub(1);
        let port = index.and_then(|index| self.port.get(index));
        port.unwrap_or(&PortIdentity::ABSENT)
    }

    /// Local identifier of a port. It is 0, which no port uses, on Ethernet and for a missing port.
    #[must_use]
    pub fn lid(&self, port: u8) -> u16 {
        self.port(port).lid
    }

    /// GUID of a port.
    #[must_use]
    pub fn port_guid(&self, port: u8) -> u64 {
        self.port(port).guid
    }

    /// The kind of a port's link.
    #[must_use]
    pub fn link(&self, port: u8) -> Link {
        self.port(port).link
    }

    /// MAC of an Ethernet port.
    #[must_use]
    pub fn mac(&self, port: u8) -> Option<Mac> {
        let port = self.port(port);
        port.link.is_ethernet().then_some(port.mac)
    }

    /// An entry of a port's table of partition keys; 0 if it is empty.
    #[must_use]
    pub fn pkey(&self, port: u8, index: u16) -> u16 {
        let pkeys = &self.port(port).pkeys;
        pkeys.get(usize::from(index)).copied().unwrap_or(0)
    }

    /// `enum ib_mtu` of a port's largest packet.
    #[must_use]
    pub fn active_mtu(&self, port: u8) -> u8 {
        /// 4096 bytes.
        const INFINIBAND: u8 = 5;
        let port = self.port(port);
        match port.link {
            Link::Ethernet => address::roce_mtu(port.mtu),
            Link::Infiniband | Link::InfinibandGrh => INFINIBAND,
        }
    }

    /// Name of the network device of an Ethernet port; empty on InfiniBand.
    #[must_use]
    pub fn ndev(&self, port: u8) -> NdevName {
        NdevName(self.port(port).ndev)
    }

    /// IP addresses of a port, in the form of GIDs.
    #[must_use]
    pub fn addresses(&self, port: u8) -> &[Gid] {
        self.port(port).addresses()
    }

    /// True if an Ethernet port has this GID.
    pub(super) fn has_roce(&self, port: u8, gid: &Gid) -> bool {
        self.port(port).has_roce(gid)
    }

    /// An entry of a port's GID table; None if it is empty.
    #[must_use]
    pub fn gid_entry(&self, port: u8, index: usize) -> Option<GidEntry> {
        let port = self.port(port);
        match port.link {
            Link::Ethernet => address::roce_entry(port.mac, port.addresses(), index),
            Link::Infiniband | Link::InfinibandGrh => (index == 0).then_some(GidEntry {
                gid: infiniband_gid(port.guid),
                kind: GidType::Infiniband,
            }),
        }
    }

    /// The non-empty entries of a port's GID table with their indices.
    pub fn gid_entries(&self, port: u8) -> impl Iterator<Item = (usize, GidEntry)> + '_ {
        let indices = 0..usize::from(self.link(port).gid_table_len());
        indices.filter_map(move |index| Some((index, self.gid_entry(port, index)?)))
    }

    /// GID 0 of a port; zeroes for a missing port.
    #[must_use]
    pub fn gid(&self, port: u8) -> Gid {
        let entry = self.gid_entry(port, 0);
        entry.map(|entry| entry.gid).unwrap_or_default()
    }
}

/// Name of a network device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NdevName([u8; NDEV_NAME_MAX + 1]);

impl NdevName {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        text(&self.0)
    }

    /// The device's interface index on this machine; 0 if it does not exist.
    #[must_use]
    pub fn index(&self) -> u32 {
        interface::index_of(&self.0)
    }
}

/// A port of the fabric: a function and the number of its port, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of the function.
    pub function: usize,
    /// Number of the port.
    pub port: u8,
}

/// State of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum PortState {
    /// It carries messages.
    #[default]
    Active,
    /// It has no link.
    Down,
    /// It has a link, and no subnet manager has activated it.
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

    /// Number of the corresponding physical state: polling, or link up.
    #[must_use]
    pub fn physical_code(self) -> u8 {
        match self {
            Self::Down => 2,
            Self::Initializing | Self::Active => 5,
        }
    }

    /// Names of the state and of the physical state in sysfs.
    #[must_use]
    pub fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Down => ("DOWN", "Polling"),
            Self::Initializing => ("INIT", "LinkUp"),
            Self::Active => ("ACTIVE", "LinkUp"),
        }
    }

    pub(super) fn of(value: u32) -> Self {
        [Self::Down, Self::Initializing]
            .into_iter()
            .find(|state| *state as u32 == value)
            .unwrap_or_default()
    }
}

/// The states of all ports. All zeroes means active.
#[derive(Debug)]
#[repr(C)]
pub(super) struct PortStates {
    /// Number of ports that are not active. Zero keeps the common case free of cost.
    pub(super) away: AtomicU32,
    pub(super) states: [[AtomicU32; PORTS_MAX]; FUNCTIONS_MAX],
    /// Functions that have failed: not 0.
    pub(super) failed: [AtomicU32; FUNCTIONS_MAX],
}

impl PortStates {
    pub(super) fn state(&self, place: Place) -> Option<&AtomicU32> {
        let ports = self.states.get(place.function)?;
        ports.get(usize::from(place.port).checked_sub(1)?)
    }
}
