//! The rows of `cargo xtask bench service` with UCX: service processes on the emulated device, and light ranks, which are
//! many in one process per node.
//!
//! One job runs for each row. After its warm-up, `perf` samples the service processes during some calls, and the kernel's account
//! of their main threads gives the processor time; the samples divide it among the loaded objects. Then `step-count` counts one
//! service process during other calls: its counts do not depend on the load. It is attached for these calls only. Where a call has
//! few blocks, two such samples give the spread.

use super::super::cluster;
use super::BLOCK_BYTES;
use crate::process::{self, Running};
use crate::setup::{self, Env};
use crate::workspace;
use anyhow::{Context, Result, anyhow, bail, ensure};
use bench_report::{columns, table};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};
use testbed::cluster::Cluster;
use testbed::port::free as free_port;

/// Total numbers of ranks. Each rank of a real job is a UCX context, so larger jobs use the stand-in.
pub(super) const RANKS: [u32; 3] = [4, 16, 64];
const SCHEME: &str = "xgvmi";
pub(super) const NODES: u32 = 2;
/// Ranks of a node for each of its services that is used, see `ranks-per-sp`.
pub(super) const RANKS_PER_SERVICE: u32 = 8;
/// Calls before the first that counts: connections, caches and queues are warm.
const WARM_UP: u32 = 20;
/// Minimum number of blocks of all service processes in the timed calls, and of one service process in a counted sample. A sample
/// begins and ends with a sleep, and its process logs that it was stopped: with few calls, this would be a tenth of the count.
const TIMED_BLOCKS: u32 = 40_000;
const COUNTED_BLOCKS: u32 = 1024;
/// From this number of blocks on, one sample is counted instead of two.
const ONE_SAMPLE_BLOCKS: u32 = 2048;
/// Samples per second and process.
const SAMPLES: &str = "1000";
const UP: Duration = Duration::from_secs(60);
/// Thirty-two UCX contexts start in each process of ranks.
const CONNECTED: Duration = Duration::from_secs(300);
/// A counted transfer of a block takes 5 ms, and 0.2 s in single steps on a busy machine.
const CALLED: Duration = Duration::from_secs(600);
/// No row begins after this time.
const BUDGET: Duration = Duration::from_secs(900);

/// Owners of instructions and samples, and parts of their objects' paths.
const OWNERS: [(&str, &str); 11] = [
    ("ours", "xgvmi-sp"),
    ("ours", "libuct_ib_mlx5_xgvmi"),
    ("device", "libbfemu"),
    ("driver", "libmlx5"),
    ("driver", "libibverbs"),
    ("ucx", "libuct"),
    ("ucx", "libucp"),
    ("ucx", "libucs"),
    ("ucx", "libucm"),
    ("kernel", "[kernel"),
    ("kernel", "[vdso]"),
];
/// Objects whose instructions count for their caller. A sample has no caller: it belongs to `other`.
const THROUGH: [&str; 4] = ["/libc.so", "ld-linux", "libgcc_s", "libpthread"];

/// Entry for our system calls per block. A poll that finds no work makes one, a yield or a wait.
const OUR_CALLS: &str = "our system calls";

/// How `step-count` counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Method {
    #[default]
    Blocks,
    Steps,
}

impl Method {
    fn name(self) -> &'static str {
        match self {
            Self::Blocks => "step-count --blocks",
            Self::Steps => "step-count",
        }
    }
}

/// What one job measures.
#[derive(Debug, Default)]
struct Measured {
    /// Instructions per block by owner.
    counted: BTreeMap<String, f64>,
    /// Largest deviation of a sample's own instructions from their mean, as a share; `None` for one sample.
    spread: Option<f64>,
    /// Blocks of a sample.
    blocks: u32,
    /// Microseconds per block by owner.
    times: BTreeMap<String, f64>,
}

/// What is printed of a row.
const SHOWN: [&str; 11] = [
    "ranks",
    "services_per_node",
    "instructions_per_block",
    "instructions_of.ucx",
    "instructions_of.driver",
    "instructions_of.device",
    "us_per_block.ours",
    "us_per_block.ucx",
    "us_per_block.driver",
    "us_per_block.device",
    "us_per_block.kernel",
];

