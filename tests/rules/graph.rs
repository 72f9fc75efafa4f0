//! Rules about crates: allowed dependencies, and allowed licences.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Allowed dependencies inside the workspace. A new one needs a decision. Build and test dependencies count as well.
pub(super) const EDGES: &[(&str, &[&str])] = &[
    ("mlx5-prm", &[]),
    ("cli-pages", &[]),
    ("pcc-lab", &[]),
    ("pcc-dev", &[]),
    ("mlx5dv-sys", &["testbed"]),
    ("ucx-sys", &["testbed"]),
    ("rdmacm-sys", &["mlx5dv-sys", "testbed"]),
    ("xgvmi-pool", &["mlx5-prm", "mlx5dv-sys"]),
    ("pool-bench", &["xgvmi-pool"]),
    ("xgvmi-verbs", &["mlx5dv-sys", "xgvmi-pool"]),
    ("uct-plugin", &["xgvmi-pool", "ucx-sys"]),
    (
        "xgvmi-cli",
        &[
            "bench-report",
            "cli-pages",
            "cost-table",
            "mlx5-prm",
            "mlx5dv-sys",
            "naaice",
            "ucx-sys",
            "xgvmi-pool",
        ],
    ),
    ("dpa-dev", &[]),
    ("dpacc", &["dpa-dev", "pcc-dev"]),
    (
        "pcc-run",
        &[
            "bench-report",
            "dpa-dev",
            "dpacc",
            "pcc-dev",
            "pcc-lab",
            "rv64",
        ],
    ),
    ("dpa-os", &["dpa-dev", "mlx5-prm", "pcc-dev", "rv64"]),
    ("flexio", &["dpa-dev", "mlx5-prm", "mlx5dv-sys", "rv64"]),
    (
        "bf-emu",
        &["cli-pages", "dpa-os", "mlx5-prm", "pcc-dev", "rv64"],
    ),
    ("doca-libs", &["dpa-dev", "flexio", "mlx5dv-sys", "pcc-dev"]),
    ("bf-emu-preload", &["bf-emu", "mlx5-prm"]),
    ("xgvmi-ucp", &["ucx-sys"]),
    ("xgvmi-daemon", &["xgvmi-pool"]),
    (
        "xgvmi-offload",
        &[
            "cli-pages",
            "flexio",
            "ucx-sys",
            "xgvmi-daemon",
            "xgvmi-pool",
            "xgvmi-ucp",
            "xgvmi-verbs",
        ],
    ),
    (
        "xgvmi-blk",
        &[
            "cli-pages",
            "ucx-sys",
            "xgvmi-daemon",
            "xgvmi-pool",
            "xgvmi-ucp",
            "xgvmi-verbs",
        ],
    ),
    ("xgvmi-blk-capi", &["xgvmi-blk"]),
    ("xgvmi-fio", &["xgvmi-blk", "xgvmi-daemon"]),
    ("ucc-tl", &["ucx-sys", "xgvmi-offload"]),
    (
        "naaice",
        &["rdmacm-sys", "xgvmi-daemon", "xgvmi-pool", "xgvmi-verbs"],
    ),
    (
        "xgvmi-naa",
        &[
            "cli-pages",
            "naaice",
            "xgvmi-daemon",
            "xgvmi-pool",
            "xgvmi-verbs",
        ],
    ),
    ("rv64", &[]),
    ("bench-report", &[]),
    (
        "scale-model",
        &["bench-report", "cli-pages", "pcc-lab", "xgvmi-offload"],
    ),
    (
        "cost-table",
        &["bench-report", "cli-pages", "xgvmi-pool", "xgvmi-ucp"],
    ),
    (
        "osu-bench",
        &["bench-report", "testbed", "ucx-sys", "xgvmi-ucp"],
    ),
    (
        "osu-mpi",
        &[
            "bench-report",
            "cli-pages",
            "osu-bench",
            "xgvmi-offload",
            "xgvmi-ucp",
        ],
    ),
    ("step-count", &[]),
    ("testbed", &["bench-report"]),
    (
        "testbed-programs",
        &[
            "bench-report",
            "flexio",
            "mlx5dv-sys",
            "naaice",
            "rdmacm-sys",
            "testbed",
            "ucx-sys",
            "xgvmi-blk",
            "xgvmi-daemon",
            "xgvmi-naa",
            "xgvmi-offload",
            "xgvmi-pool",
            "xgvmi-ucp",
            "xgvmi-verbs",
        ],
    ),
    ("dev-setup", &["testbed"]),
    ("doc-numbers", &["bench-report"]),
    (
        "xgvmi-tests",
        &["dpa-dev", "testbed", "doc-numbers", "mlx5-prm"],
    ),
    ("xgvmi-models", &["xgvmi-pool"]),
    ("storage-search", &["xgvmi-blk"]),
    ("storage-suite", &["testbed"]),
    ("stock-suites", &["testbed", "dev-setup", "storage-suite"]),
    (
        "xtask",
        &[
            "bench-report",
            "testbed",
            "dev-setup",
            "doc-numbers",
            "stock-suites",
            "storage-suite",
        ],
    ),
];

