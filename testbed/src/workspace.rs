//! Paths of the workspace, and its build.

use crate::process;
use anyhow::{Context as _, Result, ensure};
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::Command;

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

/// The file of a program or a library that [`build`] has built.
#[must_use]
pub fn built(name: &str) -> PathBuf {
    target_dir().join("release").join(name)
}

/// Builds in release mode what each of these lines selects, such as `-p package --example program`. The examples of a package
/// need a line of their own: their features would change its library.
///
/// # Errors
/// Cargo's, which it has printed.
pub fn build(lines: &[&str]) -> Result<()> {
    lines
        .iter()
        .try_for_each(|line| cargo(&format!("build --release {line}")))
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
