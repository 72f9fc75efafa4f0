//! Alternates between the schemes and reads the counters.
//!
//! Each scheme has four processes of its own, which live through the whole run and block in a read of their control
//! channel while it is another scheme's turn. Within a size the schemes take turns in short batches, so that whatever
//! else the machine does meets all of them alike. Device counters are read before and after each counted batch, when
//! no process of the scheme does anything.

mod group;
mod plan;
mod progress;

use super::Place;
use super::control::{Batch, Command, Outcome, Reply};
use crate::report::{Percentiles, Report, Row};
use anyhow::{Context as _, Result, bail};
use bench_report::Samples;
use bench_report::counters::Counters;
use bench_report::format_size;
use group::Group;
pub use plan::{Case, Effort, Plan, Scheme};
use progress::Progress;
use std::collections::BTreeMap;
use std::fs;
use std::time::Instant;
use testbed::cluster::Cluster;

/// Runs the plan, writes the reports, and passes each row to `print` when it is measured.
///
/// # Errors
/// An error that names scheme, process and step. All processes have ended. A wrong byte is an error as well,
/// after the reports are written.
pub fn run(plan: &Plan, mut print: impl FnMut(&Row) -> Result<()>) -> Result<Report> {
    let deadline = Instant::now() + plan.limit;
    let logs = plan.output.join("logs");
    fs::create_dir_all(&logs).with_context(|| format!("making {}", logs.display()))?;
    bench_report::files::remove(&plan.output)?;
    let progress = Progress::new();
    progress.show("starting the processes");
    let mut runs = plan
        .schemes
        .iter()
        .enumerate()
        .map(|(index, scheme)| {
            Ok(SchemeRun {
                name: scheme.name.clone(),
                group: Group::start(plan, scheme, &logs)?,
                device: scheme.device.clone(),
                salt: index as u64,
                next: 1,
                verified_bytes: 0,
                mismatches: 0,
                first_wrong: None,
                ucx_version: String::new(),
            })
        })
        .collect::<Result<Vec<_>>>()?;

    let mut rows = Vec::new();
    for case in &plan.cases {
        for row in run_case(&mut runs, case, deadline, &progress)? {
            progress.clear();
            print(&row)?;
            rows.push(row);
        }
    }
    let report = Report {
        schema: 1,
        ucx_version: runs
            .first()
            .map(|run| run.ucx_version.clone())
            .unwrap_or_default(),
        profile: plan.profile.clone(),
        link: plan.link.clone(),
        dpu_arch: plan.dpu_arch().to_owned(),
        verified_bytes: runs.iter().map(|run| run.verified_bytes).sum(),
        mismatches: runs.iter().map(|run| run.mismatches).sum(),
        rows,
    };
    progress.show("writing the reports");
    report.write(&plan.output)?;
    if let Some(wrong) = runs.iter().find_map(|run| run.first_wrong.as_ref()) {
        bail!(
            "{} of {} bytes at host B are wrong; first: {wrong}",
            report.mismatches,
            report.verified_bytes
        );
    }
    progress.show("ending the processes");
    for run in runs {
        run.group.finish()?;
    }
    Ok(report)
}

/// A scheme's processes and their results so far.
#[derive(Debug)]
struct SchemeRun {
    name: String,
    group: Group,
    device: Cluster,
    salt: u64,
    /// Number of the next iteration. Numbers are unique, so that no two messages are equal.
    next: u64,
    verified_bytes: u64,
    mismatches: u64,
    first_wrong: Option<String>,
    ucx_version: String,
}

/// Result of a scheme at one size.
#[derive(Debug, Default)]
struct Measured {
    first: Samples,
    steady: Samples,
    counters: Counters,
}

/// One size: all schemes, alternating.
fn run_case(
    runs: &mut [SchemeRun],
    case: &Case,
    deadline: Instant,
    progress: &Progress,
) -> Result<Vec<Row>> {
    let size = format_size(case.size);
    let mut measured: Vec<Measured> = runs.iter().map(|_| Measured::default()).collect();
    for (run, measured) in runs.iter_mut().zip(&mut measured) {
        progress.show(&format!("{size}: {}: first touch", run.name));
        for opening in 0..case.openings {
            if opening > 0 {
                run.close(deadline)?;
            }
            run.open(deadline)?;
            let times = run.batch(case, 1, "first iteration", deadline)?;
            measured.first.extend_ns(&times);
        }
    }
    for round in 0..case.rounds {
        for index in plan::order(round, runs.len()) {
            let (run, measured) = (&mut runs[index], &mut measured[index]);
            progress.show(&format!(
                "{size}: {}: round {} of {}",
                run.name,
                round + 1,
                case.rounds
            ));
            run.batch(case, case.warm_up, "warm-up", deadline)?;
            let before = run.device.counters()?;
            let times = run.batch(case, case.batch, "counted batch", deadline)?;
            let after = run.device.counters()?;
            measured.steady.extend_ns(&times);
            measured.counters.add(&after.since(&before)?);
        }
    }
    runs.iter_mut()
        .zip(measured)
        .map(|(run, measured)| {
            run.close(deadline)?;
            measured.row(&run.name, case)
        })
        .collect()
}

