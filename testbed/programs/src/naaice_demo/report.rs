//! The report: rows, table, plot.

use super::client::Done;
use anyhow::{Context as _, Result};
use bench_report::counters::CommandsPerIteration;
use bench_report::svg::{self, COLOURS, bounds, format_time, power_of};
use bench_report::{columns, files, table};
use plotters::prelude::*;
use serde::Serialize;
use serde_json::Value;
use std::path::Path;
use xgvmi_naa::Status;

/// How the accelerator reaches the caller's buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Way {
    /// An RDMA connection per session: the host writes inputs, the accelerator writes outputs.
    Verbs,
    /// The calls of `Verbs` by a hand-written verbs loop, without sessions.
    Loop,
    /// Aliases of a key per region and session.
    Ksm,
    /// Aliases of pooled keys, announced ahead.
    Pool,
    /// As `Verbs`, with the original's server.
    Original,
}

impl Way {
    const ALL: [Self; 5] = [
        Self::Verbs,
        Self::Loop,
        Self::Ksm,
        Self::Pool,
        Self::Original,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Verbs => "verbs",
            Self::Loop => "loop",
            Self::Ksm => "ksm",
            Self::Pool => "pool",
            Self::Original => "original",
        }
    }
}

/// One size of one way: medians in microseconds, commands per session. A loop has calls only.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) way: Way,
    pub(crate) size: usize,
    pub(crate) create_us: Option<f64>,
    pub(crate) call_us: f64,
    pub(crate) one_shot_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) parts: Option<Parts>,
    pub(crate) commands_per_one_shot: Option<CommandsPerIteration>,
    /// Sum of the commands for keys and aliases.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key_commands: Option<f64>,
    /// One shot of `ksm` over this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) times_faster_than_ksm: Option<f64>,
    /// One shot of `ksm` over the service's steps of this one: the factor if nothing else took time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) at_most_times_faster: Option<f64>,
    /// A call over one of the loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) call_of_loop: Option<f64>,
    /// A call over one with the original's server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) call_of_original: Option<f64>,
}

impl Row {
    pub(crate) fn new(way: Way, size: usize) -> Self {
        Self {
            way,
            size,
            create_us: None,
            call_us: 0.0,
            one_shot_us: None,
            parts: None,
            commands_per_one_shot: None,
            key_commands: None,
            times_faster_than_ksm: None,
            at_most_times_faster: None,
            call_of_loop: None,
            call_of_original: None,
        }
    }
}

/// The parts of a one shot besides its creation: medians in microseconds.
#[derive(Debug, Serialize)]
pub(crate) struct Parts {
    /// Invoke and wait. The call is the first one on these buffers: nobody has touched the output's pages before.
    pub(crate) first_call_us: f64,
    pub(crate) finalize_us: f64,
    /// The service's share; `None` if another accelerator served the session.
    pub(crate) service: Option<PerSession>,
}

/// Time of the service per one shot: means in microseconds.
#[derive(Debug, Serialize)]
pub(crate) struct PerSession {
    zero_us: f64,
    read_us: f64,
    kernel_us: f64,
    write_us: f64,
}

/// Time of the service in its steps, and its sessions in this time.
#[derive(Debug, Default)]
pub(crate) struct ServiceTime {
    sessions: u64,
    /// Microseconds to zero memory, to read, in kernels, to write.
    steps_us: [u64; 4],
}

impl ServiceTime {
    /// Adds the time between two states of the service.
    pub(crate) fn add(&mut self, before: &Status, after: &Status) {
        let steps = |s: &Status| [s.zeroing_us, s.reading_us, s.kernels_us, s.writing_us];
        self.sessions += after.sessions - before.sessions;
        let between = steps(after).into_iter().zip(steps(before));
        for (step, (after, before)) in self.steps_us.iter_mut().zip(between) {
            *step += after - before;
        }
    }

    pub(crate) fn per_session(&self) -> Option<PerSession> {
        if self.sessions == 0 {
            return None;
        }
        let each = |step: u64| step as f64 / self.sessions as f64;
        let [zero_us, read_us, kernel_us, write_us] = self.steps_us.map(each);
        Some(PerSession {
            zero_us,
            read_us,
            kernel_us,
            write_us,
        })
    }
}

impl PerSession {
    /// Copies and kernel: the same for every kind of key.
    fn sum_us(&self) -> f64 {
        self.zero_us + self.read_us + self.kernel_us + self.write_us
    }
}

/// A computation of the host during a call: medians in microseconds.
#[derive(Debug, Serialize)]
pub(crate) struct Overlap {
    way: Way,
    size: usize,
    call_us: f64,
    compute_us: f64,
    both_us: f64,
    /// Share of the call that takes no time in addition to the computation.
    hidden_percent: f64,
}

