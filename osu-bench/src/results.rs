//! Result files of a run: JSON, CSV, and a plot.

use crate::datatype::Datatype;
use crate::options::Options;
use anyhow::{Context as _, Result};
use bench_report::counters::CommandsPerIteration;
use osu_bench::report::{self, Percentiles};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// A whole run: the JSON file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Format version. It is 1 until a field changes its meaning.
    pub schema: u32,
    /// The program.
    pub tool: String,
    /// The version of OSU's benchmarks with these columns.
    pub osu_version: String,
    /// The arguments.
    pub arguments: Vec<String>,
    /// MPI's own name.
    pub mpi: String,
    /// Number of processes.
    pub ranks: usize,
    /// `mpi` or `offload`.
    pub backend: String,
    /// `ksm`, `stock` or `xgvmi` for an offloaded run, else `mpi`.
    pub scheme: String,
    /// `none`, `malloc`, `mmap` or `ring:N`.
    pub temp_buffers: String,
    /// Whether the times include allocation and release.
    pub time_alloc: bool,
    /// Whether the blocks are sent from the receive buffer.
    #[serde(default)]
    pub in_place: bool,
    /// One per size.
    pub rows: Vec<Row>,
}

/// One size. Times are means over ranks, in microseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// `ksm`, `stock`, `xgvmi`, or `mpi`.
    pub scheme: String,
    /// Bytes to each rank.
    pub size: usize,
    /// The MPI datatype.
    #[serde(default)]
    pub datatype: Datatype,
    /// Timed iterations.
    pub iterations: u64,
    /// Connection of the job to the service processes, before its first size: the mean over ranks. Offloaded
    /// runs only.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub connect_us: Option<f64>,
    /// Commands and requests that the device executed during the connection set-up, all functions together,
    /// with `--counters`: creation and announcement of keys, and creation of their aliases.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub commands_at_connect: Option<CommandsPerIteration>,
    /// The first iteration of this size in the process.
    pub first_us: f64,
    /// Nearest-rank percentiles of the mean over ranks, of the timed iterations.
    pub steady_us: Percentiles,
    /// OSU's columns: mean over ranks of each rank's mean, and the minimum and maximum of these.
    pub average_us: f64,
    /// Minimum over ranks.
    pub least_us: f64,
    /// Maximum over ranks.
    pub greatest_us: f64,
    /// Allocation of an iteration's buffers.
    pub alloc_us: f64,
    /// Release of an iteration's buffers.
    pub free_us: f64,
    /// Non-blocking benchmark only.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub overlap: Option<OverlapRow>,
    /// Processor time of a rank, all threads together, from start to end of a call. Computation between start and wait
    /// is excluded.
    #[serde(default)]
    pub host_cpu_us: f64,
    /// Processor time of a service process per iteration, all threads together, with `--service-pids`: their mean.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub service_cpu_us: Option<f64>,
    /// Bytes that were compared at all ranks, warm-up included, with validation.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub verified_bytes: Option<u64>,
    /// Wrong bytes at any rank, with validation.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub wrong_bytes: Option<u64>,
    /// Offloaded runs only.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub offload: Option<OffloadRow>,
    /// Commands and requests that the device executed, all functions together, with `--counters`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub commands_per_iteration: Option<CommandsPerIteration>,
}

/// Additional results of the non-blocking benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct OverlapRow {
    /// The collective without computation.
    pub pure_us: f64,
    /// Computation.
    pub compute_us: f64,
    /// Share of the collective that computation hid.
    pub percent: f64,
}

/// Counters of the offloaded collective over all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct OffloadRow {
    /// Time in registration and export, per iteration and rank.
    pub registration_us: f64,
    /// Exports that found a free key, in percent; `None` without exports.
    pub host_hit_percent: Option<f64>,
    /// Imports that found an alias, in percent; `None` without imports.
    pub alias_hit_percent: Option<f64>,
}

