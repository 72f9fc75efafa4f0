//! What was predicted, as text for the eye and as JSON or CSV for programs.

use super::fabrics::FabricRow;
use super::limits::Limit;
use super::predict::{Gain, Prediction};
use super::sweep::{Point, REPORTED, Variation};
use bench_report::format_size;
use serde::Serialize;
use std::fmt::Write as _;

/// `model.json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Document {
    /// Always 1; a change of meaning makes it 2.
    pub schema: u32,
    /// Where the cost table is from.
    pub costs: String,
    /// Calls after the first.
    pub rows: Vec<Row>,
    /// The first call of a job.
    pub first_rows: Vec<Row>,
    /// What fills the time, in the order of `rows`.
    pub shares: Vec<Shares>,
    /// Machines and the block sizes up to which the SP is their limit.
    pub limits: Vec<Limit>,
    /// The slides' two figures, and what they become when one input is changed.
    pub sensitivity: Vec<Sensitivity>,
    /// The same machine on a fat tree in the packet-level lab, if that was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fabrics: Vec<FabricRow>,
}

/// One scheme on one machine at one size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Nodes.
    pub nodes: u32,
    /// Ranks per node.
    pub ppn: u32,
    /// SPs per node.
    pub sps: u32,
    /// Link speed, in Gb/s.
    pub link_gbps: f64,
    /// Bytes per block.
    pub size: u64,
    /// Its name.
    pub scheme: String,
    /// Mean over ranks, in microseconds.
    pub us: f64,
    /// `(T_ind - T) / T_ind`.
    pub time_saved_percent: f64,
    /// `T_ind / T - 1`.
    pub speedup_percent: f64,
}

/// What fills a call's time; shares of it between 0 and 1.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Shares {
    /// What is full (`link`, `messages`), else `keys` where they take a tenth or more, else `credits`.
    pub bottleneck: &'static str,
    /// The busiest port sends.
    pub port: f64,
    /// The busiest SP works on messages.
    pub sp_messages: f64,
    /// The busiest SP waits for key commands.
    pub sp_keys: f64,
    /// A rank works on its keys.
    pub host_keys: f64,
}

/// One input changed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sensitivity {
    /// Which, and to what.
    pub what: String,
    /// Indirection and UCX's pool, and the gain, at each of the slides' sizes.
    pub sizes: Vec<SensitivityAt>,
}

/// ... at one size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SensitivityAt {
    /// Bytes per block.
    pub size: u64,
    /// Percent better that the slides report.
    pub slides_percent: f64,
    /// With indirection, in microseconds.
    pub ksm_us: f64,
    /// With UCX's pool, in microseconds.
    pub stock_us: f64,
    /// `(T_ind - T) / T_ind`.
    pub time_saved_percent: f64,
    /// `T_ind / T - 1`.
    pub speedup_percent: f64,
}

impl Document {
    /// Of a grid and a sensitivity study; either may be empty.
    #[must_use]
    pub fn new(costs: String, points: &[Point], variations: &[Variation]) -> Self {
        Self {
            schema: 1,
            costs,
            rows: points
                .iter()
                .map(|point| Row::new(point, point.prediction.us, point.gain()))
                .collect(),
            first_rows: points
                .iter()
                .map(|point| Row::new(point, point.prediction.first_us, point.first_gain()))
                .collect(),
            shares: points.iter().map(|p| Shares::new(&p.prediction)).collect(),
            limits: Vec::new(),
            fabrics: Vec::new(),
            sensitivity: variations.iter().map(Sensitivity::new).collect(),
        }
    }

