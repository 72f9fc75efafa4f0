//! The report of the comparison: rows, set-points, packets, speed.

use crate::htsim::Beside;
use crate::programs::Contender;
use crate::runs::{Case, Length};
use anyhow::Result;
use bench_report::columns::CONGESTION;
use bench_report::table;
use pcc_lab::Report;
use pcc_lab::report::Slowdown;
use serde::Serialize;
use std::fmt::Write as _;

#[derive(Debug, Default, Clone, Copy, Serialize)]
pub(crate) struct Packets {
    sent: u64,
    delivered: u64,
    dropped: u64,
    in_flight: u64,
}

impl Packets {
    pub(crate) fn add(&mut self, report: &Report) {
        let packets = report.packets;
        self.sent += packets.sent;
        self.delivered += packets.delivered;
        self.dropped += packets.dropped;
        self.in_flight += packets.in_flight;
    }

    pub(crate) fn unaccounted(&self) -> u64 {
        self.sent
            .abs_diff(self.delivered + self.dropped + self.in_flight)
    }
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Queue {
    mean: u64,
    p99: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct Row {
    algorithm: String,
    flows: u32,
    topology: &'static str,
    utilisation: f64,
    queue_bytes: Queue,
    jain: Option<f64>,
    slowdown: Slowdown,
    instructions_per_event: Option<f64>,
}

impl Row {
    pub(crate) fn new(
        contender: &Contender,
        case: Case,
        steady: &Report,
        slowdown: Slowdown,
    ) -> Self {
        Self {
            algorithm: contender.name.clone(),
            flows: case.flows(),
            topology: case.name(),
            utilisation: steady.utilisation,
            queue_bytes: Queue {
                mean: steady.queue_bytes.mean,
                p99: steady.queue_bytes.p99,
            },
            jain: steady.jain,
            slowdown,
            instructions_per_event: contender.instructions,
        }
    }

    pub(crate) fn line(&self) -> Result<String> {
        table::line(CONGESTION, &serde_json::to_value(self)?)
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct SetPoint {
    pub(crate) gbps: u32,
    pub(crate) measured_ratio: f64,
}

/// Speed of the lab on one core.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Speed {
    /// Events without control, and with programs compiled for the host.
    events: [u64; 2],
    seconds: [f64; 2],
    /// The slowest incast of 128 flows, scaled to 10 ms of the lab.
    incast_128_seconds: f64,
    /// Another simulator.
    #[serde(skip)]
    pub(crate) beside: Option<Beside>,
}

impl Speed {
    #[expect(clippy::cast_precision_loss, reason = "a duration")]
    pub(crate) fn add(
        &mut self,
        contender: &Contender,
        case: Case,
        length: Length,
        report: &Report,
        seconds: f64,
    ) {
        let kind = usize::from(contender.name != "none");
        self.events[kind] += report.events;
        self.seconds[kind] += seconds;
        if case == Case::Incast(128) {
            let scaled = seconds * 10_000.0 / length.steady_us as f64;
            self.incast_128_seconds = self.incast_128_seconds.max(scaled);
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    fn rate(&self, kind: usize) -> f64 {
        self.events[kind] as f64 / self.seconds[kind].max(1e-9)
    }
}

#[derive(Debug, Serialize)]
struct SpeedReport {
    events_per_second: f64,
    events_per_second_with_programs: f64,
    incast_128_for_10_ms_seconds: f64,
    /// An incast on a fat tree, and the same in csg-htsim.
    fat_tree_seconds: Option<f64>,
    htsim_seconds: Option<f64>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Written {
    packets: Packets,
    unaccounted: u64,
    takeover_us: f64,
    rows: Vec<Row>,
    setpoints: Vec<SetPoint>,
    speed: SpeedReport,
}

impl Written {
    pub(crate) fn new(
        (packets, takeover_us): (Packets, f64),
        rows: Vec<Row>,
        setpoints: Vec<SetPoint>,
        speed: Speed,
    ) -> Self {
        Self {
            unaccounted: packets.unaccounted(),
            packets,
            takeover_us,
            rows,
            setpoints,
            speed: SpeedReport {
                events_per_second: speed.rate(0),
                events_per_second_with_programs: speed.rate(1),
                incast_128_for_10_ms_seconds: speed.incast_128_seconds,
                fat_tree_seconds: speed.beside.map(|both| both.lab),
                htsim_seconds: speed.beside.map(|both| both.htsim),
            },
        }
    }

    /// What follows the table.
    pub(crate) fn closing(&self) -> String {
        let Packets {
            sent,
            delivered,
            dropped,
            in_flight,
        } = self.packets;
        let mut text = format!(
            "packets: {sent} sent = {delivered} delivered + {dropped} dropped + {in_flight} in flight at the end of a run\nset-points:"
        );
        for point in &self.setpoints {
            let _ = write!(text, " {} Gb/s {:.3};", point.gbps, point.measured_ratio);
        }
        let _ = write!(
            text,
            "\ntakeover: the next process decides {:.0} us after the active one was killed, and no flow is lost",
            self.takeover_us
        );
        let speed = &self.speed;
        let _ = write!(
            text,
            "\nspeed on one core: {:.1} million events per second without control, {:.1} million with programs for the host;\n\
             an incast of 128 flows for 10 ms at 200 Gb/s takes {:.1} s",
            speed.events_per_second / 1e6,
            speed.events_per_second_with_programs / 1e6,
            speed.incast_128_for_10_ms_seconds
        );
        if let (Some(lab), Some(htsim)) = (speed.fat_tree_seconds, speed.htsim_seconds) {
            let _ = write!(
                text,
                "\nthe same on a fat tree without control: {lab:.2} s, csg-htsim {htsim:.2} s"
            );
        }
        text
    }

    pub(crate) fn markdown(&self) -> Result<String> {
        let rows = self.rows.iter().map(serde_json::to_value);
        let rows = rows.collect::<serde_json::Result<Vec<_>>>()?;
        let table = table::markdown(CONGESTION, &rows)?;
        Ok(format!("{table}\n{}\n", self.closing()))
    }
}
