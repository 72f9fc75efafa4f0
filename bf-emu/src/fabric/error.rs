//! Errors of creating or opening the device file.

use std::path::PathBuf;

use super::limits::PROCESSES_MAX;

/// Why the device file could not be made or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// The operating system refused.
    #[error("{call} {}: {source}", path.display())]
    Io {
        /// What was tried.
        call: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The file is not of this build.
    #[error(
        "{} was made by another version of bf-emu: end its processes, then run 'bf-emu reset'",
        path.display()
    )]
    Layout {
        /// The file.
        path: PathBuf,
    },
    /// The file describes another device.
    #[error(
        "{} exists with {there}, but {asked} was requested: use another --state, or run \
         'bf-emu reset' first",
        path.display()
    )]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// What it has.
        there: String,
        /// What was asked for.
        asked: String,
    },
    /// The process table is full.
    #[error("{} already has the maximum of {PROCESSES_MAX} processes", path.display())]
    Full {
        /// The file.
        path: PathBuf,
    },
}
