//! `cargo xtask bench`: runs one benchmark per job and writes JSON files below `target/bench`.

mod alltoallv;
mod cost;
mod device;
mod fresh;
pub(crate) mod hotpath;
mod judge;
mod library;
mod offload;
mod overlap;
mod pool;
pub(crate) mod service;
mod storage;

pub(crate) use pool::instructions;

use crate::{process, workspace};
use anyhow::{Context, Result, bail};
use std::fs;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;
use testbed::cluster::Cluster;

const HELP: &str = "\
Usage: cargo xtask bench JOB [-- OPTIONS]

  alltoallv  the offloaded alltoallv with temporary buffers in three schemes: target/bench/alltoallv.json, .svg
  check      the model against the measured alltoallv: target/bench/check.json; fails beyond a factor of 2
  cost       calibrate the cost profile against the slides' table: target/bench/cost.json, .csv, .txt, .svg;
             fails if a step is more than 10 % off
  device     own time of the emulated device, with stock perftest and UCX: target/bench/device.json
  fresh      buffers made new for each transfer, from malloc and mmap, in five schemes: target/bench/fresh.json (no options)
  hotpath    instructions, traps and cache lines of an export and its release, by owner: target/bench/hotpath.json
  judge      compare all reports with the promises: target/bench/judge.json; fails if one is not kept (no options)
  library    cost of the library in a process: target/bench/library.json
  links      the demo's transfer over InfiniBand and Ethernet ports in turn: target/bench/links.json (no options)
  model      predict an offloaded alltoallv on 2 to 16,384 nodes: target/bench/model.json, .svg
  offload    instructions of a rank and of a service process per offloaded alltoallv, by owner and by order of the
             pool's keys: target/bench/offload.json; -- --before DIR COMMIT compares with an earlier version
  overlap    a rank's own instructions in an offloaded call, the overlap that they leave at 32 x 32 ranks, and the time
             in which UCC loads its component: target/bench/overlap.json (no options)
  pool       the pool against a C list, UCX's hash table and stock UCX's keys: target/bench/pool.json (no options)
  service    instructions, time and memory of the service processes' own code, and their instructions and time per
             block with UCX on the emulated device: target/bench/service.json; -- --help shows how to measure single rows
  soak       1,000 jobs on the same service processes, of which one in 20 loses a rank: what they keep:
             target/bench/soak.json; takes 15 minutes (no options)
  storage    stock NBD servers and xgvmi-blk with the same fio jobs, fio's own memory through the DPU, and the bytes that
             are stored: target/bench/storage.json, .svg; --seconds N for each of 24 jobs (3)

The program that runs the job gets OPTIONS. Its --help describes them.";

/// The grid takes one or two minutes. A longer run hangs.
const MODEL_LIMIT: Duration = Duration::from_secs(1200);

/// A job takes half a second, and more on a busy machine.
const SOAK_LIMIT: Duration = Duration::from_secs(3600);

/// Runs a job with the options after `--`.
type Job = fn(&[String]) -> Result<ExitCode>;

const JOBS: [(&str, Job); 16] = [
    ("alltoallv", alltoallv),
    ("check", check),
    ("cost", cost),
    ("device", device),
    ("fresh", fresh),
    ("hotpath", hotpath),
    ("judge", judge),
    ("library", library),
    ("links", links),
    ("model", model),
    ("offload", offload),
    ("overlap", overlap),
    ("pool", pool),
    ("service", service),
    ("soak", soak),
    ("storage", storage),
];

/// Runs one job with the arguments after `cargo xtask bench`.
pub(crate) fn run(arguments: Vec<String>) -> Result<ExitCode> {
    match parse(&arguments)? {
        None => {
            println!("{HELP}");
            Ok(ExitCode::SUCCESS)
        }
        Some((job, options)) => job(options),
    }
}

