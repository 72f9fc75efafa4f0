//! Merges several runs into one report: the same sizes in several schemes, with one or more runs each.
//!
//! If a scheme ran several times at a size, each figure is the median of the runs. Other work on the machine
//! only increases times, and a median ignores a disturbed run.

use crate::results::{Record, Row, plotted};
use anyhow::{Context as _, Result, bail};
use bench_report::columns::DEMO;
use bench_report::counters::CommandsPerIteration;
use bench_report::{scheme_title, table};
use osu_bench::report::{self, Percentiles};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// The report of `cargo xtask bench alltoallv`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Merged {
    /// Format version. It is 1 until a field changes its meaning.
    pub schema: u32,
    /// MPI's own name.
    pub mpi: String,
    /// Processes of each run.
    pub ranks: usize,
    /// `none`, `malloc`, `mmap` or `ring:N`.
    pub temp_buffers: String,
    /// Number of runs of each scheme at each size.
    pub runs: usize,
    /// One per scheme and size, of the blocking benchmark.
    pub rows: Vec<Row>,
    /// One row per scheme and size, of the non-blocking benchmark.
    pub overlap: Vec<Row>,
}

/// Merges runs. Schemes keep the order of the runs, sizes ascend.
///
/// # Errors
/// No run, or runs that are not comparable.
pub fn merge(records: &[Record]) -> Result<Merged> {
    let first = records.first().context("no run")?;
    let datatype = first
        .rows
        .first()
        .map(|row| row.datatype)
        .unwrap_or_default();
    let alike = |other: &&Record| {
        (other.ranks, &other.temp_buffers, &other.mpi, other.schema)
            == (first.ranks, &first.temp_buffers, &first.mpi, first.schema)
            && (other.time_alloc, other.in_place) == (first.time_alloc, first.in_place)
            && other.rows.iter().all(|row| row.datatype == datatype)
    };
    if let Some(other) = records.iter().find(|record| !alike(record)) {
        bail!(
            "runs that cannot be compared: {} ranks with buffers {} under {}, and {} ranks with buffers {} under {}",
            first.ranks,
            first.temp_buffers,
            first.mpi,
            other.ranks,
            other.temp_buffers,
            other.mpi
        );
    }
    let of = |blocking: bool| -> Vec<&Row> {
        let wanted = records
            .iter()
            .filter(|record| (record.tool == "osu_alltoallv") == blocking);
        wanted.flat_map(|record| &record.rows).collect()
    };
    let (rows, runs) = combine(&of(true));
    let (overlap, _) = combine(&of(false));
    Ok(Merged {
        schema: 1,
        mpi: first.mpi.clone(),
        ranks: first.ranks,
        temp_buffers: first.temp_buffers.clone(),
        runs,
        rows,
        overlap,
    })
}

