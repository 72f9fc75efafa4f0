//! `xgvmi-demo`: the offloaded transfer, one of its processes (`process`) or all of them (`orchestrate`).
#![expect(clippy::print_stdout, reason = "the table is what this program prints")]

use anyhow::{Result, bail};
use bench_report::columns::DEMO;
use bench_report::{parse_size, table};
use clap::{Args, Parser, Subcommand};
use osu_bench::demo::orchestrate::{self, Case, Effort, Plan, Scheme};
use osu_bench::demo::{Place, ProcessOptions, Role, Side, serve};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use testbed::cluster::Cluster;
use testbed::foreign::Foreign;

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
    /// Time limit for a message or an operation.
    #[arg(long, default_value_t = 20, value_name = "S")]
    step_limit_s: u64,
    /// The libucp to use [default: the loader's search].
    #[arg(long, value_name = "FILE")]
    ucx_library: Option<PathBuf>,
}

/// A source of keys: the same programs in another environment.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Keys {
    /// Stock UCX with a key per buffer.
    Ksm,
    /// Stock UCX with its own key pool.
    Stock,
    /// Stock UCX with this project's library.
    Xgvmi,
    /// The same, with buffers from memory that is registered once.
    Arena,
}

impl Keys {
    fn name(self) -> &'static str {
        match self {
            Self::Ksm => "ksm",
            Self::Stock => "stock",
            Self::Xgvmi => "xgvmi",
            Self::Arena => "arena",
        }
    }

    fn environment(self, plugin: &Path) -> Vec<(String, String)> {
        let set = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        match self {
            Self::Ksm => vec![set("UCX_IB_XGVMI_UMR_ENABLE", "n")],
            Self::Stock => Vec::new(),
            Self::Xgvmi => vec![
                set("LD_PRELOAD", &plugin.to_string_lossy()),
                set("UCX_XGVMI_POOL_INIT", KEYS_AT_OPEN),
            ],
            Self::Arena => {
                let mut all = Self::Xgvmi.environment(plugin);
                all.push(set("UCX_XGVMI_ARENA", "256mb"));
                // libibverbs cannot see that this machine's kernel copies pinned pages for a forked child.
                all.push(set("UCX_IB_FORK_INIT", "n"));
                all
            }
        }
    }
}

#[derive(Debug, Args)]
struct OrchestrateArgs {
    /// Schemes to compare.
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "ksm,stock,xgvmi,arena"
    )]
    schemes: Vec<Keys>,
    /// Link types of the ports: with several, each scheme runs on each of them.
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "infiniband"
    )]
    links: Vec<String>,
    /// The emulator, `bf-emu`.
    #[arg(long, value_name = "FILE")]
    emulator: PathBuf,
    /// This project's library, for the schemes xgvmi and arena.
    #[arg(long, value_name = "FILE")]
    plugin: PathBuf,
    /// Cost profile of the devices.
    #[arg(long, default_value = "bluefield3")]
    profile: String,
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
    /// Another processor for the DPUs, under its user-mode emulator.
    #[arg(long, value_name = "PROCESSOR:EMULATOR:LIBRARIES:PROGRAMS:LIBUCP")]
    dpu: Option<Foreign>,
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

/// Number of keys that the pool creates before the first transfer: one in use and one free.
const KEYS_AT_OPEN: &str = "2";

fn main() -> ExitCode {
    let done = match Cli::parse().job {
        Job::Process(args) => serve(&ProcessOptions {
            place: Place::new(args.role, args.side),
            ucx_library: args.ucx_library,
            spin: Duration::from_micros(args.spin_us),
            step_limit: Duration::from_secs(args.step_limit_s),
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
    println!("{}", table::head(DEMO));
    let report = orchestrate::run(&plan, |row| {
        println!("{}", table::line(DEMO, &serde_json::to_value(row)?)?);
        Ok(())
    })?;
    println!(
        "\n{} bytes verified at host B, none wrong; UCX {}, profile {}, link {}{}\nreports: {}/report.{{json,md,svg}}",
        report.verified_bytes,
        report.ucx_version,
        report.profile,
        report.link,
        match &plan.dpu {
            Some(foreign) => format!(
                "; DPUs {} in emulation, so times count emulated instructions",
                foreign.architecture
            ),
            None => String::new(),
        },
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
    let nodes = Cluster::new(&args.emulator, 2)?.with(["--profile", &args.profile]);
    let mut schemes: Vec<Scheme> = Vec::new();
    for keys in &args.schemes {
        for link in &args.links {
            let name = match args.links.as_slice() {
                [_] => keys.name().to_owned(),
                _ => format!("{}-{link}", keys.name()),
            };
            if schemes.iter().any(|scheme| scheme.name == name) {
                bail!("scheme '{name}' is given twice");
            }
            let device = nodes.named(&name).with(["--link", link]);
            let device = device.envs(keys.environment(&args.plugin));
            schemes.push(Scheme { name, device });
        }
    }
    Ok(Plan {
        schemes,
        cases: args
            .sizes
            .iter()
            .map(|size| Case::new(*size, effort, args.iterations))
            .collect(),
        profile: args.profile,
        link: args.links.join(","),
        ucx_library: args.ucx_library,
        dpu: args.dpu,
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
