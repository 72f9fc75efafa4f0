//! The fabric in the user's description: nodes, and mlx5 functions on them. Only parses and checks.
//!
//! A topology file lists nodes, and functions under each node. Every other value may be omitted.
//! Its default is then unique in the fabric:
//!
//! ```toml
//! [[node]]
//! name = "node0"                          # default: node<position>
//! sys_image_guid = "02bf:0000:0000:0101"  # default: the first function's node_guid
//! remote = false                          # true: on another machine, see `bf-emu join`; Ethernet only
//!
//! [[node.function]]                       # default: one "host" and one "dpu" function
//! role = "host"                           # "host" or "dpu"
//! name = "host"                           # default: the role
//! vhca_id = 1
//! ports = 1                               # 1 or 2
//! link = "infiniband"                     # or "infiniband-grh", or "ethernet"
//! lid = 1                                 # not on Ethernet
//! addresses = ["127.66.1.1", "fd00:bf::1:1"]  # IP addresses; on InfiniBand those of IPoIB
//! pkeys = [0xffff]                        # partition keys; not on Ethernet
//! mac = "02:bf:00:00:01:01"               # these three on Ethernet only
//! ndev = "lo"                             # network device of this machine
//! mtu = 1500                              # of the network device
//! node_guid = "02bf:0000:0000:0101"
//! pci_device = 0xa2dc
//! pci_bdf = "bf00:03:00.0"
//! ```
//!
//! A function with `ports = 2` may also have `link_2`, `lid_2`, `mac_2`, `addresses_2`, `pkeys_2`,
//! `ndev_2`, `mtu_2` and `port_guid_2`, for its second port. The first port's GUID is the function's
//! `node_guid`.

mod checks;
mod file;
mod port;
mod raw;

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::model::address::{Link, Mac};

/// Largest number of functions in one fabric. The device file holds one block of tables per
/// function and has a fixed size.
pub const FUNCTIONS_MAX: usize = 64;
/// Largest number of nodes in one fabric. Each has at least one function.
pub const NODES_MAX: usize = FUNCTIONS_MAX;
/// Largest number of ports of a function.
pub const PORTS_MAX: usize = 2;
/// Largest number of functions visible to one process. Servers have fewer HCAs, and the name of
/// every view fits into a file name.
pub const VIEW_FUNCTIONS_MAX: usize = 16;
/// Longest name of a node or a function, in bytes. Sixteen pairs of typical names with their
/// separators fit into the 255 bytes of a file name. [`VIEW_NAME_MAX`] limits longer ones.
pub const NAME_MAX: usize = 24;
/// Longest text of a view, in bytes. It names a directory (`NAME_MAX` of Linux is 255). A temporary
/// directory has the same name with a suffix.
pub const VIEW_NAME_MAX: usize = 220;
/// Longest topology file, in bytes. 64 functions with every key need less than 16 KiB.
pub const FILE_BYTES_MAX: u64 = 256 * 1024;
/// Largest vHCA id. 0xffff means "no vHCA" in several PRM commands.
pub const VHCA_ID_MAX: u16 = 0xfffe;
/// Largest unicast LID (Linux `ib_verbs.h`, `IB_MULTICAST_LID_BASE` is the next one).
pub const LID_MAX: u16 = 0xbfff;
/// PCI device id of a BlueField-3 function (vendor 0x15b3).
pub const PCI_DEVICE_BLUEFIELD3: u16 = 0xa2dc;
/// PCI domain of the emulated functions. Real devices do not use it, so an emulated path never
/// hides a real device.
pub const PCI_DOMAIN: u16 = 0xbf00;
/// Longest name of a network device, in bytes (`IFNAMSIZ` less its NUL, linux/if.h).
pub const NDEV_NAME_MAX: usize = 15;
/// Default network device of an Ethernet port. It exists on every machine, and its routes lead to
/// the default addresses, as UCX requires.
pub const NDEV_DEFAULT: &str = "lo";
/// Default MTU of an Ethernet port: the default of network devices.
pub const MTU_DEFAULT: u16 = 1500;

