//! Compiles the kernels, starts agents and ranks, measures, and writes the report.

use super::agent::RANKS_PER_NODE;
use super::launches::{self, CHAINED, Kind, WIDTH};
use super::pong;
use super::rank::{self, RANKS};
use super::report::{Launch, Microseconds, PingPong, Report, Row, median};
use crate::demo::Common;
use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use testbed::client::Client;
use testbed::cluster::Cluster;
use testbed::{port, process};

/// Launches of each kind.
const LAUNCHES: u32 = 20;
/// Measurements of the ping-pong, and rounds of each.
const PONGS: u32 = 10;
const ROUNDS: u64 = 20;
/// Untimed calls before the first size: every key of the pools has been used then. And before each further size.
const WARM_UP: u32 = 34;
const WARM_UP_SIZE: u32 = 3;
/// Time limit of the compiler.
const COMPILER_LIMIT: Duration = Duration::from_secs(120);

#[derive(Debug, Args)]
pub(crate) struct Demo {
    #[command(flatten)]
    common: Common,
}

/// One process of the DPA, as `bf-emu dpa stat --json` shows it.
#[derive(Debug, Deserialize)]
struct OnDpa {
    instructions: u64,
    doorbells: u64,
    fault: String,
}

/// Counters of the DPA, summed over its processes.
#[derive(Debug, Clone, Copy)]
struct DpaCounters {
    instructions: u64,
    doorbells: u64,
}

fn dpa_counters(cluster: &Cluster) -> Result<DpaCounters> {
    let mut command = cluster.emulator("dpa");
    let said = process::stdout(command.args(["stat", "--json"]), COMPILER_LIMIT)?;
    let processes: Vec<OnDpa> = serde_json::from_str(&said)?;
    if let Some(one) = processes.iter().find(|one| !one.fault.is_empty()) {
        bail!("a fault on the DPA: {}", one.fault);
    }
    Ok(DpaCounters {
        instructions: processes.iter().map(|one| one.instructions).sum(),
        doorbells: processes.iter().map(|one| one.doorbells).sum(),
    })
}

#[expect(clippy::cast_precision_loss, reason = "exact below 2^53")]
fn per(count: u64, of: u64) -> f64 {
    count as f64 / of as f64
}

impl Demo {
    pub(crate) fn run(&self) -> Result<()> {
        let output = &self.common.output;
        std::fs::create_dir_all(output).with_context(|| output.display().to_string())?;
        for size in &self.common.sizes {
            ensure!(
                *size >= 8 && size.is_multiple_of(8),
                "a size of {size} bytes is no multiple of 8"
            );
        }
        let cluster = self.common.cluster()?;
        let image = self.compile(cluster.path())?;
        let launch = launch(&cluster, &image)?;
        let ping_pong = ping_pong(&cluster, &image)?;
        let mut exchange = Exchange::start(&cluster, &image)?;
        let rows = exchange.measure(&self.common)?;
        let report = Report {
            profile: self.common.profile.clone(),
            verified_bytes: exchange.verified,
            mismatches: exchange.wrong,
            launch,
            ping_pong,
            rows,
        };
        report.write(output)?;
        if report.mismatches > 0 {
            bail!("{} bytes are wrong", report.mismatches);
        }
        Ok(())
    }

    /// Compiles the kernels to a program.
    fn compile(&self, directory: &Path) -> Result<PathBuf> {
        let source = directory.join("kernels.c");
        std::fs::write(&source, include_str!("kernels.c"))?;
        let kept = directory.join("kernels");
        let mut dpacc = Command::new(self.common.built("dpacc"));
        dpacc
            .arg(&source)
            .arg("-o")
            .arg(directory.join("kernels.a"));
        dpacc.args([
            "-mcpu=nv-dpa-bf3",
            "-hostcc=gcc",
            "--app-name=dpa_demo",
            "--devicecc-options=-g -O2 -Wall -Wextra -Werror",
        ]);
        dpacc.arg("--keep-dir").arg(&kept);
        process::stdout(&mut dpacc, COMPILER_LIMIT)?;
        Ok(kept.join("dpa_demo.elf"))
    }
}

