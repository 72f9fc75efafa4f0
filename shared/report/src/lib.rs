//! Columns, tables, sizes, samples, device counters, plots and files of all reports, and the published times that they are compared with.
//!
//! ```
//! use bench_report::{Samples, format_size, parse_size};
//!
//! let mut samples = Samples::default();
//! samples.extend_us(&[3.0, 1.0, 2.0]);
//! assert_eq!(samples.percentile(50), Some(2.0));
//! assert_eq!(parse_size("16K").map(format_size).as_deref(), Ok("16 KiB"));
//! ```

pub mod columns;
pub mod counters;
pub mod files;
mod samples;
mod scheme;
mod size;
#[cfg(feature = "svg")]
pub mod svg;
pub mod table;

pub use samples::Samples;
pub use scheme::scheme_title;
pub use size::{format_size, parse_size};

/// The slides' table ("Cross-GVMI UMR Mkey Pool", UCF 2023), nanoseconds at 16 KiB, 1 MiB, 64 MiB and 1 GiB.
pub const SLIDES: &str = include_str!("slides.csv");
