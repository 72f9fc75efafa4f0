//! The report: sizes, rows, table, plot.

use super::done::Done;
use super::plot::{self, Curve};
use anyhow::{Context as _, Result};
use bench_report::columns::VOLUME;
use bench_report::counters::CommandsPerIteration;
use bench_report::{Samples, files, format_size, scheme_title, table};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;

/// Ways to the client's memory.
pub(crate) const SCHEMES: [&str; 5] = ["copy", "ksm", "stock", "xgvmi", "announced"];

/// Bytes of the written data.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Bytes {
    /// By the client.
    pub(crate) written: u64,
    /// To the targets, parity included.
    pub(crate) moved: u64,
    /// On the targets, headers included.
    pub(crate) stored: u64,
    /// What the reference's format would store.
    pub(crate) reference: u64,
}

/// Processor seconds of the client per GiB that it writes and reads.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Processor {
    /// With the service on the DPU.
    pub(crate) offloaded: f64,
    /// With the whole pipeline in the client.
    pub(crate) host: f64,
}

/// Times of single transfers in nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct Times {
    pub(crate) both: Vec<u64>,
    pub(crate) write: Vec<u64>,
    pub(crate) read: Vec<u64>,
    /// Medians of each turn, in microseconds.
    pub(crate) rounds: Vec<f64>,
}

/// Percentiles in microseconds.
#[derive(Debug, Serialize)]
pub(crate) struct Microseconds {
    p50: f64,
    p99: f64,
}

/// One size of one scheme.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    scheme: &'static str,
    size: usize,
    /// Mean of a write and a read.
    us: Microseconds,
    /// Median of the writes, and of the reads.
    write_us: f64,
    read_us: f64,
    /// Median over the rounds of its turn's median over that of `stock`: load of the machine concerns whole rounds.
    of_stock: f64,
    /// Sum of the commands for keys and aliases.
    key_commands: f64,
    commands_per_io: CommandsPerIteration,
}

impl Row {
    pub(crate) fn new(
        scheme: &'static str,
        size: usize,
        (times, stock): (&Times, &[f64]),
        commands_per_io: CommandsPerIteration,
    ) -> Result<Self> {
        Ok(Self {
            scheme,
            size,
            us: Microseconds {
                p50: percentile(&times.both, 50)?,
                p99: percentile(&times.both, 99)?,
            },
            write_us: percentile(&times.write, 50)?,
            read_us: percentile(&times.read, 50)?,
            of_stock: ratio(&times.rounds, stock)?,
            key_commands: commands_per_io.key_commands(),
            commands_per_io,
        })
    }
}

/// Median of the ratios of pairs.
fn ratio(of: &[f64], over: &[f64]) -> Result<f64> {
    let mut ratios: Vec<f64> = of.iter().zip(over).map(|(of, over)| of / over).collect();
    ratios.sort_by(f64::total_cmp);
    let middle = ratios.get(ratios.len() / 2).context("no rounds")?;
    Ok(*middle)
}

/// Sizes from which on a scheme is faster than the copy.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Crossover {
    ksm: Option<usize>,
    stock: Option<usize>,
    xgvmi: Option<usize>,
    announced: Option<usize>,
}

/// What a volume of another layout has survived.
#[derive(Debug, Serialize)]
pub(crate) struct LayoutRow {
    pub(crate) layout: &'static str,
    pub(crate) written: u64,
    /// Targets, two at a time.
    pub(crate) killed: usize,
    pub(crate) replaced: usize,
    /// Parts that the new targets were given.
    pub(crate) rebuilt_halves: u64,
    pub(crate) verified_bytes: u64,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    profile: String,
    pub(crate) verified_bytes: u64,
    pub(crate) mismatches: u64,
    /// Blocks that the killed target lacked.
    pub(crate) rebuilt: u64,
    pub(crate) bytes: Bytes,
    pub(crate) layouts: Vec<LayoutRow>,
    pub(crate) host_cpu_s_per_gib: Processor,
    /// From this size on, and at each larger one, the scheme's median is below that of the copy.
    faster_than_copy_from: Crossover,
    pub(crate) rows: Vec<Row>,
}

