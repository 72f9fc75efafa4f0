//! Reports of accesses that a weakly ordered memory may not order. They stay in a file of the state directory after the end of
//! the programs.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dpa_os::Os;
use rv64::Lines;
use serde::{Deserialize, Serialize};

use super::log::log;

/// Name of the file: a report in JSON on each line.
pub(super) const FILE: &str = "dpa.order";

/// An access without the needed fence, writeback or invalidation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderReport {
    /// The program of the host or the DPU.
    pub pid: i32,
    /// Number of the thread.
    pub thread: u32,
    /// Address of the instruction.
    pub pc: u64,
    /// Its function.
    pub function: String,
    /// Its source file, or nothing.
    pub file: String,
    /// Its line, or 0.
    pub line: u32,
    /// What is missing.
    pub text: String,
}

/// Where the reports of a process go.
#[derive(Debug)]
pub(super) struct Log {
    pub(super) state: PathBuf,
    pub(super) image: Arc<Vec<u8>>,
    pub(super) pid: i32,
}

impl Log {
    /// Writes the reports that have come. A full disk loses them, and the error is one line of the runner's log.
    pub(super) fn write(&self, os: &mut Os) {
        let reports = os.take_order_reports();
        if reports.is_empty() {
            return;
        }
        let lines = Lines::parse(&self.image);
        let mut text = String::new();
        for report in reports {
            let place = lines.as_ref().and_then(|lines| lines.at(report.pc));
            let function = os.program().symbol_at(report.pc);
            let report = OrderReport {
                pid: self.pid,
                thread: report.thread,
                pc: report.pc,
                function: function.map_or(String::new(), |(name, _)| name.to_owned()),
                file: place
                    .as_ref()
                    .map_or(String::new(), |line| line.file.clone()),
                line: place.map_or(0, |line| line.line),
                text: report.text.to_owned(),
            };
            text.push_str(&serde_json::to_string(&report).unwrap_or_default());
            text.push('\n');
        }
        let file = File::options()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&self.state);
        if let Err(error) = file.and_then(|mut file| file.write_all(text.as_bytes())) {
            log(&format!("{}: {error}", self.state.display()));
        }
    }
}

/// The reports of a state directory since the first program of its last group used the DPA.
///
/// # Errors
/// The file is not readable.
pub fn order_reports(state: &Path) -> io::Result<Vec<OrderReport>> {
    match std::fs::read_to_string(state.join(FILE)) {
        // A line that was cut by a full disk is left out.
        Ok(text) => Ok(text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}