/// The side of a function: the server, or the BlueField's Arm cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A function of the host.
    Host,
    /// A function of the DPU's Arm system.
    Dpu,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Host => "host",
            Role::Dpu => "dpu",
        })
    }
}

/// One mlx5 function (vHCA) of the fabric, with all values set and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionSpec {
    /// `<node>.<function>`, unique: "node0.host".
    pub name: String,
    /// Name of its node.
    pub node: String,
    /// Its node is on another machine.
    pub remote: bool,
    /// Host or DPU side.
    pub role: Role,
    /// The function's gvmi: unique in the fabric, 1..=[`VHCA_ID_MAX`].
    pub vhca_id: u16,
    /// Equal for all functions of a node. Its most significant byte is the first on the wire.
    pub sys_image_guid: u64,
    /// Unique in the fabric.
    pub node_guid: u64,
    /// Its ports, port 1 first: at least one, at most [`PORTS_MAX`].
    pub ports: Vec<PortSpec>,
    /// PCI device id (vendor is 0x15b3).
    pub pci_device: u16,
    /// PCI address, `dddd:bb:dd.f` in lower-case hexadecimal, unique in the fabric.
    pub pci_bdf: String,
}

/// A port of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSpec {
    /// Kind of its link.
    pub link: Link,
    /// Unique in the fabric, 1..=[`LID_MAX`]; 0 on Ethernet.
    pub lid: u16,
    /// Unique in the fabric.
    pub guid: u64,
    /// IP addresses: on Ethernet those of the port's GIDs, on InfiniBand those of its IPoIB device.
    /// Unique in the fabric, at most [`ADDRESSES_MAX`](super::address::ADDRESSES_MAX).
    pub addresses: Vec<IpAddr>,
    /// The first entries of its table of partition keys, at most
    /// [`PKEYS_MAX`](super::address::PKEYS_MAX).
    pub pkeys: Vec<u16>,
    /// Attributes of an Ethernet port.
    pub ethernet: Option<EthernetSpec>,
}

/// The additional attributes of an Ethernet port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EthernetSpec {
    /// Unique in the fabric.
    pub mac: Mac,
    /// The network device of this machine that the port reports.
    pub ndev: String,
    /// MTU of the network device, in bytes.
    pub mtu: u16,
}

/// A checked fabric: names, vHCA ids, LIDs, GUIDs, PCI, MAC and IP addresses are unique in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    functions: Vec<FunctionSpec>,
}

/// The functions visible to one process, in the order of its mlx5_0, mlx5_1, ...
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The function behind mlx5_`i`, uverbs`i` is `functions[i]`.
    pub functions: Vec<FunctionSpec>,
    /// The directory that replaces this process's `/sys`.
    pub sys_root: PathBuf,
}

/// Reason why a topology, or a view of one, was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// The file is not readable.
    #[error("reading topology {}: {source}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is too long.
    #[error(
        "topology {} has {bytes} bytes; at most {FILE_BYTES_MAX} are read", file.display()
    )]
    TooLong {
        /// The file.
        file: PathBuf,
        /// Its length.
        bytes: u64,
    },
    /// The file is not TOML, has an unknown key, or has a value of the wrong type.
    #[error("topology {}: {source}", file.display())]
    Syntax {
        /// The file.
        file: PathBuf,
        /// The parser's message with line and column.
        source: Box<toml::de::Error>,
    },
    /// A value is outside of its range.
    #[error("topology {}: {key} is {value}; allowed: {allowed}", file.display())]
    Value {
        /// The file.
        file: PathBuf,
        /// The key, as `node[1].function[0].lid`.
        key: String,
        /// The given value.
        value: String,
        /// The permitted values.
        allowed: String,
    },
    /// A value that must be unique occurs twice.
    #[error("topology {}: {key} is {value}, which {first} has already", file.display())]
    Duplicate {
        /// The file.
        file: PathBuf,
        /// The second key.
        key: String,
        /// The value.
        value: String,
        /// The first key.
        first: String,
    },
    /// A view names a function that does not exist.
    #[error("no function {name:?} in the topology; it has {known}")]
    UnknownFunction {
        /// The given name.
        name: String,
        /// The existing names.
        known: String,
    },
    /// A view is empty, too long, or names a function twice.
    #[error("view {view:?} {problem}")]
    BadView {
        /// The given list.
        view: String,
        /// The error.
        problem: String,
    },
}

