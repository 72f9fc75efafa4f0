//! `xgvmi-demo`: the offloaded transfer, one of its processes (`process`) or all of them (`orchestrate`).
#![expect(clippy::print_stdout, reason = "the table is what this program prints")]

use anyhow::{Context as _, Result, bail};
use bench_report::parse_size;
use clap::{Args, Parser, Subcommand};
use osu_bench::demo::orchestrate::{self, Case, Effort, Plan, Scheme, Template};
use osu_bench::demo::{Place, ProcessOptions, Role, Side, serve};
use osu_bench::report;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Transfers data from host A to host B through two DPUs, which never store it, over stock UCX.
#[derive(Debug, Parser)]
#[command(name = "xgvmi-demo", version)]
struct Cli {
    #[command(subcommand)]
    job: Job,
}

#[derive(Debug, Subcommand)]
enum Job {
    /// Start all processes of all schemes, alternate between the schemes, and write the report.
    Orchestrate(Box<OrchestrateArgs>),
    /// Run one of the four processes. Standard input is the control channel.
    Process(ProcessArgs),
}

#[derive(Debug, Args)]
struct ProcessArgs {
    /// Role of this process.
    #[arg(long)]
    role: Role,
    /// Node of this process.
    #[arg(long)]
    side: Side,
    /// Polling time before a wait sleeps.
    #[arg(long, default_value_t = SPIN_US, value_name = "US")]
    spin_us: u64,
    /// The libucp to use [default: the loader's search].
    #[arg(long, value_name = "FILE")]
    ucx_library: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct OrchestrateArgs {
    /// A scheme to run. Repeat the option to compare several.
    #[arg(long = "scheme", value_name = "NAME", required = true)]
    schemes: Vec<String>,
    /// An environment variable for one scheme's processes.
    #[arg(long = "env", value_name = "SCHEME:NAME=VALUE")]
    environment: Vec<String>,
    /// Command that runs a command on a function, up to a word ';', with the placeholders {scheme}, {node},
    /// {role}.
    #[arg(long, num_args = 1.., value_terminator = ";", allow_hyphen_values = true, required = true)]
    launch: Vec<String>,
    /// Command that prints the device counters of a scheme, up to a word ';', with the placeholder {scheme}.
    #[arg(long, num_args = 1.., value_terminator = ";", allow_hyphen_values = true, required = true)]
    counters: Vec<String>,
    /// Name of the device's cost profile, for the report.
    #[arg(long)]
    profile: String,
    /// Link type of the device's ports, for the report.
    #[arg(long, value_name = "NAME", default_value = "infiniband")]
    link: String,
    /// Bytes per transfer; at least 16K.
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = parse_transfer_size,
        default_value = "16K,256K,1M,16M"
    )]
    sizes: Vec<usize>,
    /// Counted iterations per scheme and size [default: by size].
    #[arg(long, value_name = "N")]
    iterations: Option<u64>,
    /// Fewer iterations, for a run of less than half a minute.
    #[arg(long)]
    quick: bool,
    /// Polling time before a wait sleeps.
    #[arg(long, default_value_t = SPIN_US, value_name = "US")]
    spin_us: u64,
    /// The libucp to use [default: the loader's search].
    #[arg(long, value_name = "FILE")]
    ucx_library: Option<PathBuf>,
    /// Directory for reports and logs.
    #[arg(long, value_name = "DIR", default_value = "target/demo")]
    output: PathBuf,
    /// Time limit of the whole run.
    #[arg(long, value_name = "S", default_value_t = 300)]
    limit_s: u64,
}

/// Polling takes CPU from working processes. With four processes on two cores, an iteration of 16 KiB took
/// 0.65, 0.76, 1.06 and 1.83 ms with 0, 20, 50 and 200 us of polling.
const SPIN_US: u64 = 0;

fn main() -> ExitCode {
    let done = match Cli::parse().job {
        Job::Process(args) => serve(&ProcessOptions {
            place: Place::new(args.role, args.side),
            ucx_library: args.ucx_library,
            spin: Duration::from_micros(args.spin_us),
        }),
        Job::Orchestrate(args) => run(*args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: OrchestrateArgs) -> Result<()> {
    let plan = plan(args)?;
    println!("{}", report::header());
    let report = orchestrate::run(&plan, |row| println!("{}", report::row(row)))?;
    println!(
        "\n{} bytes verified at host B, none wrong; UCX {}, profile {}, link {}\nreports: {}/report.{{json,md,svg}}",
        report.verified_bytes,
        report.ucx_version,
        report.profile,
        report.link,
        plan.output.display()
    );
    Ok(())
}

fn plan(args: OrchestrateArgs) -> Result<Plan> {
    let effort = if args.quick {
        Effort::Quick
    } else {
        Effort::Full
    };
    let mut schemes: Vec<Scheme> = Vec::new();
    for name in args.schemes {
        if schemes.iter().any(|scheme| scheme.name == name) {
            bail!("scheme '{name}' is given twice");
        }
        schemes.push(Scheme {
            name,
            environment: Vec::new(),
        });
    }
    for setting in args.environment {
        let (scheme, assignment) = setting.split_once(':').unwrap_or_default();
        let (variable, value) = assignment
            .split_once('=')
            .with_context(|| format!("'{setting}' is no SCHEME:NAME=VALUE"))?;
        schemes
            .iter_mut()
            .find(|known| known.name == scheme)
            .with_context(|| format!("'{setting}' is of no --scheme"))?
            .environment
            .push((variable.to_owned(), value.to_owned()));
    }
    Ok(Plan {
        schemes,
        cases: args
            .sizes
            .iter()
            .map(|size| Case::new(*size, effort, args.iterations))
            .collect(),
        launch: Template::new(args.launch).map_err(anyhow::Error::msg)?,
        counters: Template::new(args.counters).map_err(anyhow::Error::msg)?,
        profile: args.profile,
        link: args.link,
        ucx_library: args.ucx_library,
        spin: Duration::from_micros(args.spin_us),
        output: args.output,
        limit: Duration::from_secs(args.limit_s),
    })
}

/// A size that only the device transfers (see `Context::ACCESS_MIN`).
fn parse_transfer_size(text: &str) -> Result<usize, String> {
    let min = xgvmi_ucp::Context::ACCESS_MIN;
    parse_size(text).and_then(|size| {
        if size < min {
            Err(format!("{size} bytes; the least is {min}"))
        } else {
            Ok(size)
        }
    })
}
