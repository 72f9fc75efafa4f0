//! `cargo xtask bench offload`: instructions of a rank and of a service process per offloaded alltoallv with temporary
//! buffers, by owner of the code, and writes `target/bench/offload.json`.
//!
//! Further jobs have 2 x 4 ranks and two service processes per node, as `cargo xtask bench alltoallv`. Their rows are
//! compared with those of an earlier version of the service process. Such a version is measured once, with
//! `--before DIR COMMIT`; later reports repeat its rows. DIR is the `target/release` of that version, with the example
//! `rank_cost` of this one.
//!
//! `step-count --blocks` counts the process over the emulated device, so the load of the machine does not count. The
//! order in which messages arrive does: it changes the number of empty polls of UCX and of the service's sockets, which are
//! a few percent of all instructions.

use super::{cluster, finish};
use crate::process::{self, Running};
use crate::setup::{self, Env};
use crate::workspace;
use anyhow::{Context, Result, bail, ensure};
use bench_report::{columns, files, table};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;
use testbed::cluster::Cluster;
use testbed::port::free as free_port;

/// Bytes to each rank.
const SIZES: [u32; 2] = [4 << 10, 64 << 10];
/// Counted calls.
const CALLS: u32 = 8;
/// Ranks of the job, half of them on each node.
const RANKS: u32 = 4;
const NODES: u32 = 2;
/// The ranks and the service processes per node of the jobs that are compared with an earlier version.
const COMPARED: (u32, u32) = (8, 2);
/// The report of a former run, for the rows of the earlier version.
const COMMITTED: &str = "docs/results/offload.json";
/// The count slows the calls some hundred times.
const LIMIT: Duration = Duration::from_secs(300);
/// Time limit for the start of a service process, of a job, and of the counter.
const UP: Duration = Duration::from_secs(60);

/// Owners of instructions, and parts of their objects' paths.
const OWNERS: [&str; 10] = [
    "client=rank_cost",
    "service=xgvmi-sp",
    "library=libuct_ib_mlx5_xgvmi",
    EMULATOR,
    "libmlx5=libmlx5",
    "libmlx5=libibverbs",
    "UCX=libuct",
    "UCX=libucp",
    "UCX=libucs",
    "UCX=libucm",
];
const EMULATOR: &str = "emulator=libbfemu";
/// Objects whose instructions count for their caller.
const THROUGH: [&str; 5] = ["/libc.so", "ld-linux", "[vdso]", "libgcc_s", "libpthread"];

/// A kind of keys, with options of the library.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scheme {
    name: &'static str,
    /// Name that the programs use.
    program: &'static str,
    order: Option<&'static str>,
}

/// The order of keys that is the default.
pub(super) const XGVMI: Scheme = Scheme {
    name: "xgvmi",
    program: "xgvmi",
    order: None,
};

/// The keys of stock UCX: the service process needs nothing of the library.
const STOCK: Scheme = Scheme {
    name: "stock",
    program: "stock",
    order: None,
};

const SCHEMES: [Scheme; 3] = [
    STOCK,
    Scheme {
        name: "xgvmi+fifo",
        order: Some("fifo"),
        ..XGVMI
    },
    Scheme {
        name: "xgvmi+affinity",
        order: Some("affinity"),
        ..XGVMI
    },
];

/// The counted process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Process {
    /// Rank 0, in its own work: the start of each call, and the test that completes it.
    Rank,
    /// The service process of node 0, from the first call to the last.
    Service,
}

/// Instructions by section and owner, of all counted calls.
pub(super) type Sums = BTreeMap<(u64, String), f64>;

/// A job on an emulated device.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) scheme: Scheme,
    pub(super) ranks: u32,
    pub(super) block: u32,
    pub(super) calls: u32,
    /// Service processes per node.
    pub(super) services: u32,
    /// Directory of `xgvmi-sp` and `rank_cost` of an earlier version.
    pub(super) programs: Option<PathBuf>,
}

