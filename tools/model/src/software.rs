//! Time that a service process (SP) computes for messages and blocks: UCX's estimates, or the measured cost of this
//! project's SP.

use serde::Deserialize;
use thiserror::Error;

/// Maximum size of a report. `cargo xtask bench service` writes a few KiB.
pub(super) const FILE_BYTES_MAX: usize = 1 << 20;

/// Maximum cost in microseconds. A millisecond per message indicates a wrong unit.
const US_MAX: f64 = 1000.0;

/// Source of the SP's computing time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum SoftwareCost {
    /// UCX's own estimates (`Software::UCX`), with one announcement and one answer for each block.
    #[default]
    Ucx,
    /// The measured cost of this project's SP, and UCX's estimates for the requests that it posts. The SP combines the
    /// blocks of its ranks for another SP in one offer with one answer.
    Measured(MeasuredCost),
    /// The same for an earlier version of this project's SP.
    Earlier(MeasuredCost),
}

/// Measured cost of this project's code in an SP, without UCX.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct MeasuredCost {
    /// For a block, in microseconds.
    pub us_per_block: f64,
    /// For a message, at its sender and its receiver together, in microseconds.
    pub us_per_message: f64,
}

/// Reason why a report is invalid.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CostError {
    /// The file is too long.
    #[error("the report has {0} bytes; at most {FILE_BYTES_MAX} are read")]
    TooLong(usize),
    /// Not a report of `cargo xtask bench service`.
    #[error("not a report of `cargo xtask bench service` with a cost: {0}")]
    Form(#[from] serde_json::Error),
    /// A cost out of range.
    #[error("{what} is {us}; it must be between 0 and {US_MAX}")]
    Range {
        /// The name of the field.
        what: &'static str,
        /// Its value.
        us: f64,
    },
}

/// Computing time of an SP for the steps of a block, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Steps {
    pub(super) send: f64,
    pub(super) receive: f64,
    pub(super) read: f64,
    pub(super) completion: f64,
}

impl MeasuredCost {
    /// Reads `cost` of a service.json.
    ///
    /// # Errors
    /// Not such a report, or numbers out of range.
    pub fn parse(text: &str) -> Result<Self, CostError> {
        #[derive(Deserialize)]
        struct Report {
            cost: MeasuredCost,
        }
        if text.len() > FILE_BYTES_MAX {
            return Err(CostError::TooLong(text.len()));
        }
        let Report { cost } = serde_json::from_str(text)?;
        for (what, us) in [
            ("us_per_block", cost.us_per_block),
            ("us_per_message", cost.us_per_message),
        ] {
            if !(0.0..=US_MAX).contains(&us) {
                return Err(CostError::Range { what, us });
            }
        }
        Ok(cost)
    }

    /// The cost of code that takes `factor` times as long.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        Self {
            us_per_block: self.us_per_block * factor,
            us_per_message: self.us_per_message * factor,
        }
    }
}

/// Measured rate in GB/s at which the SP's code sums vectors of 32-bit numbers, if a service.json has it.
///
/// # Errors
/// Not such a report.
pub(super) fn reduction_gb_s(text: &str) -> Result<Option<f64>, CostError> {
    #[derive(Deserialize)]
    struct Report {
        #[serde(default)]
        reduction: Vec<Row>,
    }
    #[derive(Deserialize)]
    struct Row {
        element: String,
        gb_per_s: f64,
    }
    let report: Report = serde_json::from_str(text)?;
    let mut rows = report.reduction.into_iter();
    Ok(rows
        .find(|row| row.element == "f32")
        .map(|row| row.gb_per_s))
}

impl SoftwareCost {
    /// A word for a table.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ucx => "UCX's estimate",
            Self::Measured(_) => "measured",
            Self::Earlier(_) => "earlier version",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_and_a_wrong_one_refused() {
        let text = r#"{"schema":2,"rows":[],"cost":{"us_per_block":0.07,"us_per_message":0.5,"instructions_per_block":9}}"#;
        let cost = MeasuredCost::parse(text).expect("valid");
        assert_eq!((cost.us_per_block, cost.us_per_message), (0.07, 0.5));
        assert!(matches!(reduction_gb_s(text), Ok(None)));
        let text = r#"{"reduction":[{"element":"f64","gb_per_s":1},{"element":"f32","gb_per_s":2.5,"operation":"sum"}]}"#;
        assert!(matches!(reduction_gb_s(text), Ok(Some(2.5))));
        assert!(reduction_gb_s(r#"{"reduction":[{"element":"f32"}]}"#).is_err());
        let check = |text: &str, expect: &str| {
            let error = MeasuredCost::parse(text).expect_err(text).to_string();
            assert!(error.contains(expect), "{error}");
        };
        check("{}", "missing field `cost`");
        check(r#"{"cost":{"us_per_block":1}}"#, "us_per_message");
        check(
            r#"{"cost":{"us_per_block":-1,"us_per_message":0}}"#,
            "us_per_block is -1",
        );
        check(
            r#"{"cost":{"us_per_block":0,"us_per_message":1e9}}"#,
            "us_per_message is 1000000000",
        );
        check(&" ".repeat(FILE_BYTES_MAX + 1), "at most");
    }
}
