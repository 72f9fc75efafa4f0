//! `tests/skips.toml`: the accepted skips, each with its reason.

use crate::{process, setup};
use anyhow::{Context, Result, bail};
use std::net::UdpSocket;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// One accepted skip. The file contains the reason for the reader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Accepted {
    pub(crate) phase: String,
    pub(crate) name: String,
    /// Name of a variable. If it is set, the skip must not occur. [`ROOT`] counts as set for the superuser, and
    /// [`MDBOOK`] if that program is installed.
    pub(crate) unless: Option<String>,
}

/// Tests that need the superuser must not skip for the superuser.
const ROOT: &str = "root";
/// The program that builds the book.
pub(super) const MDBOOK: &str = "mdbook";

/// Compiler and emulator for the DPU's processors are in the cache, or can be downloaded.
const AARCH64: &str = "aarch64_tools";

/// The cache contains the tree of stock UCC.
const UCC_TREE: &str = "ucc_tree";

/// CMake is installed or in the cache, or can be downloaded.
const CMAKE: &str = "cmake";

/// Compilers for RISC-V are installed or in the cache, or can be downloaded.
const RISCV: &str = "riscv_compilers";

/// The machine has an address beside that of the loopback interface, and a route to other machines.
const ADDRESS: &str = "address";

/// This user may create namespaces and mount file systems in them.
const NAMESPACES: &str = "namespaces";

/// The kernel gives this user rings of io_uring.
const IO_URING: &str = "io_uring";

/// This user may make loop devices.
const LOOP_DEVICES: &str = "loop_devices";
/// Python has the package `cryptography`.
const PYTHON_AES: &str = "python_cryptography";

/// Whether the condition in `unless` holds.
pub(crate) fn is_set(name: &str) -> bool {
    if name == ROOT {
        // SAFETY: geteuid(2) has no parameters, accesses no memory and cannot fail.
        return unsafe { libc::geteuid() } == 0;
    }
    if name == LOOP_DEVICES {
        let mut command = std::process::Command::new("losetup");
        // Tells the name of a free one, which only those can do who may make it.
        let output = command.arg("--find").output();
        return output.is_ok_and(|output| output.status.success());
    }
    if name == MDBOOK {
        return process::is_installed(MDBOOK);
    }
    if name == AARCH64 {
        return setup::aarch64::ensure().is_ok();
    }
    if name == CMAKE {
        return setup::cmake().is_ok();
    }
    if name == RISCV {
        return setup::riscv().is_ok();
    }
    if name == UCC_TREE {
        return matches!(setup::tree::ucc_if_there(), Ok(Some(_)));
    }
    if name == ADDRESS {
        let socket = UdpSocket::bind("0.0.0.0:0");
        return socket.is_ok_and(|socket| socket.connect("192.0.2.1:9").is_ok());
    }
    if name == NAMESPACES {
        return can_mount();
    }
    if name == PYTHON_AES {
        let mut python = Command::new("python3");
        let asked = python.args(["-c", "import cryptography"]).output();
        return asked.is_ok_and(|done| done.status.success());
    }
    if name == IO_URING {
        return testbed::process::has_io_uring();
    }
    std::env::var_os(name).is_some_and(|value| !value.is_empty())
}

impl Accepted {
    /// Whether the skip is expected in this environment.
    pub(crate) fn is_due(&self, is_set: impl Fn(&str) -> bool) -> bool {
        !self.unless.as_deref().is_some_and(is_set)
    }
}

/// Reads the file.
pub(crate) fn read(path: &Path) -> Result<Vec<Accepted>> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text).with_context(|| path.display().to_string())
}

fn parse(text: &str) -> Result<Vec<Accepted>> {
    let table: toml::Table = text.parse().context("not TOML")?;
    let mut accepted = Vec::new();
    for (key, value) in &table {
        let (true, Some(list)) = (key == "skip", value.as_array()) else {
            bail!("unknown key '{key}'; only [[skip]] tables are known");
        };
        for entry in list {
            let field = |name: &str| {
                let text = entry
                    .get(name)
                    .and_then(toml::Value::as_str)
                    .unwrap_or_default()
                    .trim();
                if text.is_empty() {
                    bail!("a [[skip]] without {name}: {entry}");
                }
                Ok(text.to_owned())
            };
            field("reason")?;
            let phase = field("phase")?;
            let unless = match entry.get("unless") {
                Some(_) => Some(field("unless")?),
                None => None,
            };
            let names = match entry.get("names").and_then(toml::Value::as_array) {
                Some(names) => names
                    .iter()
                    .map(|name| name.as_str().map(str::to_owned))
                    .collect::<Option<Vec<String>>>()
                    .with_context(|| format!("names are texts: {entry}"))?,
                None => vec![field("name")?],
            };
            accepted.extend(names.into_iter().map(|name| Accepted {
                phase: phase.clone(),
                name,
                unless: unless.clone(),
            }));
        }
    }
    Ok(accepted)
}

fn can_mount() -> bool {
    let mut command = Command::new("unshare");
    command.args(["-rm", "mount", "-t", "tmpfs", "none", "/dev/shm"]);
    let ran = process::run(&mut command, Duration::from_secs(10));
    ran.is_ok_and(|ran| ran.ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn each_entry_needs_its_three_fields() {
        let good = "[[skip]]\nphase = \"system\"\nname = \"a\"\nreason = \"no such device\"\n";
        let expect = Accepted {
            phase: "system".into(),
            name: "a".into(),
            unless: None,
        };
        assert_eq!(parse(good).unwrap(), std::slice::from_ref(&expect));
        let conditional = parse(&format!("{good}unless = \"X\"\n")).unwrap();
        assert!(conditional[0].is_due(|_| false) && !conditional[0].is_due(|name| name == "X"));
        assert!(expect.is_due(|_| true));
        assert_eq!(
            is_set(ROOT),
            std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
        );
        assert!(is_set("PATH") && !is_set("XGVMI_NO_SUCH_VARIABLE"));
        assert!(parse("# none\n").unwrap().is_empty());
        let both = good.replace("name = \"a\"", "names = [\"a\", \"b\"]");
        let both = parse(&both).unwrap();
        assert!(both[0] == expect && both[1].name == "b" && both.len() == 2);
        assert!(parse(&good.replace("name = \"a\"", "names = [1]")).is_err());
        for missing in ["phase", "name", "reason"] {
            let bad: String = good
                .lines()
                .filter(|l| !l.starts_with(missing))
                .collect::<Vec<_>>()
                .join("\n");
            let error = format!("{:#}", parse(&bad).unwrap_err());
            assert!(error.contains(missing), "{error}");
        }
        assert!(parse("[[skips]]\nname = \"a\"\n").is_err());
    }
}
