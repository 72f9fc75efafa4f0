//! How keys are created.

use serde::{Deserialize, Serialize};
use std::fmt;

/// How to create keys. The ranks and SPs of a job must have the same scheme: otherwise a report would name a scheme that
/// was not measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Scheme {
    /// UCX creates a key for each buffer (indirection), and destroys it.
    Ksm,
    /// UCX's own pool of keys.
    #[default]
    Stock,
    /// This project's library, preloaded or found by UCX.
    Xgvmi,
}

impl Scheme {
    /// The name in options and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ksm => "ksm",
            Self::Stock => "stock",
            Self::Xgvmi => "xgvmi",
        }
    }

    /// UCX settings for this scheme.
    pub(super) const fn settings(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Ksm => &[("IB_XGVMI_UMR_ENABLE", "n")],
            Self::Stock | Self::Xgvmi => &[],
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
