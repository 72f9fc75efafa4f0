//! Checks of a built library or program: processor, name, exported symbols, no code that must be changed at load time, and no
//! variables in the space that the C library reserves for threads at the start of a program.

use super::UNPACKAGED;
use anyhow::{Context as _, Result, ensure};
use dev_setup::aarch64::Aarch64;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use testbed::process;

const LIMIT: Duration = Duration::from_secs(60);

/// The oldest supported C library is 2.34 (docs/HARDWARE.md).
const LIBC: u32 = 34;

/// A built file.
#[derive(Debug)]
pub(super) struct File {
    pub(super) package: &'static str,
    pub(super) name: &'static str,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// A program that says its version.
    Program,
    Library {
        soname: &'static str,
        /// Symbols that it must export.
        exports: &'static [&'static str],
        /// It may export no others.
        only: bool,
    },
}

/// The files of the product and of the emulated device.
pub(super) const FILES: &[File] = &[
    library(
        "uct-plugin",
        "libuct_ib_mlx5_xgvmi.so",
        "libuct_ib_mlx5_xgvmi.so.0",
        &[
            "uct_ib_mlx5_devx_md_close",
            "uct_ib_mlx5_devx_md_query",
            "uct_ib_mlx5_devx_mem_attach",
            "uct_ib_mlx5_devx_mem_dereg",
            "uct_ib_mlx5_devx_mem_reg",
            "uct_ib_mlx5_devx_mkey_pack",
            "uct_md_open",
            "xgvmi_accept",
            "xgvmi_announce",
            "xgvmi_announce_keys",
            "xgvmi_stats",
            "xgvmi_version",
        ],
        true,
    ),
    library(
        "naaice",
        "libnaaice.so",
        "libnaaice.so",
        &["naa_create", "naa_invoke", "naa_wait", "naa_finalize"],
        false,
    ),
    library(
        "ucc-tl",
        "libucc_tl_xgvmi.so",
        "libucc_tl_xgvmi.so",
        &["ucc_tl_xgvmi", "ucc_tl_xgvmi_status"],
        true,
    ),
    library(
        "bf-emu-preload",
        "libbfemu_preload.so",
        "libbfemu_preload.so",
        &["open", "ioctl", "close", "sigaction", "pthread_sigmask"],
        false,
    ),
    library(
        UNPACKAGED,
        "libdoca_common.so",
        "libdoca_common.so.2",
        &[
            "doca_dpa_kernel_launch_update_add",
            "doca_dpa_kernel_launch_update_set",
            "doca_dpa_rpc",
            "doca_log",
            "flexio_process_call",
        ],
        false,
    ),
    program("xgvmi-cli", "xgvmi"),
    program("xgvmi-offload", "xgvmi-sp"),
    program("xgvmi-blk", "xgvmi-blk"),
    program("xgvmi-naa", "xgvmi-naa"),
    program("bf-emu", "bf-emu"),
];

const fn program(package: &'static str, name: &'static str) -> File {
    File {
        package,
        name,
        kind: Kind::Program,
    }
}

const fn library(
    package: &'static str,
    name: &'static str,
    soname: &'static str,
    exports: &'static [&'static str],
    only: bool,
) -> File {
    let kind = Kind::Library {
        soname,
        exports,
        only,
    };
    File {
        package,
        name,
        kind,
    }
}

impl File {
    /// Its name where it is built, and where it is installed.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        let soname = match self.kind {
            Kind::Program => self.name,
            Kind::Library { soname, .. } => soname,
        };
        [soname, self.name].into_iter()
    }
}

/// Checks a file.
pub(super) fn check(file: &File, path: &Path, tools: &Aarch64) -> Result<()> {
    let text = read(path, &["-hldW"])?;
    faults(&text)?;
    let symbols = read(path, &["--dyn-syms", "-W"])?;
    let private = symbols.lines().find(|line| line.contains("GLIBC_PRIVATE"));
    ensure!(
        private.is_none(),
        "it contains a part of the C library, which needs the rest of that version: {private:?}"
    );
    let newer = symbols.lines().find(|line| needs_newer_libc(line));
    ensure!(
        newer.is_none(),
        "it needs a C library newer than 2.{LIBC}: {newer:?}"
    );
    match &file.kind {
        Kind::Program => {
            let mut command = Command::new(tools.emulator());
            command.arg("-L").arg(tools.libraries());
            let said = process::stdout(command.arg(path).arg("--version"), LIMIT)?;
            let version = env!("CARGO_PKG_VERSION");
            ensure!(said.contains(version), "--version is {said}, not {version}");
        }
        Kind::Library {
            soname,
            exports,
            only,
        } => {
            let wanted = format!("[{soname}]");
            let is_named = |line: &str| line.contains("(SONAME)") && line.ends_with(&wanted);
            ensure!(text.lines().any(is_named), "the soname is not {soname}");
            let found: BTreeSet<&str> = symbols.lines().filter_map(exported).collect();
            let wanted: BTreeSet<&str> = exports.iter().copied().collect();
            let absent: Vec<_> = wanted.difference(&found).collect();
            ensure!(absent.is_empty(), "{absent:?} are not exported");
            let surplus: Vec<_> = found.difference(&wanted).collect();
            ensure!(!only || surplus.is_empty(), "{surplus:?} are exported");
            let relocations = read(path, &["-rW"])?;
            let reserved = relocations.lines().find(|line| takes_reserve(line));
            ensure!(
                reserved.is_none(),
                "dlopen may find no space for its thread-local variables: {reserved:?}"
            );
        }
    }
    Ok(())
}

