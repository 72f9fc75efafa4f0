//! What all demos on a cluster have: the options that `cargo xtask demo` passes, and two emulated nodes.

use anyhow::Result;
use bench_report::parse_size;
use clap::Args;
use std::path::PathBuf;
use testbed::cluster::Cluster;

#[derive(Debug, Args)]
pub(crate) struct Common {
    /// Directory of the built programs.
    #[arg(long, value_name = "DIR")]
    bin: PathBuf,
    /// Directory of the report.
    #[arg(long, value_name = "DIR")]
    pub(crate) output: PathBuf,
    /// Cost profile of the device.
    #[arg(long, value_name = "NAME")]
    pub(crate) profile: String,
    /// Sizes to measure.
    #[arg(long, value_delimiter = ',', value_parser = parse_size, required = true)]
    pub(crate) sizes: Vec<usize>,
    /// Iterations of each size.
    #[arg(long)]
    pub(crate) iterations: u32,
}

impl Common {
    /// A built program.
    pub(crate) fn built(&self, name: &str) -> PathBuf {
        self.bin.join(name)
    }

    /// The emulated nodes.
    pub(crate) fn cluster(&self) -> Result<Cluster> {
        Ok(Cluster::new(self.built("bf-emu"), 2)?.with(["--profile", &self.profile]))
    }
}
