//! Programs of crates, pinned and built once.

use super::cache::Cache;
use anyhow::{Context as _, Result};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use testbed::process;

/// A build of bindgen-cli without a cache takes a minute on two cores.
const BUILD: Duration = Duration::from_secs(900);

/// The path of a crate's program.
pub(crate) fn built(cache: &Cache, program: &str, name: &str, version: &str) -> Result<PathBuf> {
    let part = cache
        .part(&format!("{program}-{version}"), |dir| {
            eprintln!("building {program} {version}");
            let mut install = Command::new("cargo");
            install.args(["install", "-q", "--locked", name, "--version", version]);
            // A separate target directory: the calling cargo holds the lock of the default one.
            install
                .arg("--root")
                .arg(dir)
                .env("CARGO_TARGET_DIR", dir.join("target"));
            process::stdout(&mut install, BUILD)?;
            std::fs::remove_dir_all(dir.join("target")).context("cannot clear the build directory")
        })
        .with_context(|| format!("needs: {name} {version}"))?;
    Ok(part.join("bin").join(program))
}
