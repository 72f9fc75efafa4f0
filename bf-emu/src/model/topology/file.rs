//! The topology file: defaults for omitted values, and checks of the whole.

use std::path::Path;

use super::checks::{
    Numbers, Unique, checked_bdf, checked_guid, checked_name, checked_number, value_error,
};
use super::port;
use super::raw::{RawFunction, RawNode, RawTopology};
use super::{
    FILE_BYTES_MAX, FUNCTIONS_MAX, FunctionSpec, NODES_MAX, PCI_DEVICE_BLUEFIELD3, PCI_DOMAIN,
    Role, Topology, TopologyError, VHCA_ID_MAX, guid_text,
};
use crate::model::address::Link;

/// First bus of the emulated functions; node `n` is on bus `PCI_BUS_FIRST + n`.
const PCI_BUS_FIRST: usize = 3;
/// Functions on one PCI device (PCI Local Bus 3.0, section 3.2.2.3.4).
const PCI_FUNCTIONS_PER_DEVICE: usize = 8;
/// High part of the generated GUIDs: bit 57 marks an EUI-64 as locally administered.
const GUID_BASE: u64 = 0x02bf_0000_0000_0000;

impl Topology {
    /// `nodes` nodes with one host and one DPU function each.
    ///
    /// # Errors
    /// [`TopologyError::Value`] unless `nodes` is in 1..=32 (two functions each, at most
    /// [`FUNCTIONS_MAX`] functions).
    pub fn with_nodes(nodes: usize) -> Result<Self, TopologyError> {
        Self::with_nodes_and_ports(nodes, 1, Link::default())
    }

    /// Like [`Topology::with_nodes`], with `ports` ports of each function, all with the link
    /// `link`.
    ///
    /// # Errors
    /// Same as there, and unless `ports` is in 1..=[`PORTS_MAX`](super::PORTS_MAX).
    pub fn with_nodes_and_ports(
        nodes: usize,
        ports: usize,
        link: Link,
    ) -> Result<Self, TopologyError> {
        let file = Path::new("--nodes");
        let most = FUNCTIONS_MAX / 2;
        if !(1..=most).contains(&nodes) {
            return Err(value_error(file, "nodes", nodes, format!("1..={most}")));
        }
        let raw = RawTopology {
            node: (0..nodes)
                .map(|_| RawNode::with_ports(ports, link))
                .collect(),
        };
        build(file, raw)
    }

    /// Loads and checks a topology file.
    ///
    /// # Errors
    /// A [`TopologyError`] that names the file and the key.
    pub fn load(file: &Path) -> Result<Self, TopologyError> {
        let read = |source| TopologyError::Read {
            file: file.to_owned(),
            source,
        };
        let bytes = std::fs::metadata(file).map_err(read)?.len();
        if bytes > FILE_BYTES_MAX {
            return Err(TopologyError::TooLong {
                file: file.to_owned(),
                bytes,
            });
        }
        let text = std::fs::read_to_string(file).map_err(read)?;
        Self::parse(file, &text)
    }

    /// Checks the text of a topology file. Errors name it `file`.
    ///
    /// # Errors
    /// A [`TopologyError`] that names `file` and the key.
    pub fn parse(file: &Path, text: &str) -> Result<Self, TopologyError> {
        let raw = toml::from_str(text).map_err(|source| TopologyError::Syntax {
            file: file.to_owned(),
            source: Box::new(source),
        })?;
        build(file, raw)
    }
}

/// Sets every omitted value and checks the whole file.
fn build(file: &Path, raw: RawTopology) -> Result<Topology, TopologyError> {
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

    let mut values = Values::new(file, &nodes);
    let mut functions = Vec::with_capacity(total);
    for (n, (node, raw_functions)) in nodes.iter().enumerate() {
        functions.extend(values.node(n, node, raw_functions)?);
    }
    Ok(Topology { functions })
}

/// The unique values of a fabric, and its free numbers.
struct Values<'a> {
    file: &'a Path,
    vhca_ids: Numbers,
    names: Unique<'a>,
    node_names: Unique<'a>,
    vhca: Unique<'a>,
    images: Unique<'a>,
    bdfs: Unique<'a>,
    ports: port::Seen<'a>,
}

