//! An emulated cluster: its device's directory, and commands that run in its functions. Nothing else starts `bf-emu run`.

use crate::process;
use crate::stats::Stats;
use anyhow::{Context as _, Result};
use bench_report::counters::Counters;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// Prefix of the directories of clusters. The process id follows, so that later runs find what a killed run has left.
const PREFIX: &str = "xgvmi-testbed";
/// Directory of emulator states: in memory, so no disk writes them back.
const PARENT: &str = "/dev/shm";
/// Name of the device's directory, unless [`Cluster::named`] chooses another one.
const DEVICE: &str = "state";
/// Time limit of the emulator's own commands, which read or create a few files.
const LIMIT: Duration = Duration::from_secs(60);

/// A device of the emulator with its nodes. Functions have the emulator's names, such as `node0.host` and `node1.dpu`.
///
/// A clone is the same device. The directory disappears with the last clone.
#[derive(Debug, Clone)]
pub struct Cluster {
    emulator: PathBuf,
    state: PathBuf,
    /// Options of each `bf-emu run`.
    options: Vec<OsString>,
    /// Variables of each program.
    variables: Vec<(String, String)>,
    /// The directory of the run, or none for a device in a directory of the caller.
    directory: Option<Arc<tempfile::TempDir>>,
}

impl Cluster {
    /// A new device in a directory of its own, which is in memory: all processes of the device map its file, and no disk
    /// should write it back. The first program creates the device.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub fn new(emulator: impl Into<PathBuf>, nodes: u32) -> Result<Self> {
        sweep();
        let parent = parent();
        let directory = tempfile::Builder::new()
            .prefix(&format!("{PREFIX}-{}-", std::process::id()))
            .tempdir_in(&parent)
            .with_context(|| format!("a directory in {}", parent.display()))?;
        let mut cluster = Self::at(emulator, directory.path().join(DEVICE), nodes);
        cluster.directory = Some(Arc::new(directory));
        Ok(cluster)
    }

    /// A device in a directory that the caller removes.
    #[must_use]
    pub fn at(emulator: impl Into<PathBuf>, state: impl Into<PathBuf>, nodes: u32) -> Self {
        Self {
            emulator: emulator.into(),
            state: state.into(),
            options: vec!["--nodes".into(), nodes.to_string().into()],
            variables: Vec::new(),
            directory: None,
        }
    }

    /// Another device beside this one, in the same directory and with the same options.
    #[must_use]
    pub fn named(&self, name: &str) -> Self {
        Self {
            state: self.state.with_file_name(name),
            ..self.clone()
        }
    }

    /// The same device through another path of the emulator's program.
    #[must_use]
    pub fn on(self, emulator: impl Into<PathBuf>) -> Self {
        Self {
            emulator: emulator.into(),
            ..self
        }
    }

    /// With further options of `bf-emu run`, such as a profile.
    #[must_use]
    pub fn with<S: AsRef<OsStr>>(mut self, options: impl IntoIterator<Item = S>) -> Self {
        let options = options.into_iter();
        self.options
            .extend(options.map(|option| option.as_ref().to_owned()));
        self
    }

    /// The same device with the nodes of a topology file.
    #[must_use]
    pub fn with_topology(mut self, file: &Path) -> Self {
        self.options = vec!["--topology".into(), file.into()];
        self
    }

    /// With variables for all programs.
    #[must_use]
    pub fn envs(mut self, variables: impl IntoIterator<Item = (String, String)>) -> Self {
        self.variables.extend(variables);
        self
    }

    /// The directory that contains the device's directory. Other files of the run may stand there.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.state.parent().unwrap_or(&self.state)
    }

    /// The device's directory.
    #[must_use]
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// The command that runs `program` in a function, or in several ones that commas separate.
    pub fn command(&self, functions: &str, program: impl AsRef<OsStr>) -> Command {
        self.command_with(&[], functions, program)
    }

    /// As [`Cluster::command`], with further options of `bf-emu run`.
    pub fn command_with(
        &self,
        options: &[&str],
        functions: &str,
        program: impl AsRef<OsStr>,
    ) -> Command {
        let mut command = self.emulator("run");
        command
            .args(&self.options)
            .args(options)
            .args(["--as", functions, "--"])
            .arg(program)
            // A user's limit of locked memory is often a few MiB.
            .env("BFEMU_MEMLOCK", "free");
        for (name, value) in &self.variables {
            command.env(name, value);
        }
        command
    }

    /// One of the emulator's own commands on this device.
    #[must_use]
    pub fn emulator(&self, subcommand: &str) -> Command {
        let mut command = Command::new(&self.emulator);
        command.arg(subcommand).arg("--state").arg(&self.state);
        command
    }

    /// Creates the device. Later programs join it and need not repeat its options.
    ///
    /// # Errors
    /// The emulator's.
    pub fn create(&self) -> Result<()> {
        process::stdout(&mut self.command("node0.host", "true"), LIMIT)?;
        Ok(())
    }

    /// Output of one of the emulator's own commands.
    ///
    /// # Errors
    /// The emulator's.
    pub fn ask(&self, subcommand: &str, options: &[&str]) -> Result<String> {
        process::stdout(self.emulator(subcommand).args(options), LIMIT)
    }

    /// The device's counters.
    ///
    /// # Errors
    /// The device does not exist, or the emulator prints something else.
    pub fn stats(&self) -> Result<Stats> {
        Stats::parse(&self.ask("stats", &["--json"])?)
    }

    /// The device's counters of keys, for reports.
    ///
    /// # Errors
    /// As [`Cluster::stats`].
    pub fn counters(&self) -> Result<Counters> {
        Ok(Counters::parse(self.ask("stats", &["--json"])?.as_bytes())?)
    }

    /// The words of [`Cluster::command`] without the program, for a launcher that is itself a command line. `functions` may
    /// contain placeholders of that launcher.
    #[must_use]
    pub fn launch_words(&self, functions: &str) -> Vec<OsString> {
        let command = self.command(functions, "");
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let mut words: Vec<OsString> = words.map(OsStr::to_owned).collect();
        // The program is empty.
        words.pop();
        words
    }

    /// The words of the command that prints the device's counters.
    #[must_use]
    pub fn stats_words(&self) -> Vec<OsString> {
        let mut command = self.emulator("stats");
        command.arg("--json");
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words.map(OsStr::to_owned).collect()
    }
}

