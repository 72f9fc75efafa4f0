//! What the demos of storage and of accelerators share: the build, two emulated nodes, and the program that orchestrates.

use crate::{process, workspace};
use anyhow::{Result, bail};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;
use testbed::cluster::Cluster;

/// The emulator's cost profile: the slides' times of the commands.
pub(super) const PROFILE: &str = "bluefield3";
const BUILD_LIMIT: Duration = Duration::from_secs(1200);

/// Builds the emulator and these packages with their programs. Returns the directory of the programs.
pub(super) fn build(packages: &[&str]) -> Result<PathBuf> {
    let mut build = Command::new("cargo");
    build
        .current_dir(workspace::root())
        .args(["build", "--release", "--lib", "--bins"]);
    for package in ["bf-emu", "bf-emu-preload"].iter().chain(packages) {
        build.args(["-p", package]);
    }
    process::stdout(&mut build, BUILD_LIMIT)?;
    Ok(workspace::target_dir().join("release"))
}

/// Two emulated nodes.
pub(super) fn nodes(release: &Path) -> Result<Cluster> {
    Ok(Cluster::new(release.join("bf-emu"), 2)?.with(["--profile", PROFILE]))
}

/// Arguments of the orchestrating program, as JSON: the command that starts a program in `{function}`, and the one that
/// prints the device's counters.
pub(super) fn commands(device: &Cluster) -> Result<[String; 2]> {
    let text = |words: Vec<OsString>| -> Result<String> {
        let words = words.iter().map(|word| word.to_string_lossy());
        Ok(serde_json::to_string(&words.collect::<Vec<_>>())?)
    };
    Ok([
        text(device.launch_words("{function}"))?,
        text(device.stats_words())?,
    ])
}

/// Runs the orchestrating program, which prints its own errors and writes `report`.
pub(super) fn run(command: &mut Command, limit: Duration, report: &Path) -> Result<ExitCode> {
    let mut demo = process::Group::spawn(command.stdin(Stdio::null()))?;
    let (status, timed_out) = demo.wait(limit)?;
    if timed_out {
        bail!(
            "the demo did not end within {} s and was stopped",
            limit.as_secs()
        );
    }
    if !status.success() {
        return Ok(ExitCode::FAILURE);
    }
    println!("written: {}", report.display());
    Ok(ExitCode::SUCCESS)
}
