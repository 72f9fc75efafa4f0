//! `cargo xtask demo storage`: a volume on three targets, through a DPU. This file builds; `storage_demo`, an example of
//! xgvmi-blk, runs.

use crate::{process, setup, workspace};
use anyhow::{Result, bail};
use std::process::{Command, ExitCode, Stdio};
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

/// The emulator's cost profile: the slides' times of the commands.
const PROFILE: &str = "bluefield3";
const BUILD_LIMIT: Duration = Duration::from_secs(1200);
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
    let mut build = Command::new("cargo");
    build.current_dir(workspace::root()).args([
        "build",
        "--release",
        "--lib",
        "--bins",
        "--examples",
    ]);
    for package in ["bf-emu", "bf-emu-preload", "xgvmi-blk"] {
        build.args(["-p", package]);
    }
    process::stdout(&mut build, BUILD_LIMIT)?;
    let release = workspace::target_dir().join("release");
    let output = workspace::target_dir().join("demo-storage");
    // Results of an earlier run must not be reported for this run.
    let _ = std::fs::remove_dir_all(&output);
    let states = super::States::make(&release.join("bf-emu"))?;
    let words = |words: &[&str]| -> Result<String> {
        let emulator = release.join("bf-emu").display().to_string();
        let state = states.parent.join("storage").display().to_string();
        let mut all = vec![emulator.as_str()];
        all.extend(words.iter().map(|word| {
            if *word == "STATE" {
                state.as_str()
            } else {
                word
            }
        }));
        Ok(serde_json::to_string(&all)?)
    };
    let launch = [
        "run",
        "--nodes",
        "2",
        "--profile",
        PROFILE,
        "--state",
        "STATE",
        "--as",
        "{function}",
        "--",
    ];
    let mut command = Command::new(release.join("examples/storage_demo"));
    process::without_ucx_settings(&mut command);
    command.arg("orchestrate").arg(words(&launch)?);
    command.arg(words(&["stats", "--json", "--state", "STATE"])?);
    let (disk, memory) = (output.join("targets"), states.parent.join("targets"));
    for directory in [&disk, &memory] {
        std::fs::create_dir_all(directory)?;
    }
    command
        .arg(release.join("xgvmi-blk"))
        .arg(env.ucx_lib_dir.join("libucp.so.0"))
        .args([&disk, &memory]);
    command
        .arg(&output)
        .args([PROFILE, &sizes, &iterations, &mib])
        .envs(env.for_ucx());
    let mut demo = process::Group::spawn(command.stdin(Stdio::null()))?;
    let (status, timed_out) = demo.wait(LIMIT)?;
    // The data is not part of the result. It may be absent.
    let _ = std::fs::remove_dir_all(&disk);
    if timed_out {
        bail!(
            "the demo did not end within {} s and was stopped",
            LIMIT.as_secs()
        );
    }
    if !status.success() {
        return Ok(ExitCode::FAILURE);
    }
    println!("written: {}", output.join("report.json").display());
    Ok(ExitCode::SUCCESS)
}
