//! `cargo xtask fuzz`: feeds random bytes to the parsers of users', peers' and files' input.

use crate::{process, workspace};
use anyhow::{Context, Result, bail};
use bench_report::{columns, files, table};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

const HELP: &str = "\
Usage: cargo xtask fuzz [TARGET]... [--runs N] [--seconds S] [--sanitizer NAME]
       cargo xtask fuzz --list
       cargo xtask fuzz --check

Builds the fuzz targets (fuzz/CRATE) and runs all of them, or the named ones, one after the other.

  --runs N          inputs per target (100,000)
  --seconds S       stop a target after S seconds, even if it has not had all inputs
  --sanitizer NAME  build with a sanitizer, such as address; needs a nightly compiler
  --check           only compile all targets (cargo check)
  --list            only list the targets

target/fuzz/report.json has a row per target that has ever run: inputs, seconds, crashes, coverage. target/fuzz/corpus/
keeps interesting inputs for the next run, target/fuzz/artifacts/ inputs that cause a failure, target/fuzz/logs/ the
output of the targets. `cargo xtask results --keep --only fuzz` copies the report to docs/results.

Needs cargo-fuzz. If it is missing, the command prints how to install it.";

/// Workspace of the fuzz targets.
const DIR: &str = "fuzz";
const RUNS: u64 = 100_000;
/// Maximum input length in bytes: a few times the longest command.
const INPUT_BYTES_MAX: u32 = 2048;
/// Memory limit of a target in MiB.
const MEMORY_MIB_MAX: u32 = 1024;
/// The default: nearly all code is safe, and a device in the fuzzer's process handles faults itself.
const NO_SANITIZER: &str = "none";
/// Sanitizers need unstable options of this compiler.
const TOOLCHAIN: &str = "nightly";
const QUESTION: Duration = Duration::from_secs(30);

/// A target and its file in the workspace of the fuzz targets.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Target {
    name: String,
    file: String,
}

impl Target {
    /// The crate whose parser the target feeds: targets are in directories by crate.
    fn of(&self) -> &str {
        self.file.split_once('/').map_or("", |(dir, _)| dir)
    }
}

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Request {
    targets: Vec<Target>,
    runs: u64,
    seconds: Option<u64>,
    sanitizer: String,
    /// Compile only.
    check: bool,
}

/// Runs the command.
pub(crate) fn run(arguments: Vec<String>) -> Result<ExitCode> {
    let all = targets(&workspace::root())?;
    let Some(request) = parse(arguments, &all)? else {
        return Ok(ExitCode::SUCCESS);
    };
    if request.check {
        succeed(&mut check())?;
        return Ok(ExitCode::SUCCESS);
    }
    check_tools(&request.sanitizer)?;
    let output = workspace::target_dir().join("fuzz");
    succeed(&mut build(&request.sanitizer, &output))?;
    let mut failed = Vec::new();
    println!("{}", table::head(columns::FUZZ));
    for target in &request.targets {
        let row = fuzz(target, &request, &output)?;
        println!("{}", table::line(columns::FUZZ, &row)?);
        if row["crashes"] != 0 {
            failed.push(target.name.as_str());
        }
        // After each target: a long run that is stopped keeps its rows.
        keep(row, &output.join("report.json"))?;
    }
    if failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    println!(
        "failed: {}; see {}",
        failed.join(", "),
        output.join("artifacts").display()
    );
    Ok(ExitCode::FAILURE)
}

/// All targets, from the workspace's manifest.
fn targets(root: &Path) -> Result<Vec<Target>> {
    let file = root.join(DIR).join("Cargo.toml");
    let shown = || file.display().to_string();
    let text = fs::read_to_string(&file).with_context(shown)?;
    let manifest: toml::Table = text.parse().with_context(shown)?;
    let bins = manifest.get("bin").and_then(toml::Value::as_array);
    let target = |bin: &toml::Value| {
        let text = |key| {
            let value = bin.get(key).and_then(toml::Value::as_str);
            let value = value.with_context(|| format!("{}: a [[bin]] without a {key}", shown()));
            value.map(str::to_owned)
        };
        Ok(Target {
            name: text("name")?,
            file: text("path")?,
        })
    };
    bins.into_iter().flatten().map(target).collect()
}

