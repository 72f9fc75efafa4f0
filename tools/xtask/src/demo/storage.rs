//! `cargo xtask demo storage`: a volume on three targets, through a DPU. This file builds; `xgvmi-testbed` runs.

use super::orchestrated::{self, Valued};
use crate::{process, setup, workspace};
use anyhow::Result;
use std::process::ExitCode;
use std::time::Duration;

const HELP: &str = "\
Usage: cargo xtask demo storage [OPTIONS]

A volume on three targets on two emulated nodes, served by xgvmi-blk on node0.dpu to node0.host. The host writes mixed data
and verifies every byte, loses a target under writes, and has it rebuilt. Then the same work runs on the host's cores alone.
A volume of layout 4+2 loses two targets, gets two new ones, and loses two others.
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

const OPTIONS: [Valued; 3] = [
    ("sizes", "4K,16K,64K,256K,1M,4M", "4K,64K,1M"),
    ("iterations", "200", "20"),
    ("mib", "256", "16"),
];
const LIMIT: Duration = Duration::from_secs(600);

/// Runs the demo with the arguments after `cargo xtask demo storage`.
pub(super) fn run(arguments: Vec<String>) -> Result<ExitCode> {
    let Some(options) = orchestrated::parse("storage", &OPTIONS, arguments)? else {
        println!("{HELP}");
        return Ok(ExitCode::SUCCESS);
    };
    let env = setup::ensure()?;
    workspace::build(&["-p bf-emu -p bf-emu-preload -p testbed-programs -p xgvmi-blk"])?;
    let output = workspace::reports_dir("demo-storage");
    let mut command = orchestrated::program("storage-demo", &output, &options);
    process::without_ucx_settings(&mut command);
    command
        .arg("--libucp")
        .arg(env.ucx_lib_dir.join("libucp.so.0"))
        .envs(env.for_ucx());
    orchestrated::run(&mut command, LIMIT, &output)
}
