//! Compares the model with measured runs: the time that a pool saved, measured and predicted.
//!
//! The comparison uses differences between schemes of one run. The time that programs, emulator and two busy
//! cores add is equal in all schemes and cancels out, except for the part that grows with the number of
//! commands.

use super::config::Config;
use super::costs::CostTable;
use super::predict::Extent;
use super::scheme::Scheme;
use super::sweep;
use anyhow::{Context as _, Result, ensure};
use bench_report::{columns, table};
use serde::{Deserialize, Serialize};

/// Measured and predicted savings may differ by this factor. All processes share two cores in the measured run, which the model
/// does not know.
const FACTOR_MAX: f64 = 2.0;

/// The part of `alltoallv.json` that is compared.
#[derive(Debug, Deserialize)]
struct Measured {
    rows: Vec<MeasuredRow>,
}

#[derive(Debug, Deserialize)]
struct MeasuredRow {
    scheme: String,
    size: u64,
    steady_us: Steady,
}

#[derive(Debug, Deserialize)]
struct Steady {
    p50: f64,
}

/// `check.json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Check {
    /// Format version. It is 1 until a field changes its meaning.
    schema: u32,
    nodes: u32,
    ppn: u32,
    sps: u32,
    rows: Vec<CheckRow>,
}

/// A scheme with a pool against a key per buffer, at one size.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct CheckRow {
    scheme: String,
    size: u64,
    /// Median of a measured call with a key per buffer, minus that of the scheme.
    measured_saved_us: f64,
    /// The same difference, predicted.
    predicted_saved_us: f64,
    /// Measured over predicted.
    ratio: f64,
}

impl Check {
    /// Compares every scheme and size of a measured run with the model of the same machine.
    ///
    /// # Errors
    /// If the text is not such a report, or contains nothing to compare.
    pub(super) fn of(text: &str, machine: &Config, table: &CostTable) -> Result<Self> {
        let measured: Measured = serde_json::from_str(text).context("a measured alltoallv")?;
        let base = Scheme::Ksm.to_string();
        let time = |scheme: &str, size: u64| {
            let rows = measured.rows.iter();
            rows.filter(|row| row.scheme == scheme && row.size == size)
                .map(|row| row.steady_us.p50)
                .next()
        };
        let mut rows = Vec::new();
        for row in measured.rows.iter().filter(|row| row.scheme != base) {
            let Some(indirection) = time(&base, row.size) else {
                continue;
            };
            // The model has no step for a library option (the part after a plus).
            let name = row
                .scheme
                .split_once('+')
                .map_or(&*row.scheme, |(name, _)| name);
            let scheme: Scheme = name.parse().map_err(anyhow::Error::msg)?;
            let config = Config {
                block_bytes: row.size,
                ..machine.clone()
            };
            let points = sweep::points(&[config], &[scheme], table, Extent::OneNode, |_, _| {})?;
            let point = points.first().context("the model predicts nothing")?;
            let measured_saved_us = indirection - row.steady_us.p50;
            let predicted_saved_us = point.indirection.us - point.prediction.us;
            rows.push(CheckRow {
                scheme: row.scheme.clone(),
                size: row.size,
                measured_saved_us,
                predicted_saved_us,
                ratio: measured_saved_us / predicted_saved_us,
            });
        }
        ensure!(
            !rows.is_empty(),
            "the run has no scheme beside {base}, or no {base} at its sizes"
        );
        Ok(Self {
            schema: 1,
            nodes: machine.nodes,
            ppn: machine.ppn,
            sps: machine.sps,
            rows,
        })
    }

    /// Refuses a difference of more than [`FACTOR_MAX`] in either direction.
    ///
    /// # Errors
    /// Names the rows.
    pub(super) fn judge(&self) -> Result<()> {
        let within = |row: &&CheckRow| (FACTOR_MAX.recip()..=FACTOR_MAX).contains(&row.ratio);
        let beyond = self.rows.iter().filter(|row| !within(row));
        let beyond: Vec<String> = beyond
            .map(|row| format!("{} at {} bytes: {:.2}", row.scheme, row.size, row.ratio))
            .collect();
        ensure!(
            beyond.is_empty(),
            "measured and predicted savings differ by more than a factor of {FACTOR_MAX}: {}",
            beyond.join(", ")
        );
        Ok(())
    }

    pub(super) fn text(&self) -> Result<String> {
        let rows = self.rows.iter().map(serde_json::to_value);
        let rows = rows.collect::<Result<Vec<_>, _>>()?;
        Ok(format!(
            "saved against a key per buffer, per call ({} nodes, {} ranks and {} SPs each)\n{}",
            self.nodes,
            self.ppn,
            self.sps,
            table::text(columns::CHECK, &rows)?
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Config {
        Config {
            nodes: 2,
            ppn: 4,
            sps: 2,
            ..Config::slides(1, Scheme::Ksm)
        }
    }

    fn check(text: &str) -> Result<Check> {
        Check::of(text, &machine(), &CostTable::slides()?)
    }

    #[test]
    fn what_was_saved_is_compared_with_the_model() {
        let run = r#"{"rows":[
            {"scheme":"ksm","size":16384,"steady_us":{"p50":5000.0}},
            {"scheme":"xgvmi","size":16384,"steady_us":{"p50":2000.0}},
            {"scheme":"xgvmi+batched","size":16384,"steady_us":{"p50":1900.0}},
            {"scheme":"stock","size":1024,"steady_us":{"p50":2000.0}}]}"#;
        let check = check(run).expect("a run");
        let [row, with_option] = check.rows.as_slice() else {
            panic!("{check:?}");
        };
        let same = (with_option.predicted_saved_us - row.predicted_saved_us).abs() < 1e-9;
        assert!(same && with_option.scheme == "xgvmi+batched", "{check:?}");
        assert_eq!((row.scheme.as_str(), row.size), ("xgvmi", 16384));
        assert!((row.measured_saved_us - 3000.0).abs() < 1e-9);
        // An SP creates and destroys two aliases for each of two ranks: more than a millisecond.
        assert!(
            (1000.0..5000.0).contains(&row.predicted_saved_us),
            "{row:?}"
        );
        assert!((row.ratio - 3000.0 / row.predicted_saved_us).abs() < 1e-9);
        let text = check.text().unwrap();
        assert!(text.contains("16 KiB"), "{text}");
        let mut check = check;
        check.rows[0].ratio = 1.9;
        check.rows[1].ratio = 0.51;
        check.judge().expect("within the factor");
        check.rows[1].ratio = 0.49;
        let error = check.judge().expect_err("beyond it").to_string();
        assert!(
            error.ends_with("xgvmi+batched at 16384 bytes: 0.49"),
            "{error}"
        );
    }

    #[test]
    fn what_is_no_run_is_refused() {
        for wrong in [
            "",
            "{}",
            r#"{"rows":[]}"#,
            r#"{"rows":[{"scheme":"ksm","size":1,"steady_us":{"p50":1.0}}]}"#,
            r#"{"rows":[{"scheme":"ksm","size":1,"steady_us":{"p50":1.0}},{"scheme":"x","size":1,"steady_us":{"p50":1.0}}]}"#,
        ] {
            assert!(check(wrong).is_err(), "{wrong}");
        }
    }
}
