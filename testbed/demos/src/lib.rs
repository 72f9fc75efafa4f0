//! Transfers over stock UCX, measured with and without a pool of cross-GVMI keys.
//!
//! [`demo`] is the transfer of `xgvmi-demo`, and [`report`] is its report. The crate `osu-bench` contains OSU's
//! alltoallv benchmarks.
//!
//! ```
//! use osu_bench::report::Report;
//!
//! /// Median time of an iteration with pooled keys, in microseconds.
//! fn median(report: &Report, size: usize) -> Option<f64> {
//!     report.row("xgvmi", size).map(|row| row.steady_us.p50)
//! }
//! ```

pub mod demo;
pub mod report;
