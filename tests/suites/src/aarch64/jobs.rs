//! Commands of this project with DPUs of the other processor. Each runs in its own process.

use super::LIMIT;
use crate::{Case, World};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::fs;
use std::process::Command;
use testbed::{process, workspace};

/// Packages for Debian's architecture of the processor.
pub(crate) fn packages(_world: &World) -> Result<Vec<Case>> {
    let ran = xtask(&["dist", "--architecture", "arm64"]).map(drop);
    Ok(vec![Case::of("packages for arm64", ran)])
}

/// The library in stock UCX, loaded in both ways.
pub(crate) fn matrix(_world: &World) -> Result<Vec<Case>> {
    let ran = xtask(&["matrix", "--dpu", "aarch64"]).map(drop);
    Ok(vec![Case::of(
        "export and import by preload and plugin",
        ran,
    )])
}

/// The demo's workflow with the oldest UCX and the newest.
pub(crate) fn demo(world: &World) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for version in ["1.18.1", "1.20.1", "1.23.0"] {
        let name = format!("demo with UCX {version}");
        if world.wants(&name) {
            cases.push(Case::of(name, transfer(version)));
        }
    }
    Ok(cases)
}

fn transfer(version: &str) -> Result<()> {
    let arguments = ["demo", "--dpu", "aarch64", "--quick", "--sizes", "16K,1M"];
    xtask(&[&arguments[..], &["--ucx", version]].concat())?;
    let place = format!("demo/aarch64/ucx-{version}/report.json");
    let path = workspace::target_dir().join(place);
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let report: Value = serde_json::from_str(&text)?;
    let number = |name: &str| report[name].as_u64();
    ensure!(
        report["dpu_arch"] == "aarch64",
        "dpu_arch is {}",
        report["dpu_arch"]
    );
    ensure!(
        number("mismatches") == Some(0),
        "{} bytes are wrong",
        report["mismatches"]
    );
    ensure!(number("verified_bytes") > Some(0), "no byte was verified");
    Ok(())
}

/// Runs another command of this program.
fn xtask(words: &[&str]) -> Result<String> {
    let mut command = Command::new(std::env::current_exe()?);
    let shown = format!("cargo xtask {}", words.join(" "));
    let done = process::run(command.args(words), LIMIT).with_context(|| shown.clone())?;
    ensure!(done.ok(), "`{shown}`: {}\n{}", done.verdict(), done.output);
    Ok(done.output)
}
