//! `cargo xtask bench hotpath`: counts the instructions of an export and its release by owner, and writes
//! `target/bench/hotpath.json`.
//!
//! `step-count` single-steps a program that exports and releases over the emulated device. The counts do not depend on the
//! load of the machine, so tests assert them (`cargo xtask bench judge`). The time is reported beside them. In the mode
//! `held`, the device completes requests after a delay: a locked instruction for each poll would show in the counts.
//!
//! Traps and bytes of work requests come from the emulator's counters at full speed. The emulator's instructions are compared
//! with a stock UCX that rings plain doorbells (`MLX5_SHUT_UP_BF`), as the library does: stock UCX copies requests to a
//! BlueFlame register with 24 stores, and each of them traps.

mod alias;
mod threads;
mod time;

use super::pool::pair;
use super::{begin, cluster, finish};
use crate::setup::{self, Env};
use crate::{process, workspace};
use anyhow::{Context, Result, bail, ensure};
use bench_report::{columns, table};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;
use testbed::cluster::Cluster;

/// One run takes ten seconds; a loaded machine takes longer.
const LIMIT: Duration = Duration::from_secs(300);
/// Number of counted rounds of the pool or the library: a whole batch, or a whole chunk of free keys.
fn rounds(mode: &str) -> usize {
    match mode {
        "strict" => 24,
        _ => BATCH,
    }
}

/// Released keys per batch, in the modes that defer the invalidation: a quarter of the default.
const BATCH: usize = 16;
/// Numbers of rounds of the two runs at full speed, whole batches: their difference has no set-up and no end.
const FULL_SPEED_ROUNDS: [usize; 2] = [BATCH, 3 * BATCH];
/// Bytes of one `entry` record of a trace: a part of a work request.
const ENTRY_BYTES: usize = 32;

/// Length of the buffer: the smallest of the slides' table.
const BYTES: usize = 16 << 10;
/// The modes of invalidation.
pub(crate) const MODES: [&str; 3] = ["strict", "batched", "chained"];

/// Owners, and patterns of their objects' paths.
const OWNERS: [&str; 10] = [
    "library=libuct_ib_mlx5_xgvmi",
    "library=pool_hot_path",
    "library=pool-instructions",
    "emulator=libbfemu",
    "libmlx5=libmlx5",
    "libmlx5=libibverbs",
    "UCX=libuct",
    "UCX=libucp",
    "UCX=libucs",
    "UCX=libucm",
];
/// Objects that are counted for their caller.
const THROUGH: [&str; 5] = ["/libc.so", "ld-linux", "[vdso]", "libgcc_s", "libpthread"];

/// Section numbers of a round, as the programs emit them.
mod section {
    pub(super) const MAP: u64 = 1;
    pub(super) const EXPORT: u64 = 2;
    pub(super) const EXPORT_AGAIN: u64 = 3;
    pub(super) const UNMAP: u64 = 4;
    pub(super) const MAP_PLAIN: u64 = 5;
    pub(super) const UNMAP_PLAIN: u64 = 6;
}

/// Average counts per round of one kind of run.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    /// Counts by section and owner.
    sections: BTreeMap<(u64, String), Counts>,
    /// Cache lines per round by owner.
    lines: BTreeMap<String, Lines>,
    posted: Posted,
}

/// Cache lines that an owner accesses.
#[derive(Clone, Copy, Debug, Default)]
struct Lines {
    /// Lines that no other owner accesses.
    own: f64,
    all: f64,
}

/// Counts of the emulator per round at full speed.
#[derive(Clone, Copy, Debug, Default)]
struct Posted {
    traps: f64,
    /// Bytes of work requests.
    bytes: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    instructions: f64,
    locked: f64,
    allocations: f64,
    system_calls: f64,
}

type Field = fn(&Counts) -> f64;

const INSTRUCTIONS: Field = |counts| counts.instructions;
const LOCKED: Field = |counts| counts.locked;