impl Record {
    /// A run without rows.
    #[must_use]
    pub fn new(options: &Options, mpi: &str, ranks: usize, arguments: Vec<String>) -> Self {
        Self {
            schema: 1,
            tool: options.program.name().to_owned(),
            osu_version: crate::options::VERSION.to_owned(),
            arguments,
            mpi: mpi.to_owned(),
            ranks,
            backend: options.backend.name().to_owned(),
            scheme: options.label().to_owned(),
            temp_buffers: options.temp_buffers.to_string(),
            time_alloc: options.time_alloc,
            in_place: options.in_place,
            rows: Vec::new(),
        }
    }

    /// Adds a size.
    pub fn push(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Writes the requested files. Each replaces an existing file completely or not at all.
    ///
    /// # Errors
    /// The system's error, with the file.
    pub fn write(&self, options: &Options) -> Result<()> {
        if let Some(path) = &options.json {
            replace(path, &(serde_json::to_string_pretty(self)? + "\n"))?;
        }
        if let Some(path) = &options.csv {
            replace(path, &self.csv())?;
        }
        if let Some(path) = &options.plot {
            replace(path, &self.plot()?)?;
        }
        Ok(())
    }

    /// One line per size, below the titles; an empty field for a missing number.
    #[must_use]
    pub fn csv(&self) -> String {
        let mut text = String::from(
            "scheme,size,iterations,first_us,p50_us,p99_us,average_us,least_us,greatest_us,alloc_us,free_us,\
             pure_us,compute_us,overlap_percent,wrong_bytes,registration_us,host_hit_percent,alias_hit_percent,\
             datatype\n",
        );
        for row in &self.rows {
            // Writing to a String cannot fail.
            let _ = write!(text, "{},{},{}", row.scheme, row.size, row.iterations);
            let overlap = row.overlap;
            let offload = row.offload;
            #[expect(clippy::cast_precision_loss, reason = "a count for a table")]
            let wrong = row.wrong_bytes.map(|bytes| bytes as f64);
            for value in [
                Some(row.first_us),
                Some(row.steady_us.p50),
                Some(row.steady_us.p99),
                Some(row.average_us),
                Some(row.least_us),
                Some(row.greatest_us),
                Some(row.alloc_us),
                Some(row.free_us),
                overlap.map(|overlap| overlap.pure_us),
                overlap.map(|overlap| overlap.compute_us),
                overlap.map(|overlap| overlap.percent),
                wrong,
                offload.map(|offload| offload.registration_us),
                offload.and_then(|offload| offload.host_hit_percent),
                offload.and_then(|offload| offload.alias_hit_percent),
            ] {
                let _ = match value {
                    Some(value) => write!(text, ",{value:.3}"),
                    None => write!(text, ","),
                };
            }
            let _ = writeln!(text, ",{}", row.datatype.name());
        }
        text
    }

    fn plot(&self) -> Result<String> {
        let caption = format!(
            "{}, {} ranks, temporary buffers: {}",
            self.tool, self.ranks, self.temp_buffers
        );
        report::plot(&plotted(&self.rows), &caption)
    }
}

/// The rows for the plot.
#[must_use]
pub fn plotted(rows: &[Row]) -> Vec<report::Row> {
    rows.iter()
        .map(|row| report::Row {
            scheme: row.scheme.clone(),
            size: row.size,
            iterations: row.iterations,
            first_us: row.first_us,
            steady_us: row.steady_us,
            commands_per_iteration: row.commands_per_iteration.unwrap_or_default(),
        })
        .collect()
}

/// Writes a temporary file in the same directory and renames it.
///
/// # Errors
/// The system's error, with the file.
pub fn replace(path: &Path, text: &str) -> Result<()> {
    let mut name = path
        .file_name()
        .context("a file without a name")?
        .to_owned();
    name.push(".part");
    let part = path.with_file_name(name);
    fs::write(&part, text).with_context(|| format!("cannot write {}", part.display()))?;
    fs::rename(&part, path).with_context(|| format!("cannot write {}", path.display()))
}
