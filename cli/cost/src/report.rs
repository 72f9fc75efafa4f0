//! Measured next to published times: text, JSON, and the CSV format that `xgvmi-model --costs` reads.

use super::measure::Times;
use super::step::Approach;
use anyhow::{Context as _, Result};
use bench_report::columns::COST;
use bench_report::{SLIDES, Samples, format_size, parse_size, table};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// Version of `cost.json`. Version 1 compared with the sum of published and own time only.
const SCHEMA: u32 = 2;

/// `cost.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// Version of the format.
    pub schema: u32,
    /// The host's device.
    pub host: String,
    /// The DPU's device or address, if any.
    pub dpu: Option<String>,
    /// One row per approach, size and step.
    pub rows: Vec<Row>,
}

/// One step of one approach at one size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Name of the approach.
    pub approach: String,
    /// Name of the step.
    pub step: String,
    /// Bytes of memory.
    pub size: usize,
    /// Number of repetitions.
    pub repeats: usize,
    /// The median, in nanoseconds.
    pub measured_ns: f64,
    /// The shortest time, in nanoseconds.
    pub least_ns: f64,
    /// Own time of program, system and emulator in nanoseconds, if known: the duration of the step with zero
    /// device time for it and unchanged time for all other steps.
    pub own_ns: Option<f64>,
    /// The published time in nanoseconds, if any.
    pub slide_ns: Option<f64>,
    /// `measured_ns` minus `slide_ns`, in nanoseconds. It includes the own time.
    #[serde(default)]
    pub residual_ns: Option<f64>,
    /// Whether `own_ns` is at most `slide_ns`. Otherwise the own time hides the published time, and the row gives no
    /// information about the device.
    #[serde(default)]
    pub resolvable: Option<bool>,
    /// Distance of `ratio` from 1.
    #[serde(default)]
    pub off: Option<f64>,
    /// `measured_ns` as a multiple of the expected time. An emulator works while the device's time passes, so
    /// the expected time is anything from the longer of published and own time up to their sum: 1.
    pub ratio: Option<f64>,
}

impl Row {
    fn rate(&mut self) {
        self.residual_ns = self.slide_ns.map(|slide| self.measured_ns - slide);
        self.resolvable = self
            .own_ns
            .zip(self.slide_ns)
            .map(|(own, slide)| own <= slide);
        self.ratio = ratio(Some(self.measured_ns), self.own_ns, self.slide_ns);
        self.off = self.ratio.map(|ratio| (ratio - 1.0).abs());
    }

    fn is(&self, other: &Self) -> bool {
        self.approach == other.approach && self.step == other.step && self.size == other.size
    }
}

impl Document {
    pub(super) fn new(host: &str, dpu: Option<&str>) -> Self {
        Self {
            schema: SCHEMA,
            host: host.to_owned(),
            dpu: dpu.map(str::to_owned),
            rows: Vec::new(),
        }
    }

    /// Adds the rows of one measurement.
    pub(super) fn add(&mut self, approach: Approach, size: usize, times: &Times) {
        let slides = slides();
        for step in approach.steps() {
            let Some((_, times)) = times.iter().find(|(taken, _)| taken == step) else {
                continue;
            };
            let mut samples = Samples::default();
            samples.extend_ns(times);
            let percentile = |percent| samples.percentile(percent).unwrap_or(0.0) * 1e3;
            let slide = slides
                .iter()
                .find(|row| row.approach == approach.name() && row.step == step.name());
            let mut row = Row {
                approach: approach.name().to_owned(),
                step: step.name().to_owned(),
                size,
                repeats: times.len(),
                measured_ns: percentile(50),
                least_ns: percentile(0),
                own_ns: None,
                slide_ns: slide.and_then(|slide| slide.at(size)),
                residual_ns: None,
                resolvable: None,
                off: None,
                ratio: None,
            };
            row.rate();
            self.rows.push(row);
        }
    }

    /// Adds the own times from a run with zero device time.
    ///
    /// # Errors
    /// If the other run lacks a row of this one.
    pub(super) fn set_apart(&mut self, own: &Self) -> Result<()> {
        for row in &mut self.rows {
            row.own_ns = Some(own.row_like(row)?.measured_ns);
            row.rate();
        }
        Ok(())
    }

    /// Takes the medians of an earlier run that are better than this run's.
    ///
    /// # Errors
    /// As for [`Document::set_apart`].
    pub(super) fn keep_the_best(&mut self, earlier: &Self) -> Result<()> {
        for row in &mut self.rows {
            let other = earlier.row_like(row)?;
            row.measured_ns = row.measured_ns.min(other.measured_ns);
            row.least_ns = row.least_ns.min(other.least_ns);
            row.rate();
        }
        Ok(())
    }

