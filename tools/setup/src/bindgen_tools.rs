//! bindgen and its libclang, pinned. Only changes of the bindings need them.

use super::cache::Cache;
use super::{Fetch, pins, wheels};
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use testbed::process;

/// A build of bindgen-cli without a cache takes a minute on two cores.
const BUILD: Duration = Duration::from_secs(900);

/// Paths of the tools.
#[derive(Debug)]
pub struct BindgenTools {
    /// The program.
    pub bindgen: PathBuf,
    /// The directory of `libclang.so`.
    pub libclang_dir: PathBuf,
}

/// Downloads and builds the tools unless the cache contains them.
pub fn bindgen_tools() -> Result<BindgenTools> {
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
            // A separate target directory: the calling cargo holds the lock of the default one.
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
