//! Paths of the workspace, and its build.

use crate::process;
use anyhow::{Context as _, Result, ensure};
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// The workspace's root directory.
pub fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_owned()
}

/// Cargo's target directory: `$CARGO_TARGET_DIR`, else `target` in the workspace.
pub fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR").filter(|dir| !dir.is_empty()) {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// Directory of the reports of a program: `target/NAME`. In another mode of the device than the usual one it is a directory in
/// there, because a report must not replace the usual one.
#[must_use]
pub fn reports_dir(name: &str) -> PathBuf {
    let usual = target_dir().join(name);
    match std::env::var("BFEMU_MODE") {
        Ok(mode) if mode != "trap" => usual.join(mode.replace(':', "-")),
        _ => usual,
    }
}

/// The file of a program or a library that [`build`] has built.
#[must_use]
pub fn built(name: &str) -> PathBuf {
    target_dir().join("release").join(name)
}

/// Set to 1 where all default members of the workspace have been built together. A build of some of them would resolve other
/// features of the crates below, and so compile much a second time.
pub const BUILD_WHOLE: &str = "XGVMI_BUILD_WHOLE";

/// The same for this process.
static WHOLE: AtomicBool = AtomicBool::new(false);

/// From now on [`build`] builds in this process as if [`BUILD_WHOLE`] were set.
pub fn build_whole() {
    WHOLE.store(true, Ordering::Relaxed);
}

/// Whether [`build`] builds all default members together.
#[must_use]
pub fn builds_whole() -> bool {
    WHOLE.load(Ordering::Relaxed) || std::env::var_os(BUILD_WHOLE).is_some_and(|set| set == "1")
}

/// Builds in release mode what each of these lines selects, such as `-p package --example program`. The examples of a package
/// need a line of their own: their features would change its library. Where [`builds_whole`] says so, lines that select only
/// packages and programs stand for the build of all default members, to which all such packages belong.
///
/// # Errors
/// Cargo's, which it has printed.
pub fn build(lines: &[&str]) -> Result<()> {
    let whole = builds_whole();
    let (members, others): (Vec<&str>, Vec<&str>) =
        lines.iter().partition(|line| whole && is_of_members(line));
    if !members.is_empty() {
        cargo("build --release")?;
    }
    others
        .iter()
        .try_for_each(|line| cargo(&format!("build --release {line}")))
}

/// Packages that a user of cargo's plain build does not need, and whose features would change its libraries.
const OTHERS: [&str; 2] = ["pool-bench", "pcc-run"];

/// Whether a line selects only default members, or their programs.
fn is_of_members(line: &str) -> bool {
    let mut words = line.split_whitespace();
    while let Some(word) = words.next() {
        let is_plain = match word {
            "-p" => words.next().is_some_and(|name| !OTHERS.contains(&name)),
            "--bin" => words.next().is_some(),
            _ => false,
        };
        if !is_plain {
            return false;
        }
    }
    true
}

/// Runs cargo in the workspace with these words.
///
/// # Errors
/// Cargo's, which it has printed.
pub fn cargo(words: &str) -> Result<()> {
    let mut command = Command::new("cargo");
    command.current_dir(root()).args(words.split_whitespace());
    if !std::io::stderr().is_terminal() {
        command.arg("--quiet");
    }
    let status = command.status().context("cannot run cargo")?;
    ensure!(status.success(), "`{}`: {status}", process::shown(&command));
    Ok(())
}
