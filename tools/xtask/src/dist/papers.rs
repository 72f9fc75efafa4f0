//! Metadata of a Debian package: control file, checksums, copyright and changelog.

use super::{LIMIT, Machine};
use crate::stage::{self, Layout, Part};
use crate::{process, workspace};
use anyhow::{Context, Result};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const MAINTAINER: &str = "the xgvmi authors <xgvmi@localhost>";

/// Writes all metadata files. The package's contents must exist already.
pub(super) fn put(part: Part, machine: &Machine, epoch: u64, layout: &Layout) -> Result<()> {
    let documents = layout.at("share/doc").join(part.package());
    stage::text(&copyright(part)?, &documents.join("copyright"), 0o644)?;
    let changelog = documents.join("changelog");
    let news =
        fs::read_to_string(workspace::root().join("CHANGELOG.md")).context("CHANGELOG.md")?;
    stage::text(
        &debian_changelog(part, &news, &date(epoch)?),
        &changelog,
        0o644,
    )?;
    stage::compress(&changelog)?;
    let files = files(&layout.root)?;
    let mut bytes = 0;
    let mut programs = Vec::new();
    for file in &files {
        let contents =
            fs::read(layout.root.join(file)).with_context(|| file.display().to_string())?;
        bytes += contents.len() as u64;
        if contents.starts_with(b"\x7fELF") {
            programs.push(contents);
        }
    }
    let libc = programs
        .iter()
        .filter_map(|program| libc_needed(program))
        .max();
    let control = control(part, machine, bytes.div_ceil(1024), libc);
    stage::text(&control, &layout.root.join("DEBIAN/control"), 0o644)?;
    let mut sums = Command::new("md5sum");
    sums.current_dir(&layout.root).arg("--").args(&files);
    let sums = process::stdout(&mut sums, LIMIT)?;
    stage::text(&sums, &layout.root.join("DEBIAN/md5sums"), 0o644)
}

