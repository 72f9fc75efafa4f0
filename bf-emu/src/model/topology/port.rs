//! Ports of a function in a topology file: their values and defaults.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use super::checks::{Numbers, Unique, checked_guid, checked_number, value_error};
use super::raw::{RawFunction, RawPort};
use super::{
    EthernetSpec, LID_MAX, MTU_DEFAULT, NDEV_DEFAULT, NDEV_NAME_MAX, PORTS_MAX, PortSpec,
    TopologyError, guid_text,
};
use crate::model::adapter::PKEY_DEFAULT;
use crate::model::address::{ADDRESSES_MAX, Gid, Mac, PKEYS_MAX, gid_of};

/// MTUs of an Ethernet port: the smallest carries 256 bytes of data, the largest is that of a jumbo
/// frame.
const MTUS: std::ops::RangeInclusive<u16> = 352..=9978;

/// The unique values of a fabric's ports so far.
pub(super) struct Seen<'a> {
    pub(super) lids: Numbers,
    pub(super) unique_lid: Unique<'a>,
    pub(super) unique_guid: Unique<'a>,
    pub(super) unique_mac: Unique<'a>,
    pub(super) unique_address: Unique<'a>,
}

/// The checked ports of function `place.1` of node `place.0`.
pub(super) fn ports(
    file: &Path,
    place: (usize, usize),
    raw: &RawFunction,
    node_guid: u64,
    seen: &mut Seen<'_>,
) -> Result<Vec<PortSpec>, TopologyError> {
    let key = |key: &str| format!("node[{}].function[{}].{key}", place.0, place.1);
    let count = raw.ports.unwrap_or(1);
    let count = match usize::try_from(count) {
        Ok(count) if (1..=PORTS_MAX).contains(&count) => count,
        _ => {
            let allowed = format!("1..={PORTS_MAX}");
            return Err(value_error(file, key("ports"), count, allowed));
        }
    };
    if count == 1 {
        let guid = raw.port_guid_2.as_ref().map(|_| "port_guid");
        if let Some(name) = raw.port(1).first_key().or(guid) {
            let allowed = format!("2, as there is {name}_2");
            return Err(value_error(file, key("ports"), count, allowed));
        }
    }
    let mut ports = Vec::with_capacity(count);
    for index in 0..count {
        let suffix = if index == 0 { "" } else { "_2" };
        let key = |name: &str| key(&format!("{name}{suffix}"));
        let guid = match (index, &raw.port_guid_2) {
            (0, _) => node_guid,
            (_, Some(text)) => checked_guid(file, key("port_guid"), text)?,
            (_, None) => second_guid(node_guid),
        };
        // The first port has the node GUID, which is already checked.
        if index != 0 {
            seen.unique_guid.add(key("port_guid"), guid_text(guid))?;
        }
        let raw = raw.port(index);
        let link = raw.link.unwrap_or_default();
        let at = (place.0, place.1, index);
        let addresses = addresses(file, &key, &raw, at, seen)?;
        let pkeys = pkeys(file, &key, &raw)?;
        let (lid, ethernet) = if link.is_ethernet() {
            (0, Some(ethernet(file, &key, &raw, (guid, index), seen)?))
        } else {
            (infiniband(file, &key, &raw, seen)?, None)
        };
        ports.push(PortSpec {
            link,
            lid,
            guid,
            addresses,
            pkeys,
            ethernet,
        });
    }
    Ok(ports)
}

/// The partition keys of a port.
fn pkeys(
    file: &Path,
    key: &dyn Fn(&str) -> String,
    raw: &RawPort<'_>,
) -> Result<Vec<u16>, TopologyError> {
    /// The partition, without the bit of full membership.
    const PARTITION: i64 = 0x7fff;
    let Some(asked) = raw.pkeys else {
        return Ok(vec![PKEY_DEFAULT]);
    };
    let given = || {
        let keys = asked.iter().map(|pkey| format!("{pkey:#x}"));
        keys.collect::<Vec<_>>().join(", ")
    };
    if raw.link.unwrap_or_default().is_ethernet() {
        let allowed = "nothing: an Ethernet port has the default partition";
        return Err(value_error(file, key("pkeys"), given(), allowed));
    }
    let checked = asked
        .iter()
        .map(|pkey| u16::try_from(*pkey).ok().filter(|_| pkey & PARTITION != 0));
    let pkeys = checked.collect::<Option<Vec<u16>>>();
    let pkeys = pkeys.filter(|pkeys| (1..=PKEYS_MAX).contains(&pkeys.len()));
    pkeys.ok_or_else(|| {
        let allowed = format!("1..={PKEYS_MAX} keys of 16 bits, not of partition 0");
        value_error(file, key("pkeys"), given(), allowed)
    })
}

/// The LID of an InfiniBand port.
fn infiniband(
    file: &Path,
    key: &dyn Fn(&str) -> String,
    raw: &RawPort<'_>,
    seen: &mut Seen<'_>,
) -> Result<u16, TopologyError> {
    if let Some(name) = raw.first_key_of_ethernet() {
        let allowed = "nothing, unless the port's link is \"ethernet\"";
        return Err(value_error(file, key(name), "given", allowed));
    }
    let lid = checked_number(file, key("lid"), seen.lids.pick(raw.lid), LID_MAX)?;
    seen.unique_lid.add(key("lid"), lid.to_string())?;
    Ok(lid)
}

