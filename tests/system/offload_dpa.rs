//! Service processes whose reads a program on the DPA posts. The ranks verify every byte, with and without the DPA.

use crate::doca::with_compiler;
use crate::harness::Case;
use crate::offload::{Farm, succeed};
use crate::process::{self, Running};
use crate::world::{LIMIT, World, free_port};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

/// The line of a service that posts its reads itself.
const ITSELF: &str = "this service posts its reads itself";

pub(crate) fn cases() -> Vec<Case> {
    vec![
        with_compiler("offload_dpa_posts_the_reads", posts),
        with_compiler("offload_dpa_costs_fewer_instructions", counted),
        with_compiler("offload_dpa_lost", lost),
        with_compiler("offload_dpa_not_there", not_there),
        Case::new("offload_dpa_wrong_file", wrong_file),
    ]
}

/// Compiles the program of the services, with a change of its source.
fn compile(world: &World, name: &str, change: impl Fn(&str) -> String) -> Result<PathBuf> {
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let source = testbed::workspace::root().join("services/offload/dpa/reads.c");
    let text = change(&fs::read_to_string(source)?);
    fs::create_dir_all(&kept)?;
    let copy = kept.join("reads.c");
    fs::write(&copy, text)?;
    let mut driver = Command::new(world.built("dpacc"));
    driver.arg(copy).arg("-o").arg(kept.with_extension("a"));
    driver.args(["-mcpu=nv-dpa-bf3", "-hostcc=gcc", "--app-name=xgvmi_sp"]);
    driver.arg("--devicecc-options=-g -O2 -Wall -Wextra -Werror");
    driver.arg("--keep-dir").arg(kept.join("built"));
    process::stdout(&mut driver, LIMIT)?;
    Ok(kept.join("built/xgvmi_sp.elf"))
}

fn program(world: &World) -> Result<&'static str> {
    static PROGRAM: OnceLock<String> = OnceLock::new();
    if let Some(program) = PROGRAM.get() {
        return Ok(program);
    }
    let built = compile(world, "offload-dpa", str::to_owned)?;
    Ok(PROGRAM.get_or_init(|| built.display().to_string()))
}

/// Doorbells of all programs on the DPA.
fn doorbells(farm: &Farm<'_>) -> Result<u64> {
    let mut command = farm.testbed.emulator("dpa");
    let said = process::stdout(command.args(["stat", "--json"]), LIMIT)?;
    let all: Vec<Value> = serde_json::from_str(&said)?;
    Ok(all.iter().filter_map(|of| of["doorbells"].as_u64()).sum())
}

/// What the services of a farm have said.
fn said(farm: &Farm<'_>) -> String {
    let services = farm.services.iter().flatten();
    services.map(|of| of.said()).collect()
}

/// Random counts with zeros, short and long blocks, on two communicators at once. Pooled keys cost no command per call.
fn posts(world: &World) -> Result<()> {
    let farm = Farm::with(world, "xgvmi", 1, &["--dpa", program(world)?])?;
    for (seed, block) in [("1", "100000"), ("2", "3000")] {
        let options = ["--rounds", "12", "--block", block, "--seed", seed];
        let verified = succeed(farm.job(2, &options, |_, _| ())?)?;
        ensure!(verified > 0, "no byte was moved");
    }
    ensure!(!said(&farm).contains(ITSELF), "{}", said(&farm));
    Ok(())
}

/// Time of processors that a process has used.
fn used(process: i32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // Behind the name, which may contain anything: the 12th and 13th number, in hundredths of a second.
    let (_, numbers) = stat.rsplit_once(") ")?;
    let both = numbers.split(' ').skip(11).take(2);
    let ticks: u64 = both.filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    Some(Duration::from_millis(10 * ticks))
}

/// A job of light ranks, which call when they are told to.
struct Job<'a> {
    farm: Farm<'a>,
    ranks: Vec<Running>,
    gate: PathBuf,
    samples: u32,
}

impl<'a> Job<'a> {
    const RANKS: u32 = 16;

    fn start(farm: Farm<'a>) -> Result<Self> {
        let gate = farm.testbed.path().join("gate");
        let meet = format!("127.0.0.1:{}", free_port()?);
        let mut ranks = Vec::new();
        for node in 0..2 {
            let mut command = farm.command(&format!("node{node}.host"), "light_ranks");
            command.args([node.to_string(), Self::RANKS.to_string(), meet.clone()]);
            command.args([&farm.addresses(node)?, "xgvmi", "4096", "20"]);
            ranks.push(Running::spawn(command.arg(&gate))?);
        }
        let mut job = Self {
            farm,
            ranks,
            gate,
            samples: 0,
        };
        job.hear("warm")?;
        Ok(job)
    }