/// Files below the root without links, sorted, relative to the root.
pub(super) fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let (mut files, mut dirs) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(dir) = dirs.pop() {
        let entries = fs::read_dir(root.join(&dir)).with_context(|| dir.display().to_string())?;
        for entry in entries {
            let entry = entry?;
            let path = dir.join(entry.file_name());
            let kind = entry.file_type()?;
            if kind.is_dir() && path != Path::new("DEBIAN") {
                dirs.push(path);
            } else if kind.is_file() {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// The newest version of glibc that a program requires, from the versions of its symbols.
fn libc_needed(program: &[u8]) -> Option<(u32, u32)> {
    const MARK: &[u8] = b"GLIBC_";
    let versions = program
        .windows(MARK.len())
        .enumerate()
        .filter_map(|(at, part)| {
            if part != MARK {
                return None;
            }
            let rest = program.get(at + MARK.len()..)?;
            let end = rest
                .iter()
                .position(|byte| !matches!(byte, b'0'..=b'9' | b'.'))?;
            let mut numbers = std::str::from_utf8(&rest[..end]).ok()?.split('.');
            Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
        });
    versions.max()
}

fn control(part: Part, machine: &Machine, kib: u64, libc: Option<(u32, u32)>) -> String {
    let (about, recommends, text) = match part {
        Part::Product => (
            "pooled cross-GVMI memory keys for stock UCX",
            "ibverbs-providers, libibverbs1",
            " A library that UCX loads as a module, or that is preloaded: memory keys that a\n \
             BlueField DPU may use come from a pool on the host, and their aliases from a\n \
             map on the DPU, so that temporary buffers cost no command of the firmware.\n \
             With it comes xgvmi, which shows what the library does and whether a machine\n \
             can use it.\n",
        ),
        Part::Offload => (
            "collectives carried out by BlueField DPUs, and their benchmarks",
            "xgvmi, ibverbs-providers, libibverbs1",
            " Service processes for DPUs, which move the data of an alltoallv between the\n \
             memories of hosts; a component of UCC that hands them the collectives of any\n \
             program; OSU's alltoallv benchmarks with temporary buffers, for any\n \
             MPI; a table of what memory keys cost on this machine; and a model of machines\n \
             of any size. UCX is the one that is there.\n",
        ),
        Part::Storage => (
            "block storage over three targets, two of which are enough",
            "systemd",
            " A volume of compressed blocks on three targets: two halves and their parity,\n \
             in files or at other machines. Any NBD client uses it. A target may fail,\n \
             return with old data, or be replaced while the volume serves.\n",
        ),
        Part::Accelerator => (
            "remote procedure calls to network-attached accelerators, over RDMA",
            "ibverbs-providers, libibverbs1, librdmacm1",
            " libnaaice, a library with the C interface and the wire format of the NAAICE\n \
             communication library, its headers and its CMake package; and xgvmi-naa, an\n \
             accelerator as a service on a BlueField DPU, which runs the kernels of a\n \
             shared object on the memory of its host.\n",
        ),
        Part::Emulator => (
            "emulated BlueField beneath unmodified rdma-core",
            "ibverbs-providers, ibverbs-utils",
            " Programs that are run by bf-emu see mlx5 devices on a machine without any:\n \
             verbs, DEVX, memory keys across functions, faults on purpose, and hardware's\n \
             times where they are asked for.\n",
        ),
    };
    let depends = match libc {
        Some((major, minor)) => format!("libc6 (>= {major}.{minor}), libgcc-s1"),
        None => "libc6, libgcc-s1".to_owned(),
    };
    let (name, version) = (part.package(), env!("CARGO_PKG_VERSION"));
    let architecture = machine.architecture;
    format!(
        "Package: {name}\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: {MAINTAINER}\n\
         Installed-Size: {kib}\nDepends: {depends}\nRecommends: {recommends}\nSection: net\n\
         Priority: optional\nDescription: {about}\n{text}"
    )
}

/// The date in a changelog's format.
fn date(epoch: u64) -> Result<String> {
    let mut command = Command::new("date");
    command.env("LC_ALL", "C");
    command.args(["-u", "-R", "-d", &format!("@{epoch}")]);
    Ok(process::stdout(&mut command, LIMIT)?.trim().to_owned())
}

/// The newest section of the project's changelog in Debian's format.
fn debian_changelog(part: Part, news: &str, date: &str) -> String {
    let (name, version) = (part.package(), env!("CARGO_PKG_VERSION"));
    let mut text = format!("{name} ({version}) unstable; urgency=medium\n\n");
    let mut sections = news.split("\n## ");
    let newest = sections.nth(1).unwrap_or_default();
    for line in newest.lines().skip(1) {
        // A Debian changelog does not support links.
        if let Some(item) = line.strip_prefix("- ") {
            let _ = writeln!(text, "  * {item}");
        } else if let Some(rest) = line.strip_prefix("  ") {
            let _ = writeln!(text, "    {rest}");
        }
    }
    let _ = writeln!(text, "\n -- {MAINTAINER}  {date}");
    text
}

/// The project's licence, and the licences of the crates that are linked into the programs.
fn copyright(part: Part) -> Result<String> {
    let mit = fs::read_to_string(workspace::root().join("LICENSE-MIT")).context("LICENSE-MIT")?;
    let mut text = String::from(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\
         Upstream-Name: xgvmi\nComment: Linked into the programs are these Rust crates, each under its own licence:\n",
    );
    for line in crates(part)? {
        let _ = writeln!(text, " {line}");
    }
    text.push_str("\nFiles: *\nCopyright: 2026 the xgvmi authors\nLicense: MIT or Apache-2.0\n\nLicense: MIT\n");
    for line in mit
        .lines()
        .skip_while(|line| !line.starts_with("Permission"))
    {
        let _ = writeln!(text, " {}", if line.is_empty() { "." } else { line });
    }
    text.push_str(
        "\nLicense: Apache-2.0\n On Debian systems, the full text is in /usr/share/common-licenses/Apache-2.0.\n",
    );
    Ok(text)
}

/// Name, version and licence of the crates that are linked into a part's programs.
fn crates(part: Part) -> Result<Vec<String>> {
    let packages: &[&str] = match part {
        Part::Product => &["uct-plugin", "xgvmi-cli"],
        Part::Offload => &[
            "xgvmi-offload",
            "ucc-tl",
            "scale-model",
            "cost-table",
            "osu-bench",
            "osu-mpi",
        ],
        Part::Storage => &["xgvmi-blk", "xgvmi-blk-capi", "xgvmi-fio"],
        Part::Accelerator => &["naaice", "xgvmi-naa"],
        Part::Emulator => &["bf-emu", "bf-emu-preload"],
    };
    let mut command = Command::new("cargo");
    command.current_dir(workspace::root());
    command.args([
        "tree", "--edges", "normal", "--prefix", "none", "--format", "{p}: {l}",
    ]);
    for package in packages {
        command.args(["-p", package]);
    }
    let text = process::stdout(&mut command, LIMIT)?;
    // Lines of the project's own crates contain their directory; repeated crates end with a star.
    let foreign = text
        .lines()
        .filter(|line| !line.contains(" (/") && !line.trim().is_empty());
    let mut crates: Vec<String> = foreign
        .map(|line| line.trim_end_matches(" (*)").to_owned())
        .collect();
    crates.sort();
    crates.dedup();
    Ok(crates)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_libc_that_is_asked_for_is_found() {
        let check = |text: &str, expect| assert_eq!(libc_needed(text.as_bytes()), expect, "{text}");
        check("\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.9\0", Some((2, 34)));
        check("\0GLIBC_PRIVATE\0", None);
        check("", None);
    }

    #[test]
    fn a_changelog_is_in_debian_s_form() {
        let news = "# Changelog\n\n## Unreleased\n\n### Added\n\n- One\n  more.\n- Two.\n\n## 0.0.1\n\n- Old.\n";
        let text = debian_changelog(Part::Emulator, news, "Thu, 01 Jan 1970 00:00:00 +0000");
        assert!(text.starts_with("bf-emu (0."), "{text}");
        assert!(
            text.contains("\n  * One\n    more.\n  * Two.\n\n -- "),
            "{text}"
        );
        assert!(
            text.ends_with(">  Thu, 01 Jan 1970 00:00:00 +0000\n"),
            "{text}"
        );
        assert!(!text.contains("Old"), "{text}");
    }

    #[test]
    fn a_control_file_has_what_dpkg_needs() {
        let machine = Machine::of("aarch64").unwrap();
        let text = control(Part::Product, &machine, 7, Some((2, 34)));
        for line in [
            "Package: xgvmi",
            "Architecture: arm64",
            "Installed-Size: 7",
            "Depends: libc6 (>= 2.34), libgcc-s1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        // The long description is indented to its end.
        let (_, description) = text.split_once("Description: ").unwrap();
        assert!(
            description
                .lines()
                .skip(1)
                .all(|line| line.starts_with(' ')),
            "{text}"
        );
        assert!(text.ends_with('\n'));
    }
}
