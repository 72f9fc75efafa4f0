//! Ports by the addresses that programs use.

use super::super::device::Fabric;
use super::super::port::Place;
use super::state::Port;
use crate::model::address::{Gid, GidType};
use crate::model::sockaddr::{Family, SocketAddress};

impl Fabric {
    /// The port with an address, with the GID that messages to the address have.
    #[must_use]
    pub fn cm_port(&self, address: &SocketAddress) -> Option<Port> {
        let gid = address.gid();
        let place = match address.family()? {
            Family::Ib => self.port_of_gid(&gid).or_else(|| self.port_of_roce(&gid))?,
            Family::Inet | Family::Inet6 => self.port_of_address(&gid)?,
        };
        Some(Port::new(place, self.cm_gid_index(place, Some(&gid))))
    }

    /// Index of the GID of a port's messages: on Ethernet that of an address in RoCE v2, which is
    /// the kernel's default (core/cma.c, `cma_get_default_gid_type`). Without an address it is that
    /// of the first IP address.
    #[must_use]
    pub fn cm_gid_index(&self, place: Place, address: Option<&Gid>) -> u8 {
        if !self.link_of(place).is_ethernet() {
            return 0;
        }
        let Some(identity) = self.identity(place.function) else {
            return 0;
        };
        let second = identity.gid_entries(place.port).filter(|(index, entry)| {
            entry.kind == GidType::RoceV2
                && match address {
                    Some(address) => entry.gid == *address,
                    None => *index > 1,
                }
        });
        // Index 1 is the link-local address in RoCE v2, which every Ethernet port has.
        let index = second.map(|(index, _)| index).next().unwrap_or(1);
        u8::try_from(index).unwrap_or(1)
    }

    /// The GID of a port.
    #[must_use]
    pub fn cm_gid(&self, port: Port) -> Gid {
        let entry = port
            .place()
            .and_then(|place| self.gid_entry(place, port.sgid_index));
        entry.map(|entry| entry.gid).unwrap_or_default()
    }

    /// The local port and address for messages to `remote`, for a program that sees `functions`. A
    /// port of its own reaches itself. Otherwise it is the first port with the same kind of link
    /// and an address of the family; an active one if there is any.
    #[must_use]
    pub fn cm_source(
        &self,
        functions: &[usize],
        remote: Port,
        target: &SocketAddress,
    ) -> Option<(Port, SocketAddress)> {
        let family = target.family()?;
        let place = remote.place()?;
        if functions.contains(&place.function) {
            return Some((remote, *target));
        }
        let ethernet = self.link_of(place).is_ethernet();
        let mut first = None;
        for local in self.cm_ports(functions) {
            if self.link_of(local).is_ethernet() != ethernet {
                continue;
            }
            let Some(address) = self.cm_address(local, family) else {
                continue;
            };
            let index = self.cm_gid_index(local, Some(&address.gid()));
            let found = (Port::new(local, index), address);
            if self.connects(local, local) {
                return Some(found);
            }
            first = first.or(Some(found));
        }
        first
    }

    /// The first port of a program with an address of another address's family, and that address:
    /// an active port if there is any.
    #[must_use]
    pub fn cm_first(
        &self,
        functions: &[usize],
        target: &SocketAddress,
    ) -> Option<(Port, SocketAddress)> {
        let family = target.family()?;
        let ports = || {
            self.cm_ports(functions).filter_map(|local| {
                let address = self.cm_address(local, family)?;
                let index = self.cm_gid_index(local, Some(&address.gid()));
                Some((local, (Port::new(local, index), address)))
            })
        };
        let active = ports().find(|(local, _)| self.connects(*local, *local));
        let (_, found) = active.or_else(|| ports().next())?;
        Some(found)
    }

    /// The first port for messages of a program to itself: an active one if there is any.
    #[must_use]
    pub fn cm_loopback(&self, functions: &[usize]) -> Option<Port> {
        let mut ports = self.cm_ports(functions);
        let active = ports.find(|place| self.connects(*place, *place));
        let place = active.or_else(|| self.cm_ports(functions).next())?;
        Some(Port::new(place, self.cm_gid_index(place, None)))
    }

    fn cm_ports<'a>(&'a self, functions: &'a [usize]) -> impl Iterator<Item = Place> + 'a {
        functions.iter().flat_map(|&function| {
            let ports = self.identity(function).map(|identity| identity.ports());
            ports
                .into_iter()
                .flatten()
                .map(move |port| Place { function, port })
        })
    }

    /// The first address of a port in a family.
    fn cm_address(&self, place: Place, family: Family) -> Option<SocketAddress> {
        let identity = self.identity(place.function)?;
        if family == Family::Ib {
            let index = self.cm_gid_index(place, None);
            return Some(SocketAddress::of_gid(&self.gid_entry(place, index)?.gid, 0));
        }
        let mut addresses = identity.addresses(place.port).iter();
        let mut all = addresses.by_ref().map(|gid| SocketAddress::of_ip(gid, 0));
        all.find(|address| address.family() == Some(family))
    }

    /// True if an address is in the network of one of a program's ports: the first two bytes of an
    /// IPv4 address, or the first eight bytes of an IPv6 address, are equal.
    #[must_use]
    pub fn cm_is_neighbour(&self, functions: &[usize], address: &SocketAddress) -> bool {
        let prefix = match address.family() {
            Some(Family::Inet) => 14,
            Some(Family::Inet6 | Family::Ib) => 8,
            None => return false,
        };
        let gid = address.gid();
        let same = |own: &Gid| own.get(..prefix) == gid.get(..prefix);
        self.cm_ports(functions).any(|place| {
            let identity = self.identity(place.function);
            identity.is_some_and(|identity| {
                identity.addresses(place.port).iter().any(same) || same(&identity.gid(place.port))
            })
        })
    }
}