/// One row per scheme and size, and the largest number of runs of a row.
fn combine(all: &[&Row]) -> (Vec<Row>, usize) {
    let mut sizes: Vec<usize> = all.iter().map(|row| row.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let mut schemes: Vec<&str> = Vec::new();
    for row in all {
        if !schemes.contains(&row.scheme.as_str()) {
            schemes.push(&row.scheme);
        }
    }
    let mut most = 0;
    let mut rows = Vec::new();
    for size in sizes {
        for scheme in &schemes {
            let same: Vec<&Row> = all
                .iter()
                .copied()
                .filter(|row| row.size == size && row.scheme == *scheme)
                .collect();
            most = most.max(same.len());
            rows.extend(median_row(&same));
        }
    }
    (rows, most)
}

fn median_row(same: &[&Row]) -> Option<Row> {
    let first = *same.first()?;
    let of = |figure: &dyn Fn(&Row) -> f64| median(same.iter().map(|row| figure(row)).collect());
    let overlap = first.overlap.map(|mut overlap| {
        let each = |figure: &dyn Fn(&crate::results::OverlapRow) -> f64| {
            let values = same
                .iter()
                .filter_map(|row| row.overlap.as_ref().map(figure));
            median(values.collect())
        };
        overlap.pure_us = each(&|overlap| overlap.pure_us);
        overlap.compute_us = each(&|overlap| overlap.compute_us);
        overlap.percent = each(&|overlap| overlap.percent);
        overlap
    });
    let wrong = same.iter().filter_map(|row| row.wrong_bytes);
    let verified = same.iter().filter_map(|row| row.verified_bytes);
    Some(Row {
        connect_us: first
            .connect_us
            .map(|_| median(same.iter().filter_map(|row| row.connect_us).collect())),
        commands_at_connect: mean_commands(same, |row| row.commands_at_connect),
        first_us: of(&|row| row.first_us),
        steady_us: Percentiles {
            p50: of(&|row| row.steady_us.p50),
            p99: of(&|row| row.steady_us.p99),
        },
        average_us: of(&|row| row.average_us),
        least_us: of(&|row| row.least_us),
        greatest_us: of(&|row| row.greatest_us),
        alloc_us: of(&|row| row.alloc_us),
        free_us: of(&|row| row.free_us),
        overlap,
        host_cpu_us: of(&|row| row.host_cpu_us),
        service_cpu_us: first
            .service_cpu_us
            .map(|_| median(same.iter().filter_map(|row| row.service_cpu_us).collect())),
        verified_bytes: first.verified_bytes.map(|_| verified.sum()),
        // Counters need all runs.
        wrong_bytes: first.wrong_bytes.map(|_| wrong.sum()),
        commands_per_iteration: mean_commands(same, |row| row.commands_per_iteration),
        ..first.clone()
    })
}

/// The median; of two middle values the lower one.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len().saturating_sub(1) / 2;
    values.get(middle).copied().unwrap_or_default()
}

/// Counts are exact, and a command that occurred in one run only must be visible. So this is the mean.
fn mean_commands(
    same: &[&Row],
    of: fn(&Row) -> Option<CommandsPerIteration>,
) -> Option<CommandsPerIteration> {
    let counts = same.iter().map(|row| of(row));
    let counts: Vec<CommandsPerIteration> = counts.collect::<Option<_>>()?;
    #[expect(clippy::cast_precision_loss, reason = "a few runs")]
    let number = counts.len() as f64;
    let mean =
        |count: fn(&CommandsPerIteration) -> f64| counts.iter().map(count).sum::<f64>() / number;
    Some(CommandsPerIteration {
        create_mkey: mean(|c| c.create_mkey),
        destroy_mkey: mean(|c| c.destroy_mkey),
        allow_other_vhca_access: mean(|c| c.allow_other_vhca_access),
        create_alias: mean(|c| c.create_alias),
        destroy_alias: mean(|c| c.destroy_alias),
        umr_bind: mean(|c| c.umr_bind),
        umr_invalidate: mean(|c| c.umr_invalidate),
        doorbells: mean(|c| c.doorbells),
    })
}

impl Merged {
    /// The table as text: each row, and the speedup of the last scheme over the others.
    ///
    /// # Errors
    /// A row cannot be shown.
    pub fn table(&self) -> Result<String> {
        let rows = plotted(&self.rows).into_iter().map(serde_json::to_value);
        let rows = rows.collect::<Result<Vec<_>, _>>()?;
        let mut text = table::text(DEMO, &rows)?;
        // Writing to a String cannot fail, here and below.
        let _ = write!(
            text,
            "\n{} ranks, temporary buffers: {}, {}\n",
            self.ranks, self.temp_buffers, self.mpi
        );
        for other in ["ksm", "stock"] {
            self.compare(&mut text, other);
        }
        for row in &self.overlap {
            if let Some(overlap) = row.overlap {
                let _ = writeln!(
                    text,
                    "{}, {}: computation hides {:.1} % of {:.1} us",
                    scheme_title(&row.scheme),
                    bench_report::format_size(row.size),
                    overlap.percent,
                    overlap.pure_us
                );
            }
        }
        Ok(text)
    }