/// Accepted licences of third-party code. An expression needs one alternative that consists of these.
const LICENCES: &[&str] = &[
    "MIT",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "Unlicense",
    "Unicode-3.0",
    "CC0-1.0",
    "BSL-1.0",
    "0BSD",
];

/// The project's own licence.
const OWN_LICENCE: &str = "MIT OR Apache-2.0";

/// Limit of a command in seconds. Includes the download of crates that are not in cargo's cache.
const LIMIT: &str = "60";

/// A package of the build, own or third-party.
#[derive(Debug, Clone)]
pub(super) struct Package {
    pub(super) name: String,
    licence: String,
    pub(super) ours: bool,
    pub(super) dependencies: BTreeSet<String>,
    /// Its folder from the root; of third-party code any path.
    folder: String,
    /// The oldest supported compiler, such as `1.88` or `1.88.0`; empty if not declared.
    rust_version: String,
}

/// Queries cargo for this platform only; packages of other platforms are never downloaded.
pub(super) fn packages(root: &Path) -> Result<Vec<Package>> {
    let version = said(root, &["rustc", "-vV"])?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.context("rustc -vV names no host")?;
    let query = [
        "cargo",
        "metadata",
        "--format-version=1",
        "--filter-platform",
        host,
    ];
    let text = said(root, &query)?;
    let metadata: Value = serde_json::from_str(&text).context("cargo metadata's answer")?;
    let text_of = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = metadata["packages"]
        .as_array()
        .context("cargo metadata without packages")?;
    let prefix = format!("{}/", root.display());
    Ok(list
        .iter()
        .map(|package| Package {
            name: text_of(&package["name"]),
            licence: text_of(&package["license"]),
            ours: package["source"].is_null(),
            folder: text_of(&package["manifest_path"])
                .trim_start_matches(&prefix)
                .to_owned(),
            rust_version: text_of(&package["rust_version"]),
            dependencies: package["dependencies"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|dependency| text_of(&dependency["name"]))
                .collect(),
        })
        .collect())
}

/// Standard output of a command that runs in the workspace's root.
fn said(root: &Path, command: &[&str]) -> Result<String> {
    let mut limited = Command::new("timeout");
    limited.arg(LIMIT).args(command).current_dir(root);
    let done = limited.output().context("cannot run timeout")?;
    let (line, error) = (command.join(" "), String::from_utf8_lossy(&done.stderr));
    ensure!(done.status.success(), "{line}: {}: {error}", done.status);
    String::from_utf8(done.stdout).with_context(|| format!("output of {line}"))
}

pub(super) fn edges(packages: &[Package]) -> Vec<String> {
    let ours: BTreeSet<&str> = packages
        .iter()
        .filter(|p| p.ours)
        .map(|p| p.name.as_str())
        .collect();
    let mut faults = Vec::new();
    for package in packages.iter().filter(|package| package.ours) {
        let Some((_, allowed)) = EDGES.iter().find(|(name, _)| *name == package.name) else {
            faults.push(format!(
                "{}: a new crate; say here on what it may depend",
                package.name
            ));
            continue;
        };
        let inside = package
            .dependencies
            .iter()
            .filter(|name| ours.contains(name.as_str()));
        // A crate's own tests may enable its features by a dependency on itself.
        let wrong =
            inside.filter(|name| **name != package.name && !allowed.contains(&name.as_str()));
        faults.extend(wrong.map(|name| format!("{} must not depend on {name}", package.name)));
    }
    faults
}

/// Only development uses the crates of `tools/`.
pub(super) fn tools(packages: &[Package]) -> Vec<String> {
    let is_within = |package: &Package, folders: &[&str]| {
        package.ours
            && folders
                .iter()
                .any(|folder| package.folder.starts_with(folder))
    };
    let of_tools: BTreeSet<&str> = packages
        .iter()
        .filter(|package| is_within(package, &["tools/"]))
        .map(|package| package.name.as_str())
        .collect();
    let product = packages
        .iter()
        .filter(|package| package.ours && !is_within(package, &["tools/", "tests/"]));
    product
        .flat_map(|package| {
            let wrong = package.dependencies.iter();
            wrong
                .filter(|name| of_tools.contains(name.as_str()))
                .map(|name| format!("{}: uses {name}, which is in tools/", package.folder))
        })
        .collect()
}

