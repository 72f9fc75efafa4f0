//! `cargo xtask demo storage`: a volume on three targets, through a DPU. This file builds; `xgvmi-testbed` runs.

use super::orchestrated::{self, PROFILE, build, commands, nodes};
use crate::{process, setup, workspace};
use anyhow::{Result, bail};
use std::process::{Command, ExitCode};
use std::time::Duration;

const HELP: &str = "\
Usage: cargo xtask demo storage [OPTIONS]

A volume on three targets on two emulated nodes, served by xgvmi-blk on node0.dpu to node0.host. The host writes mixed data
and verifies every byte, loses a target under writes, and has it rebuilt. Then the same work runs on the host's cores alone.
Then single transfers on fresh memory, by the way in which the DPU reaches it:
  copy       through memory that is registered once, as the reference application does
  ksm        a key per transfer, and an alias of it
  stock      keys of stock UCX's own pool
  xgvmi      pooled keys
  announced  pooled keys, announced ahead

  --mib N            data that is written and verified [default: 256]
  --sizes LIST       bytes of a transfer [default: 4K,16K,64K,256K,1M,4M]
  --iterations N     writes, and reads, per size and scheme [default: 200]
  --quick            16 MiB, sizes 4K,64K,1M, 20 iterations

Writes target/demo-storage/report.json, report.md, report.svg.";

const LIMIT: Duration = Duration::from_secs(600);

/// Runs the demo with the arguments after `cargo xtask demo storage`.
pub(super) fn run(arguments: Vec<String>) -> Result<ExitCode> {
    use lexopt::prelude::{Long, Short, ValueExt as _};
    let mut sizes = "4K,16K,64K,256K,1M,4M".to_owned();
    let (mut iterations, mut mib) = ("200".to_owned(), "256".to_owned());
    let mut parser = lexopt::Parser::from_args(arguments);
    while let Some(argument) = parser.next()? {
        match argument {
            Long("sizes") => sizes = parser.value()?.string()?,
            Long("iterations") => iterations = parser.value()?.string()?,
            Long("mib") => mib = parser.value()?.string()?,
            Long("quick") => {
                (sizes, iterations, mib) =
                    ("4K,64K,1M".to_owned(), "20".to_owned(), "16".to_owned());
            }
            Short('h') | Long("help") => {
                println!("{HELP}");
                return Ok(ExitCode::SUCCESS);
            }
            other => bail!(
                "{}; try: cargo xtask demo storage --help",
                other.unexpected()
            ),
        }
    }
    let env = setup::ensure()?;
    let release = build(&["xgvmi-blk", "testbed-programs"])?;
    let output = workspace::target_dir().join("demo-storage");
    // Results of an earlier run must not be reported for this run.
    let _ = std::fs::remove_dir_all(&output);
    let nodes = nodes(&release)?;
    let (disk, memory) = (output.join("targets"), nodes.path().join("targets"));
    for directory in [&disk, &memory] {
        std::fs::create_dir_all(directory)?;
    }
    let mut command = Command::new(release.join("xgvmi-testbed"));
    process::without_ucx_settings(&mut command);
    command
        .args(["storage", "orchestrate"])
        .args(commands(&nodes)?)
        .arg(release.join("xgvmi-blk"))
        .arg(env.ucx_lib_dir.join("libucp.so.0"))
        .args([&disk, &memory, &output])
        .args([PROFILE, &sizes, &iterations, &mib])
        .envs(env.for_ucx());
    let done = orchestrated::run(&mut command, LIMIT, &output.join("report.json"));
    // The data is not part of the result. It may be absent.
    let _ = std::fs::remove_dir_all(&disk);
    done
}
