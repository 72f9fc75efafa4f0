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
pub(crate) mod scale;
pub(crate) mod service;
pub(crate) mod storage;

pub(crate) use pool::instructions;

use crate::{process, workspace};
use anyhow::{Context, Result, bail};
use bench_report::files;
use bench_report::table::Column;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;
use testbed::cluster::Cluster;

const HELP: &str = "\
Usage: cargo xtask bench JOB [-- OPTIONS]

  alltoallv  the offloaded alltoallv with temporary buffers in three schemes: target/bench/alltoallv.json, .svg
  check      the model against the measured alltoallv: target/bench/check.json; fails beyond a factor of 2
  cost       calibrate the cost profile against the slides' table: target/bench/cost.json, .csv, .txt, .svg;
             fails if a step is more than 10 % off
  device     own time of the emulated device, with stock perftest and UCX: target/bench/device.json
  fresh      buffers made new for each transfer, from malloc and mmap, in six schemes: target/bench/fresh.json;
             -- --size SIZE and --runs NUMBER measure less
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
  rv64       speed of the processor of DPA programs beside qemu-riscv64: target/bench/rv64.json (no options)
  scale      bytes, messages, memory and instructions of a call of 1,024 to 16,384 light ranks: target/bench/scale.json
  service    instructions, time and memory of the service processes' own code, and their instructions and time per
             block with UCX on the emulated device: target/bench/service.json; -- --help shows how to measure single rows
  soak       1,000 jobs on the same service processes, of which one in 20 loses a rank: what they keep:
             target/bench/soak.json; takes 15 minutes (no options)
  storage    stock NBD servers and xgvmi-blk with the same fio jobs, fio's own memory through the DPU, and the bytes that
             are stored: target/bench/storage.json, .svg; --seconds N for each of 24 jobs (3)

The program that runs the job gets OPTIONS. Its --help describes them.";

/// The grid takes one or two minutes, and so does the interpreter's speed. A longer run hangs.
const MODEL_LIMIT: Duration = Duration::from_secs(1200);

/// A job takes half a second, and more on a busy machine.
const SOAK_LIMIT: Duration = Duration::from_secs(3600);

/// Runs a job with the options after `--`, and writes the report.
type Job = fn(&[String], &Path) -> Result<ExitCode>;

const JOBS: [(&str, Job); 18] = [
    ("alltoallv", alltoallv::run),
    ("check", check),
    ("cost", cost::run),
    ("device", device::run),
    ("fresh", fresh::run),
    ("hotpath", hotpath::run),
    ("judge", judge::run),
    ("library", library::run),
    ("links", crate::demo::links::run),
    ("model", model),
    ("offload", offload::run),
    ("overlap", overlap::run),
    ("pool", pool::run),
    ("rv64", rv64),
    ("scale", scale::run),
    ("service", service::run),
    ("soak", soak),
    ("storage", storage::run),
];

/// Runs one job with the arguments after `cargo xtask bench`.
pub(crate) fn run(arguments: Vec<String>) -> Result<ExitCode> {
    match parse(&arguments)? {
        None => {
            println!("{HELP}");
            Ok(ExitCode::SUCCESS)
        }
        Some((name, job, options)) => job(options, &output(&format!("{name}.json"))),
    }
}

/// The requested job with its name and options; `None` for a help request.
fn parse(arguments: &[String]) -> Result<Option<(&str, Job, &[String])>> {
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
    Ok(Some((name, *job, options)))
}

/// Path of a job's report.
fn output(name: &str) -> PathBuf {
    workspace::target_dir().join("bench").join(name)
}

fn model(options: &[String], file: &Path) -> Result<ExitCode> {
    workspace::build(&["-p scale-model"])?;
    let program = workspace::built("xgvmi-model");
    let mut command = Command::new(program);
    command.args(["--sweep", "--limits"]);
    // Measured on this machine, or else the committed report.
    let committed = workspace::root().join("docs/results/service.json");
    let measured = Some(output("service.json")).filter(|file| file.exists());
    command.arg("--software").arg(measured.unwrap_or(committed));
    if let Some(factor) = offload::earlier(&output("offload.json")) {
        command.args(["--software-earlier", &format!("{factor:.3}")]);
    }
    for output in [file, &file.with_extension("svg")] {
        command.arg("--output").arg(output);
    }
    command.args(options);
    let code = process::to_end(&mut command, MODEL_LIMIT)?;
    if code == ExitCode::SUCCESS {
        println!("\nwritten: {}", file.display());
    }
    Ok(code)
}

/// Compares the model with the report of `bench alltoallv`, on the machine of that measurement.
fn check(options: &[String], file: &Path) -> Result<ExitCode> {
    // Measured on this machine, or else the committed report.
    let committed = workspace::root().join("docs/results/alltoallv.json");
    let measured = Some(output("alltoallv.json")).filter(|file| file.exists());
    workspace::build(&["-p scale-model"])?;
    let program = workspace::built("xgvmi-model");
    let mut command = Command::new(program);
    command.args(alltoallv::MACHINE);
    command.arg("--check").arg(measured.unwrap_or(committed));
    command.arg("--output").arg(file);
    command.args(options);
    process::to_end(&mut command, MODEL_LIMIT)
}

fn rv64(options: &[String], file: &Path) -> Result<ExitCode> {
    begin("rv64", options, file)?;
    let mut command = crate::suites::rv64::judge()?;
    command
        .arg("speed")
        .arg(workspace::target_dir().join("rv64"));
    let code = process::to_end(command.arg(file), MODEL_LIMIT)?;
    println!("\nwritten: {}", file.display());
    Ok(code)
}

/// The long form of the system test.
fn soak(options: &[String], file: &Path) -> Result<ExitCode> {
    begin("soak", options, file)?;
    workspace::build(&["-p bf-emu -p bf-emu-preload -p uct-plugin -p xgvmi-offload"])?;
    let mut command = Command::new(std::env::current_exe().context("this program's path")?);
    command.args(["test", "soak", "--", "offload_soak"]);
    command.env("XGVMI_SOAK_REPORT", file);
    let code = process::to_end(&mut command, SOAK_LIMIT)?;
    if file.exists() {
        println!("\nwritten: {}", file.display());
    }
    Ok(code)
}

/// Refuses options of a job that has none, and removes the report of an earlier run.
fn begin(job: &str, options: &[String], file: &Path) -> Result<()> {
    if let Some(option) = options.first() {
        bail!("bench {job} takes no options, not '{option}'");
    }
    files::prepare(file)
}

/// Writes the report with its columns.
fn finish(file: &Path, report: &Value, columns: &[Column]) -> Result<ExitCode> {
    files::save(file, report, columns)?;
    println!("\nwritten: {}", file.display());
    Ok(ExitCode::SUCCESS)
}

/// A new emulated device. Dropping it removes its files.
fn cluster(nodes: u32) -> Result<Cluster> {
    Cluster::new(workspace::built("bf-emu"), nodes)
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
                .map(|(.., options)| options.join(" "));
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
