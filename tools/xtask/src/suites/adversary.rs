//! System tests of the product under many seeds of the device's adversary mode.

use super::{Case, World};
use crate::{process, test, workspace};
use anyhow::{Result, ensure};
use std::process::Command;
use std::time::Duration;

/// Number of seeds.
const SEEDS: u64 = 1000;
/// Bound of a hang, for the tests of one seed.
const LIMIT: Duration = Duration::from_secs(180);
/// Prefix of the tests that repeat others under a seed.
const GROUPS: &str = "adversary_group_";
/// Number of such tests in `tests/system/adversary.rs`.
const GROUP_COUNT: u64 = 10;

/// Each seed runs one group of tests; ten seeds in a row run all groups.
pub(super) fn run_all(world: &World) -> Result<Vec<Case>> {
    workspace::build(&["-p xgvmi-pool -p xgvmi-blk -p naaice --examples"])?;
    let names = (1..=SEEDS).map(|seed| (seed, format!("seed {seed}")));
    let wanted = names
        .filter(|(_, name)| world.parts.is_empty() || world.parts.iter().any(|part| part == name));
    wanted
        .map(|(seed, name)| {
            let mut command = test::tests_on_the_device(&world.env)?;
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