impl SchemeRun {
    /// Creates a new UCX context in each process and connects all: the next iteration is a first one.
    fn open(&mut self, deadline: Instant) -> Result<()> {
        let mut addresses = BTreeMap::new();
        for (place, reply) in self.group.ask(&Command::Open, "opening UCX", deadline)? {
            let Reply::Opened {
                address,
                ucx_version,
            } = reply
            else {
                bail!("scheme {}, {place}: {reply:?} to open", self.name);
            };
            addresses.insert(place, address);
            self.ucx_version = ucx_version;
        }
        let connect = Command::Connect(addresses);
        for (place, reply) in self.group.ask(&connect, "connecting", deadline)? {
            if reply != Reply::Connected {
                bail!("scheme {}, {place}: {reply:?} to connect", self.name);
            }
        }
        Ok(())
    }

    fn close(&mut self, deadline: Instant) -> Result<()> {
        for (place, reply) in self.group.ask(&Command::Close, "closing UCX", deadline)? {
            if reply != Reply::Closed {
                bail!("scheme {}, {place}: {reply:?} to close", self.name);
            }
        }
        Ok(())
    }

    /// Runs `count` iterations and returns their times. Host A gets the command last, when all others are
    /// waiting for it.
    fn batch(
        &mut self,
        case: &Case,
        count: u64,
        what: &str,
        deadline: Instant,
    ) -> Result<Vec<u64>> {
        const OTHERS: [Place; 3] = [Place::DpuA, Place::DpuB, Place::HostB];
        let step = format!("{what} of {}", format_size(case.size));
        let batch = Batch {
            first: self.next,
            count,
            size: case.size,
            salt: self.salt,
        };
        self.next += count;
        let command = Command::Run(batch);
        self.group.send(&OTHERS, &command, &step)?;
        for (place, reply) in self.group.gather(&OTHERS, &step, deadline)? {
            if reply != Reply::Ready {
                bail!("scheme {}, {place}, {step}: {reply:?} to run", self.name);
            }
        }
        self.group.send(&[Place::HostA], &command, &step)?;
        let mut times = Vec::new();
        for (place, reply) in self.group.gather(&Place::ALL, &step, deadline)? {
            let Reply::Ran(outcome) = reply else {
                bail!("scheme {}, {place}, {step}: {reply:?} to run", self.name);
            };
            if place == Place::HostA {
                times.clone_from(&outcome.times_ns);
            }
            self.account(&outcome, &step);
        }
        if times.len() as u64 != count {
            bail!(
                "scheme {}, {step}: {} times of {count} iterations",
                self.name,
                times.len()
            );
        }
        Ok(times)
    }

    fn account(&mut self, outcome: &Outcome, step: &str) {
        self.verified_bytes += outcome.verified_bytes;
        self.mismatches += outcome.mismatches;
        if let Some((iteration, offset)) = outcome.first_wrong {
            self.first_wrong.get_or_insert_with(|| {
                format!(
                    "scheme {}, {step}, iteration {iteration}, offset {offset}",
                    self.name
                )
            });
        }
    }
}

impl Measured {
    fn row(&self, scheme: &str, case: &Case) -> Result<Row> {
        let of = |samples: &Samples, percent| {
            samples
                .percentile(percent)
                .with_context(|| format!("scheme {scheme} has no times"))
        };
        Ok(Row {
            scheme: scheme.to_owned(),
            size: case.size,
            iterations: case.iterations(),
            first_us: of(&self.first, 50)?,
            steady_us: Percentiles {
                p50: of(&self.steady, 50)?,
                p99: of(&self.steady, 99)?,
            },
            commands_per_iteration: self.counters.per_iteration(case.iterations()),
        })
    }
}
