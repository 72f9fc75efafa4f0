//! What was predicted, as text for the eye and as JSON or CSV for programs.

use super::fabrics::FabricRow;
use super::limits::Limit;
use super::predict::{Gain, Prediction};
use super::sweep::{Point, REPORTED, Variation};
use super::ucc::{Beside, Crossing};
use anyhow::Result;
use bench_report::{columns, table};
use serde::Serialize;
use serde_json::Value;
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
    /// Beside stock UCC, and where the offload no longer loses.
    pub beside_ucc: Vec<Beside>,
    /// See above.
    pub crossings: Vec<Crossing>,
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
            beside_ucc: Vec::new(),
            crossings: Vec::new(),
            fabrics: Vec::new(),
            sensitivity: variations.iter().map(Sensitivity::new).collect(),
        }
    }

    /// The tables: the calls, and the changed inputs and the limits if there are some.
    ///
    /// # Errors
    /// A row cannot be shown.
    pub fn text(&self) -> Result<String> {
        let parts = self.rows.iter().zip(&self.first_rows).zip(&self.shares);
        let calls = parts.map(|((row, first), shares)| {
            let mut row = serde_json::to_value(row)?;
            row["first_us"] = first.us.into();
            row["bottleneck"] = shares.bottleneck.into();
            Ok(row)
        });
        let calls = calls.collect::<Result<Vec<Value>>>()?;
        let mut text = table::text(columns::MODEL, &calls)?;
        let changes = self.sensitivity.iter().flat_map(|change| {
            change.sizes.iter().map(|at| {
                let mut row = serde_json::to_value(at)?;
                row["what"] = change.what.as_str().into();
                Ok(row)
            })
        });
        let changes = changes.collect::<Result<Vec<Value>>>()?;
        if !changes.is_empty() {
            text += "\nUCX's pool against a key per buffer\n";
            text += &table::text(columns::MODEL_CHANGES, &changes)?;
        }
        if !self.limits.is_empty() {
            let limits = self.limits.iter().map(serde_json::to_value);
            let limits = limits.collect::<Result<Vec<Value>, _>>()?;
            text += "\nthe service process is the limit up to\n";
            text += &table::text(columns::MODEL_LIMITS, &limits)?;
        }
        if !self.beside_ucc.is_empty() {
            let rows = self.beside_ucc.iter().map(serde_json::to_value);
            let rows = rows.collect::<Result<Vec<Value>, _>>()?;
            text += "\ncollectives beside stock UCC's\n";
            text += &table::text(columns::MODEL_UCC, &rows)?;
        }
        if !self.crossings.is_empty() {
            let rows = self.crossings.iter().map(serde_json::to_value);
            let rows = rows.collect::<Result<Vec<Value>, _>>()?;
            text += "\nsizes at which the offload does not lose\n";
            text += &table::text(columns::MODEL_CROSSINGS, &rows)?;
        }
        if !self.fabrics.is_empty() {
            let fabrics = self.fabrics.iter().map(serde_json::to_value);
            let fabrics = fabrics.collect::<Result<Vec<Value>, _>>()?;
            text += "\non a fat tree in the packet-level lab, by the control of rates\n";
            text += &table::text(columns::MODEL_FABRICS, &fabrics)?;
        }
        Ok(text)
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
