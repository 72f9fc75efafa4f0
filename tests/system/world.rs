//! Paths of the built artefacts, and the start of a program in one function of an emulated node.

use crate::process::{self, Done};
use anyhow::{Context, Result, ensure};
use std::ffi::OsStr;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use testbed::cluster::Cluster;
use testbed::pair;
pub(crate) use testbed::port::free as free_port;

/// Time limit of a program. The slowest takes a second, unless other work takes the cores from two
/// polling processes.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// The artefacts under test, as `cargo xtask test` names them in the environment.
pub(crate) struct World {
    /// The build directory with `bf-emu` and the libraries.
    bin: PathBuf,
    pub(crate) ucx_lib: PathBuf,
    pub(crate) ucx_tools: PathBuf,
    pub(crate) ucx_include: PathBuf,
    /// Unpacked libibverbs packages, if they are not installed.
    verbs_root: Option<PathBuf>,
    /// For every program that uses libibverbs.
    verbs_env: Vec<(String, String)>,
}

impl World {
    /// `None` without the environment of `cargo xtask test`.
    pub(crate) fn from_env() -> Result<Option<Self>> {
        let path = |name: &str| std::env::var_os(name).map(PathBuf::from);
        let Some(bin) = path("XGVMI_TEST_BIN") else {
            return Ok(None);
        };
        let needed = |name: &str| path(name).with_context(|| format!("{name} is not set"));
        let verbs_env = std::env::vars().filter_map(|(name, value)| {
            Some((name.strip_prefix("XGVMI_TEST_ENV_")?.to_owned(), value))
        });
        let world = Self {
            bin,
            ucx_lib: needed("XGVMI_TEST_UCX_LIB")?,
            ucx_tools: needed("XGVMI_TEST_UCX_TOOLS")?,
            ucx_include: needed("XGVMI_TEST_UCX_INCLUDE")?,
            verbs_root: path("XGVMI_TEST_VERBS_ROOT"),
            verbs_env: verbs_env.collect(),
        };
        ensure!(
            world.emulator().exists(),
            "{} is absent",
            world.emulator().display()
        );
        Ok(Some(world))
    }

    fn emulator(&self) -> PathBuf {
        self.built("bf-emu")
    }

    /// A program of the workspace.
    pub(crate) fn built(&self, name: &str) -> PathBuf {
        self.bin.join(name)
    }

    /// MPI's launcher in its environment, with the common options of all launches.
    pub(crate) fn mpi(&self) -> Result<Command> {
        const LAUNCHER: &str = "XGVMI_TEST_MPI_LAUNCHER";
        const VARIABLE: &str = "XGVMI_TEST_MPI_ENV_";
        let words = std::env::var(LAUNCHER).with_context(|| format!("{LAUNCHER} is not set"))?;
        let mut words = words.lines();
        let mut command = Command::new(
            words
                .next()
                .with_context(|| format!("{LAUNCHER} is empty"))?,
        );
        command.args(words);
        for (name, value) in std::env::vars() {
            if let Some(name) = name.strip_prefix(VARIABLE) {
                command.env(name, value);
            }
        }
        Ok(command)
    }

    /// Adds libibverbs to the paths of a program that starts others on a cluster of its own.
    pub(crate) fn with_verbs(&self, command: &mut Command) {
        for (name, value) in &self.verbs_env {
            let own = std::env::var(name).unwrap_or_default();
            let joined = match own.is_empty() {
                true => value.clone(),
                false => format!("{value}:{own}"),
            };
            command.env(name, joined);
        }
    }

    /// A tool of Debian's ibverbs-utils or perftest.
    pub(crate) fn verbs_tool(&self, name: &str) -> PathBuf {
        match &self.verbs_root {
            Some(root) => root.join("usr/bin").join(name),
            None => PathBuf::from(name),
        }
    }
}

/// A fresh emulated cluster: two nodes, each with a host and a DPU function. Dropping it removes it.
pub(crate) struct Testbed<'a> {
    world: &'a World,
    cluster: Cluster,
}

impl Deref for Testbed<'_> {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.cluster
    }
}

impl<'a> Testbed<'a> {
    pub(crate) fn new(world: &'a World) -> Result<Self> {
        Self::of(world, 2)
    }

    /// With another number of nodes.
    pub(crate) fn of(world: &'a World, nodes: u32) -> Result<Self> {
        let cluster = Cluster::new(world.emulator(), nodes)?.envs(world.verbs_env.clone());
        Ok(Self { world, cluster })
    }

    /// The same with the nodes of a topology file.
    pub(crate) fn with_topology(self, file: &Path) -> Self {
        Self {
            cluster: self.cluster.with_topology(file),
            ..self
        }
    }

    /// The same with ports of this kind.
    pub(crate) fn with_link(self, link: &str) -> Self {
        Self {
            cluster: self.cluster.with(["--link", link]),
            ..self
        }
    }

    /// The command for a tool of stock UCX in `function`.
    pub(crate) fn ucx_command(&self, function: &str, tool: &str) -> Command {
        let tool = self.world.ucx_tools.join(tool);
        self.ucx_command_with(&[], function, tool)
    }

    /// Like [`Testbed::ucx_command`], for any program and with options of `bf-emu run`.
    pub(crate) fn ucx_command_with(
        &self,
        options: &[&str],
        function: &str,
        program: impl AsRef<OsStr>,
    ) -> Command {
        let mut command = self.command_with(options, function, program);
        let mut libraries = self.world.ucx_lib.as_os_str().to_owned();
        let mut variables = self.world.verbs_env.iter();
        if let Some((_, more)) = variables.find(|(name, _)| name == "LD_LIBRARY_PATH") {
            libraries.push(":");
            libraries.push(more);
        }
        command.env("LD_LIBRARY_PATH", libraries);
        command
    }

    /// Resident bytes of the device's file.
    pub(crate) fn device_bytes(&self) -> Result<u64> {
        use std::os::unix::fs::MetadataExt;
        let device = self.state().join("device");
        let blocks = std::fs::metadata(&device)
            .with_context(|| format!("stat {}", device.display()))?
            .blocks();
        Ok(blocks * 512)
    }
}

/// Runs a command that must succeed and returns its output.
pub(crate) fn succeed(command: &mut Command) -> Result<String> {
    let done = process::run(command, LIMIT)?;
    expect_ok(&process::shown(command), &done)?;
    Ok(done.output)
}

/// Runs a server, and a client once the server listens on `port`. Both must succeed. Returns the outputs of both.
pub(crate) fn succeed_pair(
    server: &mut Command,
    client: &mut Command,
    port: u16,
) -> Result<(String, String)> {
    pair::run(server, client, port, LIMIT)
}

/// Runs a server and, as soon as it listens, its client. Returns how both ended.
pub(crate) fn run_pair(
    server: &mut Command,
    client: &mut Command,
    port: u16,
) -> Result<(Done, Done)> {
    let ended = pair::both(server, client, port, LIMIT)?;
    Ok((ended.server, ended.client))
}

fn expect_ok(line: &str, done: &Done) -> Result<()> {
    ensure!(
        done.ok(),
        "{}\n{line}\n{}",
        done.verdict(),
        done.output.trim_end()
    );
    Ok(())
}
