//! MPI: the Open MPI of the pinned wheels, and Debian's Open MPI and MPICH. Each has the C library that the programs of
//! `osu-bench` load.

use super::{Env, apt, joined};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use testbed::{process, workspace};

/// Time limit for compiling one C file.
const COMPILE: Duration = Duration::from_secs(60);

/// An available MPI.
#[derive(Debug, Clone)]
pub struct Mpi {
    /// Name and version, such as `openmpi-5.0.11`.
    pub name: &'static str,
    /// The launcher and its required options: there are more ranks than cores, and the user may be root.
    pub launcher: Vec<String>,
    /// Environment of the launcher and all ranks: the MPI's libraries, and UCX over mlx5 for all pairs, also on one
    /// machine.
    pub environment: Vec<(String, String)>,
    /// The MPI's compiler.
    pub compiler: PathBuf,
}

/// One transport, because a fallback must fail instead of passing unnoticed.
const UCX: [(&str, &str); 2] = [("UCX_TLS", "rc_x,self"), ("UCX_NET_DEVICES", "mlx5_0:1")];

/// Debian's UCX 1.13.1 is built without the mlx5 transports and supports only plain verbs.
const DEBIAN_UCX: [(&str, &str); 2] = [("UCX_TLS", "rc_v,self"), ("UCX_NET_DEVICES", "mlx5_0:1")];

/// Open MPI's own variables. Two of them allow root. The others select UCX, because Debian's Open MPI prefers other
/// transports.
const OPEN_MPI: [(&str, &str); 4] = [
    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ("OMPI_MCA_pml", "ucx"),
    ("OMPI_MCA_osc", "ucx"),
];

/// Without this setting, MPICH detects a single machine and uses shared memory.
const MPICH: [(&str, &str); 1] = [("MPIR_CVAR_NOLOCAL", "1")];

/// The Open MPI that comes with stock UCX.
pub fn wheel(env: &Env) -> Mpi {
    let bin = env.venv.join("bin");
    let mut libraries = vec![env.venv.join("lib"), env.ucx_lib_dir.clone()];
    if let Some(root) = &env.verbs_root {
        libraries.extend(apt::library_dirs(root));
    }
    let mut environment = settings(env, &[&OPEN_MPI, &UCX]);
    environment.retain(|(name, _)| name != "LD_LIBRARY_PATH");
    environment.push(("LD_LIBRARY_PATH".to_owned(), joined(&libraries)));
    Mpi {
        name: "openmpi-5.0.11",
        launcher: vec![
            bin.join("mpirun").display().to_string(),
            "--map-by".to_owned(),
            ":OVERSUBSCRIBE".to_owned(),
        ],
        environment,
        compiler: bin.join("mpicc"),
    }
}

/// Debian's Open MPI. Installs it if that is allowed.
///
/// # Errors
/// It is not installed; the error contains the command to run.
pub fn debian_open_mpi(env: &Env) -> Result<Mpi> {
    need("mpirun.openmpi", &["openmpi-bin", "libopenmpi-dev"])?;
    Ok(Mpi {
        name: "openmpi-debian",
        launcher: vec!["mpirun.openmpi".to_owned(), "--oversubscribe".to_owned()],
        environment: settings(env, &[&OPEN_MPI, &DEBIAN_UCX]),
        compiler: PathBuf::from("mpicc.openmpi"),
    })
}

/// Debian's MPICH. Installs it if that is allowed.
///
/// # Errors
/// It is not installed; the error contains the command to run.
pub fn debian_mpich(env: &Env) -> Result<Mpi> {
    need("mpirun.mpich", &["mpich", "libmpich-dev"])?;
    Ok(Mpi {
        name: "mpich-debian",
        launcher: vec!["mpirun.mpich".to_owned()],
        environment: settings(env, &[&MPICH, &DEBIAN_UCX]),
        compiler: PathBuf::from("mpicc.mpich"),
    })
}

impl Mpi {
    /// Compiles the C library of `osu-bench` for this MPI and returns its path.
    ///
    /// # Errors
    /// Errors of the compiler.
    pub fn library(&self) -> Result<PathBuf> {
        self.shared(&["osu-bench/shim/osu_mpi.c"])
    }