/// `None` if the request was answered already.
fn parse(arguments: Vec<String>, all: &[Target]) -> Result<Option<Request>> {
    use lexopt::prelude::{Long, Short, Value, ValueExt as _};
    let mut request = Request {
        targets: Vec::new(),
        runs: RUNS,
        seconds: None,
        sanitizer: NO_SANITIZER.to_owned(),
        check: false,
    };
    let mut parser = lexopt::Parser::from_args(arguments);
    while let Some(argument) = parser.next()? {
        match argument {
            Long("runs") => request.runs = parser.value()?.parse()?,
            Long("seconds") => request.seconds = Some(parser.value()?.parse()?),
            Long("sanitizer") => request.sanitizer = parser.value()?.string()?,
            Long("check") => request.check = true,
            Long("list") => {
                for target in all {
                    println!("{:<16} {}", target.name, target.of());
                }
                return Ok(None);
            }
            Value(name) => {
                let name = name.string()?;
                let found = all.iter().find(|target| target.name == name);
                let found = found
                    .with_context(|| format!("no target '{name}'; try: cargo xtask fuzz --list"))?;
                request.targets.push(found.clone());
            }
            Short('h') | Long("help") => {
                println!("{HELP}");
                return Ok(None);
            }
            other => bail!("{}; try: cargo xtask fuzz --help", other.unexpected()),
        }
    }
    if request.runs == 0 || request.seconds == Some(0) {
        bail!("--runs 0 and --seconds 0 would run until stopped: give a number");
    }
    if request.targets.is_empty() {
        request.targets = all.to_vec();
    }
    Ok(Some(request))
}

