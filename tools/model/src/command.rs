//! `xgvmi-model`: options and output.

use super::check::Check;
use super::config::{Assumptions, Config};
use super::costs::CostTable;
use super::fabrics::{FabricRow, bounded, fabrics, recorded};
use super::limits::limits;
use super::predict::Extent;
use super::report::Document;
use super::scheme::Scheme;
use super::software::{MeasuredCost, SoftwareCost, reduction_gb_s};
use super::sweep::{self, Variation};
use super::ucc::beside_ucc;
use anyhow::{Context as _, Result, bail, ensure};
use bench_report::{columns, files, parse_size};
use clap::{Args, ValueEnum};
use std::fs;
use std::io::{IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};

/// Predicts offloaded collectives with temporary buffers on any number of nodes: the schemes of an alltoallv, and with --limits
/// others beside stock UCC's.
#[derive(Debug, Args)]
pub struct ModelArgs {
    /// Number of nodes.
    #[arg(long, default_value_t = 32)]
    nodes: u32,
    /// Ranks per node.
    #[arg(long, default_value_t = 32)]
    ppn: u32,
    /// Service processes per node's DPU.
    #[arg(long, default_value_t = 4)]
    sps: u32,
    /// Block sizes in bytes.
    #[arg(long, value_delimiter = ',', value_parser = parse_size, default_value = "8K,16K,32K,64K,128K,256K,512K,1M")]
    sizes: Vec<usize>,
    /// Schemes: free, umem, ksm, umr, stock, xgvmi, or xgvmi without some features (xgvmi-announce-batch-chain)
    /// [default: all, and xgvmi without each feature].
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    schemes: Vec<Scheme>,
    /// Speed of each node's port, in Gb/s.
    #[arg(long, default_value_t = 400.0)]
    link_gbps: f64,
    /// One-way latency from adapter to adapter.
    #[arg(long, default_value_t = 600, value_name = "NS")]
    latency_ns: u64,
    /// Announced blocks per SP without an answer [default: those of xgvmi-sp's offers; with --sensitivity 4, as in the slides].
    #[arg(long, value_name = "N")]
    send_credits: Option<u32>,
    /// Outstanding RDMA READs per SP [default: that of xgvmi-sp; with --sensitivity 4, as in the slides].
    #[arg(long, value_name = "N")]
    receive_credits: Option<u32>,
    /// Commands that a function's firmware executes in parallel [default: unlimited].
    #[arg(long, value_name = "N")]
    command_lanes: Option<u32>,
    /// Measured cost of the SP's own code: the report of `cargo xtask bench service`. UCX's estimates are added for the
    /// requests that it posts [default: UCX's own estimates alone].
    #[arg(long, value_name = "SERVICE.json")]
    software: Option<PathBuf>,
    /// With --limits, also show an earlier SP whose own code took this many times as long.
    #[arg(long, requires = "software", value_name = "X")]
    software_earlier: Option<f64>,
    /// Factor by which the SP's cores are slower than those of the measurement. A DPU's cores are slower than a
    /// server's.
    #[arg(long, default_value_t = 1.0, value_name = "X")]
    software_factor: f64,
    /// Vectors that a server's core adds to others, in GB/s [default: measured in the report of --software, or else 10].
    #[arg(long, value_name = "X")]
    reduce_gb_s: Option<f64>,
    /// What the ranks of a node copy or reduce together, in GB/s [the default is three quarters of eight channels of DDR4-3200].
    #[arg(long, default_value_t = 150.0, value_name = "X")]
    memory_gb_s: f64,
    /// Show the block size up to which the SP limits the rate instead of the link: on 2 to 128 nodes with 1 and 4 SPs,
    /// with cores as fast as a server's and four times slower. Also show collectives beside stock UCC's on the hosts.
    #[arg(long)]
    limits: bool,
    /// Also predict these block sizes on a fat tree in the packet-level lab, without and with control of congestion: each block
    /// crosses switches with queues in place of a fabric that never blocks.
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = parse_size)]
    fabric: Vec<usize>,
    /// Most packets of a run with --fabric, of which there are nine: fewer ranks per node are simulated if all have more, and
    /// their number is in the table. A million of packets takes about 5 seconds per run and core.
    #[arg(long, value_name = "N", default_value_t = 2_500_000)]
    fabric_packets: u64,
    /// Also replay recorded traffic on that fat tree: a file of `bench alltoallv -- --record`.
    #[arg(long, value_name = "FILE")]
    fabric_trace: Option<PathBuf>,
    /// Times of the recorded traffic are divided by this.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    fabric_faster: u64,
    /// Largest delay with which a rank enters a call after the first rank.
    #[arg(long, default_value_t = 0, value_name = "NS")]
    skew_ns: u64,
    /// Random seed of the skew.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Calls after the first. The result is their mean.
    #[arg(long, default_value_t = 1, value_name = "N")]
    iterations: u32,
    /// Cost table to use instead of the published one: approach,step,ns_SIZE,...
    #[arg(long, value_name = "FILE")]
    costs: Option<PathBuf>,
    /// Extent of the simulation: one node that represents all, every node, or a ring of 64 nodes or 2,048 ranks plus the cost
    /// of each additional node.
    #[arg(long, value_enum, default_value_t = ExtentName::Ring)]
    extent: ExtentName,
    /// Predict the whole grid, 2 to 16,384 nodes and 1 to 16 SPs, instead of one machine.
    #[arg(long)]
    sweep: bool,
    /// Compare with a measured run: an alltoallv.json with the same nodes, ranks and SPs. The only output
    /// format is json.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["sweep", "sensitivity"])]
    check: Option<PathBuf>,
    /// Show the effect of each input on the slides' two results.
    #[arg(long)]
    sensitivity: bool,
    /// Also write the result to a file. The suffix json, csv or svg selects the format. Repeatable.
    #[arg(short, long, value_name = "FILE")]
    output: Vec<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ExtentName {
    OneNode,
    Full,
    Ring,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Json,
    Csv,
    Svg,
}

