//! `cargo xtask fuzz`: feeds random bytes to the parsers of users', peers' and files' input.

use crate::{process, workspace};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

const HELP: &str = "\
Usage: cargo xtask fuzz [TARGET]... [--runs N]
       cargo xtask fuzz --list

Builds the fuzz targets (bf-emu/fuzz, naaice/fuzz, xgvmi-blk/fuzz, xgvmi-offload/fuzz, xgvmi-pool/fuzz) and runs all of
them, or the named ones, one after the other, for N inputs each (100,000). target/fuzz/corpus/ keeps interesting inputs for the next run. target/fuzz/artifacts/ keeps
inputs that cause a failure.

Needs a nightly compiler and cargo-fuzz. If they are missing, the command prints how to install them.";

/// Directories of fuzz targets.
const DIRS: [&str; 5] = [
    "bf-emu/fuzz",
    "naaice/fuzz",
    "xgvmi-blk/fuzz",
    "xgvmi-offload/fuzz",
    "xgvmi-pool/fuzz",
];
const RUNS: u64 = 100_000;
/// Maximum input length in bytes: a few times the longest command.
const INPUT_BYTES_MAX: u32 = 2048;
/// Memory limit of a target in MiB.
const MEMORY_MIB_MAX: u32 = 1024;
const TOOLCHAIN: &str = "nightly";
const QUESTION: Duration = Duration::from_secs(30);

/// A target and its directory.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Target {
    dir: &'static str,
    name: String,
}

/// Runs the command.
pub(crate) fn run(arguments: Vec<String>) -> Result<ExitCode> {
    let all = targets(&workspace::root())?;
    let Some((chosen, runs)) = parse(arguments, &all)? else {
        return Ok(ExitCode::SUCCESS);
    };
    check_tools()?;
    let output = workspace::target_dir().join("fuzz");
    for dir in DIRS {
        if chosen.iter().any(|target| target.dir == dir) {
            build(dir, &output)?;
        }
    }
    let mut failed = Vec::new();
    for target in &chosen {
        println!("{} of {}: {runs} inputs", target.name, target.dir);
        if !fuzz(target, &output, runs)? {
            failed.push(target.name.as_str());
        }
    }
    if failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    println!(
        "found something: {}; see {}",
        failed.join(", "),
        output.display()
    );
    Ok(ExitCode::FAILURE)
}

/// All targets, from the manifests of their directories.
fn targets(root: &Path) -> Result<Vec<Target>> {
    let mut targets = Vec::new();
    for dir in DIRS {
        let file = root.join(dir).join("Cargo.toml");
        let Ok(text) = fs::read_to_string(&file) else {
            continue;
        };
        let manifest: toml::Table = text.parse().with_context(|| file.display().to_string())?;
        let bins = manifest.get("bin").and_then(toml::Value::as_array);
        for bin in bins.into_iter().flatten() {
            let name = bin.get("name").and_then(toml::Value::as_str);
            let name =
                name.with_context(|| format!("{}: a [[bin]] without a name", file.display()))?;
            targets.push(Target {
                dir,
                name: name.to_owned(),
            });
        }
    }
    Ok(targets)
}

/// Targets and number of runs; `None` if the request was answered already.
fn parse(arguments: Vec<String>, all: &[Target]) -> Result<Option<(Vec<Target>, u64)>> {
    use lexopt::prelude::{Long, Short, Value, ValueExt as _};
    let (mut chosen, mut runs) = (Vec::new(), RUNS);
    let mut parser = lexopt::Parser::from_args(arguments);
    while let Some(argument) = parser.next()? {
        match argument {
            Long("runs") => runs = parser.value()?.parse()?,
            Long("list") => {
                for Target { dir, name } in all {
                    println!("{name:<12} {dir}");
                }
                return Ok(None);
            }
            Value(name) => {
                let name = name.string()?;
                let of_name = |target: &&Target| target.name == name;
                let found: Vec<Target> = all.iter().filter(of_name).cloned().collect();
                if found.is_empty() {
                    bail!("no target '{name}'; try: cargo xtask fuzz --list");
                }
                chosen.extend(found);
            }
            Short('h') | Long("help") => {
                println!("{HELP}");
                return Ok(None);
            }
            other => bail!("{}; try: cargo xtask fuzz --help", other.unexpected()),
        }
    }
    if runs == 0 {
        bail!("--runs 0 would run until it is stopped: give a number");
    }
    if chosen.is_empty() {
        chosen = all.to_vec();
    }
    Ok(Some((chosen, runs)))
}

