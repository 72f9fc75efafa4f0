//! The cases of the comparison, and their runs.

use crate::programs::Contender;
use anyhow::{Context as _, Result, ensure};
use pcc_lab::report::Sample;
use pcc_lab::{Report, Scenario};
use std::time::Instant;

/// How long the runs are, in us of the lab.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Length {
    pub(crate) steady_us: u64,
    warmup_us: u64,
    /// Bytes of all flows with an end.
    bytes: u64,
}

impl Length {
    pub(crate) fn new(steady_us: u64) -> Self {
        Self {
            steady_us,
            warmup_us: steady_us / 2,
            // What the port carries in an eighth of the time.
            bytes: steady_us * 3_125,
        }
    }
}

/// What the flows do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Case {
    /// Hosts that send to one.
    Incast(u32),
    /// One flow over two trunks, and one over each of them.
    ParkingLot,
}

impl Case {
    pub(crate) const PLOTTED: Self = Self::Incast(8);

    pub(crate) fn all() -> Vec<Self> {
        let incasts = [2, 8, 32, 128].map(Self::Incast);
        incasts.into_iter().chain([Self::ParkingLot]).collect()
    }

    pub(crate) fn flows(self) -> u32 {
        match self {
            Self::Incast(flows) => flows,
            Self::ParkingLot => 3,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Incast(_) => "star",
            Self::ParkingLot => "parking lot",
        }
    }

    fn text(self, bytes: u64) -> String {
        let size = if bytes == 0 {
            String::new()
        } else {
            format!(", bytes = {bytes}")
        };
        match self {
            Self::Incast(flows) => format!(
                "topology = {{ shape = 'star', hosts = {}, gbps = 200, delay_ns = 1000 }}
traffic = [{{ kind = 'incast', to = 0, flows = {flows}{size} }}]",
                flows + 1
            ),
            Self::ParkingLot => format!(
                "topology = {{ shape = 'parking_lot', trunks = 2, gbps = 200, delay_ns = 1000 }}\ntraffic = [{{ kind = 'pairs'{size} }}]"
            ),
        }
    }

    /// Flows without end.
    pub(crate) fn steady(self, contender: &Contender, length: Length) -> String {
        let (end, warm) = (length.steady_us, length.warmup_us);
        let probe = contender.probe;
        format!(
            "duration_us = {end}\nwarmup_us = {warm}\nlimits.trace = 0\nhost.probe = '{probe}'\n{}",
            self.text(0)
        )
    }

    /// Flows of one size, until all have ended.
    pub(crate) fn finite(self, contender: &Contender, length: Length) -> String {
        let bytes = length.bytes / u64::from(self.flows());
        let probe = contender.probe;
        format!(
            "duration_us = 5000000\nlimits.trace = 0\nhost.probe = '{probe}'\n{}",
            self.text(bytes)
        )
    }
}

/// One flow on an empty network.
pub(crate) fn single(length: Length) -> String {
    let end = length.steady_us;
    format!(
        "duration_us = {end}\nwarmup_us = {}\nlimits.trace = 0
topology = {{ shape = 'star', hosts = 2, gbps = 200, delay_ns = 1000 }}\ntraffic = [{{ kind = 'pairs', pairs = [[1, 0]] }}]",
        length.warmup_us
    )
}

/// A run, and its seconds.
pub(crate) fn timed(contender: &Contender, text: &str) -> Result<(Report, f64)> {
    let scenario = Scenario::from_toml(text).context("a scenario of the demo")?;
    let mut lab = contender.lab(&scenario)?;
    let begin = Instant::now();
    let report = lab.run();
    let seconds = begin.elapsed().as_secs_f64();
    ensure!(
        report.unaccounted == 0,
        "{}: packets without account: {:?}",
        contender.name,
        report.packets
    );
    let failures = &report.process_failures;
    ensure!(failures.is_empty(), "{}: {failures:?}", contender.name);
    Ok((report, seconds))
}

/// Rates and queue from the start.
pub(crate) fn over_time(contender: &Contender, case: Case, length: Length) -> Result<Vec<Sample>> {
    let end = length.steady_us / 4;
    let text = case.steady(
        contender,
        Length {
            steady_us: end,
            warmup_us: 0,
            ..length
        },
    );
    let (report, _) = timed(
        contender,
        &format!("sample_us = {}\n{text}", (end / 200).max(1)),
    )?;
    Ok(report.samples)
}
