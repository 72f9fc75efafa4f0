//! `pcc-run`: runs a scenario of the lab with a congestion-control program in C.
#![expect(
    clippy::print_stdout,
    reason = "the report is what this program prints"
)]

use anyhow::{Context as _, Result, bail};
use clap::{Parser, ValueEnum};
use pcc_lab::scenario::Probe;
use pcc_lab::{Algorithm, Lab, Report, Scenario};
use pcc_run::{Build, Image, Model, Options, Process, Sources, events_per_second};
use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Runs a scenario of the lab with a congestion-control program in C, as it is written for a DPA
#[derive(Debug, Parser)]
#[command(name = "pcc-run", version)]
struct Arguments {
    /// Scenario (TOML), as of pcc-lab
    scenario: PathBuf,
    /// C files of the program; the device library is added
    #[arg(required = true)]
    sources: Vec<PathBuf>,
    /// Directory of headers
    #[arg(short = 'I', value_name = "DIR")]
    includes: Vec<PathBuf>,
    /// Macro: NAME or NAME=VALUE
    #[arg(short = 'D', value_name = "MACRO")]
    macros: Vec<String>,
    /// What the program is compiled for
    #[arg(long, value_enum, default_value_t = For::Dpa)]
    build: For,
    /// Layout of events
    #[arg(long, value_enum, default_value_t = Device::Bf3)]
    device: Device,
    /// Form of the probes in place of the scenario's. The response to IFA has what switches wrote, and no times
    #[arg(long, value_enum)]
    probe: Option<ProbeForm>,
    /// Parameter of slot 0 to set after the start: NUMBER=VALUE
    #[arg(long = "set", value_name = "N=VALUE", value_parser = parameter)]
    parameters: Vec<(u32, u32)>,
    /// Most instructions of one event; a handler that needs more has failed
    #[arg(long, default_value_t = Options::default().instructions_max)]
    instructions_max: u64,
    /// File for the report (JSON); standard output by default
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum For {
    /// RV64 in the interpreter: counts instructions; a crash ends only its process
    Dpa,
    /// This machine: fast; the program is trusted
    Host,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Device {
    /// BlueField-3
    Bf3,
    /// ConnectX-8
    Cx8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ProbeForm {
    Ccmad,
    Ifa1,
    Ifa2,
}

fn parameter(text: &str) -> Result<(u32, u32), String> {
    let parts = text.split_once('=');
    let parsed =
        parts.and_then(|(number, value)| Some((number.parse().ok()?, value.parse().ok()?)));
    parsed.ok_or_else(|| "not NUMBER=VALUE".to_owned())
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
    let mut scenario = read(&arguments.scenario)?;
    if let Some(probe) = arguments.probe {
        scenario.host.probe = match probe {
            ProbeForm::Ccmad => Probe::Ccmad,
            ProbeForm::Ifa1 => Probe::Ifa1,
            ProbeForm::Ifa2 => Probe::Ifa2,
        };
    }
    let image = build(arguments)?;
    let options = Options {
        raw_probes: scenario.host.probe != Probe::Ccmad,
        instructions_max: arguments.instructions_max,
        parameters: arguments.parameters.clone(),
        ..Options::default()
    };
    // The first one tells what is wrong with the program, if something is.
    image.start(&options)?;
    let processes = RefCell::new(Vec::new());
    let failed = RefCell::new(None);
    let make = |_| -> Box<dyn Algorithm> {
        match image.start(&options) {
            Ok(process) => {
                processes.borrow_mut().push(process.clone());
                Box::new(process)
            }
            Err(refused) => {
                failed.borrow_mut().get_or_insert(refused);
                Box::new(pcc_lab::native::Constant(pcc_lab::RATE_MAX))
            }
        }
    };
    let lab = Lab::with_algorithm(&scenario, &make);
    let mut lab = lab.with_context(|| arguments.scenario.display().to_string())?;
    if let Some(refused) = failed.into_inner() {
        bail!(refused);
    }
    let report = lab.run();
    tell(&scenario, &report, &processes.borrow());
    let text = format!("{}\n", serde_json::to_string_pretty(&report)?);
    match &arguments.report {
        Some(path) => {
            fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?
        }
        None => print!("{text}"),
    }
    Ok(())
}

fn read(path: &Path) -> Result<Scenario> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Scenario::from_toml(&text).with_context(|| path.display().to_string())
}

fn build(arguments: &Arguments) -> Result<Image> {
    let name = arguments.sources[0].file_stem().unwrap_or_default();
    let sources = Sources {
        includes: arguments.includes.clone(),
        macros: arguments.macros.clone(),
        model: match arguments.device {
            Device::Bf3 => Model::Bf3,
            Device::Cx8 => Model::Cx8,
        },
        ..Sources::new(&name.to_string_lossy(), &arguments.sources)
    };
    let build = match arguments.build {
        For::Dpa => Build::Dpa,
        For::Host => Build::Host,
    };
    Ok(Image::build(&sources, build)?)
}

/// What the report does not say: the program's own messages, and what the device sustains.
fn tell(scenario: &Scenario, report: &Report, processes: &[Process]) {
    for (host, process) in processes.iter().enumerate() {
        for line in process.output().printed.lines() {
            eprintln!("process {host}: {line}");
        }
    }
    for failure in &report.process_failures {
        eprintln!(
            "host {} has lost process {}: {}",
            failure.host, failure.process, failure.reason
        );
    }
    if let Some(instructions) = report.instructions_per_event {
        let guesses = &scenario.guesses;
        let mips = guesses.handler_mips.max(1);
        let events = events_per_second(instructions, guesses.handler_threads, mips);
        eprintln!(
            "{instructions:.0} instructions per event: {} threads with {mips} million per second each sustain {:.1} million events \
             per second",
            guesses.handler_threads,
            events / 1e6
        );
    }
}
