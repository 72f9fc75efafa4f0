//! Errors of creating or opening the device file.

use std::path::PathBuf;

use super::limits::PROCESSES_MAX;

/// Reason why the device file could not be created or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// The operating system reported an error.
    #[error("{call} {}: {source}", path.display())]
    Io {
        /// The failed call.
        call: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// Another build created the file.
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
        /// The file's device.
        there: String,
        /// The requested device.
        asked: String,
    },
    /// The process table is full.
    #[error("{} already has the maximum of {PROCESSES_MAX} processes", path.display())]
    Full {
        /// The file.
        path: PathBuf,
    },
}
