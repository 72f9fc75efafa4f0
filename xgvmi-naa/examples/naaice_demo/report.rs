//! The report: rows, table, plot.

use crate::client::Done;
use anyhow::{Context as _, Result};
use bench_report::counters::CommandsPerIteration;
use bench_report::format_size;
use bench_report::svg::{self, COLOURS, bounds, format_time, power_of};
use plotters::prelude::*;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;

/// How the accelerator reaches the caller's buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Way {
    /// An RDMA connection per session: the host writes inputs, the accelerator writes outputs.
    Verbs,
    /// Aliases of a key per region and session.
    Ksm,
    /// Aliases of pooled keys, announced ahead.
    Pool,
    /// As `Verbs`, with the original's server.
    Original,
}

impl Way {
    const ALL: [Self; 4] = [Self::Verbs, Self::Ksm, Self::Pool, Self::Original];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Verbs => "verbs",
            Self::Ksm => "ksm",
            Self::Pool => "pool",
            Self::Original => "original",
        }
    }
}

/// One size of one way: medians in microseconds, commands per session.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) way: Way,
    pub(crate) size: usize,
    pub(crate) create_us: f64,
    pub(crate) call_us: f64,
    pub(crate) one_shot_us: f64,
    pub(crate) commands_per_one_shot: CommandsPerIteration,
}

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    profile: String,
    pub(crate) verified_bytes: u64,
    pub(crate) mismatches: u64,
    /// Reason for missing rows.
    skipped: Option<&'static str>,
    pub(crate) rows: Vec<Row>,
}

impl Report {
    pub(crate) fn new(profile: &str) -> Self {
        Self {
            profile: profile.to_owned(),
            verified_bytes: 0,
            mismatches: 0,
            skipped: None,
            rows: Vec::new(),
        }
    }

    pub(crate) fn count(&mut self, done: &Done) {
        self.verified_bytes += done.verified;
        self.mismatches += done.wrong;
    }

    /// Writes report.json, report.md and report.svg.
    pub(crate) fn write(&mut self, directory: &Path) -> Result<()> {
        if !self.rows.iter().any(|row| row.way == Way::Original) {
            self.skipped = Some(
                "original: XGVMI_NAAICE_BUILT does not name the built programs of the NAAICE communication library",
            );
        }
        std::fs::create_dir_all(directory)?;
        let json = serde_json::to_string_pretty(self)? + "\n";
        for (name, text) in [
            ("report.json", json),
            ("report.md", self.markdown()),
            ("report.svg", self.plot()?),
        ] {
            let path = directory.join(name);
            std::fs::write(&path, text).with_context(|| path.display().to_string())?;
        }
        Ok(())
    }

    pub(crate) fn markdown(&self) -> String {
        let mut text = format!(
            "Profile {}. Two inputs and an output of this size each. Medians in microseconds; commands per one shot.\n\n",
            self.profile
        );
        text.push_str(
            "| size | way | create | invoke + wait | one shot | create | destroy | allow | alias+ | alias- | bind | inval | doorbells |\n\
             |---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
        );
        let mut rows: Vec<&Row> = self.rows.iter().collect();
        rows.sort_by_key(|row| row.size);
        for row in rows {
            let c = &row.commands_per_one_shot;
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "| {} | {} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} |",
                format_size(row.size),
                row.way.name(),
                row.create_us,
                row.call_us,
                row.one_shot_us,
                c.create_mkey,
                c.destroy_mkey,
                c.allow_other_vhca_access,
                c.create_alias,
                c.destroy_alias,
                c.umr_bind,
                c.umr_invalidate,
                c.doorbells,
            );
        }
        let _ = writeln!(
            text,
            "\n{} bytes verified by the caller, {} wrong.",
            self.verified_bytes, self.mismatches
        );
        if let Some(skipped) = self.skipped {
            let _ = writeln!(text, "\nSkipped: {skipped}.");
        }
        text
    }

    fn plot(&self) -> Result<String> {
        let xs = bounds(self.rows.iter().map(|row| power_of(row.size))).context("no rows")?;
        let ys = bounds(self.rows.iter().map(|row| row.one_shot_us)).context("no rows")?;
        svg::page(|page| {
            let mut chart = ChartBuilder::on(page)
                .margin(16)
                .caption(
                    "One shot on fresh buffers: create, call, finalize",
                    ("sans-serif", 22),
                )
                .x_label_area_size(48)
                .y_label_area_size(80)
                .build_cartesian_2d(xs.0 - 0.5..xs.1 + 0.5, (ys.0 / 2.0..ys.1 * 2.0).log_scale())?;
            svg::axes(
                &mut chart,
                ("bytes of each of three regions", "median time"),
                format_time,
            )?;
            for (way, colour) in Way::ALL.into_iter().zip(COLOURS) {
                let points: Vec<(f64, f64)> = self
                    .rows
                    .iter()
                    .filter(|row| row.way == way)
                    .map(|row| (power_of(row.size), row.one_shot_us))
                    .collect();
                if points.is_empty() {
                    continue;
                }
                chart
                    .draw_series(LineSeries::new(points, colour.stroke_width(3)))?
                    .label(way.name())
                    .legend(move |(x, y)| {
                        PathElement::new(vec![(x, y), (x + 20, y)], colour.stroke_width(3))
                    });
            }
            svg::legend(&mut chart, SeriesLabelPosition::UpperLeft)
        })
    }
}