impl Topology {
    /// All functions, node by node.
    #[must_use]
    pub fn functions(&self) -> &[FunctionSpec] {
        &self.functions
    }

    /// The function with this name ("node0.host") and its index in [`Self::functions`].
    #[must_use]
    pub fn function(&self, name: &str) -> Option<(usize, &FunctionSpec)> {
        self.functions
            .iter()
            .enumerate()
            .find(|(_, function)| function.name == name)
    }

    /// The functions of a comma list such as "node0.host,node0.dpu", in its order.
    ///
    /// # Errors
    /// [`TopologyError::UnknownFunction`], or [`TopologyError::BadView`] for an empty list, a
    /// repeated name, a function of another machine, more than [`VIEW_FUNCTIONS_MAX`] names or [`VIEW_NAME_MAX`] bytes.
    pub fn select(&self, as_list: &str) -> Result<Vec<FunctionSpec>, TopologyError> {
        let bad = |problem: String| TopologyError::BadView {
            view: as_list.to_owned(),
            problem,
        };
        if as_list.is_empty() {
            return Err(bad(format!(
                "names no function; there are {}",
                self.names()
            )));
        }
        if as_list.len() > VIEW_NAME_MAX {
            return Err(bad(format!(
                "has {} bytes, at most {VIEW_NAME_MAX} are allowed",
                as_list.len()
            )));
        }
        let mut chosen: Vec<FunctionSpec> = Vec::new();
        for name in as_list.split(',') {
            let (_, function) =
                self.function(name)
                    .ok_or_else(|| TopologyError::UnknownFunction {
                        name: name.to_owned(),
                        known: self.names(),
                    })?;
            if chosen.iter().any(|earlier| earlier.name == name) {
                return Err(bad(format!("names {name:?} twice")));
            }
            if function.remote {
                return Err(bad(format!("names {name:?}, which is on another machine")));
            }
            chosen.push(function.clone());
        }
        if chosen.len() > VIEW_FUNCTIONS_MAX {
            return Err(bad(format!(
                "names {} functions, at most {VIEW_FUNCTIONS_MAX} are allowed",
                chosen.len()
            )));
        }
        Ok(chosen)
    }

    /// The topology as a file with all values. Parsing it gives the same topology.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        let mut node = None;
        for function in &self.functions {
            if node != Some(&function.node) {
                let remote = if function.remote {
                    "remote = true\n"
                } else {
                    ""
                };
                text.push_str(&format!(
                    "[[node]]\nname = \"{}\"\nsys_image_guid = \"{}\"\n{remote}\n",
                    function.node,
                    guid_text(function.sys_image_guid)
                ));
                node = Some(&function.node);
            }
            text.push_str(&format!(
                "[[node.function]]\nrole = \"{}\"\nname = \"{}\"\nvhca_id = {}\n{}\
                 node_guid = \"{}\"\npci_device = {:#06x}\npci_bdf = \"{}\"\n\n",
                function.role,
                function.short_name(),
                function.vhca_id,
                function.ports_toml(),
                guid_text(function.node_guid),
                function.pci_device,
                function.pci_bdf
            ));
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
        text
    }

    fn names(&self) -> String {
        let names: Vec<&str> = self.functions.iter().map(|f| f.name.as_str()).collect();
        names.join(", ")
    }
}