    /// The limits as text.
    #[must_use]
    pub fn limits_table(&self) -> String {
        let mut text =
            "the service process is the limit up to\nnodes  SPs  software        slower  block\n"
                .to_owned();
        for limit in &self.limits {
            let size = match limit.size {
                0 => "-".to_owned(),
                size => usize::try_from(size).map_or("-".to_owned(), format_size),
            };
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "{:>5}  {:>3}  {:<14}  {:>6}  {size:>5}",
                limit.nodes, limit.sps, limit.software, limit.slower
            );
        }
        text
    }

    /// As CSV: the rows of calls after the first, with the shares.
    #[must_use]
    pub fn csv(&self) -> String {
        let mut text =
            "nodes,ppn,sps,link_gbps,size,scheme,us,time_saved_percent,speedup_percent,first_us,\
                        bottleneck,port,sp_messages,sp_keys,host_keys\n"
                .to_owned();
        for ((row, first), shares) in self.rows.iter().zip(&self.first_rows).zip(&self.shares) {
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}",
                row.nodes,
                row.ppn,
                row.sps,
                row.link_gbps,
                row.size,
                row.scheme,
                row.us,
                row.time_saved_percent,
                row.speedup_percent,
                first.us,
                shares.bottleneck,
                shares.port,
                shares.sp_messages,
                shares.sp_keys,
                shares.host_keys,
            );
        }
        text
    }

    /// As a table.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = format!(
            "{:>6} {:>4} {:>4} {:>6} {:>8}  {:<27} {:>12} {:>8} {:>9} {:>12}  {}\n",
            "nodes",
            "ppn",
            "SPs",
            "Gb/s",
            "size",
            "scheme",
            "us",
            "saved %",
            "speedup %",
            "first (us)",
            "bottleneck"
        );
        for ((row, first), shares) in self.rows.iter().zip(&self.first_rows).zip(&self.shares) {
            let _ = writeln!(
                text,
                "{:>6} {:>4} {:>4} {:>6} {:>8}  {:<27} {:>12.1} {:>8.1} {:>9.1} {:>12.1}  {}",
                row.nodes,
                row.ppn,
                row.sps,
                row.link_gbps,
                size(row.size),
                row.scheme,
                row.us,
                row.time_saved_percent,
                row.speedup_percent,
                first.us,
                shares.bottleneck
            );
        }
        text
    }

    /// The sensitivity study as a table: for each of the slides' sizes both definitions, and times.
    #[must_use]
    pub fn sensitivity_table(&self) -> String {
        let mut text = format!("{:<38}", "UCX's pool against indirection");
        for (bytes, percent) in REPORTED {
            let title = format!("{}, slides {percent} %", size(bytes));
            let _ = write!(text, "  {title:>38}");
        }
        let _ = write!(text, "\n{:<38}", "");
        for _ in REPORTED {
            let _ = write!(
                text,
                "  {:>9} {:>9} {:>8} {:>9}",
                "ksm us", "pool us", "saved %", "speedup %"
            );
        }
        text.push('\n');
        for row in &self.sensitivity {
            let _ = write!(text, "{:<38}", row.what);
            for at in &row.sizes {
                let _ = write!(
                    text,
                    "  {:>9.0} {:>9.0} {:>8.1} {:>9.1}",
                    at.ksm_us, at.stock_us, at.time_saved_percent, at.speedup_percent
                );
            }
            text.push('\n');
        }
        text
    }
}

impl Row {
    fn new(point: &Point, us: f64, gain: Gain) -> Self {
        let config = &point.config;
        Self {
            nodes: config.nodes,
            ppn: config.ppn,
            sps: config.sps,
            link_gbps: config.link_gbps,
            size: config.block_bytes,
            scheme: config.scheme.to_string(),
            us,
            time_saved_percent: gain.time_saved_percent,
            speedup_percent: gain.speedup_percent,
        }
    }
}

impl Shares {
    fn new(prediction: &Prediction) -> Self {
        Self {
            bottleneck: prediction.bottleneck().name(),
            port: prediction.port_share,
            sp_messages: prediction.messages_share,
            sp_keys: prediction.keys_share,
            host_keys: prediction.host_keys_share,
        }
    }
}

impl Sensitivity {
    fn new(variation: &Variation) -> Self {
        let sizes = variation.points.iter().zip(REPORTED);
        Self {
            what: variation.what.clone(),
            sizes: sizes
                .map(|(point, (size, slides_percent))| {
                    let gain = point.gain();
                    SensitivityAt {
                        size,
                        slides_percent,
                        ksm_us: point.indirection.us,
                        stock_us: point.prediction.us,
                        time_saved_percent: gain.time_saved_percent,
                        speedup_percent: gain.speedup_percent,
                    }
                })
                .collect(),
        }
    }
}

fn size(bytes: u64) -> String {
    usize::try_from(bytes).map_or_else(|_| bytes.to_string(), format_size)
}