    /// Waits until all ranks have printed `text`. A counted service is slow, and a busy machine gives its cores to others: the
    /// limit is the time of processors that two idle cores have within [`LIMIT`]. What sleeps has ten times the limit.
    fn hear(&mut self, text: &str) -> Result<()> {
        let services = self.farm.services.iter().flatten();
        let mut processes: Vec<i32> = services.map(|service| service.group.id()).collect();
        processes.extend(self.ranks.iter().map(|rank| rank.group.id()));
        let used = || -> Duration { processes.iter().filter_map(|id| used(*id)).sum() };
        let before = used();
        let ranks = &mut self.ranks;
        process::wait_until(10 * LIMIT, || {
            let heard = |rank: &mut Running| rank.said().contains(text) || rank.group.has_ended();
            ranks.iter_mut().all(heard) || used().saturating_sub(before) > 2 * LIMIT
        });
        for rank in ranks {
            ensure!(
                rank.said().contains(text),
                "no '{text}': {}\n{}",
                rank.said(),
                said(&self.farm)
            );
        }
        Ok(())
    }

    /// Lets the ranks make a number of calls.
    fn pass(&mut self, rounds: u32) -> Result<()> {
        self.samples += 1;
        let gate = self.gate.with_extension(self.samples.to_string());
        let part = self.gate.with_extension("part");
        fs::write(&part, rounds.to_string())?;
        fs::rename(&part, &gate)?;
        self.hear(&format!("done {}", self.samples))
    }

    fn end(mut self) -> Result<Farm<'a>> {
        fs::write(self.gate.with_extension("end"), "")?;
        for rank in std::mem::take(&mut self.ranks) {
            let done = rank.wait(LIMIT)?;
            ensure!(done.ok(), "ranks: {}\n{}", done.verdict(), done.output);
        }
        Ok(self.farm)
    }
}

/// Instructions of a service process per block: of its own code, and with UCX and the driver.
fn instructions(world: &World, job: &mut Job<'_>) -> Result<(f64, f64)> {
    const CALLS: u32 = 2;
    let report = job.gate.with_extension("steps");
    let mut command = Command::new(world.built("step-count"));
    command.arg("--blocks").arg("--output").arg(&report);
    for owner in [
        "ours=xgvmi-sp",
        "ours=libuct_ib_mlx5_xgvmi",
        "device=libbfemu",
        "driver=libmlx5",
        "driver=libibverbs",
        "ucx=libuc",
    ] {
        command.args(["--owner", owner]);
    }
    for through in ["/libc.so", "ld-linux", "libgcc_s"] {
        command.args(["--through", through]);
    }
    let service = job.farm.services[0][0].group.id();
    let count = Running::spawn(command.args(["--attach", &service.to_string()]))?;
    let attached = process::wait_until(LIMIT, || count.said().contains("attached"));
    ensure!(attached, "step-count does not attach: {}", count.said());
    job.pass(CALLS)?;
    count.group.ask_to_end();
    let done = count.wait(LIMIT)?;
    ensure!(done.ok(), "step-count: {}\n{}", done.verdict(), done.output);
    let report: Value = serde_json::from_str(&fs::read_to_string(report)?)?;
    let sum = |owner: &str| -> Result<f64> {
        let rounds = report["rounds"].as_array().context("no rounds")?;
        let sections = rounds
            .iter()
            .filter_map(|round| round["sections"].as_array());
        let owners = sections.flatten().map(|section| &section["owners"][owner]);
        let counts = owners.filter_map(|owner| owner["instructions"].as_f64());
        Ok(counts.sum::<f64>() / f64::from(CALLS * Job::RANKS * Job::RANKS / 2))
    };
    let ours = sum("ours")?;
    Ok((ours, ours + sum("ucx")? + sum("driver")?))
}

/// The least of some counts, up to one that is low enough: what a service does while it waits for a busy core is no part of
/// the cost of a block.
fn least(
    world: &World,
    job: &mut Job<'_>,
    is_enough: impl Fn(u32, (f64, f64)) -> bool,
) -> Result<(f64, f64)> {
    const COUNTS: u32 = 3;
    let mut least = (f64::INFINITY, f64::INFINITY);
    for count in 1..=COUNTS {
        let (own, all) = instructions(world, job)?;
        least = (least.0.min(own), least.1.min(all));
        if is_enough(count, least) {
            break;
        }
    }
    Ok(least)
}

