//! The part of `/sys` and `/dev` that a process sees: a description without side effects, and a
//! writer. The writer makes a tree of real directories with the symbolic links of a real sysfs, so
//! that readdir, openat and realpath work unchanged.
//!
//! Readers: libibverbs `class/infiniband_verbs/**` and `class/infiniband/*/ports/**` (rdma-core 44
//! libibverbs/init.c:123-300, sysfs.c), UCX the PCI function's directory
//! (src/ucs/sys/topo/base/topo.c, src/uct/ib/base/ib_device.c), perftest `ports/*/`.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::diagnostics;
use crate::fabric::PortState;
use crate::fabric::counters::{CounterDir, PortCounter};
use crate::model::adapter::{BOARD_ID, FIRMWARE, HW_REV, PCI_VENDOR, SM_LID};
use crate::model::address::{GidEntry, GidType, Link, gid_text, infiniband_gid, roce_entry};
use crate::model::topology::{FunctionSpec, NDEV_DEFAULT, PortSpec, guid_text};

/// Major number of the uverbs character devices (`IB_UVERBS_MAJOR`, drivers/infiniband/core/
/// uverbs_main.c).
pub const UVERBS_MAJOR: u32 = 231;
/// Minor number of `uverbs0` (`IB_UVERBS_BASE_MINOR`).
pub const UVERBS_MINOR_BASE: u32 = 192;
/// Numbers of the connection manager's character device: of the miscellaneous devices, and one that
/// is not assigned (`MISC_DYNAMIC_MINOR`, linux/miscdevice.h).
pub const RDMA_CM_NUMBERS: (u32, u32) = (10, 58);
/// Version of the connection manager's ABI (`RDMA_USER_CM_ABI_VERSION`, rdma/rdma_user_cm.h).
pub const RDMA_CM_ABI_VERSION: u32 = 4;
/// Version of the generic uverbs ABI (`IB_USER_VERBS_ABI_VERSION`, rdma/ib_user_verbs.h).
pub const UVERBS_ABI_VERSION: u32 = 6;
/// Version of the mlx5 driver's ABI (`MLX5_IB_UVERBS_ABI_VERSION`, rdma/mlx5-abi.h).
pub const MLX5_ABI_VERSION: u32 = 1;

/// The connection manager's directory.
const RDMA_CM_DIR: &str = "/sys/class/misc/rdma_cm";

/// One entry of the tree. `path` is relative to the view's directory and starts with "sys" or
/// "dev".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its path.
    pub path: PathBuf,
    /// Its kind and contents.
    pub node: Node,
}

/// Kind and contents of an [`Entry`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// A directory.
    Dir,
    /// A file with this text.
    File(String),
    /// A symbolic link to this relative target.
    Link(PathBuf),
}

/// The directory of a function's PCI device, from the root: `/sys/devices/pci<domain>:<bus>/<bdf>`.
#[must_use]
pub fn pci_dir(pci_bdf: &str) -> String {
    // `dddd:bb` are the first seven characters of a checked address. Each bus is a root of its own.
    let root = pci_bdf.get(..7).unwrap_or(pci_bdf);
    format!("/sys/devices/pci{root}/{pci_bdf}")
}

/// The directory of mlx5 devices there.
const DEBUG_DIR: &str = "/sys/kernel/debug/mlx5";

/// The directory of a function in the kernel's file system for debugging.
#[must_use]
pub fn debug_dir(pci_bdf: &str) -> String {
    format!("{DEBUG_DIR}/{pci_bdf}")
}

/// The directory of a port of the function at `index` in a view.
#[must_use]
pub fn port_dir(pci_bdf: &str, index: usize, port: u8) -> String {
    format!("{}/infiniband/mlx5_{index}/ports/{port}", pci_dir(pci_bdf))
}

