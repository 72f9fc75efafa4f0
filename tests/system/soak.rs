//! Service processes that serve many jobs, some of which lose a rank at a random moment, keep nothing of them: memory,
//! descriptors and the device's objects. A newer service process takes over beside a running one.

use crate::harness::Case;
use crate::offload::{Farm, Process, succeed};
use crate::process;
use crate::world::{LIMIT, World};
use anyhow::{Context, Result, ensure};
use std::error::Error;
use std::fs;
use std::str::FromStr;
use std::time::Duration;

/// Number of jobs: a short form, unless the variable says another one (`cargo xtask test soak`: 1,000).
const JOBS: u32 = 24;
const JOBS_VARIABLE: &str = "XGVMI_SOAK_JOBS";

/// Seed of the jobs and of the kills.
const SEED: u64 = 0x9e37_79b9;
const SEED_VARIABLE: &str = "XGVMI_SOAK_SEED";

/// File for a report (`cargo xtask bench soak`).
const REPORT_VARIABLE: &str = "XGVMI_SOAK_REPORT";

/// One job in this many loses a rank, unless the variable says another number. In the short form at least two do.
const KILLED: u64 = 20;
const KILLED_VARIABLE: &str = "XGVMI_SOAK_KILLED";

/// Time limit of a job, and of its ranks to connect if it loses none. While other programs keep the disk busy, a program
/// that starts may wait for its own pages for a minute, and the others of its job wait for it.
const PATIENCE: Duration = Duration::from_secs(300);
const CONNECT: &str = "240s";

/// The resident memory of a service process without a job may grow by this in the last half of the jobs. A job takes tens
/// of megabytes, which the process returns to the system when no job is left.
const GROWTH_MAX: f64 = 1.1;
const GROWTH_KIB_MAX: f64 = 4096.0;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("offload_soak_leaves_nothing", soak),
        Case::new("offload_service_takes_little_memory", memory),
        Case::new("offload_upgrade_beside_a_running_service", upgrade),
    ]
}

/// Maximum resident memory of a service process with a job, and of each of its ranks.
const SERVICE_KIB: f64 = 64.0 * 1024.0;
const RANK_KIB: f64 = 2.0;

/// A job's UCX takes its buffers when the job connects and at its first messages.
fn memory(world: &World) -> Result<()> {
    const RANKS: u32 = 2;
    let farm = Farm::new(world, "xgvmi", 1)?;
    let stalled = [
        "--rounds",
        "4",
        "--stall-in",
        "3",
        "--offload-limit",
        "600s",
    ];
    let mut ranks = farm.job(RANKS, &stalled, |_, _| ())?;
    for rank in &mut ranks {
        rank.hear("round 3")?;
    }
    for found in footprints(&farm)? {
        let most = SERVICE_KIB + RANK_KIB * f64::from(RANKS);
        ensure!(
            found.kib <= most,
            "a service has {} KiB of memory; at most {most}",
            found.kib
        );
    }
    ranks[0].group.kill();
    farm.end(ranks, LIMIT)?;
    Ok(())
}

/// The value of a variable, or the default.
fn from_variable<T: FromStr<Err: Error + Send + Sync + 'static>>(
    name: &str,
    default: T,
) -> Result<T> {
    match std::env::var(name) {
        Ok(text) => text.parse().with_context(|| format!("{name}={text}")),
        Err(_) => Ok(default),
    }
}