    /// Compiles the library for neighbourhood collectives and messages for this MPI, to preload it in ranks, and returns its path.
    ///
    /// # Errors
    /// Errors of the compiler.
    pub fn neighbors(&self) -> Result<PathBuf> {
        self.shared(&[
            "clients/mpi/xgvmi_mpi.c",
            "clients/mpi/xgvmi_mpi_agree.c",
            "clients/mpi/xgvmi_mpi_messages.c",
            "clients/mpi/xgvmi_mpi_pairs.c",
            "clients/mpi/xgvmi_mpi_persistent.c",
            "clients/mpi/xgvmi_mpi_requests.c",
        ])
    }

    /// Compiles C files of the workspace to a library with the name of the first one, and returns its path.
    fn shared(&self, sources: &[&str]) -> Result<PathBuf> {
        let root = workspace::root();
        let sources: Vec<PathBuf> = sources.iter().map(|source| root.join(source)).collect();
        let name = sources.first().and_then(|source| source.file_stem());
        let name = name.unwrap_or_default().to_string_lossy();
        let dir = workspace::target_dir().join("mpi").join(self.name);
        fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let library = dir.join(format!("lib{name}.so"));
        // Written to a temporary name first, because another run may have the file open.
        let part = dir.join(format!("lib{name}.{}.part", std::process::id()));
        self.compile(
            &sources,
            &[
                "-O2",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-fPIC",
                "-shared",
                "-pthread",
                // The suites' MPIs are later ones with the same binary interface.
                "-DXGVMI_MPI_4_1",
            ],
            &part,
        )?;
        fs::rename(&part, &library)
            .with_context(|| format!("cannot write {}", library.display()))?;
        Ok(library)
    }

    fn compile(&self, sources: &[PathBuf], options: &[&str], output: &Path) -> Result<()> {
        let mut command = Command::new(&self.compiler);
        command.args(options).args(sources).arg("-o").arg(output);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        process::stdout(&mut command, COMPILE).map(|_| ())
    }
}

fn settings(env: &Env, groups: &[&[(&str, &str)]]) -> Vec<(String, String)> {
    let mut all = env.for_verbs();
    for (name, value) in groups.iter().copied().flatten() {
        all.push(((*name).to_owned(), (*value).to_owned()));
    }
    all
}

/// Ensures that `program` is on the path. Installs `packages` if that is allowed.
fn need(program: &str, packages: &[&str]) -> Result<()> {
    let there = || {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
    };
    if there() {
        return Ok(());
    }
    for package in packages {
        if !apt::try_install(package).with_context(|| format!("installing {package}"))? {
            break;
        }
    }
    if !there() {
        bail!(
            "needs: sudo apt-get install --no-install-recommends {}",
            packages.join(" ")
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wheel_finds_its_own_libraries_first() {
        let env = Env {
            cache: "/c".into(),
            venv: "/c/venv".into(),
            ucx_lib_dir: "/c/venv/lib/openmpi".into(),
            ucx_version: "1".to_owned(),
            ucx_tools_dir: "/c/tools".into(),
            ucx_include: "/c/include".into(),
            verbs_root: Some("/c/unpacked".into()),
        };
        let mpi = wheel(&env);
        let paths: Vec<&str> = mpi
            .environment
            .iter()
            .filter(|(name, _)| name == "LD_LIBRARY_PATH")
            .map(|(_, value)| value.as_str())
            .collect();
        assert_eq!(paths.len(), 1, "{paths:?}");
        assert!(paths[0].starts_with("/c/venv/lib:/c/venv/lib/openmpi:/c/unpacked/"));
        assert!(
            mpi.environment
                .iter()
                .any(|(name, _)| name == "IBV_DRIVERS")
        );
        assert_eq!(mpi.launcher[0], "/c/venv/bin/mpirun");
    }

    #[test]
    fn what_cannot_be_had_is_named() {
        let error = need("no-such-launcher", &[]).unwrap_err().to_string();
        assert!(error.starts_with("needs: sudo apt-get install"), "{error}");
    }
}