/// One of the demo's own programs in a function.
fn own(cluster: &Cluster, function: &str, words: &[&str]) -> Result<Command> {
    let mut command = cluster.command(function, std::env::current_exe()?);
    command.args(words);
    Ok(command)
}

fn path(path: &Path) -> Result<&str> {
    path.to_str().context("a path in Unicode")
}

/// Measures launches of a kernel.
fn launch(cluster: &Cluster, image: &Path) -> Result<Vec<Launch>> {
    let words = ["dpa-launches", "--image", path(image)?];
    let mut client = Client::saying(&mut own(cluster, "node0.dpu", &words)?, "ready")?;
    let mut batch = |kind: Kind, count: u32| -> Result<launches::Done> {
        client.send(&launches::Batch { kind, count })?;
        client.answer()
    };
    // A cold launch is the first of a process, whose own counters begin with it; the others are counted as differences.
    let times = batch(Kind::Cold, LAUNCHES)?.ns;
    let before_cold = cluster.counters()?;
    let cold = batch(Kind::Cold, 1)?;
    let after_cold = cluster.counters()?.since(&before_cold)?;
    ensure!(cold.ran == u64::from(WIDTH), "{} threads ran", cold.ran);
    let counted = dpa_counters(cluster)?;
    let mut rows = vec![Launch {
        kind: Kind::Cold,
        instructions: per(counted.instructions, 1),
        doorbells: after_cold.per_iteration(1).doorbells + per(counted.doorbells, 1),
        // The thread of remote calls belongs to the process.
        objects: per(cold.threads as u64 - 1, 1),
        us: median(&times)?,
    }];
    let (mut threads, mut ran) = (cold.threads, cold.ran);
    for (kind, launches) in [(Kind::Repeated, 1), (Kind::Chained, CHAINED)] {
        let (before, dpa) = (cluster.counters()?, dpa_counters(cluster)?);
        let done = batch(kind, LAUNCHES)?;
        let since = cluster.counters()?.since(&before)?;
        let after = dpa_counters(cluster)?;
        let count = u64::from(LAUNCHES) * launches;
        ensure!(
            done.ran - ran == count * u64::from(WIDTH),
            "{} threads ran in {count} launches of {WIDTH}",
            done.ran - ran
        );
        ensure!(
            done.threads == threads,
            "launches of equal width have created {} device objects",
            done.threads.abs_diff(threads)
        );
        rows.push(Launch {
            kind,
            instructions: per(after.instructions - dpa.instructions, count),
            doorbells: since.per_iteration(count).doorbells
                + per(after.doorbells - dpa.doorbells, count),
            objects: per((done.threads - threads) as u64, count),
            us: median(&done.ns)?,
        });
        (threads, ran) = (done.threads, done.ran);
    }
    Ok(rows)
}

/// Measures a ping-pong between the DPAs of both nodes.
fn ping_pong(cluster: &Cluster, image: &Path) -> Result<PingPong> {
    let port = port::free()?.to_string();
    let words = ["dpa-pong", "--image", path(image)?, "--port", &port];
    let mut first = Client::saying(&mut own(cluster, "node0.dpu", &words)?, "listens")?;
    let mut answers = own(cluster, "node1.dpu", &words)?;
    let _second = Client::saying(answers.arg("--answers"), "connected")?;
    let line = first.line()?;
    ensure!(line.trim() == "connected", "the first side says: {line}");
    let before = dpa_counters(cluster)?;
    let mut times = Vec::new();
    for _ in 0..PONGS {
        first.send(&pong::Batch { rounds: ROUNDS })?;
        let done: pong::Done = first.answer()?;
        ensure!(
            done.after - done.before == 2 * ROUNDS,
            "the word is {} after {} and {ROUNDS} rounds",
            done.after,
            done.before
        );
        times.push(done.ns / ROUNDS);
    }
    let after = dpa_counters(cluster)?;
    let messages = 2 * ROUNDS * u64::from(PONGS);
    Ok(PingPong {
        bytes: 8,
        us: Microseconds {
            p50: median(&times)?,
        },
        instructions_per_message: per(after.instructions - before.instructions, messages),
    })
}