impl Counted {
    fn of(&self, section: u64, owner: &str, field: Field) -> f64 {
        let counts = self.sections.get(&(section, owner.to_owned()));
        counts.map(field).unwrap_or_default()
    }

    /// Cost of the keys alone: the first export minus the second, which finds the key, plus the release minus the
    /// release of a buffer that was not exported.
    fn keys(&self, owner: &str, field: Field) -> f64 {
        let of = |section| self.of(section, owner, field);
        let export = of(section::EXPORT) - of(section::EXPORT_AGAIN);
        export + of(section::UNMAP) - of(section::UNMAP_PLAIN)
    }

    /// Total of registration, export and release.
    fn all(&self, owner: &str, field: Field) -> f64 {
        let sections = [section::MAP, section::EXPORT, section::UNMAP];
        sections
            .map(|section| self.of(section, owner, field))
            .iter()
            .sum()
    }

    /// Export and release by the pool alone, which has no registration.
    fn alone(&self, field: Field) -> f64 {
        let of = |section| self.of(section, "library", field);
        of(section::EXPORT) + of(section::UNMAP)
    }

    /// Cost that the library adds to the registration of memory that is never exported.
    fn plain(&self, owner: &str, field: Field) -> f64 {
        self.of(section::MAP_PLAIN, owner, field) + self.of(section::UNMAP_PLAIN, owner, field)
    }

    /// Parses the report of `step-count`.
    fn parse(text: &str) -> Result<Self> {
        let report: Value = serde_json::from_str(text).context("the report of step-count")?;
        let rounds = report["rounds"].as_array().context("no rounds")?;
        let mut sums: BTreeMap<(u64, String), (Counts, f64)> = BTreeMap::new();
        let mut lines: BTreeMap<String, Lines> = BTreeMap::new();
        let mut exported = 0.0;
        for round in rounds {
            let sections = round["sections"].as_array().context("no sections")?;
            for section in sections {
                let label = section["label"].as_u64().context("no label")?;
                for (owner, counts) in section["owners"].as_object().context("no owners")? {
                    let count = |name: &str| counts[name].as_f64().unwrap_or_default();
                    let (sum, times) = sums.entry((label, owner.clone())).or_default();
                    sum.instructions += count("instructions");
                    sum.locked += count("locked");
                    sum.allocations += count("allocations");
                    sum.system_calls += count("system_calls");
                    *times += 1.0;
                }
            }
            if sections
                .iter()
                .any(|section| section["label"] == section::EXPORT)
            {
                for (owner, found) in round["lines"].as_object().context("no lines")? {
                    let count = |name: &str| found[name].as_f64().unwrap_or_default();
                    let sum = lines.entry(owner.clone()).or_default();
                    sum.own += count("own");
                    sum.all += count("all");
                }
                exported += 1.0;
            }
        }
        ensure!(exported > 0.0, "no round with an export");
        let mean = |((label, owner), (sum, times)): ((u64, String), (Counts, f64))| {
            let counts = Counts {
                instructions: sum.instructions / times,
                locked: sum.locked / times,
                allocations: sum.allocations / times,
                system_calls: sum.system_calls / times,
            };
            ((label, owner), counts)
        };
        Ok(Self {
            sections: sums.into_iter().map(mean).collect(),
            lines: lines
                .into_iter()
                .map(|(owner, sum)| {
                    let (own, all) = (sum.own / exported, sum.all / exported);
                    (owner, Lines { own, all })
                })
                .collect(),
            posted: Posted::default(),
        })
    }

    fn lines(&self, owner: &str) -> Lines {
        self.lines.get(owner).copied().unwrap_or_default()
    }

    /// Cache lines of the library, UCX and libmlx5 per round.
    fn user_lines(&self) -> f64 {
        let owners = ["library", "UCX", "libmlx5"];
        owners.iter().map(|owner| self.lines(owner).own).sum()
    }