/// The rows of all jobs. A job that fails, or for which no time is left, gets a row with the reason.
pub(super) fn rows(rows: &[(u32, u32)], method: Method) -> Result<Vec<Value>> {
    build()?;
    let env = setup::ensure()?;
    let can_sample = process::is_installed("perf");
    if !can_sample {
        println!("processor time not divided: perf is not installed (apt-get install linux-perf)");
    }
    let columns = table::part(columns::SERVICE, &SHOWN)?;
    println!("{}", table::head(&columns));
    let start = Instant::now();
    let mut found = Vec::new();
    for (ranks, services) in rows.iter().copied() {
        let measured = match start.elapsed() < BUDGET {
            true => measure(&env, ranks, services, can_sample, method),
            false => Err(anyhow!(
                "no time was left of {} s; cargo xtask bench service -- --transport ucx --rows {ranks}x{services}",
                BUDGET.as_secs()
            )),
        };
        let row = row(ranks, services, &measured, method);
        println!("{}", table::line(&columns, &row)?);
        if let Err(error) = measured {
            println!("not measured: {error:#}");
        }
        found.push(row);
    }
    Ok(found)
}

/// A row of the report. Its numbers are null if it was not measured.
fn row(ranks: u32, services: u32, measured: &Result<Measured>, method: Method) -> Value {
    let nothing = Measured::default();
    let of = measured.as_ref().unwrap_or(&nothing);
    let reason = measured.as_ref().err().map(|error| {
        // The output of a failed job has many lines.
        let text = format!("{error:#}");
        text.lines().next().unwrap_or_default().to_owned()
    });
    let time = |name: &str| of.times.get(name);
    let count = |name: &str| of.counted.get(name);
    let is_counted = !of.counted.is_empty();
    json!({
        "ranks": ranks,
        "services_per_node": services,
        "block_bytes": BLOCK_BYTES,
        "transport": "ucx",
        "scheme": SCHEME,
        "counted_by": is_counted.then_some(method.name()),
        "counted_blocks": is_counted.then_some(of.blocks),
        "counted_spread": of.spread,
        "timed_by": (!of.times.is_empty()).then_some("schedstat, perf"),
        "not_measured": reason,
        "instructions_per_block": count("ours"),
        "system_calls_per_block": count(OUR_CALLS),
        "instructions_of": {
            "ucx": count("ucx"), "driver": count("driver"), "device": count("device"), "other": count("other"),
        },
        "us_per_block": {
            "ours": time("ours"), "ucx": time("ucx"), "driver": time("driver"), "device": time("device"),
            "kernel": time("kernel"), "other": time("other"), "all": time("all"),
        },
        "bytes_per_rank": null,
        "connect_ms": null,
    })
}

/// Counts and times of a row.
fn measure(
    env: &Env,
    ranks: u32,
    services: u32,
    can_sample: bool,
    method: Method,
) -> Result<Measured> {
    let mut job = Job::start(cluster(NODES)?, env, ranks, services)?;
    let times = times(&mut job, ranks, can_sample).context("timed calls")?;
    let per_call = blocks_of_one(ranks, services);
    let rounds = COUNTED_BLOCKS.div_ceil(per_call);
    let blocks = rounds * per_call;
    let mut measured = Measured {
        times,
        blocks,
        ..Measured::default()
    };
    if cfg!(target_arch = "x86_64") {
        let mut samples = Vec::new();
        for _ in 0..if blocks < ONE_SAMPLE_BLOCKS { 2 } else { 1 } {
            samples.push(counts(&mut job, rounds, blocks, method).context("counted calls")?);
        }
        (measured.counted, measured.spread) = combined(&samples);
    }
    job.end()?;
    Ok(measured)
}

/// Mean of samples, and the largest deviation of own instructions from it.
fn combined(samples: &[BTreeMap<String, f64>]) -> (BTreeMap<String, f64>, Option<f64>) {
    #[expect(clippy::cast_precision_loss, reason = "one or two")]
    let number = samples.len() as f64;
    let mut mean: BTreeMap<String, f64> = BTreeMap::new();
    for (owner, count) in samples.iter().flatten() {
        *mean.entry(owner.clone()).or_default() += count / number;
    }
    let ours = |of: &BTreeMap<String, f64>| of.get("ours").copied().unwrap_or_default();
    let middle = ours(&mean);
    let deviations = samples.iter().map(|of| (ours(of) / middle - 1.0).abs());
    let spread = (samples.len() > 1).then(|| deviations.fold(0.0, f64::max));
    (mean, spread)
}