/// The requested job and its options; `None` for a help request.
fn parse(arguments: &[String]) -> Result<Option<(Job, &[String])>> {
    let Some((name, rest)) = arguments.split_first() else {
        return Ok(None);
    };
    if ["-h", "--help", "help"].contains(&name.as_str()) {
        return Ok(None);
    }
    let (_, job) = JOBS
        .iter()
        .find(|(known, _)| known == name)
        .with_context(|| format!("no job '{name}'; try: cargo xtask bench --help"))?;
    let options = match rest.split_first() {
        Some((separator, options)) if separator == "--" => options,
        Some((option, _)) if ["-h", "--help"].contains(&option.as_str()) => return Ok(None),
        Some((option, _)) => {
            bail!("'{option}' is not understood; options of the program come after --")
        }
        None => &[],
    };
    Ok(Some((*job, options)))
}

/// Path of a job's report.
fn output(name: &str) -> PathBuf {
    workspace::target_dir().join("bench").join(name)
}

fn model(options: &[String]) -> Result<ExitCode> {
    let program = build("scale-model", "xgvmi-model")?;
    let file = output("model.json");
    let mut command = Command::new(program);
    command.args(["--sweep", "--limits"]);
    // Measured on this machine, or else the committed report.
    let committed = workspace::root().join("docs/results/service.json");
    let measured = Some(output("service.json")).filter(|file| file.exists());
    command.arg("--software").arg(measured.unwrap_or(committed));
    if let Some(factor) = offload::earlier(&output("offload.json")) {
        command.args(["--software-earlier", &format!("{factor:.3}")]);
    }
    for output in [&file, &file.with_extension("svg")] {
        command.arg("--output").arg(output);
    }
    command.args(options);
    let code = run_to_end(&mut command, MODEL_LIMIT)?;
    if code == ExitCode::SUCCESS {
        println!("\nwritten: {}", file.display());
    }
    Ok(code)
}

fn offload(options: &[String]) -> Result<ExitCode> {
    offload::run(options, &output("offload.json"))
}

fn overlap(options: &[String]) -> Result<ExitCode> {
    overlap::run(options, &output("overlap.json"))
}

fn cost(options: &[String]) -> Result<ExitCode> {
    cost::run(options, &output("cost.json"))
}

/// Compares the model with the report of `bench alltoallv`, on the machine of that measurement.
fn check(options: &[String]) -> Result<ExitCode> {
    // Measured on this machine, or else the committed report.
    let committed = workspace::root().join("docs/results/alltoallv.json");
    let measured = Some(output("alltoallv.json")).filter(|file| file.exists());
    let program = build("scale-model", "xgvmi-model")?;
    let mut command = Command::new(program);
    command.args(alltoallv::MACHINE);
    command.arg("--check").arg(measured.unwrap_or(committed));
    command.arg("--output").arg(output("check.json"));
    command.args(options);
    run_to_end(&mut command, MODEL_LIMIT)
}

fn alltoallv(options: &[String]) -> Result<ExitCode> {
    alltoallv::run(options, &output("alltoallv.json"))
}

fn device(options: &[String]) -> Result<ExitCode> {
    device::run(options, &output("device.json"))
}

fn fresh(options: &[String]) -> Result<ExitCode> {
    fresh::run(options, &output("fresh.json"))
}

fn hotpath(options: &[String]) -> Result<ExitCode> {
    hotpath::run(options, &output("hotpath.json"))
}

fn judge(options: &[String]) -> Result<ExitCode> {
    judge::run(options, &output("judge.json"))
}

fn service(options: &[String]) -> Result<ExitCode> {
    service::run(options, &output("service.json"))
}

/// The long form of the system test.
fn soak(options: &[String]) -> Result<ExitCode> {
    if let Some(option) = options.first() {
        bail!("bench soak takes no options, not '{option}'");
    }
    let file = output("soak.json");
    let place = file.parent().context("the report has a directory")?;
    fs::create_dir_all(place).with_context(|| format!("cannot create {}", place.display()))?;
    // A report of an earlier run must not count for this run.
    let _ = fs::remove_file(&file);
    build_cluster()?;
    let mut command = Command::new(std::env::current_exe().context("this program's path")?);
    command.args(["test", "soak", "--", "offload_soak"]);
    command.env("XGVMI_SOAK_REPORT", &file);
    let code = run_to_end(&mut command, SOAK_LIMIT)?;
    if file.exists() {
        println!("\nwritten: {}", file.display());
    }
    Ok(code)
}