impl FunctionSpec {
    /// The keys of a topology file for its ports.
    fn ports_toml(&self) -> String {
        let ports = self.ports.iter().enumerate();
        let ports: String = ports.map(|(index, port)| port.to_toml(index)).collect();
        format!("ports = {}\n{ports}", self.ports.len())
    }

    /// The name without its node: "host".
    #[must_use]
    pub fn short_name(&self) -> &str {
        // Neither part contains a dot: `checked_name` refuses it.
        self.name
            .rsplit_once('.')
            .map_or(self.name.as_str(), |(_, short)| short)
    }
}

/// A GUID in the form of sysfs: four groups of four hexadecimal digits.
#[must_use]
pub fn guid_text(guid: u64) -> String {
    format!(
        "{:04x}:{:04x}:{:04x}:{:04x}",
        guid >> 48,
        (guid >> 32) & 0xffff,
        (guid >> 16) & 0xffff,
        guid & 0xffff
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const FILE: &str = "t.toml";

    fn parse(text: &str) -> Result<Topology, TopologyError> {
        Topology::parse(Path::new(FILE), text)
    }

    /// Checks that `text` is refused with a message that contains all of `parts`.
    fn check_refused(text: &str, parts: &[&str]) {
        let message = match parse(text) {
            Ok(topology) => panic!("{text:?} was accepted as {topology:?}"),
            Err(error) => error.to_string(),
        };
        for part in parts {
            assert!(message.contains(part), "{message:?} does not say {part:?}");
        }
    }

    #[test]
    fn default_fabric() {
        let topology = Topology::with_nodes(2).unwrap();
        let names: Vec<&str> = topology
            .functions()
            .iter()
            .map(|f| f.name.as_str())
            .collect();
        assert_eq!(
            names,
            ["node0.host", "node0.dpu", "node1.host", "node1.dpu"]
        );
        let [host, dpu, other, _] = topology.functions() else {
            panic!("{topology:?}");
        };
        assert_eq!(host.sys_image_guid, dpu.sys_image_guid);
        assert_ne!(host.sys_image_guid, other.sys_image_guid);
        assert_ne!(host.node_guid, dpu.node_guid);
        assert_eq!((host.vhca_id, host.ports[0].lid), (1, 1));
        assert_eq!((dpu.vhca_id, dpu.ports[0].lid), (2, 2));
        assert_eq!(host.pci_bdf, "bf00:03:00.0");
        assert_eq!(dpu.pci_bdf, "bf00:03:00.1");
        assert_eq!(other.pci_bdf, "bf00:04:00.0");
        assert_eq!(topology.function("node1.host").unwrap().0, 2);
        assert_eq!(topology.function("node1"), None);
    }

    #[test]
    fn number_of_nodes_is_limited() {
        for nodes in [0, 33, usize::MAX] {
            let message = Topology::with_nodes(nodes).unwrap_err().to_string();
            assert!(message.contains("1..=32"), "{message}");
        }
        assert_eq!(
            Topology::with_nodes(32).unwrap().functions().len(),
            FUNCTIONS_MAX
        );
    }

    #[test]
    fn explicit_values_are_kept_and_the_rest_filled_around_them() {
        let topology = parse(
            "[[node]]\nname = \"a\"\n[[node.function]]\nrole = \"dpu\"\nvhca_id = 2\nlid = 1\n\
             [[node.function]]\nrole = \"host\"\nname = \"h-1\"\npci_device = 0xa2d6\n",
        )
        .unwrap();
        let [dpu, host] = topology.functions() else {
            panic!("{topology:?}");
        };
        assert_eq!((dpu.name.as_str(), dpu.vhca_id), ("a.dpu", 2));
        assert_eq!(lids(&topology), [1, 2]);
        assert_eq!((host.name.as_str(), host.vhca_id), ("a.h-1", 1));
        assert_eq!((host.pci_device, host.short_name()), (0xa2d6, "h-1"));
    }

    fn lids(topology: &Topology) -> Vec<u16> {
        let ports = topology.functions().iter().flat_map(|f| &f.ports);
        ports.map(|port| port.lid).collect()
    }

    #[test]
    fn a_second_port_has_its_own_lid_and_guid() {
        let topology = parse(
            "[[node]]\n[[node.function]]\nrole = \"host\"\nports = 2\nlid_2 = 1\n\
             [[node.function]]\nrole = \"dpu\"\n[[node.function]]\nrole = \"dpu\"\nname = \"d\"\n\
             ports = 2\nport_guid_2 = \"0000:0000:0000:0007\"\n",
        )
        .unwrap();
        assert_eq!(lids(&topology), [2, 1, 3, 4, 5]);
        let [host, _, dpu] = topology.functions() else {
            panic!("{topology:?}");
        };
        assert_eq!(host.ports[0].guid, host.node_guid);
        assert_eq!(host.ports[1].guid, 0x02bf_0001_0000_0101);
        assert_eq!(dpu.ports[1].guid, 7);
        assert_eq!(
            lids(&Topology::with_nodes_and_ports(1, 2, Link::Infiniband).unwrap()),
            [1, 2, 3, 4]
        );
        let message = Topology::with_nodes_and_ports(1, 3, Link::Infiniband).unwrap_err();
        assert!(message.to_string().contains("1..=2"), "{message}");
    }

    #[test]
    fn refusals_name_file_key_and_range() {
        let one = |line: &str| format!("[[node]]\n[[node.function]]\nrole = \"host\"\n{line}\n");
        let two = |line: &str| format!("{0}[[node.function]]\nrole = \"dpu\"\n{line}\n", one(line));
        for (text, parts) in [
            (String::new(), &[FILE, "node"][..]),
            ("node = []".into(), &[FILE, "node is 0", "1..=64"]),
            (
                "[[node]]\nfunction = []".into(),
                &["node[0].function", "one table or more"],
            ),
            ("[[node]]\nnmae = \"x\"".into(), &[FILE, "nmae"]),
            (
                "[[node]]\n[[node.function]]\nrole = \"nic\"".into(),
                &[FILE, "host", "dpu"],
            ),
            ("[[node]]\nname = \"a.b\"".into(), &["node[0].name", "a-z"]),
            (
                "[[node]]\nname = \"a\"\n[[node]]\nname = \"a\"".into(),
                &["node[1].name", "node[0].name"],
            ),
            (
                "[[node]]\nsys_image_guid = \"1\"".into(),
                &["node[0].sys_image_guid", "hexadecimal"],
            ),
            (
                one("vhca_id = 0"),
                &["node[0].function[0].vhca_id is 0", "1..=65534"],
            ),
            (
                one("lid = 49152"),
                &["function[0].lid is 49152", "1..=49151"],
            ),
            (one("lid = -1"), &["lid is -1"]),
            (one("ports = 0"), &["function[0].ports is 0", "1..=2"]),
            (one("lid_2 = 4"), &["ports is 1", "2, as there is"]),
            (
                one("ports = 2\nlid = 4\nlid_2 = 4"),
                &["function[0].lid_2 is 4", "function[0].lid has"],
            ),
            (
                one("ports = 2\nport_guid_2 = \"02bf:0000:0000:0101\""),
                &["port_guid_2", "node_guid has"],
            ),
            (
                one("node_guid = \"0000:0000:0000:0000\""),
                &["node_guid", "not zero"],
            ),
            (
                one("pci_bdf = \"0000:03:20.0\""),
                &["pci_bdf", "bf00:03:00.0"],
            ),
            (one("pci_bdf = \"0000:03:00.8\""), &["pci_bdf"]),
            (one("pci_bdf = \"é000:03:00\""), &["pci_bdf"]),
            (
                two("vhca_id = 7"),
                &[
                    "function[1].vhca_id is 7",
                    "function[0].vhca_id has already",
                ],
            ),
            (two("lid = 7"), &["function[1].lid is 7", "already"]),
            (
                two("name = \"x\""),
                &["function[1].name is node0.x", "already"],
            ),
            (
                two("pci_bdf = \"0000:03:00.0\""),
                &["function[1].pci_bdf", "already"],
            ),
            (
                two("node_guid = \"0000:0000:0000:0001\""),
                &["function[1].node_guid", "already"],
            ),
            ("[[node]]\n".repeat(33), &["66", "at most 64 functions"]),
        ] {
            check_refused(&text, parts);
        }
    }

    #[test]
    fn views() {
        let topology = Topology::with_nodes(2).unwrap();
        let names = |list: &str| -> Result<Vec<String>, String> {
            let chosen = topology.select(list).map_err(|error| error.to_string())?;
            Ok(chosen.into_iter().map(|function| function.name).collect())
        };
        assert_eq!(names("node1.dpu").unwrap(), ["node1.dpu"]);
        assert_eq!(
            names("node1.dpu,node0.host").unwrap(),
            ["node1.dpu", "node0.host"]
        );
        let long = vec!["node0.host"; 30].join(",");
        for (list, part) in [
            ("", "names no function"),
            ("node2.host", "it has node0.host, node0.dpu, node1.host"),
            ("node0.host,", "no function \"\""),
            ("node0.host,node0.host", "twice"),
            (long.as_str(), "at most 220"),
        ] {
            let message = names(list).unwrap_err();
            assert!(message.contains(part), "{message:?} does not say {part:?}");
        }
    }

    #[test]
    fn a_remote_node_has_ethernet_ports_and_is_in_no_view() {
        let function = "[[node.function]]\nrole = \"host\"\nlink = \"ethernet\"\n";
        let text = format!("[[node]]\n{function}[[node]]\nremote = true\n{function}");
        let topology = parse(&text).unwrap();
        let remote: Vec<bool> = topology.functions().iter().map(|f| f.remote).collect();
        assert_eq!(remote, [false, true]);
        assert_eq!(parse(&topology.to_toml()).unwrap(), topology);
        assert!(topology.select("node0.host").is_ok());
        let message = topology.select("node0.host,node1.host").unwrap_err();
        assert!(message.to_string().contains("another machine"), "{message}");
        check_refused("[[node]]\nremote = true", &["node[0].remote", "ethernet"]);
    }

    proptest! {
        /// A topology that is written and parsed again is equal, and its unique values are unique.
        #[test]
        fn round_trip(shape in proptest::collection::vec(1_usize..6, 1..10), ports in 1_usize..3) {
            let mut text = String::new();
            for functions in &shape {
                text.push_str("[[node]]\n");
                for f in 0..*functions {
                    text.push_str(&format!(
                        "[[node.function]]\nrole = \"host\"\nname = \"f{f}\"\nports = {ports}\n"
                    ));
                }
            }
            let topology = parse(&text).unwrap();
            prop_assert_eq!(&parse(&topology.to_toml()).unwrap(), &topology);
            let functions = topology.functions();
            let distinct = |key: fn(&FunctionSpec) -> String| {
                functions.iter().map(key).collect::<BTreeSet<String>>().len()
            };
            prop_assert_eq!(distinct(|f| f.vhca_id.to_string()), functions.len());
            let lids: BTreeSet<u16> = lids(&topology).into_iter().collect();
            prop_assert_eq!(lids.len(), functions.len() * ports);
            prop_assert_eq!(distinct(|f| f.pci_bdf.clone()), functions.len());
            prop_assert_eq!(distinct(|f| guid_text(f.node_guid)), functions.len());
            prop_assert_eq!(distinct(|f| guid_text(f.sys_image_guid)), shape.len());
        }

        /// The parser accepts arbitrary text without a panic.
        #[test]
        fn never_panics(text in ".{0,200}") {
            let _ = parse(&text);
        }
    }
}
