//! The topology file: what may be written in it, what is decided for the user, and the checks.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Deserialize;

use super::port::{self, RawPort};
use super::{
    FUNCTIONS_MAX, FunctionSpec, NAME_MAX, NODES_MAX, PCI_DEVICE_BLUEFIELD3, PCI_DOMAIN, Role,
    Topology, TopologyError, VHCA_ID_MAX, guid_text,
};
use crate::model::address::Link;

/// First bus of the emulated functions; node `n` is on bus `PCI_BUS_FIRST + n`.
const PCI_BUS_FIRST: usize = 3;
/// Functions on one PCI device (PCI Local Bus 3.0, section 3.2.2.3.4).
const PCI_FUNCTIONS_PER_DEVICE: usize = 8;
/// High part of the generated GUIDs: bit 57 marks an EUI-64 as locally administered.
const GUID_BASE: u64 = 0x02bf_0000_0000_0000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTopology {
    pub(super) node: Vec<RawNode>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawNode {
    name: Option<String>,
    sys_image_guid: Option<String>,
    function: Option<Vec<RawFunction>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawFunction {
    role: Role,
    name: Option<String>,
    vhca_id: Option<i64>,
    link: Option<Link>,
    lid: Option<i64>,
    mac: Option<String>,
    addresses: Option<Vec<String>>,
    ndev: Option<String>,
    mtu: Option<i64>,
    pub(super) ports: Option<i64>,
    link_2: Option<Link>,
    lid_2: Option<i64>,
    mac_2: Option<String>,
    addresses_2: Option<Vec<String>>,
    ndev_2: Option<String>,
    mtu_2: Option<i64>,
    pub(super) port_guid_2: Option<String>,
    node_guid: Option<String>,
    pci_device: Option<i64>,
    pci_bdf: Option<String>,
}

impl RawNode {
    /// A host and a DPU function with so many ports of a kind each.
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
    fn of(role: Role) -> Self {
        RawFunction {
            role,
            name: None,
            vhca_id: None,
            link: None,
            lid: None,
            mac: None,
            addresses: None,
            ndev: None,
            mtu: None,
            ports: None,
            link_2: None,
            lid_2: None,
            mac_2: None,
            addresses_2: None,
            ndev_2: None,
            mtu_2: None,
            port_guid_2: None,
            node_guid: None,
            pci_device: None,
            pci_bdf: None,
        }
    }

    /// What is said of the first or the second port.
    pub(super) fn port(&self, index: usize) -> RawPort<'_> {
        match index {
            0 => RawPort {
                link: self.link,
                lid: self.lid,
                mac: self.mac.as_deref(),
                addresses: self.addresses.as_deref(),
                ndev: self.ndev.as_deref(),
                mtu: self.mtu,
            },
            _ => RawPort {
                link: self.link_2,
                lid: self.lid_2,
                mac: self.mac_2.as_deref(),
                addresses: self.addresses_2.as_deref(),
                ndev: self.ndev_2.as_deref(),
                mtu: self.mtu_2,
            },
        }
    }
}

/// The values seen so far for one key that must be unique, with the place of each.
pub(super) struct Unique<'a> {
    file: &'a Path,
    seen: Vec<(String, String)>,
}