/// Removes the directories of clusters whose process has ended without removing them, for example at its time limit.
pub fn sweep() {
    process::sweep(&parent(), PREFIX);
}

/// The directory of all clusters.
fn parent() -> PathBuf {
    let shared = Path::new(PARENT);
    if shared.is_dir() {
        shared.to_owned()
    } else {
        std::env::temp_dir()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(command: &Command) -> Vec<String> {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words
            .map(|word| word.to_string_lossy().into_owned())
            .collect()
    }

    #[test]
    fn a_program_runs_with_the_options_and_variables_of_its_cluster() {
        let cluster = Cluster::at("emulator", "place/state", 2)
            .with(["--link", "ethernet"])
            .envs([("A".to_owned(), "b".to_owned())]);
        let command = cluster.command_with(&["--mode", "agent"], "node1.dpu", "service");
        assert_eq!(
            words(&command).join(" "),
            "emulator run --state place/state --nodes 2 --link ethernet --mode agent --as node1.dpu -- service"
        );
        let variables: Vec<_> = command.get_envs().collect();
        let expect = [("A", "b"), ("BFEMU_MEMLOCK", "free")];
        assert_eq!(
            variables,
            expect.map(|(name, value)| (OsStr::new(name), Some(OsStr::new(value))))
        );
        let launch = cluster.named("ksm").launch_words("node{node}.{role}");
        assert_eq!(
            launch.join(OsStr::new(" ")),
            "emulator run --state place/ksm --nodes 2 --link ethernet --as node{node}.{role} --"
        );
    }

    #[test]
    fn the_directory_is_removed_with_the_last_device_in_it() {
        let cluster = Cluster::new("emulator", 1).unwrap();
        let path = cluster.path().to_owned();
        let other = cluster.named("other");
        assert_eq!(other.path(), path);
        drop(cluster);
        assert!(path.is_dir());
        drop(other);
        assert!(!path.exists());
    }

    #[test]
    fn an_emulator_that_fails_is_named() {
        let cluster = Cluster::new("/nowhere/bf-emu", 1).unwrap();
        let error = format!("{:#}", cluster.create().unwrap_err());
        assert!(error.contains("/nowhere/bf-emu run"), "{error}");
    }
}