    /// The row of the same step, approach and size.
    fn row_like(&self, row: &Row) -> Result<&Row> {
        let found = self.rows.iter().find(|other| other.is(row));
        found.with_context(|| {
            format!(
                "the other run has no {} of {} at {} bytes: measure the same there",
                row.step, row.approach, row.size
            )
        })
    }

    /// Sizes in the order of measurement.
    pub(super) fn sizes(&self) -> Vec<usize> {
        let mut sizes = Vec::new();
        for row in &self.rows {
            if !sizes.contains(&row.size) {
                sizes.push(row.size);
            }
        }
        sizes
    }

    /// Approaches in the order of measurement.
    pub(super) fn approaches(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.rows.iter().map(|row| row.approach.as_str()).collect();
        names.dedup();
        names
    }

    /// Sum over the steps of an approach at a size: the cost of one buffer.
    pub(super) fn total_ns(
        &self,
        approach: &str,
        size: usize,
        of: fn(&Row) -> Option<f64>,
    ) -> Option<f64> {
        let rows = self
            .rows
            .iter()
            .filter(|row| row.approach == approach && row.size == size);
        rows.map(of).sum()
    }

    /// The table: the steps, then the sum of each approach at each size.
    ///
    /// # Errors
    /// A row cannot be shown.
    pub fn text(&self) -> Result<String> {
        let dpu = self.dpu.as_deref().unwrap_or("none");
        let mut rows = self.rows.clone();
        for approach in self.approaches() {
            for size in self.sizes() {
                let total = |of| self.total_ns(approach, size, of);
                let mut row = Row {
                    approach: approach.to_owned(),
                    step: "one buffer, all steps".to_owned(),
                    size,
                    repeats: 0,
                    measured_ns: total(|row| Some(row.measured_ns)).unwrap_or_default(),
                    least_ns: 0.0,
                    own_ns: total(|row| row.own_ns),
                    slide_ns: total(|row| row.slide_ns),
                    residual_ns: None,
                    resolvable: None,
                    off: None,
                    ratio: None,
                };
                row.rate();
                rows.push(row);
            }
        }
        let rows = rows.iter().map(serde_json::to_value);
        let rows = rows.collect::<Result<Vec<_>, _>>()?;
        Ok(format!(
            "# cross-function keys, host {}, DPU {dpu}; medians\n{}",
            self.host,
            table::text(COST, &rows)?
        ))
    }

    /// The measured medians minus the own part, as `approach,step,ns_SIZE,...`. This is the format of the
    /// published table, which `xgvmi-model --costs` reads.
    #[must_use]
    pub fn csv(&self) -> String {
        let sizes = self.sizes();
        let mut text = "approach,step".to_owned();
        for size in &sizes {
            text.push_str(",ns_");
            text.push_str(&format_size(*size).replace(' ', ""));
        }
        text.push('\n');
        let heads = self
            .rows
            .iter()
            .filter(|row| Some(&row.size) == sizes.first());
        for head in heads {
            text.push_str(&head.approach);
            text.push(',');
            text.push_str(&head.step);
            for size in &sizes {
                let row = Row {
                    size: *size,
                    ..head.clone()
                };
                let found = self.rows.iter().find(|other| other.is(&row));
                let ns = found.map_or(0.0, |row| row.measured_ns - row.own_ns.unwrap_or(0.0));
                let _ = write!(text, ",{:.0}", ns.max(0.0));
            }
            text.push('\n');
        }
        text
    }
}

/// Duration of a step as a multiple of its nearest expected time ([`Row::ratio`]).
fn ratio(measured: Option<f64>, own: Option<f64>, slide: Option<f64>) -> Option<f64> {
    // A report from a file may contain any values.
    let own = own.unwrap_or(0.0).max(0.0);
    let (measured, slide) = (measured?, slide?);
    let expected = measured.clamp(slide.max(own), slide + own);
    Some(measured / expected)
}

/// One row of the published table.
#[derive(Debug)]
pub(super) struct Slide {
    pub(super) approach: &'static str,
    pub(super) step: &'static str,
    times: Vec<(usize, f64)>,
}

impl Slide {
    fn at(&self, size: usize) -> Option<f64> {
        self.times
            .iter()
            .find(|(known, _)| *known == size)
            .map(|(_, ns)| *ns)
    }
}