    fn compare(&self, text: &mut String, other: &str) {
        let find = |scheme: &str, size: usize| {
            self.rows
                .iter()
                .find(|row| row.scheme == scheme && row.size == size)
        };
        for ours in self
            .rows
            .iter()
            .filter(|row| row.scheme.starts_with("xgvmi"))
        {
            if let Some(theirs) = find(other, ours.size) {
                let _ = write!(
                    text,
                    "{} against {}, {}: {:.2} times faster, the first iteration {:.2} times",
                    scheme_title(&ours.scheme),
                    scheme_title(other),
                    bench_report::format_size(ours.size),
                    theirs.steady_us.p50 / ours.steady_us.p50,
                    theirs.first_us / ours.first_us
                );
                let whole = |row: &Row| Some(row.connect_us? + row.first_us);
                let _ = match (whole(theirs), whole(ours)) {
                    (Some(theirs), Some(ours)) => {
                        writeln!(text, ", with the connection {:.2} times", theirs / ours)
                    }
                    _ => writeln!(text),
                };
            }
        }
    }

    /// The blocking rows as a plot.
    ///
    /// # Errors
    /// No row, or a failed drawing.
    pub fn plot(&self) -> Result<String> {
        let caption = format!(
            "Offloaded alltoallv, {} ranks, temporary buffers: {}",
            self.ranks, self.temp_buffers
        );
        report::plot(&plotted(&self.rows), &caption)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(scheme: &str, size: usize, p50: f64, aliases: f64) -> Row {
        Row {
            scheme: scheme.to_owned(),
            size,
            datatype: crate::datatype::Datatype::Char,
            iterations: 50,
            connect_us: Some(p50 * 20.0),
            commands_at_connect: None,
            first_us: p50 * 10.0,
            steady_us: Percentiles {
                p50,
                p99: p50 * 2.0,
            },
            average_us: p50,
            least_us: p50,
            greatest_us: p50,
            alloc_us: 1.0,
            free_us: 1.0,
            overlap: None,
            host_cpu_us: 1.0,
            service_cpu_us: None,
            verified_bytes: Some(8),
            wrong_bytes: Some(0),
            offload: None,
            commands_per_iteration: Some(CommandsPerIteration {
                create_alias: aliases,
                ..CommandsPerIteration::default()
            }),
        }
    }

    fn record(rows: Vec<Row>) -> Record {
        Record {
            schema: 1,
            tool: "osu_alltoallv".to_owned(),
            osu_version: "7.4".to_owned(),
            arguments: Vec::new(),
            mpi: "M".to_owned(),
            ranks: 8,
            backend: "offload".to_owned(),
            scheme: rows[0].scheme.clone(),
            temp_buffers: "mmap".to_owned(),
            time_alloc: false,
            in_place: false,
            rows,
        }
    }

    #[test]
    fn runs_of_a_scheme_become_their_median() {
        let merged = merge(&[
            record(vec![row("ksm", 2048, 90.0, 1.0)]),
            record(vec![row("ksm", 1024, 100.0, 1.0)]),
            record(vec![row("xgvmi", 1024, 40.0, 0.0)]),
            record(vec![row("xgvmi", 1024, 900.0, 0.0)]),
            record(vec![row("xgvmi", 1024, 50.0, 3.0)]),
        ])
        .unwrap();
        let found: Vec<(&str, usize, f64)> = merged
            .rows
            .iter()
            .map(|row| (row.scheme.as_str(), row.size, row.steady_us.p50))
            .collect();
        assert_eq!(
            found,
            [
                ("ksm", 1024, 100.0),
                ("xgvmi", 1024, 50.0),
                ("ksm", 2048, 90.0)
            ]
        );
        // A command in one run of three remains visible.
        let commands = merged.rows[1].commands_per_iteration.unwrap();
        assert_eq!(commands.create_alias, 1.0);
        assert_eq!(merged.runs, 3);
        let table = merged.table().expect("a table");
        assert!(
            table.contains(
                "xgvmi-pool against per-buffer, 1 KiB: 2.00 times faster, the first iteration 2.00 times, with the connection 2.00 times\n"
            ),
            "{table}"
        );
        assert!(merged.plot().unwrap().contains("8 ranks"));
    }

    #[test]
    fn runs_that_differ_are_refused() {
        let mut other = record(vec![row("ksm", 1024, 1.0, 0.0)]);
        other.ranks = 4;
        let error = merge(&[record(vec![row("ksm", 1024, 1.0, 0.0)]), other]).unwrap_err();
        assert!(error.to_string().contains("8 ranks"), "{error}");
        assert!(merge(&[]).is_err());
    }
}
