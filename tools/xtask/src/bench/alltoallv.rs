//! `cargo xtask bench alltoallv`: measures the offloaded alltoallv with temporary buffers, with the schemes in
//! rotation, and writes `target/bench/alltoallv.json` and `.svg`.
//!
//! The bench uses two emulated nodes, each with four ranks on its host and two service processes on its DPU. Each run
//! of a scheme at a size is a separate job, so its first iteration is a cold one. The service processes of a scheme
//! keep running.

mod record;

use super::cluster;
use crate::process::{self, Running, shown};
use crate::setup::mpi::{self, Mpi};
use crate::setup::{self, Env};
use crate::workspace;
use anyhow::{Context, Result, bail, ensure};
use lexopt::prelude::{Long, Short, ValueExt as _};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;
use testbed::cluster::Cluster;

const HELP: &str = "\
Usage: cargo xtask bench alltoallv [-- OPTIONS]

  --quick           three sizes, one run of each
  --sizes LIST      bytes to each rank [default: 1024 to 262144, doubling]
  --runs N          runs of each scheme at each size; figures are their median [default: 3]
  --iterations N    timed iterations per run [default: 40]
  --schemes LIST    ksm, stock, xgvmi, xgvmi+batched, which is xgvmi with
                    UCX_XGVMI_INVALIDATE=batched, and xgvmi+affinity, which is
                    xgvmi with UCX_XGVMI_POOL_ORDER=affinity [default: the first four]
  --record FILE     measure nothing, and write the reads of three calls on four
                    nodes as a trace for pcc-lab --replay";

/// The emulator's cost profile: the slides' times of the commands.
const PROFILE: &str = "bluefield3";
const NODES: u32 = 2;
const RANKS_PER_NODE: &str = "4";
const SERVICES_PER_NODE: usize = 2;
/// The same machine, as options of the scale model.
pub(super) const MACHINE: [&str; 6] = ["--nodes", "2", "--ppn", RANKS_PER_NODE, "--sps", "2"];
const _: () = assert!(NODES == 2 && SERVICES_PER_NODE == 2);
/// UCX registers each buffer twice on some processors and once on others. This setting selects one registration, as in
/// the table that the profile is based on.
const ONE_REGISTRATION: (&str, &str) = ("UCX_IB_PCI_RELAXED_ORDERING", "n");
/// Iterations that are not timed: caches fill, and processes that started at different times fall into step.
const WARM_UP: &str = "34";
/// Time limit of one job: eight processes start on two cores, and iterations take milliseconds.
const JOB_LIMIT: Duration = Duration::from_secs(120);
/// Time limit for the start of a service process.
const SERVICE_LIMIT: Duration = Duration::from_secs(30);
/// Sizes of the overlap measurement: large enough to overlap a transfer with computation.
const OVERLAP_SIZES: &str = "65536:1048576";
/// A measured variant: a scheme of the programs, with or without options of the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Variant {
    /// Name in the report.
    name: &'static str,
    /// Name that the programs use.
    scheme: &'static str,
    environment: &'static [(&'static str, &'static str)],
}

impl Variant {
    const ALL: [Self; 5] = [
        Self::plain("ksm"),
        Self::plain("stock"),
        Self::plain("xgvmi"),
        Self {
            name: "xgvmi+batched",
            scheme: "xgvmi",
            environment: &[("UCX_XGVMI_INVALIDATE", "batched")],
        },
        Self {
            name: "xgvmi+affinity",
            scheme: "xgvmi",
            environment: &[("UCX_XGVMI_POOL_ORDER", "affinity")],
        },
    ];
    /// Number of the variants that are measured by default.
    const USUAL: usize = 4;

    const fn plain(scheme: &'static str) -> Self {
        Self {
            name: scheme,
            scheme,
            environment: &[],
        }
    }