/// Runs the predictions and returns the text to print.
///
/// # Errors
/// An option out of range, an invalid cost table, a file that cannot be read or written.
pub fn run(args: &ModelArgs) -> Result<String> {
    // Checked first, because the predictions may take minutes.
    let formats: Vec<Format> = args
        .output
        .iter()
        .map(|file| format_of(file))
        .collect::<Result<_>>()?;
    let table = match &args.costs {
        Some(file) => CostTable::parse(&read(file, super::costs::FILE_BYTES_MAX)?)
            .with_context(|| format!("reading {}", file.display()))?,
        None => CostTable::slides()?,
    };
    let base = base(args)?;
    if let Some(file) = &args.check {
        let measured =
            fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        let check = Check::of(&measured, &base, &table)
            .with_context(|| format!("comparing with {}", file.display()))?;
        for (output, format) in args.output.iter().zip(formats) {
            if format != Format::Json {
                bail!("{}: a comparison is written as json", output.display());
            }
            save(output, &files::json(&check, columns::CHECK)?)?;
        }
        let text = check.text()?;
        check.judge().with_context(|| format!("{text}\n"))?;
        return Ok(text);
    }
    let (machines, extent) = if args.sweep {
        (sweep::grid(), Extent::SWEEP)
    } else {
        (machines(args, &base)?, extent(args.extent))
    };
    let schemes = if !args.schemes.is_empty() {
        args.schemes.clone()
    } else if args.sweep {
        sweep::schemes()
    } else {
        [Scheme::TABLE.as_slice(), &Scheme::FEATURES].concat()
    };
    let shown = args.sweep && std::io::stderr().is_terminal();
    let points = sweep::points(&machines, &schemes, &table, extent, |done, all| {
        if shown {
            eprint!("\r{done} of {all} machines");
        }
    })?;
    if shown {
        eprintln!();
    }
    let variations = match args.sensitivity || args.sweep {
        true => study(args, &base, &table)?,
        false => Vec::new(),
    };
    let costs = args.costs.as_ref().map_or_else(
        || "slides, \"Cross-GVMI UMR Mkey Pool\", UCF 2023".to_owned(),
        |file| file.display().to_string(),
    );
    let mut document = Document::new(costs, &points, &variations);
    if args.limits {
        let earlier = args.software_earlier;
        let in_range = earlier.is_none_or(|factor| (0.0..=1000.0).contains(&factor));
        ensure!(in_range, "--software-earlier is between 0 and 1000");
        document.limits = limits(&base, base.assumptions.software, earlier)?;
        (document.beside_ucc, document.crossings) = beside_ucc(&base, &table)?;
    }
    for size in &args.fabric {
        let block_bytes = u64::try_from(*size)?;
        let machine = Config {
            block_bytes,
            ..base.clone()
        };
        let most = args.fabric_packets;
        let machine = bounded(&machine, most).with_context(|| {
            format!("one rank per node has more than {most} packets; raise --fabric-packets")
        })?;
        if machine.ppn < base.ppn {
            eprintln!(
                "note: {} of {} ranks per node on the fat tree, for at most {most} packets per run (--fabric-packets)",
                machine.ppn, base.ppn
            );
        }
        let told = |fabric: &str| eprintln!("{size} bytes per block, {fabric}: done");
        document.fabrics.extend(fabrics(&machine, &table, told)?);
    }
    if let Some(file) = &args.fabric_trace {
        document.fabrics.extend(replayed(args, &base, file)?);
    }
    for (file, format) in args.output.iter().zip(formats) {
        write(file, format, &document)?;
    }
    document.text()
}

