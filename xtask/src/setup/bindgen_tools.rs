//! bindgen and its libclang, pinned; only who changes the bindings ever needs them.

use super::cache::Cache;
use super::{Fetch, pins, wheels};
use crate::process;
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// A cold build of bindgen-cli takes a minute on two cores.
const BUILD: Duration = Duration::from_secs(900);

/// Where the tools lie.
#[derive(Debug)]
pub(crate) struct BindgenTools {
    pub(crate) bindgen: PathBuf,
    pub(crate) libclang_dir: PathBuf,
}

/// Fetches and builds the tools unless the cache has them.
pub(crate) fn bindgen_tools() -> Result<BindgenTools> {
    let cache = Cache::open()?;
    let libclang = wheels::ensure(&cache, Fetch::Allowed, &pins::LIBCLANG)?;
    let version = pins::BINDGEN_VERSION;
    let bindgen = cache
        .part(&format!("bindgen-{version}"), |dir| {
            eprintln!("building bindgen {version}");
            let mut install = Command::new("cargo");
            install.args([
                "install",
                "-q",
                "--locked",
                "bindgen-cli",
                "--version",
                version,
            ]);
            // Its own target directory: this runs below a cargo which holds the lock of ours.
            install
                .arg("--root")
                .arg(dir)
                .env("CARGO_TARGET_DIR", dir.join("target"));
            process::stdout(&mut install, BUILD)?;
            std::fs::remove_dir_all(dir.join("target")).context("cannot clear the build directory")
        })
        .with_context(|| format!("needs: bindgen-cli {version}"))?;
    Ok(BindgenTools {
        bindgen: bindgen.join("bin/bindgen"),
        libclang_dir: libclang.site_packages.join("clang/native"),
    })
}
