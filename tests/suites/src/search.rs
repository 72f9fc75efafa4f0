//! The search of the block store's states: the command `storage-search`, which needs no device.

use super::{Case, World};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::fs;
use std::process::Command;
use std::time::Duration;
use testbed::{process, workspace};

/// The part that `cargo xtask test` runs.
pub(super) const SAMPLE: &[&str] = &["sample"];

/// A search.
struct Search {
    name: &'static str,
    /// Its options.
    options: &'static [&'static str],
    /// Its report in `target/storage-search`.
    report: &'static str,
    /// Bound of a hang.
    limit: Duration,
}

const FULL: Search = Search {
    name: "sequences to depth 5, with cut steps to depth 2, and 10,000,000 random ones",
    options: &["--core", "5", "--full", "2", "--random", "10000000"],
    report: "report.json",
    limit: Duration::from_secs(2 * 3600),
};

/// Takes hours. It runs only if it is named.
const DEEP: Search = Search {
    name: "deep: sequences to depth 6, with cut steps to depth 3",
    options: &["--core", "6", "--full", "3", "--random", "1"],
    report: "deep.json",
    limit: Duration::from_secs(12 * 3600),
};

/// It runs only if it is named.
const SHORT: Search = Search {
    name: "sample: sequences to depth 3, with cut steps to depth 1, and 100,000 random ones",
    options: &["--core", "3", "--full", "1", "--random", "100000"],
    report: "sample.json",
    limit: Duration::from_secs(600),
};

/// All searches that are wanted.
pub(super) fn run_all(world: &World) -> Result<Vec<Case>> {
    let wanted = |search: &&Search| match search.report {
        "sample.json" | "deep.json" => !world.parts.is_empty() && world.wants(search.name),
        _ => world.wants(search.name),
    };
    let searches = [&FULL, &DEEP, &SHORT];
    let cases = searches.into_iter().filter(wanted);
    Ok(cases
        .map(|search| Case::of(search.name, run(world, search)))
        .collect())
}

fn run(world: &World, search: &Search) -> Result<()> {
    let path = workspace::target_dir()
        .join("storage-search")
        .join(search.report);
    let mut command = Command::new(world.bin.join("storage-search"));
    command.args(search.options).arg("--report").arg(&path);
    let done = process::run(&mut command, search.limit)?;
    ensure!(done.ok(), "{}\n{}", done.verdict(), done.output);
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let report: Value = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    let count = |name: &str| report[name].as_u64();
    ensure!(
        count("violations") == Some(0)
            && count("states") > Some(100)
            && count("sequences") > Some(100_000),
        "{}: {text}",
        path.display()
    );
    print!("{}", done.output);
    Ok(())
}