impl<'a> Unique<'a> {
    pub(super) fn new(file: &'a Path) -> Self {
        Unique {
            file,
            seen: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, key: String, value: String) -> Result<(), TopologyError> {
        if let Some((_, first)) = self.seen.iter().find(|(seen, _)| *seen == value) {
            return Err(TopologyError::Duplicate {
                file: self.file.to_owned(),
                key,
                value,
                first: first.clone(),
            });
        }
        self.seen.push((value, key));
        Ok(())
    }
}

/// Decides every value that the file leaves open and checks the whole.
pub(super) fn build(file: &Path, raw: RawTopology) -> Result<Topology, TopologyError> {
    if !(1..=NODES_MAX).contains(&raw.node.len()) {
        let allowed = format!("1..={NODES_MAX} tables");
        return Err(value_error(file, "node", raw.node.len(), allowed));
    }
    let nodes: Vec<(RawNode, Vec<RawFunction>)> = raw
        .node
        .into_iter()
        .map(|mut node| {
            let functions = node.function.take();
            let default = || vec![RawFunction::of(Role::Host), RawFunction::of(Role::Dpu)];
            (node, functions.unwrap_or_else(default))
        })
        .collect();
    let total: usize = nodes.iter().map(|(_, functions)| functions.len()).sum();
    if total > FUNCTIONS_MAX {
        let allowed = format!("at most {FUNCTIONS_MAX} functions over all nodes");
        return Err(value_error(file, "node[*].function", total, allowed));
    }

    let all = || nodes.iter().flat_map(|(_, functions)| functions);
    let mut vhca_ids = Numbers::new(all().filter_map(|f| f.vhca_id));
    let mut seen = port::Seen {
        lids: Numbers::new(all().flat_map(|f| [f.lid, f.lid_2]).flatten()),
        unique_lid: Unique::new(file),
        unique_guid: Unique::new(file),
        unique_mac: Unique::new(file),
        unique_address: Unique::new(file),
    };
    let mut names = Unique::new(file);
    let mut node_names = Unique::new(file);
    let mut unique_vhca = Unique::new(file);
    let mut unique_image = Unique::new(file);
    let mut unique_bdf = Unique::new(file);

    let mut functions = Vec::with_capacity(total);
    for (n, (node, raw_functions)) in nodes.iter().enumerate() {
        let node_key = |key: &str| format!("node[{n}].{key}");
        let node_name = match &node.name {
            Some(name) => checked_name(file, node_key("name"), name)?,
            None => format!("node{n}"),
        };
        node_names.add(node_key("name"), node_name.clone())?;
        if raw_functions.is_empty() {
            return Err(value_error(
                file,
                node_key("function"),
                "empty",
                "one table or more",
            ));
        }
        let mut sys_image_guid = node
            .sys_image_guid
            .as_deref()
            .map(|text| checked_guid(file, node_key("sys_image_guid"), text))
            .transpose()?;

        for (f, raw) in raw_functions.iter().enumerate() {
            let key = |key: &str| format!("node[{n}].function[{f}].{key}");
            let short = match &raw.name {
                Some(name) => checked_name(file, key("name"), name)?,
                None => raw.role.to_string(),
            };
            let name = format!("{node_name}.{short}");
            names.add(key("name"), name.clone())?;

            let vhca_id = checked_number(
                file,
                key("vhca_id"),
                vhca_ids.pick(raw.vhca_id),
                VHCA_ID_MAX,
            )?;
            unique_vhca.add(key("vhca_id"), vhca_id.to_string())?;
            let node_guid = match &raw.node_guid {
                Some(text) => checked_guid(file, key("node_guid"), text)?,
                None => default_guid(n, f),
            };
            seen.unique_guid
                .add(key("node_guid"), guid_text(node_guid))?;
            let ports = port::ports(file, (n, f), raw, node_guid, &mut seen)?;
            let image = *sys_image_guid.get_or_insert(node_guid);
            if f == 0 {
                unique_image.add(node_key("sys_image_guid"), guid_text(image))?;
            }

            let pci_bdf = match &raw.pci_bdf {
                Some(text) => checked_bdf(file, key("pci_bdf"), text)?,
                None => default_bdf(n, f),
            };
            unique_bdf.add(key("pci_bdf"), pci_bdf.clone())?;
            let pci_device = checked_number(
                file,
                key("pci_device"),
                raw.pci_device.unwrap_or(i64::from(PCI_DEVICE_BLUEFIELD3)),
                u16::MAX,
            )?;

            functions.push(FunctionSpec {
                name,
                node: node_name.clone(),
                role: raw.role,
                vhca_id,
                sys_image_guid: image,
                node_guid,
                ports,
                pci_device,
                pci_bdf,
            });
        }
    }
    Ok(Topology { functions })
}

/// Hands out the smallest numbers from 1 that the file does not use itself.
pub(super) struct Numbers {
    taken: BTreeSet<i64>,
    next: i64,
}

impl Numbers {
    fn new(taken: impl Iterator<Item = i64>) -> Self {
        Numbers {
            taken: taken.collect(),
            next: 1,
        }
    }