fn build() -> Result<()> {
    workspace::build(&[
        "-p bf-emu -p bf-emu-preload -p step-count -p uct-plugin -p xgvmi-offload",
        "-p testbed-programs --bin light_ranks",
    ])
}

/// A job: its service processes, its ranks, and the files that let the ranks continue.
struct Job {
    device: Cluster,
    services: Vec<Running>,
    ranks: Vec<Running>,
    gate: PathBuf,
    /// Number of completed samples.
    samples: u32,
}

/// Instructions per block of one service process in a sample, by owner.
fn counts(
    job: &mut Job,
    rounds: u32,
    blocks: u32,
    method: Method,
) -> Result<BTreeMap<String, f64>> {
    let steps = job.device.path().join("steps.json");
    let mut command = Command::new(workspace::built("step-count"));
    command.arg("--output").arg(&steps);
    if method == Method::Blocks {
        command.arg("--blocks");
    }
    for (owner, pattern) in OWNERS {
        command.args(["--owner", &format!("{owner}={pattern}")]);
    }
    command.args(THROUGH.iter().flat_map(|through| ["--through", *through]));
    // Few ranks do not use all services.
    let used = job
        .services
        .iter()
        .find(|service| service.said().contains(" ranks, scheme "));
    let used = used.context("no service says that it serves the job")?;
    command.args(["--attach", &used.group.id().to_string()]);
    let count = Running::spawn(&mut command)?;
    let attached = process::wait_until(UP, || count.said().contains("attached"));
    ensure!(attached, "step-count does not attach: {}", count.said());
    job.pass(rounds)?;
    count.group.ask_to_end();
    let done = count.wait(UP)?;
    ensure!(done.ok(), "step-count: {}\n{}", done.verdict(), done.output);
    let text = fs::read_to_string(&steps).context("step-count wrote no report")?;
    parse_steps(&text, f64::from(blocks))
}

/// Microseconds of processor time per block, by owner; of all service processes.
fn times(job: &mut Job, ranks: u32, can_sample: bool) -> Result<BTreeMap<String, f64>> {
    let samples = job.device.path().join("samples");
    let rounds = TIMED_BLOCKS.div_ceil(ranks * ranks);
    let ids: Vec<String> = job
        .services
        .iter()
        .map(|service| service.group.id().to_string())
        .collect();
    let sampler = if can_sample {
        let mut command = Command::new("perf");
        command.args([
            "record",
            "-q",
            "-e",
            "cpu-clock",
            "-F",
            SAMPLES,
            "-p",
            &ids.join(","),
        ]);
        command.arg("-o").arg(&samples).args(["--", "sh", "-c"]);
        command.arg(format!(
            "touch {0}.on; while [ ! -e {0}.off ]; do sleep 0.05; done",
            job.gate.display()
        ));
        let sampler = Running::spawn(&mut command)?;
        let on = job.gate.with_extension("on");
        ensure!(
            process::wait_until(UP, || on.exists()),
            "perf does not start: {}",
            sampler.said()
        );
        Some(sampler)
    } else {
        None
    };
    let before = processor_ns(&ids)?;
    job.pass(rounds)?;
    let spent = processor_ns(&ids)?.saturating_sub(before);
    #[expect(clippy::cast_precision_loss, reason = "seconds in nanoseconds")]
    let all = spent as f64 / 1e3 / f64::from(rounds * ranks * ranks);
    let mut times = BTreeMap::from([("all".to_owned(), all)]);
    if let Some(sampler) = sampler {
        fs::write(job.gate.with_extension("off"), "")?;
        let done = sampler.wait(UP)?;
        ensure!(done.ok(), "perf: {}\n{}", done.verdict(), done.output);
        let mut command = Command::new("perf");
        command.arg("report").arg("-i").arg(&samples);
        command.args([
            "--stdio",
            "-q",
            "--sort",
            "dso",
            "-F",
            "sample,dso",
            "-t",
            ";",
        ]);
        let shares = parse_samples(&process::stdout(&mut command, UP)?)?;
        times.extend(
            shares
                .into_iter()
                .map(|(owner, share)| (owner, share * all)),
        );
    }
    Ok(times)
}

