//! `cargo xtask bench pool`: measures the pool and comparable lists in the same run and writes
//! `target/bench/pool.json`.
//!
//! tests/promises.toml describes each row. A missing number is an error; the bench never invents a row.

pub(crate) mod instructions;

use super::{begin, cluster, finish};
use crate::setup::{self, Env};
use crate::{process, workspace};
use anyhow::{Context, Result, ensure};
use bench_report::{columns, table};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;
use testbed::cluster::Cluster;

/// All criterion benches take half a minute, after a build of two minutes on two cores without a cache.
const CRITERION_LIMIT: Duration = Duration::from_secs(600);
/// A program over the emulated device takes seconds; a loaded machine takes longer.
const DEVICE_LIMIT: Duration = Duration::from_secs(180);
/// The emulator's cost profile: the slides' times of the commands.
const PROFILE: &str = "bluefield3";

/// Source of a number.
#[derive(Debug, Clone, Copy)]
enum Source {
    /// Group and member of a criterion bench. The best sample counts, because other load on the machine only increases
    /// times.
    Criterion(&'static str, &'static str),
    /// As `Criterion`, with the median of the samples: contention between threads makes them slower than the best
    /// sample. Absent if the machine is too busy for the number of threads.
    Median(&'static str, &'static str),
    /// A line of `device_bench`, multiplied by a factor.
    Pool(&'static str, f64),
    /// A line of `stock_pool`, multiplied by a factor.
    Stock(&'static str, f64),
    /// The same with the library preloaded, in a mode of `UCX_XGVMI_INVALIDATE`.
    Library(&'static str, &'static str),
}

use Source::{Criterion, Library, Median, Pool, Stock};

/// Modes in which `stock_pool` runs with the library.
const MODES: [&str; 3] = ["batched", "strict", "chained"];

struct Row {
    name: &'static str,
    ours: Source,
    peer: Source,
    unit: &'static str,
}

const fn row(name: &'static str, ours: Source, peer: Source, unit: &'static str) -> Row {
    Row {
        name,
        ours,
        peer,
        unit,
    }
}

const fn criterion(name: &'static str) -> Row {
    row(name, Criterion(name, "ours"), Criterion(name, "peer"), "ns")
}

/// Number of keys used in the row of 64.
const KEYS: f64 = 64.0;

/// A row that compares UCX with and without the library.
const fn through_ucx(name: &'static str, mode: &'static str, line: &'static str) -> Row {
    let unit = if matches!(line.as_bytes(), [b'd', ..]) {
        "doorbells"
    } else {
        "ns"
    };
    row(name, Library(mode, line), Stock(line, 1.0), unit)
}

const ROWS: [Row; 16] = [
    criterion("lease_release_1t"),
    row(
        "lease_release_2t",
        Median("lease_release_2t", "ours"),
        Median("lease_release_2t", "peer"),
        "ns",
    ),
    criterion("alias_hit_20k"),
    row(
        "alias_hit_2t",
        Median("alias_hit_2t", "ours"),
        Criterion("alias_hit_20k", "peer"),
        "ns",
    ),
    row(
        "bind_invalidate_batched",
        Pool("export_release_64_together_batched", 1.0),
        Stock("export_release", 1.0),
        "ns",
    ),
    row(
        "bind_invalidate_strict",
        Pool("export_release_strict", 1.0),
        Stock("export_release", 1.0),
        "ns",
    ),
    row(
        "doorbells_64",
        Pool("doorbells_64_batched", 1.0),
        Stock("doorbells_64", 1.0),
        "doorbells",
    ),
    row(
        "first_touch_64",
        Pool("first_touch_announced", KEYS),
        Stock("first_touch", KEYS),
        "ns",
    ),
    // The cost that the row above moves to another time.
    row(
        "announce_64",
        Pool("announcing_per_key", KEYS),
        Stock("first_touch", KEYS),
        "ns",
    ),
    row(
        "export_4gib",
        Pool("export_release_4gib_batched", 1.0),
        Stock("export_4gib", 1.0),
        "ns",
    ),
    through_ucx("ucx_bind_invalidate_batched", "batched", "export_release"),
    through_ucx("ucx_bind_invalidate_strict", "strict", "export_release"),
    through_ucx("ucx_bind_invalidate_chained", "chained", "export_release"),
    through_ucx("ucx_doorbells_64_batched", "batched", "doorbells_64"),
    through_ucx("ucx_doorbells_64_strict", "strict", "doorbells_64"),
    through_ucx("ucx_export_4gib", "batched", "export_4gib"),
];

/// Measures everything, writes `file`, and prints the rows.
pub(super) fn run(options: &[String], file: &Path) -> Result<ExitCode> {
    begin("pool", options, file)?;
    let env = setup::ensure()?;
    build()?;
    let samples = file.with_file_name("criterion");
    measure_criterion(&env, &samples)?;
    let device = cluster(1)?.with(["--profile", PROFILE]);
    let measured = Measured {
        samples,
        pool: numbers(&measure_pool(&env, &device)?)?,
        stock: numbers(&measure_stock(&env, &device, None)?)?,
        library: MODES
            .iter()
            .map(|&mode| Ok((mode, numbers(&measure_stock(&env, &device, Some(mode))?)?)))
            .collect::<Result<_>>()?,
    };
    let instructions = instructions::measure(&env)?;
    let rows = ROWS
        .iter()
        .filter(|row| measured.has(row))
        .map(|row| {
            let find = |source| measured.find(source);
            let mut told = compare(row, find(row.ours)?, find(row.peer)?)?;
            if let Some(counted) = instructions.get(row.name) {
                told["instructions"] = counted.clone();
            }
            Ok(told)
        })
        .collect::<Result<Vec<Value>>>()?;
    print!("{}", table::text(columns::POOL, &rows)?);
    finish(file, &json!({ "rows": rows }), columns::POOL)
}

fn compare(row: &Row, ours: f64, peer: f64) -> Result<Value> {
    for (whose, number) in [("ours", ours), ("the peer's", peer)] {
        ensure!(
            number.is_finite() && number > 0.0,
            "{}: {whose} is {number} {}",
            row.name,
            row.unit
        );
    }
    Ok(json!({
        "name": row.name, "ours": ours, "peer": peer, "ratio": peer / ours, "unit": row.unit,
    }))
}

type Numbers = BTreeMap<String, f64>;

/// Output of the programs.
#[derive(Debug, Default)]
struct Measured {
    samples: PathBuf,
    pool: Numbers,
    stock: Numbers,
    /// Numbers by mode.
    library: BTreeMap<&'static str, Numbers>,
}

impl Measured {
    /// False for a row of several threads if the machine lacked processors for them; the program has reported this.
    fn has(&self, row: &Row) -> bool {
        let is_there = |source| match source {
            Median(group, member) => self.samples.join(group).join(member).exists(),
            _ => true,
        };
        let has = is_there(row.ours) && is_there(row.peer);
        if !has {
            println!(
                "{:<28} no number: fewer free processors than threads",
                row.name
            );
        }
        has
    }

    fn find(&self, source: Source) -> Result<f64> {
        let line = |numbers: Option<&Numbers>, program: &str, name: &str, factor: f64| {
            numbers
                .and_then(|numbers| numbers.get(name))
                .map(|number| number * factor)
                .with_context(|| format!("{program} did not print {name}"))
        };
        match source {
            Criterion(group, member) => best(&self.samples.join(group).join(member)),
            Median(group, member) => median(&self.samples.join(group).join(member)),
            Pool(name, factor) => line(Some(&self.pool), "device_bench", name, factor),
            Stock(name, factor) => line(Some(&self.stock), "stock_pool", name, factor),
            Library(mode, name) => {
                let program = format!("stock_pool with the library, {mode},");
                line(self.library.get(mode), &program, name, 1.0)
            }
        }
    }
}

/// The best of criterion's samples of a bench, in nanoseconds per round.
fn best(bench: &Path) -> Result<f64> {
    let sorted = samples(bench)?;
    Ok(sorted[0])
}

/// The median of the samples.
fn median(bench: &Path) -> Result<f64> {
    let sorted = samples(bench)?;
    Ok(sorted[sorted.len() / 2])
}

/// All samples of a bench, at least one, in ascending order.
fn samples(bench: &Path) -> Result<Vec<f64>> {
    let file = bench.join("new/sample.json");
    let text = fs::read_to_string(&file)
        .with_context(|| format!("criterion wrote no {}", file.display()))?;
    let sample: Value = serde_json::from_str(&text).with_context(|| file.display().to_string())?;
    let list = |name: &str| {
        let list = sample[name].as_array();
        list.into_iter().flatten().filter_map(Value::as_f64)
    };
    let per_round = list("times").zip(list("iters"));
    let mut sorted: Vec<f64> = per_round.map(|(time, rounds)| time / rounds).collect();
    sorted.sort_by(f64::total_cmp);
    ensure!(!sorted.is_empty(), "{}: no samples", file.display());
    Ok(sorted)
}

/// Parses lines `NAME NUMBER`; other lines are comments of the programs.
fn numbers(output: &str) -> Result<Numbers> {
    let mut numbers = Numbers::new();
    for line in output.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [name, number] = words.as_slice()
            && let Ok(number) = number.parse()
        {
            let before = numbers.insert((*name).to_owned(), number);
            ensure!(before.is_none(), "{name} was printed twice");
        }
    }
    Ok(numbers)
}

fn build() -> Result<()> {
    workspace::build(&[
        "-p bf-emu -p bf-emu-preload -p uct-plugin",
        "-p pool-bench --bin pool-instructions",
        "-p testbed-programs --bin device_bench --bin stock_pool",
    ])
}

/// Runs the benches into `samples`.
fn measure_criterion(env: &Env, samples: &Path) -> Result<()> {
    // Old samples must not replace benches that did not run.
    let _ = fs::remove_dir_all(samples);
    let mut command = Command::new("cargo");
    command.current_dir(workspace::root());
    command.args(["bench", "-p", "pool-bench", "--bench", "pool", "--"]);
    command.args(["--noplot", "--warm-up-time", "1"]);
    command.env("CRITERION_HOME", samples);
    command.env("XGVMI_UCX_INCLUDE", &env.ucx_include);
    command.envs(env.for_cc());
    process::stdout(&mut command, CRITERION_LIMIT).map(drop)
}

fn measure_pool(env: &Env, device: &Cluster) -> Result<String> {
    let mut command = pair(device, "device_bench");
    command.args(["mlx5_0", "mlx5_1"]).envs(env.for_verbs());
    process::stdout(&mut command, DEVICE_LIMIT)
}

/// Stock UCX, alone or with the library in a mode.
fn measure_stock(env: &Env, device: &Cluster, mode: Option<&str>) -> Result<String> {
    let mut command = pair(device, "stock_pool");
    process::without_ucx_settings(&mut command);
    command.arg(env.ucx_lib_dir.join("libucp.so.0"));
    command.args(["mlx5_0", "mlx5_1", "--"]);
    command.args(device.stats_words()).envs(env.for_ucx());
    if let Some(mode) = mode {
        command.env("LD_PRELOAD", workspace::built("libuct_ib_mlx5_xgvmi.so"));
        command.env("UCX_XGVMI_INVALIDATE", mode);
        // Twice the number of simultaneous buffers, before the first export.
        command.env("UCX_XGVMI_POOL_INIT", "128");
    }
    process::stdout(&mut command, DEVICE_LIMIT)
}

/// A program on a host and its DPU, as the devices `mlx5_0` and `mlx5_1`.
pub(super) fn pair(device: &Cluster, name: &str) -> Command {
    device.command("node0.host,node0.dpu", workspace::built(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_a_name_and_a_number_are_read() {
        let read = numbers("opening mlx5_0\nfirst_touch 180\ndoorbells_64 128.5\n\n").unwrap();
        let expect = [("first_touch", 180.0), ("doorbells_64", 128.5)];
        let expect: Numbers = expect.map(|(name, n)| (name.to_owned(), n)).into();
        assert_eq!(read, expect);
        assert!(numbers("a 1\na 2").is_err());
    }

    #[test]
    fn a_missing_number_is_an_error_and_a_ratio_says_how_many_times_better() {
        let samples = tempfile::tempdir().unwrap();
        let bench = samples.path().join("lease_release_1t/ours/new");
        fs::create_dir_all(&bench).unwrap();
        fs::write(
            bench.join("sample.json"),
            r#"{"sampling_mode":"Linear","iters":[10.0,20.0],"times":[500.0,810.0]}"#,
        )
        .unwrap();
        let measured = Measured {
            samples: samples.path().to_owned(),
            stock: numbers("first_touch 180000").unwrap(),
            library: BTreeMap::from([("batched", numbers("export_4gib 5000").unwrap())]),
            ..Measured::default()
        };
        let check = |source, expect: Result<f64, &str>| {
            let found = measured.find(source);
            match (found, expect) {
                (Ok(found), Ok(expect)) => assert_eq!(found, expect),
                (Err(error), Err(expect)) => {
                    assert!(error.to_string().contains(expect), "{error}");
                }
                (found, expect) => panic!("{source:?}: {found:?}, not {expect:?}"),
            }
        };
        check(Criterion("lease_release_1t", "ours"), Ok(40.5));
        check(Criterion("lease_release_1t", "peer"), Err("wrote no"));
        check(Stock("first_touch", KEYS), Ok(11_520_000.0));
        check(Pool("first_touch", 1.0), Err("device_bench did not print"));
        check(Library("batched", "export_4gib"), Ok(5_000.0));
        check(
            Library("strict", "export_4gib"),
            Err("stock_pool with the library, strict, did not print"),
        );

        let row = &ROWS[0];
        assert_eq!(compare(row, 2.0, 5.0).unwrap()["ratio"], 2.5);
        assert!(compare(row, 0.0, 5.0).is_err());
        assert!(compare(row, 2.0, f64::NAN).is_err());
    }
}
