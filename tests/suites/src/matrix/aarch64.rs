//! A host of this processor and a DPU of aarch64, each on its own stock UCX of one version: the cells of export and import.
//! UCX finds plugins since 1.22, so that older versions have the cell by preload only.

use super::{Built, Options, Row, cells, device, make_plugins, read, report};
use crate::aarch64;
use anyhow::{Context as _, Result, bail};
use dev_setup::Env;
use dev_setup::cache::Cache;
use std::process::ExitCode;
use std::time::Duration;
use testbed::link::Link;
use testbed::process;

/// The argument that selects it.
pub(super) const WORD: &str = "aarch64";
/// Without chosen cells.
const CELLS: [&str; 2] = [" preload export and import", " plugin export and import"];
/// A cell takes seconds, and minutes on a loaded machine.
const LIMIT: Duration = Duration::from_secs(3000);

/// Runs the cells of the chosen versions.
pub(super) fn run(options: &Options, env: &Env, built: &Built) -> Result<Vec<Row>> {
    let only = match options.only.is_empty() {
        true => CELLS.map(str::to_owned).to_vec(),
        false => options.only.clone(),
    };
    let mut rows = Vec::new();
    for version in &options.versions {
        let libraries = version.ensure(&Cache::open()?, env)?;
        let foreign = aarch64::for_matrix(version)?;
        let library = built.library.file_name().context("a library")?;
        make_plugins(
            &foreign.programs.join(library),
            &foreign.programs.join("plugins"),
        )?;
        let (device, output) = device(built, Link::default())?;
        let name = format!("{}-{WORD}", version.name);
        let there = [(name.as_str(), libraries)];
        let mut command = cells(&only, env, &built.through(&output), &device, &there);
        command.arg("--dpu-foreign").arg(foreign.to_string());
        println!("with a DPU of {WORD}:");
        let code = process::to_end(&mut command, LIMIT)?;
        let found = read(&report())?;
        // Without a failed cell, the cause is elsewhere.
        if code != ExitCode::SUCCESS && found.iter().all(|row| row.failure.is_none()) {
            bail!("{name}: no cell ran, or the cells have failed without a failed one");
        }
        rows.extend(found);
    }
    Ok(rows)
}