/// Agents and ranks.
struct Exchange<'a> {
    cluster: &'a Cluster,
    agents: Vec<Client>,
    ranks: Vec<Client>,
    verified: u64,
    wrong: u64,
}

impl<'a> Exchange<'a> {
    fn start(cluster: &'a Cluster, image: &Path) -> Result<Self> {
        let ports = [port::free()?, port::free()?];
        let mut agents = Vec::new();
        for (node, port) in ports.iter().enumerate() {
            let (node, port) = (node.to_string(), port.to_string());
            let words = [
                "dpa-agent",
                "--image",
                path(image)?,
                "--node",
                &node,
                "--port",
                &port,
            ];
            let mut command = own(cluster, &format!("node{node}.dpu"), &words)?;
            if !agents.is_empty() {
                command.args(["--other", &ports[0].to_string()]);
            }
            agents.push(Client::saying(&mut command, "listens")?);
        }
        for agent in &mut agents {
            let line = agent.line()?;
            ensure!(line.trim() == "connected", "an agent says: {line}");
        }
        let meet = port::free()?.to_string();
        let mut ranks = Vec::new();
        for number in 0..RANKS {
            let node = number / RANKS_PER_NODE;
            let (rank, agent) = (number.to_string(), ports[node].to_string());
            let words = [
                "dpa-rank", "--rank", &rank, "--agent", &agent, "--meet", &meet,
            ];
            let mut command = own(cluster, &format!("node{node}.host"), &words)?;
            ranks.push(match number {
                0 => Client::saying(&mut command, "listens")?,
                _ => Client::start(&mut command)?,
            });
        }
        for rank in &mut ranks {
            let line = rank.line()?;
            ensure!(line.trim() == "ready", "a rank says: {line}");
        }
        Ok(Self {
            cluster,
            agents,
            ranks,
            verified: 0,
            wrong: 0,
        })
    }

    /// Calls of one size. Returns the mean of the ranks' times of each call.
    fn calls(&mut self, batch: rank::Batch) -> Result<Vec<u64>> {
        for rank in &mut self.ranks {
            rank.send(&batch)?;
        }
        let mut sums = vec![0; batch.count as usize];
        for rank in &mut self.ranks {
            let done: rank::Done = rank.answer()?;
            self.verified += done.verified;
            self.wrong += done.wrong;
            for (sum, ns) in sums.iter_mut().zip(done.ns) {
                *sum += ns / RANKS as u64;
            }
        }
        Ok(sums)
    }

    fn processor(&self) -> Result<Duration> {
        self.agents
            .iter()
            .map(|agent| process::processor_time(agent.id()))
            .sum()
    }

    fn measure(&mut self, common: &Common) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        for (first, &size) in common.sizes.iter().enumerate() {
            for (scheme, is_pooled) in [("ksm", false), ("xgvmi", true)] {
                let of = |count| rank::Batch {
                    is_pooled,
                    block: size,
                    count,
                };
                self.calls(of(if first == 0 { WARM_UP } else { WARM_UP_SIZE }))?;
                let before = self.cluster.counters()?;
                let (dpa, processor) = (dpa_counters(self.cluster)?, self.processor()?);
                let times = self.calls(of(common.iterations))?;
                let processor = self.processor()? - processor;
                let instructions = dpa_counters(self.cluster)?.instructions - dpa.instructions;
                let calls = u64::from(common.iterations);
                let commands = self.cluster.counters()?.since(&before)?;
                let commands = commands.per_iteration(calls);
                ensure!(
                    !is_pooled || commands.key_commands() == 0.0,
                    "{} commands for keys and aliases per call with pooled keys of {size} bytes",
                    commands.key_commands()
                );
                rows.push(Row {
                    scheme,
                    size,
                    us: Microseconds {
                        p50: median(&times)?,
                    },
                    commands_per_call: commands,
                    key_commands: commands.key_commands(),
                    dpa_instructions_per_block: per(instructions, calls * (RANKS * RANKS) as u64),
                    arm_cpu_us_per_call: processor.as_secs_f64() * 1e6
                        / f64::from(common.iterations),
                });
            }
        }
        Ok(rows)
    }
}