/// The slides' two results with each input changed: with their credits, and UCX's estimates. The measured cost of an SP is one
/// more change.
fn study(args: &ModelArgs, base: &Config, table: &CostTable) -> Result<Vec<Variation>> {
    let slides = Config::slides(1, Scheme::Ksm);
    let base = Config {
        send_credits: args.send_credits.unwrap_or(slides.send_credits),
        receive_credits: args.receive_credits.unwrap_or(slides.receive_credits),
        ..base.clone()
    };
    let mut estimated = base.clone();
    estimated.assumptions.software = SoftwareCost::Ucx;
    let mut variations = sweep::sensitivity(&estimated, table)?;
    if base != estimated {
        let what = "SP software as measured";
        variations.push(sweep::variation(what, &base, table, |_| {})?);
    }
    Ok(variations)
}

/// Rows of recorded traffic.
fn replayed(args: &ModelArgs, base: &Config, file: &Path) -> Result<Vec<FabricRow>> {
    let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    let mut rows = pcc_lab::scenario::parse_rows(&text)
        .with_context(|| format!("reading {}", file.display()))?;
    for row in &mut rows {
        row.0 /= args.fabric_faster;
    }
    let nodes = rows.iter().map(|row| row.1.max(row.2) + 1).max();
    let machine = Config {
        nodes: nodes.unwrap_or(base.nodes).max(2),
        ..base.clone()
    };
    Ok(recorded(&machine, &rows)?)
}

fn base(args: &ModelArgs) -> Result<Config> {
    let (software, measured) = match &args.software {
        Some(file) => {
            let text = read(file, super::software::FILE_BYTES_MAX)?;
            let reading = || format!("reading {}", file.display());
            let cost = MeasuredCost::parse(&text).with_context(reading)?;
            let rate = reduction_gb_s(&text).with_context(reading)?;
            (SoftwareCost::Measured(cost), rate)
        }
        None => (SoftwareCost::Ucx, None),
    };
    let assumed = Assumptions::default();
    let machine = Config {
        nodes: args.nodes,
        ppn: args.ppn,
        sps: args.sps,
        link_gbps: args.link_gbps,
        latency_ns: args.latency_ns,
        skew_ns: args.skew_ns,
        seed: args.seed,
        iterations: args.iterations,
        assumptions: Assumptions {
            command_lanes: args.command_lanes,
            software,
            software_factor: args.software_factor,
            reduce_gb_s: args.reduce_gb_s.or(measured).unwrap_or(assumed.reduce_gb_s),
            memory_gb_s: args.memory_gb_s,
            ..assumed
        },
        ..Config::slides(1, Scheme::Ksm)
    };
    let own = machine.clone().with_own_credits();
    Ok(Config {
        send_credits: args.send_credits.unwrap_or(own.send_credits),
        receive_credits: args.receive_credits.unwrap_or(own.receive_credits),
        ..machine
    })
}

fn machines(args: &ModelArgs, base: &Config) -> Result<Vec<Config>> {
    args.sizes
        .iter()
        .map(|size| {
            Ok(Config {
                block_bytes: u64::try_from(*size)?,
                ..base.clone()
            })
        })
        .collect()
}

fn extent(name: ExtentName) -> Extent {
    match name {
        ExtentName::OneNode => Extent::OneNode,
        ExtentName::Full => Extent::Full,
        ExtentName::Ring => Extent::SWEEP,
    }
}

fn format_of(file: &Path) -> Result<Format> {
    match file.extension().and_then(|suffix| suffix.to_str()) {
        Some("json") => Ok(Format::Json),
        Some("csv") => Ok(Format::Csv),
        Some("svg") => Ok(Format::Svg),
        _ => bail!("{}: the suffix must be json, csv or svg", file.display()),
    }
}

/// At most one byte more than `bytes_max`: the rest is not needed to refuse it.
fn read(file: &Path, bytes_max: usize) -> Result<String> {
    let mut text = String::new();
    let opened = fs::File::open(file).with_context(|| format!("opening {}", file.display()))?;
    opened
        .take(bytes_max as u64 + 1)
        .read_to_string(&mut text)
        .with_context(|| format!("reading {}", file.display()))?;
    Ok(text)
}

fn write(file: &Path, format: Format, document: &Document) -> Result<()> {
    let text = match format {
        Format::Json => files::json(document, columns::MODEL)?,
        Format::Csv => document.csv(),
        Format::Svg => super::plot::render(document)?,
    };
    save(file, &text)
}

fn save(file: &Path, text: &str) -> Result<()> {
    if let Some(directory) = file.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
    }
    fs::write(file, text).with_context(|| format!("writing {}", file.display()))
}