    /// The emulator's instructions in the sections that post requests.
    fn emulator(&self) -> f64 {
        let of = |section| self.of(section, "emulator", |counts| counts.instructions);
        of(section::EXPORT) + of(section::UNMAP)
    }
}

/// Stock UCX, UCX with the library in each mode, and the pool alone in each mode.
#[derive(Debug)]
pub(crate) struct Runs {
    stock: Counted,
    /// Stock UCX with plain doorbells instead of BlueFlame copies.
    plain: Counted,
    library: BTreeMap<&'static str, Counted>,
    pool: BTreeMap<&'static str, Counted>,
    /// UCX with the library in strict mode, on a device that completes late.
    held: Counted,
    /// A hit of the alias map.
    alias: alias::Hit,
    threads: threads::Threads,
}

/// Counts, writes `file`, and prints the rows.
pub(super) fn run(options: &[String], file: &Path) -> Result<ExitCode> {
    if !cfg!(target_arch = "x86_64") {
        bail!("bench hotpath decodes the instructions of x86_64 only");
    }
    begin("hotpath", options, file)?;
    let env = setup::ensure()?;
    let mut rows = Runs::count(&env, &MODES)?.rows();
    let time = time::compare(&env)?;
    rows.push(time.json("strict"));
    print!("{}", table::text(columns::HOTPATH, &rows)?);
    if let Some(stock) = time.stock {
        println!(
            "\nstock UCX's pool over the library in time: {:.2}",
            stock / time.ours
        );
    }
    finish(
        file,
        &json!({ "schema": 1, "rows": rows }),
        columns::HOTPATH,
    )
}

