//! `cargo xtask demo pcc`: congestion-control programs side by side in the lab. This file builds; `pcc-demo` runs.

use super::orchestrated;
use crate::workspace;
use anyhow::{Result, bail};
use std::process::{Command, ExitCode};
use std::time::Duration;

const HELP: &str = "\
Usage: cargo xtask demo pcc [OPTIONS]

Congestion-control programs in C, as they are written for a DPA, side by side in the packet-level lab: incasts of 2, 8, 32
and 128 flows and a parking lot on links of 200 Gb/s. The table has utilisation, queue, Jain's index, slowdown, and the
instructions of an event. The set-points of a constant rate and the speed of the lab follow.

Programs: none, and the examples dcqcn, swift and hpcc. With XGVMI_DOCA_SAMPLES (a directory of NVIDIA's samples of DOCA):
the template as it is, and with parameters that are set at run time. With XGVMI_PCC_TUTORIAL (a directory of the tutorial
of SIGCOMM 2026 about BlueField): its ECN program. With XGVMI_HTSIM (a directory with htsim_roce): its speed beside that of the
lab.

  --quick   shorter runs

Writes target/demo-pcc/report.json, report.md, report.svg.";

const LIMIT: Duration = Duration::from_secs(300);

/// Runs the demo with the arguments after `cargo xtask demo pcc`.
pub(super) fn run(arguments: Vec<String>) -> Result<ExitCode> {
    use lexopt::prelude::{Long, Short};
    let mut is_quick = false;
    let mut parser = lexopt::Parser::from_args(arguments);
    while let Some(argument) = parser.next()? {
        match argument {
            Long("quick") => is_quick = true,
            Short('h') | Long("help") => {
                println!("{HELP}");
                return Ok(ExitCode::SUCCESS);
            }
            other => bail!("{}; try: cargo xtask demo pcc --help", other.unexpected()),
        }
    }
    workspace::build(&["-p pcc-run"])?;
    let output = workspace::reports_dir("demo-pcc");
    let mut command = Command::new(workspace::built("pcc-demo"));
    command.arg("--output").arg(&output);
    if is_quick {
        command.args(["--us", "4000"]);
    }
    // Without compilers for RISC-V the column of instructions is empty, and the program says so.
    orchestrated::with_riscv(&mut command);
    orchestrated::run(&mut command, LIMIT, &output)
}