/// The same calls with and without the DPA, in one run, and as many reads at a time: the process executes at least a quarter
/// fewer instructions per block, and the service's own code at most 520 without the DPA and 850 with it.
fn counted(world: &World) -> Result<()> {
    if !cfg!(target_arch = "x86_64") {
        return Ok(());
    }
    const OWN: f64 = 520.0;
    let mut counts: Vec<(f64, f64)> = Vec::new();
    // The count without the DPA is a limit for the other one: it must be the least of more than one.
    let is_kept = |(own, all): (f64, f64), (own_with, all_with): (f64, f64)| {
        own < OWN && own_with < 850.0 && all_with < 0.75 * all
    };
    // By default, the DPA posts more reads at once.
    for options in [&["--receives", "64"][..], &["--dpa", program(world)?]] {
        let options = [options, &["--silence-limit", "1200s"]].concat();
        let farm = Farm::with(world, "xgvmi", 1, &options)?;
        let mut job = Job::start(farm)?;
        let before = doorbells(&job.farm)?;
        let counted = match counts.first() {
            None => least(world, &mut job, |count, (own, _)| count > 1 && own < OWN)?,
            Some(without) => least(world, &mut job, |_, with| is_kept(*without, with))?,
        };
        counts.push(counted);
        let rung = doorbells(&job.farm)? > before;
        ensure!(rung == options.contains(&"--dpa"), "{options:?}: {rung}");
        job.end()?;
    }
    let [without, with] = counts[..] else {
        anyhow::bail!("two counts");
    };
    let ((own, all), (own_with, all_with)) = (without, with);
    println!(
        "instructions per block, own and of the process: {own:.0} and {all:.0}; with the DPA {own_with:.0} and {all_with:.0}"
    );
    ensure!(
        is_kept(without, with),
        "own {own} to {own_with}, all {all} to {all_with}"
    );
    Ok(())
}

/// A program that fails after some reads: UCX starts the others again, each service says one line, and no byte is wrong.
fn lost(world: &World) -> Result<()> {
    const POST: &str = "static void post(struct queue *queue, const struct block *block)\n{\n";
    let program = compile(world, "offload-dpa-fails", |source| {
        let trap = "if (queue->reads.posted == 100)\n\t\t__builtin_trap();\n\n";
        source.replacen(POST, &format!("{POST}{trap}"), 1)
    })?;
    let program = program.display().to_string();
    let farm = Farm::with(world, "xgvmi", 1, &["--dpa", &program])?;
    let mut job = Job::start(farm)?;
    job.pass(3)?;
    let farm = job.end()?;
    for service in farm.services.iter().flatten() {
        let said = service.said();
        ensure!(said.matches(ITSELF).count() == 1, "{said}");
    }
    // The other one may lose its reads from that one first.
    ensure!(said(&farm).contains("reads.c:"), "{}", said(&farm));
    Ok(())
}

/// One node's services have the DPA and the other's a program that does not run: all bytes arrive.
fn not_there(world: &World) -> Result<()> {
    let program = program(world)?;
    // Only the header of a program.
    let short = Path::new(env!("CARGO_TARGET_TMPDIR")).join("offload-dpa-short.elf");
    fs::write(&short, &fs::read(program)?[..64])?;
    let short = short.display().to_string();
    let farm = Farm::with_each(world, "xgvmi", 1, |node, command| {
        let files = [program, &short];
        command.args(["--dpa", files[node as usize]]);
    })?;
    let options = ["--rounds", "6", "--block", "20000"];
    let verified = succeed(farm.job(2, &options, |_, _| ())?)?;
    ensure!(verified > 0, "no byte was moved");
    let counts: Vec<usize> = farm
        .services
        .iter()
        .flatten()
        .map(|service| service.said().matches(ITSELF).count())
        .collect();
    ensure!(counts == [0, 1], "{}", said(&farm));
    Ok(())
}

/// A file that is no program of the DPA, such as the archive that `dpacc` makes: the service does not start, and says so.
fn wrong_file(world: &World) -> Result<()> {
    let archive = Path::new(env!("CARGO_TARGET_TMPDIR")).join("offload-dpa.a");
    fs::write(&archive, "!<arch>\n")?;
    for file in [archive.as_path(), Path::new("/proc/self/exe")] {
        let mut command = Command::new(world.built("xgvmi-sp"));
        world.with_verbs(&mut command);
        command
            .arg("--ucx-library")
            .arg(world.ucx_lib.join("libucp.so.0"));
        command.args(["--listen", "127.0.0.1:0", "--dpa"]).arg(file);
        let done = process::run(&mut command, LIMIT)?;
        ensure!(!done.ok(), "it starts with {}", file.display());
        ensure!(
            done.output.contains("not a program for RISC-V"),
            "{}",
            done.output
        );
    }
    Ok(())
}