impl Overlap {
    pub(crate) fn new(way: Way, size: usize, [call_us, compute_us, both_us]: [f64; 3]) -> Self {
        let added = (both_us - compute_us).max(0.0);
        Self {
            way,
            size,
            call_us,
            compute_us,
            both_us,
            hidden_percent: (100.0 * (1.0 - added / call_us)).clamp(0.0, 100.0),
        }
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    profile: String,
    /// Cores of the host's processes and of the accelerators' processes.
    cores: Option<[String; 2]>,
    pub(crate) verified_bytes: u64,
    pub(crate) mismatches: u64,
    /// Reason for missing rows.
    not_measured: Option<&'static str>,
    rows: Vec<Row>,
    overlap: Vec<Overlap>,
}

impl Report {
    pub(crate) fn new(profile: &str, cores: Option<[String; 2]>) -> Self {
        Self {
            profile: profile.to_owned(),
            cores,
            verified_bytes: 0,
            mismatches: 0,
            not_measured: None,
            rows: Vec::new(),
            overlap: Vec::new(),
        }
    }

    /// Adds the rows of a size, and compares them with each other.
    pub(crate) fn add(&mut self, mut rows: Vec<Row>) {
        let call = |way: Way, rows: &[Row]| rows.iter().find(|r| r.way == way).map(|r| r.call_us);
        let (by_hand, original) = (call(Way::Loop, &rows), call(Way::Original, &rows));
        let ksm = rows.iter().find(|row| row.way == Way::Ksm);
        let ksm = ksm.and_then(|row| row.one_shot_us);
        for row in &mut rows {
            row.key_commands = row.commands_per_one_shot.map(|c| c.key_commands());
            match row.way {
                Way::Verbs => {
                    row.call_of_loop = by_hand.map(|other| row.call_us / other);
                    row.call_of_original = original.map(|other| row.call_us / other);
                }
                Way::Pool => {
                    let times = ksm.zip(row.one_shot_us);
                    row.times_faster_than_ksm = times.map(|(ksm, pool)| ksm / pool);
                    let service = row.parts.as_ref().and_then(|p| p.service.as_ref());
                    let steps = ksm.zip(service.map(PerSession::sum_us));
                    row.at_most_times_faster = steps.map(|(ksm, steps)| ksm / steps);
                }
                Way::Loop | Way::Ksm | Way::Original => {}
            }
        }
        self.rows.extend(rows);
    }

    pub(crate) fn overlap(&mut self, overlap: Overlap) {
        self.overlap.push(overlap);
    }

    pub(crate) fn count(&mut self, done: &Done) {
        self.verified_bytes += done.verified;
        self.mismatches += done.wrong;
    }

    /// Writes report.json, report.md and report.svg.
    pub(crate) fn write(&mut self, directory: &Path) -> Result<()> {
        if !self.rows.iter().any(|row| row.way == Way::Original) {
            self.not_measured = Some(
                "original: XGVMI_NAAICE_BUILT does not name the built programs of the NAAICE communication library",
            );
        }
        files::write(
            directory,
            (self, columns::NAAICE),
            &self.markdown()?,
            &self.plot()?,
        )
    }

    pub(crate) fn markdown(&self) -> Result<String> {
        let mut rows: Vec<&Row> = self.rows.iter().collect();
        rows.sort_by_key(|row| row.size);
        let mut text = format!(
            "Profile {}. Two inputs and an output of this size each. Medians; commands per one shot.\n\n{}\n\n\
             {} bytes verified by the caller, {} wrong.\n",
            self.profile,
            table::markdown(columns::NAAICE, &values(rows)?)?,
            self.verified_bytes,
            self.mismatches
        );
        let served = |row: &&Row| {
            row.parts
                .as_ref()
                .is_some_and(|parts| parts.service.is_some())
        };
        let parts = values(self.rows.iter().filter(served))?;
        if !parts.is_empty() {
            text += &format!(
                "\nParts of a one shot, and the service's steps in it. At most: the factor over ksm if all but these steps \
                 took no time.\n\n{}\n",
                table::markdown(columns::NAAICE_PARTS, &parts)?
            );
        }
        if let Some([host, accelerator]) = &self.cores {
            text += &format!(
                "\nThe host's processes run on core {host}, the accelerators' on core {accelerator}.\n"
            );
        }
        if !self.overlap.is_empty() {
            text += &format!(
                "\nA computation of the host during a call. Hidden: the share of the call that takes no time in addition \
                 to the computation.\n\n{}\n",
                table::markdown(columns::NAAICE_OVERLAP, &values(&self.overlap)?)?
            );
        }
        if let Some(reason) = self.not_measured {
            text += &format!("\nNot measured: {reason}.\n");
        }
        Ok(text)
    }

    fn plot(&self) -> Result<String> {
        let xs = bounds(self.rows.iter().map(|row| power_of(row.size))).context("no rows")?;
        let ys = bounds(self.rows.iter().filter_map(|row| row.one_shot_us)).context("no rows")?;
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
                    .filter_map(|row| Some((power_of(row.size), row.one_shot_us?)))
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

/// Rows as the table's writer reads them.
fn values<'a, T: Serialize + 'a>(rows: impl IntoIterator<Item = &'a T>) -> Result<Vec<Value>> {
    let rows = rows.into_iter().map(serde_json::to_value);
    Ok(rows.collect::<Result<_, _>>()?)
}