impl Runs {
    /// Builds the programs and counts in the given modes.
    pub(crate) fn count(env: &Env, modes: &[&'static str]) -> Result<Self> {
        build()?;
        let device = cluster(1)?;
        let each = |count: &dyn Fn(&'static str) -> Result<Counted>| {
            modes
                .iter()
                .map(|mode| Ok((*mode, count(mode)?)))
                .collect::<Result<_>>()
        };
        Ok(Self {
            stock: through_ucx(env, &device, Kind::Stock)?,
            plain: through_ucx(env, &device, Kind::Plain)?,
            library: each(&|mode| through_ucx(env, &device, Kind::Library(mode)))?,
            pool: each(&|mode| by_the_pool(env, &device, mode))?,
            held: through_ucx(env, &device, Kind::Held)?,
            alias: alias::Hit::count(&device)?,
            threads: threads::Threads::count(env, &device)?,
        })
    }

    /// `{"what","mode","owner","ours","stock"}`, in counts per export and release.
    fn rows(&self) -> Vec<Value> {
        let library = self
            .library
            .iter()
            .map(|(mode, counted)| (mode, self.through_ucx(counted)));
        let pool = self
            .pool
            .iter()
            .map(|(mode, counted)| (mode, self.by_the_pool(counted)));
        let mut held = self.by_owner(&self.held);
        let polled = self.held.all("library", INSTRUCTIONS);
        held.push(Row::alone("instructions through UCX, with polls", polled));
        let threads = Vec::from(self.threads.rows());
        let (held, threads) = (("held", held), ("strict", threads));
        let all = library.chain(pool).map(|(mode, rows)| (*mode, rows));
        all.chain([held, threads])
            .flat_map(|(mode, rows)| rows.into_iter().map(|row| row.json(mode)))
            .chain(self.alias.rows())
            .collect()
    }

    /// Stock UCX's counts for its keys: its pool, and the requests that libmlx5 posts for it.
    fn stock_keys(&self, field: Field) -> f64 {
        self.stock.keys("UCX", field) + self.stock.keys("libmlx5", field)
    }

    /// Locked instructions and cache lines by owner.
    fn by_owner(&self, counted: &Counted) -> Vec<Row> {
        let owners = ["library", "UCX", "libmlx5"];
        let locked = owners.map(|owner| {
            let of = |counted: &Counted| counted.all(owner, LOCKED);
            Row::beside("locked instructions", owner, of(counted), of(&self.stock))
        });
        let lines = owners.map(|owner| {
            let of = |counted: &Counted| counted.lines(owner).own;
            Row::beside("cache lines", owner, of(counted), of(&self.stock))
        });
        locked.into_iter().chain(lines).collect()
    }

    /// Rows of UCX with the library.
    fn through_ucx(&self, counted: &Counted) -> Vec<Row> {
        let ours = |field: Field| counted.all("library", field);
        let (posted, stock_posted) = (counted.posted, self.stock.posted);
        let plain = ["UCX", "libmlx5"].map(|owner| self.plain.keys(owner, INSTRUCTIONS));
        let all = |counted: &Counted, owners: &[&str]| -> f64 {
            let of = |owner: &&str| counted.all(owner, INSTRUCTIONS);
            owners.iter().map(of).sum()
        };
        let against_stock = |what, owner, owners: &[&str]| {
            Row::beside(what, owner, all(counted, owners), all(&self.stock, owners))
        };
        let mut rows = self.by_owner(counted);
        rows.extend([
            // The library replaces UCX's pool and its queue.
            Row::beside(
                "instructions through UCX, pool and queue",
                "library",
                ours(INSTRUCTIONS),
                self.stock_keys(INSTRUCTIONS),
            ),
            Row::beside(
                "instructions through UCX, against plain doorbells",
                "library",
                ours(INSTRUCTIONS),
                plain.iter().sum(),
            ),
            Row::beside(
                "instructions through UCX, export and release",
                "emulator",
                counted.emulator(),
                self.plain.emulator(),
            ),
            against_stock("instructions through UCX, all", "UCX", &["UCX"]),
            against_stock("instructions through UCX, all", "libmlx5", &["libmlx5"]),
            against_stock(
                "instructions through UCX, all but the emulator",
                "all",
                &["library", "UCX", "libmlx5"],
            ),
            Row::beside(
                "traps through UCX",
                "device",
                posted.traps,
                stock_posted.traps,
            ),
            Row::beside(
                "bytes of work requests through UCX",
                "device",
                posted.bytes,
                stock_posted.bytes,
            ),
            Row::beside(
                "allocations through UCX",
                "library",
                ours(|c| c.allocations),
                self.stock_keys(|c| c.allocations),
            ),
            Row::beside(
                "system calls through UCX",
                "library",
                ours(|c| c.system_calls),
                self.stock_keys(|c| c.system_calls),
            ),
            Row::alone("cache lines through UCX", counted.lines("library").own),
            Row::alone(
                "cache lines through UCX, with those of UCX and of the device's rings",
                counted.lines("library").all,
            ),
            Row::beside(
                "cache lines through UCX, all but the emulator",
                "all",
                counted.user_lines(),
                self.stock.user_lines(),
            ),
            Row::alone(
                "instructions of ordinary memory",
                counted.plain("library", INSTRUCTIONS),
            ),
        ]);
        rows
    }

    /// Rows of the pool alone.
    fn by_the_pool(&self, counted: &Counted) -> Vec<Row> {
        let (posted, stock_posted) = (counted.posted, self.stock.posted);
        vec![
            Row::beside(
                "instructions by the pool alone",
                "library",
                counted.alone(INSTRUCTIONS),
                self.stock_keys(INSTRUCTIONS),
            ),
            Row::beside(
                "traps by the pool alone",
                "device",
                posted.traps,
                stock_posted.traps,
            ),
            Row::beside(
                "bytes of work requests by the pool alone",
                "device",
                posted.bytes,
                stock_posted.bytes,
            ),
            Row::alone(
                "allocations by the pool alone",
                counted.alone(|c| c.allocations),
            ),
            Row::alone(
                "cache lines by the pool alone",
                counted.lines("library").own,
            ),
        ]
    }
}

/// A row of the report, without its mode.
#[derive(Debug)]
struct Row {
    what: &'static str,
    owner: &'static str,
    ours: f64,
    stock: Option<f64>,
}

impl Row {
    const fn beside(what: &'static str, owner: &'static str, ours: f64, stock: f64) -> Self {
        Self {
            what,
            owner,
            ours,
            stock: Some(stock),
        }
    }

