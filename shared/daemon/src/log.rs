//! Log levels.

use serde::Deserialize;

/// How much a daemon logs on standard error.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Failures only.
    Error,
    /// Jobs that begin and end as well.
    #[default]
    Info,
    /// Ranks and other services as well.
    Debug,
}
