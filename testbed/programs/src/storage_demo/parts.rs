//! The parts of the demo, one after the other, and its report.

use super::layout;
use super::orchestrate::{MIB, Options, data, schemes};
use super::report::Report;
use crate::demo::Common;
use anyhow::{Context as _, Result, bail};
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Demo {
    #[command(flatten)]
    common: Common,
    /// Stock UCX's `libucp.so.0`.
    #[arg(long, value_name = "FILE")]
    libucp: String,
    /// MiB of data that is written and verified.
    #[arg(long)]
    mib: u64,
}

impl Demo {
    pub(crate) fn run(&self) -> Result<()> {
        let Common {
            output, profile, ..
        } = &self.common;
        std::fs::create_dir_all(output).with_context(|| output.display().to_string())?;
        // The data is not part of the result.
        let disk = tempfile::tempdir_in(output).context("a directory of targets")?;
        let cluster = self.common.cluster()?;
        let memory = cluster.path().join("targets");
        std::fs::create_dir_all(&memory).with_context(|| memory.display().to_string())?;
        let options = Options {
            common: &self.common,
            libucp: &self.libucp,
            cluster,
            program: self.common.built("xgvmi-blk"),
            disk: disk.path(),
            memory,
            bytes: self.mib * MIB,
        };
        let mut report = Report::new(profile);
        data(&options, &mut report)?;
        layout::run(&options, &mut report)?;
        schemes(&options, &mut report)?;
        report.write(output)?;
        println!("{}", report.markdown()?);
        if report.mismatches > 0 {
            bail!("{} bytes are wrong", report.mismatches);
        }
        Ok(())
    }
}
