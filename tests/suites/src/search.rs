//! The search of the block store's states: the command `storage-search`, which needs no device.

use super::{Case, World};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use testbed::{process, workspace};

/// The part that `cargo xtask test` runs.
pub(super) const SAMPLE: &[&str] = &["sample"];

/// A search, layout by layout.
struct Search {
    name: &'static str,
    runs: &'static [Run],
    /// Its report in `target/storage-search`.
    report: &'static str,
    /// Bound of a hang, of each run.
    limit: Duration,
}

/// The search of one layout: depths with whole and with cut steps, and the number of random sequences.
struct Run(&'static str, [u64; 3]);

const FULL: Search = Search {
    name: "seven layouts: sequences to depth 5, with cut steps to depth 2, and 10,000,000 random ones of 2+1, fewer of the others",
    runs: &[
        Run("2+1", [5, 2, 10_000_000]),
        Run("mirror-2", [4, 1, 1_000_000]),
        Run("mirror-3", [4, 1, 1_000_000]),
        Run("4+2", [3, 1, 1_000_000]),
        Run("2+2", [2, 1, 300_000]),
        Run("3+2", [2, 1, 300_000]),
        Run("8+3", [1, 1, 100_000]),
    ],
    report: "report.json",
    limit: Duration::from_secs(2 * 3600),
};

/// Takes hours. It runs only if it is named.
const DEEP: Search = Search {
    name: "deep: sequences to depth 6, with cut steps to depth 3",
    runs: &[Run("2+1", [6, 3, 1])],
    report: "deep.json",
    limit: Duration::from_secs(12 * 3600),
};

/// It runs only if it is named.
const SHORT: Search = Search {
    name: "sample: sequences to depth 2, with cut steps to depth 1, and 20,000 random ones of 2+1, fewer of the others",
    runs: &[
        Run("2+1", [2, 1, 20_000]),
        Run("mirror-2", [2, 1, 5_000]),
        Run("mirror-3", [2, 1, 5_000]),
        Run("4+2", [1, 1, 5_000]),
    ],
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
    let dir = workspace::target_dir().join("storage-search");
    let mut rows = Vec::new();
    for one in search.runs {
        rows.push(run_one(world, search, one, &dir.join("layout.json"))?);
    }
    let sum = |name: &str| {
        rows.iter()
            .filter_map(|row| row[name].as_u64())
            .sum::<u64>()
    };
    let [states, sequences, violations] = ["states", "sequences", "violations"].map(sum);
    let random: u64 = search.runs.iter().map(|Run(_, [.., random])| random).sum();
    ensure!(sequences > random, "{sequences} sequences");
    let report = serde_json::json!({
        "states": states, "sequences": sequences, "violations": violations, "layouts": rows
    });
    let path = dir.join(search.report);
    fs::write(&path, format!("{report:#}\n")).with_context(|| path.display().to_string())
}

/// Searches one layout. Returns its row of the report.
fn run_one(world: &World, search: &Search, run: &Run, path: &Path) -> Result<Value> {
    let Run(layout, [core, full, random]) = run;
    let mut command = Command::new(world.bin.join("storage-search"));
    command.args(["--layout", layout]);
    for (option, value) in [("--core", core), ("--full", full), ("--random", random)] {
        command.args([option, &value.to_string()]);
    }
    command.arg("--report").arg(path);
    let done = process::run(&mut command, search.limit)?;
    ensure!(done.ok(), "{layout}: {}\n{}", done.verdict(), done.output);
    print!("{layout}\n{}", done.output);
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let mut row: Value = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    let count = |name: &str| row[name].as_u64();
    ensure!(
        count("violations") == Some(0)
            && count("states") > Some(10)
            && count("sequences") > Some(*random),
        "{}: {text}",
        path.display()
    );
    row["layout"] = (*layout).into();
    Ok(row)
}
