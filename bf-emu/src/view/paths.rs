//! Maps a process's paths to the emulated device's tree. Text to text, without allocation on a
//! call.
//!
//! Only absolute paths are considered. Accesses by openat on a directory of the tree, or through
//! its symbolic links, stay inside the tree.

use std::ffi::CStr;
use std::os::unix::ffi::OsStrExt;

use crate::model::topology::{FunctionSpec, View};
use crate::view::diagnostics::{DIR, DUMP};
use crate::view::sysfs::{debug_dir, pci_dir};

/// Longest path that the kernel accepts, with its NUL (`PATH_MAX`, linux/limits.h).
pub const PATH_BYTES_MAX: usize = 4096;

/// Buffer for one rewritten path.
pub type PathBuffer = [u8; PATH_BYTES_MAX];

/// The path mapping of a view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// The directories that replace `/sys` and `/dev`, without a trailing slash.
    sys: Vec<u8>,
    dev: Vec<u8>,
    /// Prefixes of the rewritten paths.
    prefixes: Vec<Vec<u8>>,
    /// The files with diagnostic counters of each device, in the tree.
    diagnostics: Vec<Vec<u8>>,
    devices: usize,
}

/// The target of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place<'a> {
    /// A path outside of the device's tree. It is used unchanged.
    Elsewhere,
    /// A path in the tree, with its rewritten form.
    Tree(&'a CStr),
    /// A character device.
    Device {
        /// Which one.
        device: Device,
        /// The file that provides its name, owner and mode.
        stand_in: &'a CStr,
    },
}

/// A character device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// `/dev/infiniband/uverbsN`; N is the device's index in the view.
    Uverbs(usize),
    /// `/dev/infiniband/rdma_cm`, the connection manager.
    RdmaCm,
}

impl Paths {
    /// The paths of `view`.
    #[must_use]
    pub fn new(view: &View) -> Self {
        let sys = view.sys_root.as_os_str().as_bytes().to_vec();
        let dev = view.sys_root.with_file_name("dev");
        let mut prefixes = vec![
            b"/dev/infiniband".to_vec(),
            b"/sys/class/misc/rdma_cm".to_vec(),
        ];
        for function in &view.functions {
            prefixes.push(pci_dir(&function.pci_bdf).into_bytes());
            prefixes.push(format!("/sys/bus/pci/devices/{}", function.pci_bdf).into_bytes());
            prefixes.push(debug_dir(&function.pci_bdf).into_bytes());
        }
        let dump = |function: &FunctionSpec| {
            let file = format!("{}/{DIR}/{DUMP}", debug_dir(&function.pci_bdf));
            let mut path = sys.clone();
            path.extend_from_slice(file.strip_prefix("/sys").unwrap_or_default().as_bytes());
            path
        };
        let diagnostics = view.functions.iter().map(dump).collect();
        Paths {
            sys,
            dev: dev.as_os_str().as_bytes().to_vec(),
            prefixes,
            diagnostics,
            devices: view.functions.len(),
        }
    }

    /// True if [`Self::place`] of any view could return anything except [`Place::Elsewhere`]. The
    /// check needs no view, so a process that never accesses a device reads none.
    #[must_use]
    pub fn candidate(path: &[u8]) -> bool {
        // Every prefix contains one of the four strings, and starts with /sys or /dev in any
        // spelling.
        path.first() == Some(&b'/')
            && matches!(path.get(1), Some(b's' | b'd' | b'/' | b'.'))
            && (contains(path, b"infiniband")
                || contains(path, b"/pci")
                || contains(path, b"rdma_cm")
                || contains(path, b"/mlx5"))
    }

