//! Paths of the built artefacts, and the start of a program in one function of an emulated node.

use crate::process::{self, Done, Running};
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
pub(crate) use testbed::port::free as free_port;
use testbed::port::listens;

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

    /// A program of the workspace.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.bin.join(name)
    }

    /// An example program of one of the crates.
    pub(crate) fn example(&self, name: &str) -> PathBuf {
        self.bin.join("examples").join(name)
    }

    /// A tool of Debian's ibverbs-utils or perftest.
    pub(crate) fn verbs_tool(&self, name: &str) -> PathBuf {
        match &self.verbs_root {
            Some(root) => root.join("usr/bin").join(name),
            None => PathBuf::from(name),
        }
    }
}

/// A fresh emulated cluster: two nodes, each with a host and a DPU function. Dropping it removes
/// it.
pub(crate) struct Testbed<'a> {
    world: &'a World,
    place: tempfile::TempDir,
}

impl<'a> Testbed<'a> {
    pub(crate) fn new(world: &'a World) -> Result<Self> {
        /// The directory names contain the process number, so that other processes can detect stale
        /// ones.
        const PREFIX: &str = "xgvmi-test";
        process::sweep(Path::new(process::STATE_PARENT), PREFIX);
        // The device is a file that all its processes map.
        let place = tempfile::Builder::new()
            .prefix(&format!("{PREFIX}-{}-", std::process::id()))
            .tempdir_in(process::STATE_PARENT)?;
        Ok(Self { world, place })
    }

    /// A directory inside the cluster's directory.
    pub(crate) fn path(&self) -> &Path {
        self.place.path()
    }

    /// The command for `program` in `function`, such as `node0.host`.
    pub(crate) fn command(&self, function: &str, program: impl AsRef<OsStr>) -> Command {
        self.command_with(&["--nodes", "2"], function, program)
    }

    /// Like [`Testbed::command`], with options of `bf-emu run`, including the cluster's size.
    pub(crate) fn command_with(
        &self,
        options: &[&str],
        function: &str,
        program: impl AsRef<OsStr>,
    ) -> Command {
        let mut command = self.emulator_command("run");
        command
            .args(options)
            .args(["--as", function, "--"])
            .arg(program);
        for (name, value) in &self.world.verbs_env {
            command.env(name, value);
        }
        command
    }

    /// The same for a program on stock UCX.
    pub(crate) fn ucx_command(&self, function: &str, tool: &str) -> Command {
        let tool = self.world.ucx_tools.join(tool);
        self.ucx_command_with(&["--nodes", "2"], function, tool)
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
        if let Some((_, more)) = self
            .world
            .verbs_env
            .iter()
            .find(|(name, _)| name == "LD_LIBRARY_PATH")
        {
            libraries.push(":");
            libraries.push(more);
        }
        command.env("LD_LIBRARY_PATH", libraries);
        command
    }

    /// Number of work requests of a kind that the device has executed in all functions, from its
    /// own count.
    pub(crate) fn executed(&self, kind: &str) -> Result<u64> {
        let stats = self.stats()?;
        let counts: Vec<u64> = functions(&stats)
            .filter_map(|function| function["wqes"][kind].as_u64())
            .collect();
        ensure!(
            !counts.is_empty(),
            "bf-emu stats --json counts no {kind}: {stats}"
        );
        Ok(counts.iter().sum())
    }

    /// Number of commands of a kind that one function has executed.
    pub(crate) fn commands(&self, function: &str, kind: &str) -> Result<u64> {
        let stats = self.stats()?;
        functions(&stats)
            .find(|entry| entry["name"] == function)
            .and_then(|entry| entry["commands"][kind].as_u64())
            .with_context(|| format!("bf-emu stats --json has no {kind} of {function}: {stats}"))
    }

    /// Numbers of all commands that one function has executed, by kind.
    pub(crate) fn all_commands(&self, function: &str) -> Result<BTreeMap<String, u64>> {
        let stats = self.stats()?;
        let entry = functions(&stats).find(|entry| entry["name"] == function);
        let commands = entry
            .and_then(|entry| entry["commands"].as_object())
            .with_context(|| {
                format!("bf-emu stats --json has no commands of {function}: {stats}")
            })?;
        let count =
            |(kind, count): (&String, &serde_json::Value)| Some((kind.clone(), count.as_u64()?));
        Ok(commands.iter().filter_map(count).collect())
    }

