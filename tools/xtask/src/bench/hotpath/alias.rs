//! Counts of a hit of the alias map: a lookup that finds an alias, and the end of its use. The map has 20,000 aliases.

use super::{Row, stepped, steps};
use crate::process;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testbed::cluster::Cluster;

/// Rounds of each kind.
const ROUNDS: usize = 50;
/// Program and owner.
const PROGRAM: &str = "pool-instructions";
const OWNER: &str = "library";
/// Maximum locked instructions of a hit: the pin and its end.
const LOCKED_MOST: f64 = 2.0;
/// Maximum cache lines that differ from hit to hit: that of the alias, and one of a directory of 2 KiB.
const LINES_MOST: f64 = 2.0;

/// Averages per hit.
#[derive(Debug)]
pub(super) struct Hit {
    instructions: f64,
    locked: f64,
    /// Lines of one hit.
    lines: f64,
    /// Lines that a hit of another alias adds.
    more_lines: f64,
}

impl Hit {
    /// Counts.
    pub(super) fn count(device: &Cluster) -> Result<Self> {
        let mut command = stepped(device, PROGRAM);
        let rounds = ROUNDS.to_string();
        command.args(["alias_hit", "marked", &rounds]);
        process::stdout(&mut command, super::LIMIT)?;
        Self::parse(&steps(device)?)
    }

    fn parse(text: &str) -> Result<Self> {
        let report: Value = serde_json::from_str(text).context("the report of step-count")?;
        let rounds = report["rounds"].as_array().context("no rounds")?;
        let mean = |label: u64, number: &dyn Fn(&Value, &Value) -> f64| -> Result<f64> {
            let of_label = |round: &&Value| round["sections"][0]["label"] == label;
            let numbers = rounds.iter().filter(of_label).map(|round| {
                let counts = &round["sections"][0]["owners"][OWNER];
                number(counts, &round["lines"][OWNER])
            });
            let numbers: Vec<f64> = numbers.collect();
            ensure!(!numbers.is_empty(), "no round with label {label}");
            #[expect(clippy::cast_precision_loss, reason = "some rounds")]
            Ok(numbers.iter().sum::<f64>() / numbers.len() as f64)
        };
        let count = |label, name: &str| {
            mean(label, &|counts, _| {
                counts[name].as_f64().unwrap_or_default()
            })
        };
        let lines = |label| mean(label, &|_, lines| lines["all"].as_f64().unwrap_or(f64::NAN));
        let instructions = count(2, "instructions")? - count(1, "instructions")?;
        ensure!(instructions > 0.0, "a hit executes instructions");
        Ok(Self {
            instructions,
            locked: count(2, "locked")? - count(1, "locked")?,
            lines: lines(1)?,
            more_lines: lines(2)? - lines(1)?,
        })
    }

    pub(super) fn rows(&self) -> Vec<Value> {
        [
            ("instructions of an alias hit", self.instructions),
            ("locked instructions of an alias hit", self.locked),
            ("cache lines of an alias hit", self.lines),
            ("cache lines that differ from hit to hit", self.more_lines),
        ]
        .map(|(what, ours)| Row::alone(what, ours).json("alias"))
        .into()
    }

    /// Names, numbers and their maxima.
    pub(super) fn bounds(&self) -> [(&'static str, f64, f64); 2] {
        [
            (
                "locked instructions of an alias hit",
                self.locked,
                LOCKED_MOST,
            ),
            (
                "cache lines that differ from alias hit to alias hit",
                self.more_lines,
                LINES_MOST,
            ),
        ]
    }
}