    fn named(text: &str) -> Result<Self> {
        let known = Self::ALL.into_iter().find(|known| known.name == text);
        known.with_context(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|known| known.name).collect();
            format!("no scheme '{text}'; there are {}", names.join(", "))
        })
    }

    /// Replaces the scheme's name in the programs' report `file` by this variant's name.
    fn label(self, file: &Path) -> Result<()> {
        if self.name == self.scheme {
            return Ok(());
        }
        let read = || format!("cannot read {}", file.display());
        let text = fs::read(file).with_context(read)?;
        let mut report: Value = serde_json::from_slice(&text).with_context(read)?;
        report["scheme"] = self.name.into();
        for row in report["rows"].as_array_mut().into_iter().flatten() {
            row["scheme"] = self.name.into();
        }
        fs::write(file, report.to_string())
            .with_context(|| format!("cannot write {}", file.display()))
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Options {
    sizes: Vec<usize>,
    runs: usize,
    iterations: usize,
    schemes: Vec<Variant>,
    record: Option<PathBuf>,
}

impl Options {
    /// `None` for a help request.
    fn parse(arguments: &[String]) -> Result<Option<Self>> {
        let mut options = Self {
            sizes: (10..=18).map(|power| 1 << power).collect(),
            runs: 3,
            iterations: 40,
            schemes: Variant::ALL[..Variant::USUAL].to_vec(),
            record: None,
        };
        let mut parser = lexopt::Parser::from_args(arguments);
        while let Some(argument) = parser.next()? {
            match argument {
                Long("quick") => {
                    options.sizes = vec![1 << 10, 16 << 10, 256 << 10];
                    options.runs = 1;
                }
                Long("sizes") => options.sizes = list(&parser.value()?.string()?, sizes)?,
                Long("runs") => options.runs = parser.value()?.parse()?,
                Long("iterations") => options.iterations = parser.value()?.parse()?,
                Long("schemes") => {
                    options.schemes = list(&parser.value()?.string()?, Variant::named)?
                }
                Long("record") => options.record = Some(parser.value()?.into()),
                Short('h') | Long("help") => return Ok(None),
                other => bail!(
                    "{}; try: cargo xtask bench alltoallv -- --help",
                    other.unexpected()
                ),
            }
        }
        ensure!(
            (1..=100).contains(&options.runs) && (1..=100_000).contains(&options.iterations),
            "1 to 100 runs of 1 to 100000 iterations"
        );
        Ok(Some(options))
    }
}

fn list<T>(text: &str, one: impl Fn(&str) -> Result<T>) -> Result<Vec<T>> {
    text.split(',').map(one).collect()
}

fn sizes(text: &str) -> Result<usize> {
    let size = text.parse().with_context(|| format!("size '{text}'"))?;
    ensure!(
        (1..=1 << 26).contains(&size),
        "size {size} is not from 1 to 64 MiB"
    );
    Ok(size)
}

/// Measures, writes `file` and the plot next to it, and prints the table.
pub(super) fn run(arguments: &[String], file: &Path) -> Result<ExitCode> {
    let Some(options) = Options::parse(arguments)? else {
        println!("{HELP}");
        return Ok(ExitCode::SUCCESS);
    };
    let env = setup::ensure()?;
    let place = file.parent().context("the report has a directory")?;
    let parts = place.join("alltoallv");
    // Results of an earlier run must not be reported for this run.
    let _ = fs::remove_file(file);
    let _ = fs::remove_dir_all(&parts);
    fs::create_dir_all(&parts).with_context(|| format!("cannot create {}", parts.display()))?;
    build()?;
    let mpi = mpi::wheel(&env);
    let library = mpi.library()?;
    let nodes = if options.record.is_some() {
        record::MACHINE.nodes
    } else {
        USUAL.nodes
    };
    let device = cluster(nodes)?.with(["--profile", PROFILE]);
    let site = Site {
        env: &env,
        mpi: &mpi,
        library: &library,
        device: &device,
        machine: USUAL,
    };
    if let Some(file) = &options.record {
        return record::run(&site, &parts, file).map(|()| ExitCode::SUCCESS);
    }
    let services = options
        .schemes
        .iter()
        .map(|variant| site.start(*variant))
        .collect::<Result<Vec<Services>>>()?;
    let mut runs = Vec::new();
    for (at, size) in options.sizes.iter().enumerate() {
        for round in 0..options.runs {
            // Each scheme starts the rotation once.
            for index in 0..services.len() {
                let services = &services[(index + round + at) % services.len()];
                let output = parts.join(format!("{}-{size}-{round}.json", services.variant.name));
                let shape = format!(
                    "-m {size}:{size} -i {} -x {WARM_UP} --temp-buffers mmap",
                    options.iterations
                );
                site.job(services, "osu_alltoallv", &shape, &output)?;
                eprint!(".");
                runs.push(output);
            }
        }
    }
    for services in &services {
        let output = parts.join(format!("{}-overlap.json", services.variant.name));
        let shape = format!(
            "-m {OVERLAP_SIZES} -i {} -x {WARM_UP} --temp-buffers mmap --compute sleep",
            options.iterations
        );
        site.job(services, "osu_ialltoallv", &shape, &output)?;
        runs.push(output);
    }
    eprintln!();
    let mut report = Command::new(workspace::built("osu_report"));
    report.arg("--json").arg(file);
    report.arg("--plot").arg(file.with_extension("svg"));
    print!("{}", process::stdout(report.args(&runs), JOB_LIMIT)?);
    println!(
        "\nprofile {PROFILE}, UCX {}\nwritten: {}, {}",
        env.ucx_version,
        file.display(),
        file.with_extension("svg").display()
    );
    Ok(ExitCode::SUCCESS)
}

/// Nodes, and what each of them runs.
#[derive(Debug, Clone, Copy)]
struct Machine {
    nodes: u32,
    ranks: &'static str,
    services: usize,
}

const USUAL: Machine = Machine {
    nodes: NODES,
    ranks: RANKS_PER_NODE,
    services: SERVICES_PER_NODE,
};

/// Environment of all processes of the bench.
#[derive(Clone, Copy)]
struct Site<'a> {
    env: &'a Env,
    mpi: &'a Mpi,
    library: &'a Path,
    device: &'a Cluster,
    machine: Machine,
}

