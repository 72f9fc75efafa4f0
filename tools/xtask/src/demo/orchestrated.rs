//! What the demos of storage and of accelerators share: their options, and the run of `xgvmi-testbed`.

use crate::{process, setup, workspace};
use anyhow::{Result, bail};
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

/// The emulator's cost profile: the slides' times of the commands.
pub(super) const PROFILE: &str = "bluefield3";

/// An option that takes a value: its name, its value by default, and its value with `--quick`.
pub(super) type Valued = (&'static str, &'static str, &'static str);

/// The options with their values, as words for the program; `None` for a request for help.
pub(super) fn parse(
    name: &str,
    known: &[Valued],
    arguments: Vec<String>,
) -> Result<Option<Vec<String>>> {
    use lexopt::prelude::{Long, Short, ValueExt as _};
    let mut values: Vec<String> = known
        .iter()
        .map(|(_, usual, _)| (*usual).to_owned())
        .collect();
    let mut parser = lexopt::Parser::from_args(arguments);
    while let Some(argument) = parser.next()? {
        let at = match &argument {
            Long(option) => known.iter().position(|(name, ..)| name == option),
            _ => None,
        };
        match (argument, at) {
            (_, Some(at)) => values[at] = parser.value()?.string()?,
            (Long("quick"), _) => {
                values = known
                    .iter()
                    .map(|(.., quick)| (*quick).to_owned())
                    .collect()
            }
            (Short('h') | Long("help"), _) => return Ok(None),
            (other, _) => bail!(
                "{}; try: cargo xtask demo {name} --help",
                other.unexpected()
            ),
        }
    }
    let words = known.iter().zip(values);
    Ok(Some(
        words
            .flat_map(|((name, ..), value)| [format!("--{name}"), value])
            .collect(),
    ))
}

/// The program with what all demos need.
pub(super) fn program(name: &str, output: &Path, options: &[String]) -> Command {
    // Results of an earlier run must not be reported for this run.
    let _ = std::fs::remove_dir_all(output);
    let mut command = Command::new(workspace::built("xgvmi-testbed"));
    command.arg(name).arg("--bin").arg(workspace::built(""));
    command.arg("--output").arg(output);
    command.args(["--profile", PROFILE]).args(options);
    command
}

/// Adds the compilers for RISC-V to the paths of a command. Without them the program says which one it lacks.
pub(super) fn with_riscv(command: &mut Command) {
    for (name, paths) in setup::riscv().unwrap_or_default() {
        let mut paths = OsString::from(paths);
        let set = command.get_envs().find(|(known, _)| *known == name);
        let set = set.and_then(|(_, value)| value.map(OsStr::to_owned));
        if let Some(own) = set.or_else(|| std::env::var_os(name)) {
            paths.push(":");
            paths.push(own);
        }
        command.env(name, paths);
    }
}

/// Runs the program, which prints its own errors and writes a report to `output`.
pub(super) fn run(command: &mut Command, limit: Duration, output: &Path) -> Result<ExitCode> {
    let code = process::to_end(command, limit)?;
    if code != ExitCode::SUCCESS {
        return Ok(code);
    }
    println!("written: {}", output.join("report.json").display());
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_have_values_by_default_and_shorter_ones() {
        let known = [("sizes", "1K,1M", "1K"), ("mib", "64", "4")];
        let parse = |line: &str| {
            let words = line.split_whitespace().map(str::to_owned).collect();
            parse("storage", &known, words)
        };
        let check = |line: &str, expect: &str| {
            assert_eq!(parse(line).unwrap().unwrap().join(" "), expect, "{line}");
        };
        check("", "--sizes 1K,1M --mib 64");
        check("--quick --mib=8", "--sizes 1K --mib 8");
        assert!(parse("--quick --help").unwrap().is_none());
        for wrong in ["--fast", "now", "--mib"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