/// Counts, writes `file`, and prints the rows.
pub(super) fn run(options: &[String], file: &Path) -> Result<ExitCode> {
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let before = match options.as_slice() {
        [] => None,
        ["--before", programs, commit] => Some((PathBuf::from(programs), *commit)),
        other => bail!(
            "bench offload takes --before DIR COMMIT, not '{}'",
            other.join(" ")
        ),
    };
    let former = former(file);
    // A version that is measured once leaves the other rows as they are.
    let kept = before
        .as_ref()
        .and_then(|_| former["rows"].as_array())
        .cloned();
    files::prepare(file)?;
    build()?;
    let env = setup::ensure()?;
    let rows = match kept {
        Some(rows) => rows,
        None => by_scheme(&env)?,
    };
    print!("{}", table::text(columns::OFFLOAD, &rows)?);
    let now = compared(&env, None)?;
    let before = match before {
        Some((programs, commit)) => {
            json!({ "commit": commit, "rows": compared(&env, Some(programs))? })
        }
        None => former["before"].clone(),
    };
    let compared = with_ratios(now, &before);
    println!("\n2 x 4 ranks:");
    print!(
        "{}",
        table::text(
            columns::OFFLOAD,
            compared.as_array().map_or(&[], Vec::as_slice)
        )?
    );
    let report = json!({
        "calls": CALLS, "ranks": RANKS, "nodes": NODES, "rows": rows,
        "compared_ranks": COMPARED.0, "compared_services_per_node": COMPARED.1, "compared": compared,
        "before": before,
    });
    finish(file, &report, columns::OFFLOAD)
}

/// Rows of all schemes, sizes and processes.
fn by_scheme(env: &Env) -> Result<Vec<Value>> {
    let mut rows = Vec::new();
    for block in SIZES {
        for process in [Process::Service, Process::Rank] {
            let mut stock = None;
            for scheme in SCHEMES {
                let job = Job {
                    scheme,
                    ranks: RANKS,
                    block,
                    calls: CALLS,
                    services: 1,
                    programs: None,
                };
                let sums = job.count(env, process)?;
                rows.extend(rows_of(&job, process, &sums, &mut stock));
                eprint!(".");
            }
        }
    }
    eprintln!();
    Ok(rows)
}

/// Rows of a service process in the jobs that are compared, with the programs of an earlier version or of this one.
fn compared(env: &Env, programs: Option<PathBuf>) -> Result<Value> {
    let mut rows = Vec::new();
    for block in SIZES {
        let job = Job {
            scheme: STOCK,
            ranks: COMPARED.0,
            block,
            calls: CALLS,
            services: COMPARED.1,
            programs: programs.clone(),
        };
        let sums = job.count(env, Process::Service)?;
        rows.extend(rows_of(&job, Process::Service, &sums, &mut None));
        eprint!(".");
    }
    eprintln!();
    Ok(rows.into())
}

/// Adds to each row its instructions divided by those of the same row before.
fn with_ratios(mut rows: Value, before: &Value) -> Value {
    let before = before["rows"].as_array().cloned().unwrap_or_default();
    for row in rows.as_array_mut().into_iter().flatten() {
        let same = |other: &&Value| ["size", "owner"].iter().all(|key| other[*key] == row[*key]);
        let peer = before
            .iter()
            .find(same)
            .and_then(|row| row["instructions"].as_f64());
        let ratio = row["instructions"].as_f64().zip(peer);
        row["of_before"] =
            json!(ratio.map(|(now, before)| (1000.0 * now / before).round() / 1000.0));
    }
    rows
}

/// Instructions of the earlier version's own code over those of this version, for a block of the shortest size; `None`
/// if the report and the committed one do not compare them.
pub(super) fn earlier(file: &Path) -> Option<f64> {
    let report = former(file);
    let mut rows = report["compared"].as_array()?.iter();
    let row = rows.find(|row| row["size"] == SIZES[0] && row["owner"] == "service")?;
    row["of_before"].as_f64().map(|ratio| 1.0 / ratio)
}