/// The files that show a port's state, and their contents.
#[must_use]
pub fn state_files(state: PortState) -> [(&'static str, String); 2] {
    let (name, physical) = state.names();
    [
        ("state", format!("{}: {name}", state.code())),
        (
            "phys_state",
            format!("{}: {physical}", state.physical_code()),
        ),
    ]
}

/// The tree of a view of `functions`, parents before children.
#[must_use]
pub fn describe(functions: &[FunctionSpec]) -> Vec<Entry> {
    let mut tree = Tree {
        entries: Vec::new(),
    };
    for dir in [
        "/sys",
        "/sys/bus",
        "/sys/bus/pci",
        "/sys/bus/pci/devices",
        "/sys/bus/pci/drivers",
        "/sys/bus/pci/drivers/mlx5_core",
        "/sys/class",
        "/sys/class/infiniband",
        "/sys/class/infiniband_verbs",
        "/sys/class/misc",
        RDMA_CM_DIR,
        "/sys/devices",
        "/sys/kernel",
        "/sys/kernel/debug",
        DEBUG_DIR,
        "/dev",
        "/dev/infiniband",
    ] {
        tree.dir(dir);
    }
    tree.file(
        "/sys/class/infiniband_verbs/abi_version",
        UVERBS_ABI_VERSION,
    );
    tree.rdma_cm();
    for (index, function) in functions.iter().enumerate() {
        tree.function(index, function);
    }
    // libibverbs lists devices in the order of readdir, and programs use the first by default. A
    // tmpfs, which holds the states, returns the newest entry first.
    for (index, function) in functions.iter().enumerate().rev() {
        let pci = pci_dir(&function.pci_bdf);
        let (ib, uverbs) = (format!("mlx5_{index}"), format!("uverbs{index}"));
        tree.link(
            &format!("/sys/class/infiniband/{ib}"),
            &format!("{pci}/infiniband/{ib}"),
        );
        tree.link(
            &format!("/sys/class/infiniband_verbs/{uverbs}"),
            &format!("{pci}/infiniband_verbs/{uverbs}"),
        );
    }
    tree.entries
}

/// Writes `entries` below the directory `root`.
///
/// # Errors
/// The first error of the file system. Entries written before it stay.
pub fn write(root: &Path, entries: &[Entry]) -> io::Result<()> {
    for entry in entries {
        let path = root.join(&entry.path);
        match &entry.node {
            Node::Dir => fs::create_dir(&path)?,
            Node::File(text) => fs::write(&path, text)?,
            Node::Link(target) => symlink(target, &path)?,
        }
    }
    Ok(())
}

struct Tree {
    entries: Vec<Entry>,
}

impl Tree {
    fn add(&mut self, path: &str, node: Node) {
        self.entries.push(Entry {
            path: PathBuf::from(path.trim_start_matches('/')),
            node,
        });
    }

    fn dir(&mut self, path: &str) {
        self.add(path, Node::Dir);
    }

    /// A file in the form of sysfs: the value and a newline.
    fn file(&mut self, path: &str, value: impl ToString) {
        self.add(path, Node::File(format!("{}\n", value.to_string())));
    }

    /// A symbolic link at `path` to `target`, both from the root; the link is made relative.
    fn link(&mut self, path: &str, target: &str) {
        self.add(path, Node::Link(relative(path, target)));
    }

    /// The connection manager's device.
    fn rdma_cm(&mut self) {
        let (major, minor) = RDMA_CM_NUMBERS;
        for (name, value) in [
            ("abi_version", RDMA_CM_ABI_VERSION.to_string()),
            ("dev", format!("{major}:{minor}")),
            (
                "uevent",
                format!("MAJOR={major}\nMINOR={minor}\nDEVNAME=infiniband/rdma_cm\nDEVMODE=0666"),
            ),
        ] {
            self.file(&format!("{RDMA_CM_DIR}/{name}"), value);
        }
        self.add("/dev/infiniband/rdma_cm", Node::File(String::new()));
    }

    fn function(&mut self, index: usize, function: &FunctionSpec) {
        let pci = pci_dir(&function.pci_bdf);
        let root = &pci[..pci.len() - function.pci_bdf.len() - 1];
        if !self
            .entries
            .iter()
            .any(|entry| entry.path == Path::new(&root[1..]))
        {
            self.dir(root);
        }
        self.pci_device(&pci, function);
        // The counters are written before each read: see `view::diagnostics`.
        let debug = debug_dir(&function.pci_bdf);
        self.dir(&debug);
        self.dir(&format!("{debug}/{}", diagnostics::DIR));
        for name in diagnostics::FILES {
            self.file(&format!("{debug}/{}/{name}", diagnostics::DIR), "");
        }
        self.ib_device(&pci, index, function);
        self.uverbs_device(&pci, index);
    }

    fn pci_device(&mut self, pci: &str, function: &FunctionSpec) {
        let device = function.pci_device;
        self.dir(pci);
        for (name, value) in [
            ("class", "0x020700".to_owned()),
            ("current_link_speed", "32.0 GT/s PCIe".to_owned()),
            ("current_link_width", "16".to_owned()),
            ("device", format!("{device:#06x}")),
            ("enable", "1".to_owned()),
            ("max_link_speed", "32.0 GT/s PCIe".to_owned()),
            ("max_link_width", "16".to_owned()),
            (
                "modalias",
                format!(
                    "pci:v0000{PCI_VENDOR:04X}d0000{device:04X}sv0000{PCI_VENDOR:04X}\
                     sd00000000bc02sc07i00"
                ),
            ),
            // -1 is the kernel's value for no particular node. That is true of an emulated device.
            ("numa_node", "-1".to_owned()),
            ("revision", "0x01".to_owned()),
            ("subsystem_device", "0x0000".to_owned()),
            ("subsystem_vendor", format!("{PCI_VENDOR:#06x}")),
            (
                "uevent",
                format!(
                    "DRIVER=mlx5_core\nPCI_CLASS=20700\nPCI_ID={PCI_VENDOR:04X}:{device:04X}\n\
                     PCI_SLOT_NAME={}",
                    function.pci_bdf
                ),
            ),
            ("vendor", format!("{PCI_VENDOR:#06x}")),
        ] {
            self.file(&format!("{pci}/{name}"), value);
        }
        let (mask, list) = cpu_sets(cpus());
        self.file(&format!("{pci}/local_cpus"), mask);
        self.file(&format!("{pci}/local_cpulist"), list);
        self.net_devices(pci, function);
        self.link(&format!("{pci}/subsystem"), "/sys/bus/pci");
        self.link(&format!("{pci}/driver"), "/sys/bus/pci/drivers/mlx5_core");
        let on_bus = format!("/sys/bus/pci/devices/{}", function.pci_bdf);
        self.link(&on_bus, pci);
    }

    /// The names of the network devices over the function's ports. Programs look up addresses by
    /// these names in the machine, so that the loopback device's address belongs to the function.
    fn net_devices(&mut self, pci: &str, function: &FunctionSpec) {
        self.dir(&format!("{pci}/net"));
        let mut seen: Vec<&str> = Vec::new();
        for port in &function.ports {
            let ethernet = port.ethernet.as_ref();
            let name = ethernet.map_or(NDEV_DEFAULT, |port| port.ndev.as_str());
            if !seen.contains(&name) {
                self.dir(&format!("{pci}/net/{name}"));
                seen.push(name);
            }
        }
    }

    fn ib_device(&mut self, pci: &str, index: usize, function: &FunctionSpec) {
        let parent = format!("{pci}/infiniband");
        let dir = format!("{parent}/mlx5_{index}");
        self.dir(&parent);
        self.dir(&dir);
        let [major, minor, sub] = FIRMWARE;
        for (name, value) in [
            ("board_id", BOARD_ID.to_owned()),
            ("fw_ver", format!("{major}.{minor}.{sub:04}")),
            ("hca_type", format!("MT{}", function.pci_device)),
            ("hw_rev", format!("{HW_REV:x}")),
            ("node_desc", function.name.clone()),
            ("node_guid", guid_text(function.node_guid)),
            ("node_type", "1: CA".to_owned()),
            ("sys_image_guid", guid_text(function.sys_image_guid)),
            ("uevent", format!("NAME=mlx5_{index}")),
        ] {
            self.file(&format!("{dir}/{name}"), value);
        }
        self.link(&format!("{dir}/device"), pci);
        self.link(&format!("{dir}/subsystem"), "/sys/class/infiniband");
        self.dir(&format!("{dir}/ports"));
        for (index, port) in function.ports.iter().enumerate() {
            self.port(&format!("{dir}/ports/{}", index + 1), port);
        }
    }

    fn port(&mut self, dir: &str, port: &PortSpec) {
        self.dir(dir);
        let [state, physical] = state_files(PortState::Active);
        let (layer, sm_lid) = match port.link {
            Link::Ethernet => ("Ethernet", 0),
            Link::Infiniband | Link::InfinibandGrh => ("InfiniBand", SM_LID),
        };
        for (name, value) in [
            ("cap_mask", format!("{:#010x}", port.link.capabilities())),
            ("lid", format!("{:#x}", port.lid)),
            ("lid_mask_count", "0".to_owned()),
            ("link_layer", layer.to_owned()),
            physical,
            ("rate", "400 Gb/sec (4X NDR)".to_owned()),
            ("sm_lid", format!("{sm_lid:#x}")),
            ("sm_sl", "0".to_owned()),
            state,
        ] {
            self.file(&format!("{dir}/{name}"), value);
        }
        self.gids(dir, port);
        // The counters are written before each read: see `view::hw_counters`.
        for kind in CounterDir::ALL {
            let counters = format!("{dir}/{}", kind.name());
            self.dir(&counters);
            let counted = PortCounter::ALL
                .iter()
                .filter(|one| one.dir() == Some(kind));
            let names = counted.map(|counter| counter.name());
            for name in names.chain(kind.always_zero().iter().copied()) {
                self.file(&format!("{counters}/{name}"), 0);
            }
        }
        let pkeys = format!("{dir}/pkeys");
        self.dir(&pkeys);
        for index in 0..port.link.pkey_table_len() {
            let pkey = port.pkeys.get(usize::from(index)).copied().unwrap_or(0);
            self.file(&format!("{pkeys}/{index}"), format!("{pkey:#06x}"));
        }
    }

    /// The GID table. A real kernel refuses to read the type and the network device of an empty
    /// entry, and the network device of any entry on InfiniBand (EINVAL). Here these files are
    /// empty.
    fn gids(&mut self, dir: &str, port: &PortSpec) {
        let [gids, attrs] = ["gids", "gid_attrs"].map(|name| format!("{dir}/{name}"));
        let [types, ndevs] = ["types", "ndevs"].map(|name| format!("{attrs}/{name}"));
        for dir in [&gids, &attrs, &types, &ndevs] {
            self.dir(dir);
        }
        let addresses = port.address_gids();
        for index in 0..usize::from(port.link.gid_table_len()) {
            let entry = match &port.ethernet {
                Some(ethernet) => roce_entry(ethernet.mac, &addresses, index),
                None => (index == 0).then(|| GidEntry {
                    gid: infiniband_gid(port.guid),
                    kind: GidType::Infiniband,
                }),
            };
            let gid = entry.map(|entry| entry.gid).unwrap_or_default();
            self.file(&format!("{gids}/{index}"), gid_text(&gid));
            let kind = entry.map(|entry| entry.kind.text());
            self.file_or_empty(format!("{types}/{index}"), kind);
            let ndev = port.ethernet.as_ref().filter(|_| entry.is_some());
            let ndev = ndev.map(|ethernet| ethernet.ndev.as_str());
            self.file_or_empty(format!("{ndevs}/{index}"), ndev);
        }
    }

    /// A file with a value, or an empty file.
    fn file_or_empty(&mut self, path: String, value: Option<&str>) {
        match value {
            Some(value) => self.file(&path, value),
            None => self.add(&path, Node::File(String::new())),
        }
    }

    fn uverbs_device(&mut self, pci: &str, index: usize) {
        let parent = format!("{pci}/infiniband_verbs");
        let dir = format!("{parent}/uverbs{index}");
        let minor = UVERBS_MINOR_BASE as usize + index;
        self.dir(&parent);
        self.dir(&dir);
        self.file(&format!("{dir}/abi_version"), MLX5_ABI_VERSION);
        self.file(&format!("{dir}/dev"), format!("{UVERBS_MAJOR}:{minor}"));
        self.file(&format!("{dir}/ibdev"), format!("mlx5_{index}"));
        self.file(
            &format!("{dir}/uevent"),
            format!("MAJOR={UVERBS_MAJOR}\nMINOR={minor}\nDEVNAME=infiniband/uverbs{index}"),
        );
        self.link(&format!("{dir}/device"), pci);
        self.link(&format!("{dir}/subsystem"), "/sys/class/infiniband_verbs");
        // Only the name is visible: stat, access and open of it do not use the file.
        self.add(
            &format!("/dev/infiniband/uverbs{index}"),
            Node::File(String::new()),
        );
    }
}

/// The relative form of `target` for a link at `path`, both absolute and without "." and "..".
fn relative(path: &str, target: &str) -> PathBuf {
    let parent = Path::new(path).parent().unwrap_or(Path::new("/"));
    let target = Path::new(target);
    let common = parent
        .components()
        .zip(target.components())
        .take_while(|(a, b)| a == b)
        .count();
    let up = parent.components().count() - common;
    let mut link: PathBuf = std::iter::repeat_n("..", up).collect();
    link.extend(target.components().skip(common));
    if link.as_os_str().is_empty() {
        link.push(".");
    }
    link
}

/// CPUs of this machine, at least one.
fn cpus() -> usize {
    // SAFETY: sysconf has no preconditions.
    let configured = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    usize::try_from(configured).unwrap_or(1).max(1)
}

/// A set of `cpus` CPUs as a sysfs mask (32-bit groups, highest first) and as a list.
fn cpu_sets(cpus: usize) -> (String, String) {
    let groups = cpus.div_ceil(32);
    let mask: Vec<String> = (0..groups)
        .rev()
        .map(|group| {
            let bits = (cpus - group * 32).min(32);
            format!("{:08x}", u32::MAX >> (32 - bits))
        })
        .collect();
    let list = match cpus {
        1 => "0".to_owned(),
        _ => format!("0-{}", cpus - 1),
    };
    (mask.join(","), list)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::topology::Topology;

    fn written(view: &str) -> tempfile::TempDir {
        let functions = Topology::with_nodes(2).unwrap().select(view).unwrap();
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &describe(&functions)).unwrap();
        dir
    }

    #[test]
    fn what_the_users_of_sysfs_read() {
        let dir = written("node1.host,node0.dpu");
        for (path, text) in [
            ("class/infiniband_verbs/abi_version", "6\n"),
            ("class/infiniband_verbs/uverbs0/abi_version", "1\n"),
            ("class/infiniband_verbs/uverbs1/dev", "231:193\n"),
            ("class/infiniband_verbs/uverbs1/ibdev", "mlx5_1\n"),
            ("class/infiniband_verbs/uverbs0/device/vendor", "0x15b3\n"),
            ("class/infiniband/mlx5_0/device/device", "0xa2dc\n"),
            (
                "class/infiniband/mlx5_1/device/modalias",
                "pci:v000015B3d0000A2DCsv000015B3sd00000000bc02sc07i00\n",
            ),
            ("class/infiniband/mlx5_0/node_guid", "02bf:0000:0000:0201\n"),
            ("class/infiniband/mlx5_1/node_guid", "02bf:0000:0000:0102\n"),
            (
                "class/infiniband/mlx5_1/sys_image_guid",
                "02bf:0000:0000:0101\n",
            ),
            ("class/infiniband/mlx5_0/fw_ver", "32.40.1000\n"),
            ("class/infiniband/mlx5_0/hca_type", "MT41692\n"),
            ("class/infiniband/mlx5_0/ports/1/lid", "0x3\n"),
            (
                "class/infiniband/mlx5_0/ports/1/gids/0",
                "fe80:0000:0000:0000:02bf:0000:0000:0201\n",
            ),
            ("class/infiniband/mlx5_0/ports/1/pkeys/0", "0xffff\n"),
            ("class/infiniband/mlx5_0/ports/1/pkeys/127", "0x0000\n"),
            ("bus/pci/devices/bf00:04:00.0/numa_node", "-1\n"),
            ("bus/pci/devices/bf00:03:00.1/current_link_width", "16\n"),
        ] {
            let path = dir.path().join("sys").join(path);
            let found = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
            assert_eq!(found, text, "{path:?}");
        }
    }

    #[test]
    fn real_paths_are_those_of_a_real_sysfs() {
        let dir = written("node0.host,node0.dpu");
        let root = fs::canonicalize(dir.path()).unwrap().join("sys");
        let pci = "devices/pcibf00:03/bf00:03:00.1";
        for (path, real) in [
            (
                "class/infiniband/mlx5_1",
                format!("{pci}/infiniband/mlx5_1"),
            ),
            ("class/infiniband/mlx5_1/device", pci.to_owned()),
            ("class/infiniband_verbs/uverbs1/device", pci.to_owned()),
            (
                "class/infiniband_verbs/uverbs1/subsystem",
                "class/infiniband_verbs".to_owned(),
            ),
            ("bus/pci/devices/bf00:03:00.1", pci.to_owned()),
            (
                "class/infiniband/mlx5_1/device/driver",
                "bus/pci/drivers/mlx5_core".to_owned(),
            ),
        ] {
            assert_eq!(
                fs::canonicalize(root.join(path)).unwrap(),
                root.join(real),
                "{path}"
            );
        }
    }

    #[test]
    fn every_link_of_the_largest_view_leads_somewhere() {
        let names: Vec<String> = (0..8)
            .flat_map(|n| [format!("node{n}.host"), format!("node{n}.dpu")])
            .collect();
        let functions = Topology::with_nodes(8)
            .unwrap()
            .select(&names.join(","))
            .unwrap();
        let dir = tempfile::tempdir().unwrap();
        let entries = describe(&functions);
        write(dir.path(), &entries).unwrap();
        for entry in &entries {
            let path = dir.path().join(&entry.path);
            assert!(path.exists(), "{path:?}");
        }
    }

    #[test]
    fn cpu_masks() {
        for (cpus, mask, list) in [
            (1, "00000001", "0"),
            (2, "00000003", "0-1"),
            (32, "ffffffff", "0-31"),
            (33, "00000001,ffffffff", "0-32"),
            (96, "ffffffff,ffffffff,ffffffff", "0-95"),
        ] {
            assert_eq!(cpu_sets(cpus), (mask.to_owned(), list.to_owned()), "{cpus}");
        }
    }

    #[test]
    fn relative_links() {
        for (path, target, link) in [
            (
                "/sys/class/infiniband/mlx5_0",
                "/sys/devices/x",
                "../../devices/x",
            ),
            ("/sys/a/b/c", "/sys/a", ".."),
            ("/sys/a/b", "/sys/a", "."),
            ("/sys/a", "/sys/b", "b"),
        ] {
            assert_eq!(
                relative(path, target),
                Path::new(link),
                "{path} -> {target}"
            );
        }
    }
}
