//! Debian 13's own UCX 1.18.1, which is built with assertions, in a tree of its own: the preload cells, and the offload
//! check in each scheme. Without the library a service process there aborts in every job (D13); with it every job runs.

use super::{Built, Options, PRELOAD_CELLS, Row, cells, device, read, report, services};
use anyhow::{Context, Result, bail};
use dev_setup::Env;
use dev_setup::tree::{self, UccTree};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use testbed::cluster::Cluster;
use testbed::link::Link;
use testbed::place::Place;
use testbed::process;

/// Its name in the report. The cells read the version from its beginning.
pub(super) const NAME: &str = "1.18.1-debian13";
/// The argument that selects it.
pub(super) const WORD: &str = "debian13";
/// The preload cells take a minute on an idle machine.
const LIMIT: Duration = Duration::from_secs(900);

/// Runs everything. The outer error means that the tree is not available.
///
/// # Errors
/// The reason why the packages or the namespaces are not available.
pub(super) fn run(options: &Options, env: &Env, built: &Built) -> Result<Result<Vec<Row>>> {
    let root = tree::debian13()?;
    let place = Place::new(&root, &super::output_dir(), &env.cache)?;
    Ok(in_place(options, &place, env, built))
}

fn in_place(options: &Options, place: &Place, env: &Env, built: &Built) -> Result<Vec<Row>> {
    let link = Link::default();
    let (device, output) = device(built, link)?;
    let through = built.through(&output);
    let libraries = PathBuf::from(UccTree::libraries());
    let only = match options.only.is_empty() {
        true => vec![PRELOAD_CELLS.to_owned(), " absent D".to_owned()],
        false => options.only.clone(),
    };
    let outer = cells(&only, env, &through, &device, &[(NAME, libraries)]);
    let mut command = place.inside(
        &variables(&through.emulator),
        &through.cells.display().to_string(),
    );
    command.args(outer.get_args());
    println!("{NAME}:");
    let code = process::to_end(&mut command, LIMIT)?;
    let mut rows = read(&report())?;
    // Without a failed cell, the cause is elsewhere.
    if code != ExitCode::SUCCESS && !rows.is_empty() && rows.iter().all(|row| row.failure.is_none())
    {
        bail!("the cells have failed without a failed cell");
    }
    rows.extend(services::rows(options, NAME, |scheme| {
        offload_check(place, &device.named(scheme), built, scheme)
    }));
    Ok(rows)
}

fn variables(emulator: &Path) -> Vec<(String, String)> {
    let preload = emulator.with_file_name("libbfemu_preload.so");
    vec![("BFEMU_PRELOAD".to_owned(), preload.display().to_string())]
}

/// A job in the tree.
fn offload_check(place: &Place, device: &Cluster, built: &Built, scheme: &str) -> Result<()> {
    let release = built
        .emulator
        .parent()
        .context("an emulator without a directory")?;
    let command = |function: &str, program: &str, arguments: &[String]| {
        let mut variables = variables(&built.emulator);
        for (name, value) in [("UCX_TLS", "rc_x,self"), ("UCX_NET_DEVICES", "mlx5_0:1")] {
            variables.push((name.to_owned(), value.to_owned()));
        }
        if scheme == "xgvmi" {
            let library = built.library.display().to_string();
            variables.push(("LD_PRELOAD".to_owned(), library));
        }
        let run = device.command(function, release.join(program));
        let mut command = place.inside(&variables, &built.emulator.display().to_string());
        command.args(run.get_args()).args(arguments);
        Ok(command)
    };
    services::judge(&services::job(scheme, command)?, scheme, true)
}