/// The service processes of a scheme. Dropping this value ends them.
struct Services {
    variant: Variant,
    /// Addresses per node, in the form of `--sp`.
    addresses: Vec<String>,
    running: Vec<Running>,
}

impl Site<'_> {
    /// Command for `program` on one function of a scheme's device.
    fn place(&self, variant: Variant, function: &str, program: &str) -> Command {
        self.device(variant)
            .command(function, workspace::built(program))
    }

    /// Each scheme has its own device, so its counters are separate.
    fn device(&self, variant: Variant) -> Cluster {
        self.device.named(variant.name)
    }

    fn start(&self, variant: Variant) -> Result<Services> {
        let (mut addresses, mut running) = (Vec::new(), Vec::new());
        for node in 0..self.machine.nodes {
            let mut of_node = Vec::new();
            for _ in 0..self.machine.services {
                let mut command = self.place(variant, &format!("node{node}.dpu"), "xgvmi-sp");
                command.args(["--listen", "127.0.0.1:0"]);
                command.envs(self.env.for_ucx());
                command.env("UCX_TLS", "rc_x,self");
                command.env("UCX_NET_DEVICES", "mlx5_0:1");
                command.env(ONE_REGISTRATION.0, ONE_REGISTRATION.1);
                command.envs(variant.environment.iter().copied());
                if variant.scheme == "xgvmi" {
                    command.env("LD_PRELOAD", workspace::built("libuct_ib_mlx5_xgvmi.so"));
                }
                let is_up = |service: &Running| listening(&service.said()).is_some();
                let service = Running::up(&mut command, SERVICE_LIMIT, is_up)?;
                of_node.extend(listening(&service.said()));
                running.push(service);
            }
            addresses.push(of_node.join(","));
        }
        Ok(Services {
            variant,
            addresses,
            running,
        })
    }

    /// Runs a program once on all ranks.
    fn job(&self, services: &Services, program: &str, shape: &str, output: &Path) -> Result<()> {
        // `bf-emu run` becomes the service process.
        let pids = services.running.iter();
        let pids: Vec<String> = pids.map(|service| service.group.id().to_string()).collect();
        let (launcher, options) = self.mpi.launcher.split_first().context("no launcher")?;
        let mut command = Command::new(launcher);
        command.args(options);
        for (node, address) in services.addresses.iter().enumerate() {
            if node > 0 {
                command.arg(":");
            }
            let placed = self.place(services.variant, &format!("node{node}.host"), program);
            command.args(["-np", self.machine.ranks]);
            command.arg(placed.get_program()).args(placed.get_args());
            command.args(["--backend", "offload", "--scheme", services.variant.scheme]);
            command.args(["--sp", address, "--node", &format!("node{node}")]);
            // There are more ranks than cores: a waiting rank must not use the core of a working rank.
            command.args(["--barrier", "sleep"]);
            command.args(shape.split_whitespace());
            command.arg("--json").arg(output);
            command.args(["--service-pids", &pids.join(",")]);
            let counters = self.device(services.variant).stats_words();
            command.arg("--counters").args(counters).arg(";");
        }
        command.envs(
            self.mpi
                .environment
                .iter()
                .map(|(name, value)| (name, value)),
        );
        command.env("OSU_MPI_LIBRARY", self.library);
        command.env(ONE_REGISTRATION.0, ONE_REGISTRATION.1);
        command.envs(services.variant.environment.iter().copied());
        // MPI must not use the device, because its commands are counted.
        command.env("OMPI_MCA_pml", "ob1");
        command.env("OMPI_MCA_btl", "self,sm");
        command.env_remove("OMPI_MCA_osc");
        let done = process::run(&mut command, JOB_LIMIT)?;
        ensure!(
            done.ok(),
            "`{}`: {}\n{}",
            shown(&command),
            done.verdict(),
            done.output
        );
        services.variant.label(output)
    }
}