    /// A count of the library for which stock UCX has no counterpart.
    const fn alone(what: &'static str, ours: f64) -> Self {
        Self {
            what,
            owner: "library",
            ours,
            stock: None,
        }
    }

    fn json(&self, mode: &str) -> Value {
        json!({
            "what": self.what, "mode": mode, "owner": self.owner,
            "ours": round(self.ours), "stock": self.stock.map(round),
        })
    }
}

/// Requirements on the counts of strict mode: the name of each, and the fault if it is not met.
pub(crate) fn judge(env: &Env) -> Result<Vec<(String, Option<String>)>> {
    let runs = Runs::count(env, &["strict"])?;
    let (ucx, pool) = (&runs.library["strict"], &runs.pool["strict"]);
    let library = |field: Field| ucx.all("library", field);
    let stock = runs.stock_keys(INSTRUCTIONS);
    let polled = runs.held.all("library", INSTRUCTIONS) - library(INSTRUCTIONS);
    let bounds = [
        (
            "instructions of an export and its release by the pool alone",
            pool.alone(INSTRUCTIONS),
            stock,
        ),
        (
            "instructions of an export and its release through UCX",
            library(INSTRUCTIONS),
            LIBRARY_MOST * stock,
        ),
        (
            "traps of an export and its release through UCX",
            ucx.posted.traps,
            runs.stock.posted.traps,
        ),
        (
            "bytes of work requests of an export and its release through UCX",
            ucx.posted.bytes,
            runs.stock.posted.bytes,
        ),
        (
            "instructions of the emulator for the library's requests, over those for stock UCX's",
            ucx.emulator() / runs.plain.emulator(),
            EMULATOR_MOST,
        ),
        (
            "instructions of the emulator for stock UCX's requests, over those for the library's",
            runs.plain.emulator() / ucx.emulator(),
            EMULATOR_MOST,
        ),
        (
            "traps of an export and its release by the pool alone",
            pool.posted.traps,
            runs.stock.posted.traps,
        ),
        (
            "allocations of the library per export and release",
            library(|c| c.allocations),
            0.0,
        ),
        (
            "system calls of the library per export and release",
            library(|c| c.system_calls),
            0.0,
        ),
        (
            "instructions of the library per export and release",
            library(INSTRUCTIONS),
            INSTRUCTIONS_MOST,
        ),
        (
            "locked instructions of the library per export and release",
            library(LOCKED),
            LOCKED_MOST,
        ),
        (
            "locked instructions of the library per export and release with late completions, polls included",
            runs.held.all("library", LOCKED),
            LOCKED_MOST + polled / INSTRUCTIONS_PER_LOCKED_LEAST,
        ),
        (
            "instructions of the library without polls, over those of its polls for late completions",
            library(INSTRUCTIONS) / polled,
            UNPOLLED_MOST,
        ),
        (
            "cache lines of the library per export and release",
            ucx.lines("library").own,
            LINES_MOST,
        ),
    ];
    let alias = runs.alias.bounds();
    let shared = runs.threads.shared();
    let shared = (
        "written cache lines that two threads on two domains share".to_owned(),
        (!shared.is_empty()).then(|| shared.join(", ")),
    );
    Ok(bounds
        .into_iter()
        .chain(alias)
        .map(|(name, found, most)| {
            let kept = found <= most && most.is_finite();
            let failure = (!kept).then(|| format!("{found:.3}, at most {most:.3}"));
            (name.to_owned(), failure)
        })
        .chain([shared])
        .collect())
}

/// Maximum ratio of the library's instructions through UCX to stock UCX's with its pool and queue.
const LIBRARY_MOST: f64 = 1.0;
/// Maximum ratio of the emulator's instructions for the same work requests, in both directions: both post stock UCX's form,
/// so the emulator favours neither. One per cent remains: stock UCX's completion queue has two entries, so that the emulator
/// reads its consumer counter at every second request, and that of the library's longer queue less often.
const EMULATOR_MOST: f64 = 1.02;
/// Maximum cache lines of the library's own data in a round that also accesses the queue of free keys.
const LINES_MOST: f64 = 14.0;
/// Maximum instructions of the library in a round.
const INSTRUCTIONS_MOST: f64 = 650.0;
/// Maximum locked instructions of the library in a round: two claims of the thread's free keys, two locks of the queue, and
/// that of the registration's line; now and then a chunk of free keys.
const LOCKED_MOST: f64 = 6.0;
/// Instructions of polls per locked one: a thread that waits for long locks the queue for 64 polls at a time.
const INSTRUCTIONS_PER_LOCKED_LEAST: f64 = 500.0;
/// Maximum ratio that shows polls at a device that completes late: below 0.1 on an idle machine. A busy one has fewer polls
/// in the same time, and the limit of locked instructions follows their number.
const UNPOLLED_MOST: f64 = 10.0;
/// Counts are whole numbers; one decimal is sufficient for averages of some hundreds.
fn round(count: f64) -> f64 {
    (count * 10.0).round() / 10.0
}

fn build() -> Result<()> {
    workspace::build(&[
        "-p bf-emu -p bf-emu-preload -p step-count -p uct-plugin",
        "-p pool-bench --bin pool-instructions",
        "-p testbed-programs --bin pool_hot_path --bin ucp_hot_path",
    ])
}

/// A UCX to count.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Stock,
    /// Stock UCX with plain doorbells.
    Plain,
    /// With the library in a mode.
    Library(&'static str),
    /// With the library in strict mode, on a device that completes late.
    Held,
}

/// A device that completes late, from the counted rounds on: hundreds of polls even in single steps.
const LATE: &str =
    "any request umr_bind after 164 late 200ms; any request umr_invalidate after 164 late 200ms";

impl Kind {
    /// Number of counted rounds. Stock UCX repeats itself after four rounds; under single steps the first copy to a
    /// BlueFlame register differs from the later ones.
    fn rounds(self) -> usize {
        match self {
            Self::Stock => 8,
            Self::Plain => 4,
            Self::Library(mode) => rounds(mode),
            Self::Held => rounds("strict"),
        }
    }