fn read(path: &Path, options: &[&str]) -> Result<String> {
    let mut command = Command::new("readelf");
    process::stdout(command.args(options).arg(path), LIMIT)
        .with_context(|| path.display().to_string())
}

/// Whether a line of `readelf -r` places a thread-local variable in space that dlopen cannot enlarge.
fn takes_reserve(line: &str) -> bool {
    line.contains("TLS_TPREL")
}

/// Faults in the headers of a library or program.
fn faults(text: &str) -> Result<()> {
    let machine = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("Machine:"));
    let machine = machine.map_or("unknown", str::trim);
    ensure!(machine == "AArch64", "it is for {machine}");
    ensure!(
        !text.contains("TEXTREL"),
        "its code contains addresses that the loader must change (TEXTREL)"
    );
    ensure!(
        text.contains("Type:") && text.contains("DYN"),
        "it is not position-independent"
    );
    let unaligned = text.lines().find(|line| fits_small_pages_only(line));
    ensure!(
        unaligned.is_none(),
        "kernels with pages of 64 KiB cannot map it: {unaligned:?}"
    );
    Ok(())
}

/// Whether a line of `readelf -l` is of a segment that is not aligned to the largest pages of the processor.
fn fits_small_pages_only(line: &str) -> bool {
    const LARGEST_PAGE: u64 = 64 << 10;
    let mut words = line.split_whitespace();
    let is_loaded = words.next() == Some("LOAD");
    let alignment = words.next_back().and_then(|word| word.strip_prefix("0x"));
    let alignment = alignment.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    is_loaded && alignment.is_none_or(|bytes| bytes < LARGEST_PAGE)
}

/// Whether a line of `readelf --dyn-syms` is of a symbol that the oldest supported C library does not have.
fn needs_newer_libc(line: &str) -> bool {
    let version = line.split_once("@GLIBC_2.").map(|(_, version)| version);
    let digits = version.and_then(|version| version.split(|c: char| !c.is_ascii_digit()).next());
    let minor = digits.and_then(|digits| digits.parse::<u32>().ok());
    minor.is_some_and(|minor| minor > LIBC)
}

/// The name in a line of `readelf --dyn-syms`, if the file exports it.
fn exported(line: &str) -> Option<&str> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, _, _, kind, bind, visibility, section, name, ..] = fields.as_slice() else {
        return None;
    };
    let is = matches!(*bind, "GLOBAL" | "WEAK")
        && matches!(*visibility, "DEFAULT" | "PROTECTED")
        && matches!(*kind, "FUNC" | "OBJECT")
        && *section != "UND";
    is.then(|| name.split('@').next().unwrap_or(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_is_told() {
        let good = "  Type:     DYN (Shared object file)\n  Machine:     AArch64\n  LOAD 0x0 0x0 0x0 0x9 0x9 R E 0x10000\n";
        faults(good).unwrap();
        for (from, to, expect) in [
            ("AArch64", "Advanced Micro Devices X86-64", "X86-64"),
            ("DYN", "EXEC", "position-independent"),
            ("AArch64\n", "AArch64\n 0x16 (TEXTREL) 0x0\n", "TEXTREL"),
            ("0x10000", "0x1000", "64 KiB"),
        ] {
            let error = faults(&good.replace(from, to)).unwrap_err().to_string();
            assert!(error.contains(expect), "{error}");
        }
    }

    #[test]
    fn thread_local_variables_in_the_reserve_are_found() {
        for (line, expect) in [
            ("29e378  6700000406 R_AARCH64_TLS_TPREL64  0 own + 0", true),
            ("29e378  406 R_AARCH64_TLS_TPREL64  38", true),
            ("29e250  407 R_AARCH64_TLSDESC      a0", false),
        ] {
            assert_eq!(takes_reserve(line), expect, "{line}");
        }
    }

    #[test]
    fn symbols_of_newer_c_libraries_are_found() {
        for (line, expect) in [
            (
                "9: 0 0 FUNC GLOBAL DEFAULT UND malloc@GLIBC_2.17 (2)",
                false,
            ),
            ("9: 0 0 FUNC GLOBAL DEFAULT UND dlsym@GLIBC_2.34 (3)", false),
            (
                "9: 0 0 FUNC GLOBAL DEFAULT UND arc4random@GLIBC_2.36 (4)",
                true,
            ),
        ] {
            assert_eq!(needs_newer_libc(line), expect, "{line}");
        }
    }

    #[test]
    fn exported_symbols_are_told_from_others() {
        for (line, expect) in [
            (
                "    7: 0000000000012340    60 FUNC    GLOBAL DEFAULT   13 xgvmi_stats",
                Some("xgvmi_stats"),
            ),
            (
                "    8: 0000000000012340    60 OBJECT  GLOBAL DEFAULT   13 table@@V1",
                Some("table"),
            ),
            (
                "    9: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND malloc@GLIBC_2.17 (2)",
                None,
            ),
            (
                "   10: 0000000000012340    60 FUNC    LOCAL  DEFAULT   13 hidden",
                None,
            ),
            (
                "   Num:    Value          Size Type    Bind   Vis      Ndx Name",
                None,
            ),
        ] {
            assert_eq!(exported(line), expect, "{line}");
        }
    }
}