impl Report {
    pub(crate) fn new(profile: &str) -> Self {
        Self {
            profile: profile.to_owned(),
            ..Self::default()
        }
    }

    pub(crate) fn count(&mut self, done: &Done) {
        self.verified_bytes += done.verified;
        self.mismatches += done.wrong;
    }

    /// The smallest size from which on the scheme is faster than the copy.
    fn crossover(&self, scheme: &str) -> Option<usize> {
        let of = |name: &str, size: usize| {
            let mut rows = self.rows.iter();
            rows.find(|row| row.scheme == name && row.size == size)
                .map(|row| row.us.p50)
        };
        let mut sizes: Vec<usize> = self.rows.iter().map(|row| row.size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let faster = sizes.iter().rev().take_while(
            |size| matches!((of(scheme, **size), of("copy", **size)), (Some(a), Some(b)) if a < b),
        );
        faster.last().copied()
    }

    /// Writes report.json, report.md and report.svg.
    pub(crate) fn write(&mut self, directory: &Path) -> Result<()> {
        self.faster_than_copy_from = Crossover {
            ksm: self.crossover("ksm"),
            stock: self.crossover("stock"),
            xgvmi: self.crossover("xgvmi"),
            announced: self.crossover("announced"),
        };
        files::write(directory, (self, VOLUME), &self.markdown()?, &self.plot()?)
    }

    pub(crate) fn markdown(&self) -> Result<String> {
        let Self {
            bytes,
            host_cpu_s_per_gib: processor,
            ..
        } = self;
        let mut text = format!(
            "Profile {}. {} bytes verified, {}. {} blocks rebuilt.\n\n",
            self.profile,
            self.verified_bytes,
            match self.mismatches {
                0 => "none wrong".to_owned(),
                wrong => format!("{wrong} wrong"),
            },
            self.rebuilt
        );
        // Writing to a String cannot fail.
        for row in &self.layouts {
            let _ = writeln!(
                text,
                "Layout {}: {} targets killed, {} replaced, {} bytes verified.\n",
                row.layout, row.killed, row.replaced, row.verified_bytes
            );
        }
        let _ = writeln!(
            text,
            "Mixed data: {} bytes written, {} moved to targets, {} stored; the reference's format stores {}.\n\n\
             Processor time of the host per GiB: {:.2} s with the DPU, {:.2} s with the pipeline on the host.\n\n\
             Microseconds per transfer on fresh memory (mean of a write and a read); commands per transfer.\n",
            bytes.written,
            bytes.moved,
            bytes.stored,
            bytes.reference,
            processor.offloaded,
            processor.host
        );
        let rows = self.rows.iter().map(serde_json::to_value);
        let rows = rows.collect::<Result<Vec<_>, _>>()?;
        text += &table::markdown(VOLUME, &rows)?;
        text.push('\n');
        for (scheme, from) in [
            ("ksm", self.faster_than_copy_from.ksm),
            ("stock", self.faster_than_copy_from.stock),
            ("xgvmi", self.faster_than_copy_from.xgvmi),
            ("announced", self.faster_than_copy_from.announced),
        ] {
            let _ = match from {
                Some(size) => writeln!(
                    text,
                    "\n{} is faster than the copy from {} on.",
                    scheme_title(scheme),
                    format_size(size)
                ),
                None => writeln!(
                    text,
                    "\n{} is not faster than the copy at the largest size.",
                    scheme_title(scheme)
                ),
            };
        }
        Ok(text)
    }

    fn plot(&self) -> Result<String> {
        let curves = SCHEMES.map(|scheme| {
            let rows = self.rows.iter().filter(|row| row.scheme == scheme);
            Curve {
                scheme: scheme.to_owned(),
                points: rows.map(|row| (row.size, row.us.p50)).collect(),
                faster_from: self.crossover(scheme),
            }
        });
        plot::draw("Transfers on fresh memory", &curves)
    }
}

/// A percentile in microseconds.
pub(crate) fn percentile(times_ns: &[u64], percent: u32) -> Result<f64> {
    let mut samples = Samples::default();
    samples.extend_ns(times_ns);
    samples.percentile(percent).context("no samples")
}