/// The last report, or else the committed one, if it has rows of an earlier version; or else the committed one.
fn former(file: &Path) -> Value {
    let committed = workspace::root().join(COMMITTED);
    // Of two such reports the last one counts.
    [committed.as_path(), file]
        .into_iter()
        .filter_map(|file| fs::read_to_string(file).ok())
        .filter_map(|text| serde_json::from_str::<Value>(&text).ok())
        .max_by_key(|report| report["before"].is_object())
        .unwrap_or_default()
}

/// Rows per call: each owner, and all of them but the emulator with the ratio to the first scheme.
fn rows_of(job: &Job, process: Process, sums: &Sums, stock: &mut Option<f64>) -> Vec<Value> {
    let calls = f64::from(job.calls);
    let mut owners: BTreeMap<&str, f64> = BTreeMap::new();
    for ((_, owner), count) in sums {
        *owners.entry(owner).or_default() += count / calls;
    }
    owners.retain(|_, count| *count > 0.0);
    let process = match process {
        Process::Rank => "rank",
        Process::Service => "service",
    };
    let row = |owner: &str, count: f64| {
        json!({
            "size": job.block, "process": process, "scheme": job.scheme.name, "owner": owner,
            "instructions": count.round(),
        })
    };
    let mut rows: Vec<Value> = owners
        .iter()
        .map(|(owner, count)| row(owner, *count))
        .collect();
    let all: f64 = owners
        .iter()
        .filter(|(owner, _)| !EMULATOR.starts_with(**owner))
        .map(|(_, count)| count)
        .sum();
    let mut sum = row("all but the emulator", all);
    let stock = *stock.get_or_insert(all);
    sum["of_stock"] = json!((1000.0 * all / stock).round() / 1000.0);
    rows.push(sum);
    rows
}

/// Builds the programs.
pub(super) fn build() -> Result<()> {
    workspace::build(&[
        "-p bf-emu -p bf-emu-preload -p step-count -p xgvmi-offload -p uct-plugin",
        "-p testbed-programs --bin rank_cost",
    ])
}

impl Job {
    /// Instructions of a process in all calls, after calls that used each key of the pools.
    pub(super) fn count(&self, env: &Env, process: Process) -> Result<Sums> {
        let device = cluster(NODES)?;
        let place = device.path();
        let steps = place.join("steps.json");
        let (mut services, mut ports) = (Vec::new(), Vec::new());
        for service in 0..NODES * self.services {
            let port = free_port()?;
            services.push(self.service(env, &device, service / self.services, port)?);
            ports.push(port);
        }
        let meet = format!("127.0.0.1:{}", free_port()?);
        let mut ranks = Vec::new();
        for rank in 0..self.ranks {
            let node = rank * NODES / self.ranks;
            let rank_cost = self.program("rank_cost");
            let function = format!("node{node}.host");
            let mut command = if process == Process::Rank && rank == 0 {
                let mut command = self.on(env, &device, &function, &workspace::built("step-count"));
                command.args(counter(&steps)).arg("--").arg(rank_cost);
                command
            } else {
                self.on(env, &device, &function, &rank_cost)
            };
            if process == Process::Rank {
                // The release of a buffer that UCX still knows would happen between the counted parts.
                command.env("UCX_RCACHE_ENABLE", "n");
            }
            command.args([rank, self.ranks].map(|number| number.to_string()));
            command.args([&meet, &format!("n{node}")]);
            // The ranks of a node take its service processes in turn.
            let service = node * self.services + rank % self.services;
            command.arg(format!("127.0.0.1:{}", ports[service as usize]));
            command.arg(self.scheme.program);
            command.args([self.block, self.calls].map(|number| number.to_string()));
            if process == Process::Service {
                command.arg(place);
            }
            ranks.push(Running::spawn(&mut command)?);
        }
        if process == Process::Service {
            count_service(place, &steps, services[0].group.id(), &mut ranks)?;
        }
        for rank in ranks {
            let done = rank.wait(LIMIT)?;
            ensure!(done.ok(), "{}: {}", done.verdict(), done.output);
        }
        let text = fs::read_to_string(&steps).context("step-count wrote no report")?;
        sums(&text)
    }

