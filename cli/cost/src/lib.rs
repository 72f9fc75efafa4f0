//! `cost_table`: the duration of each step in the life of a cross-function key, for four approaches, next to the
//! published times.
//!
//! | approach | work of the host for each buffer |
//! |---|---|
//! | `umem` | register a DEVX umem, create a direct key on it |
//! | `indirection` | register with verbs, create a KSM key on it (UCX without a pool) |
//! | `umr` | register with verbs, create a key, bind it with a work request |
//! | `umr_pool_hit` | register with verbs, bind a key of the pool |
//!
//! The first three approaches end on the DPU, which creates and destroys an alias of the key. The DPU's function is on
//! this machine (`--dpu mlx5_1`) or on another one (`--dpu HOST:PORT`, where `cost_table --serve` listens).
//!
//! ```
//! use cost_table::Document;
//!
//! /// Total time of one approach at one size, in microseconds.
//! fn total_us(report: &Document, approach: &str, size: usize) -> f64 {
//!     let rows = report.rows.iter().filter(|row| row.approach == approach && row.size == size);
//!     rows.map(|row| row.measured_ns / 1e3).sum()
//! }
//! ```

mod measure;
mod peer;
mod plot;
mod report;
mod step;

pub use peer::{AliasTimes, Dpu, serve};
pub use report::{Document, Row};
pub use step::{Approach, Step};

use anyhow::{Context as _, Result, bail, ensure};
use bench_report::{columns, files, parse_size};
use clap::Args;
use measure::Bench;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use xgvmi_pool::mlx5::{Function, Mlx5Lib};

/// Maximum size of a report that is read back.
const OWN_BYTES_MAX: u64 = 4 << 20;
/// Maximum buffer size. It catches a wrong suffix.
const SIZE_MAX: usize = 1 << 40;
/// Maximum number of repetitions: a thousand of the slowest step take minutes.
const REPEATS_MAX: u32 = 1000;

/// Measures the cost of cross-function keys on a device.
#[derive(Debug, Args)]
pub struct CostArgs {
    /// The host's function, an mlx5 device of this machine [default: the first one].
    #[arg(long, value_name = "DEVICE")]
    host: Option<String>,
    /// The DPU's function: a device of this machine, or HOST:PORT of `cost_table --serve` on the DPU. Without
    /// it, no aliases are measured.
    #[arg(long, value_name = "DEVICE|HOST:PORT")]
    dpu: Option<String>,
    /// Buffer sizes.
    #[arg(long, value_delimiter = ',', value_parser = parse_size, default_value = "16K,1M,64M,1G")]
    sizes: Vec<usize>,
    /// Approaches: umem, indirection, umr, umr_pool_hit [default: all].
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    approaches: Vec<Approach>,
    /// Repetitions of each step. The result is the median.
    #[arg(long, default_value_t = 20, value_name = "N")]
    repeats: u32,
    /// A report (json) with the own time of programs and system for each step, measured with zero device time.
    /// The output shows it in a separate column. `cargo xtask bench cost` creates one.
    #[arg(long, value_name = "FILE")]
    own: Option<PathBuf>,
    /// A report (json) of an earlier run with the same options. The result of each row is the better median of
    /// all runs. Use it on busy machines. Repeatable.
    #[arg(long, value_name = "FILE")]
    best_of: Vec<PathBuf>,
    /// Also write the result to a file. The suffix json, csv, txt or svg selects the format. Repeatable.
    #[arg(short, long, value_name = "FILE")]
    output: Vec<PathBuf>,
    /// Serve aliases of this machine's function (--host) to a `cost_table` on another machine, until its
    /// connection ends.
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with_all = ["dpu", "own", "best_of", "output"])]
    serve: Option<String>,
}

