//! What keys are worth on a fabric that never blocks, and on one with queues.

use super::config::Config;
use super::costs::CostTable;
use super::fabric::Control;
use super::predict::{Extent, FabricError, Gain, predict, predict_on};
use super::scheme::{Features, Scheme};
use serde::Serialize;

/// One scheme on one fabric.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FabricRow {
    /// `never blocks`, or what controls the rates on the fat tree.
    pub fabric: String,
    /// Nodes.
    pub nodes: u32,
    /// Bytes per block.
    pub size: u64,
    /// Its name.
    pub scheme: String,
    /// Mean over ranks of a call after the first, in microseconds.
    pub us: f64,
    /// `(T_ind - T) / T_ind` on the same fabric.
    pub time_saved_percent: f64,
}

/// The slides' schemes on a fabric that never blocks, and on a fat tree in the lab with each control.
///
/// # Errors
/// When a number is out of its range, or the machine is beyond the limits of the lab.
pub fn fabrics(base: &Config, table: &CostTable) -> Result<Vec<FabricRow>, FabricError> {
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
        let mut indirection_us = None;
        for (scheme, prediction) in schemes.into_iter().zip(predictions) {
            let us = prediction?.us;
            rows.push(FabricRow {
                fabric: control.map_or("never blocks", Control::name).to_owned(),
                nodes: base.nodes,
                size: base.block_bytes,
                scheme: scheme.to_string(),
                us,
                time_saved_percent: Gain::of(us, *indirection_us.get_or_insert(us))
                    .time_saved_percent,
            });
        }
    }
    Ok(rows)
}
