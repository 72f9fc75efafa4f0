//! System tests of the product under many seeds of the device's adversary mode.

use super::{Case, World};
use anyhow::{Result, ensure};
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

/// Each seed runs one group of tests; ten seeds in a row run all groups.
pub(super) fn run_all(world: &World) -> Result<Vec<Case>> {
    workspace::build(&["-p testbed-programs -p naaice -p xgvmi-naa -p xgvmi-cli"])?;
    let names = (1..=SEEDS).map(|seed| (seed, format!("seed {seed}")));
    let wanted = names
        .filter(|(_, name)| world.parts.is_empty() || world.parts.iter().any(|part| part == name));
    wanted
        .map(|(seed, name)| {
            let mut command = tests_on_the_device(Command::new("cargo"), &world.env)?;
            let group = format!("{GROUPS}{}", seed % GROUP_COUNT);
            command
                .args(["--", &group])
                .env("XGVMI_ADVERSARY_SEED", seed.to_string());
            Ok(Case::of(name, run(&mut command)))
        })
        .collect()
}

fn run(command: &mut Command) -> Result<()> {
    let done = process::run(command, LIMIT)?;
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