fn soak(world: &World) -> Result<()> {
    let jobs = from_variable(JOBS_VARIABLE, JOBS)?;
    let seed = from_variable(SEED_VARIABLE, SEED)?;
    let one_in = from_variable(KILLED_VARIABLE, KILLED)?;
    ensure!(
        seed != 0 && one_in != 0,
        "{SEED_VARIABLE} and {KILLED_VARIABLE} are at least 1"
    );
    println!("{SEED_VARIABLE}={seed}, {jobs} jobs, of which one in {one_in} loses a rank");
    let mut random = Random(seed);
    let farm = Farm::new(world, "xgvmi", 1)?;
    let mut killed = 0;
    let mut early: Vec<Footprint> = Vec::new();
    for job in 0..jobs {
        let per_node = 1 + u32::try_from(random.below(2))?;
        let block = ["600", "5000", "70000"][usize::try_from(random.below(3))?];
        let due = [jobs / 4, jobs / 2].contains(&job);
        let is_killed = due || random.below(one_in) == 0;
        let mut options = vec!["--rounds", "3", "--warm-up", "0", "--block", block];
        if !is_killed {
            options.extend(["--connect-limit", CONNECT]);
        }
        let mut ranks = farm.job(per_node, &options, |_, _| ())?;
        if is_killed {
            killed += 1;
            let victim = usize::try_from(random.below(ranks.len() as u64))?;
            kill(&mut random, &mut ranks[victim]);
            // The victim may have been ready before the kill.
            let ended = farm.end(ranks, PATIENCE);
            ended.with_context(|| format!("job {job}"))?;
        } else {
            let succeeded = farm.succeed(ranks, PATIENCE);
            succeeded.with_context(|| format!("job {job}"))?;
        }
        if job % (jobs / 12).max(1) == 0 {
            let kib: Vec<f64> = footprints(&farm)?.iter().map(|found| found.kib).collect();
            println!("resident KiB after job {job}: {kib:?}");
        }
        if (jobs / 4..=jobs / 2).contains(&job) {
            // The least of many: a process returns its memory some milliseconds after its job.
            least(&mut early, footprints(&farm)?);
        }
    }
    wait_until_idle(&farm)?;
    println!("{killed} of {jobs} jobs lost a rank");
    // Connections of failed jobs stay open for some seconds, until their last frames are sent.
    let mut last = Vec::new();
    process::wait_until(LIMIT, || {
        last = footprints(&farm).unwrap_or_default();
        let mut pairs = early.iter().zip(&last);
        last.len() == early.len()
            && pairs.all(|(a, b)| b.files.len() <= a.files.len() && b.kib <= a.kib_max())
    });
    ensure!(last.len() == early.len(), "a service has ended");
    if let Some(file) = std::env::var_os(REPORT_VARIABLE) {
        fs::write(&file, report(jobs, killed, &early, &last))
            .with_context(|| format!("writing {}", file.display()))?;
    }
    for (first, last) in early.iter().zip(&last) {
        println!(
            "resident {} KiB, then {}; {} descriptors, then {}",
            first.kib,
            last.kib,
            first.files.len(),
            last.files.len()
        );
        ensure!(
            last.files.len() <= first.files.len(),
            "the service had the descriptors {:?}, then {:?}",
            first.files,
            last.files
        );
        ensure!(
            last.kib <= first.kib_max(),
            "the service grew from {} to {} KiB",
            first.kib,
            last.kib
        );
    }
    Ok(())
}

/// Kills a rank at a random moment of its start or its job.
fn kill(random: &mut Random, rank: &mut Process) {
    // No condition exists to wait for: an unknown state is the purpose.
    let pause = Duration::from_micros(random.below(600_000));
    process::wait_until(pause, || rank.has_ended());
    rank.group.kill();
}

/// Waits until no object of any process is left in the device. UCX is closed in a thread of the service.
fn wait_until_idle(farm: &Farm<'_>) -> Result<()> {
    let mut left = String::new();
    let idle = process::wait_until(LIMIT, || match objects(farm) {
        Ok(found) => {
            left = found;
            left.is_empty()
        }
        Err(error) => {
            left = error.to_string();
            false
        }
    });
    ensure!(idle, "no job is left, but {left}");
    Ok(())
}

/// Objects of the device, as text.
fn objects(farm: &Farm<'_>) -> Result<String> {
    let text = process::stdout(farm.testbed.emulator("stats").arg("--json"), LIMIT)?;
    let stats: serde_json::Value = serde_json::from_str(&text)?;
    let functions = stats["functions"].as_array().context("functions")?;
    let mut left = String::new();
    for function in functions {
        let objects = function["objects"].as_object().context("objects")?;
        for (kind, count) in objects.iter().filter(|(_, count)| **count != 0) {
            left.push_str(&format!("{} has {count} {kind}; ", function["name"]));
        }
    }
    Ok(left)
}

/// What a service process holds.
struct Footprint {
    /// Resident memory.
    kib: f64,
    /// What its descriptors refer to.
    files: Vec<String>,
}

impl Footprint {
    /// Maximum memory later.
    fn kib_max(&self) -> f64 {
        (GROWTH_MAX * self.kib).max(self.kib + GROWTH_KIB_MAX)
    }
}