fn ethernet(
    file: &Path,
    key: &dyn Fn(&str) -> String,
    raw: &RawPort<'_>,
    (guid, index): (u64, usize),
    seen: &mut Seen<'_>,
) -> Result<EthernetSpec, TopologyError> {
    if let Some(lid) = raw.lid {
        let allowed = "nothing: an Ethernet port has no LID";
        return Err(value_error(file, key("lid"), lid, allowed));
    }
    let mac = match raw.mac {
        None => Some(Mac::of_guid(guid, u8::from(index != 0))),
        Some(text) => Mac::parse(text),
    };
    let mac = mac.filter(|mac| mac.is_unicast()).ok_or_else(|| {
        let allowed = "six pairs of hexadecimal digits, \"02:bf:00:00:01:01\", of one port";
        let given = raw.mac.unwrap_or("that of the GUID");
        value_error(file, key("mac"), format!("{given:?}"), allowed)
    })?;
    seen.unique_mac.add(key("mac"), mac.to_string())?;
    let ndev = raw.ndev.unwrap_or(NDEV_DEFAULT);
    let plain = |b: u8| b.is_ascii_graphic() && b != b'/' && b != b'"' && b != b'\\';
    if !(1..=NDEV_NAME_MAX).contains(&ndev.len())
        || !ndev.bytes().all(plain)
        || ndev.starts_with('.')
    {
        let allowed = format!("a network device's name of 1..={NDEV_NAME_MAX} characters");
        return Err(value_error(file, key("ndev"), format!("{ndev:?}"), allowed));
    }
    let mtu = raw.mtu.unwrap_or(MTU_DEFAULT.into());
    let mtu = u16::try_from(mtu)
        .ok()
        .filter(|mtu| MTUS.contains(mtu))
        .ok_or_else(|| {
            let allowed = format!("{}..={}", MTUS.start(), MTUS.end());
            value_error(file, key("mtu"), mtu, allowed)
        })?;
    Ok(EthernetSpec {
        mac,
        ndev: ndev.to_owned(),
        mtu,
    })
}

/// The IP addresses of a port.
fn addresses(
    file: &Path,
    key: &dyn Fn(&str) -> String,
    raw: &RawPort<'_>,
    at: (usize, usize, usize),
    seen: &mut Seen<'_>,
) -> Result<Vec<IpAddr>, TopologyError> {
    let addresses = match raw.addresses {
        None => default_addresses(at),
        Some(texts) => texts
            .iter()
            .map(|text| checked_address(file, key("addresses"), text))
            .collect::<Result<_, _>>()?,
    };
    if addresses.len() > ADDRESSES_MAX {
        let allowed = format!("at most {ADDRESSES_MAX} addresses");
        return Err(value_error(
            file,
            key("addresses"),
            addresses.len(),
            allowed,
        ));
    }
    for address in &addresses {
        let address = address.to_string();
        seen.unique_address.add(key("addresses"), address)?;
    }
    Ok(addresses)
}

/// An IP address of a port. It must be unicast and not link-local (the MAC determines the
/// link-local address), and its form must not name another address.
fn checked_address(file: &Path, key: String, text: &str) -> Result<IpAddr, TopologyError> {
    let fits = |address: &IpAddr| match address {
        IpAddr::V4(a) => !a.is_unspecified() && !a.is_multicast() && !a.is_broadcast(),
        IpAddr::V6(a) => {
            !a.is_unspecified()
                && !a.is_multicast()
                && !a.is_unicast_link_local()
                && a.to_ipv4_mapped().is_none()
        }
    };
    text.parse().ok().filter(fits).ok_or_else(|| {
        let allowed = "IPv4 or IPv6 addresses of one port, not link-local: \"127.66.1.1\"";
        value_error(file, key, format!("{text:?}"), allowed)
    })
}

/// An IPv4 address that this machine routes to itself, and an IPv6 address.
fn default_addresses((node, function, port): (usize, usize, usize)) -> Vec<IpAddr> {
    let byte =
        |value: usize| u8::try_from(value).expect("at most 64 nodes, 64 functions and 2 ports");
    let (node, port) = (byte(node + 1), byte(2 * function + port + 1));
    let six = [0xfd00, 0xbf, 0, 0, 0, 0, node.into(), port.into()];
    vec![
        Ipv4Addr::new(127, 66, node, port).into(),
        Ipv6Addr::from(six).into(),
    ]
}

/// GUID of a second port: the function's GUID with another number in the middle.
fn second_guid(node_guid: u64) -> u64 {
    match node_guid ^ 1 << 32 {
        0 => u64::MAX,
        guid => guid,
    }
}

impl PortSpec {
    /// The port's IP addresses in the form of GIDs. On Ethernet they are its GIDs except the
    /// link-local one.
    #[must_use]
    pub fn address_gids(&self) -> Vec<Gid> {
        let addresses = self.addresses.iter();
        addresses.map(|address| gid_of(*address)).collect()
    }

    /// The keys of a topology file for the port at `index`.
    pub(super) fn to_toml(&self, index: usize) -> String {
        let mut text = String::new();
        let suffix = if index == 0 { "" } else { "_2" };
        let mut put = |key: &str, value: String| {
            text.push_str(&format!("{key}{suffix} = {value}\n"));
        };
        put("link", format!("\"{}\"", self.link));
        let addresses = self.addresses.iter();
        let addresses: Vec<_> = addresses.map(|one| format!("\"{one}\"")).collect();
        put("addresses", format!("[{}]", addresses.join(", ")));
        match &self.ethernet {
            None => {
                put("lid", self.lid.to_string());
                let pkeys = self.pkeys.iter().map(|pkey| format!("{pkey:#x}"));
                let pkeys = pkeys.collect::<Vec<_>>().join(", ");
                put("pkeys", format!("[{pkeys}]"));
            }
            Some(port) => {
                put("mac", format!("\"{}\"", port.mac));
                put("ndev", format!("\"{}\"", port.ndev));
                put("mtu", port.mtu.to_string());
            }
        }
        if index != 0 {
            put("port_guid", format!("\"{}\"", guid_text(self.guid)));
        }
        text
    }
}