    /// The command of the example `hot_path` with its arguments and variables.
    fn prepare(self, env: &Env, mut command: Command, rounds: usize) -> Command {
        process::without_ucx_settings(&mut command);
        command.arg(env.ucx_lib_dir.join("libucp.so.0"));
        command.args(["mlx5_0", &BYTES.to_string(), &rounds.to_string()]);
        command.envs(env.for_ucx());
        if let Self::Plain = self {
            command.env("MLX5_SHUT_UP_BF", "1");
        }
        let mode = match self {
            Self::Stock | Self::Plain => None,
            Self::Library(mode) => Some(mode),
            Self::Held => {
                command.env("BFEMU_FAULTS", LATE);
                Some("strict")
            }
        };
        if let Some(mode) = mode {
            command.env("LD_PRELOAD", workspace::built("libuct_ib_mlx5_xgvmi.so"));
            command.env("UCX_XGVMI_INVALIDATE", mode);
            command.env("UCX_XGVMI_POOL_INIT", "128");
            command.env("UCX_XGVMI_BATCH", BATCH.to_string());
            // In single steps, the time limit of a batch would expire in each round.
            command.env("UCX_XGVMI_BATCH_TIME", "60m");
        }
        command
    }
}

fn through_ucx(env: &Env, device: &Cluster, kind: Kind) -> Result<Counted> {
    let stepped = kind.prepare(env, stepped(device, "ucp_hot_path"), kind.rounds());
    let mut counted = counted(stepped, device)?;
    if let Kind::Held = kind {
        return Ok(counted);
    }
    counted.posted = posted(device, |device, rounds| {
        kind.prepare(env, pair(device, "ucp_hot_path"), rounds)
    })?;
    Ok(counted)
}

fn by_the_pool(env: &Env, device: &Cluster, mode: &'static str) -> Result<Counted> {
    let finish = |mut command: Command, rounds: usize| {
        let numbers = [BYTES, rounds, BATCH].map(|number| number.to_string());
        command.args(["mlx5_0", mode]).args(numbers);
        command.envs(env.for_verbs());
        command
    };
    let stepped = finish(stepped(device, "pool_hot_path"), rounds(mode));
    let mut counted = counted(stepped, device)?;
    counted.posted = posted(device, |device, rounds| {
        finish(pair(device, "pool_hot_path"), rounds)
    })?;
    Ok(counted)
}

/// The emulator's counts per round, from two runs at full speed, each on a device of its own.
fn posted(device: &Cluster, run: impl Fn(&Cluster, usize) -> Command) -> Result<Posted> {
    let mut sums = [Posted::default(); 2];
    for (sum, rounds) in sums.iter_mut().zip(FULL_SPEED_ROUNDS) {
        let device = device.named(&format!("full-speed-{rounds}"));
        device.create()?;
        device.ask("trace", &["--on"])?;
        process::stdout(&mut run(&device, rounds), LIMIT)?;
        let stats = device.ask("stats", &["--json"])?;
        let trace = device.ask("trace", &["--json"])?;
        *sum = Posted {
            traps: traps(&stats)?,
            bytes: request_bytes(&trace)?,
        };
        let state = device.state();
        fs::remove_dir_all(state).with_context(|| format!("removing {}", state.display()))?;
    }
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    let more = (FULL_SPEED_ROUNDS[1] - FULL_SPEED_ROUNDS[0]) as f64;
    Ok(Posted {
        traps: (sums[1].traps - sums[0].traps) / more,
        bytes: (sums[1].bytes - sums[0].bytes) / more,
    })
}

/// Doorbell traps of all functions.
fn traps(stats: &str) -> Result<f64> {
    let stats: Value = serde_json::from_str(stats).context("the counters of the emulator")?;
    let functions = stats["functions"].as_array().context("no functions")?;
    let traps = |function: &Value| function["traps"].as_f64().context("no traps");
    functions.iter().map(traps).sum()
}

/// Bytes of the traced work requests. The trace must contain all of them.
fn request_bytes(trace: &str) -> Result<f64> {
    let mut bytes = 0;
    for (line, number) in trace.lines().zip(1_u64..) {
        let record: Value = serde_json::from_str(line).context("a record of the trace")?;
        ensure!(
            record["number"] == number,
            "the trace lost records before {}",
            record["number"]
        );
        if record["kind"] == "entry" {
            bytes += ENTRY_BYTES;
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "some thousand requests")]
    Ok(bytes as f64)
}

fn counted(mut command: Command, device: &Cluster) -> Result<Counted> {
    process::stdout(&mut command, LIMIT)?;
    Counted::parse(&steps(device)?)
}

/// The report of a stepped program. It is removed, so that it counts once.
pub(super) fn steps(device: &Cluster) -> Result<String> {
    let report = report(device);
    let text = fs::read_to_string(&report)
        .with_context(|| format!("step-count wrote no {}", report.display()))?;
    fs::remove_file(&report).with_context(|| format!("removing {}", report.display()))?;
    Ok(text)
}

fn report(device: &Cluster) -> PathBuf {
    device.path().join("steps.json")
}

/// A program under `step-count` on a host and its DPU.
pub(super) fn stepped(device: &Cluster, example: &str) -> Command {
    let mut command = device.command("node0.host,node0.dpu", workspace::built("step-count"));
    command.arg("--output").arg(report(device));
    for owner in OWNERS {
        command.args(["--owner", owner]);
    }
    for through in THROUGH {
        command.args(["--through", through]);
    }
    command.arg("--").arg(workspace::built(example));
    command
}