/// Keeps the least memory and the fewest descriptors of each service.
fn least(kept: &mut Vec<Footprint>, found: Vec<Footprint>) {
    if kept.is_empty() {
        *kept = found;
        return;
    }
    for (kept, found) in kept.iter_mut().zip(found) {
        kept.kib = kept.kib.min(found.kib);
        if found.files.len() < kept.files.len() {
            kept.files = found.files;
        }
    }
}

/// The soak as a report: a row for each service process.
fn report(jobs: u32, killed: u32, early: &[Footprint], last: &[Footprint]) -> String {
    let rows = early.iter().zip(last).map(|(early, last)| {
        serde_json::json!({
            "early_kib": early.kib, "last_kib": last.kib,
            "early_descriptors": early.files.len(), "last_descriptors": last.files.len(),
        })
    });
    let rows: Vec<_> = rows.collect();
    // The soak fails if one is left.
    let report = serde_json::json!({
        "schema": 1, "jobs": jobs, "killed": killed, "device_objects_left": 0, "rows": rows,
    });
    format!("{report:#}\n")
}

fn footprints(farm: &Farm<'_>) -> Result<Vec<Footprint>> {
    let services = farm.services.iter().flatten();
    services
        .map(|service| {
            let id = service.group.child.id();
            let status = fs::read_to_string(format!("/proc/{id}/status"))?;
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
            let kib = line.and_then(|line| line.split_whitespace().next());
            let mut files = Vec::new();
            for entry in fs::read_dir(format!("/proc/{id}/fd"))? {
                // A descriptor may be closed meanwhile.
                let Ok(target) = fs::read_link(entry?.path()) else {
                    continue;
                };
                let target = target.display().to_string();
                // The emulated device keeps the memory of some processes open.
                if !(target.starts_with("/proc/") && target.ends_with("/mem")) {
                    files.push(target);
                }
            }
            files.sort();
            Ok(Footprint {
                kib: kib.context("VmRSS")?.parse()?,
                files,
            })
        })
        .collect()
}

/// xorshift64*: the same numbers from the same seed on all machines.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % limit
    }
}

/// Ranks find the services by a file. A new service listens on another port, the file names it, and the old service
/// ends with its last job.
fn upgrade(world: &World) -> Result<()> {
    let mut farm = Farm::new(world, "stock", 1)?;
    let file = farm.testbed.path().join("services.toml");
    let named = file.display().to_string();
    let by_file = |farm: &Farm<'_>, options: &[&str]| -> Result<Vec<Process>> {
        let options = [&["--offload-config", &named], options].concat();
        farm.job_by_file(1, &options)
    };
    let write = |farm: &Farm<'_>| -> Result<()> {
        let nodes = (0..2).map(|node| {
            Ok(format!(
                "[nodes.n{node}]\nsp = [\"{}\"]\n",
                farm.addresses(node)?
            ))
        });
        Ok(fs::write(&file, nodes.collect::<Result<String>>()?)?)
    };
    write(&farm)?;
    let stalled = [
        "--rounds",
        "8",
        "--stall-in",
        "5",
        "--offload-limit",
        "600s",
    ];
    let mut running = by_file(&farm, &stalled)?;
    for rank in &mut running {
        rank.hear("round 5")?;
    }
    // The new services; from now on `farm` knows only these.
    let mut old = Vec::new();
    for node in 0..2 {
        let mut command = farm.command(&format!("node{node}.dpu"), "xgvmi-sp");
        command.args(["--listen", "127.0.0.1:0"]);
        let mut service = Process::spawn(&mut command)?;
        service.hear(" listens on ")?;
        old.push(std::mem::replace(&mut farm.services[node][0], service));
    }
    write(&farm)?;
    for service in &mut old {
        service.signal(libc::SIGTERM)?;
        service.hear("1 running jobs have 60s to finish, new jobs are refused")?;
    }
    succeed(by_file(&farm, &["--rounds", "3"])?)?;
    for (rank, service) in running.iter_mut().zip(&mut old) {
        ensure!(!rank.has_ended(), "the old job has ended:\n{}", rank.said());
        ensure!(
            !service.has_ended(),
            "the old service has ended:\n{}",
            service.said()
        );
    }
    running[0].group.kill();
    farm.end(running, LIMIT)?;
    for mut service in old {
        let (code, said) = service.end(LIMIT, &["rank 0"])?;
        ensure!(code == Some(0), "exit code {code:?}:\n{said}");
    }
    succeed(by_file(&farm, &["--rounds", "3"])?)?;
    Ok(())
}