    fn program(&self, name: &str) -> PathBuf {
        match &self.programs {
            Some(place) => place.join(name),
            None => workspace::built(name),
        }
    }

    fn on(&self, env: &Env, device: &Cluster, function: &str, program: &Path) -> Command {
        let mut command = device.command(function, program);
        command.envs(env.for_ucx());
        command.envs([("UCX_TLS", "rc_x,self"), ("UCX_NET_DEVICES", "mlx5_0:1")]);
        if self.scheme.program == "xgvmi" {
            command.env("LD_PRELOAD", workspace::built("libuct_ib_mlx5_xgvmi.so"));
        }
        if let Some(order) = self.scheme.order {
            command.env("UCX_XGVMI_POOL_ORDER", order);
        }
        command
    }

    fn service(&self, env: &Env, device: &Cluster, node: u32, port: u16) -> Result<Running> {
        let program = self.program("xgvmi-sp");
        let mut command = self.on(env, device, &format!("node{node}.dpu"), &program);
        command.args(["--listen", &format!("127.0.0.1:{port}")]);
        command.args(["--silence-limit", "300s"]);
        Running::saying(&mut command, UP, " listens on ")
    }
}

/// Counts the service `pid` while the ranks do the counted calls.
fn count_service(place: &Path, steps: &Path, pid: i32, ranks: &mut [Running]) -> Result<()> {
    let mut wait = |file: &str, limit| {
        let there = || place.join(file).exists() || ranks.iter_mut().any(|r| r.group.has_ended());
        process::wait_until(limit, there);
        let said: Vec<String> = ranks.iter().map(Running::said).collect();
        ensure!(
            place.join(file).exists(),
            "the ranks do not get to '{file}': {said:?}"
        );
        Ok(())
    };
    let tell = |file: &str| fs::write(place.join(file), "").context("a file of the pause");
    wait("warm", UP)?;
    let mut command = Command::new(workspace::built("step-count"));
    command
        .args(counter(steps))
        .args(["--attach", &pid.to_string()]);
    let count = Running::spawn(&mut command)?;
    let attached = process::wait_until(UP, || count.said().contains("attached"));
    ensure!(attached, "step-count does not attach: {}", count.said());
    tell("go")?;
    wait("done", LIMIT)?;
    count.group.ask_to_end();
    let done = count.wait(UP)?;
    ensure!(done.ok(), "{}: {}", done.verdict(), done.output);
    tell("end")
}

/// Options of `step-count` before the program or the process.
fn counter(steps: &Path) -> impl Iterator<Item = std::ffi::OsString> {
    let words = ["--blocks".into(), "--output".into(), steps.into()];
    let owners = OWNERS.iter().flat_map(|owner| ["--owner", *owner]);
    let through = THROUGH.iter().flat_map(|through| ["--through", *through]);
    words
        .into_iter()
        .chain(owners.chain(through).map(Into::into))
}

/// Instructions in a report of `step-count`.
pub(super) fn sums(text: &str) -> Result<Sums> {
    let report: Value = serde_json::from_str(text).context("the report of step-count")?;
    let mut sums = Sums::new();
    for round in report["rounds"].as_array().context("no rounds")? {
        for section in round["sections"].as_array().context("no sections")? {
            let label = section["label"].as_u64().context("no label")?;
            for (owner, counts) in section["owners"].as_object().context("no owners")? {
                let count = counts["instructions"].as_f64().context("no instructions")?;
                *sums.entry((label, owner.clone())).or_default() += count;
            }
        }
    }
    Ok(sums)
}
