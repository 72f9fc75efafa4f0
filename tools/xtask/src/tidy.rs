//! `cargo xtask tidy`: the project rules of `tests/rules`, and the size of the tree as a report.

use crate::{test, workspace};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

const HELP: &str = "\
Usage: cargo xtask tidy [OPTIONS]

Checks the project rules of tests/rules.

  --json FILE   also write the size of the tree: words of the documents, top-level folders, lines by role,
                modules and crates that use each other in a circle, and the largest file. A relative FILE
                begins at the root of the tree.";

/// The variable with which the rules write the report.
const REPORT: &str = "XGVMI_TIDY_JSON";

/// Runs the command.
pub(crate) fn run(arguments: Vec<String>) -> Result<ExitCode> {
    let Some(report) = parse(arguments)? else {
        println!("{HELP}");
        return Ok(ExitCode::SUCCESS);
    };
    let mut rules = test::rules()?;
    rules.arg("--quiet");
    if let Some(file) = &report {
        if let Some(place) = file.parent() {
            fs::create_dir_all(place).with_context(|| format!("making {}", place.display()))?;
        }
        // A report of an earlier run must not count for this run.
        let _ = fs::remove_file(file);
        rules.env(REPORT, file);
    }
    let status = rules.status().context("cannot run cargo")?;
    if let Some(file) = report {
        ensure!(
            file.exists(),
            "the rules have not written {}",
            file.display()
        );
        println!("written: {}", file.display());
    }
    Ok(match status.success() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// The path of the requested report; `None` for a help request.
fn parse(arguments: Vec<String>) -> Result<Option<Option<PathBuf>>> {
    use lexopt::prelude::{Long, Short};
    let mut report = None;
    let mut parser = lexopt::Parser::from_args(arguments);
    while let Some(argument) = parser.next()? {
        match argument {
            Long("json") => report = Some(workspace::root().join(parser.value()?)),
            Short('h') | Long("help") => return Ok(None),
            other => bail!("{}; try: cargo xtask tidy --help", other.unexpected()),
        }
    }
    Ok(Some(report))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        let parse = |line: &str| parse(line.split_whitespace().map(str::to_owned).collect());
        assert_eq!(parse("").unwrap(), Some(None));
        let file = workspace::root().join("target/tidy.json");
        assert_eq!(
            parse("--json target/tidy.json").unwrap(),
            Some(Some(file.clone()))
        );
        let absolute = format!("--json {}", file.display());
        assert_eq!(parse(&absolute).unwrap(), Some(Some(file)));
        assert_eq!(parse("--help").unwrap(), None);
        for bad in ["--json", "--fast", "now"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