/// No dependency needs a newer compiler than the workspace's `rust-version`, which all crates of the workspace share.
pub(super) fn compilers(packages: &[Package]) -> Vec<String> {
    let parse = |text: &str| -> Vec<u32> {
        let parts = text.split('.').map(|part| part.parse().unwrap_or(u32::MAX));
        let mut parts: Vec<u32> = parts.collect();
        parts.resize(3, 0);
        parts
    };
    let Some(oldest) = packages
        .iter()
        .find(|p| p.ours && !p.rust_version.is_empty())
    else {
        return vec!["no crate of the workspace says which compiler it needs".to_owned()];
    };
    let limit = parse(&oldest.rust_version);
    let fault = |package: &&Package| match package.ours {
        true => package.rust_version != oldest.rust_version,
        false => !package.rust_version.is_empty() && parse(&package.rust_version) > limit,
    };
    let told = |package: &Package| {
        format!(
            "{}: needs rust {}, not {}",
            package.name, package.rust_version, oldest.rust_version
        )
    };
    packages.iter().filter(fault).map(told).collect()
}

pub(super) fn licences(packages: &[Package]) -> Vec<String> {
    let fault = |package: &&Package| match package.ours {
        true => package.licence != OWN_LICENCE,
        false => !accepted(&package.licence),
    };
    let wrong = packages.iter().filter(fault);
    wrong
        .map(|package| format!("{}: licence '{}'", package.name, package.licence))
        .collect()
}

/// Whether one alternative of an SPDX expression is made of accepted licences only.
fn accepted(expression: &str) -> bool {
    // A slash is an old form of "or". No crate in use nests alternatives deeper than one pair of parentheses.
    let flat = expression.replace('/', " OR ").replace(['(', ')'], " ");
    let flat = flat.split_whitespace().collect::<Vec<_>>().join(" ");
    let parts_ok = |expression: &str| {
        expression
            .split(" AND ")
            .all(|l| LICENCES.contains(&l.trim()))
    };
    match expression.contains(") AND") || expression.contains("AND (") {
        // (A OR B) AND C: each factor needs an accepted alternative.
        true => flat
            .split(" AND ")
            .all(|factor| factor.split(" OR ").any(|l| LICENCES.contains(&l.trim()))),
        false => flat.split(" OR ").any(parts_ok),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn package(name: &str, licence: &str, ours: bool, dependencies: &[&str]) -> Package {
        let dependencies = dependencies.iter().map(|&d| d.to_owned()).collect();
        Package {
            name: name.to_owned(),
            licence: licence.to_owned(),
            ours,
            dependencies,
            folder: format!("{name}/Cargo.toml"),
            rust_version: "1.88".to_owned(),
        }
    }

    #[test]
    fn a_newer_compiler_is_found() {
        let with = |ours, version: &str| Package {
            rust_version: version.to_owned(),
            ..package("a", OWN_LICENCE, ours, &[])
        };
        let check = |other: Package, expect: usize| {
            let faults = compilers(&[with(true, "1.88"), other]);
            assert_eq!(faults.len(), expect, "{faults:?}");
        };
        check(with(false, "1.88.0"), 0);
        check(with(false, ""), 0);
        check(with(false, "1.9"), 0);
        check(with(false, "1.88.1"), 1);
        check(with(false, "1.100"), 1);
        check(with(true, "1.87"), 1);
    }

    #[test]
    fn a_wrong_edge_is_found() {
        let own = |name, dependencies| package(name, OWN_LICENCE, true, dependencies);
        let good = [
            own("bf-emu", &["mlx5-prm", "libc"]),
            own("mlx5-prm", &[]),
            package("libc", "MIT", false, &[]),
        ];
        assert!(edges(&good).is_empty());
        let bad = [
            own("bf-emu", &[]),
            own("xgvmi-pool", &["bf-emu"]),
            own("extra", &[]),
        ];
        assert_eq!(edges(&bad).len(), 2, "{:?}", edges(&bad));
    }

    #[test]
    fn a_product_that_uses_a_tool_is_found() {
        let at = |folder: &str, name, dependencies: &[&str]| Package {
            folder: format!("{folder}/Cargo.toml"),
            ..package(name, OWN_LICENCE, true, dependencies)
        };
        let tool = || at("tools/report", "report", &[]);
        let found = |folder| tools(&[tool(), at(folder, "user", &["report", "libc"])]);
        assert_eq!(found("cli/xgvmi").len(), 1);
        assert_eq!(found("toolsmith").len(), 1);
        assert!(found("tools/xtask").is_empty() && found("tests/suites").is_empty());
    }

    #[test]
    fn licence_expressions_are_read() {
        let check = |expression, expect| assert_eq!(accepted(expression), expect, "{expression}");
        check("MIT", true);
        check("MIT/Apache-2.0", true);
        check("GPL-3.0 OR MIT", true);
        check("(MIT OR Apache-2.0) AND Unicode-3.0", true);
        check("(MIT OR GPL-3.0) AND GPL-3.0", false);
        check("MIT AND GPL-3.0", false);
        check("", false);
    }

    #[test]
    fn our_own_licence_is_exact() {
        assert_eq!(licences(&[package("xtask", "MIT", true, &[])]).len(), 1);
        assert!(licences(&[package("xtask", OWN_LICENCE, true, &[])]).is_empty());
    }
}