/// The published table. An invalid line would be a mistake in the compiled-in file; a test compares its rows
/// with ours.
pub(super) fn slides() -> Vec<Slide> {
    let mut lines = SLIDES.lines();
    let sizes: Vec<usize> = lines
        .next()
        .unwrap_or_default()
        .split(',')
        .filter_map(|title| parse_size(title.strip_prefix("ns_")?).ok())
        .collect();
    lines
        .filter_map(|line| {
            let mut cells = line.split(',');
            let (approach, step) = (cells.next()?, cells.next()?);
            let times = cells
                .map(str::parse)
                .collect::<Result<Vec<f64>, _>>()
                .ok()?;
            let times = sizes.iter().copied().zip(times).collect();
            Some(Slide {
                approach,
                step,
                times,
            })
        })
        .collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// All steps at two sizes, each with twice the published time.
    pub(crate) fn sample() -> Document {
        published(2.0, &[16 << 10, 1 << 20])
    }

    /// All steps, each with a multiple of the published time.
    fn published(factor: f64, sizes: &[usize]) -> Document {
        let mut document = Document::new("mlx5_0", Some("mlx5_1"));
        for slide in slides() {
            for &size in sizes {
                let ns = slide.at(size).expect("a size of the slides");
                let mut row = Row {
                    approach: slide.approach.to_owned(),
                    step: slide.step.to_owned(),
                    size,
                    repeats: 3,
                    measured_ns: factor * ns,
                    least_ns: ns,
                    own_ns: None,
                    slide_ns: Some(ns),
                    residual_ns: None,
                    resolvable: None,
                    off: None,
                    ratio: None,
                };
                row.rate();
                document.rows.push(row);
            }
        }
        document
    }

    #[test]
    fn what_is_own_is_set_apart() {
        let mut document = sample();
        assert!(document.rows.iter().all(|row| row.ratio == Some(2.0)));
        let mut own = sample();
        for row in &mut own.rows {
            row.measured_ns /= 2.0;
        }
        document.set_apart(&own).expect("the same rows");
        assert!(document.rows.iter().all(|row| row.ratio == Some(1.0)));
        assert!(document.rows.iter().all(|row| row.resolvable == Some(true)));
        assert_eq!(document.rows[0].residual_ns, document.rows[0].slide_ns);
        // Own times above the slides' hide them.
        own.rows[0].measured_ns *= 1.1;
        document.set_apart(&own).expect("the same rows");
        assert_eq!(document.rows[0].resolvable, Some(false));
        let first = document.text().expect("a table");
        let first = first.lines().nth(2).map(str::to_owned);
        let first = first.expect("a row");
        assert!(first.ends_with("  not resolvable"), "{first}");
        own.rows.pop();
        let error = document.set_apart(&own).expect_err("a row is missing");
        assert!(error.to_string().contains("umr_pool_hit"), "{error}");
    }

    #[test]
    fn the_better_median_counts() {
        let mut document = sample();
        let mut earlier = sample();
        earlier.rows[0].measured_ns /= 2.0;
        earlier.rows[1].measured_ns *= 2.0;
        document.keep_the_best(&earlier).expect("the same rows");
        let ratios = [0, 1].map(|index| document.rows[index].ratio);
        assert_eq!(ratios, [Some(1.0), Some(2.0)]);
        earlier.rows.remove(0);
        assert!(document.keep_the_best(&earlier).is_err());
    }

    #[test]
    fn own_time_and_the_devices_may_overlap() {
        let check = |measured, own, slide, expect: f64| {
            let found = ratio(Some(measured), own, Some(slide)).expect("a slide");
            assert!((found - expect).abs() < 1e-9, "{found}, not {expect}");
        };
        check(30.0, None, 10.0, 3.0);
        check(9.0, Some(5.0), 10.0, 0.9);
        check(10.0, Some(5.0), 10.0, 1.0);
        check(15.0, Some(5.0), 10.0, 1.0);
        check(30.0, Some(5.0), 10.0, 2.0);
        // Either of the two may be longer.
        check(5.5, Some(5.0), 1.0, 1.0);
        check(4.0, Some(5.0), 1.0, 0.8);
        assert_eq!(ratio(Some(1.0), Some(1.0), None), None);
    }

    #[test]
    fn the_published_times_give_the_published_table() {
        let sizes = [16 << 10, 1 << 20, 64 << 20, 1 << 30];
        assert_eq!(published(1.0, &sizes).csv(), SLIDES);
    }

    #[test]
    fn json_is_read_back() {
        let document = sample();
        let text = serde_json::to_string(&document).expect("written");
        let again: Document = serde_json::from_str(&text).expect("read");
        assert_eq!(again, document);
    }

    #[test]
    fn the_table_has_totals() {
        let text = sample().text().expect("a table");
        let mut lines = text
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        let total = "umr_pool_hit one buffer, all steps 16 KiB 40.70 - 20.35 20.35 2.00";
        assert!(lines.any(|line| line == total), "{text}");
    }
}
