//! The processor of DPA programs: own programs by stock compilers under qemu-riscv64 as well, random instructions on ckb-vm as
//! well, and riscv-tests.

use super::{Case, Outcome, World};
use anyhow::{Context as _, Result, ensure};
use dev_setup as setup;
use std::ffi::OsString;
use std::process::Command;
use std::time::Duration;
use testbed::{process, workspace};

/// The part that `cargo xtask test` runs: each program, and each compiler.
pub(super) const SAMPLE: &[&str] = &["by clang", "library by gcc", "numbers by gcc -O0"];

/// Random instructions.
const INSTRUCTIONS: u64 = 10_000_000;

/// A user's directory with the built programs of riscv-tests.
const RISCV_TESTS: &str = "XGVMI_RISCV_TESTS";

const LIMIT: Duration = Duration::from_secs(900);

/// Builds the judge, and ensures compilers and emulator. Returns its command, to which the arguments are to be added.
pub fn judge() -> Result<Command> {
    let paths = setup::riscv()?;
    let build = [
        "build",
        "--release",
        "--quiet",
        "-p",
        "rv64",
        "--example",
        "rv64_judge",
    ];
    run(Command::new("cargo").args(build))?;
    let mut command = Command::new(workspace::target_dir().join("release/examples/rv64_judge"));
    for (name, mut dirs) in paths
        .into_iter()
        .map(|(name, dirs)| (name, OsString::from(dirs)))
    {
        if let Some(own) = std::env::var_os(name) {
            dirs.push(":");
            dirs.push(own);
        }
        command.env(name, dirs);
    }
    Ok(command)
}

/// All tests that are wanted.
pub(super) fn run_all(world: &World) -> Result<Vec<Case>> {
    let mut cases = programs(world)?;
    let random = format!("random instructions: {INSTRUCTIONS} on ckb-vm as well");
    if world.wants(&random) {
        cases.push(Case::of(random, on_ckb()));
    }
    const NAME: &str = "riscv-tests";
    if world.wants(NAME) {
        cases.push(riscv_tests(NAME));
    }
    Ok(cases)
}

/// Each program by each compiler.
fn programs(world: &World) -> Result<Vec<Case>> {
    let shown = |name: &str| format!("program {name}");
    let names = run(judge()?.arg("names"))?;
    let wanted: Vec<&str> = names
        .lines()
        .filter(|name| world.wants(&shown(name)))
        .collect();
    let done = process::run(
        judge()?
            .arg("compare")
            .arg(workspace::target_dir().join("rv64"))
            .args(&wanted),
        LIMIT,
    )?;
    let outcome = |name: &str| {
        let is_ok = done
            .output
            .lines()
            .any(|line| line.strip_prefix("ok ") == Some(name));
        ensure!(is_ok, "{}\n{}", done.verdict(), done.output);
        Ok(())
    };
    Ok(wanted
        .into_iter()
        .map(|name| Case::of(shown(name), outcome(name)))
        .collect())
}

/// The judge is a workspace of its own.
fn on_ckb() -> Result<()> {
    let mut command = Command::new("cargo");
    command.args([
        "run",
        "--release",
        "--quiet",
        "--manifest-path",
        "doca/rv64/tests/ckb/Cargo.toml",
        "--",
    ]);
    command.arg(INSTRUCTIONS.to_string());
    run(command.env("CARGO_TARGET_DIR", workspace::target_dir().join("ckb"))).map(drop)
}

fn riscv_tests(name: &str) -> Case {
    if std::env::var_os(RISCV_TESTS).is_none_or(|dir| dir.is_empty()) {
        let outcome = Outcome::Skipped(format!(
            "{RISCV_TESTS} names no directory with built programs"
        ));
        return Case {
            name: name.to_owned(),
            outcome,
        };
    }
    let test = ["test", "--quiet", "-p", "rv64", "--test", "riscv_tests"];
    Case::of(name, run(Command::new("cargo").args(test)).map(drop))
}

/// Runs a command in the root of the tree and returns its output.
fn run(command: &mut Command) -> Result<String> {
    let shown = process::shown(command);
    let done = process::run(command.current_dir(workspace::root()), LIMIT)
        .with_context(|| shown.clone())?;
    ensure!(done.ok(), "`{shown}`: {}\n{}", done.verdict(), done.output);
    Ok(done.output)
}