impl<'a> Values<'a> {
    fn new(file: &'a Path, nodes: &[(RawNode, Vec<RawFunction>)]) -> Self {
        let all = || nodes.iter().flat_map(|(_, functions)| functions);
        let unique = || Unique::new(file);
        Self {
            file,
            vhca_ids: Numbers::new(all().filter_map(|f| f.vhca_id)),
            names: unique(),
            node_names: unique(),
            vhca: unique(),
            images: unique(),
            bdfs: unique(),
            ports: port::Seen {
                lids: Numbers::new(all().flat_map(|f| [f.lid, f.lid_2]).flatten()),
                unique_lid: unique(),
                unique_guid: unique(),
                unique_mac: unique(),
                unique_address: unique(),
            },
        }
    }

    /// The functions of node `n`.
    fn node(
        &mut self,
        n: usize,
        node: &RawNode,
        functions: &[RawFunction],
    ) -> Result<Vec<FunctionSpec>, TopologyError> {
        let key = |key: &str| format!("node[{n}].{key}");
        let name = match &node.name {
            Some(name) => checked_name(self.file, key("name"), name)?,
            None => format!("node{n}"),
        };
        self.node_names.add(key("name"), name.clone())?;
        if functions.is_empty() {
            let allowed = "one table or more";
            return Err(value_error(self.file, key("function"), "empty", allowed));
        }
        let image = node.sys_image_guid.as_deref();
        let mut image = image
            .map(|text| checked_guid(self.file, key("sys_image_guid"), text))
            .transpose()?;
        let mut specs = Vec::with_capacity(functions.len());
        let remote = node.remote.unwrap_or(false);
        for (f, raw) in functions.iter().enumerate() {
            let spec = FunctionSpec {
                remote,
                ..self.function((n, f), (&name, image), raw)?
            };
            if remote && spec.ports.iter().any(|port| port.ethernet.is_none()) {
                let allowed = "true only if all ports have link = \"ethernet\"";
                return Err(value_error(self.file, key("remote"), remote, allowed));
            }
            // All functions of a node have the system image GUID of its first function.
            if f == 0 {
                let guid = guid_text(spec.sys_image_guid);
                self.images.add(key("sys_image_guid"), guid)?;
            }
            image = Some(spec.sys_image_guid);
            specs.push(spec);
        }
        Ok(specs)
    }

    /// Function `f` of node `n`.
    fn function(
        &mut self,
        (n, f): (usize, usize),
        (node, image): (&str, Option<u64>),
        raw: &RawFunction,
    ) -> Result<FunctionSpec, TopologyError> {
        let file = self.file;
        let key = |key: &str| format!("node[{n}].function[{f}].{key}");
        let short = match &raw.name {
            Some(name) => checked_name(file, key("name"), name)?,
            None => raw.role.to_string(),
        };
        let name = format!("{node}.{short}");
        self.names.add(key("name"), name.clone())?;
        let vhca_id = self.vhca_ids.pick(raw.vhca_id);
        let vhca_id = checked_number(file, key("vhca_id"), vhca_id, VHCA_ID_MAX)?;
        self.vhca.add(key("vhca_id"), vhca_id.to_string())?;
        let node_guid = match &raw.node_guid {
            Some(text) => checked_guid(file, key("node_guid"), text)?,
            None => default_guid(n, f),
        };
        let guids = &mut self.ports.unique_guid;
        guids.add(key("node_guid"), guid_text(node_guid))?;
        let ports = port::ports(file, (n, f), raw, node_guid, &mut self.ports)?;
        let pci_bdf = match &raw.pci_bdf {
            Some(text) => checked_bdf(file, key("pci_bdf"), text)?,
            None => default_bdf(n, f),
        };
        self.bdfs.add(key("pci_bdf"), pci_bdf.clone())?;
        let pci_device = raw.pci_device.unwrap_or(PCI_DEVICE_BLUEFIELD3.into());
        let pci_device = checked_number(file, key("pci_device"), pci_device, u16::MAX)?;
        Ok(FunctionSpec {
            name,
            node: node.to_owned(),
            remote: false,
            role: raw.role,
            vhca_id,
            sys_image_guid: image.unwrap_or(node_guid),
            node_guid,
            ports,
            pci_device,
            pci_bdf,
        })
    }
}

fn default_guid(node: usize, function: usize) -> u64 {
    // Positions are below FUNCTIONS_MAX, so the two parts do not overlap. The last byte is never
    // zero (UCX removes trailing zero bytes of a system image GUID).
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