fn check_tools() -> Result<()> {
    let asks = [
        (
            vec!["--version"],
            format!("a nightly compiler: rustup toolchain install {TOOLCHAIN}"),
        ),
        (
            vec!["fuzz", "--version"],
            "cargo-fuzz: cargo install cargo-fuzz".to_owned(),
        ),
    ];
    let mut missing = Vec::new();
    for (words, what) in asks {
        if process::stdout(cargo().args(&words), QUESTION).is_err() {
            missing.push(what);
        }
    }
    if missing.is_empty() {
        Ok(())
    } else {
        bail!(
            "fuzzing needs, and does not find:\n  {}",
            missing.join("\n  ")
        )
    }
}

/// Builds without a sanitizer: nearly all code is safe, and a device in the fuzzer's process handles faults itself.
fn build(dir: &str, output: &Path) -> Result<()> {
    let mut command = cargo();
    command.args([
        "fuzz",
        "build",
        "--sanitizer",
        "none",
        "--fuzz-dir",
        dir,
        "--target-dir",
    ]);
    command.arg(build_dir(dir, output));
    let status = command.status().context("cannot run cargo")?;
    if !status.success() {
        bail!("`{}`: {status}", process::shown(&command));
    }
    Ok(())
}

/// True if the fuzzer found no fault.
fn fuzz(target: &Target, output: &Path, runs: u64) -> Result<bool> {
    let name = format!("{}/{}", target.dir.replace('/', "-"), target.name);
    let (corpus, artifacts) = (
        output.join("corpus").join(&name),
        output.join("artifacts").join(&name),
    );
    for dir in [&corpus, &artifacts] {
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    let built = build_dir(target.dir, output);
    let program = find_program(&built, &target.name)
        .with_context(|| format!("no program {} below {}", target.name, built.display()))?;
    let mut command = Command::new(program);
    command.arg(format!("-runs={runs}"));
    command.arg(format!("-max_len={INPUT_BYTES_MAX}"));
    command.arg(format!("-rss_limit_mb={MEMORY_MIB_MAX}"));
    command.arg("-print_final_stats=1").arg("-verbosity=0");
    command.arg(format!("-artifact_prefix={}/", artifacts.display()));
    command.arg(&corpus).stdin(Stdio::null());
    let mut group = process::Group::spawn(&mut command)?;
    let status = group.child.wait().context("a fuzz target")?;
    Ok(status.success())
}

/// The programs are in a directory named after the target triple.
fn find_program(built: &Path, name: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(built).ok()?.flatten();
    let mut programs = entries.map(|entry| entry.path().join("release").join(name));
    programs.find(|program| program.is_file())
}

fn build_dir(dir: &str, output: &Path) -> PathBuf {
    output.join("build").join(dir.replace('/', "-"))
}

/// The nightly cargo, independent of the toolchain that runs xtask.
fn cargo() -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(workspace::root());
    command.env("RUSTUP_TOOLCHAIN", TOOLCHAIN);
    for name in ["CARGO", "RUSTC", "RUSTDOC", "RUSTFLAGS"] {
        command.env_remove(name);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_choose_targets_that_exist() {
        let all = targets(&workspace::root()).unwrap();
        let parse =
            |words: &[&str]| parse(words.iter().map(|&word| word.to_owned()).collect(), &all);
        assert_eq!(parse(&[]).unwrap(), Some((all.clone(), RUNS)));
        let (chosen, runs) = parse(&["work", "--runs", "7"]).unwrap().unwrap();
        assert_eq!(
            (chosen.len(), chosen[0].name.as_str(), runs),
            (1, "work", 7)
        );
        assert!(parse(&["none-such"]).is_err());
        assert!(parse(&["--runs", "0"]).is_err());
        assert!(parse(&["--list"]).unwrap().is_none());
    }

    #[test]
    fn every_parser_of_user_bytes_has_a_target() {
        let all = targets(&workspace::root()).unwrap();
        for name in ["faults", "ioctl", "mailbox", "profile", "topology", "work"] {
            let has = |target: &Target| target.dir == "bf-emu/fuzz" && target.name == name;
            assert!(all.iter().any(has), "{name}");
            let file = workspace::root().join(format!("bf-emu/fuzz/targets/{name}.rs"));
            assert!(file.is_file(), "{}", file.display());
        }
        for name in [
            "stored_block",
            "half_record",
            "target",
            "image",
            "message",
            "options",
            "connection",
            "service",
        ] {
            let has = |target: &Target| target.dir == "xgvmi-blk/fuzz" && target.name == name;
            assert!(all.iter().any(has), "{name}");
        }
        for name in ["announcement", "inbox", "secret", "span"] {
            let has = |target: &Target| target.dir == "xgvmi-pool/fuzz" && target.name == name;
            assert!(all.iter().any(has), "{name}");
        }
    }
}
