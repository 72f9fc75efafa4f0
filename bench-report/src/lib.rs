//! Shared by the reports of all benchmarks: sizes ([`format_size`]), samples ([`Samples`]), device counters
//! ([`counters`]) and plots ([`svg`]).
//!
//! Nothing here measures. A benchmark collects its figures, and this crate counts, orders, prints and draws them.

pub mod counters;
mod samples;
mod size;
pub mod svg;

pub use samples::Samples;
pub use size::{format_size, parse_size};