    /// The target of `path`, with the rewritten path in `buffer`.
    ///
    /// A rewritten path that exceeds the path length counts as [`Place::Elsewhere`].
    #[must_use]
    pub fn place<'a>(&self, path: &[u8], buffer: &'a mut PathBuffer) -> Place<'a> {
        let mut spelling: PathBuffer = [0; PATH_BYTES_MAX];
        let Some(path) = normalise(path, &mut spelling) else {
            return Place::Elsewhere;
        };
        // Every InfiniBand class is rewritten, including classes without members here: a process
        // must not see a part of this machine's real devices.
        let class = path.starts_with(b"/sys/class/infiniband");
        if !class && !self.prefixes.iter().any(|prefix| is_below(path, prefix)) {
            return Place::Elsewhere;
        }
        let (root, rest) = match path.strip_prefix(b"/sys") {
            Some(rest) => (&self.sys, rest),
            None => (&self.dev, path.strip_prefix(b"/dev").unwrap_or(path)),
        };
        let Some(rewritten) = join(root, rest, buffer) else {
            return Place::Elsewhere;
        };
        match self.device(path) {
            Some(device) => Place::Device {
                device,
                stand_in: rewritten,
            },
            None => Place::Tree(rewritten),
        }
    }

    /// Index of the device whose diagnostic counters a file of the tree has.
    #[must_use]
    pub fn diagnostics(&self, path: &[u8]) -> Option<usize> {
        self.diagnostics.iter().position(|file| file == path)
    }

    /// The character device with this path.
    fn device(&self, path: &[u8]) -> Option<Device> {
        let name = path.strip_prefix(b"/dev/infiniband/")?;
        if name == b"rdma_cm" {
            return Some(Device::RdmaCm);
        }
        let index = number(name.strip_prefix(b"uverbs")?)?;
        (index < self.devices).then_some(Device::Uverbs(index))
    }

    /// The process's name for `path`, a result of realpath: its first `.1` bytes are replaced by
    /// `.0`. None if the path is not in the tree.
    #[must_use]
    pub fn known_as(&self, path: &[u8]) -> Option<(&'static [u8], usize)> {
        let roots: [(&'static [u8], &Vec<u8>); 2] = [(b"/sys", &self.sys), (b"/dev", &self.dev)];
        roots
            .into_iter()
            .find(|(_, root)| is_below(path, root))
            .map(|(name, root)| (name, root.len()))
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

fn is_below(path: &[u8], prefix: &[u8]) -> bool {
    match path.strip_prefix(prefix) {
        Some(rest) => rest.is_empty() || rest.starts_with(b"/"),
        None => false,
    }
}

/// A number in the kernel's form: decimal, without sign and leading zeros.
fn number(text: &[u8]) -> Option<usize> {
    let plain =
        text.iter().all(u8::is_ascii_digit) && (text.len() == 1 || text.first() != Some(&b'0'));
    plain.then(|| std::str::from_utf8(text).ok()?.parse().ok())?
}

/// An absolute `path` without empty and "." components. A slash at the end stays. None if the path
/// is relative or too long. ".." stays, because its target depends on symbolic links.
fn normalise<'a>(path: &[u8], buffer: &'a mut PathBuffer) -> Option<&'a [u8]> {
    if path.first() != Some(&b'/') {
        return None;
    }
    let mut length = 0;
    let mut append = |part: &[u8]| -> Option<()> {
        buffer
            .get_mut(length..length + part.len())?
            .copy_from_slice(part);
        length += part.len();
        Some(())
    };
    let mut open = false;
    for part in path.split(|byte| *byte == b'/') {
        open = part.is_empty() || part == b".";
        if !open {
            append(b"/")?;
            append(part)?;
        }
    }
    if open {
        append(b"/")?;
    }
    buffer.get(..length)
}

/// `root` and `rest` as one C string.
fn join<'a>(root: &[u8], rest: &[u8], buffer: &'a mut PathBuffer) -> Option<&'a CStr> {
    let length = root.len() + rest.len();
    buffer.get_mut(..root.len())?.copy_from_slice(root);
    buffer.get_mut(root.len()..length)?.copy_from_slice(rest);
    *buffer.get_mut(length)? = 0;
    CStr::from_bytes_with_nul(buffer.get(..=length)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::topology::Topology;
    use proptest::prelude::*;
    use std::path::PathBuf;

    fn paths() -> Paths {
        let functions = Topology::with_nodes(1)
            .unwrap()
            .select("node0.dpu,node0.host")
            .unwrap();
        Paths::new(&View {
            functions,
            sys_root: PathBuf::from("/s/views/v/sys"),
        })
    }

    /// Checks the target of `path`; "" means elsewhere.
    fn check(path: &str, expected: &str) {
        let mut buffer = [0xff; PATH_BYTES_MAX];
        let found = match paths().place(path.as_bytes(), &mut buffer) {
            Place::Elsewhere => String::new(),
            Place::Tree(path) => path.to_str().unwrap().to_owned(),
            Place::Device { device, stand_in } => {
                let number = match device {
                    Device::Uverbs(number) => number.to_string(),
                    Device::RdmaCm => "cm".to_owned(),
                };
                format!("{number}:{}", stand_in.to_str().unwrap())
            }
        };
        assert_eq!(found, expected, "{path}");
        if !expected.is_empty() {
            assert!(Paths::candidate(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn places() {
        for (path, expected) in [
            ("/sys/class/infiniband", "/s/views/v/sys/class/infiniband"),
            ("/sys/class/infiniband/", "/s/views/v/sys/class/infiniband/"),
            (
                "/sys/class/infiniband_verbs/uverbs0/dev",
                "/s/views/v/sys/class/infiniband_verbs/uverbs0/dev",
            ),
            (
                "//sys/./class//infiniband/.",
                "/s/views/v/sys/class/infiniband/",
            ),
            (
                "/sys/class/infiniband_mad/abi_version",
                "/s/views/v/sys/class/infiniband_mad/abi_version",
            ),
            (
                "/sys/class/infiniband/mlx5_0/../mlx5_1",
                "/s/views/v/sys/class/infiniband/mlx5_0/../mlx5_1",
            ),
            ("/sys/class/net", ""),
            ("/sys/class", ""),
            (
                "/sys/devices/pcibf00:03/bf00:03:00.1/vendor",
                "/s/views/v/sys/devices/pcibf00:03/bf00:03:00.1/vendor",
            ),
            (
                "/sys/devices/pcibf00:03/bf00:03:00.0",
                "/s/views/v/sys/devices/pcibf00:03/bf00:03:00.0",
            ),
            ("/sys/devices/pcibf00:03/bf00:03:00.01", ""),
            ("/sys/devices/pcibf00:03/bf00:03:00.2", ""),
            ("/sys/devices/pci0000:00/0000:00:01.0", ""),
            (
                "/sys/bus/pci/devices/bf00:03:00.0/numa_node",
                "/s/views/v/sys/bus/pci/devices/bf00:03:00.0/numa_node",
            ),
            (
                "/sys/kernel/debug/mlx5/bf00:03:00.0/diag_cnt/dump",
                "/s/views/v/sys/kernel/debug/mlx5/bf00:03:00.0/diag_cnt/dump",
            ),
            ("/sys/kernel/debug/mlx5/0000:00:01.0", ""),
            ("/sys/bus/pci/devices/0000:00:01.0", ""),
            ("/sys/bus/pci/devices", ""),
            ("/dev/infiniband", "/s/views/v/dev/infiniband"),
            (
                "/dev/infiniband/rdma_cm",
                "cm:/s/views/v/dev/infiniband/rdma_cm",
            ),
            (
                "/sys/class/misc/rdma_cm/abi_version",
                "/s/views/v/sys/class/misc/rdma_cm/abi_version",
            ),
            ("/sys/class/misc/rdma_cm_other", ""),
            ("/sys/class/misc", ""),
            (
                "/dev/infiniband/uverbs0",
                "0:/s/views/v/dev/infiniband/uverbs0",
            ),
            (
                "/dev//infiniband/uverbs1",
                "1:/s/views/v/dev/infiniband/uverbs1",
            ),
            (
                "/dev/infiniband/uverbs2",
                "/s/views/v/dev/infiniband/uverbs2",
            ),
            (
                "/dev/infiniband/uverbs01",
                "/s/views/v/dev/infiniband/uverbs01",
            ),
            ("/dev/infiniband/uverbs", "/s/views/v/dev/infiniband/uverbs"),
            (
                "/dev/infiniband/uverbs+1",
                "/s/views/v/dev/infiniband/uverbs+1",
            ),
            ("/dev/null", ""),
            ("sys/class/infiniband", ""),
            ("/srv/sys/class/infiniband", ""),
            ("", ""),
        ] {
            check(path, expected);
        }
    }

    #[test]
    fn most_paths_are_no_candidates() {
        for path in [
            "/etc/passwd",
            "/sys/devices/system/cpu/online",
            "/dev/shm/x",
            "infiniband",
            "",
            "/",
        ] {
            assert!(!Paths::candidate(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn a_path_too_long_is_elsewhere() {
        check(&format!("/sys/class/infiniband/{}", "x".repeat(4096)), "");
        check(&format!("/sys/class/infiniband/{}", "x".repeat(4070)), "");
    }

    #[test]
    fn real_paths_get_their_names_back() {
        for (path, expected) in [
            ("/s/views/v/sys/class", Some("/sys/class")),
            ("/s/views/v/sys", Some("/sys")),
            ("/s/views/v/dev/infiniband", Some("/dev/infiniband")),
            ("/s/views/v/system", None),
            ("/s/views", None),
        ] {
            let found = paths().known_as(path.as_bytes());
            let found = found
                .map(|(name, cut)| format!("{}{}", str::from_utf8(name).unwrap(), &path[cut..]));
            assert_eq!(found.as_deref(), expected, "{path}");
        }
    }

    proptest! {
        /// Any path maps to elsewhere or below the roots, and only candidates map below the roots.
        #[test]
        fn any_path(path in "(/|/sys|/dev|/class|/infiniband|/uverbs|/pci|/\\.|[0-9]|\\.\\.|.){0,12}") {
            let mut buffer = [0; PATH_BYTES_MAX];
            match paths().place(path.as_bytes(), &mut buffer) {
                Place::Elsewhere => {}
                Place::Tree(found) | Place::Device { stand_in: found, .. } => {
                    prop_assert!(found.to_bytes().starts_with(b"/s/views/v/"));
                    prop_assert!(Paths::candidate(path.as_bytes()));
                }
            }
        }
    }
}
