//! Compiler, linker, C library and emulator for programs of the DPU's processors, unpacked into the cache.
//!
//! The compiler with the standard library comes from a suite of Debian that moves: the versions are those of its index at
//! the time of the download. Headers and libraries come from a release, so that the programs run on that release and later ones.

use super::cache::{Cache, key};
use super::tree::Suite;
use super::{Fetch, PART, joined};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use testbed::{process, progress};

/// The target in Rust's names.
pub const TARGET: &str = "aarch64-unknown-linux-gnu";
/// Cargo's variable with the words that run a program of the target.
const RUNNER: &str = "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER";
/// Time limit of a query of the compiler.
const QUESTION: Duration = Duration::from_secs(60);

/// The suite of compiler and emulator.
const TOOLS_SUITE: &str = super::tree::TESTING;
/// The compiler's libraries: these packages with their dependencies.
const TOOLS_CLOSURE: &str = "libstd-rust-dev";
/// Added without dependencies. The compiler depends on a C compiler of the same suite, which is not needed.
const TOOLS: &[&str] = &["rustc", "qemu-user", "libstd-rust-dev:arm64"];
/// The only program of `qemu-user` that is kept, of 40.
const EMULATOR: &str = "qemu-aarch64";

/// The release of headers and libraries.
const LIBRARIES_SUITE: &str = "bookworm";
/// The C library, libibverbs with its provider for mlx5, librdmacm, what they and stock UCX need, and tools that open a device.
const LIBRARIES: &[&str] = &[
    "ibverbs-providers",
    "ibverbs-utils",
    "libc6",
    "libc6-dev",
    "libcrypt1",
    "libgcc-12-dev",
    "libgcc-s1",
    "libgomp1",
    "libibverbs-dev",
    "libibverbs1",
    "libnl-3-200",
    "libnl-route-3-200",
    "libnuma1",
    "librdmacm-dev",
    "librdmacm1",
    "libstdc++6",
    "linux-libc-dev",
];

/// Their folder with the links that the linker follows.
const LINKED: &str = "usr/lib/aarch64-linux-gnu";

/// Starts the compiler by its own loader: it needs a newer C library than the machine may have.
const RUSTC: &str = r#"#!/bin/sh
tools=$(dirname "$(readlink -f "$0")")/tools
libraries=$tools/usr/lib/x86_64-linux-gnu
exec "$libraries/ld-linux-x86-64.so.2" --library-path "$libraries" "$tools/usr/bin/rustc" --sysroot "$tools/usr" "$@"
"#;

/// Compiles and links C, and links Rust, for the target.
const CC: &str = r#"#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
exec clang-19 --target=aarch64-linux-gnu --sysroot="$here/libraries" -fuse-ld=lld-19 "$@"
"#;

/// Runs a program of the target.
const RUN: &str = r#"#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
exec "$here/tools/usr/bin/qemu-aarch64" -L "$here/libraries" "$@"
"#;

