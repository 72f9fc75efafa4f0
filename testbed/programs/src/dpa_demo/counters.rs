//! The counters that an MPI program reads between its calls: the device's, and the processor time of service processes.

use anyhow::{Context as _, Result};
use clap::Args;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use testbed::process::processor_time;

#[derive(Debug, Args)]
pub(crate) struct Counters {
    /// File to which a line with the nanoseconds of all processes is appended.
    #[arg(long, value_name = "FILE")]
    times: PathBuf,
    /// Processes.
    #[arg(long = "process", value_name = "ID")]
    processes: Vec<u32>,
    /// Command that prints the device's counters.
    #[arg(required = true, last = true)]
    command: Vec<String>,
}

impl Counters {
    pub(crate) fn run(&self) -> Result<()> {
        let spent = self.processes.iter().map(|id| processor_time(*id));
        let spent: Duration = spent.sum::<Result<_>>()?;
        let mut file = std::fs::File::options()
            .append(true)
            .create(true)
            .open(&self.times)
            .with_context(|| self.times.display().to_string())?;
        writeln!(file, "{}", spent.as_nanos())?;
        let (program, words) = self.command.split_first().context("a command")?;
        // Returns only after a failure.
        Err(Command::new(program).args(words).exec()).context(program.clone())
    }
}
