//! Plots of times by size and by way to the host's memory, with the sizes from which on a way is faster than the copy.

use anyhow::{Context as _, Result};
use bench_report::svg::{self, COLOURS, bounds, format_time, power_of};
use bench_report::{format_size, scheme_title};
use clap::Args;
use plotters::prelude::*;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Name of the way that the others are compared with.
const COPY: &str = "copy";

/// Times of one way.
#[derive(Debug)]
pub(crate) struct Curve {
    pub(crate) scheme: String,
    /// Bytes and microseconds, by size.
    pub(crate) points: Vec<(usize, f64)>,
    /// The size from which on it is faster than the copy.
    pub(crate) faster_from: Option<usize>,
}

impl Curve {
    fn label(&self) -> String {
        match self.faster_from {
            _ if self.scheme == COPY => COPY.to_owned(),
            Some(size) => format!(
                "{}: faster than the copy from {} on",
                scheme_title(&self.scheme),
                format_size(size)
            ),
            None => format!("{}: not faster than the copy", scheme_title(&self.scheme)),
        }
    }

    /// The point from which on it is faster than the copy.
    fn crossover(&self) -> Option<(f64, f64)> {
        let points = self.points.iter();
        let mut at = points.filter(|(size, _)| Some(*size) == self.faster_from);
        at.next().map(|(size, us)| (power_of(*size), *us))
    }
}

/// Draws the curves. A circle marks the first size at which a way is faster than the copy.
pub(crate) fn draw(caption: &str, curves: &[Curve]) -> Result<String> {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let xs = bounds(points().map(|(size, _)| power_of(*size))).context("no rows")?;
    let ys = bounds(points().map(|(_, us)| *us)).context("no rows")?;
    svg::page(|page| {
        let mut chart = ChartBuilder::on(page)
            .margin(16)
            .caption(caption, ("sans-serif", 22))
            .x_label_area_size(48)
            .y_label_area_size(80)
            .build_cartesian_2d(xs.0 - 0.5..xs.1 + 0.5, (ys.0 / 2.0..ys.1 * 2.0).log_scale())?;
        svg::axes(
            &mut chart,
            ("bytes of a transfer", "median time"),
            format_time,
        )?;
        for (curve, colour) in curves.iter().zip(COLOURS) {
            let points = curve.points.iter().map(|(size, us)| (power_of(*size), *us));
            chart
                .draw_series(LineSeries::new(points, colour.stroke_width(3)))?
                .label(curve.label())
                .legend(move |(x, y)| {
                    PathElement::new(vec![(x, y), (x + 20, y)], colour.stroke_width(3))
                });
            let marks = curve.crossover().into_iter();
            chart.draw_series(marks.map(|at| Circle::new(at, 8, colour.stroke_width(3))))?;
        }
        svg::legend(&mut chart, SeriesLabelPosition::UpperLeft)
    })
}

#[derive(Debug, Args)]
pub(crate) struct Plot {
    report: PathBuf,
    svg: PathBuf,
}

impl Plot {
    /// Plots fio's requests in a report of `cargo xtask bench storage`.
    pub(crate) fn run(&self) -> Result<()> {
        let at = || self.report.display().to_string();
        let text = std::fs::read_to_string(&self.report).with_context(at)?;
        let report: Value = serde_json::from_str(&text).with_context(at)?;
        let plot = draw(
            "fio: requests of its own memory, one at a time",
            &curves(&report["engine"])?,
        )?;
        std::fs::write(&self.svg, plot).with_context(|| self.svg.display().to_string())
    }
}

/// The curves of fio's requests: the mean of a write and a read.
fn curves(engine: &Value) -> Result<Vec<Curve>> {
    let mut curves: Vec<(String, BTreeMap<usize, Vec<f64>>)> = Vec::new();
    for row in engine["rows"].as_array().context("no rows of fio")? {
        let scheme = row["scheme"].as_str().context("a row without scheme")?;
        let size = usize::try_from(row["size"].as_u64().context("a row without size")?)?;
        let us = row["p50_us"].as_f64().context("a row without p50_us")?;
        let at = match curves.iter().position(|(name, _)| name == scheme) {
            Some(at) => at,
            None => {
                curves.push((scheme.to_owned(), BTreeMap::new()));
                curves.len() - 1
            }
        };
        curves[at].1.entry(size).or_default().push(us);
    }
    let curve = |(scheme, sizes): (String, BTreeMap<usize, Vec<f64>>)| {
        let from = engine["faster_than_copy_from"][&scheme].as_u64();
        #[expect(clippy::cast_precision_loss, reason = "two directions")]
        let mean = |times: &[f64]| times.iter().sum::<f64>() / times.len() as f64;
        Ok(Curve {
            points: sizes.iter().map(|(size, us)| (*size, mean(us))).collect(),
            faster_from: from.map(usize::try_from).transpose()?,
            scheme,
        })
    };
    curves.into_iter().map(curve).collect()
}