    /// Number of refusals of one function for this reason.
    pub(crate) fn refusals(&self, function: &str, reason: &str) -> Result<u64> {
        let stats = self.stats()?;
        let entry = functions(&stats).find(|entry| entry["name"] == function);
        let refusals = entry
            .map(|entry| &entry["refusals"])
            .filter(|refusals| refusals.is_object())
            .with_context(|| {
                format!("bf-emu stats --json has no refusals of {function}: {stats}")
            })?;
        // Counters that are zero are absent from the output.
        Ok(refusals[reason].as_u64().unwrap_or(0))
    }

    /// A counter of the first port of a function.
    pub(crate) fn port_counter(&self, function: &str, name: &str) -> Result<u64> {
        let stats = self.stats()?;
        let entry = functions(&stats).find(|entry| entry["name"] == function);
        let count = entry.and_then(|entry| entry["ports"][0]["counters"][name].as_u64());
        count.with_context(|| format!("bf-emu stats --json has no {name} of {function}: {stats}"))
    }

    /// A counter of the whole device, summed over all functions: "traps", "doorbells", "cq_arms".
    pub(crate) fn total(&self, name: &str) -> Result<u64> {
        let stats = self.stats()?;
        functions(&stats)
            .map(|entry| entry[name].as_u64())
            .sum::<Option<u64>>()
            .with_context(|| format!("bf-emu stats --json has no {name}: {stats}"))
    }

    /// Resident bytes of the device's file.
    pub(crate) fn device_bytes(&self) -> Result<u64> {
        use std::os::unix::fs::MetadataExt;
        let device = self.place.path().join("state/device");
        let blocks = std::fs::metadata(&device)
            .with_context(|| format!("stat {}", device.display()))?
            .blocks();
        Ok(blocks * 512)
    }

    fn stats(&self) -> Result<serde_json::Value> {
        let text = process::stdout(self.emulator_command("stats").arg("--json"), LIMIT)?;
        serde_json::from_str(&text).with_context(|| format!("bf-emu stats --json printed: {text}"))
    }

    /// One of the emulator's own commands on this cluster.
    pub(crate) fn emulator_command(&self, subcommand: &str) -> Command {
        let mut command = Command::new(self.world.emulator());
        command
            .arg(subcommand)
            .arg("--state")
            .arg(self.path().join("state"));
        command
    }
}

fn functions(stats: &serde_json::Value) -> impl Iterator<Item = &serde_json::Value> {
    stats["functions"].as_array().into_iter().flatten()
}

/// Runs a command that must succeed and returns its output.
pub(crate) fn succeed(command: &mut Command) -> Result<String> {
    let done = process::run(command, LIMIT)?;
    expect_ok(&process::shown(command), &done)?;
    Ok(done.output)
}

/// Runs a server, and a client once the server listens on `port`. Both must succeed. Returns the
/// output of both.
pub(crate) fn succeed_pair(
    server: &mut Command,
    client: &mut Command,
    port: u16,
) -> Result<(String, String)> {
    let lines = format!("{}\n{}", process::shown(server), process::shown(client));
    let (server_done, client_done) = run_pair(server, client, port)?;
    let both = format!(
        "{lines}\n-- server: {}\n{}\n-- client: {}\n{}",
        server_done.verdict(),
        server_done.output.trim_end(),
        client_done.verdict(),
        client_done.output.trim_end()
    );
    ensure!(client_done.ok() && server_done.ok(), "{both}");
    Ok((server_done.output, client_done.output))
}

/// Runs a server and, as soon as it listens, its client. Returns how both ended.
pub(crate) fn run_pair(
    server: &mut Command,
    client: &mut Command,
    port: u16,
) -> Result<(Done, Done)> {
    let line = process::shown(server);
    let mut running = Running::spawn(server)?;
    let up = process::wait_until(LIMIT, || listens(port) || running.group.has_ended());
    if !up || running.group.has_ended() {
        let done = running.wait(Duration::ZERO)?;
        bail!(
            "the server did not come up: {}\n{line}\n{}",
            done.verdict(),
            done.output.trim_end()
        );
    }
    let client_done = process::run(client, LIMIT)?;
    // If the client fails, its server would wait forever.
    let patience = if client_done.ok() {
        LIMIT
    } else {
        Duration::from_secs(1)
    };
    Ok((running.wait(patience)?, client_done))
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
