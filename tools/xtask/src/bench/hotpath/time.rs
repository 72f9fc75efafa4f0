//! The time of an export and its release at full speed. It depends on the machine, so nothing asserts it.

use super::super::cluster;
use super::super::pool::pair;
use super::{Kind, LIMIT, Row};
use crate::process;
use crate::setup::Env;
use anyhow::{Context as _, Result};

/// Time of an export and its release, with the library and without, in turn: the best of some runs each.
pub(super) fn compare(env: &Env) -> Result<Row> {
    const RUNS: usize = 5;
    const ROUNDS: usize = 4000;
    let device = cluster(1)?;
    let mut best = [f64::INFINITY; 2];
    for _ in 0..RUNS {
        for (best, kind) in best.iter_mut().zip([Kind::Library("strict"), Kind::Stock]) {
            let mut command = kind.prepare(env, pair(&device, "ucp_hot_path"), ROUNDS);
            let text = process::stdout(command.arg("time"), LIMIT)?;
            let time: f64 = text
                .trim()
                .parse()
                .with_context(|| format!("a time: {text}"))?;
            *best = best.min(time);
        }
    }
    let [ours, stock] = best;
    Ok(Row::beside(
        "nanoseconds of an export and its release",
        "all",
        ours,
        stock,
    ))
}