/// Blocks that one service process reads in a call: all blocks for its ranks.
fn blocks_of_one(ranks: u32, services: u32) -> u32 {
    let of_node = ranks / NODES;
    let used = (of_node / RANKS_PER_SERVICE).clamp(1, services);
    of_node.div_ceil(used) * ranks
}

impl Job {
    /// Starts the services and the ranks, and waits until the ranks are warm.
    fn start(device: Cluster, env: &Env, ranks: u32, services: u32) -> Result<Self> {
        let on = |function: &str, program: &str| {
            let mut command = device.command(function, workspace::built(program));
            command.envs(env.for_ucx());
            command.envs([("UCX_TLS", "rc_x,self"), ("UCX_NET_DEVICES", "mlx5_0:1")]);
            command.env("LD_PRELOAD", workspace::built("libuct_ib_mlx5_xgvmi.so"));
            command
        };
        let (mut running, mut ranks_of_nodes) = (Vec::new(), Vec::new());
        let gate = device.path().join("gate");
        let mut addresses = Vec::new();
        for node in 0..NODES {
            let mut of_node = Vec::new();
            for _ in 0..services {
                let mut command = on(&format!("node{node}.dpu"), "xgvmi-sp");
                let listen = format!("127.0.0.1:{}", free_port()?);
                command.args(["--listen", &listen]);
                // A counted service process is slow, also its heartbeats.
                command.args(["--silence-limit", "1200s", "--setup-limit", "300s"]);
                running.push(Running::saying(&mut command, UP, " listens on ")?);
                of_node.push(listen);
            }
            addresses.push(of_node.join(","));
        }
        let meet = format!("127.0.0.1:{}", free_port()?);
        for (node, addresses) in addresses.iter().enumerate() {
            let mut command = on(&format!("node{node}.host"), "light_ranks");
            command.args([
                &node.to_string(),
                &ranks.to_string(),
                &meet,
                addresses,
                SCHEME,
            ]);
            command.args([BLOCK_BYTES, WARM_UP].map(|number| number.to_string()));
            command.arg(&gate);
            ranks_of_nodes.push(Running::spawn(&mut command)?);
        }
        let mut job = Self {
            device,
            services: running,
            ranks: ranks_of_nodes,
            gate,
            samples: 0,
        };
        job.wait_for("warm", CONNECTED)?;
        Ok(job)
    }

    /// Lets the ranks make a number of calls.
    fn pass(&mut self, rounds: u32) -> Result<()> {
        self.samples += 1;
        let gate = self.gate.with_extension(self.samples.to_string());
        // The ranks must not read a part of the number.
        let part = self.gate.with_extension("part");
        fs::write(&part, rounds.to_string())?;
        fs::rename(&part, &gate)?;
        self.wait_for(&format!("done {}", self.samples), CALLED)
    }

    fn wait_for(&mut self, word: &str, limit: Duration) -> Result<()> {
        let (ranks, services) = (&mut self.ranks, &mut self.services);
        process::wait_until(limit, || {
            let is_there =
                |rank: &mut Running| rank.said().contains(word) || rank.group.has_ended();
            // Without a service the ranks would wait in vain.
            ranks.iter_mut().all(is_there)
                || services.iter_mut().any(|service| service.group.has_ended())
        });
        for rank in &self.ranks {
            if !rank.said().contains(word) {
                let services: Vec<String> = self.services.iter().map(Running::said).collect();
                bail!(
                    "the ranks do not say '{word}': {}\nservices: {}",
                    rank.said(),
                    services.join("\n")
                );
            }
        }
        Ok(())
    }

    /// Ends the ranks; the services end when the job is dropped.
    fn end(&mut self) -> Result<()> {
        fs::write(self.device.path().join("gate.end"), "")?;
        for rank in std::mem::take(&mut self.ranks) {
            let done = rank.wait(UP)?;
            ensure!(done.ok(), "ranks: {}\n{}", done.verdict(), done.output);
        }
        Ok(())
    }
}