/// Tools for the target.
#[derive(Debug, Clone)]
pub struct Aarch64 {
    /// Directory of all.
    dir: PathBuf,
    /// Search paths of clang and lld if they are not installed.
    paths: Vec<(&'static str, String)>,
}

/// Ensures the tools. Downloads them unless the cache contains them.
///
/// # Errors
/// The packages are not available, or the suite's compiler is older than the project's minimum.
pub fn ensure() -> Result<Aarch64> {
    ensure_with(Fetch::Allowed)
}

/// As [`ensure()`], but downloads nothing if `fetch` says so.
///
/// # Errors
/// As [`ensure()`].
pub fn ensure_with(fetch: Fetch) -> Result<Aarch64> {
    ensure!(
        std::env::consts::ARCH == "x86_64",
        "the compiler and the emulator for aarch64 are set up on x86_64 only"
    );
    // It waits for the cache itself.
    let paths = super::riscv().context("needs: clang-19 and lld-19")?;
    let cache = Cache::open()?;
    let name = part_name();
    if fetch == Fetch::Refused && !cache.has_part(&name) {
        bail!("the compiler and the emulator for aarch64 are not in the cache (offline)");
    }
    let dir = cache.part(&name, |dir| {
        progress::note(
            PART,
            "fetching compiler, C library and emulator for aarch64 (240 MB)",
        );
        unpack(dir)?;
        is_new_enough(&dir.join("rustc"))
    })?;
    // Here, because caches exist in which they lead to this machine's files.
    own_links(&dir.join("libraries"), Path::new(LINKED))?;
    Ok(Aarch64 { dir, paths })
}

fn part_name() -> String {
    let inputs = [
        TOOLS_SUITE,
        TOOLS_CLOSURE,
        &TOOLS.join(" "),
        LIBRARIES_SUITE,
        &LIBRARIES.join(" "),
        RUSTC,
        CC,
        RUN,
    ];
    format!("aarch64-{}", key(&inputs))
}

/// Makes the absolute links of a folder lead into the tree that contains it. Where such a link of a library leads nowhere, the
/// linker takes the static library, parts of the C library with it.
fn own_links(root: &Path, folder: &Path) -> Result<()> {
    let up: PathBuf = folder.components().map(|_| "..").collect();
    let place = root.join(folder);
    for entry in fs::read_dir(&place).with_context(|| place.display().to_string())? {
        let path = entry?.path();
        let target = fs::read_link(&path).unwrap_or_default();
        let Ok(inside) = target.strip_prefix("/") else {
            continue;
        };
        let new = path.with_extension(format!("{}.new", std::process::id()));
        let moved = symlink(up.join(inside), &new).and_then(|()| fs::rename(&new, &path));
        moved.with_context(|| path.display().to_string())?;
    }
    Ok(())
}

fn unpack(dir: &Path) -> Result<()> {
    let tools = dir.join("tools");
    let suite = Suite::open(TOOLS_SUITE, &["amd64", "arm64"], dir)?;
    let mut packages = suite.closure(TOOLS_CLOSURE)?;
    packages.extend(TOOLS.iter().map(|&name| name.to_owned()));
    suite.unpack(&packages, &tools)?;
    suite.close()?;
    let programs = tools.join("usr/bin");
    for entry in fs::read_dir(&programs).context("the packages have no programs")? {
        let entry = entry?;
        let name = entry.file_name();
        if name != EMULATOR && name.to_string_lossy().starts_with("qemu-") {
            fs::remove_file(entry.path())?;
        }
    }
    let suite = Suite::open(LIBRARIES_SUITE, &["arm64"], dir)?;
    let packages: Vec<String> = LIBRARIES.iter().map(|&name| name.to_owned()).collect();
    suite.unpack(&packages, &dir.join("libraries"))?;
    suite.close()?;
    for (name, text) in [("rustc", RUSTC), ("cc", CC), ("run", RUN)] {
        let path = dir.join(name);
        fs::write(&path, text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// Compares the compiler with the minimum of this project, which its packages name.
fn is_new_enough(rustc: &Path) -> Result<()> {
    let found = release(rustc)?;
    let least = env!("CARGO_PKG_RUST_VERSION");
    ensure!(
        numbers(&found) >= numbers(least),
        "Debian {TOOLS_SUITE} has rustc {found}, and this project needs {least}"
    );
    Ok(())
}

/// The version of a compiler.
fn release(rustc: &Path) -> Result<String> {
    let text = process::stdout(Command::new(rustc).arg("-vV"), QUESTION)?;
    let line = text.lines().find_map(|line| line.strip_prefix("release: "));
    line.map(str::to_owned)
        .with_context(|| format!("{} names no version", rustc.display()))
}

fn numbers(version: &str) -> Vec<u32> {
    let parts = version.split(|c: char| !c.is_ascii_digit());
    parts.map_while(|part| part.parse().ok()).collect()
}

impl Aarch64 {
    /// The compiler.
    pub fn rustc(&self) -> PathBuf {
        self.dir.join("rustc")
    }

    /// A C compiler and linker.
    pub fn cc(&self) -> PathBuf {
        self.dir.join("cc")
    }

    /// A program that runs programs of the target; its own options precede the program.
    pub fn runner(&self) -> PathBuf {
        self.dir.join("run")
    }

    /// The emulator itself.
    pub fn emulator(&self) -> PathBuf {
        self.dir.join("tools/usr/bin").join(EMULATOR)
    }

    /// The root of the target's headers and libraries.
    pub fn libraries(&self) -> PathBuf {
        self.dir.join("libraries")
    }

    /// Names and versions, for a report.
    ///
    /// # Errors
    /// One of the programs does not run.
    pub fn versions(&self) -> Result<String> {
        let emulator = process::stdout(Command::new(self.emulator()).arg("--version"), QUESTION)?;
        let emulator = emulator.split_whitespace().nth(2).unwrap_or("unknown");
        let rustc = release(&self.rustc())?;
        Ok(format!(
            "rustc {rustc} and qemu {emulator} of Debian {TOOLS_SUITE}, libraries of Debian {LIBRARIES_SUITE}"
        ))
    }

    /// The variable with which cargo ends each program that it runs after this time: its exit code is then 124.
    pub fn limited(&self, limit: Duration) -> (&'static str, String) {
        let (seconds, runner) = (limit.as_secs(), self.runner());
        // In the foreground it stays in cargo's process group, and ends with it.
        let words = format!("timeout --foreground -k 10 {seconds} {}", runner.display());
        (RUNNER, words)
    }

    /// Search paths of clang and lld, for the C compiler's environment.
    pub fn for_cc(&self) -> Vec<(String, String)> {
        let found = self.paths.iter().map(|(name, found)| {
            let mut dirs = vec![PathBuf::from(found)];
            dirs.extend(std::env::var_os(name).map(PathBuf::from));
            ((*name).to_owned(), joined(&dirs))
        });
        found.collect()
    }

    /// Environment of cargo that builds for the target in a directory of its own, because another compiler produces other
    /// files for this machine too.
    pub fn for_cargo(&self, target_dir: &Path) -> Vec<(String, String)> {
        let shown = |path: PathBuf| path.display().to_string();
        let mut variables = vec![
            ("RUSTC".to_owned(), shown(self.rustc())),
            (
                "CARGO_TARGET_DIR".to_owned(),
                target_dir.display().to_string(),
            ),
            (
                "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER".to_owned(),
                shown(self.cc()),
            ),
            // Of crates with parts in C.
            ("CC_aarch64_unknown_linux_gnu".to_owned(), shown(self.cc())),
            (RUNNER.to_owned(), shown(self.runner())),
        ];
        // Everything is built once, and nobody debugs it. No other program strips what the linker leaves in packages.
        for (name, value) in [
            ("CARGO_INCREMENTAL", "0"),
            ("CARGO_PROFILE_DEV_DEBUG", "0"),
            ("CARGO_PROFILE_RELEASE_STRIP", "debuginfo"),
        ] {
            variables.push((name.to_owned(), value.to_owned()));
        }
        variables.extend(self.for_cc());
        variables
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number() {
        assert!(numbers("1.100.0") > numbers("1.92"));
        assert!(numbers("1.92.0-nightly") >= numbers("1.92"));
        assert!(numbers("1.85.1") < numbers("1.92"));
    }

    #[test]
    fn absolute_links_lead_into_the_tree() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("usr/lib");
        fs::create_dir_all(&folder).unwrap();
        fs::create_dir(root.path().join("lib")).unwrap();
        fs::write(root.path().join("lib/a.so.6"), "here").unwrap();
        symlink("/lib/a.so.6", folder.join("a.so")).unwrap();
        symlink("a.so", folder.join("b.so")).unwrap();
        for _ in 0..2 {
            own_links(root.path(), Path::new("usr/lib")).unwrap();
            assert_eq!(fs::read_to_string(folder.join("b.so")).unwrap(), "here");
            assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
        }
    }

    #[test]
    fn a_compiler_that_is_too_old_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let rustc = dir.path().join("rustc");
        let write = |text: &str| {
            fs::write(&rustc, text).unwrap();
            fs::set_permissions(&rustc, fs::Permissions::from_mode(0o755)).unwrap();
        };
        write("#!/bin/sh\necho release: 1.63.0\n");
        let error = is_new_enough(&rustc).unwrap_err().to_string();
        assert!(
            error.contains("rustc 1.63.0") && error.contains("needs"),
            "{error}"
        );
        write("#!/bin/sh\necho release: 9.0.0\n");
        is_new_enough(&rustc).unwrap();
        write("#!/bin/sh\necho nothing\n");
        assert!(is_new_enough(&rustc).is_err());
    }
}
