//! What keys are worth on a fabric that never blocks, and on one with queues.

use super::config::Config;
use super::costs::CostTable;
use super::fabric::{Control, replay, replay_unblocked};
use super::predict::{Extent, FabricError, Gain, predict, predict_on};
use super::scheme::{Features, Scheme};
use pcc_lab::scenario::Row;
use serde::Serialize;

/// One scheme on one fabric.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FabricRow {
    /// `never blocks`, or what controls the rates on the fat tree.
    pub fabric: String,
    /// Nodes, and ranks of each; none of recorded traffic.
    pub nodes: u32,
    /// See before.
    pub ppn: Option<u32>,
    /// Bytes per block.
    pub size: u64,
    /// Its name, or `recorded`.
    pub scheme: String,
    /// Mean over ranks of a call after the first, in microseconds.
    pub us: f64,
    /// `(T_ind - T) / T_ind` on the same fabric.
    pub time_saved_percent: Option<f64>,
}

/// Bytes of a packet of the lab.
const MTU: u64 = 4_096;
/// Calls of a run: the first one, and the iterations.
const FIRST: u64 = 1;

/// The machine with as many ranks per node, at most those of `base`, as have this many packets in a run. None if one rank has
/// more.
#[must_use]
pub fn bounded(base: &Config, packets_max: u64) -> Option<Config> {
    let packets = |ppn: u32| {
        let (ranks, nodes) = (
            u64::from(ppn) * u64::from(base.nodes),
            u64::from(base.nodes),
        );
        let blocks = ranks * (ranks - ranks / nodes);
        blocks * base.block_bytes.div_ceil(MTU) * (FIRST + u64::from(base.iterations))
    };
    // Service processes share the ranks of their node.
    let fits = |ppn: &u32| ppn.is_multiple_of(base.sps.min(*ppn)) && packets(*ppn) <= packets_max;
    let ppn = (1..=base.ppn).rev().find(fits)?;
    Some(Config {
        ppn,
        sps: base.sps.min(ppn),
        ..base.clone()
    })
}

/// Recorded traffic where only receivers' ports are a limit, and on a fat tree in the lab with each control.
///
/// # Errors
/// The traffic is beyond the limits of the lab.
pub fn recorded(base: &Config, rows: &[Row]) -> Result<Vec<FabricRow>, FabricError> {
    let row = |fabric: &str, us| FabricRow {
        fabric: fabric.to_owned(),
        nodes: base.nodes,
        ppn: None,
        size: rows.iter().map(|row| row.3).max().unwrap_or_default(),
        scheme: "recorded".to_owned(),
        us,
        time_saved_percent: None,
    };
    let mut found = vec![row("never blocks", replay_unblocked(base, rows))];
    for control in Control::ALL {
        found.push(row(control.name(), replay(base, control, rows)?));
    }
    Ok(found)
}

/// The slides' schemes on a fabric that never blocks, and on a fat tree in the lab with each control. `progress` hears of each
/// fabric when its rows are there.
///
/// # Errors
/// When a number is out of its range, or the machine is beyond the limits of the lab.
pub fn fabrics(
    base: &Config,
    table: &CostTable,
    progress: impl Fn(&str),
) -> Result<Vec<FabricRow>, FabricError> {
    let schemes = [Scheme::Ksm, Scheme::Stock, Scheme::Xgvmi(Features::ALL)];
    let lab = Control::ALL.map(Some);
    let mut rows = Vec::new();
    for control in [None].into_iter().chain(lab) {
        let predictions = std::thread::scope(|scope| {
            let run = |scheme| {
                let config = Config {
                    scheme,
                    ..base.clone()
                };
                scope.spawn(move || match control {
                    Some(control) => predict_on(&config, table, control),
                    None => Ok(predict(&config, table, Extent::Full)?),
                })
            };
            schemes.map(run).map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
        });
        let name = control.map_or("never blocks", Control::name);
        progress(name);
        let mut indirection_us = None;
        for (scheme, prediction) in schemes.into_iter().zip(predictions) {
            let us = prediction?.us;
            rows.push(FabricRow {
                fabric: name.to_owned(),
                nodes: base.nodes,
                ppn: Some(base.ppn),
                size: base.block_bytes,
                scheme: scheme.to_string(),
                us,
                time_saved_percent: Some(
                    Gain::of(us, *indirection_us.get_or_insert(us)).time_saved_percent,
                ),
            });
        }
    }
    Ok(rows)
}