/// Processor time of the main threads.
fn processor_ns(ids: &[String]) -> Result<u64> {
    let mut sum = 0;
    for id in ids {
        let file = format!("/proc/{id}/task/{id}/schedstat");
        let text = fs::read_to_string(&file).with_context(|| file.clone())?;
        let first = text.split_whitespace().next().context("an empty account")?;
        sum += first
            .parse::<u64>()
            .with_context(|| format!("{file}: {text}"))?;
    }
    Ok(sum)
}

/// Instructions per block by owner, from a report of `step-count`.
fn parse_steps(text: &str, blocks: f64) -> Result<BTreeMap<String, f64>> {
    let report: Value = serde_json::from_str(text).context("the report of step-count")?;
    let mut sums = BTreeMap::new();
    for round in report["rounds"].as_array().context("no rounds")? {
        for section in round["sections"].as_array().context("no sections")? {
            for (owner, counts) in section["owners"].as_object().context("no owners")? {
                let count = counts["instructions"].as_f64().context("no instructions")?;
                *sums.entry(owner.clone()).or_default() += count / blocks;
                if owner == "ours" {
                    let calls = counts["system_calls"].as_f64().context("no system calls")?;
                    *sums.entry(OUR_CALLS.to_owned()).or_default() += calls / blocks;
                }
            }
        }
    }
    ensure!(
        sums.get("ours").is_some_and(|count| *count > 0.0),
        "nothing was counted"
    );
    Ok(sums)
}

/// Shares of the owners, from lines `SAMPLES;OBJECT`.
fn parse_samples(text: &str) -> Result<BTreeMap<String, f64>> {
    let mut sums: BTreeMap<String, f64> = BTreeMap::new();
    for line in text
        .lines()
        .filter(|line| !line.trim().is_empty() && !line.starts_with('#'))
    {
        let (samples, object) = line
            .split_once(';')
            .with_context(|| format!("perf says '{line}'"))?;
        let samples: f64 = samples
            .trim()
            .parse()
            .with_context(|| format!("perf says '{line}'"))?;
        let owner = OWNERS.iter().find(|(_, pattern)| object.contains(pattern));
        let owner = owner.map_or("other", |(owner, _)| owner);
        *sums.entry(owner.to_owned()).or_default() += samples;
    }
    let all: f64 = sums.values().sum();
    ensure!(all > 0.0, "perf took no sample");
    Ok(sums
        .into_iter()
        .map(|(owner, samples)| (owner, samples / all))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_divided_among_the_owners() {
        let text = "   60;[kernel.kallsyms]\n   20;libbfemu_preload.so\n   15;xgvmi-sp\n    5;libc.so.6\n\n";
        let shares = parse_samples(text).unwrap();
        let check = |owner: &str, expect: f64| assert!((shares[owner] - expect).abs() < 1e-9);
        check("kernel", 0.6);
        check("device", 0.2);
        check("ours", 0.15);
        check("other", 0.05);
        assert!(parse_samples("").is_err());
        assert!(parse_samples("60% libc").is_err());
    }

    #[test]
    fn steps_are_per_block() {
        let round = |count: u64| json!({"sections": [{"label": 1, "owners": {"ours": {"instructions": count, "system_calls": 4}, "ucx": {"instructions": 8}}}]});
        let text = json!({"rounds": [round(100), round(60)]}).to_string();
        let counts = parse_steps(&text, 16.0).unwrap();
        assert!((counts["ours"] - 10.0).abs() < 1e-9 && (counts["ucx"] - 1.0).abs() < 1e-9);
        assert!((counts[OUR_CALLS] - 0.5).abs() < 1e-9);
        assert!(parse_steps(r#"{"rounds":[]}"#, 1.0).is_err());
    }

    #[test]
    fn a_service_reads_the_blocks_of_its_ranks() {
        for (ranks, services, expect) in [
            (4, 1, 8),
            (4, 4, 8),
            (16, 1, 128),
            (16, 4, 128),
            (64, 4, 512),
        ] {
            assert_eq!(blocks_of_one(ranks, services), expect, "{ranks} {services}");
        }
    }
}
