//! System tests of the product under many seeds of the device's adversary mode, the demos and the soak under ten.

use super::{Case, World};
use anyhow::{Context, Result, anyhow, ensure};
use dev_setup as setup;
use std::process::Command;
use std::time::Duration;
use testbed::{process, workspace};

/// Number of seeds.
const SEEDS: u64 = 1000;
/// Bound of a hang, for the tests of one seed.
const LIMIT: Duration = Duration::from_secs(420);
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
    workspace::build(&["-p testbed-programs -p naaice -p xgvmi-naa -p xgvmi-cli"])?;
    let names = (1..=SEEDS).map(|seed| (seed, format!("seed {seed}")));
    let wanted = names
        .filter(|(_, name)| world.parts.is_empty() || world.parts.iter().any(|part| part == name));
    let groups = wanted
        .map(|(seed, name)| {
            let mut command = tests_on_the_device(Command::new("cargo"), &world.env)?;
            let group = format!("{GROUPS}{}", seed % GROUP_COUNT);
            command
                .args(["--", &group])
                .env("XGVMI_ADVERSARY_SEED", seed.to_string());
            Ok(Case::of(name, run(&mut command, LIMIT)))
        })
        .collect::<Result<Vec<_>>>()?;
    let rest = (1..=DEMO_SEEDS).map(|seed| under(world, seed));
    let rest: Vec<Vec<Case>> = rest.collect::<Result<_>>()?;
    Ok(groups
        .into_iter()
        .chain(rest.into_iter().flatten())
        .collect())
}

/// The wanted demos and the soak under one seed.
fn under(world: &World, seed: u64) -> Result<Vec<Case>> {
    let wants = |name: &str| world.parts.is_empty() || world.parts.iter().any(|part| part == name);
    let mode = format!("adversary:{seed}");
    let mut cases = Vec::new();
    for words in DEMOS {
        let name = format!("{} seed {seed}", words.join(" ").replace(" --quick", ""));
        if wants(&name) {
            let own = std::env::current_exe().context("the path of this program")?;
            let mut command = Command::new(own);
            command.args(words).env("BFEMU_MODE", &mode);
            let done = process::run(&mut command, DEMO_LIMIT)?;
            let result = match done.ok() {
                true => Ok(()),
                false => Err(anyhow!("{}\n{}", done.verdict(), done.output)),
            };
            cases.push(Case::of(name, result));
        }
    }
    let name = format!("soak seed {seed}");
    if wants(&name) {
        let mut command = tests_on_the_device(Command::new("cargo"), &world.env)?;
        command.args(["--", SOAK]).env("BFEMU_MODE", &mode);
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