/// Parses the address in `xgvmi-sp ... listens on ADDRESS, ...`.
fn listening(output: &str) -> Option<String> {
    let (_, rest) = output.split_once(" listens on ")?;
    let (address, _) = rest.split_once(',')?;
    Some(address.to_owned())
}

fn build() -> Result<()> {
    workspace::build(&[
        "-p bf-emu -p bf-emu-preload -p uct-plugin -p xgvmi-offload -p osu-bench -p osu-mpi",
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Option<Options>> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Options::parse(&words)
    }

    #[test]
    fn options_are_read() {
        let options = parse("").unwrap().unwrap();
        assert_eq!((options.sizes.len(), options.runs), (9, 3));
        let options = parse("--quick --schemes xgvmi,ksm --iterations 5")
            .unwrap()
            .unwrap();
        assert_eq!(options.sizes, [1024, 16384, 262_144]);
        let names: Vec<&str> = options.schemes.iter().map(|scheme| scheme.name).collect();
        assert_eq!(names, ["xgvmi", "ksm"]);
        assert_eq!((options.runs, options.iterations), (1, 5));
        assert!(parse("--help").unwrap().is_none());
        for bad in [
            "--sizes 0",
            "--sizes 1,x",
            "--runs 0",
            "--schemes umem",
            "--fast",
            "now",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_report_gets_the_name_of_what_was_measured() {
        let file = std::env::temp_dir().join(format!("xgvmi-label-{}.json", std::process::id()));
        for (name, expect) in [("xgvmi", "xgvmi"), ("xgvmi+batched", "xgvmi+batched")] {
            fs::write(&file, r#"{"scheme":"xgvmi","rows":[{"scheme":"xgvmi"}]}"#).unwrap();
            Variant::named(name).unwrap().label(&file).unwrap();
            let report: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
            assert_eq!(report["scheme"], expect);
            assert_eq!(report["rows"][0]["scheme"], expect);
        }
        fs::remove_file(&file).unwrap();
    }

    #[test]
    fn the_address_is_read_once_it_is_whole() {
        let check = |text, expect: Option<&str>| {
            assert_eq!(listening(text).as_deref(), expect, "{text}");
        };
        check(
            "xgvmi-sp 0.1.0 listens on 127.0.0.1:7700, UCX 1.20.1\n",
            Some("127.0.0.1:7700"),
        );
        check("xgvmi-sp 0.1.0 listens on 127.0.0", None);
        check("", None);
    }
}
