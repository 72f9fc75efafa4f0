//! bindgen and its libclang, pinned. Only changes of the bindings need them.

use super::cache::Cache;
use super::{Fetch, crates, pins, wheels};
use anyhow::Result;
use std::path::PathBuf;

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
    let bindgen = crates::built(&cache, "bindgen", "bindgen-cli", pins::BINDGEN_VERSION)?;
    Ok(BindgenTools {
        bindgen,
        libclang_dir: libclang.site_packages.join("clang/native"),
    })
}
