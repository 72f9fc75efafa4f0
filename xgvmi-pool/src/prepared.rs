//! The result of a creation of aliases in advance.

use crate::error::AliasError;

/// Result of a preparation of aliases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Prepared {
    /// Keys that have an alias now.
    pub ready: usize,
    /// Keys skipped because the map is full.
    pub left_out: usize,
    /// Keys whose alias could not be created.
    pub failed: usize,
    /// The first error.
    pub error: Option<AliasError>,
}
