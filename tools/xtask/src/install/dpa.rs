//! `cargo xtask install --dpa`: what builds of DPA programs need, in the places of a DOCA installation.

use crate::stage;
use crate::workspace;
use anyhow::{Context as _, Result, ensure};
use std::fs;
use std::path::Path;
use std::process::Command;

/// The library, and its names for the linker.
const LIBRARY: &str = "libdoca_common.so.2";
const NAMES: [&str; 8] = [
    "libdoca_common.so",
    "libdoca_argp.so",
    "libdoca_rdma.so",
    "libdoca_verbs.so",
    "libdoca_dpa.so",
    "libdoca_pcc.so",
    "libdoca_telemetry_pcc.so",
    "libflexio.so",
];
/// Programs that a build calls.
const TOOLS: [&str; 2] = ["dpacc", "dpa-app-attributes2blob"];
/// Files of pkg-config, and the library that each names.
const PACKAGES: [(&str, &str); 8] = [
    ("doca-common", "doca_common"),
    ("doca-argp", "doca_argp"),
    ("doca-rdma", "doca_rdma"),
    ("doca-verbs", "doca_verbs"),
    ("doca-dpa", "doca_dpa"),
    ("doca-pcc", "doca_pcc"),
    ("doca-telemetry-pcc", "doca_telemetry_pcc"),
    ("libflexio", "flexio"),
];
/// The version of DOCA whose names the headers have.
const VERSION: &str = "3.3.0";

/// Builds and installs.
pub(super) fn install(prefix: &Path) -> Result<()> {
    let status = Command::new(env!("CARGO"))
        .args(["build", "--release", "-p", "dpacc", "-p", "doca-libs"])
        .current_dir(workspace::root())
        .status()
        .context("cargo")?;
    ensure!(status.success(), "the build failed");
    let built = workspace::target_dir().join("release");
    let lib = prefix.join("lib");
    stage::file(&built.join("libdoca_common.so"), &lib.join(LIBRARY), 0o755)?;
    for name in NAMES {
        stage::link(LIBRARY, &lib.join(name))?;
    }
    for tool in TOOLS {
        stage::file(&built.join(tool), &prefix.join("tools").join(tool), 0o755)?;
    }
    for from in ["doca/libs/include", "doca/flexio/include"] {
        headers(&workspace::root().join(from), &prefix.join("include"))?;
    }
    for (package, library) in PACKAGES {
        let text = pkg_config(prefix, package, library);
        let file = lib.join("pkgconfig").join(format!("{package}.pc"));
        stage::text(&text, &file, 0o644)?;
    }
    stage::text(&format!("{VERSION}\n"), &prefix.join("VERSION"), 0o644)
}

fn pkg_config(prefix: &Path, package: &str, library: &str) -> String {
    format!(
        "prefix={}\nlibdir=${{prefix}}/lib\nincludedir=${{prefix}}/include\n\nName: {package}\n\
         Description: host side of DPA programs\nVersion: {VERSION}\n\
         Libs: -L${{libdir}} -Wl,-rpath,${{libdir}} -l{library}\nCflags: -I${{includedir}}\n",
        prefix.display()
    )
}

/// Copies a folder of headers.
fn headers(from: &Path, to: &Path) -> Result<()> {
    let entries = fs::read_dir(from).with_context(|| from.display().to_string())?;
    for entry in entries {
        let path = entry?.path();
        let to = to.join(path.file_name().context("a name")?);
        if path.is_dir() {
            headers(&path, &to)?;
        } else {
            stage::file(&path, &to, 0o644)?;
        }
    }
    Ok(())
}
