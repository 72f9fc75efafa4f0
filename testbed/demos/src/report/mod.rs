//! The result of a run in three forms: JSON for programs, Markdown for readers, SVG as a plot.

mod markdown;
mod plot;

use anyhow::Result;
use bench_report::columns::DEMO;
use bench_report::counters::CommandsPerIteration;
use bench_report::files;
use serde::{Deserialize, Serialize};
use std::path::Path;

pub use plot::plot;

/// The complete `report.json` of a demo run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Format version. It is 1 until a field changes its meaning.
    pub schema: u32,
    /// Version of UCX, the same in all processes.
    pub ucx_version: String,
    /// The device's cost profile.
    pub profile: String,
    /// Link type of the device's ports: "infiniband", "infiniband-grh" or "ethernet".
    pub link: String,
    /// Processor of the DPUs, such as "x86_64". One other than the hosts' is emulated, and times contain its emulation.
    pub dpu_arch: String,
    /// Bytes compared at host B, over all iterations of all schemes and sizes.
    pub verified_bytes: u64,
    /// Number of wrong bytes.
    pub mismatches: u64,
    /// One per scheme and size.
    pub rows: Vec<Row>,
}

/// One scheme at one size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Its name.
    pub scheme: String,
    /// Bytes per transfer.
    pub size: usize,
    /// Number of iterations behind the steady figures.
    pub iterations: u64,
    /// Time of the first iteration in a new UCX context, in microseconds; the median if there were several.
    pub first_us: f64,
    /// Times of the steady iterations.
    pub steady_us: Percentiles,
    /// Device counters over the steady iterations.
    pub commands_per_iteration: CommandsPerIteration,
}

/// Nearest-rank percentiles, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
}

impl Report {
    /// Creates `directory` and writes `report.json`, `report.md` and `report.svg` into it.
    ///
    /// # Errors
    /// The system's error, with the file.
    pub fn write(&self, directory: &Path) -> Result<()> {
        files::write(
            directory,
            (self, DEMO),
            &markdown::render(self)?,
            &plot::render(self)?,
        )
    }

    /// The row of a scheme at a size.
    #[must_use]
    pub fn row(&self, scheme: &str, size: usize) -> Option<&Row> {
        self.rows
            .iter()
            .find(|row| row.scheme == scheme && row.size == size)
    }

    /// All sizes, each once, in the order of the rows.
    #[must_use]
    pub fn sizes(&self) -> Vec<usize> {
        unique(self.rows.iter().map(|row| row.size))
    }

    /// All schemes, each once, in the order of the rows.
    #[must_use]
    pub fn schemes(&self) -> Vec<&str> {
        unique(self.rows.iter().map(|row| row.scheme.as_str()))
    }
}

fn unique<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = Vec::new();
    for value in values {
        if !seen.contains(&value) {
            seen.push(value);
        }
    }
    seen
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A report with made-up numbers, three schemes at two sizes.
    pub(crate) fn sample() -> Report {
        let row = |scheme: &str, size: usize, first_us: f64, p50: f64, keys: f64| Row {
            scheme: scheme.to_owned(),
            size,
            iterations: 60,
            first_us,
            steady_us: Percentiles {
                p50,
                p99: p50 * 1.25,
            },
            commands_per_iteration: CommandsPerIteration {
                create_mkey: keys,
                umr_bind: 2.0,
                doorbells: 21.5,
                ..CommandsPerIteration::default()
            },
        };
        Report {
            schema: 1,
            ucx_version: "1.20.1".to_owned(),
            profile: "bluefield3".to_owned(),
            link: "ethernet".to_owned(),
            dpu_arch: "aarch64".to_owned(),
            verified_bytes: 123_456_789,
            mismatches: 0,
            rows: vec![
                row("ksm", 16 << 10, 2100.0, 1800.0, 2.0),
                row("stock", 16 << 10, 2500.0, 300.0, 0.0),
                row("xgvmi", 16 << 10, 900.25, 290.0, 0.0),
                row("ksm", 16 << 20, 21_000.0, 18_000.0, 2.0),
                row("stock", 16 << 20, 25_000.0, 9_000.0, 0.0),
                row("xgvmi", 16 << 20, 20_000.0, 8_900.5, 0.0),
            ],
        }
    }

    #[test]
    fn the_json_has_exactly_the_fields_of_schema_1() {
        let json = serde_json::to_value(sample()).expect("serialises");
        let keys = |value: &serde_json::Value| -> Vec<String> {
            value
                .as_object()
                .expect("an object")
                .keys()
                .cloned()
                .collect()
        };
        assert_eq!(
            keys(&json),
            [
                "dpu_arch",
                "link",
                "mismatches",
                "profile",
                "rows",
                "schema",
                "ucx_version",
                "verified_bytes"
            ]
        );
        let row = &json["rows"][0];
        assert_eq!(
            keys(row),
            [
                "commands_per_iteration",
                "first_us",
                "iterations",
                "scheme",
                "size",
                "steady_us"
            ]
        );
        assert_eq!(keys(&row["steady_us"]), ["p50", "p99"]);
        assert_eq!(
            keys(&row["commands_per_iteration"]),
            [
                "allow_other_vhca_access",
                "create_alias",
                "create_mkey",
                "destroy_alias",
                "destroy_mkey",
                "doorbells",
                "umr_bind",
                "umr_invalidate"
            ]
        );
        let back: Report = serde_json::from_value(json).expect("parses");
        assert_eq!(back, sample());
    }
}
