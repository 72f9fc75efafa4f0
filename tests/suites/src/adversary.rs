//! System tests of the product under many seeds of the device's adversary mode, the demos and the soak under ten.

use super::{Case, Outcome, World};
use anyhow::{Context, Result, ensure};
use dev_setup as setup;
use serde_json::Value;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use testbed::{process, workspace};

/// Number of seeds.
const SEEDS: u64 = 1000;
/// Bound of a hang, for the tests of one seed.
const LIMIT: Duration = Duration::from_secs(420);
/// Bound of a build.
const BUILD_LIMIT: Duration = Duration::from_secs(3600);
/// Prefix of the tests that repeat others under a seed.
const GROUPS: &str = "adversary_group_";
/// Number of such tests in `tests/system/adversary.rs`.
const GROUP_COUNT: u64 = 10;

/// Seeds of the demos and the soak.
const DEMO_SEEDS: u64 = 10;
/// Bound of a hang of one demo, or of the soak.
const DEMO_LIMIT: Duration = Duration::from_secs(900);
/// Arguments of `cargo xtask` for each demo. All of them verify what they move.
const DEMOS: [&[&str]; 6] = [
    &["demo", "--quick"],
    &["demo", "ucc", "--quick"],
    &["demo", "naaice", "--quick"],
    &["demo", "storage", "--quick"],
    &["demo", "dpa", "--quick"],
    &["demo", "pcc", "--quick"],
];
/// The system test that runs many jobs and kills ranks.
const SOAK: &str = "offload_soak_leaves_nothing";

/// Each seed runs one group of tests; ten seeds in a row run all groups.
pub(super) fn run_all(world: &World) -> Result<Vec<Case>> {
    // All programs and libraries that the tests start.
    workspace::build(&[""])?;
    let tests = Tests::build(world)?;
    let groups = (1..=SEEDS).map(|seed| (seed, format!("seed {seed}")));
    let mut cases = Vec::new();
    for (seed, name) in groups.filter(|(_, name)| wants(world, name)) {
        let mut command = tests.command(&format!("{GROUPS}{}", seed % GROUP_COUNT));
        command.env("XGVMI_ADVERSARY_SEED", seed.to_string());
        let case = Case::of(name, run(&mut command, LIMIT));
        // A run that is ended early has said what failed.
        if let Outcome::Failed(reason) = &case.outcome {
            println!("{}: {reason}", case.name);
        }
        cases.push(case);
    }
    Ok(cases)
}

/// The demos and the soak under ten seeds.
pub(super) fn demos(world: &World) -> Result<Vec<Case>> {
    workspace::build(&[""])?;
    let tests = Tests::build(world)?;
    let mut cases = Vec::new();
    for seed in 1..=DEMO_SEEDS {
        cases.extend(under(world, &tests, seed)?);
    }
    Ok(cases)
}

fn wants(world: &World, name: &str) -> bool {
    world.parts.is_empty() || world.parts.iter().any(|part| part == name)
}

/// The program of the system tests, and what it needs.
struct Tests {
    program: PathBuf,
    variables: Vec<(OsString, OsString)>,
}

impl Tests {
    fn build(world: &World) -> Result<Self> {
        let mut command = tests_on_the_device(Command::new("cargo"), &world.env)?;
        let variables = command.get_envs();
        let variables = variables.filter_map(|(name, value)| Some((name.into(), value?.into())));
        let variables = variables.collect();
        command.args(["--no-run", "--message-format", "json"]);
        let said = process::stdout(&mut command, BUILD_LIMIT)?;
        let mut paths = said.lines().filter_map(|line| {
            let message: Value = serde_json::from_str(line).ok()?;
            (message["target"]["name"] == "system").then_some(())?;
            message["executable"].as_str().map(PathBuf::from)
        });
        let program = paths.next();
        Ok(Self {
            program: program.context("cargo names no program of the system tests")?,
            variables,
        })
    }

    /// The command that runs one test.
    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(name).envs(self.variables.iter().cloned());
        command.current_dir(workspace::root().join("tests"));
        command
    }
}

/// The wanted demos and the soak under one seed.
fn under(world: &World, tests: &Tests, seed: u64) -> Result<Vec<Case>> {
    let mode = format!("adversary:{seed}");
    let mut cases = Vec::new();
    for words in DEMOS {
        let name = format!("{} seed {seed}", words.join(" ").replace(" --quick", ""));
        if wants(world, &name) {
            let own = std::env::current_exe().context("the path of this program")?;
            let mut command = Command::new(own);
            command.args(words).env("BFEMU_MODE", &mode);
            let result = process::run(&mut command, DEMO_LIMIT).and_then(|done| {
                ensure!(done.ok(), "{}\n{}", done.verdict(), done.output);
                Ok(())
            });
            cases.push(Case::of(name, result));
        }
    }
    let name = format!("soak seed {seed}");
    if wants(world, &name) {
        let mut command = tests.command(SOAK);
        command.env("BFEMU_MODE", &mode);
        cases.push(Case::of(name, run(&mut command, DEMO_LIMIT)));
    }
    Ok(cases)
}

fn run(command: &mut Command, limit: Duration) -> Result<()> {
    let done = process::run(command, limit)?;
    ensure!(done.ok(), "{}\n{}", done.verdict(), done.output);
    ensure!(
        done.output.contains(" 1 passed; 0 failed; 0 skipped"),
        "the group did not run:\n{}",
        done.output
    );
    Ok(())
}

/// The command that runs the system tests, without their names.
///
/// # Errors
/// There is no MPI.
pub fn tests_on_the_device(mut command: Command, env: &setup::Env) -> Result<Command> {
    command
        .args(["test", "--workspace", "--test", "system"])
        .envs(env.for_cc());
    let artefacts = workspace::target_dir().join("release");
    command.env("XGVMI_TEST_BIN", artefacts);
    command.env("XGVMI_TEST_UCX_LIB", &env.ucx_lib_dir);
    command.env("XGVMI_TEST_UCX_TOOLS", &env.ucx_tools_dir);
    command.env("XGVMI_TEST_UCX_INCLUDE", &env.ucx_include);
    if let Some(root) = &env.verbs_root {
        command.env("XGVMI_TEST_VERBS_ROOT", root);
    }
    for (name, value) in env.for_verbs() {
        command.env(format!("XGVMI_TEST_ENV_{name}"), value);
    }
    let mpi = setup::mpi::wheel(env);
    command.env("XGVMI_TEST_MPI_LAUNCHER", mpi.launcher.join("\n"));
    command.env("XGVMI_TEST_MPI_ENV_OSU_MPI_LIBRARY", mpi.library()?);
    for (name, value) in mpi.environment {
        command.env(format!("XGVMI_TEST_MPI_ENV_{name}"), value);
    }
    Ok(command)
}
