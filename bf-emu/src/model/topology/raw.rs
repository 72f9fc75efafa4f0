//! The keys of a topology file, as written.

use serde::Deserialize;

use super::Role;
use crate::model::address::Link;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTopology {
    pub(super) node: Vec<RawNode>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawNode {
    pub(super) name: Option<String>,
    pub(super) sys_image_guid: Option<String>,
    pub(super) remote: Option<bool>,
    pub(super) function: Option<Vec<RawFunction>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawFunction {
    pub(super) role: Role,
    pub(super) name: Option<String>,
    pub(super) vhca_id: Option<i64>,
    pub(super) link: Option<Link>,
    pub(super) lid: Option<i64>,
    pub(super) mac: Option<String>,
    pub(super) addresses: Option<Vec<String>>,
    pub(super) pkeys: Option<Vec<i64>>,
    pub(super) ndev: Option<String>,
    pub(super) mtu: Option<i64>,
    pub(super) ports: Option<i64>,
    pub(super) link_2: Option<Link>,
    pub(super) lid_2: Option<i64>,
    pub(super) mac_2: Option<String>,
    pub(super) addresses_2: Option<Vec<String>>,
    pub(super) pkeys_2: Option<Vec<i64>>,
    pub(super) ndev_2: Option<String>,
    pub(super) mtu_2: Option<i64>,
    pub(super) port_guid_2: Option<String>,
    pub(super) node_guid: Option<String>,
    pub(super) pci_device: Option<i64>,
    pub(super) pci_bdf: Option<String>,
}

impl RawNode {
    /// A host and a DPU function with `ports` ports each, of one kind of link.
    pub(super) fn with_ports(ports: usize, link: Link) -> Self {
        let function = |role| RawFunction {
            ports: Some(i64::try_from(ports).unwrap_or(i64::MAX)),
            link: Some(link),
            link_2: (ports == 2).then_some(link),
            ..RawFunction::of(role)
        };
        RawNode {
            function: Some(vec![function(Role::Host), function(Role::Dpu)]),
            ..RawNode::default()
        }
    }
}

impl RawFunction {
    pub(super) fn of(role: Role) -> Self {
        RawFunction {
            role,
            name: None,
            vhca_id: None,
            link: None,
            lid: None,
            mac: None,
            addresses: None,
            pkeys: None,
            ndev: None,
            mtu: None,
            ports: None,
            link_2: None,
            lid_2: None,
            mac_2: None,
            addresses_2: None,
            pkeys_2: None,
            ndev_2: None,
            mtu_2: None,
            port_guid_2: None,
            node_guid: None,
            pci_device: None,
            pci_bdf: None,
        }
    }

    /// The keys of the first or the second port.
    pub(super) fn port(&self, index: usize) -> RawPort<'_> {
        match index {
            0 => RawPort {
                link: self.link,
                lid: self.lid,
                mac: self.mac.as_deref(),
                addresses: self.addresses.as_deref(),
                pkeys: self.pkeys.as_deref(),
                ndev: self.ndev.as_deref(),
                mtu: self.mtu,
            },
            _ => RawPort {
                link: self.link_2,
                lid: self.lid_2,
                mac: self.mac_2.as_deref(),
                addresses: self.addresses_2.as_deref(),
                pkeys: self.pkeys_2.as_deref(),
                ndev: self.ndev_2.as_deref(),
                mtu: self.mtu_2,
            },
        }
    }
}

/// The keys of a port in the file. Keys of the second port end in `_2`.
pub(super) struct RawPort<'a> {
    pub(super) link: Option<Link>,
    pub(super) lid: Option<i64>,
    pub(super) mac: Option<&'a str>,
    pub(super) addresses: Option<&'a [String]>,
    pub(super) pkeys: Option<&'a [i64]>,
    pub(super) ndev: Option<&'a str>,
    pub(super) mtu: Option<i64>,
}

impl RawPort<'_> {
    /// The first key of the port in the file, if any.
    pub(super) fn first_key(&self) -> Option<&'static str> {
        [
            ("link", self.link.is_some()),
            ("lid", self.lid.is_some()),
            ("mac", self.mac.is_some()),
            ("addresses", self.addresses.is_some()),
            ("pkeys", self.pkeys.is_some()),
            ("ndev", self.ndev.is_some()),
            ("mtu", self.mtu.is_some()),
        ]
        .into_iter()
        .find_map(|(key, is_said)| is_said.then_some(key))
    }
}

impl RawPort<'_> {
    /// The first key in the file that only an Ethernet port may have.
    pub(super) fn first_key_of_ethernet(&self) -> Option<&'static str> {
        let other = RawPort {
            link: None,
            lid: None,
            addresses: None,
            pkeys: None,
            ..*self
        };
        other.first_key()
    }
}