fn check_tools(sanitizer: &str) -> Result<()> {
    let mut missing = Vec::new();
    let has = |words: &[&str]| process::stdout(cargo(sanitizer).args(words), QUESTION).is_ok();
    if !has(&["--version"]) {
        missing.push(format!(
            "a nightly compiler for the {sanitizer} sanitizer: rustup toolchain install {TOOLCHAIN}"
        ));
    }
    // As a program of its own: cargo looks for its subcommands on PATH as well.
    let mut version = Command::new("cargo-fuzz");
    if process::stdout(version.args(["fuzz", "--version"]), QUESTION).is_err() {
        missing.push("cargo-fuzz on PATH: cargo install cargo-fuzz".to_owned());
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

/// `cargo check` of the targets. It needs neither cargo-fuzz nor a nightly compiler, and shares compiled crates with the
/// project's own workspace.
pub(crate) fn check() -> Command {
    let mut command = cargo(NO_SANITIZER);
    command.args(["check", "--quiet", "--bins", "--manifest-path"]);
    command.arg(workspace::root().join(DIR).join("Cargo.toml"));
    command.arg("--target-dir").arg(workspace::target_dir());
    command
}

fn build(sanitizer: &str, output: &Path) -> Command {
    let mut command = cargo(sanitizer);
    command.args(["fuzz", "build", "--sanitizer", sanitizer, "--fuzz-dir", DIR]);
    command
        .arg("--target-dir")
        .arg(build_dir(sanitizer, output));
    command
}

fn succeed(command: &mut Command) -> Result<()> {
    let status = command.status().context("cannot run cargo")?;
    if !status.success() {
        bail!("`{}`: {status}", process::shown(command));
    }
    Ok(())
}

/// Runs a target. Returns its row of the report.
fn fuzz(target: &Target, request: &Request, output: &Path) -> Result<Value> {
    let place = |kind: &str| output.join(kind).join(&target.name);
    let (corpus, artifacts) = (place("corpus"), place("artifacts"));
    let logs = output.join("logs");
    for dir in [&corpus, &artifacts, &logs] {
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    let built = build_dir(&request.sanitizer, output);
    let program = find_program(&built, &target.name)
        .with_context(|| format!("no program {} below {}", target.name, built.display()))?;
    let log = logs.join(format!("{}.log", target.name));
    let file = File::create(&log).with_context(|| format!("cannot make {}", log.display()))?;
    let mut command = Command::new(program);
    command.arg(format!("-runs={}", request.runs));
    if let Some(seconds) = request.seconds {
        command.arg(format!("-max_total_time={seconds}"));
    }
    command.arg(format!("-max_len={INPUT_BYTES_MAX}"));
    command.arg(format!("-rss_limit_mb={MEMORY_MIB_MAX}"));
    command.arg("-print_final_stats=1");
    command.arg(format!("-artifact_prefix={}/", artifacts.display()));
    command.arg(&corpus).stdin(Stdio::null());
    command.stdout(file.try_clone()?).stderr(file);
    let start = Instant::now();
    let mut group = process::Group::spawn(&mut command)?;
    let status = group.child.wait().context("a fuzz target")?;
    let seconds = start.elapsed().as_secs();
    let text = fs::read(&log).with_context(|| format!("cannot read {}", log.display()))?;
    let text = String::from_utf8_lossy(&text);
    let stats = Stats::read(&text).with_context(|| format!("no totals in {}", log.display()));
    let stats = match stats {
        Ok(stats) => stats,
        // A target that ends before its first input.
        Err(_) if !status.success() => Stats::default(),
        Err(error) => return Err(error),
    };
    Ok(json!({
        "target": target.name,
        "crate": target.of(),
        "runs": stats.runs,
        "seconds": seconds,
        "crashes": u8::from(!status.success()),
        "coverage": stats.coverage,
        "kept": stats.kept,
        "sanitizer": request.sanitizer,
    }))
}

/// What libFuzzer prints about a run.
#[derive(Debug, Default, PartialEq, Eq)]
struct Stats {
    /// Executed inputs.
    runs: u64,
    /// Reached edges of the instrumented code.
    coverage: u64,
    /// Inputs of the corpus.
    kept: u64,
}

impl Stats {
    /// `None` if the text has no totals.
    fn read(text: &str) -> Option<Self> {
        let total = text
            .lines()
            .find_map(|line| line.strip_prefix("stat::number_of_executed_units:"))?;
        let mut stats = Self {
            runs: total.trim().parse().ok()?,
            ..Self::default()
        };
        // The last line of progress: `#100000 DONE cov: 152 ft: 310 corp: 41/1823b lim: 2048 ...`.
        for line in text.lines().filter(|line| line.starts_with('#')) {
            let mut words = line.split_whitespace();
            while let Some(word) = words.next() {
                let number = |word: Option<&str>| word?.split('/').next()?.parse().ok();
                match word {
                    "cov:" => stats.coverage = number(words.next()).unwrap_or(stats.coverage),
                    "corp:" => stats.kept = number(words.next()).unwrap_or(stats.kept),
                    _ => {}
                }
            }
        }
        Some(stats)
    }
}

/// Replaces the row of a target in the report.
fn keep(row: Value, file: &Path) -> Result<()> {
    let before = fs::read_to_string(file).ok();
    let before: Option<Value> = before.and_then(|text| serde_json::from_str(&text).ok());
    let rows = before.as_ref().and_then(|report| report["rows"].as_array());
    let others = rows.into_iter().flatten();
    let mut rows: Vec<Value> = others
        .filter(|other| other["target"] != row["target"])
        .cloned()
        .collect();
    rows.push(row);
    files::save(file, &json!({ "schema": 1, "rows": rows }), columns::FUZZ)
}

/// The programs are in a directory named after the target triple.
fn find_program(built: &Path, name: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(built).ok()?.flatten();
    let mut programs = entries.map(|entry| entry.path().join("release").join(name));
    programs.find(|program| program.is_file())
}

/// One directory for all targets, which have different names, because they share most crates.
fn build_dir(sanitizer: &str, output: &Path) -> PathBuf {
    match sanitizer {
        NO_SANITIZER => output.join("build"),
        other => output.join(format!("build-{other}")),
    }
}

/// cargo, independent of the toolchain that runs xtask: the default one, or nightly for a sanitizer.
fn cargo(sanitizer: &str) -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(workspace::root());
    for name in ["CARGO", "RUSTC", "RUSTDOC", "RUSTFLAGS"] {
        command.env_remove(name);
    }
    if sanitizer != NO_SANITIZER {
        command.env("RUSTUP_TOOLCHAIN", TOOLCHAIN);
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
        let request = parse(&[]).unwrap().unwrap();
        assert_eq!((&request.targets, request.runs), (&all, RUNS));
        let words = ["work", "--runs", "7", "--seconds", "3"];
        let request = parse(&words).unwrap().unwrap();
        assert_eq!(request.targets.len(), 1);
        assert_eq!(request.targets[0].name, "work");
        assert_eq!((request.runs, request.seconds), (7, Some(3)));
        for bad in [&["none-such"][..], &["--runs", "0"], &["--seconds", "0"]] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
        assert!(parse(&["--list"]).unwrap().is_none());
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = targets(&workspace::root()).unwrap();
        let count = names.len();
        names.sort_by(|a, b| a.name.cmp(&b.name));
        names.dedup_by(|a, b| a.name == b.name);
        assert_eq!(names.len(), count);
    }

    #[test]
    fn totals_are_read() {
        let text = "\
INFO: Loaded 1 PC tables (1 PCs): 1 [0x1,0x2),
#2	INITED cov: 20 ft: 21 corp: 1/1b exec/s: 0 rss: 30Mb
#65536	pulse  cov: 152 ft: 300 corp: 40/1800b lim: 652 exec/s: 32768 rss: 40Mb
#100000	DONE   cov: 153 ft: 310 corp: 41/1823b lim: 994 exec/s: 33333 rss: 41Mb
Done 100000 runs in 3 second(s)
stat::number_of_executed_units: 100000
stat::average_exec_per_sec:     33333
";
        let stats = Stats {
            runs: 100_000,
            coverage: 153,
            kept: 41,
        };
        assert_eq!(Stats::read(text), Some(stats));
        assert_eq!(Stats::read("no output"), None);
    }

    #[test]
    fn a_report_keeps_the_rows_of_other_targets() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("report.json");
        for (target, runs) in [("a", 1), ("b", 2), ("a", 3)] {
            keep(json!({ "target": target, "runs": runs }), &file).unwrap();
        }
        let report: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
        let rows = json!([{ "target": "b", "runs": 2 }, { "target": "a", "runs": 3 }]);
        assert_eq!(report["rows"], rows);
    }

    #[test]
    fn every_parser_of_user_bytes_has_a_target() {
        const PARSERS: [(&str, &str); 5] = [
            (
                "bf-emu",
                "connect faults ioctl mailbox profile topology work",
            ),
            ("naaice", "naa_announcement naa_spec"),
            (
                "xgvmi-blk",
                "connection guest_memory guest_request half_record image message options service stored_block target",
            ),
            (
                "xgvmi-offload",
                "dpu_fin dpu_note dpu_relay dpu_relayed dpu_rts frame hello host_arrive host_fin host_reduce host_tree job",
            ),
            ("xgvmi-pool", "announcement inbox secret span"),
        ];
        let all = targets(&workspace::root()).unwrap();
        for (of, names) in PARSERS {
            for name in names.split(' ') {
                let has = |target: &Target| target.of() == of && target.name == name;
                assert!(all.iter().any(has), "{of}: {name}");
                let file = workspace::root().join(format!("{DIR}/{of}/{name}.rs"));
                assert!(file.is_file(), "{}", file.display());
            }
        }
    }
}
