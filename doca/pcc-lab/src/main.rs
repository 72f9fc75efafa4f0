//! `pcc-lab`: runs a scenario, and writes its report and trace.
#![expect(
    clippy::print_stdout,
    reason = "the report is what this program prints"
)]

use anyhow::{Context as _, Result};
use clap::Parser;
use pcc_lab::scenario::{GUESSES, Traffic, parse_rows};
use pcc_lab::{Lab, Scenario, Trace};
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

/// Simulates congestion control of RoCE flows, one packet at a time
#[derive(Debug, Parser)]
#[command(name = "pcc-lab", version)]
struct Arguments {
    /// Scenario (TOML): topology, traffic, algorithm
    #[arg(required_unless_present = "guesses")]
    scenario: Option<PathBuf>,
    /// Flows to add, one per line: ns, sender, receiver, bytes
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    /// Times of these flows are divided by this: a trace of a slow machine
    #[arg(long, value_name = "N", default_value_t = 1, requires = "replay",
        value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    faster: u64,
    /// Algorithm in place of the scenario's
    #[arg(long, value_name = "NAME")]
    algorithm: Option<String>,
    /// Seed in place of the scenario's
    #[arg(long)]
    seed: Option<u64>,
    /// File for the report (JSON); standard output by default
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// File for the trace: ps, kind, number of the flow, port or host, and a value
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Print the device's properties that the lab guesses, and exit
    #[arg(long)]
    guesses: bool,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    if arguments.guesses {
        for (name, default, text) in GUESSES {
            println!("{name} = {default}\n   {text}");
        }
        return Ok(());
    }
    let path = arguments.scenario.as_deref().context("no scenario given")?;
    let read = |path| fs::read_to_string(path).with_context(|| format!("cannot read {path:?}"));
    let mut scenario =
        Scenario::from_toml(&read(path)?).with_context(|| path.display().to_string())?;
    if let Some(path) = &arguments.replay {
        let mut rows = parse_rows(&read(path)?).with_context(|| path.display().to_string())?;
        for row in &mut rows {
            row.0 /= arguments.faster;
        }
        let class = pcc_lab::scenario::Class::default();
        scenario.traffic.push(Traffic::Replay { rows, class });
    }
    if let Some(name) = &arguments.algorithm {
        scenario.algorithm.name.clone_from(name);
    }
    scenario.seed = arguments.seed.unwrap_or(scenario.seed);
    let mut lab = Lab::new(&scenario).with_context(|| path.display().to_string())?;
    let report = lab.run();
    let text = format!("{}\n", serde_json::to_string_pretty(&report)?);
    match &arguments.report {
        Some(path) => write(path, &text)?,
        None => std::io::stdout().write_all(text.as_bytes())?,
    }
    if let Some(path) = &arguments.trace {
        write(path, &lines(lab.trace())?)?;
    }
    Ok(())
}

fn write(path: &PathBuf, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn lines(trace: &Trace) -> Result<String> {
    let mut text = String::new();
    for record in trace.records() {
        let kind = serde_json::to_value(record.kind)?;
        let kind = kind.as_str().unwrap_or_default();
        writeln!(
            text,
            "{} {kind} {} {}",
            record.time_ps, record.subject, record.value
        )?;
    }
    if trace.omitted() > 0 {
        writeln!(
            text,
            "# {} more records; raise limits.trace",
            trace.omitted()
        )?;
    }
    Ok(text)
}
