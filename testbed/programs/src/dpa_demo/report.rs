//! The report of `cargo xtask demo dpa`, without the rows of MPI.

use super::launches::Kind;
use anyhow::{Context as _, Result};
use bench_report::counters::CommandsPerIteration;
use bench_report::{Samples, columns, files};
use serde::Serialize;
use std::path::Path;

/// Percentiles in microseconds.
#[derive(Debug, Serialize)]
pub(super) struct Microseconds {
    pub(super) p50: f64,
}

/// Launches of a kind: counts for one launch.
#[derive(Debug, Serialize)]
pub(super) struct Launch {
    pub(super) kind: Kind,
    /// Instructions of all threads of the kernel.
    pub(super) instructions: f64,
    /// Doorbells of the host and of the DPA.
    pub(super) doorbells: f64,
    /// Device objects that it created: threads of the DPA.
    pub(super) objects: f64,
    /// Median in the emulator.
    pub(super) us: f64,
}

/// A ping-pong of two DPAs.
#[derive(Debug, Serialize)]
pub(super) struct PingPong {
    pub(super) bytes: u32,
    pub(super) us: Microseconds,
    pub(super) instructions_per_message: f64,
}

/// All-to-alls of one scheme and size. `size` is bytes to each rank.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) scheme: &'static str,
    pub(super) size: usize,
    pub(super) us: Microseconds,
    pub(super) commands_per_call: CommandsPerIteration,
    /// Sum of the commands for keys and aliases.
    pub(super) key_commands: f64,
    pub(super) dpa_instructions_per_block: f64,
    /// Processor time of the processes on the DPUs.
    pub(super) arm_cpu_us_per_call: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) profile: String,
    pub(super) verified_bytes: u64,
    pub(super) mismatches: u64,
    pub(super) launch: Vec<Launch>,
    pub(super) ping_pong: PingPong,
    pub(super) rows: Vec<Row>,
}

impl Report {
    /// Writes report.json.
    pub(super) fn write(&self, directory: &Path) -> Result<()> {
        std::fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
        files::save(&directory.join("report.json"), self, columns::DPA)
    }
}

/// The median in microseconds.
pub(super) fn median(times_ns: &[u64]) -> Result<f64> {
    let mut samples = Samples::default();
    samples.extend_ns(times_ns);
    samples.percentile(50).context("no samples")
}