fn storage(options: &[String]) -> Result<ExitCode> {
    storage::run(options, &output("storage.json"))
}

/// The demo's transfer over InfiniBand and Ethernet ports.
fn links(options: &[String]) -> Result<ExitCode> {
    crate::demo::links::run(options, &output("links.json"))
}

fn library(options: &[String]) -> Result<ExitCode> {
    library::run(options, &output("library.json"))
}

fn pool(options: &[String]) -> Result<ExitCode> {
    pool::run(options, &output("pool.json"))
}

/// Builds a program of the workspace in release mode and returns its path.
/// A built program or library.
fn built(name: &str) -> PathBuf {
    workspace::target_dir().join("release").join(name)
}

/// A new emulated device. Dropping it removes its files.
fn cluster(nodes: u32) -> Result<Cluster> {
    Cluster::new(built("bf-emu"), nodes)
}

fn build(package: &str, program: &str) -> Result<PathBuf> {
    build_target(package, ("--bin", program))?;
    Ok(workspace::target_dir().join("release").join(program))
}

/// Builds an example and returns its file.
fn build_example(package: &str, example: &str) -> Result<PathBuf> {
    build_target(package, ("--example", example))?;
    Ok(workspace::target_dir()
        .join("release/examples")
        .join(example))
}

fn build_target(package: &str, (kind, name): (&str, &str)) -> Result<()> {
    let mut command = Command::new("cargo");
    command.current_dir(workspace::root());
    command.args(["build", "--release", "-p", package, kind, name]);
    if !std::io::stderr().is_terminal() {
        command.arg("--quiet");
    }
    let status = command.status().context("cannot run cargo")?;
    if !status.success() {
        bail!("`{}`: {status}", process::shown(&command));
    }
    Ok(())
}

/// Builds the library that UCX loads.
fn build_library() -> Result<()> {
    build_package("uct-plugin")
}

/// Builds the emulator's preload library.
fn build_preload() -> Result<()> {
    build_package("bf-emu-preload")
}

/// Builds the emulator, the library, and the programs of the offload.
fn build_cluster() -> Result<()> {
    build_package("bf-emu")?;
    build_preload()?;
    build_library()?;
    build_package("xgvmi-offload")
}

/// Builds all targets of a package in release mode.
fn build_package(package: &str) -> Result<()> {
    let mut command = Command::new("cargo");
    command.current_dir(workspace::root());
    command.args(["build", "--release", "--quiet", "-p", package]);
    let status = command.status().context("cannot run cargo")?;
    if !status.success() {
        bail!("`{}`: {status}", process::shown(&command));
    }
    Ok(())
}

/// Runs a program that prints its own errors.
fn run_to_end(command: &mut Command, limit: Duration) -> Result<ExitCode> {
    let mut group = process::Group::spawn(command.stdin(Stdio::null()))?;
    let (status, timed_out) = group.wait(limit)?;
    if timed_out {
        bail!(
            "`{}` did not end within {} s and was stopped",
            process::shown(command),
            limit.as_secs()
        );
    }
    Ok(if status.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn jobs_and_their_options_are_read() {
        let check = |text: &str, expect: Option<&str>| {
            let arguments = words(text);
            let found = parse(&arguments)
                .unwrap()
                .map(|(_, options)| options.join(" "));
            assert_eq!(found.as_deref(), expect, "{text}");
        };
        check("", None);
        check("--help", None);
        check("model --help", None);
        check("model", Some(""));
        check("model -- --ppn 16", Some("--ppn 16"));
    }

    #[test]
    fn unknown_jobs_and_options_are_refused() {
        let check = |text: &str, expect: &str| {
            let error = parse(&words(text)).unwrap_err().to_string();
            assert!(error.contains(expect), "{error}");
        };
        check("models", "no job 'models'");
        check("model --ppn 16", "'--ppn' is not understood");
    }
}