/// Runs the measurement and returns the text to print.
///
/// # Errors
/// An option out of range, a device that is absent or refuses, a file that cannot be read or written.
pub fn run(args: &CostArgs) -> Result<String> {
    // Checked first, because the measurement may take minutes.
    let formats: Vec<Format> = args
        .output
        .iter()
        .map(|file| format_of(file))
        .collect::<Result<_>>()?;
    ensure!(
        (1..=REPEATS_MAX).contains(&args.repeats),
        "--repeats {} is not within 1 to {REPEATS_MAX}",
        args.repeats
    );
    if let Some(size) = args.sizes.iter().find(|size| **size > SIZE_MAX) {
        bail!("size {size} is above {SIZE_MAX} bytes (1 TiB)");
    }
    let own = args.own.as_deref().map(read_report).transpose()?;
    let earlier: Vec<Document> = args
        .best_of
        .iter()
        .map(|file| read_report(file))
        .collect::<Result<_>>()?;
    let lib = Arc::new(Mlx5Lib::open().context("rdma-core is needed (libmlx5.so.1)")?);
    let host = Function::open(&lib, args.host.as_deref())?;
    if let Some(address) = &args.serve {
        return serve(&host, address);
    }
    let elsewhere = args.dpu.as_ref().is_some_and(|dpu| dpu.contains(':'));
    let function = match &args.dpu {
        Some(name) if !elsewhere => Some(Function::open(&lib, Some(name))?),
        _ => None,
    };
    let dpu = match (&function, &args.dpu) {
        (Some(function), _) => Some(Dpu::local(function)?),
        (None, Some(address)) => Some(Dpu::connect(address)?),
        (None, None) => None,
    };
    let approaches = match args.approaches.as_slice() {
        [] => Approach::ALL.as_slice(),
        some => some,
    };
    let mut document = measure(&host, dpu, (approaches, &args.sizes, args.repeats))?;
    document.dpu.clone_from(&args.dpu);
    for earlier in &earlier {
        document.keep_the_best(earlier)?;
    }
    if let Some(own) = own {
        document.set_apart(&own)?;
    }
    for (file, format) in args.output.iter().zip(formats) {
        let text = match format {
            Format::Json => files::json(&document, columns::COST)?,
            Format::Csv => document.csv(),
            Format::Text => document.text()?,
            Format::Svg => plot::render(&document)?,
        };
        fs::write(file, text).with_context(|| format!("writing {}", file.display()))?;
    }
    document.text()
}

/// Measures the steps of `approaches` at `sizes` in bytes, `repeats` times each, on `host` and, where there is one, `dpu`.
///
/// # Errors
/// A function that refuses a step, named with its approach and size.
pub fn measure<'f>(
    host: &'f Function,
    dpu: Option<Dpu<'f>>,
    (approaches, sizes, repeats): (&[Approach], &[usize], u32),
) -> Result<Document> {
    let mut bench = Bench::new(host, dpu, repeats)?;
    let mut document = Document::new(host.name(), None);
    for approach in approaches {
        for size in sizes {
            let times = bench
                .measure(*approach, *size)
                .with_context(|| format!("{} at {size} bytes", approach.name()))?;
            document.add(*approach, *size, &times);
        }
    }
    Ok(document)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Json,
    Csv,
    Text,
    Svg,
}

fn format_of(file: &Path) -> Result<Format> {
    match file.extension().and_then(|suffix| suffix.to_str()) {
        Some("json") => Ok(Format::Json),
        Some("csv") => Ok(Format::Csv),
        Some("txt") => Ok(Format::Text),
        Some("svg") => Ok(Format::Svg),
        _ => bail!(
            "{}: the suffix must be json, csv, txt or svg",
            file.display()
        ),
    }
}

fn read_report(file: &Path) -> Result<Document> {
    let shown = || format!("reading {}", file.display());
    let bytes = fs::metadata(file).with_context(shown)?.len();
    ensure!(
        bytes <= OWN_BYTES_MAX,
        "{} has {bytes} bytes; a report has at most {OWN_BYTES_MAX}",
        file.display()
    );
    let text = fs::read_to_string(file).with_context(shown)?;
    serde_json::from_str(&text).with_context(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_suffix_decides() {
        let check = |file: &str, expect: Option<Format>| {
            assert_eq!(format_of(Path::new(file)).ok(), expect, "{file}");
        };
        check("a.json", Some(Format::Json));
        check("a.csv", Some(Format::Csv));
        check("a.txt", Some(Format::Text));
        check("dir.svg/a.svg", Some(Format::Svg));
        check("a", None);
        check("json", None);
        check("a.jpeg", None);
    }
}