    pub(super) fn pick(&mut self, given: Option<i64>) -> i64 {
        given.unwrap_or_else(|| {
            while self.taken.contains(&self.next) {
                self.next += 1;
            }
            self.next += 1;
            self.next - 1
        })
    }
}

pub(super) fn value_error(
    file: &Path,
    key: impl Into<String>,
    value: impl ToString,
    allowed: impl Into<String>,
) -> TopologyError {
    TopologyError::Value {
        file: file.to_owned(),
        key: key.into(),
        value: value.to_string(),
        allowed: allowed.into(),
    }
}

fn checked_name(file: &Path, key: String, name: &str) -> Result<String, TopologyError> {
    let fits = (1..=NAME_MAX).contains(&name.len());
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    if fits && name.bytes().all(plain) {
        return Ok(name.to_owned());
    }
    let allowed = format!("1..={NAME_MAX} characters of a-z A-Z 0-9 _ -");
    Err(value_error(file, key, format!("{name:?}"), allowed))
}

pub(super) fn checked_number(
    file: &Path,
    key: String,
    value: i64,
    max: u16,
) -> Result<u16, TopologyError> {
    u16::try_from(value)
        .ok()
        .filter(|number| (1..=max).contains(number))
        .ok_or_else(|| value_error(file, key, value, format!("1..={max}")))
}

pub(super) fn checked_guid(file: &Path, key: String, text: &str) -> Result<u64, TopologyError> {
    guid_parse(text).filter(|guid| *guid != 0).ok_or_else(|| {
        let allowed = "four groups of four hexadecimal digits, \"02bf:0000:0000:0101\", not zero";
        value_error(file, key, format!("{text:?}"), allowed)
    })
}

fn checked_bdf(file: &Path, key: String, text: &str) -> Result<String, TopologyError> {
    let pattern = b"hhhh:hh:hh.f";
    let fits = text.len() == pattern.len()
        && text.bytes().zip(pattern).all(|(byte, want)| match want {
            b'h' => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
            b'f' => matches!(byte, b'0'..=b'7'),
            separator => byte == *separator,
        });
    // A PCI bus has 32 devices; the slice is ASCII because it matched the pattern.
    if fits && u8::from_str_radix(&text[8..10], 16).is_ok_and(|device| device < 32) {
        return Ok(text.to_owned());
    }
    let allowed = "dddd:bb:dd.f in lower-case hexadecimal, \"bf00:03:00.0\"";
    Err(value_error(file, key, format!("{text:?}"), allowed))
}

fn default_guid(node: usize, function: usize) -> u64 {
    // Positions are below FUNCTIONS_MAX, so neither part reaches the other's bits, and the last
    // byte is never zero (UCX trims trailing zero bytes of a system image GUID).
    GUID_BASE | (node as u64 + 1) << 8 | (function as u64 + 1)
}

fn default_bdf(node: usize, function: usize) -> String {
    format!(
        "{PCI_DOMAIN:04x}:{:02x}:{:02x}.{}",
        PCI_BUS_FIRST + node,
        function / PCI_FUNCTIONS_PER_DEVICE,
        function % PCI_FUNCTIONS_PER_DEVICE
    )
}

fn guid_parse(text: &str) -> Option<u64> {
    let mut guid = 0;
    let mut groups = 0;
    for group in text.split(':') {
        groups += 1;
        if groups > 4 || group.len() != 4 || !group.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        guid = guid << 16 | u64::from(u16::from_str_radix(group, 16).ok()?);
    }
    (groups == 4).then_some(guid)
}
